# Small functions that stand side by side: jumps at one reach into the next.

        .macro  BEGIN name
        .globl  \name
        .type   \name, @function
\name:
        .endm
        .macro  END name
        .size   \name, . - \name
        .endm

# Instructions as far as a short jump reaches: no padding is near, and so no island.
        .macro  WALL name
BEGIN   \name
        .fill   80, 2, 0xc789
        ret
END     \name
        .endm

        .text
        .p2align 4
WALL    wall_before
BEGIN   crowd_push
        pushq   %rbx
        movq    %rdi, %rbx
        leaq    1(%rbx), %rax
        popq    %rbx
        ret
END     crowd_push
BEGIN   crowd_frame
        endbr64
        pushq   %rbp
        movq    %rsp, %rbp
        leaq    2(%rdi), %rax
        popq    %rbp
        ret
END     crowd_frame
# Four bytes, three, one and two: no jump fits without the next one's bytes.
BEGIN   crowd_four
        movl    %edi, %eax
        nop
        ret
END     crowd_four
BEGIN   crowd_three
        pushq   %rdi
        popq    %rax
        ret
END     crowd_three
BEGIN   crowd_one
        ret
END     crowd_one
BEGIN   crowd_two
        rep ret
END     crowd_two
BEGIN   crowd_four_again
        movq    %rdi, %rax
        ret
END     crowd_four_again
# Branches back to the second instruction, and to the first.
BEGIN   crowd_loop
        xorl    %eax, %eax
1:      incq    %rax
        decq    %rdi
        jne     1b
        ret
END     crowd_loop
BEGIN   crowd_back
        incq    %rsi
        decq    %rdi
        jne     crowd_back
        movq    %rsi, %rax
        ret
END     crowd_back
BEGIN   crowd_jcc
        testq   %rdi, %rdi
        je      2f
        leaq    4(%rdi), %rax
        ret
2:      movl    $4, %eax
        ret
END     crowd_jcc
BEGIN   crowd_load
        movq    crowd_constant(%rip), %rax
        addq    %rdi, %rax
        ret
END     crowd_load
BEGIN   crowd_call
        subq    $8, %rsp
        call    crowd_inner
        addq    $8, %rsp
        addq    $3, %rax
        ret
END     crowd_call
BEGIN   crowd_inner
        leaq    4(%rdi), %rax
        ret
END     crowd_inner
BEGIN   crowd_tail
        addq    $5, %rdi
        jmp     crowd_inner
END     crowd_tail
BEGIN   crowd_short
        jmp     crowd_eleven
END     crowd_short
BEGIN   crowd_eleven
        leaq    11(%rdi), %rax
        ret
END     crowd_eleven
BEGIN   crowd_nop
        nopl    0(%rax, %rax, 1)
        movq    %rdi, %rax
        ret
END     crowd_nop
# The flags of one window are read in the next.
BEGIN   crowd_carry
        movq    %rdi, %rax
        addq    %rsi, %rax
        adcq    $0, %rax
        ret
END     crowd_carry
WALL    wall_behind
        .section .note.GNU-stack, "", @progbits

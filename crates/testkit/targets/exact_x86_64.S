/* Functions that notice anything a probe changes, each twice: h_NAME, to be probed, and t_NAME, its twin.
 *
 * run_exact(in, out, function): loads all registers but rsp, the arithmetic flags and xmm0 to xmm15 from `in`, fills
 * 128 bytes below the stack pointer, calls, and stores all of it into `out`.
 */
.macro begin name
    .p2align 4
    .globl \name
    .type \name, @function
\name:
.endm
.macro end name
    .size \name, . - \name
.endm

.macro functions p
/* All of the red zone, and flags from before to after. */
begin \p\()_leaf
    mov %rax, -8(%rsp)
    mov %rcx, -16(%rsp)
    mov %rdx, -64(%rsp)
    mov %rsi, -128(%rsp)
    lea 5(%rax), %rax
    xchg %rcx, %rdx
    nopl 0(%rax, %rax, 1)
    mov -128(%rsp), %r11
    mov -64(%rsp), %rdx
    mov -16(%rsp), %rcx
    mov -8(%rsp), %rax
    jc 1f
    lea 3(%r9), %r9
1:  jo 2f
    lea 9(%r9), %r9
2:  jp 3f
    lea 27(%r9), %r9
3:  ret
end \p\()_leaf
/* gcc -Os: the first instruction is the head of the loop, and the red zone lives across it. */
begin \p\()_loop
1:  mov %rdi, -24(%rsp, %rcx, 8)
    lea 7(%rdi), %rdi
    dec %rcx
    jns 1b
    mov -24(%rsp), %rax
    mov -16(%rsp), %rdx
    mov -8(%rsp), %rsi
    ret
end \p\()_loop
/* A label, a table on the stack below the stack pointer, and a jump that looks like a tail call. */
begin \p\()_goto
    mov %rdi, -40(%rsp)
    lea 1f(%rip), %rax
    mov %rax, -48(%rsp)
    jmp *-48(%rsp)
    ud2
1:  mov -40(%rsp), %rax
    ret
end \p\()_goto
/* Status in the flags. */
begin \p\()_less
    cmp %rsi, %rdi
    mov %rdi, %rax
    mov %rax, %rdx
    ret
end \p\()_less
begin \p\()_carry
    stc
    nop
    nop
    nop
    nop
    nop
    ret
end \p\()_carry
/* Flags passed in, first instruction and later. */
begin \p\()_adc
    adc %rsi, %rdi
    mov %rdi, %rax
    mov %rax, %rax
    ret
end \p\()_adc
begin \p\()_set
    mov %rdi, %rax
    mov %rsi, %rdx
    setc %r8b
    seto %r9b
    ret
end \p\()_set
/* Flags into a call and out of it. */
begin \p\()_call
    push %rbx
    mov %rdi, %rbx
    nop
    call \p\()_adc
    mov %rbx, %rdx
    mov %rdx, %rdx
    pop %rbx
    ret
end \p\()_call
/* Flags through a tail call, direct and not, conditional and not. */
begin \p\()_tail
    mov %rdi, %rdx
    mov %rsi, %rcx
    jmp \p\()_set
end \p\()_tail
begin \p\()_through
    mov %rdi, %rdx
    lea \p\()_set(%rip), %rax
    jmp *%rax
end \p\()_through
begin \p\()_either
    mov %rdi, %rdx
    mov %rsi, %rcx
    jc \p\()_set
    mov %rcx, %rax
    ret
end \p\()_either
/* The direction flag, for handlers written in a higher language. */
begin \p\()_down
    std
    nop
    nop
    nop
    nop
    lea 1(%rdi), %rax
    nop
    cld
    ret
end \p\()_down
/* A part elsewhere that has the red zone of what jumps to it. */
begin \p\()_hot
    mov %rdi, -8(%rsp)
    mov %rsi, -16(%rsp)
    jmp \p\()_part
end \p\()_hot
begin \p\()_part
    mov -8(%rsp), %rax
    mov -16(%rsp), %rdx
    nop
    ret
end \p\()_part
/* And one that is fallen into. */
    .p2align 4
    .globl \p\()_above
    .type \p\()_above, @function
\p\()_above:
    mov %rdi, -8(%rsp)
    mov %rsi, -128(%rsp)
    .size \p\()_above, . - \p\()_above
    .globl \p\()_below
    .type \p\()_below, @function
\p\()_below:
    mov -8(%rsp), %rax
    mov -128(%rsp), %rdx
    ret
end \p\()_below
.endm

    .text
functions h
functions t

/* rdi: 16 registers (in the order of their numbers), flags, 16 of xmm; rsi: the same, to be written; rdx: function. */
begin run_exact
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    push %r15
    sub $24, %rsp
    mov %rsi, (%rsp)
    mov %rdx, 8(%rsp)
    mov %rdi, %rax
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movdqu 136 + 16 * \n(%rax), %xmm\n
    .endr
    .irp n, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16
    movq $0x5a5a5a5a, -8 * \n(%rsp)
    .endr
    pushq 128(%rax)
    popfq
    mov 8(%rax), %rcx
    mov 16(%rax), %rdx
    mov 24(%rax), %rbx
    mov 40(%rax), %rbp
    mov 48(%rax), %rsi
    mov 56(%rax), %rdi
    mov 64(%rax), %r8
    mov 72(%rax), %r9
    mov 80(%rax), %r10
    mov 88(%rax), %r11
    mov 96(%rax), %r12
    mov 104(%rax), %r13
    mov 112(%rax), %r14
    mov 120(%rax), %r15
    mov (%rax), %rax
    call *8(%rsp)
    pushfq
    push %rax
    mov 16(%rsp), %rax
    mov %rcx, 8(%rax)
    mov %rdx, 16(%rax)
    mov %rbx, 24(%rax)
    mov %rbp, 40(%rax)
    mov %rsi, 48(%rax)
    mov %rdi, 56(%rax)
    mov %r8, 64(%rax)
    mov %r9, 72(%rax)
    mov %r10, 80(%rax)
    mov %r11, 88(%rax)
    mov %r12, 96(%rax)
    mov %r13, 104(%rax)
    mov %r14, 112(%rax)
    mov %r15, 120(%rax)
    pop (%rax)
    pop 128(%rax)
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movdqu %xmm\n, 136 + 16 * \n(%rax)
    .endr
    cld
    add $24, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbp
    pop %rbx
    ret
end run_exact
    .section .note.GNU-stack, "", @progbits

# Functions of exact shapes to probe, x86-64.
#
# Each is aligned to 16 bytes and padded with nops unless its comment says otherwise. The comment
# gives the bytes that matter to a patcher.

        .text
        .p2align 12                     # none but work_page_end crosses a page, however it is linked

        .macro  FUNCTION name
        .p2align 4
        .globl  \name
        .type   \name, @function
\name:
        .cfi_startproc
        .endm

        .macro  END name
        .cfi_endproc
        .size   \name, . - \name
        .endm

        .macro  MARK name
        .globl  \name
        .type   \name, @notype
\name:
        .endm

# Four bytes, then padding: too short for a 5-byte jump without the padding. a + 1.
FUNCTION work_short
        leal    1(%rdi), %eax
        ret
END work_short
        .p2align 4

# One byte, then padding. Nothing may change.
FUNCTION work_tiny
        ret
END work_tiny
        .p2align 4

# A 5-byte nop, as compilers leave for tracers. a + 2.
FUNCTION work_nop5
        .byte   0x0f, 0x1f, 0x44, 0x00, 0x00
        leal    2(%rdi), %eax
        ret
END work_nop5

# The most common entry: push. a + 3.
FUNCTION work_push
        pushq   %rbx
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset %rbx, 0
        movq    %rdi, %rbx
        leaq    3(%rbx), %rax
        popq    %rbx
        .cfi_adjust_cfa_offset -8
        .cfi_restore %rbx
        ret
END work_push

# One byte, and the next function follows at once: no padding at all.
FUNCTION work_ret
        ret
END work_ret
        .globl  work_ret_next
        .type   work_ret_next, @function
work_ret_next:
        .cfi_startproc
        leal    4(%rdi), %eax
        ret
END work_ret_next

# Four bytes, and the next function follows at once: of a 5-byte jump the last byte stays 0x6a. a.
FUNCTION work_punned
        movq    %rdi, %rax
        ret
END work_punned
        .type   after_punned, @function
after_punned:
        pushq   $0x55
        popq    %rax
        ret

# Three bytes, and the next function follows at once: of a 5-byte jump the last bytes stay 0x6a, 0x55. 0.
FUNCTION work_punned_small
        xorl    %eax, %eax
        ret
END work_punned_small
        .type   after_punned_small, @function
after_punned_small:
        pushq   $0x55
        popq    %rax
        ret

# One byte under which a kernel uprobe pushes its trap flag; what follows is jumped to, and leads a punned jump below 0
# in a program at a fixed address. a, and 256 if the trap flag was pushed.
FUNCTION work_pushf
        movl    $2, %ecx
MARK work_pushf_mid
        pushfq
        .cfi_adjust_cfa_offset 8
1:      popq    %rax
        .cfi_adjust_cfa_offset -8
        nop
        nop
        decl    %ecx
        jz      2f
        pushq   %rax
        .cfi_adjust_cfa_offset 8
        jmp     1b
2:      .cfi_adjust_cfa_offset -8
        andl    $0x100, %eax
        addq    %rdi, %rax
        ret
END work_pushf

# A branch back to offset 2, inside the first five bytes. Sum of 1..a.
FUNCTION work_loop_head
        xorl    %eax, %eax
1:      addl    %edi, %eax
        decl    %edi
        jnz     1b
        ret
END work_loop_head

# A branch back to the first byte: `a` executions of the first instruction in one call. 7.
FUNCTION work_loop_self
        decl    %edi
        jnz     work_loop_self
        movl    $7, %eax
        ret
END work_loop_self

# Starts with a call, whose callee returns the address it will return to.
FUNCTION work_call_first
        call    .Lreturn_address
MARK work_call_first_return
        nop
        ret
END work_call_first
        .p2align 4
.Lreturn_address:
        movq    (%rsp), %rax
        ret

# A leaf with values in the red zone on both sides of the middle instruction. a + b + c.
FUNCTION work_redzone
        movq    %rdi, -8(%rsp)
        movq    %rsi, -64(%rsp)
        movq    %rdx, -128(%rsp)
MARK work_redzone_mid
        movl    $0, %ecx
        movq    -8(%rsp), %rax
        addq    -64(%rsp), %rax
        addq    -128(%rsp), %rax
        addq    %rcx, %rax
        ret
END work_redzone

# The flags are live across the middle instruction. Status flags of a - b.
FUNCTION work_flags
        cmpq    %rsi, %rdi
MARK work_flags_mid
        movl    $0, %ecx
        pushfq
        .cfi_adjust_cfa_offset 8
        popq    %rax
        .cfi_adjust_cfa_offset -8
        andl    $0xcd5, %eax
        ret
END work_flags
FUNCTION plain_flags
        cmpq    %rsi, %rdi
        pushfq
        .cfi_adjust_cfa_offset 8
        popq    %rax
        .cfi_adjust_cfa_offset -8
        andl    $0xcd5, %eax
        ret
END plain_flags

# First instruction relative to the instruction pointer, 7 bytes. a + 0x1122334455667788.
FUNCTION work_rip
        movq    .Lconstant(%rip), %rax
        addq    %rdi, %rax
        ret
END work_rip

# A tail jump and nothing else, 5 bytes (rel32). a + 5.
FUNCTION work_jmp_first
        .byte   0xe9
        .long   .Lplus_five - . - 4
END work_jmp_first
        .p2align 4
.Lplus_five:
        leaq    5(%rdi), %rax
        ret

# A short conditional branch within the first five bytes. 1 if a is 0, else a.
FUNCTION work_jcc_first
        testq   %rdi, %rdi
        je      1f
        movq    %rdi, %rax
        ret
1:      movl    $1, %eax
        ret
END work_jcc_first

# As compiled for CET. a + 6.
FUNCTION work_endbr
        endbr64
        leaq    6(%rdi), %rax
        ret
END work_endbr

# A string instruction first: the direction flag and rcx, rsi, rdi are live. Copies a..c to the
# red zone and adds.
FUNCTION work_rep
        movl    $3, %ecx
        pushq   %rdx
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        movq    %rsp, %rsi
        leaq    -64(%rsp), %rdi
        rep movsq
        movq    -64(%rsp), %rax
        addq    -56(%rsp), %rax
        addq    -48(%rsp), %rax
        addq    $24, %rsp
        .cfi_adjust_cfa_offset -24
        ret
END work_rep

# Values in vector registers across the middle instruction. a + b + c.
FUNCTION work_vector
        movq    %rdi, %xmm0
        movq    %rsi, %xmm8
        movq    %rdx, %xmm15
MARK work_vector_mid
        movl    $0, %ecx
        paddq   %xmm8, %xmm0
        paddq   %xmm15, %xmm0
        movq    %xmm0, %rax
        addq    %rcx, %rax
        ret
END work_vector

# Reads the caller's frame relative to the stack pointer. The return address, minus itself, plus a.
FUNCTION work_stack
        movq    (%rsp), %rax
        subq    (%rsp), %rax
        addq    %rdi, %rax
        ret
END work_stack

# Calls itself: a + 1 executions in one call. a.
FUNCTION work_recursive
        testq   %rdi, %rdi
        je      1f
        decq    %rdi
        call    work_recursive
        incq    %rax
        ret
1:      xorl    %eax, %eax
        ret
END work_recursive

# An indirect jump through a table. 10, 11, 12 or 13 for a modulo 4.
FUNCTION work_jump_table
        andl    $3, %edi
        leaq    .Ltable(%rip), %rax
        movslq  (%rax,%rdi,4), %rdx
        addq    %rdx, %rax
        jmp     *%rax
.Lcase0:
        movl    $10, %eax
        ret
.Lcase1:
        movl    $11, %eax
        ret
.Lcase2:
        movl    $12, %eax
        ret
.Lcase3:
        movl    $13, %eax
        ret
END work_jump_table

# One 10-byte instruction first, and another in the middle. a + 0x0102030405060708 twice.
FUNCTION work_big
        movabsq $0x0102030405060708, %rax
        addq    %rdi, %rax
MARK work_big_mid
        movabsq $0x0102030405060708, %rdx
        addq    %rdx, %rax
        ret
END work_big

# Four bytes up to the last of a page, then one instruction that crosses into the next. a + 8.
        .p2align 12
        .fill   4091, 1, 0x90
        .globl  work_page_end
        .type   work_page_end, @function
work_page_end:
        .cfi_startproc
        leaq    8(%rdi), %rax
MARK work_page_end_mid
        movl    $0, %ecx
        ret
END work_page_end

# uint64_t registers_survive(probed_fn *tiny)
# Fills every register with a pattern, sets the direction flag, calls, compares. The status flags
# are not compared: no calling convention carries them across a call or a return.
# In: rdi. Out: rax, 0 if all is well, else the number of the first difference.
FUNCTION registers_survive
        pushq   %rbx
        .cfi_adjust_cfa_offset 8
        pushq   %rbp
        .cfi_adjust_cfa_offset 8
        pushq   %r12
        .cfi_adjust_cfa_offset 8
        pushq   %r13
        .cfi_adjust_cfa_offset 8
        pushq   %r14
        .cfi_adjust_cfa_offset 8
        pushq   %r15
        .cfi_adjust_cfa_offset 8
        subq    $24, %rsp
        .cfi_adjust_cfa_offset 24
        movq    %rdi, 8(%rsp)
        .irp    n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
        movl    $(0x5100 + \n), %eax
        movd    %eax, %xmm\n
        .endr
        movq    $0x1111111111111103, %rbx
        movq    $0x1111111111111104, %rcx
        movq    $0x1111111111111105, %rdx
        movq    $0x1111111111111106, %rsi
        movq    $0x1111111111111107, %rdi
        movq    $0x1111111111111108, %rbp
        movq    $0x1111111111111109, %r8
        movq    $0x111111111111110a, %r9
        movq    $0x111111111111110b, %r10
        movq    $0x111111111111110c, %r11
        movq    $0x111111111111110d, %r12
        movq    $0x111111111111110e, %r13
        movq    $0x111111111111110f, %r14
        movq    $0x1111111111111110, %r15
        std
        movq    $0x1111111111111102, %rax
        call    *8(%rsp)
        movq    %rax, 16(%rsp)
        pushfq
        popq    %rax
        cld
        andl    $0x400, %eax
        cmpl    $0x400, %eax
        movl    $1, %eax
        jne     9f
        .macro  SAME number, value, reg
        movq    $\value, %rax
        cmpq    %rax, \reg
        movl    $\number, %eax
        jne     9f
        .endm
        SAME 3, 0x1111111111111103, %rbx
        SAME 4, 0x1111111111111104, %rcx
        SAME 5, 0x1111111111111105, %rdx
        SAME 6, 0x1111111111111106, %rsi
        SAME 7, 0x1111111111111107, %rdi
        SAME 8, 0x1111111111111108, %rbp
        SAME 9, 0x1111111111111109, %r8
        SAME 10, 0x111111111111110a, %r9
        SAME 11, 0x111111111111110b, %r10
        SAME 12, 0x111111111111110c, %r11
        SAME 13, 0x111111111111110d, %r12
        SAME 14, 0x111111111111110e, %r13
        SAME 15, 0x111111111111110f, %r14
        SAME 16, 0x1111111111111110, %r15
        movq    16(%rsp), %rbx
        SAME 2, 0x1111111111111102, %rbx
        .irp    n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
        movd    %xmm\n, %ebx
        cmpl    $(0x5100 + \n), %ebx
        movl    $(32 + \n), %eax
        jne     9f
        .endr
        xorl    %eax, %eax
9:      addq    $24, %rsp
        .cfi_adjust_cfa_offset -24
        popq    %r15
        .cfi_adjust_cfa_offset -8
        popq    %r14
        .cfi_adjust_cfa_offset -8
        popq    %r13
        .cfi_adjust_cfa_offset -8
        popq    %r12
        .cfi_adjust_cfa_offset -8
        popq    %rbp
        .cfi_adjust_cfa_offset -8
        popq    %rbx
        .cfi_adjust_cfa_offset -8
        ret
END registers_survive

        .section .rodata
        .p2align 3
.Lconstant:
        .quad   0x1122334455667788
.Ltable:
        .long   .Lcase0 - .Ltable, .Lcase1 - .Ltable, .Lcase2 - .Ltable, .Lcase3 - .Ltable

        .section .note.GNU-stack, "", @progbits

# 50,000 functions of four shapes, and a table of them.

        .altmacro

        .macro  ONE number
        .p2align 4
        .globl  many_\number
        .type   many_\number, @function
many_\number:
        .if     (\number & 3) == 0
        leaq    \number(%rdi), %rax
        .elseif (\number & 3) == 1
        pushq   %rbx
        movq    %rdi, %rbx
        leaq    \number(%rbx), %rax
        popq    %rbx
        .elseif (\number & 3) == 2
        movl    $\number, %eax
        addq    %rdi, %rax
        .else
        endbr64
        subq    $8, %rsp
        leaq    \number(%rdi), %rax
        addq    $8, %rsp
        .endif
        ret
        .size   many_\number, . - many_\number
        .section .data.rel.ro.many, "aw", @progbits
        .quad   many_\number
        .text
        .endm

        .section .data.rel.ro.many, "aw", @progbits
        .globl  many_table
many_table:
        .text
        .set    n, 0
        .rept   50000
        ONE     %n
        .set    n, n + 1
        .endr
        .section .note.GNU-stack, "", @progbits

# Functions one behind the other, where no 5-byte jump fits at the entry or before an exit, x86-64.

        .text

        .macro  FUNCTION name
        .globl  \name
        .type   \name, @function
\name:
        .cfi_startproc
        .endm

        .macro  END name
        .cfi_endproc
        .size   \name, . - \name
        .endm

# One byte: entry and exit in one. What is in rax.
FUNCTION tight_ret
        ret
END tight_ret

# A loop in the first bytes, and a return without room. 2 * n, n > 0.
FUNCTION tight_loop
        xorl    %eax, %eax
1:      addl    $2, %eax
        decl    %edi
        jnz     1b
        ret
END tight_loop

# Three returns, one of them right behind a jump's target. n & 3 or so.
FUNCTION tight_three
        decl    %edi
        jz      1f
        decl    %edi
        jz      2f
        movl    %esi, %eax
        ret
1:      ret
2:      ret
END tight_three

# Calls f(x). The callee returns into the first five bytes.
FUNCTION tight_through
        pushq   %rax
        .cfi_adjust_cfa_offset 8
        callq   *%rdi
        popq    %rcx
        .cfi_adjust_cfa_offset -8
        ret
END tight_through

# Leaves by a tail call.
FUNCTION tight_tail
        decl    %edi
        jmp     tight_ret
END tight_tail
        .p2align 4
        .section .note.GNU-stack, "", @progbits

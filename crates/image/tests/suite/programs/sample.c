/* A program with every kind of symbol that the tests look for. It prints where some of its functions are,
   then waits for its input to end. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((noinline, noclone)) int handle_one(int x) { __asm__ volatile(""); return x * 3 + 1; }
__attribute__((noinline, noclone)) int handle_two(int x) { __asm__ volatile(""); return x * 5 + 2; }
int handle_alias(int x) __attribute__((alias("handle_one")));
static __attribute__((noinline, noclone)) int hidden_helper(int x) { __asm__ volatile(""); return x ^ 0x55; }

__attribute__((noinline, noclone)) int classify(int x) {
    switch (x) {
    case 0: return handle_one(7);
    case 1: return handle_two(11);
    case 2: return hidden_helper(13);
    case 3: return handle_one(17) + 1;
    case 4: return handle_two(19) + 2;
    case 5: return hidden_helper(23) + 3;
    case 6: return handle_one(29) + 4;
    case 7: return handle_two(31) + 5;
    case 8: return hidden_helper(37) + 6;
    case 9: return handle_one(41) + 7;
    default: return -1;
    }
}

int (*const handlers[])(int) = {handle_one, handle_two, classify};

#ifndef WITHOUT_IFUNC
static int pick_plain(int x) { return x + 1; }
static void *pick_resolver(void) { return (void *)pick_plain; }
int pick(int x) __attribute__((ifunc("pick_resolver")));
#else
int pick(int x) { return x + 1; }
#endif

/* A restartable sequence, never registered, and data between functions. */
__asm__(
    ".text\n"
    ".globl sequence_start\n.type sequence_start,@function\n"
    "sequence_start: nop; nop; nop; nop\n"
    "sequence_commit: ret\n"
    ".size sequence_start, . - sequence_start\n"
    ".long 0x53053053\n"
    ".globl sequence_abort\n.type sequence_abort,@function\n"
    "sequence_abort: jmp sequence_start\n"
    ".globl typeless_function, typeless_label\n"
    "typeless_function: .cfi_startproc\n nop; nop; ret\n.cfi_endproc\n"
    "typeless_label: nop; ret\n"
    ".pushsection __rseq_cs, \"aw\"\n.balign 32\n"
    ".long 0, 0\n.quad sequence_start, sequence_commit - sequence_start, sequence_abort\n"
    ".popsection\n"
    ".globl data_between\n.type data_between,@object\n.size data_between,16\n"
    "data_between: .quad 1, 2\n");

int main(int argc, char **argv) {
    if (argc > 100) signal(SIGUSR1, SIG_IGN);
    char from[16] = "some text", to[16];
    memcpy(to, from, (size_t)argc);
    int sum = pick(argc) + classify(argc) + handlers[argc % 3](argc) + handle_alias(to[0]);
    printf("handle_one %p\nclassify %p\nmalloc %p\nmemcpy %p\nsum %d\n", (void *)handle_one, (void *)classify,
           (void *)malloc, (void *)memcpy, sum);
    fflush(stdout);
    return getchar() == 'x' ? argv[0][0] : 0;
}

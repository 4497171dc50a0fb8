// Every way to leave a function, a known number of times.
//
// `run N` makes N rounds on each of eight threads and prints `rounds N`, N times eight in all. A round calls
//   tiny          one instruction and a return
//   many          four returns, one after the other
//   plain         by itself once, and once more as the tail call of
//   tails         which leaves by a jump
//   nested        itself, to a depth of 10
//   leaper        leaves by longjmp, never returns
//   hopper        is left and come back to by swapcontext, with another call of it in between
//   on_signal     in a signal handler on an alternative stack
//   waiter        sleeps 20 us
// `block` starts a thread that stays in sleeper() for 20 s at most. `quit` or the end of input ends it with 7; a wrong
// result, with 99.
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define THREADS 8
#define DEPTH 10

static void require(int is_true) {
    if (!is_true) _exit(99);
}

__attribute__((noinline, noclone)) uint64_t tiny(uint64_t x) {
    return x + 1;
}

__attribute__((noinline, noclone)) uint64_t many(uint64_t x) {
    __asm__ volatile("");
    if (x % 4 == 0) return x * 3;
    if (x % 4 == 1) return tiny(x) * 5 + 1;
    if (x % 4 == 2) return (x ^ 0x55) + tiny(x);
    return x / 7;
}

__attribute__((noinline, noclone)) uint64_t plain(uint64_t x) {
    uint64_t sum = x;
    for (uint64_t i = 0; i < (x & 7); i++) sum = sum * 31 + i;
    return sum;
}

__attribute__((noinline, noclone)) uint64_t tails(uint64_t x) {
    __asm__ volatile("" : "+r"(x));
    return plain(x + 2);
}

__attribute__((noinline, noclone)) uint64_t nested(uint64_t depth) {
    volatile uint64_t here = depth;
    uint64_t below = depth == 0 ? 0 : nested(depth - 1);
    return below + here;
}

/* Left by conditional jumps to other functions, one of which reads the flags that the jump was taken on. */
uint64_t branches(uint64_t x), branch_flags(uint64_t x), branch_short(uint64_t x);

__asm__(".macro branch_fn name\n"
        ".p2align 4\n"
        ".globl \\name\n"
        ".type \\name, @function\n"
        "\\name:\n"
        ".endm\n"
        "branch_fn branches\n"
        "testb $1, %dil\n"
        "je branch_even\n"
        "cmpq $1000, %rdi\n"
        "jb branch_small\n"
        "pushq %rbx\n"
        "movq %rdi, %rbx\n"
        "leaq 9(%rbx), %rax\n"
        "popq %rbx\n"
        "ret\n"
        ".size branches, . - branches\n"
        "branch_fn branch_flags\n"
        "cmpq $700, %rdi\n"
        "jbe branch_on_flags\n"
        "leaq 1(%rdi), %rax\n"
        "ret\n"
        ".size branch_flags, . - branch_flags\n"
        "branch_fn branch_short\n"
        "testb $2, %dil\n"
        "jne branch_near\n"
        "ret\n"
        ".size branch_short, . - branch_short\n"
        "branch_fn branch_near\n"
        "leaq 3(%rdi), %rax\n"
        "ret\n"
        ".size branch_near, . - branch_near\n"
        "branch_fn branch_even\n"
        "leaq 2(%rdi), %rax\n"
        "ret\n"
        ".size branch_even, . - branch_even\n"
        "branch_fn branch_small\n"
        "leaq 5(%rdi), %rax\n"
        "ret\n"
        ".size branch_small, . - branch_small\n"
        "branch_fn branch_on_flags\n"
        "sbbq %rax, %rax\n"
        "ret\n"
        ".size branch_on_flags, . - branch_on_flags\n"
        ".purgem branch_fn\n");

static void branch(uint64_t i) {
    require(branches(i) == (i % 2 == 0 ? i + 2 : i < 1000 ? i + 5 : i + 9));
    require(branch_flags(i) == (i > 700 ? i + 1 : i == 700 ? 0 : UINT64_MAX));
    if (i & 2) require(branch_short(i) == i + 3);
    else branch_short(i);
}

static __thread jmp_buf leap;

__attribute__((noinline, noclone)) uint64_t leaper(uint64_t x) {
    volatile uint64_t here = x;
    if (here != UINT64_MAX) longjmp(leap, 1);
    return here;
}

static __thread ucontext_t home, away;

__attribute__((noinline, noclone)) uint64_t hopper(uint64_t x, int is_away) {
    volatile uint64_t here = x;
    swapcontext(is_away ? &away : &home, is_away ? &home : &away);
    return here + 1;
}

static void start_away(void) {
    require(hopper(100, 1) == 101);
}

static void hop(char *stack, size_t len) {
    require(getcontext(&away) == 0);
    away.uc_stack.ss_sp = stack;
    away.uc_stack.ss_size = len;
    away.uc_link = &home;
    makecontext(&away, start_away, 0);
    // Out, to the other's hopper, back into ours, and then to the end of the other's.
    require(hopper(7, 0) == 8);
    require(swapcontext(&home, &away) == 0);
}

static __thread volatile uint64_t signalled;

__attribute__((noinline, noclone)) void on_signal(int number) {
    signalled += (uint64_t)number;
}

__attribute__((noinline, noclone)) void waiter(void) {
    struct timespec time = {0, 20000};
    nanosleep(&time, 0);
    __asm__ volatile("");
}

__attribute__((noinline, noclone)) void sleeper(void) {
    puts("blocked");
    sleep(20);
    __asm__ volatile("");
}

static void *blocked(void *unused) {
    sleeper();
    return unused;
}

static uint64_t rounds;
static __thread volatile uint64_t used;

static void *turns(void *unused) {
    static const size_t len = 64 << 10;
    char *stacks = malloc(2 * len);
    stack_t alternative = {.ss_sp = stacks, .ss_size = len};
    require(sigaltstack(&alternative, 0) == 0);
    for (uint64_t i = 0; i < rounds; i++) {
        require(tiny(i) == i + 1);
        used += many(i) + plain(i) + tails(i);
        branch(i);
        require(nested(DEPTH - 1) == DEPTH * (DEPTH - 1) / 2);
        if (setjmp(leap) == 0) leaper(i);
        hop(stacks + len, len);
        signalled = 0;
        pthread_kill(pthread_self(), SIGUSR1);
        require(signalled == SIGUSR1);
        waiter();
    }
    alternative.ss_flags = SS_DISABLE;
    sigaltstack(&alternative, 0);
    free(stacks);
    return unused;
}

int main(void) {
    char line[64];
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    require(sigaction(SIGUSR1, &action, 0) == 0);
    setvbuf(stdout, 0, _IOLBF, 0);
    printf("ready pid=%d\n", getpid());
    while (fgets(line, sizeof line, stdin) && strcmp(line, "quit\n")) {
        pthread_t threads[THREADS];
        if (!strcmp(line, "block\n")) {
            require(pthread_create(threads, 0, blocked, 0) == 0);
            continue;
        }
        rounds = strtoul(line + 4, 0, 10);
        for (int t = 0; t < THREADS; t++) require(pthread_create(threads + t, 0, turns, 0) == 0);
        for (int t = 0; t < THREADS; t++) pthread_join(threads[t], 0);
        printf("rounds %lu\n", (unsigned long)rounds * THREADS);
    }
    return 7;
}

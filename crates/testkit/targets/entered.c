/* A process that sees whether it was entered and left as it should.
 *
 * entered hold      three threads hold patterns in general and vector registers, in the red zone, in mxcsr, in their
 *                   signal mask and in their alternate stack, and look whether they are still there; a fourth sleeps.
 * entered sequence  two threads on one CPU: one works, the other, the process's first, runs a restartable sequence that sees
 *                   whether the other one worked meanwhile: then it must not commit.
 * entered foreign   the first thread runs 32-bit code, another one works. A handler for SIGSEGV is installed.
 * entered steps     the only thread steps itself by the trap flag through a hundred instructions, and runs breakpoints of its
 *                   own: the handler must see each step and each breakpoint once, with its own cause.
 * entered execs     a thread works for some milliseconds, then the process executes itself again.
 *
 * All but `execs` say `ready pid=N`. Commands on standard input:
 *   check -> check rounds=N aborts=N commits=N broken=N
 *   quit  -> the same and exit status 7, so does the end of input; 99 if something was broken.
 * `execs` ends with 7 at the end of input, and says nothing.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <poll.h>

#define BROKEN 99
#define QUIT 7

static _Atomic uint64_t rounds, aborts, commits, broken;
static _Atomic int quit;
static _Atomic unsigned settled;
static unsigned started;
static volatile uint64_t worked;

__attribute__((noinline)) int work(int x) {
    __asm__ volatile("");
    worked++;
    return x * 3 + 1;
}

static void breaks(const char *what) {
    if (broken++ == 0) fprintf(stderr, "entered: %s\n", what);
}

/* Patterns go in, time passes, what is there comes out. */
#define HOLD(MOVE, A, B)                                                                                                  \
    __asm__ volatile(MOVE " (%0), %%" A "\n" MOVE " (%0), %%" B "\n"                                                      \
                     "mov (%0), %%r8\n mov 8(%0), %%r9\n mov 16(%0), %%r10\n mov 24(%0), %%r11\n"                          \
                     "mov %%r8, -8(%%rsp)\n mov %%r9, -64(%%rsp)\n mov %%r10, -128(%%rsp)\n"                               \
                     "mov $20000, %%ecx\n 1: dec %%ecx\n jnz 1b\n"                                                        \
                     MOVE " %%" A ", (%1)\n" MOVE " %%" B ", 32(%1)\n"                                                    \
                     "mov %%r8, 64(%1)\n mov %%r9, 72(%1)\n mov %%r10, 80(%1)\n mov %%r11, 88(%1)\n"                       \
                     "mov -8(%%rsp), %%r8\n mov %%r8, 96(%1)\n mov -64(%%rsp), %%r8\n mov %%r8, 104(%1)\n"                 \
                     "mov -128(%%rsp), %%r8\n mov %%r8, 112(%1)\n"                                                        \
                     :                                                                                                    \
                     : "r"(in), "r"(out)                                                                                  \
                     : "rcx", "r8", "r9", "r10", "r11", "xmm5", "xmm15", "memory", "cc")

__attribute__((noinline, target("avx"))) static void hold_avx(const uint64_t *in, uint64_t *out) {
    HOLD("vmovdqu", "ymm5", "ymm15");
}

__attribute__((noinline)) static void hold_sse(const uint64_t *in, uint64_t *out) {
    HOLD("movdqu", "xmm5", "xmm15");
}

static void *hold(void *arg) {
    static char stacks[3][1 << 16];
    uint64_t seed = (uintptr_t)arg, in[4], out[15];
    int has_avx = __builtin_cpu_supports("avx");
    size_t vector = has_avx ? 32 : 16;
    stack_t own = {.ss_sp = stacks[seed], .ss_size = sizeof stacks[seed]}, now;
    sigset_t blocked, found;
    uint32_t control = 0x1f80 | (uint32_t)(seed & 3) << 13, control_now;
    sigaltstack(&own, NULL);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &blocked, NULL);
    __asm__ volatile("ldmxcsr %0" : : "m"(control));
    settled++;
    while (!quit) {
        for (int i = 0; i < 4; i++) in[i] = seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        (has_avx ? hold_avx : hold_sse)(in, out);
        if (memcmp(out, in, vector) || memcmp(out + 4, in, vector)) breaks("vector registers");
        if (memcmp(out + 8, in, 32)) breaks("general registers");
        if (memcmp(out + 12, in, 24)) breaks("the red zone");
        __asm__ volatile("stmxcsr %0" : "=m"(control_now));
        if ((control_now & ~0x3fu) != control) breaks("mxcsr");
        pthread_sigmask(SIG_SETMASK, NULL, &found);
        if (memcmp(&found, &blocked, 8)) breaks("the signal mask");
        if (sigaltstack(NULL, &now) || now.ss_sp != own.ss_sp || now.ss_size != own.ss_size || now.ss_flags) {
            breaks("the alternate stack");
        }
        if (work((int)in[0] & 0xffff) != ((int)in[0] & 0xffff) * 3 + 1) breaks("a result");
        rounds++;
    }
    return NULL;
}

static void *sleeps(void *arg) {
    settled++;
    while (!quit) {
        struct timespec a_while = {0, 3000000};
        if (nanosleep(&a_while, NULL)) breaks("a sleep was interrupted");
    }
    return arg;
}

static void to_one_cpu(void) {
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &all)) {
            CPU_SET(i, &one);
            break;
        }
    }
    sched_setaffinity(0, sizeof one, &one);
}

static void *works(void *arg) {
    if (arg) to_one_cpu();
    settled++;
    while (!quit) {
        work(1);
        rounds++;
        if (!arg) usleep(500);
    }
    return NULL;
}

#ifdef __GLIBC__
#include <linux/rseq.h>

extern const ptrdiff_t __rseq_offset;

static void *sequence(void *arg) {
    struct rseq *area = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
    to_one_cpu();
    while (!quit) {
        uint64_t before, after, has_committed;
        __asm__ volatile(
            ".pushsection __rseq_cs, \"aw\"\n .balign 32\n 7: .long 0, 0\n .quad 1f, 2f - 1f, 4f\n .popsection\n"
            "lea 7b(%%rip), %%rax\n mov %%rax, %[named]\n"
            "1: mov %[worked], %[before]\n mov $200000, %%ecx\n 3: dec %%ecx\n jnz 3b\n"
            "mov %[worked], %[after]\n mov $1, %k[committed]\n"
            "2: jmp 5f\n .byte 0x0f, 0xb9, 0x3d\n .long 0x53053053\n 4: xor %k[committed], %k[committed]\n 5:\n"
            : [before] "=&r"(before), [after] "=&r"(after), [committed] "=&r"(has_committed),
              [named] "=m"(area->rseq_cs)
            : [worked] "m"(worked)
            : "rax", "rcx", "cc", "memory");
        if (!has_committed) {
            aborts++;
        } else {
            commits++;
            if (before != after) breaks("a sequence was preempted and committed");
        }
    }
    return arg;
}
#else
static void *sequence(void *arg) { return arg; }
#endif

static _Atomic int faults;
static char *guarded;
static _Atomic uint32_t *_Atomic in_foreign; /* one once the first thread is in its 32-bit code */

static void on_fault(int signal) {
    (void)signal;
    faults++;
    mprotect(guarded, 4096, PROT_READ | PROT_WRITE);
}

static volatile uint64_t steps, traps;

static void on_trap(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    if (info->si_code == TRAP_TRACE) steps++;
    else if (info->si_code == SI_KERNEL) traps++;
    else breaks("the cause of a signal");
}

/* Each instruction with the trap flag on raises SIGTRAP. */
static uint64_t stepped(void) {
    uint64_t before = steps;
    __asm__ volatile("lea -128(%%rsp), %%rsp\n pushfq\n orq $0x100, (%%rsp)\n popfq\n"
                     ".rept 100\n nop\n .endr\n"
                     "pushfq\n andq $~0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp\n"
                     :
                     :
                     : "memory", "cc");
    return steps - before;
}

/* The only thread hears commands too, as it never sleeps. */
static void step_on(void) {
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_NODEFER};
    struct pollfd input = {.fd = 0, .events = POLLIN};
    char line[64];
    sigaction(SIGTRAP, &action, NULL);
    uint64_t expected = stepped();
    printf("ready pid=%d\n", getpid());
    for (int go_on = 1; go_on;) {
        if (stepped() != expected) breaks("a step");
        uint64_t before = traps;
        __asm__ volatile("int3");
        if (traps != before + 1) breaks("a breakpoint");
        work(1);
        rounds++;
        if (poll(&input, 1, 0) == 0) continue;
        go_on = fgets(line, sizeof line, stdin) && strcmp(line, "quit\n");
        printf("check rounds=%lu aborts=0 commits=0 broken=%lu\n", (unsigned long)rounds, (unsigned long)broken);
    }
    exit(broken ? BROKEN : QUIT);
}

static void start(void *(*body)(void *), void *arg) {
    pthread_t id;
    started++;
    pthread_create(&id, NULL, body, arg);
}

/* Runs on the second thread in `foreign`: the first is in a loop in 32-bit code for ever. */
static void *commands(void *arg) {
    char line[64];
    int wants_faults = arg != NULL;
    if (wants_faults) {
        guarded = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        signal(SIGSEGV, on_fault);
    }
    while (settled != started) usleep(100); /* till then libc changes their signal masks */
    /* Till then the first thread is in pthread_create, or maps the code. */
    while (wants_faults && !(in_foreign && *in_foreign)) usleep(100);
    printf("ready pid=%d\n", getpid());
    for (int go_on = 1; go_on;) {
        go_on = fgets(line, sizeof line, stdin) && strcmp(line, "quit\n");
        if (wants_faults) {
            int before = faults;
            mprotect(guarded, 4096, PROT_NONE);
            *(volatile char *)guarded = 1;
            if (faults != before + 1) breaks("the handler");
        }
        printf("check rounds=%lu aborts=%lu commits=%lu broken=%lu\n", (unsigned long)rounds, (unsigned long)aborts,
               (unsigned long)commits, (unsigned long)broken);
    }
    quit = 1;
    exit(broken ? BROKEN : QUIT);
}

/* The last word of the page says that its code runs: movl $1, %ss:(in_foreign), since %ds is null; pause
 * for ever. */
static void run_foreign_code(void) {
    unsigned char *code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    _Atomic uint32_t *word = (_Atomic uint32_t *)(code + 4092);
    unsigned char there[] = {0x36, 0xc7, 0x05, 0, 0, 0, 0, 1, 0, 0, 0, 0xf3, 0x90, 0xeb, 0xfc};
    uint32_t at = (uint32_t)(uintptr_t)word;
    memcpy(there + 3, &at, sizeof at);
    memcpy(code, there, sizeof there);
    in_foreign = word;
    __asm__ volatile("pushq $0x23\n pushq %0\n lretq" : : "r"(code));
}

static int exec_again(char **argv) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    pthread_t id;
    pthread_create(&id, NULL, works, NULL);
    /* The end of input is an event too. */
    if (poll(&input, 1, 4) != 0) return QUIT;
    execv("/proc/self/exe", argv);
    return BROKEN;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "hold";
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(mode, "execs")) return exec_again(argv);
    if (!strcmp(mode, "steps")) step_on();
    if (!strcmp(mode, "hold")) {
        for (uintptr_t i = 0; i < 3; i++) start(hold, (void *)i);
        start(sleeps, NULL);
    } else if (!strcmp(mode, "sequence")) {
        start(works, argv);
        pthread_t id;
        pthread_create(&id, NULL, commands, NULL);
        sequence(NULL);
        pause();
    } else if (!strcmp(mode, "foreign")) {
        start(works, NULL);
        pthread_t id;
        pthread_create(&id, NULL, commands, argv);
        run_foreign_code();
    }
    commands(NULL);
}

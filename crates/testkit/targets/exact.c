/* Calls functions that notice anything a probe changes (exact_x86_64.S), and threads of every kind.
 *
 * `run N` calls each function and its twin N times with the same random registers, flags, red zone and vector
 * registers and prints `ran N wrong=W FIRST`; W counts calls that differed, FIRST names the first function.
 * `step` does the same with the trap flag set, a few times.
 * `thread none|other|empty` starts a thread by clone(2) whose thread pointer is 0, or leads to pages of 0x5a or of 0; it calls h_leaf
 * 100,000 times and prints `thread KIND wrong=W written=B` with the bytes of that page that were changed.
 * `name` prints `name can=1` if the kernel gives names to memory.
 * `trap` has the time stamp counter trap from now on. `child` forks a child that does so and then runs, and prints
 * `child status=S`.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct state {
    uint64_t regs[16], flags;
    unsigned char xmm[256];
};

void run_exact(const struct state *in, struct state *out, void (*function)(void));

#define EACH(X) \
    X(leaf) X(loop) X(goto) X(less) X(carry) X(adc) X(set) X(call) X(tail) X(through) X(either) X(down) X(hot) \
    X(above)
#define DECLARE(n) void h_##n(void), t_##n(void);
EACH(DECLARE)
static const struct { const char *name; void (*probed)(void), (*twin)(void); } functions[] = {
#define ROW(n) {#n, h_##n, t_##n},
    EACH(ROW)
};
#define FUNCTIONS (sizeof functions / sizeof functions[0])
enum { FLAGS = 0x8d5, TRAP = 0x100 };

static uint64_t seed = 88172645463325252u;
static uint64_t random_word(void) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return seed;
}

static void fill(struct state *s, unsigned which) {
    for (unsigned i = 0; i < 16; i++) s->regs[i] = random_word();
    if (functions[which].probed == h_loop) s->regs[1] = 2;
    s->flags = 0x202 | (random_word() & FLAGS);
    for (unsigned i = 0; i < sizeof s->xmm; i++) s->xmm[i] = (unsigned char)random_word();
}

/* Addresses of labels and functions differ between twins. */
static void settle(struct state *s, unsigned which) {
    s->regs[4] = 0;
    s->flags &= FLAGS;
    if (functions[which].probed == h_through) s->regs[0] = 0;
}

static uint64_t run(uint64_t calls, uint64_t more_flags, const char **first) {
    uint64_t wrong = 0;
    for (uint64_t n = 0; n < calls; n++)
        for (unsigned i = 0; i < FUNCTIONS; i++) {
            struct state in, probed = {{0}}, twin = {{0}};
            fill(&in, i);
            in.flags |= more_flags;
            run_exact(&in, &probed, functions[i].probed);
            in.flags &= ~more_flags;
            run_exact(&in, &twin, functions[i].twin);
            settle(&probed, i), settle(&twin, i);
            if (memcmp(&probed, &twin, sizeof twin) && !wrong++) *first = functions[i].name;
        }
    return wrong;
}

static void on_trap(int signal) { (void)signal; }

/* No libc: its thread pointer is not glibc's. */
static volatile uint64_t thread_wrong, thread_done;
static void thread_main(void) {
    uint64_t wrong = 0;
    for (unsigned n = 0; n < 100000; n++) {
        static struct state in, out;
        run_exact(&in, &out, h_leaf);
        wrong += out.regs[9] != 3 + 9 + 27;
    }
    thread_wrong = wrong;
    thread_done = 1;
    for (;;) __asm__ volatile("syscall" : : "a"(SYS_exit), "D"(0) : "rcx", "r11", "memory");
}

/* The number of the call stands in memory, or with -DPLAIN in the instruction, where a reader of the code finds it. */
long raw_clone(unsigned long flags, void *stack, void *tls, void (*main)(void));
#ifdef PLAIN
#define NUMBER "mov $56, %eax\n"
#else
#define NUMBER "mov clone_number(%rip), %eax\n"
__attribute__((used)) int clone_number = SYS_clone;
#endif
__asm__(".globl raw_clone\nraw_clone:\n mov %rdx, %r8\n mov %rcx, %r9\n xor %edx, %edx\n xor %r10d, %r10d\n " NUMBER
        " syscall\n test %rax, %rax\n jnz 1f\n xor %ebp, %ebp\n call *%r9\n1: ret\n");

/* The same of the request that makes the time stamp counter trap, with -DASKS. */
#ifdef ASKS
#define SET_TSC PR_SET_TSC
#else
static volatile int set_tsc = PR_SET_TSC;
#define SET_TSC set_tsc
#endif

static unsigned long start_thread(const char *kind) {
    enum { STACK = 1 << 16 };
    unsigned char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *stack = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned long flags =
        CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS;
    unsigned char fill = strcmp(kind, "empty") ? 0x5a : 0;
    memset(page, fill, 8192);
    thread_done = 0;
    raw_clone(flags, stack + STACK - 64, strcmp(kind, "none") ? page + 4096 : 0, thread_main);
    while (!thread_done) usleep(1000);
    unsigned long written = 0;
    for (unsigned i = 0; i < 8192; i++) written += page[i] != fill;
    return written;
}

int main(void) {
    static char line[64], kind[16];
    unsigned long n;
    setvbuf(stdout, 0, _IOLBF, 0);
    signal(SIGTRAP, on_trap);
    printf("ready pid=%d\n", getpid());
    while (fgets(line, sizeof line, stdin)) {
        const char *first = "none";
        if (sscanf(line, "run %lu", &n) == 1) {
            uint64_t wrong = run(n, 0, &first);
            printf("ran %lu wrong=%lu %s\n", n, (unsigned long)wrong, first);
        } else if (!strcmp(line, "step\n")) {
            uint64_t wrong = run(3, TRAP, &first);
            printf("stepped wrong=%lu %s\n", (unsigned long)wrong, first);
        } else if (sscanf(line, "thread %15s", kind) == 1) {
            unsigned long written = start_thread(kind);
            printf("thread %s wrong=%lu written=%lu\n", kind, (unsigned long)thread_wrong, written);
        } else if (!strcmp(line, "trap\n")) {
            prctl(SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
            printf("trapping\n");
        } else if (!strcmp(line, "name\n")) {
            void *page = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            printf("name can=%d\n", prctl(0x53564d41, 0, page, 4096, "exact") == 0);
        } else if (!strcmp(line, "child\n")) {
            int status = 0;
            pid_t child = fork();
            if (!child) {
                prctl(SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
                _exit(run(100, 0, &first) ? 1 : 0);
            }
            waitpid(child, &status, 0);
            printf("child status=%d\n", status);
        }
    }
    return 7;
}

/* A process that uses SIGTRAP, SIGSEGV and a 1 kHz SIGALRM itself, while work() is called.
 *
 * Each handler runs on an alternative stack. Three threads call work(), raise SIGTRAP by an int3 of
 * their own and fault on a protected page on purpose; the handlers count and repair, and that of
 * SIGALRM calls work() too. `check` prints
 *   handlers work=N traps=T/T segvs=S/S alarms=A foreign=F intact
 * T and S are signals seen and caused. F counts signals whose program counter lay outside every
 * mapping the process had at its start. `intact` becomes `changed WHAT` if a disposition, a mask
 * or an alternative stack is not as it was set. `quit` prints the same and ends with 7; 99 if
 * something was changed, lost or invented.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#define THREADS 3
#define CORRUPT 99
#define QUIT 7
#define RANGES 128

static struct range {
    uintptr_t start, end;
} ranges[RANGES];
static unsigned range_count;

static _Atomic uint64_t traps_seen, traps_caused, segvs_seen, segvs_caused, alarms, foreign, calls;
static _Atomic int quit, settled, changed_mask, changed_stack;
static volatile char *guarded;
static struct sigaction set_up[65];

__attribute__((noinline)) int work(int x) {
    __asm__ volatile("");
    return x * 3 + 1;
}

static void judge_pc(const ucontext_t *context) {
    uintptr_t pc = (uintptr_t)context->uc_mcontext.gregs[REG_RIP];
    for (unsigned r = 0; r < range_count; r++)
        if (pc >= ranges[r].start && pc < ranges[r].end) return;
    foreign++;
}

static void on_trap(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    judge_pc(context);
    traps_seen++;
}

static void on_segv(int signal, siginfo_t *info, void *context) {
    ucontext_t *at = context;
    (void)signal;
    judge_pc(context);
    if (info->si_addr != (void *)guarded) {
        static const char text[] = "handlers: a fault that this program did not cause\n";
        if (write(2, text, sizeof text - 1) < 0) _exit(CORRUPT);
        _exit(CORRUPT);
    }
    segvs_seen++;
    at->uc_mcontext.gregs[REG_RIP] += 3; /* past `movb $1, (%rax)` */
}

static void on_alarm(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    judge_pc(context);
    if (work(-1) != -2) _exit(CORRUPT);
    alarms++;
}

static void read_ranges(void) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512], perms[8];
    unsigned long start, end;
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %7s", &start, &end, perms) == 3 && strchr(perms, 'x') &&
            range_count < RANGES)
            ranges[range_count++] = (struct range){start, end};
    if (maps) fclose(maps);
}

static void check_thread(const stack_t *own) {
    sigset_t mask;
    stack_t now;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    for (int s = 1; s < 65; s++)
        if (s != 32 && s != 33 && sigismember(&mask, s) != (s == SIGUSR2)) changed_mask = s;
    sigaltstack(NULL, &now);
    if (now.ss_sp != own->ss_sp || now.ss_size != own->ss_size || now.ss_flags != own->ss_flags)
        changed_stack = 1;
}

static void *caller(void *unused) {
    sigset_t blocked;
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536, .ss_flags = 0};
    (void)unused;
    sigaltstack(&stack, NULL);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &blocked, NULL);
    settled++;
    for (uint64_t i = 0; !quit; i++) {
        int x = (int)(i & 0xffff);
        if (work(x) != x * 3 + 1) _exit(CORRUPT);
        if (i % 1024 == 0) {
            atomic_fetch_add(&calls, i ? 1024 : 0);
            check_thread(&stack);
        }
        if (i % 4096 == 1) {
            traps_caused++;
            __asm__ volatile("int3");
        }
        if (i % 4096 == 2) {
            segvs_caused++;
            __asm__ volatile("movb $1, (%%rax)" : : "a"(guarded) : "memory");
        }
    }
    return NULL;
}

static int check(void) {
    char verdict[64] = "intact";
    for (int s = 1; s < 65; s++) {
        struct sigaction now;
        if (s == SIGKILL || s == SIGSTOP || s == 32 || s == 33) continue;
        sigaction(s, NULL, &now);
        if (now.sa_sigaction != set_up[s].sa_sigaction || now.sa_flags != set_up[s].sa_flags ||
            memcmp(&now.sa_mask, &set_up[s].sa_mask, 8))
            snprintf(verdict, sizeof verdict, "changed disposition of signal %d", s);
    }
    if (changed_mask) snprintf(verdict, sizeof verdict, "changed mask of signal %d", changed_mask);
    if (changed_stack) snprintf(verdict, sizeof verdict, "changed alternative stack");
    printf("handlers work=%lu traps=%lu/%lu segvs=%lu/%lu alarms=%lu foreign=%lu %s\n",
           (unsigned long)calls, (unsigned long)traps_seen, (unsigned long)traps_caused,
           (unsigned long)segvs_seen, (unsigned long)segvs_caused, (unsigned long)alarms,
           (unsigned long)foreign, verdict);
    fflush(stdout);
    return strcmp(verdict, "intact") == 0;
}

static void handle(int signal, void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction act = {.sa_sigaction = handler,
                            .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    sigaddset(&act.sa_mask, SIGUSR1);
    sigaction(signal, &act, NULL);
}

int main(void) {
    pthread_t threads[THREADS];
    sigset_t alarm_only;
    read_ranges();
    guarded = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    handle(SIGTRAP, on_trap);
    handle(SIGSEGV, on_segv);
    handle(SIGALRM, on_alarm);
    signal(SIGPIPE, SIG_IGN);
    for (int s = 1; s < 65; s++) sigaction(s, NULL, &set_up[s]);

    /* The main thread reads commands; alarms are for the others. */
    for (unsigned t = 0; t < THREADS; t++) pthread_create(&threads[t], NULL, caller, NULL);
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm_only, NULL);
    while (settled != THREADS) usleep(100);
    struct itimerval often = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &often, NULL);
    printf("ready pid=%d\n", getpid());
    fflush(stdout);

    char line[64];
    int fine = 1;
    while (fgets(line, sizeof line, stdin) && strcmp(line, "quit\n")) fine &= check();
    quit = 1;
    for (unsigned t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
    fine &= check();
    return fine && traps_seen == traps_caused && segvs_seen == segvs_caused ? QUIT : CORRUPT;
}

/* A process that is hard to enter and to leave.
 *
 * Its first thread waits; another reads commands from standard input and answers each by one line:
 *   run N       calls work() N times: `ran work=N`
 *   leave       the first thread ends by pthread_exit: `left`
 *   name        the process gets a name that is no text, and holds brackets: `named`
 *   vfork MS    a thread of it vforks a child that sleeps so long: `vforked`
 *   inside      whether that child lives still: `inside N`
 *   share       a process that shares the memory, and is no vfork child, calls work() for ever: `sharing PID`
 *   shared      `shared lives=L calls=C errors=E`
 *   deep KB     a thread calls work() for ever, interrupted by a handler with so much stack: `deep`
 *   chain N     forks a child, that one another, and so on, N in all, each some moments after its birth: `chaining`
 *   chained     waits for the end of all of them: `chained born=B clean=C dirty=D`, by what each had in its memory at last
 *   hold MS     a thread passes the mark until a signal meets it outside of our code, stays in the handler: `holding`
 *   mark N      passes the mark N times: `marked guarded=G semaphore=S`
 *   set N       sets the semaphore: `set`
 *   quit        exit status 7; so does the end of input
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define QUIT 7
#define CORRUPT 99
#define WORK_BYTES 32
/* Of a child that is to be freed, 50 ms apart: on a busy machine its turn comes late. */
#define LOOKS 1000

static struct shared {
    _Atomic unsigned long calls, errors, born, clean, dirty;
} *shared;
static unsigned char as_built[WORK_BYTES];
static sem_t leave;

__attribute__((noinline, aligned(32))) unsigned long work(unsigned long x) {
    __asm__ volatile("");
    return x * 3 + 1;
}

/* A mark as <sys/sdt.h> writes it, behind a semaphore. */
__asm__(".pushsection .stapsdt.base, \"aG\", \"progbits\", .stapsdt.base, comdat\n"
        ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n"
        "_.stapsdt.base: .space 1\n.size _.stapsdt.base, 1\n.popsection\n");
__attribute__((section(".probes"), visibility("hidden"))) volatile uint16_t parting_semaphore;

__attribute__((noinline)) static void mark(void) {
    __asm__ volatile("990: nop; nop; nop; nop; nop; nop; nop; nop\n"
                     ".pushsection .note.stapsdt, \"\", \"note\"\n.balign 4\n"
                     ".4byte 992f - 991f, 994f - 993f, 3\n991: .asciz \"stapsdt\"\n992: .balign 4\n"
                     "993: .8byte 990b\n.8byte _.stapsdt.base\n.8byte parting_semaphore\n"
                     ".asciz \"parting\"\n.asciz \"mark\"\n.asciz \"\"\n994: .balign 4\n.popsection\n");
}

static void pause_ms(long ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left)) {}
}

static void must(int fine, const char *what) {
    if (fine) return;
    dprintf(2, "parting: %s\n", what);
    _exit(CORRUPT);
}

static void work_some(unsigned long calls) {
    for (unsigned long i = 0; i < calls; i++) must(work(i) == i * 3 + 1, "work() returned a wrong value");
}

/* vfork */
static _Atomic pid_t vforked;
static long vfork_ms;

static void *vforks(void *unused) {
    (void)unused;
    pid_t child = vfork();
    if (child == 0) {
        vforked = getpid();
        pause_ms(vfork_ms);
        _exit(0);
    }
    waitpid(child, 0, 0);
    vforked = 0;
    return 0;
}

/* A process that shares the memory. */
static pid_t sharer;
static char sharer_stack[1 << 16] __attribute__((aligned(16)));

__attribute__((noreturn)) static int shares(void *unused) {
    /* Not left behind, however the process ends. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)unused;
    for (unsigned long i = 0;; i++) {
        shared->errors += work(i) != i * 3 + 1;
        shared->calls++;
    }
}

/* A handler with a big frame. */
static size_t deep_bytes;

__attribute__((noinline)) static void use_stack(void) {
    volatile char *frame = __builtin_alloca(deep_bytes);
    frame[0] = frame[deep_bytes - 1] = 1;
    pause_ms(30);
}

static void on_deep(int signal) {
    (void)signal;
    use_stack();
}

__attribute__((noreturn)) static void *is_deep(void *unused) {
    (void)unused;
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1};
    event._sigev_un._tid = (int)syscall(SYS_gettid);
    must(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create");
    /* From the last handler's end: most of the time a handler runs, and each has met work() anew. */
    struct itimerspec soon = {{0, 0}, {0, 200000}};
    for (;;) {
        struct itimerspec now;
        timer_gettime(timer, &now);
        if (now.it_value.tv_sec == 0 && now.it_value.tv_nsec == 0) timer_settime(timer, 0, &soon, 0);
        work_some(500);
    }
}

/* A chain of children. */
static int has_ours(void) {
    static char maps[1 << 18];
    int fd = open("/proc/self/maps", O_RDONLY);
    size_t len = 0;
    for (ssize_t got; (got = read(fd, maps + len, sizeof maps - 1 - len)) > 0;) len += (size_t)got;
    close(fd);
    maps[len] = 0;
    return strstr(maps, "memfd:nanoprobe") != 0;
}

static void chain(unsigned long n) {
    for (unsigned long i = 0; i < n; i++) {
        work_some(50);
        pause_ms(1);
        pid_t child = fork();
        must(child >= 0, "fork");
        if (child == 0) {
            shared->born++;
            continue;
        }
        /* Lives on, long enough for everybody to come by; looks at itself at last. */
        for (int k = 0; k < LOOKS && (has_ours() || memcmp((void *)work, as_built, WORK_BYTES)); k++) pause_ms(50);
        int is_clean = !has_ours() && !memcmp((void *)work, as_built, WORK_BYTES);
        if (i > 0) *(is_clean ? &shared->clean : &shared->dirty) += 1;
        waitpid(child, 0, 0);
        _exit(0);
    }
    pause_ms(200);
    for (int k = 0; k < LOOKS && (has_ours() || memcmp((void *)work, as_built, WORK_BYTES)); k++) pause_ms(50);
    int is_clean = !has_ours() && !memcmp((void *)work, as_built, WORK_BYTES);
    *(is_clean ? &shared->clean : &shared->dirty) += 1;
    _exit(0);
}

/* A thread that a signal meets in a trampoline. */
static _Atomic int is_held;
static long hold_ms;

static void on_hold(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    uintptr_t pc = (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    uintptr_t own = (uintptr_t)mark;
    uintptr_t away = pc > own ? pc - own : own - pc;
    /* Near, as trampolines are, and not in the program. */
    if (away > 1 << 20 && away < 1ul << 31 && !is_held) {
        is_held = 1;
        pause_ms(hold_ms);
        is_held = 2;
    }
}

static void *holds(void *unused) {
    (void)unused;
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR2};
    event._sigev_un._tid = (int)syscall(SYS_gettid);
    must(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create");
    struct itimerspec often = {{0, 300000}, {0, 300000}};
    timer_settime(timer, 0, &often, 0);
    while (!is_held) mark();
    timer_delete(timer);
    return 0;
}

static void start(void *(*routine)(void *)) {
    pthread_t thread;
    must(pthread_create(&thread, 0, routine, 0) == 0, "pthread_create");
}

static void *obey(void *unused) {
    (void)unused;
    char line[128];
    unsigned long n;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "run %lu", &n) == 1) {
            work_some(n);
            printf("ran work=%lu\n", n);
        } else if (!strcmp(line, "leave\n")) {
            sem_post(&leave);
            printf("left\n");
        } else if (!strcmp(line, "name\n")) {
            must(prctl(PR_SET_NAME, "caf\xc3) Z (\xff") == 0, "prctl");
            char path[64];
            snprintf(path, sizeof path, "/proc/self/task/%d/comm", getpid());
            int fd = open(path, O_WRONLY);
            must(write(fd, "caf\xc3) Z (\xff", 9) == 9, "comm");
            close(fd);
            printf("named\n");
        } else if (sscanf(line, "vfork %ld", &vfork_ms) == 1) {
            start(vforks);
            while (!vforked) pause_ms(1);
            printf("vforked\n");
        } else if (!strcmp(line, "inside\n")) {
            printf("inside %d\n", vforked != 0);
        } else if (!strcmp(line, "share\n")) {
            sharer = clone(shares, sharer_stack + sizeof sharer_stack, CLONE_VM | SIGCHLD, 0);
            printf("sharing %d\n", sharer);
        } else if (!strcmp(line, "shared\n")) {
            int lives = sharer > 0 && waitpid(sharer, 0, WNOHANG) == 0;
            printf("shared lives=%d calls=%lu errors=%lu\n", lives, shared->calls, shared->errors);
        } else if (sscanf(line, "deep %lu", &n) == 1) {
            deep_bytes = n << 10;
            struct sigaction action = {.sa_handler = on_deep};
            sigaction(SIGUSR1, &action, 0);
            start(is_deep);
            printf("deep\n");
        } else if (sscanf(line, "chain %lu", &n) == 1) {
            if (fork() == 0) chain(n);
            printf("chaining\n");
        } else if (!strcmp(line, "chained\n")) {
            waitpid(-1, 0, 0);
            printf("chained born=%lu clean=%lu dirty=%lu\n", shared->born, shared->clean, shared->dirty);
        } else if (sscanf(line, "hold %ld", &hold_ms) == 1) {
            struct sigaction action = {.sa_sigaction = on_hold, .sa_flags = SA_SIGINFO};
            sigaction(SIGUSR2, &action, 0);
            start(holds);
            while (!is_held) pause_ms(1);
            printf("holding\n");
        } else if (sscanf(line, "mark %lu", &n) == 1) {
            unsigned long guarded = 0;
            for (unsigned long i = 0; i < n; i++)
                if (parting_semaphore) mark(), guarded++;
            printf("marked guarded=%lu semaphore=%u\n", guarded, parting_semaphore);
        } else if (sscanf(line, "set %lu", &n) == 1) {
            parting_semaphore = (uint16_t)n;
            printf("set\n");
        } else {
            break;
        }
        fflush(stdout);
    }
    if (sharer > 0) kill(sharer, SIGKILL);
    exit(QUIT);
}

int main(void) {
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memcpy(as_built, (void *)work, WORK_BYTES);
    sem_init(&leave, 0, 0);
    start(obey);
    printf("ready pid=%d\n", getpid());
    fflush(stdout);
    while (sem_wait(&leave)) {}
    pthread_exit(0);
}

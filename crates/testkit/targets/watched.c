/* A process whose threads write variables a known number of times, for watchpoints.
 *
 * Its own handlers for SIGSEGV and SIGTRAP count and repair, on alternative stacks. Commands, each
 * answered by one line:
 *   write N      eight threads together store N times to `plain`, add N times to `shared`
 *   churn N      N threads, one after another in fours, each store 10 times to `plain` and end
 *   many         two threads store to each of the 64 cells of `cells`, cell i i+1 times each
 *   fault N      N times an int3 and a store to a protected page, each by a fresh thread
 *   nested       a store to `plain` inside the SIGSEGV handler, while that signal is blocked
 *   fill         the kernel writes to `plain`'s page by read(2); answers what read said
 *   fork         a child stores 100 times to `plain` and ends; answers its status
 *   reprotect N  a thread stores N times to `plain` while its page is protected anew N times
 *   move         ten stores to `region`'s second page, which is then moved away and stored to ten times there;
 *                another page takes its place and gets ten stores
 *   vanish       `region`'s third page is unmapped
 *   deep         ten stores to `plain` by `leaf`, called by `inner`, called by `outer`, which have frame pointers
 *   spawn        posix_spawn of a program that ends with 0
 * The answer to all is
 *   done plain=P shared=S cells=C traps=T segvs=V read=R child=X region=N
 * with the numbers of stores since the start. `quit` ends with 7; 99 if a value is wrong.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define THREADS 8
#define CORRUPT 99
#define QUIT 7
#define CELLS 64

/* A page of its own for each group, so that counts by page protection can be told apart. */
__attribute__((aligned(4096))) volatile uint64_t plain;
char landing[64];
__attribute__((aligned(4096))) _Atomic uint64_t shared;
__attribute__((aligned(4096))) volatile uint64_t cells[CELLS * 32];

__attribute__((aligned(4096))) char region[3 * 4096];

static __attribute__((aligned(4096))) _Atomic uint64_t plain_stores;
static uint64_t region_stores;
static _Atomic uint64_t shared_stores, cell_stores, traps, segvs;
static volatile char *guarded;
static _Atomic int is_nested;
static long read_answer, child_status;

static void store_plain(uint64_t n) {
    for (uint64_t i = 0; i < n; i++) plain = i;
    atomic_fetch_add(&plain_stores, n);
}

static void on_trap(int signal) {
    (void)signal;
    traps++;
}

static void on_segv(int signal, siginfo_t *info, void *context) {
    ucontext_t *at = context;
    (void)signal;
    if (info->si_addr != (void *)guarded) _exit(CORRUPT);
    if (is_nested) {
        plain = 77;
        plain_stores++;
    }
    segvs++;
    at->uc_mcontext.gregs[REG_RIP] += 3; /* past `movb $1, (%rax)` */
}

static uint64_t share;

static void *writer(void *unused) {
    (void)unused;
    store_plain(share);
    for (uint64_t i = 0; i < share; i++) shared++;
    atomic_fetch_add(&shared_stores, share);
    return NULL;
}

static void *visitor(void *unused) {
    (void)unused;
    store_plain(10);
    return NULL;
}

static void *celler(void *unused) {
    (void)unused;
    for (int i = 0; i < CELLS; i++)
        for (int n = 0; n <= i; n++) {
            cells[i * 32] = (uint64_t)n;
            cell_stores++;
        }
    return NULL;
}

static void *faulter(void *unused) {
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536, .ss_flags = 0};
    (void)unused;
    sigaltstack(&stack, NULL);
    __asm__ volatile("int3");
    __asm__ volatile("movb $1, (%%rax)" : : "a"(guarded) : "memory");
    stack.ss_flags = SS_DISABLE;
    sigaltstack(&stack, NULL);
    free(stack.ss_sp);
    return NULL;
}

static void threads(int n, void *(*body)(void *)) {
    pthread_t all[THREADS];
    for (int t = 0; t < n; t++)
        if (pthread_create(&all[t], NULL, body, NULL)) _exit(CORRUPT);
    for (int t = 0; t < n; t++) pthread_join(all[t], NULL);
}

static void fill(void) {
    int ends[2];
    if (pipe(ends) || write(ends[1], "landed", 6) != 6) _exit(CORRUPT);
    read_answer = read(ends[0], landing, sizeof landing);
    if (memcmp(landing, "landed", 6)) _exit(CORRUPT);
    close(ends[0]);
    close(ends[1]);
}

static void fork_one(void) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        store_plain(100);
        _exit(5);
    }
    if (waitpid(child, &status, 0) != child) _exit(CORRUPT);
    child_status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void *protector(void *unused) {
    (void)unused;
    for (uint64_t i = 0; i < share; i++)
        if (mprotect((void *)&plain, 4096, PROT_READ | PROT_WRITE)) _exit(CORRUPT);
    return NULL;
}

static void reprotect(void) {
    pthread_t one;
    if (pthread_create(&one, NULL, protector, NULL)) _exit(CORRUPT);
    store_plain(share);
    pthread_join(one, NULL);
}

#define FRAMED __attribute__((noinline, noipa, optimize("no-omit-frame-pointer", "no-optimize-sibling-calls")))

__attribute__((noinline, noipa)) void leaf(uint64_t value) {
    plain = value;
}

FRAMED void inner(uint64_t value) {
    leaf(value);
    plain_stores++;
}

FRAMED void outer(void) {
    for (uint64_t i = 0; i < 10; i++) inner(i);
}

static void store_ten(volatile uint64_t *at) {
    for (uint64_t i = 0; i < 10; i++) *at = i;
}

static void move(void) {
    char *from = region + 4096;
    char *to = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    store_ten((void *)from);
    if (mremap(from, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) _exit(CORRUPT);
    store_ten((void *)to);
    int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap(from, 4096, prot, flags, -1, 0) != from) _exit(CORRUPT);
    store_ten((void *)from);
    region_stores += 20;
    munmap(to, 4096);
}

static void spawn(void) {
    extern char **environ;
    char *words[] = {"true", NULL};
    int status = 0;
    pid_t child;
    if (posix_spawn(&child, "/bin/true", NULL, NULL, words, environ)) _exit(CORRUPT);
    if (waitpid(child, &status, 0) != child) _exit(CORRUPT);
    child_status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void obey(const char *line) {
    uint64_t n = 0;
    if (sscanf(line, "write %lu", &n) == 1) {
        share = n / THREADS;
        threads(THREADS, writer);
    } else if (sscanf(line, "churn %lu", &n) == 1) {
        for (; n >= 4; n -= 4) threads(4, visitor);
    } else if (sscanf(line, "fault %lu", &n) == 1) {
        while (n--) threads(1, faulter);
    } else if (sscanf(line, "reprotect %lu", &share) == 1) {
        reprotect();
    } else if (!strcmp(line, "move\n")) {
        move();
    } else if (!strcmp(line, "vanish\n")) {
        munmap(region + 8192, 4096);
    } else if (!strcmp(line, "deep\n")) {
        outer();
    } else if (!strcmp(line, "spawn\n")) {
        spawn();
    } else if (!strcmp(line, "many\n")) {
        threads(2, celler);
    } else if (!strcmp(line, "nested\n")) {
        is_nested = 1;
        threads(1, faulter);
        is_nested = 0;
    } else if (!strcmp(line, "fill\n")) {
        fill();
    } else if (!strcmp(line, "fork\n")) {
        fork_one();
    }
}

int main(void) {
    struct sigaction trap = {.sa_handler = on_trap, .sa_flags = SA_ONSTACK};
    struct sigaction segv = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    char line[64];
    guarded = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sigaction(SIGTRAP, &trap, NULL);
    sigaction(SIGSEGV, &segv, NULL);
    printf("ready pid=%d self=%lu\n", getpid(), (unsigned long)pthread_self());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) && strcmp(line, "quit\n")) {
        obey(line);
        printf("done plain=%lu shared=%lu cells=%lu traps=%lu segvs=%lu read=%ld child=%ld region=%lu\n",
               (unsigned long)plain_stores, (unsigned long)shared_stores,
               (unsigned long)cell_stores, (unsigned long)traps, (unsigned long)segvs, read_answer,
               child_status, (unsigned long)region_stores);
        fflush(stdout);
    }
    return shared == shared_stores ? QUIT : CORRUPT;
}

/* A process that dies of any system call but the seven it needs.
 *
 * After its threads have started, a seccomp filter is put on all of them that kills the process on
 * anything but read, write, exit, exit_group, futex, clock_nanosleep and rt_sigreturn. Then
 *   run N  -> calls work=N          (each of four threads calls work() N/4 times)
 *   quit   -> exit status 7; so does the end of input
 * With the argument `asks`, calls by which a process asks about itself are let through too.
 */
#define _GNU_SOURCE
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define THREADS 4
#define CORRUPT 99
#define QUIT 7

static _Atomic unsigned number, done, started;
static unsigned long turns;

__attribute__((noinline)) int work(int x) {
    __asm__ volatile("");
    return x * 3 + 1;
}

__attribute__((noinline)) uint64_t idle_work(uint64_t x) {
    __asm__ volatile("");
    return x * 2654435761u + 1;
}

static void *busy(void *unused) {
    unsigned seen = 0;
    uint64_t x = 1;
    (void)unused;
    started++;
    for (;;) {
        if (number == seen) {
            x = idle_work(x);
            continue;
        }
        seen = number;
        for (unsigned long i = 0; i < turns; i++)
            if (work((int)(i & 0xffff)) != (int)(i & 0xffff) * 3 + 1) _exit(CORRUPT);
        done++;
    }
    return NULL;
}

static void close_the_door(int asks) {
#define ALLOW(name)                                                                                \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_##name, 0, 1),                                        \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define ASK(name)                                                                                  \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, asks ? __NR_##name : -1, 0, 1),                            \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(read),
        ALLOW(write),
        ALLOW(exit),
        ALLOW(exit_group),
        ALLOW(futex),
        ALLOW(clock_nanosleep),
        ALLOW(rt_sigreturn),
        ASK(process_vm_readv),
        ASK(clock_gettime),
        ASK(getpid),
        ASK(getppid),
        ASK(gettid),
        ASK(getuid),
        ASK(getgid),
        ASK(prctl),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof code / sizeof code[0], code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)) {
        perror("seccomp");
        exit(1);
    }
}

static void say(const char *format, unsigned long value) {
    char text[64];
    int n = snprintf(text, sizeof text, format, value);
    if (write(1, text, (size_t)n) != n) _exit(CORRUPT);
}

/* Reads a line without stdio, which makes calls of its own. 0 at the end of input. */
static int read_line(char *line, size_t room) {
    size_t n = 0;
    while (n + 1 < room && read(0, line + n, 1) == 1)
        if (line[n++] == '\n') {
            line[n] = 0;
            return 1;
        }
    return 0;
}

int main(int argc, char **argv) {
    pthread_t thread;
    char line[64];
    unsigned long pid = (unsigned long)getpid();
    for (unsigned t = 0; t < THREADS; t++) pthread_create(&thread, NULL, busy, NULL);
    /* A thread that is still being set up makes other calls. */
    while (started != THREADS) usleep(100);
    close_the_door(argc > 1 && strcmp(argv[1], "asks") == 0);
    say("ready pid=%lu\n", pid);
    while (read_line(line, sizeof line) && strncmp(line, "quit", 4)) {
        unsigned long calls = strtoul(line + 4, NULL, 10);
        turns = calls / THREADS;
        done = 0;
        number++;
        while (done != THREADS) {
            struct timespec moment = {0, 200000};
            syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &moment, NULL);
        }
        say("calls work=%lu\n", calls / THREADS * THREADS);
    }
    syscall(SYS_exit_group, QUIT);
}

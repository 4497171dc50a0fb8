/* A process that execs what fails or itself, or signals its own process group. The first argument says what:
 *   killed        a seccomp filter kills it at its exec
 *   trapped       a seccomp filter answers its exec with SIGSYS, which it handles; says `tracer=T traps=1` of itself
 *   again US N    N times: spins for US microseconds and execs itself; the last says `last`
 *   group SIGNAL  handles the signal, sends it to its process group, calls work() 1000 times; says `alive`
 *   spin          calls work() for ever; says `ready pid=P`
 *   name TID      the same, and says on the doorbells of whoever traces it that this thread is about to exec
 * It ends with 3 if nothing ends it.
 */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CORRUPT 99
#define DONE 3

static volatile sig_atomic_t handled;

__attribute__((noinline)) int work(int x) {
    __asm__ volatile("");
    return x * 3 + 1;
}

static void handle(int signal) {
    (void)signal;
    handled++;
}

static void answer_exec_with(unsigned action) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_execve, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof code[0], code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("seccomp");
        exit(CORRUPT);
    }
}

static int tracer(void) {
    char line[256];
    int pid = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status)) sscanf(line, "TracerPid: %d", &pid);
    return pid;
}

static void spin_for(long us) {
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        work(1);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - begun.tv_sec) * 1000000 + (now.tv_nsec - begun.tv_nsec) / 1000 < us);
}

/* Rings every doorbell that is mapped: its words are how often it was rung, how often answered, and who rang. */
static void ring_for(unsigned tid) {
    enum { DOORBELL = 3 * 4096 - 64, CALLERS = 14 };
    char line[512], rights[8];
    unsigned long start;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        if (!strstr(line, "memfd:nanoprobe") || sscanf(line, "%lx-%*x %7s", &start, rights) != 2) continue;
        if (rights[1] != 'w') continue;
        volatile unsigned *bell = (volatile unsigned *)(start + DOORBELL);
        for (int i = 0; i < CALLERS; i++) bell[2 + i] = tid;
        bell[0] = bell[1] + 1;
    }
    if (maps) fclose(maps);
    usleep(5000);
}

int main(int argc, char **argv) {
    char *const true_words[] = {"true", NULL};
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "killed")) {
        answer_exec_with(SECCOMP_RET_KILL_PROCESS);
        execv("/bin/true", true_words);
        return CORRUPT;
    }
    if (!strcmp(what, "trapped")) {
        signal(SIGSYS, handle);
        answer_exec_with(SECCOMP_RET_TRAP);
        execv("/bin/true", true_words);
        printf("tracer=%d traps=%d\n", tracer(), (int)handled);
    } else if (!strcmp(what, "again")) {
        long left = argc > 3 ? atol(argv[3]) : 0;
        char text[24];
        if (left > 0) {
            spin_for(atol(argv[2]));
            snprintf(text, sizeof text, "%ld", left - 1);
            char *const words[] = {argv[0], argv[1], argv[2], text, NULL};
            execv(argv[0], words);
            return CORRUPT;
        }
        puts("last");
    } else if (!strcmp(what, "group")) {
        int signal_number = argc > 2 ? atoi(argv[2]) : SIGUSR1;
        signal(signal_number, handle);
        kill(0, signal_number);
        for (int i = 0; i < 1000; i++) work(i);
        printf("alive handled=%d\n", (int)handled);
    } else if (!strcmp(what, "spin") || !strcmp(what, "name")) {
        unsigned named = argc > 2 ? (unsigned)atoi(argv[2]) : 0;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        printf("ready pid=%d\n", (int)getpid());
        fflush(stdout);
        for (;;) {
            for (int i = 0; i < 1000; i++) work(i);
            if (named) ring_for(named);
        }
    }
    return DONE;
}

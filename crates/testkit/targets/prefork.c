/* A server with workers: the parent forks them and takes requests in, the workers do them.
 *
 * It starts with two workers, one of which has forked a third. Commands on standard input:
 *   more N     forks N more workers
 *   serve N    N requests, each done by whichever worker is free: work() 100 times
 *   quit       exit status 7; so does the end of input
 * Each answers `done COMMAND`.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

#define CORRUPT 99
#define QUIT 7
#define CALLS 100

static int requests[2], answers[2];

__attribute__((noinline)) int work(int x) {
    __asm__ volatile("");
    return x * 3 + 1;
}

static void serve(void) {
    char request;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (read(requests[0], &request, 1) == 1) {
        for (int i = 0; i < CALLS; i++)
            if (work(i) != i * 3 + 1) _exit(CORRUPT);
        if (write(answers[1], &request, 1) != 1) _exit(CORRUPT);
    }
    _exit(0);
}

static void fork_worker(int has_child) {
    pid_t pid = fork();
    if (pid < 0) exit(CORRUPT);
    if (pid) return;
    if (has_child) fork_worker(0);
    serve();
}

int main(void) {
    char line[64], byte = 'x';
    if (pipe(requests) || pipe(answers)) return CORRUPT;
    fork_worker(1);
    fork_worker(0);
    /* All three have come as far as they come without a request. */
    for (int i = 0; i < 30; i++) {
        if (write(requests[1], &byte, 1) != 1 || read(answers[0], &byte, 1) != 1) return CORRUPT;
    }
    printf("ready pid=%d\n", (int)getpid());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) && strncmp(line, "quit", 4)) {
        int n = atoi(strchr(line, ' ') ? strchr(line, ' ') : "0");
        if (!strncmp(line, "more", 4)) {
            for (int i = 0; i < n; i++) fork_worker(0);
        } else {
            for (int i = 0; i < n; i++)
                if (write(requests[1], &byte, 1) != 1) return CORRUPT;
            for (int i = 0; i < n; i++)
                if (read(answers[0], &byte, 1) != 1) return CORRUPT;
        }
        printf("done %s", line);
        fflush(stdout);
    }
    return QUIT;
}

/* One function, called in ways whose stacks are known: N calls of each, in the first thread and in threads that begin and end.
 *
 * stacked N: calls, prints "done" and exits with status 7.
 * stacked N wait: the same, once for each line that it reads, after "ready"; so it can be attached to.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile long sink;

__attribute__((noinline)) void site(long n) {
    __asm__ volatile("nop; nop; nop; nop; nop");
    sink += n;
}

__attribute__((noinline)) void by_one(long n) { site(n); sink++; }
__attribute__((noinline)) void by_two(long n) { site(n); sink++; }
__attribute__((noinline)) void deep(long n, int left) {
    if (left > 0) deep(n, left - 1); else site(n);
    sink++;
}
__attribute__((noinline)) void with_alloca(long n) {
    char *room = __builtin_alloca((size_t)(n & 1023) + 16);
    memset(room, 1, 16);
    site(n + room[3]);
    sink += room[5];
}
__attribute__((noinline)) void aligned(long n) {
    char room[64] __attribute__((aligned(64)));
    memset(room, (int)n, sizeof room);
    site(n + room[1]);
    sink += room[2];
}

static void by_handler(int s) { site(s); sink++; }
/* What is above this frame is not in the page of the stack pointer. */
static void by_other_stack(int s) {
    volatile char room[9000];
    room[0] = room[8999] = (char)s;
    site(s);
    sink += room[0];
}

__attribute__((noinline)) void interrupted(void) { raise(SIGUSR1); sink++; }
__attribute__((noinline)) void interrupted_elsewhere(void) { raise(SIGUSR2); sink++; }

static void *thread_main(void *calls) {
    for (long n = 0; n < (long)calls; n++) by_two(n);
    return NULL;
}

static void one_round(long calls) {
    for (long n = 0; n < calls; n++) {
        by_one(n);
        with_alloca(n);
        aligned(n);
        interrupted();
        interrupted_elsewhere();
    }
    for (long n = 0; n < calls; n++) deep(n, 20);
    for (int i = 0; i < 4; i++) {
        pthread_t id;
        pthread_create(&id, NULL, thread_main, (void *)calls);
        pthread_join(id, NULL);
    }
    pid_t child = fork();
    if (child == 0) {
        for (long n = 0; n < calls; n++) by_one(n);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

int main(int argc, char **argv) {
    long calls = argc > 1 ? atol(argv[1]) : 100;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = by_handler;
    sigaction(SIGUSR1, &action, NULL);
    stack_t other = { .ss_sp = malloc(1 << 16), .ss_size = 1 << 16 };
    sigaltstack(&other, NULL);
    action.sa_handler = by_other_stack;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR2, &action, NULL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 2) {
        char line[64];
        printf("ready pid=%d\n", getpid());
        while (fgets(line, sizeof line, stdin) != NULL && strcmp(line, "quit\n") != 0) {
            one_round(calls);
            puts("done");
        }
    } else {
        one_round(calls);
        puts("done");
    }
    return 7;
}

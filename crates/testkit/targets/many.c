/* 64 threads that call 50,000 functions all the time.
 *
 * `turns` prints `turns N`: how often, all threads together, all 50,000 have been called since the last `go` or
 * `halt`. `go` lets the threads run, `halt` stops them between two turns. A wrong result ends it with 99, `quit` with 7.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define THREADS 64
#define FUNCTIONS 50000

typedef uint64_t many_fn(uint64_t);
extern many_fn *const many_table[FUNCTIONS];

static _Atomic int is_running, resting;
static _Atomic uint64_t turns;

static void *work(void *number) {
    uint64_t x = (uint64_t)(uintptr_t)number;
    for (;;) {
        if (!is_running) {
            resting++;
            while (!is_running) usleep(1000);
            resting--;
        }
        for (uint64_t i = 0; i < FUNCTIONS; i++)
            if (many_table[i](x) != x + i) _exit(99);
        turns++;
    }
    return 0;
}

int main(void) {
    char line[64];
    setvbuf(stdout, 0, _IOLBF, 0);
    for (uintptr_t t = 0; t < THREADS; t++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, work, (void *)t)) return 99;
    }
    /* A thread that starts has all signals blocked: none does any more. */
    while (resting < THREADS) usleep(1000);
    printf("ready pid=%d\n", getpid());
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "go\n")) {
            turns = 0;
            is_running = 1;
            puts("going");
        } else if (!strcmp(line, "halt\n")) {
            is_running = 0;
            while (resting < THREADS) usleep(1000);
            printf("turns %lu\n", (unsigned long)turns);
        } else {
            break;
        }
    }
    return 7;
}

/* Calls functions where no jump fits, a known number of times.
 *
 * `run N` makes N rounds on each of four threads and prints `rounds N`, N times four in all. A round calls
 *   tight_ret      once, and once more as the tail call of
 *   tight_tail     once
 *   tight_loop     once, with 3
 *   tight_three    three times, for each of its returns
 *   tight_through  twice: once it comes back, once it is left by longjmp
 * `quit` or the end of input ends it with 7; a wrong result, with 99.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS 4

extern uint64_t tight_ret(uint64_t), tight_tail(uint64_t), tight_loop(uint64_t), tight_three(uint64_t, uint64_t);
extern uint64_t tight_through(uint64_t (*)(void));

static unsigned long rounds;
static __thread jmp_buf back;

static void require(int is_true) {
    if (!is_true) _exit(99);
}

static uint64_t comes_back(void) {
    return 77;
}

static uint64_t leaps(void) {
    longjmp(back, 1);
}

static void *turns(void *unused) {
    (void)unused;
    for (unsigned long n = 0; n < rounds; n++) {
        tight_ret(n);
        tight_tail(n);
        require(tight_loop(3) == 6);
        tight_three(1, n);
        tight_three(2, n);
        require(tight_three(3, n) == (uint32_t)n);
        require(tight_through(comes_back) == 77);
        if (!setjmp(back)) {
            tight_through(leaps);
            require(0);
        }
    }
    return 0;
}

int main(void) {
    char line[64];
    setvbuf(stdout, 0, _IOLBF, 0);
    printf("ready pid=%d\n", getpid());
    while (fgets(line, sizeof line, stdin) && strcmp(line, "quit\n")) {
        pthread_t threads[THREADS];
        rounds = strtoul(line + 4, 0, 10);
        for (int t = 0; t < THREADS; t++) require(pthread_create(threads + t, 0, turns, 0) == 0);
        for (int t = 0; t < THREADS; t++) pthread_join(threads[t], 0);
        printf("rounds %lu\n", rounds * THREADS);
    }
    return 7;
}

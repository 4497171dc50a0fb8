/* Calls a function of a handful of nanoseconds all the time, and another of the same instructions beside it.
 *
 * One thread calls `cheap` and `control` in turns of 20,000 calls, in an order made by chance, so that whatever else slows it down
 * slows both. `took` prints, since the start, `took WALL CPU CHEAP CONTROL CALLS`: nanoseconds that have passed, those of its
 * processor time, those of each of the two, and how often each was called.
 * `quit` or the end of input ends it with 7; a wrong result, with 99.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CALLS 20000
#define TURNS 20
/* The asm hides that both are one function. */
#define BODY \
    for (int i = 0; i < 4; i++) { \
        x = x * 2654435761u + 1; \
        __asm__ volatile("" : "+r"(x)); \
    } \
    return x

__attribute__((noinline, noclone, aligned(64))) uint64_t cheap(uint64_t x) {
    BODY;
}

__attribute__((noinline, noclone, aligned(64))) uint64_t control(uint64_t x) {
    __asm__ volatile("" ::: "memory");
    BODY;
}

static uint64_t now(clockid_t which) {
    struct timespec t;
    clock_gettime(which, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

int main(void) {
    uint64_t seed = 88172645463325252ull, x = 1, y = 1, took[2] = {0, 0}, calls = 0;
    uint64_t began = now(CLOCK_MONOTONIC);
    printf("ready pid=%d\n", (int)getpid());
    fflush(stdout);
    for (;;) {
        struct pollfd input = {.fd = 0, .events = POLLIN};
        char line[64];
        if (poll(&input, 1, 0) > 0) {
            ssize_t n = read(0, line, sizeof line);
            if (n <= 0 || !strncmp(line, "quit", 4)) return 7;
            printf("took %lu %lu %lu %lu %lu\n", now(CLOCK_MONOTONIC) - began, now(CLOCK_PROCESS_CPUTIME_ID), took[0],
                   took[1], calls);
            fflush(stdout);
        }
        for (int turn = 0; turn < TURNS; turn++) {
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            for (int k = 0; k < 2; k++) {
                int which = k ^ (seed >> 20 & 1);
                uint64_t from = now(CLOCK_THREAD_CPUTIME_ID);
                if (which)
                    for (int i = 0; i < CALLS; i++) y = control(y);
                else
                    for (int i = 0; i < CALLS; i++) x = cheap(x);
                took[which] += now(CLOCK_THREAD_CPUTIME_ID) - from;
            }
        }
        calls += (uint64_t)TURNS * CALLS;
        if (x != y) return 99;
    }
}

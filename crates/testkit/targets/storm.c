/* 64 threads that call work() all the time and check every result.
 *
 * Commands on standard input:
 *   totals -> totals work=SO_FAR
 *   quit   -> totals and exit status 7; so does the end of input
 * A wrong result ends the program with 99. `storm N` starts N threads instead.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CORRUPT 99
#define QUIT 7
#define MOST 1024

static _Atomic int quit;
static _Atomic unsigned settled;
static struct seat {
    _Alignas(64) _Atomic uint64_t calls;
} seats[MOST];
static unsigned threads = 64;

__attribute__((noinline)) int work(int x) {
    __asm__ volatile("");
    return x * 3 + 1;
}

static void *busy(void *arg) {
    struct seat *seat = arg;
    settled++;
    for (uint64_t i = 1; !atomic_load_explicit(&quit, memory_order_relaxed); i++) {
        int x = (int)(i & 0xffff);
        if (work(x) != x * 3 + 1) {
            fprintf(stderr, "storm: work(%d) returned a wrong value\n", x);
            _exit(CORRUPT);
        }
        atomic_store_explicit(&seat->calls, i, memory_order_relaxed);
    }
    return NULL;
}

static void totals(void) {
    uint64_t sum = 0;
    for (unsigned t = 0; t < threads; t++) sum += seats[t].calls;
    printf("totals work=%lu\n", (unsigned long)sum);
}

int main(int argc, char **argv) {
    static pthread_t ids[MOST];
    char line[64];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1) threads = (unsigned)atoi(argv[1]);
    if (threads < 1 || threads > MOST) return 1;
    for (unsigned t = 0; t < threads; t++) pthread_create(&ids[t], NULL, busy, &seats[t]);
    while (settled != threads) usleep(100); /* till then libc changes their signal masks */
    printf("ready pid=%d\n", getpid());
    while (fgets(line, sizeof line, stdin) && strcmp(line, "quit\n")) totals();
    quit = 1;
    for (unsigned t = 0; t < threads; t++) pthread_join(ids[t], NULL);
    totals();
    return QUIT;
}

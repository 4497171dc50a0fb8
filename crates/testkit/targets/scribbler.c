/* Writes random and adversarial values over whatever a nanoprobe maps into it, while one thread calls poked().
 *
 * `scribbler SEED`. Spared is only what the code in this process follows as addresses: the page behind the arena's head.
 * It also tries to make the arena's file shorter, and writes records as fast as it can.
 * Commands on standard input:
 *   totals -> totals written=WORDS cut=TIMES     (cut: times that the file could be made shorter)
 *   quit   -> exit status 7; so does the end of input
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEAD = 12288, SPARED = 4096, BELL = HEAD - 64, FRAMES = 8 << 20, RECORDS = 16384, RING = 128 + 64 * RECORDS };

struct arena {
    char *at;
    size_t len;
    char link[64];
};

volatile long watched;
static _Atomic uint64_t written, cut;
static uint64_t state;

__attribute__((noinline)) int poked(int x) {
    __asm__ volatile("");
    watched = x;
    return x - 1;
}

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static uint64_t nasty(void) {
    switch (next() % 9) {
    case 0: return 0;
    case 1: return UINT64_MAX;
    case 2: return 1ull << 63;
    case 3: return next() & 0xffff;
    case 4: return INT64_MAX;
    case 5: return next() % 64;
    case 6: return 1ull << (next() % 64);
    case 7: return __builtin_ia32_rdtsc();
    default: return next();
    }
}

static int arenas(struct arena *all, int max) {
    char line[512];
    int n = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && n < max && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char mode[8];
        if (!strstr(line, "/memfd:nanoprobe") || sscanf(line, "%lx-%lx %7s", &from, &to, mode) != 3) continue;
        if (mode[1] != 'w' || to - from < HEAD + SPARED) continue;
        all[n].at = (char *)from;
        all[n].len = to - from;
        snprintf(all[n].link, sizeof all[n].link, "/proc/self/map_files/%lx-%lx", from, to);
        n++;
    }
    if (maps) fclose(maps);
    return n;
}

/* Somebody unmaps it under us: then the write is refused, and not a fault. */
static int put(int memory, char *at, uint64_t value, size_t len) {
    written++;
    return pwrite(memory, &value, len, (off_t)(uintptr_t)at) == (ssize_t)len;
}

static void scribble(int memory, struct arena *a) {
    for (int i = 0; i < 3000; i++) {
        size_t at = next() % 4 ? next() % a->len : next() % HEAD;
        at &= ~(size_t)7;
        if (at >= HEAD && at < HEAD + SPARED) continue;
        if (!put(memory, a->at + at, nasty(), 8)) return;
    }
    put(memory, a->at + BELL, (uint32_t)nasty(), 4); /* rung far ahead */
    char *ring = a->at + HEAD + SPARED + FRAMES;
    if (HEAD + SPARED + FRAMES + RING <= a->len) {
        for (uint64_t n = 0; n < 500; n++) { /* whole records, each the next */
            uint64_t record[4] = {n + 1, __builtin_ia32_rdtsc(), next(), (1 + next() % 2) << 32 | next() % 3};
            if (pwrite(memory, record, sizeof record, (off_t)(uintptr_t)(ring + 128 + 64 * n)) < 0) return;
        }
    }
    int file = open(a->link, O_RDWR | O_CLOEXEC);
    if (file >= 0) {
        if (ftruncate(file, 0) == 0) cut++;
        close(file);
    }
}

static void *scribbler(void *unused) {
    (void)unused;
    struct arena all[16];
    int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    for (;;) {
        int n = arenas(all, 16);
        for (int i = 0; i < n; i++) scribble(memory, &all[i]);
        usleep(n ? 0 : 500);
    }
    return NULL;
}

static void *caller(void *unused) {
    (void)unused;
    for (int i = 0;; i++) {
        poked(i & 0xffff);
        if (i % 128 == 0) usleep(200);
    }
    return NULL;
}

int main(int argc, char **argv) {
    char line[64];
    pthread_t id;
    setvbuf(stdout, NULL, _IOLBF, 0);
    state = 88172645463325252ull ^ (argc > 1 ? strtoull(argv[1], NULL, 10) << 20 : 0);
    pthread_create(&id, NULL, caller, NULL);
    pthread_create(&id, NULL, scribbler, NULL);
    printf("ready pid=%d\n", getpid());
    while (fgets(line, sizeof line, stdin) && strcmp(line, "quit\n")) {
        if (!strcmp(line, "totals\n")) printf("totals written=%lu cut=%lu\n", (unsigned long)written, (unsigned long)cut);
    }
    _exit(7);
}

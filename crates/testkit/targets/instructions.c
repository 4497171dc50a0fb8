/* Counts the instructions of its own calls: what a probe adds to a call is the difference.
 *
 * `run N` calls work() N times and prints `instructions=I calls=N`, of user space alone; `quit` ends with status 7. It counts by the
 * processor's counter of instructions. Where there is none it takes the time stamp counter of an x86-64 machine whose clock is its
 * instructions (qemu -icount), if a loop of known length takes as many; else it ends with 3.
 */
#define _GNU_SOURCE
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { TURN = 1000 };

static int counter;

__attribute__((noinline)) uint64_t work(uint64_t x) {
    __asm__ volatile("");
    return x * 2654435761u + 1;
}

static uint64_t call(unsigned long calls, uint64_t x) {
    for (unsigned long i = 0; i < calls; i++) x = work(x);
    return x;
}

static uint64_t by_counter(unsigned long calls) {
    uint64_t counted = 0;
    ioctl(counter, PERF_EVENT_IOC_RESET, 0);
    ioctl(counter, PERF_EVENT_IOC_ENABLE, 0);
    uint64_t x = call(calls, 1);
    ioctl(counter, PERF_EVENT_IOC_DISABLE, 0);
    if (read(counter, &counted, sizeof counted) != sizeof counted || x == 0) exit(99);
    return counted;
}

#ifdef __x86_64__
static uint64_t stamp(void) {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return low | (uint64_t)high << 32;
}

static int is_counting(void) {
    uint64_t left = 10000, before = stamp();
    __asm__ volatile("1: dec %0; jnz 1b" : "+r"(left));
    uint64_t counted = stamp() - before;
    return counted >= 20000 && counted < 20020;
}

static int order(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The kernel's instructions are in this clock too: so it takes the one in the middle of many short turns, between two of its ticks. */
static uint64_t by_stamps(unsigned long calls) {
    unsigned long turns = calls / TURN;
    uint64_t *took = calloc(turns + 1, sizeof *took), x = 1;
    for (unsigned long i = 0; i < turns; i++) {
        uint64_t before = stamp();
        x = call(TURN, x);
        took[i] = stamp() - before;
    }
    if (turns == 0 || x == 0) exit(99);
    qsort(took, turns, sizeof *took, order);
    uint64_t middle = took[turns / 2];
    free(took);
    return middle * turns;
}
#else
static int is_counting(void) { return 0; }
static uint64_t by_stamps(unsigned long calls) { return calls & 0; }
#endif

int main(void) {
    struct perf_event_attr what = {
        .type = PERF_TYPE_HARDWARE,
        .size = sizeof what,
        .config = PERF_COUNT_HW_INSTRUCTIONS,
        .disabled = 1,
        .exclude_kernel = 1,
        .exclude_hv = 1,
    };
    counter = syscall(SYS_perf_event_open, &what, 0, -1, -1, 0);
    if (counter < 0 && !is_counting()) {
        perror("instructions: perf_event_open");
        return 3;
    }
    char line[128];
    unsigned long calls;
    setlinebuf(stdout);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "quit\n")) return 7;
        if (sscanf(line, "run %lu", &calls) != 1) return 98;
        uint64_t counted = counter < 0 ? by_stamps(calls) : by_counter(calls);
        printf("instructions=%lu calls=%lu\n", (unsigned long)counted, calls);
    }
    return 7;
}

/* Counts the instructions of its own calls, by the processor's counter: what a probe adds to a call is the difference.
 *
 * `run N` calls work() N times and prints `instructions=I calls=N`, of user space alone; `quit` ends with status 7. Where there is no
 * such counter it ends with 3.
 */
#define _GNU_SOURCE
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((noinline)) uint64_t work(uint64_t x) {
    __asm__ volatile("");
    return x * 2654435761u + 1;
}

int main(void) {
    struct perf_event_attr what = {
        .type = PERF_TYPE_HARDWARE,
        .size = sizeof what,
        .config = PERF_COUNT_HW_INSTRUCTIONS,
        .disabled = 1,
        .exclude_kernel = 1,
        .exclude_hv = 1,
    };
    int counter = syscall(SYS_perf_event_open, &what, 0, -1, -1, 0);
    if (counter < 0) {
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
        uint64_t counted = 0, x = 1;
        ioctl(counter, PERF_EVENT_IOC_RESET, 0);
        ioctl(counter, PERF_EVENT_IOC_ENABLE, 0);
        for (unsigned long i = 0; i < calls; i++) x = work(x);
        ioctl(counter, PERF_EVENT_IOC_DISABLE, 0);
        if (read(counter, &counted, sizeof counted) != sizeof counted || x == 0) return 99;
        printf("instructions=%lu calls=%lu\n", (unsigned long)counted, calls);
    }
    return 7;
}

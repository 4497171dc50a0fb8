/* USDT marks as <sys/sdt.h> writes them: one always passed, one behind a semaphore, two places of one name.
 *
 * `run N` comes N times by each. At the mark `demo:guarded` arg0 is 0, 1, 2, ... in 4 bytes of a register whose upper
 * half is not 0. Prints `passed guarded=G plain=P semaphore=S`, G being how often the semaphore let it by. `fork`
 * starts a child that does the same for `run 1000` and prints its line. `quit` ends with 7.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mark.h"

#ifdef __aarch64__
#define GUARDED(value) __asm__ volatile(MARK("guarded", "demo_semaphore", "4@%w0 -4@[sp, 8]")::"r"(value))
#define PLAIN(value) __asm__ volatile(MARK("plain", "0", "8@%0")::"r"(value))
#else
#define GUARDED(value) __asm__ volatile(MARK("guarded", "demo_semaphore", "4@%%ecx -4@8(%%rsp)")::"c"(value))
#define PLAIN(value) __asm__ volatile(MARK("plain", "0", "8@%%rdx")::"d"(value))
#endif

static void pass(uint64_t calls) {
    uint64_t guarded = 0, plain = 0;
    for (uint64_t i = 0; i < calls; i++) {
        if (demo_semaphore) {
            uint64_t rubbish_above = i | 0xabcdull << 32;
            GUARDED(rubbish_above);
            guarded++;
        }
        PLAIN(i);
        plain++;
        if (i % 2)
            __asm__ volatile(MARK("twice", "0", ""));
        else
            __asm__ volatile(MARK("twice", "0", ""));
    }
    printf("passed guarded=%lu plain=%lu semaphore=%u\n", guarded, plain, demo_semaphore);
    fflush(stdout);
}

int main(void) {
    char line[128];
    unsigned long calls;
    printf("ready pid=%d\n", getpid());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "run %lu", &calls) == 1) {
            pass(calls);
        } else if (!strcmp(line, "fork\n")) {
            pid_t child = fork();
            if (child == 0) {
                pass(1000);
                sleep(1);
                pass(1000);
                _exit(0);
            }
            waitpid(child, 0, 0);
            printf("forked\n");
            fflush(stdout);
        } else {
            break;
        }
    }
    return 7;
}

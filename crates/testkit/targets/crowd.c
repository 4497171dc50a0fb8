/* Many threads that call tiny neighbouring functions all the time and check every result.
 *
 * The argument is the number of threads. `fork` makes a child that does the same until the next `fork` or the end;
 * `quit` prints `calls N` and ends it with 7. A wrong result ends it with 99 and a line on stderr that names the function.
 * `crowd_mark` is a variable for a watch.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS_MAX 256

typedef uint64_t crowd_fn(uint64_t, uint64_t);
extern crowd_fn crowd_push, crowd_frame, crowd_four, crowd_three, crowd_four_again, crowd_loop, crowd_back, crowd_jcc,
    crowd_load, crowd_call, crowd_tail, crowd_short, crowd_nop, crowd_carry;
extern void crowd_one(void), crowd_two(void);

uint64_t crowd_constant = 0x1234567;
_Atomic uint64_t crowd_mark;
static _Atomic uint64_t calls;
static _Atomic int begun, is_over, left;

static void check(const char *name, uint64_t got, uint64_t wanted) {
    if (got == wanted) return;
    fprintf(stderr, "wrong: %s gave %#lx and not %#lx\n", name, (unsigned long)got, (unsigned long)wanted);
    _exit(99);
}

#define CHECK(function, x, y, wanted) check(#function, function(x, y), wanted)

static void turn(uint64_t x) {
    uint64_t few = (x & 7) + 1;
    CHECK(crowd_push, x, 0, x + 1);
    CHECK(crowd_frame, x, 0, x + 2);
    CHECK(crowd_four, x, 0, x);
    CHECK(crowd_three, x, 0, x);
    crowd_one();
    crowd_two();
    CHECK(crowd_four_again, x, 0, x);
    CHECK(crowd_loop, few, 0, few);
    CHECK(crowd_back, few, x, x + few);
    CHECK(crowd_jcc, x, 0, x ? x + 4 : 4);
    CHECK(crowd_jcc, 0, 0, 4);
    CHECK(crowd_load, x, 0, x + 0x1234567);
    CHECK(crowd_call, x, 0, x + 7);
    CHECK(crowd_tail, x, 0, x + 9);
    CHECK(crowd_short, x, 0, x + 11);
    CHECK(crowd_nop, x, 0, x);
    CHECK(crowd_carry, x, 5, x + 5);
}

static void *work(void *number) {
    uint64_t x = (uint64_t)(uintptr_t)number * 7919 + 1, n = 0;
    begun++;
    while (!is_over) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        turn(x >> 33 & 0xfffff);
        if (++n % 512) continue;
        calls += 512 * 17;
        crowd_mark = n;
        usleep(200);
    }
    left++;
    return 0;
}

static void on_alarm(int signal) {
    (void)signal;
    turn(3);
}

static pid_t child;

static void end_child(void) {
    int status = 0;
    if (!child) return;
    kill(child, SIGTERM);
    if (waitpid(child, &status, 0) != child || !(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM)) {
        fprintf(stderr, "wrong: the child ended with %#x\n", status);
        _exit(99);
    }
    child = 0;
}

int main(int argc, char **argv) {
    char line[64];
    int threads = argc > 1 ? atoi(argv[1]) : 64;
    setvbuf(stdout, 0, _IOLBF, 0);
    /* Handlers too come by the functions, and return into them. */
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, 0);
    pthread_t all[THREADS_MAX];
    if (threads > THREADS_MAX) return 98;
    for (uintptr_t t = 0; t < (uintptr_t)threads; t++)
        if (pthread_create(&all[t], 0, work, (void *)t)) return 98;
    /* A thread that starts has all signals blocked: none does any more. */
    while (begun < threads) usleep(1000);
    printf("ready pid=%d\n", getpid());
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "fork\n")) {
            end_child();
            child = fork();
            if (!child) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                for (uint64_t x = 0;; x++) turn(x & 0xfffff);
            }
            puts("forked");
        } else if (!strcmp(line, "poke\n")) {
            for (int t = 0; t < threads; t++) pthread_kill(all[t], SIGUSR1);
            puts("poked");
        } else {
            break;
        }
    }
    is_over = 1;
    while (left < threads) usleep(1000);
    end_child();
    printf("calls %lu\n", (unsigned long)calls);
    return 7;
}

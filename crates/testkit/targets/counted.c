/* A process whose functions are called a known number of times, by eight threads in mid-run.
 *
 * Threads call idle_work() all the time. `run N FUNCTION` has each of them call FUNCTION N/8 times
 * between mark_begin() and mark_end(), then prints the exact number. Return values are checked at
 * every call; a wrong one ends the program with 99.
 *
 * Commands, from the arguments first and then from standard input, one a line:
 *   run N FUNCTION     -> calls FUNCTION=HITS idle=SO_FAR
 *   where LABEL        -> where LABEL=FUNCTION+0xOFFSET
 *   totals             -> totals FUNCTION=HITS ... for every function ever run
 *   quit               -> totals and exit status 7; so does the end of input
 * HITS counts executions of the function's first instruction, which is what a probe there sees.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "counted.h"

#define THREADS 8
#define CORRUPT 99
#define QUIT 7

/* Calls of work() seen by work() itself, to compare with what the callers meant to do. */
static _Thread_local uint64_t work_inside;

__attribute__((noinline)) uint64_t idle_work(uint64_t x) {
    __asm__ volatile("");
    return x * 2654435761u + 1;
}

__attribute__((noinline)) int work(int x) {
    work_inside++;
    return x * 3 + 1;
}

__attribute__((noinline)) uint64_t work_args(uint64_t a, uint64_t b, uint64_t c) {
    __asm__ volatile("");
    return a + 2 * b + 3 * c;
}

__attribute__((noinline)) void mark_begin(void) { __asm__ volatile(""); }
__attribute__((noinline)) void mark_end(void) { __asm__ volatile(""); }

static void corrupt(const char *function, uint64_t want, uint64_t got) {
    fprintf(stderr, "counted: %s returned %#lx, wanted %#lx\n", function, (unsigned long)got,
            (unsigned long)want);
    _exit(CORRUPT);
}

/* One call with the arguments of turn `i`; returns hits made. */
typedef uint64_t turn_fn(uint64_t i);

static void must(const char *function, uint64_t want, uint64_t got) {
    if (want != got) corrupt(function, want, got);
}

#define TURN(name, a, b, c, want, hits)                                                            \
    static uint64_t turn_##name(uint64_t i) {                                                      \
        must(#name, (want), name((a), (b), (c)));                                                  \
        (void)i;                                                                                   \
        return (hits);                                                                             \
    }

TURN(work_args, i, 7, 9, i + 14 + 27, 1)
TURN(work_short, i & 0xffff, 0, 0, (i & 0xffff) + 1, 1)
TURN(work_nop5, i & 0xffff, 0, 0, (i & 0xffff) + 2, 1)
TURN(work_push, i, 0, 0, i + 3, 1)
TURN(work_ret_next, i & 0xffff, 0, 0, (i & 0xffff) + 4, 1)
TURN(work_punned, i, 0, 0, i, 1)
TURN(work_punned_small, i, 0, 0, 0, 1)
TURN(work_pushf, i, 0, 0, i, 1)
TURN(work_loop_head, i % 7 + 1, 0, 0, (i % 7 + 1) * (i % 7 + 2) / 2, 1)
TURN(work_loop_self, i % 5 + 1, 0, 0, 7, i % 5 + 1)
TURN(work_call_first, 0, 0, 0, (uint64_t)(uintptr_t)work_call_first_return, 1)
TURN(work_redzone, i, 1000, 77, i + 1077, 1)
TURN(work_flags, i, 3, 0, plain_flags(i, 3, 0), 1)
TURN(work_rip, i, 0, 0, i + 0x1122334455667788, 1)
TURN(work_jmp_first, i, 0, 0, i + 5, 1)
TURN(work_jcc_first, i % 3, 0, 0, i % 3 ? i % 3 : 1, 1)
TURN(work_endbr, i, 0, 0, i + 6, 1)
TURN(work_rep, i, 20, 30, i + 50, 1)
TURN(work_vector, i, 40, 50, i + 90, 1)
TURN(work_stack, i, 0, 0, i, 1)
TURN(work_recursive, i % 4, 0, 0, i % 4, i % 4 + 1)
TURN(work_jump_table, i, 0, 0, 10 + i % 4, 1)
TURN(work_page_end, i, 0, 0, i + 8, 1)
TURN(work_big, i, 0, 0, i + 2 * 0x0102030405060708, 1)

static uint64_t turn_work(uint64_t i) {
    must("work", (uint64_t)(int)((i & 0xffff) * 3 + 1), (uint64_t)work((int)(i & 0xffff)));
    return 1;
}

static uint64_t turn_work_tiny(uint64_t i) {
    (void)i;
    must("work_tiny (register number)", 0, registers_survive(work_tiny));
    return 1;
}

static uint64_t turn_work_ret(uint64_t i) {
    (void)i;
    must("work_ret (register number)", 0, registers_survive(work_ret));
    return 1;
}

/* Two functions of libc that nothing else here calls: a system call and an IFUNC. */
static uint64_t turn_getppid(uint64_t i) {
    (void)i;
    return getppid() >= 0;
}

static uint64_t turn_wcsnlen(uint64_t i) {
    static const wchar_t text[] = L"0123456789abcdef";
    must("wcsnlen", i % 16, wcsnlen(text, i % 16));
    return 1;
}

static const struct row {
    const char *name;
    turn_fn *turn;
} rows[] = {
#define ROW(name) {#name, turn_##name}
    ROW(work), ROW(work_args), ROW(work_short), ROW(work_tiny), ROW(work_nop5), ROW(work_push),
    ROW(work_ret), ROW(work_ret_next), ROW(work_punned), ROW(work_punned_small), ROW(work_pushf), ROW(work_loop_head),
    ROW(work_loop_self),
    ROW(work_call_first), ROW(work_redzone), ROW(work_flags), ROW(work_rip), ROW(work_jmp_first),
    ROW(work_jcc_first), ROW(work_endbr), ROW(work_rep), ROW(work_vector), ROW(work_stack),
    ROW(work_recursive), ROW(work_jump_table), ROW(work_big), ROW(work_page_end), ROW(getppid), ROW(wcsnlen),
};
#define ROWS (sizeof rows / sizeof rows[0])

static const struct label {
    const char *name, *base;
    const char *at;
    uintptr_t start;
} labels[] = {
    {"work_redzone_mid", "work_redzone", work_redzone_mid, (uintptr_t)work_redzone},
    {"work_flags_mid", "work_flags", work_flags_mid, (uintptr_t)work_flags},
    {"work_vector_mid", "work_vector", work_vector_mid, (uintptr_t)work_vector},
    {"work_big_mid", "work_big", work_big_mid, (uintptr_t)work_big},
    {"work_pushf_mid", "work_pushf", work_pushf_mid, (uintptr_t)work_pushf},
    {"work_page_end_mid", "work_page_end", work_page_end_mid, (uintptr_t)work_page_end},
};

static struct order {
    _Atomic uint64_t number; /* goes up by one per run; the threads wait for that */
    const struct row *row;
    uint64_t turns; /* of each thread */
} order;
static _Atomic unsigned done, settled;
static _Atomic int quit;

static struct seat {
    _Alignas(64) _Atomic uint64_t idle;
    uint64_t hits[ROWS];
    uint64_t work_inside;
} seats[THREADS];

static void *busy(void *arg) {
    struct seat *seat = arg;
    uint64_t seen = 0, x = 1;
    settled++;
    while (!atomic_load_explicit(&quit, memory_order_relaxed)) {
        uint64_t number = atomic_load_explicit(&order.number, memory_order_acquire);
        if (number == seen) {
            x = idle_work(x);
            atomic_store_explicit(&seat->idle,
                                  atomic_load_explicit(&seat->idle, memory_order_relaxed) + 1,
                                  memory_order_relaxed);
            continue;
        }
        seen = number;
        uint64_t hits = 0;
        for (uint64_t i = 0; i < order.turns; i++) hits += order.row->turn(i);
        seat->hits[order.row - rows] += hits;
        seat->work_inside = work_inside;
        atomic_fetch_add_explicit(&done, 1, memory_order_release);
    }
    return NULL;
}

static uint64_t total(size_t row) {
    uint64_t sum = 0;
    for (unsigned t = 0; t < THREADS; t++) sum += seats[t].hits[row];
    return sum;
}

static uint64_t idle_so_far(void) {
    uint64_t sum = 0;
    for (unsigned t = 0; t < THREADS; t++) sum += atomic_load(&seats[t].idle);
    return sum;
}

static void run(uint64_t calls, const char *name) {
    const struct row *row = NULL;
    for (size_t r = 0; r < ROWS; r++)
        if (!strcmp(rows[r].name, name)) row = &rows[r];
    if (!row || calls % THREADS) {
        printf("refused %s: no such function, or not a multiple of %d\n", name, THREADS);
        return;
    }
    uint64_t before = total((size_t)(row - rows));
    order.row = row;
    order.turns = calls / THREADS;
    atomic_store(&done, 0);
    mark_begin();
    atomic_fetch_add_explicit(&order.number, 1, memory_order_release);
    while (atomic_load_explicit(&done, memory_order_acquire) != THREADS) usleep(200);
    mark_end();
    printf("calls %s=%lu idle=%lu\n", name, (unsigned long)(total((size_t)(row - rows)) - before),
           (unsigned long)idle_so_far());
}

static void where(const char *name) {
    for (size_t l = 0; l < sizeof labels / sizeof labels[0]; l++)
        if (!strcmp(labels[l].name, name)) {
            printf("where %s=%s+%#lx\n", name, labels[l].base,
                   (unsigned long)((uintptr_t)labels[l].at - labels[l].start));
            return;
        }
    printf("refused %s: no such label\n", name);
}

static void totals(void) {
    uint64_t inside = 0;
    for (unsigned t = 0; t < THREADS; t++) inside += seats[t].work_inside;
    must("work (calls counted inside)", total(0), inside);
    printf("totals idle=%lu", (unsigned long)idle_so_far());
    for (size_t r = 0; r < ROWS; r++)
        if (total(r)) printf(" %s=%lu", rows[r].name, (unsigned long)total(r));
    printf("\n");
}

/* Returns 0 when the program is to end. */
static int obey(char *line) {
    char word[64] = "", name[64] = "";
    unsigned long calls = 0;
    line[strcspn(line, "\n")] = 0;
    if (sscanf(line, "run %lu %63s", &calls, name) == 2) {
        run(calls, name);
    } else if (sscanf(line, "run %lu", &calls) == 1) {
        run(calls, "work");
    } else if (sscanf(line, "where %63s", name) == 1) {
        where(name);
    } else if (sscanf(line, "%63s", word) == 1 && !strcmp(word, "totals")) {
        totals();
    } else if (!strcmp(word, "quit")) {
        return 0;
    } else {
        printf("refused %s: no such command\n", line);
    }
    fflush(stdout);
    return 1;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    for (unsigned t = 0; t < THREADS; t++) pthread_create(&threads[t], NULL, busy, &seats[t]);
    while (settled != THREADS) usleep(100); /* till then libc changes their signal masks */
    printf("ready pid=%d\n", getpid());
    fflush(stdout);

    int more = 1;
    for (int a = 1; more && a < argc; a++) more = obey(argv[a]);
    char line[256];
    while (more && fgets(line, sizeof line, stdin)) more = obey(line);

    atomic_store(&quit, 1);
    for (unsigned t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
    totals();
    fflush(stdout);
    return QUIT;
}

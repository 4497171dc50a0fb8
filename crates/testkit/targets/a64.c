/* An AArch64 process whose functions are called a known number of times, by eight threads.
 *
 * More threads call idle() all the time: eight, or as many as the argument says. `run N FUNCTION` has each of eight call
 * FUNCTION N/8 times and prints `calls FUNCTION=HITS`; `values` stores one value after another to `plain`; `fill` leaves no free memory within 160 MiB of its code; `quit` ends with status 7. Each call's answer is checked: a wrong one ends the program with 99.
 * Each function begins with an instruction that a probe has to write anew, or has a label at one inside.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/mman.h>
#include <unistd.h>

#define THREADS 8

typedef uint64_t work_fn(uint64_t, uint64_t);

#ifdef __ARM_FEATURE_BTI_DEFAULT
/* Guarded: each function begins with a landing pad, and so does the program, whose start in the C library's object has none. */
#define PAD "bti c\n"
__asm__(".text\n.globl _start\n_start: bti c\nmov x29, #0\nmov x30, #0\nmov x5, x0\nldr x1, [sp]\nadd x2, sp, #8\nmov x6, sp\n"
        "adrp x0, main\nadd x0, x0, :lo12:main\nmov x3, #0\nmov x4, #0\nbl __libc_start_main\nbrk #1\n");
#else
#define PAD ""
#endif

#define FUNCTION(name, code) PADDED(name, PAD code)
#define PADDED(name, code)                                                                       \
    uint64_t name(uint64_t, uint64_t);                                                             \
    __asm__(".text\n.balign 16\n.globl " #name "\n.type " #name ", %function\n" #name ":\n" code   \
            "\n.size " #name ", . - " #name "\n")

PADDED(work, "bti c\nadd x0, x0, #1\nret");
FUNCTION(work_adr, "adr x0, work_adr\nret");
FUNCTION(work_adrp, "adrp x0, work_adrp\nadd x0, x0, :lo12:work_adrp\nret");
FUNCTION(work_cbz, "cbz x0, 1f\nadd x0, x0, #1\nret\n1: mov x0, #9\nret");
FUNCTION(work_tbnz, "tbnz x0, #0, 1f\nmov x0, #2\nret\n1: mov x0, #3\nret");
FUNCTION(work_literal, "ldr x0, 1f\nret\n1: .quad 0x123456789abcdef0");
FUNCTION(work_vector, "ldr d0, 1f\nfmov x0, d0\nret\n.balign 8\n1: .quad 0x0123456789abcdef");
FUNCTION(work_loop, "sub x0, x0, #1\ncbnz x0, work_loop\nret");
FUNCTION(work_branch, "b 1f\nmov x0, #0\nret\n1: add x0, x0, #5\nret");
/* Guarded, a branch leads to the instruction behind its landing pad. */
FUNCTION(work_again, "1: cbz x0, 2f\nsub x0, x0, #1\nb 1b\n2: ret");
FUNCTION(work_frame, "stp x29, x30, [sp, #-16]!\nbl work\nldp x29, x30, [sp], #16\nret");
/* At work_flags+4 the flags are in use, at work_below+4 the words below the stack pointer, as in Go. */
FUNCTION(work_flags, "cmp x0, x1\nmov x2, #40\ncset x0, lo\nadd x0, x0, x2\nret");
FUNCTION(work_below, "stp x0, x1, [sp, #-16]\nmov x0, #0\nldp x2, x3, [sp, #-16]\nadd x0, x2, x3\nret");
/* At work_all+68 all registers that a function may write are in use, and the flags. */
FUNCTION(work_all, "mov x2, #2\nmov x3, #3\nmov x4, #4\nmov x5, #5\nmov x6, #6\nmov x7, #7\nmov x8, #8\nmov x9, #9\nmov x10, #10\n"
                   "mov x11, #11\nmov x12, #12\nmov x13, #13\nmov x14, #14\nmov x15, #15\nmov x16, #16\nmov x17, #17\ncmp x0, x1\nnop\n"
                   "cset x1, lo\nadd x0, x0, x1\nadd x2, x2, x3\nadd x4, x4, x5\nadd x6, x6, x7\nadd x8, x8, x9\nadd x10, x10, x11\n"
                   "add x12, x12, x13\nadd x14, x14, x15\nadd x16, x16, x17\nadd x0, x0, x2\nadd x0, x0, x4\nadd x0, x0, x6\n"
                   "add x0, x0, x8\nadd x0, x0, x10\nadd x0, x0, x12\nadd x0, x0, x14\nadd x0, x0, x16\nret");
/* Accesses to watched words: a store, a load, a pair of exclusives that adds one. */
const char greeting[] = "read me";
uint64_t plain[2], shared, other, cells[5];
FUNCTION(work_store, "adrp x2, plain\nadd x2, x2, :lo12:plain\nstr x0, [x2]\nadd x0, x0, #3\nret");
FUNCTION(work_load, "adrp x2, plain\nadd x2, x2, :lo12:plain\nldr x3, [x2]\nadd x0, x0, #3\nret");
FUNCTION(work_exclusive, "adrp x2, shared\nadd x2, x2, :lo12:shared\n1: ldxr x3, [x2]\nadd x3, x3, #1\nstxr w4, x3, [x2]\ncbnz w4, 1b\n"
                         "add x0, x0, #3\nret");
/* The watched store is between the two. */
FUNCTION(work_between, "adrp x2, shared\nadd x2, x2, :lo12:shared\nadrp x5, other\nadd x5, x5, :lo12:other\n1: ldxr x3, [x2]\nadd x3, x3, #1\n"
                       "str x0, [x5]\nstxr w4, x3, [x2]\ncbnz w4, 1b\nadd x0, x0, #3\nret");
FUNCTION(work_values, "adrp x2, plain\nadd x2, x2, :lo12:plain\nmov x3, #0x11\nmov x4, #0xabc\nstr x3, [x2]\nstrb w4, [x2, #7]\nstrh wzr, [x2]\n"
                      "stp w3, w4, [x2]\nfmov d0, x4\nstr d0, [x2]\nstrb w3, [x2]\nstr x4, [x2], #8\nstlr x3, [x2]\nsub x2, x2, #8\n"
                      "stlr x3, [x2]\nret");
/* work_pair+4 is between an exclusive load and its store: no place for a probe. */
FUNCTION(work_pair, "ldxr x2, [x1]\nadd x2, x2, x0\nstxr w3, x2, [x1]\ncbnz w3, work_pair\nmov x0, x2\nret");

__attribute__((noinline)) uint64_t idle(uint64_t x) {
    __asm__ volatile("");
    return x * 2654435761u + 1;
}

static void must(const char *what, uint64_t want, uint64_t got) {
    if (want == got) return;
    fprintf(stderr, "a64: %s returned %#lx, wanted %#lx\n", what, (unsigned long)got, (unsigned long)want);
    _exit(99);
}

static const struct kind {
    const char *name;
    work_fn *call;
} kinds[] = {
    {"work", work},           {"work_adr", work_adr},     {"work_adrp", work_adrp},     {"work_cbz", work_cbz},
    {"work_tbnz", work_tbnz}, {"work_literal", work_literal}, {"work_vector", work_vector}, {"work_loop", work_loop},
    {"work_branch", work_branch}, {"work_frame", work_frame}, {"work_flags", work_flags}, {"work_below", work_below},
    {"work_all", work_all},   {"work_store", work_store}, {"work_load", work_load},     {"work_exclusive", work_exclusive},
    {"work_between", work_between}, {"work_again", work_again},
};

static uint64_t answer(work_fn *call, uint64_t i) {
    if (call == work || call == work_frame) return i + 1;
    if (call == work_adr || call == work_adrp) return (uint64_t)(uintptr_t)call;
    if (call == work_cbz) return i ? i + 1 : 9;
    if (call == work_tbnz) return i & 1 ? 3 : 2;
    if (call == work_literal) return 0x123456789abcdef0;
    if (call == work_vector) return 0x0123456789abcdef;
    if (call == work_loop || call == work_again) return 0;
    if (call == work_branch) return i + 5;
    if (call == work_flags) return 40 + (i < 3);
    if (call == work_all) return i + (i < 3) + 152;
    return i + 3;
}

static pthread_barrier_t begin, end;
static const struct kind *now;
static uint64_t turns;
static atomic_ulong hits, pairs;

static void *worker(void *unused) {
    for (;;) {
        pthread_barrier_wait(&begin);
        uint64_t made = 0;
        for (uint64_t i = 0; i < turns; i++) {
            uint64_t with = now->call == work_loop ? i % 5 + 1 : i % 7;
            must(now->name, answer(now->call, with), now->call(with, 3));
            made += now->call == work_loop ? with : 1;
            if (now->call == work_exclusive || now->call == work_between) atomic_fetch_add(&pairs, 1);
        }
        atomic_fetch_add(&hits, made);
        pthread_barrier_wait(&end);
    }
    return unused;
}

/* Maps all that is free so near, readable by nobody, and prints how many pieces. */
static void fill(void) {
    uint64_t near = 160 << 20, code = (uintptr_t)fill, from = code - near, begins, ends;
    unsigned long pieces = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    uint64_t free_from[64], free_to[64];
    while (maps && fgets(line, sizeof line, maps) && from < code + near && pieces < 64) {
        if (sscanf(line, "%lx-%lx", (unsigned long *)&begins, (unsigned long *)&ends) != 2 || ends <= from) continue;
        free_from[pieces] = from, free_to[pieces] = begins < code + near ? begins : code + near;
        pieces += begins > from;
        from = ends;
    }
    for (unsigned long i = 0; i < pieces; i++) {
        uint64_t at = (free_from[i] + 0xfff) & ~0xfffULL;
        if (at < free_to[i] && mmap((void *)at, free_to[i] - at, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
            _exit(97);
    }
    printf("filled %lu\n", pieces);
}

static void *idler(void *number) {
    uint64_t x = (uintptr_t)number;
    for (;;) {
        for (int i = 0; i < 100000; i++) x = idle(x);
        nanosleep(&(struct timespec){0, 1000000}, 0);
    }
    return 0;
}

int main(int argc, char **argv) {
    pthread_t thread;
    uintptr_t busy = argc > 1 ? strtoul(argv[1], 0, 10) : THREADS;
    pthread_barrier_init(&begin, 0, THREADS + 1);
    pthread_barrier_init(&end, 0, THREADS + 1);
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&thread, 0, worker, 0);
    for (uintptr_t i = 0; i < busy; i++) pthread_create(&thread, 0, idler, (void *)i);
    char line[128], name[64];
    unsigned long calls;
    setlinebuf(stdout);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "quit\n")) return 7;
        if (!strcmp(line, "values\n")) {
            work_values(0, 0);
            puts("stored");
            continue;
        }
        if (!strcmp(line, "fill\n")) {
            fill();
            continue;
        }
        if (sscanf(line, "run %lu %63s", &calls, name) != 2) return 98;
        now = 0;
        for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++)
            if (!strcmp(kinds[k].name, name)) now = &kinds[k];
        if (!now) return 97;
        turns = calls / THREADS;
        atomic_store(&hits, 0);
        pthread_barrier_wait(&begin);
        pthread_barrier_wait(&end);
        must("the sum of exclusives", atomic_load(&pairs), shared);
        printf("calls %s=%lu\n", name, (unsigned long)atomic_load(&hits));
    }
    return 7;
}

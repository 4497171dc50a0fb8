// Functions of many shapes, called in a loop; a signal handler that may interrupt any of them.
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile unsigned sink;
static volatile int signals;
static jmp_buf out;

__attribute__((noinline)) static void leaf(void) { sink++; }
__attribute__((noinline)) static int compare(const void *a, const void *b) {
    leaf();
    return *(const int *)a - *(const int *)b;
}
__attribute__((noinline)) static unsigned recurse(unsigned n) { return n < 2 ? 1 : recurse(n - 1) + recurse(n - 2) + sink; }
__attribute__((noinline)) static unsigned with_alloca(unsigned n) {
    char *room = __builtin_alloca(n * 16 + 1);
    memset(room, (int)n, n * 16 + 1);
    leaf();
    return (unsigned)room[n];
}
__attribute__((noinline)) static unsigned aligned(unsigned n) {
    char room[128] __attribute__((aligned(64)));
    for (unsigned i = 0; i < sizeof room; i++) room[i] = (char)(i * n);
    leaf();
    return (unsigned)room[n & 127] + (unsigned)((unsigned long)room & 63);
}
__attribute__((noinline)) static unsigned aligned_and_variable(unsigned n, unsigned m) {
    char fixed[64] __attribute__((aligned(64)));
    char *room = __builtin_alloca(n + m);
    memset(room, 3, n + m);
    memset(fixed, 4, sizeof fixed);
    leaf();
    return (unsigned)(room[n] + fixed[m & 63]);
}
__attribute__((noinline)) static unsigned many(unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned g, unsigned h) {
    unsigned x = recurse(a & 3), y = recurse(b & 3), z = recurse(c & 3), w = recurse(d & 3);
    leaf();
    return x * y + z * w + e * f + g * h + recurse(e & 3) * x + recurse(f & 3) * y + z + w;
}
__attribute__((noinline)) static unsigned tail(unsigned n) { return n == 0 ? 7 : with_alloca(n); }
__attribute__((noinline)) static void jump(unsigned n) {
    if (n == 0) longjmp(out, 1);
    leaf();
    jump(n - 1);
    leaf();
}
__attribute__((noinline)) static unsigned big_frame(unsigned n) {
    volatile char room[70000];
    room[n] = 1;
    room[69999] = 2;
    leaf();
    return (unsigned)(room[n] + room[69999]);
}
__attribute__((noinline)) static unsigned text(unsigned n) {
    char line[200];
    snprintf(line, sizeof line, "%u %s %5.2f %lx", n, "some text", n / 3.0, (unsigned long)n * n);
    char *copy = strdup(line);
    unsigned len = (unsigned)strlen(copy) + (unsigned)strtoul(copy, NULL, 10);
    free(copy);
    return len;
}

static void handler(int s) {
    (void)s;
    signals++;
    leaf();
}

int main(int argc, char **argv) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    sigaction(SIGUSR1, &action, NULL);
    unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 3;
    raise(SIGUSR1);
    for (unsigned n = 0; n < rounds; n++) {
        int numbers[16];
        for (int i = 0; i < 16; i++) numbers[i] = (int)((n * 7919 + (unsigned)i * 104729) % 1000);
        qsort(numbers, 16, sizeof numbers[0], compare);
        sink += recurse(5) + with_alloca(n & 31) + aligned(n) + aligned_and_variable(n & 63, 9);
        sink += many(n, n + 1, n + 2, n + 3, n, n + 1, n + 2, n + 3) + tail(n & 7) + big_frame(n & 255) + text(n);
        if (setjmp(out) == 0) jump(3);
    }
    printf("%d signals\n", signals > 0);
    return 0;
}

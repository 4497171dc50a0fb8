/* The same calls in every run, in one thread: for comparing two ways of running one script.
 *
 * `work`, `less`, `shape` and `text` are called 60 times each, with numbers, texts and structs that follow from the number of the
 * call; the mark `demo:turn` is passed as often, and `demo:seldom` only while its semaphore is raised.
 */
#include <stdint.h>

struct inner {
    int16_t low;
    uint8_t bytes[6];
};

struct point {
    int32_t x;
    int64_t y;
    char name[12];
    struct inner in;
    struct point *next;
};

#include "mark.h"

/* 16 bytes that do nothing; a mark with two numbers in the registers of the first two arguments. */
#ifdef __x86_64__
#define ROOM ".nops 16, 4\n"
#define PASS(mark, x, y) __asm__ volatile(mark ROOM : : "D"(x), "S"(y))
#define TURN "-4@%%edi 8@%%rsi -2@$-7"
#define SELDOM "8@%%rdi"
#else
#define ROOM "nop\nnop\nnop\nnop\n"
#define PASS(mark, x, y)                              \
    do {                                              \
        register int64_t first __asm__("x0") = (x);   \
        register int64_t second __asm__("x1") = (y);  \
        __asm__ volatile(mark ROOM : : "r"(first), "r"(second)); \
    } while (0)
#define TURN "-4@w0 8@x1 -2@-7"
#define SELDOM "8@x0"
#endif

#define CALLED __attribute__((noinline, noclone, aligned(16)))

CALLED long work(long a, unsigned long b, const char *text) {
    __asm__ volatile(ROOM : "+r"(a) : "r"(b), "r"(text) : "memory");
    return a * 3 + (long)b;
}

CALLED int less(int a, short b, unsigned char c) {
    __asm__ volatile(ROOM : "+r"(a) : "r"(b), "r"(c) : "memory");
    return a - b - c;
}

CALLED int64_t shape(struct point *p, int scale) {
    __asm__ volatile(ROOM : "+r"(p) : "r"(scale) : "memory");
    return p->x * scale + p->y;
}

CALLED const char *text(const char *first, const char *second) {
    __asm__ volatile(ROOM : "+r"(first), "+r"(second) : : "memory");
    return second;
}

static const char *const TEXTS[] = {"alpha", "beta", "", "gamma ray", "a text that is longer than the others", "beta"};

int main(void) {
    static struct point points[4];
    for (long i = 0; i < 60; i++) {
        struct point *p = &points[i % 4];
        p->x = (int32_t)(i * 7 - 100);
        p->y = -i * 1000003;
        for (int n = 0; n < 11; n++)
            p->name[n] = n < 3 + i % 5 ? (char)('a' + (i + n) % 26) : 0;
        p->in.low = (int16_t)(-i);
        for (int n = 0; n < 6; n++)
            p->in.bytes[n] = (uint8_t)(i * 40 + n);
        p->next = &points[(i + 1) % 4];
        work(i - 20, (unsigned long)(i * i), TEXTS[i % 6]);
        less((int)(30 - i), (short)(i % 5), (unsigned char)(i * 9));
        shape(p, (int)(i % 3));
        text(TEXTS[i % 6], TEXTS[(i + 1) % 6]);
        PASS(MARK("turn", "0", TURN), (int)(i - 5), i * 11);
        if (demo_semaphore)
            PASS(MARK("seldom", "demo_semaphore", SELDOM), i, i);
    }
    return 3;
}

/* A function that is called by code which the program makes at run time, and tells of as perf(1) wants it.
 *
 * made map N: makes two functions, writes /tmp/perf-PID.map, has each call site() N times, prints "done" and exits with status 7.
 * made dump N: the same with a jit-PID.dump in the directory that it is in, which it removes before it ends.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile long sink;

__attribute__((noinline)) void site(void) {
    __asm__ volatile("nop; nop; nop; nop; nop");
    sink++;
}

/* push rbp; mov rbp, rsp; call rdi; pop rbp; ret */
static const unsigned char CODE[] = { 0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3 };
enum { EACH = 64 };

static void put(FILE *to, const void *bytes, size_t len) {
    if (fwrite(bytes, len, 1, to) != 1) abort();
}
static void half(FILE *to, uint32_t value) { put(to, &value, sizeof value); }
static void word(FILE *to, uint64_t value) { put(to, &value, sizeof value); }

static void tell_in_map(const unsigned char *code, const char *const names[2]) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
    FILE *map = fopen(path, "w");
    for (int i = 0; i < 2; i++) fprintf(map, "%lx %x %s\n", (unsigned long)(code + EACH * i), EACH, names[i]);
    fclose(map);
}

static void line(FILE *dump, uint64_t addr, uint32_t number, const char *file) {
    word(dump, addr);
    half(dump, number);
    half(dump, 0);
    put(dump, file, strlen(file) + 1);
}

static void tell_in_dump(const unsigned char *code, const char *const names[2], const char *path) {
    FILE *dump = fopen(path, "w+");
    half(dump, 0x4A695444); half(dump, 1); half(dump, 40); half(dump, 62);
    half(dump, 0); half(dump, (uint32_t)getpid()); word(dump, 0); word(dump, 0);
    fflush(dump);
    /* So others find it. */
    if (mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fileno(dump), 0) == MAP_FAILED) abort();
    for (int i = 0; i < 2; i++) {
        uint64_t at = (uint64_t)(code + EACH * i);
        const char *file = "script.js";
        half(dump, 2); half(dump, (uint32_t)(16 + 16 + 16 + strlen(file) + 1)); word(dump, 0);
        word(dump, at); word(dump, 1);
        line(dump, at, 10 + (uint32_t)i, file);
        half(dump, 0); half(dump, (uint32_t)(16 + 40 + strlen(names[i]) + 1 + EACH)); word(dump, 0);
        half(dump, (uint32_t)getpid()); half(dump, (uint32_t)getpid());
        word(dump, at); word(dump, at); word(dump, EACH); word(dump, (uint64_t)i);
        put(dump, names[i], strlen(names[i]) + 1);
        put(dump, code + EACH * i, EACH);
    }
    fclose(dump);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    static const char *const names[2] = { "made one /app/x.js:3", "made two" };
    long calls = atol(argv[2]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) return 3;
    for (int i = 0; i < 2; i++) memcpy(code + EACH * i, CODE, sizeof CODE);
    char path[64];
    snprintf(path, sizeof path, "jit-%d.dump", getpid());
    int is_dump = strcmp(argv[1], "dump") == 0;
    if (is_dump) tell_in_dump(code, names, path); else tell_in_map(code, names);
    for (long n = 0; n < calls; n++)
        for (int i = 0; i < 2; i++) {
            void (*made)(void (*)(void));
            *(void **)&made = code + EACH * i;
            made(site);
        }
    /* Long enough for who looks every now and then. */
    usleep(400000);
    if (is_dump) unlink(path);
    puts("done");
    return 7;
}

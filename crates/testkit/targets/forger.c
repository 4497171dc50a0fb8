/* Maps what looks like the memory of a nanoprobe that was killed.
 *
 * `forger KIND VERSION`: VERSION is that of the wire format, KIND one of
 * huge     three regions of three gigabytes
 * own      regions that are this program's own memory: data, a library's code
 * lies     a header and a region of the right kind, in it the header of a trampoline whose site is precious(),
 *          with other bytes as those of the file, and precious_count as a mark's count
 * Commands on standard input:
 *   check -> check ok, or what was changed; and how many arenas are still mapped
 *   quit  -> exit status 7; so does the end of input
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD = 12288, PAGE = 4096 };

static char arena_data[PAGE * 4] __attribute__((aligned(4096)));
uint16_t precious_count = 7;

__attribute__((noinline, aligned(64))) int precious(int x) {
    __asm__ volatile("nop; nop; nop; nop; nop; nop; nop; nop");
    return x + 1;
}

static uint64_t words[16];

static void region(char *arena, int n, void *table, void *code, void *blocks, void *end) {
    uint64_t desc[4] = {(uint64_t)table, (uint64_t)code, (uint64_t)blocks, (uint64_t)end};
    memcpy(arena + 80 + 32 * n, desc, sizeof desc);
    memcpy(arena + 72, &(uint64_t){n + 1}, 8);
}

static char *make_arena(unsigned version) {
    char list[128] = "0";
    FILE *file = fopen("/sys/devices/system/cpu/possible", "r");
    if (file && !fgets(list, sizeof list, file)) return NULL;
    char *last = list;
    for (char *p = list; *p; p++)
        if (*p == '-' || *p == ',') last = p + 1;
    uint64_t copies = 3 + (uint64_t)atoi(last), len = HEAD + copies * PAGE;
    int fd = memfd_create("nanoprobe", 0);
    if (ftruncate(fd, (off_t)len)) return NULL;
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct stat ns;
    stat("/proc/self/ns/pid", &ns);
    memcpy(at, "nprobeA1", 8);
    words[1] = version | copies << 32;
    words[2] = 1; /* an object: the counts */
    words[4] = 4000000u | (uint64_t)getpid() << 32; /* a controller that is not */
    words[5] = 1;
    words[6] = ns.st_ino;
    words[7] = len;
    words[8] = 1ull << 63; /* no rseq */
    memcpy(at + 8, words + 1, 64);
    uint64_t counts[4] = {5, HEAD, copies * PAGE, PAGE};
    memcpy(at + 80 + 256 * 32, counts, sizeof counts);
    close(fd);
    return at;
}

static void *anywhere(size_t len, int prot) {
    return mmap(NULL, len, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static void huge(char *arena) {
    size_t len = 3ull << 30;
    for (int i = 0; i < 3; i++) {
        char *at = anywhere(len, PROT_READ | PROT_EXEC);
        region(arena, i, at, at, at, at + len);
    }
}

static void own(char *arena) {
    char *libc = (char *)((uintptr_t)&printf & ~(uintptr_t)4095);
    memset(arena_data, 0x5a, sizeof arena_data);
    region(arena, 0, arena_data, arena_data + PAGE, arena_data + PAGE, arena_data + 4 * PAGE);
    region(arena, 1, libc, libc, libc, libc + PAGE);
}

static void lies(char *arena) {
    char *at = anywhere(4 * PAGE, PROT_READ | PROT_WRITE);
    struct {
        uint64_t magic, site, jump_at, semaphore;
        uint32_t tail;
        uint16_t body, hook;
        unsigned char original[5], short_original[2], has_short;
    } header = {.site = (uint64_t)precious, .jump_at = (uint64_t)precious, .semaphore = (uint64_t)&precious_count, .tail = 16};
    memcpy(&header.magic, "nprobeT2", 8);
    memset(header.original, 0xcc, 5);
    char *entry = at + 2 * PAGE + 64;
    memcpy(entry - sizeof header, &header, sizeof header);
    /* The jump that would justify it stands there, but not the file's bytes in the header. */
    mprotect((void *)((uintptr_t)precious & ~(uintptr_t)4095), PAGE, PROT_READ | PROT_WRITE | PROT_EXEC);
    int32_t distance = (int32_t)(entry - ((char *)precious + 5));
    *(char *)precious = (char)0xe9;
    memcpy((char *)precious + 1, &distance, 4);
    mprotect((void *)((uintptr_t)precious & ~(uintptr_t)4095), PAGE, PROT_READ | PROT_EXEC);
    mprotect(at + PAGE, 3 * PAGE, PROT_READ | PROT_EXEC);
    region(arena, 0, at, at + PAGE, at + 2 * PAGE, at + 4 * PAGE);
}

static unsigned char code[16];

static void check(void) {
    char line[512];
    int mapped = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) mapped += strstr(line, "/memfd:nanoprobe") != NULL;
    if (maps) fclose(maps);
    const char *what = "ok";
    for (size_t i = 0; i < sizeof arena_data; i++)
        if (arena_data[i] != arena_data[0]) what = "data";
    if (memcmp(code, (void *)precious, sizeof code)) what = "code";
    if (precious_count != 7) what = "count";
    printf("check %s arenas=%d\n", what, mapped);
}

int main(int argc, char **argv) {
    char line[64];
    char *arena = make_arena(argc > 2 ? (unsigned)atoi(argv[2]) : 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!arena || argc < 3) return 1;
    if (!strcmp(argv[1], "huge")) huge(arena);
    if (!strcmp(argv[1], "own")) own(arena);
    if (!strcmp(argv[1], "lies")) lies(arena);
    memcpy(code, (void *)precious, sizeof code);
    printf("ready pid=%d\n", getpid());
    while (fgets(line, sizeof line, stdin) && strcmp(line, "quit\n")) {
        if (!strcmp(line, "check\n")) check();
    }
    return 7;
}

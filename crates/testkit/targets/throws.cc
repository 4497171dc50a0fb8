// Exceptions thrown through probed functions and caught, counted.
//
// `run N` calls thrower(), which throws through shop::middle(int), shop::middle(long) and
// call_first_middle (an assembler function whose first call is inside a patcher's window) N/8
// times on each of eight threads, and prints `calls thrower=N caught=N`. `quit` or the end of
// input ends it with 7; an exception that gets lost or changed, with 99.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <unistd.h>
#include <vector>

struct Refusal {
    uint64_t number;
};

// Pushes one register and calls thrower(), with unwind tables, in two short instructions.
asm(R"(
        .text
        .p2align 4
        .globl  call_first_middle
        .type   call_first_middle, @function
call_first_middle:
        .cfi_startproc
        pushq   %rbx
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset %rbx, 0
        call    thrower
        popq    %rbx
        .cfi_adjust_cfa_offset -8
        .cfi_restore %rbx
        ret
        .cfi_endproc
        .size   call_first_middle, . - call_first_middle
)");

extern "C" uint64_t call_first_middle(uint64_t number);

extern "C" __attribute__((noinline)) uint64_t thrower(uint64_t number) {
    if (number % 4 != 3) throw Refusal{number};
    return number;
}

namespace shop {

struct Counter {
    uint64_t &left;
    ~Counter() { left++; }
};

__attribute__((noinline)) uint64_t middle(int number, uint64_t &left) {
    Counter counter{left};
    return thrower(static_cast<uint64_t>(number)) + 1;
}

__attribute__((noinline)) uint64_t middle(long number, uint64_t &left) {
    Counter counter{left};
    return call_first_middle(static_cast<uint64_t>(number)) + 1;
}

}  // namespace shop

static std::atomic<uint64_t> caught, returned, left_behind;

static void turns(uint64_t count) {
    uint64_t left = 0;
    for (uint64_t i = 0; i < count; i++) {
        try {
            uint64_t got = i % 2 ? shop::middle(static_cast<int>(i & 0xffff), left)
                                 : shop::middle(static_cast<long>(i & 0xffff), left);
            if (got != (i & 0xffff) + 1) _exit(99);
            returned++;
        } catch (const Refusal &refusal) {
            if (refusal.number != (i & 0xffff)) _exit(99);
            caught++;
        }
    }
    left_behind += left;
}

int main() {
    char line[64];
    setvbuf(stdout, nullptr, _IOLBF, 0);
    std::printf("ready pid=%d\n", getpid());
    while (std::fgets(line, sizeof line, stdin) && std::strcmp(line, "quit\n")) {
        uint64_t calls = std::strtoul(line + 4, nullptr, 10);
        caught = returned = left_behind = 0;
        std::vector<std::thread> threads;
        for (int t = 0; t < 8; t++) threads.emplace_back(turns, calls / 8);
        for (auto &thread : threads) thread.join();
        if (caught + returned != calls || left_behind != calls) return 99;
        std::printf("calls thrower=%lu caught=%lu\n", static_cast<unsigned long>(calls),
                    static_cast<unsigned long>(caught));
    }
    return 7;
}

// Exceptions through functions of several shapes, and a destructor on the way.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

static volatile unsigned sink;
struct Guard {
    ~Guard() { sink = sink + 1; }
};
__attribute__((noinline)) static unsigned deep(unsigned n) {
    Guard guard;
    if (n == 0) throw std::runtime_error("at the end " + std::to_string(sink));
    std::vector<std::string> words(n, "word");
    return deep(n - 1) + (unsigned)words.size();
}
int main(int argc, char **argv) {
    unsigned rounds = argc > 1 ? (unsigned)std::atoi(argv[1]) : 2;
    for (unsigned n = 0; n < rounds; n++) {
        try {
            sink = deep(3);
        } catch (const std::exception &e) {
            std::string text = e.what();
            sink = sink + (unsigned)text.size();
        }
    }
    std::puts("done");
}

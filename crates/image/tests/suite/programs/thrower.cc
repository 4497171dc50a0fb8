// Classes, templates, operators and exceptions.
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

namespace ns {
struct Class {
    int value;
    __attribute__((noinline)) explicit Class(int v) : value(v) {}
    __attribute__((noinline)) int method(int x) { return value + x; }
    __attribute__((noinline)) int method(const std::string &s) { return value + (int)s.size(); }
    __attribute__((noinline)) int operator[](int i) const { return value + i; }
    __attribute__((noinline)) int operator*(int i) const { return value * i; }
    __attribute__((noinline)) int operator*=(int i) { return value *= i; }
    __attribute__((noinline)) int operator+(int i) const { return value + i + 1; }
};
template <typename T> __attribute__((noinline)) T twice(T x) { return x + x; }
}  // namespace ns

__attribute__((noinline)) int thrower(int x) {
    if (x > 1) throw std::runtime_error("too large");
    return x;
}

__attribute__((noinline)) int catcher(int x) {
    std::string held(40, 'a');
    std::vector<int> more(10, x);
    try {
        return thrower(x) + (int)held.size();
    } catch (const std::runtime_error &e) {
        return (int)more.size();
    } catch (int) {
        return 3;
    }
}

int main(int argc, char **) {
    ns::Class c(argc);
    int sum = c.method(1) + c.method(std::string("abc")) + c[2] + (c + 3) + c * 2 + (c *= 3) + ns::twice(argc) + catcher(argc) + catcher(5);
    std::printf("%d\n", sum);
    return 0;
}

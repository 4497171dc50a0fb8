// A program that loads a library, calls it at once, and unloads it.
//
// `load N` loads libm, calls its cbrt N times at once, in this thread, and prints `calls N`. `unload` unloads it and
// prints `unloaded`. `quit` or the end of input ends it with 7; a wrong result, with 99.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void require(int is_true) {
    if (!is_true) _exit(99);
}

int main(void) {
    char line[64];
    void *library = 0;
    setvbuf(stdout, 0, _IOLBF, 0);
    printf("ready pid=%d\n", getpid());
    while (fgets(line, sizeof line, stdin) && strcmp(line, "quit\n")) {
        if (!strcmp(line, "unload\n")) {
            require(dlclose(library) == 0);
            puts("unloaded");
            continue;
        }
        unsigned long calls = strtoul(line + 5, 0, 10);
        library = dlopen("libm.so.6", RTLD_NOW);
        require(library != 0);
        double (*cube_root)(double) = (double (*)(double))dlsym(library, "cbrt");
        require(cube_root != 0);
        for (unsigned long i = 0; i < calls; i++) {
            double root = cube_root((double)(i & 7));
            require(root * root * root < (double)(i & 7) + 0.01);
        }
        printf("calls %lu\n", calls);
    }
    return 7;
}

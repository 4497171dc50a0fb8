/* Loads the libraries that its arguments name and a second copy of the C library, says so, and waits for its
   input to end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (!dlopen(argv[i], RTLD_NOW)) return 2;
    void *second = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
    printf("second %p\n", second ? dlsym(second, "malloc") : NULL);
    fflush(stdout);
    return getchar() == 'x';
}

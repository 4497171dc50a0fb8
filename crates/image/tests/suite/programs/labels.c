/* A small interpreter whose jumps go through differences of labels, as in glibc's vfprintf. */
#include <stdio.h>

__attribute__((noinline)) int run(const unsigned char *code) {
    static const int table[] = {&&add - &&stop, &&sub - &&stop, &&twice - &&stop, &&neg - &&stop, &&flip - &&stop,
                                &&stop - &&stop};
    int sum = 1;
    goto *(&&stop + table[*code++]);
add:
    sum += *code++;
    goto *(&&stop + table[*code++]);
sub:
    sum -= *code++;
    goto *(&&stop + table[*code++]);
twice:
    sum *= 2;
    goto *(&&stop + table[*code++]);
neg:
    sum = -sum;
    goto *(&&stop + table[*code++]);
flip:
    sum ^= 0x55;
    goto *(&&stop + table[*code++]);
stop:
    return sum;
}

/* The same with addresses, which the loader relocates. */
__attribute__((noinline)) int run_by_address(const unsigned char *code) {
    static const void *const table[] = {&&add, &&sub, &&twice, &&neg, &&flip, &&stop};
    int sum = 1;
    goto *table[*code++];
add:
    sum += *code++;
    goto *table[*code++];
sub:
    sum -= *code++;
    goto *table[*code++];
twice:
    sum *= 2;
    goto *table[*code++];
neg:
    sum = -sum;
    goto *table[*code++];
flip:
    sum ^= 0x55;
    goto *table[*code++];
stop:
    return sum;
}

int main(int argc, char **argv) {
    const unsigned char code[] = {0, (unsigned char)argc, 1, 2, 2, 3, 4, 5};
    printf("%d\n", run(code + (argv[0] == 0)) + run_by_address(code));
    return 0;
}

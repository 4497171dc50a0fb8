/* Functions of all the forms that a plan looks at: switches, labels, tail calls, loops, returns in the middle. */
#include <stdio.h>

static volatile int sink;

__attribute__((noinline)) int by_switch(int n)
{
	switch (n) {
	case 0: sink += 3; return 1;
	case 1: sink -= 5; return 7;
	case 2: sink ^= 9; return sink;
	case 3: sink |= 17; break;
	case 4: sink = n; return by_switch(n - 1);
	case 5: sink++; break;
	case 6: sink *= 3; return -1;
	case 7: puts("seven"); break;
	default: return 0;
	}
	return sink + n;
}

__attribute__((noinline)) int by_labels(const unsigned char *code)
{
	static const void *const to[] = { &&add, &&sub, &&twice, &&end };
	static const int offsets[] = { &&add - &&add, &&sub - &&add, &&twice - &&add, &&end - &&add };
	int sum = 0;
	goto *to[*code++ & 3];
add:
	sum += 2;
	goto *to[*code++ & 3];
sub:
	sum -= 1;
	goto *(&&add + offsets[*code++ & 3]);
twice:
	sum *= 2;
	goto *to[*code++ & 3];
end:
	return sum;
}

__attribute__((noinline)) int chosen(int (*f)(int), int n)
{
	return n > 3 ? f(n) : by_switch(n);
}

__attribute__((noinline)) int loop(int n)
{
	int sum = 0;
	for (int i = 0; i < n; i++)
		sum += by_switch(i) ^ sum >> 1;
	return sum;
}

int main(int argc, char **argv)
{
	const unsigned char code[] = { 0, 1, 2, 3 };
	(void)argv;
	return (loop(argc) + by_labels(code) + chosen(loop, argc)) & 1;
}

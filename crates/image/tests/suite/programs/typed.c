/* A function whose types debug information tells. */
__attribute__((noinline)) short typed(int a, unsigned long b)
{
	return (short)(a + (int)b);
}

int main(int argc, char **argv)
{
	(void)argv;
	return typed(argc, 7) & 1;
}

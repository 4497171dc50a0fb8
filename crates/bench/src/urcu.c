/* Readers and grace periods of liburcu, measured as `bench refscale` and `bench synchronize` do.
 *
 * Compiled at bench time with -DFLAVOUR=memb|mb|qsbr|bp into a program, since its readers are inline
 * functions over thread-local storage and would be slower in a loaded library.
 *
 * read LOOPS NREADERS NRUNS DELAY   prints ns per loop, a line per run
 * sync READERS COUNT                prints ns per synchronize, a line each
 */
#define _GNU_SOURCE
#define _LGPL_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#define PASTE(a, b, c) a##b##c
#define NAME(a, b, c) PASTE(a, b, c)
#define CALL(what) NAME(urcu_, FLAVOUR, _##what)
#include URCU_HEADER

static long loops, readers, runs, delay_ns;
static atomic_long warm, done, stop, ready;

static long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void wait_ns(long ns)
{
	for (long start = now(); now() - start < ns;)
		;
}

static void pass(long n)
{
	if (!delay_ns)
		for (long i = 0; i < n; i++) {
			CALL(read_lock)();
			__asm__ volatile("" ::: "memory");
			CALL(read_unlock)();
			QUIET();
		}
	else
		for (long i = 0; i < n; i++) {
			CALL(read_lock)();
			wait_ns(delay_ns);
			CALL(read_unlock)();
			QUIET();
		}
}

static void pin(long i)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(i % sysconf(_SC_NPROCESSORS_ONLN), &set);
	sched_setaffinity(0, sizeof set, &set);
}

static void *read_one(void *arg)
{
	pin((long)arg);
	CALL(register_thread)();
	pass(loops);
	warm++;
	while (warm < readers)
		pass(loops / 16 + 1);
	long start = now();
	pass(loops);
	long ns = now() - start;
	done++;
	while (done < readers)
		pass(loops / 16 + 1);
	CALL(unregister_thread)();
	return (void *)ns;
}

static void *read_on(void *arg)
{
	pin((long)arg + 1);
	CALL(register_thread)();
	ready++;
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		pass(64);
	CALL(unregister_thread)();
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread[256];
	if (argc == 6 && !strcmp(argv[1], "read")) {
		loops = atol(argv[2]), readers = atol(argv[3]), runs = atol(argv[4]), delay_ns = atol(argv[5]);
		if (readers > 256)
			return 2;
		for (long r = 0; r < runs; r++) {
			long total = 0;
			warm = done = 0;
			for (long i = 0; i < readers; i++)
				pthread_create(&thread[i], NULL, read_one, (void *)i);
			for (long i = 0; i < readers; i++) {
				void *ns;
				pthread_join(thread[i], &ns);
				total += (long)ns;
			}
			printf("%.4f\n", (double)total / readers / loops);
		}
		return 0;
	}
	if (argc == 4 && !strcmp(argv[1], "sync")) {
		readers = atol(argv[2]);
		if (readers > 256)
			return 2;
		pin(0);
		for (long i = 0; i < readers; i++)
			pthread_create(&thread[i], NULL, read_on, (void *)i);
		while (ready < readers)
			sched_yield();
		for (long i = 0, n = atol(argv[3]); i < n; i++) {
			long start = now();
			CALL(synchronize_rcu)();
			printf("%ld\n", now() - start);
		}
		stop = 1;
		for (long i = 0; i < readers; i++)
			pthread_join(thread[i], NULL);
		return 0;
	}
	return 2;
}

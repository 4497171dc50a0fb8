/* A process that forks, vforks, spawns threads and replaces itself, while work() is called.
 *
 * Commands on standard input:
 *   fork N     N children, each calls work_child() 100 times and ends with 3
 *   vfork N    N times vfork and exec of this file with `child`: it calls work_child() 100 times and ends with 3
 *   spawn N    the same by posix_spawn
 *   nothing N  N times exec of a file that is not there
 *   threads N  N threads, each calls work() 100 times and ends
 *   linger     a child that waits; answers `lingering`
 *   release    lets that child call work_child() 100 times and end with 3
 *   exec       the file replaces itself; prints `ready` again, totals start at zero
 *   exec-thread the same from another thread than the first
 *   totals     totals work=W forks=F vforks=V threads=T (spawns are vforks)
 *   quit       totals and exit status 7; so does the end of input
 * Each answers `done COMMAND`. A child that ends otherwise than it should ends the program with 99.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CORRUPT 99
#define QUIT 7
#define CALLS 100

static _Atomic unsigned long calls;
static unsigned long forks, vforks, threads;

__attribute__((noinline)) int work(int x) {
    calls++;
    return x * 3 + 1;
}

__attribute__((noinline)) int work_child(int x) {
    __asm__ volatile("");
    return x * 5 + 2;
}

static void must(int fine, const char *what) {
    if (fine) return;
    fprintf(stderr, "forker: %s\n", what);
    _exit(CORRUPT);
}

static void work_some(void) {
    for (int i = 0; i < CALLS; i++) must(work(i) == i * 3 + 1, "work() returned a wrong value");
}

static void reap(pid_t child) {
    int status;
    must(child > 0, "no child");
    must(waitpid(child, &status, 0) == child, "waitpid failed");
    must(WIFEXITED(status) && WEXITSTATUS(status) == 3, "a child ended otherwise than with 3");
}

static void fork_one(void) {
    work_some();
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < CALLS; i++)
            if (work_child(i) != i * 5 + 2) _exit(CORRUPT);
        _exit(3);
    }
    reap(child);
    forks++;
}

static int gate[2];
static pid_t lingering;

static void linger(void) {
    must(pipe(gate) == 0, "no pipe");
    lingering = fork();
    if (lingering == 0) {
        char byte;
        if (read(gate[0], &byte, 1) != 1) _exit(CORRUPT);
        for (int i = 0; i < CALLS; i++)
            if (work_child(i) != i * 5 + 2) _exit(CORRUPT);
        _exit(3);
    }
    printf("lingering\n");
}

static void release(void) {
    must(write(gate[1], "x", 1) == 1, "no one at the gate");
    reap(lingering);
    close(gate[0]);
    close(gate[1]);
}

static void vfork_one(void) {
    work_some();
    pid_t child = vfork();
    if (child == 0) {
        execl("/proc/self/exe", "forker", "child", (char *)NULL);
        _exit(CORRUPT);
    }
    reap(child);
    vforks++;
}

static void spawn_one(void) {
    char *words[] = {"forker", "child", NULL};
    pid_t child;
    must(posix_spawn(&child, "/proc/self/exe", NULL, NULL, words, environ) == 0, "posix_spawn failed");
    reap(child);
    vforks++;
}

static void nothing_one(void) {
    must(execl("/nonexistent/program", "program", (char *)NULL) == -1 && errno == ENOENT, "exec of nothing");
    work_some();
}

static void *exec_main(void *unused) {
    execl("/proc/self/exe", "forker", (char *)NULL);
    must(0, "exec failed");
    return unused;
}

static void exec_in_thread(void) {
    pthread_t thread;
    must(pthread_create(&thread, NULL, exec_main, NULL) == 0, "no thread");
    for (;;) pause();
}

static void *thread_main(void *unused) {
    work_some();
    return unused;
}

static void thread_one(void) {
    pthread_t thread;
    must(pthread_create(&thread, NULL, thread_main, NULL) == 0, "no thread");
    must(pthread_join(thread, NULL) == 0, "no join");
    threads++;
}

static void totals(void) {
    printf("totals work=%lu forks=%lu vforks=%lu threads=%lu\n", (unsigned long)calls, forks,
           vforks, threads);
}

int main(int argc, char **argv) {
    char line[64], word[32];
    setvbuf(stdout, NULL, _IOLBF, 0);
    setvbuf(stdin, NULL, _IONBF, 0); /* so that exec loses no command */
    if (argc > 1 && !strcmp(argv[1], "child")) {
        for (int i = 0; i < CALLS; i++) must(work_child(i) == i * 5 + 2, "work_child() returned a wrong value");
        return 3;
    }
    printf("ready pid=%d\n", getpid());
    while (fgets(line, sizeof line, stdin)) {
        unsigned long times = 0;
        if (sscanf(line, "%31s %lu", word, &times) < 1) continue;
        if (!strcmp(word, "quit")) break;
        if (!strcmp(word, "exec")) {
            execl("/proc/self/exe", "forker", (char *)NULL);
            must(0, "exec failed");
        }
        if (!strcmp(word, "exec-thread")) exec_in_thread();
        if (!strcmp(word, "linger")) linger();
        if (!strcmp(word, "release")) release();
        for (unsigned long i = 0; i < times; i++) {
            if (!strcmp(word, "fork")) fork_one();
            if (!strcmp(word, "vfork")) vfork_one();
            if (!strcmp(word, "spawn")) spawn_one();
            if (!strcmp(word, "nothing")) nothing_one();
            if (!strcmp(word, "threads")) thread_one();
        }
        if (!strcmp(word, "totals"))
            totals();
        else
            printf("done %s\n", word);
    }
    totals();
    return QUIT;
}

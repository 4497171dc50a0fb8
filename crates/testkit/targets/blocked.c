/* Threads that wait in system calls, one in each, and notice whatever disturbs them.
 *
 *   blocked all MS        all at once, then commands on standard input
 *   blocked only NAME MS  that one on the main thread, in a process of one thread; ends by itself
 *
 * Prints `ready pid=PID` when all of them sleep (with `only`: just before). `check` wakes those that
 * wait for ever, lets the others time out, and prints a line for each:
 *   NAME ret=R errno=E elapsed_ms=T expected_ms=X no_cpu_ms=D verdict
 * The verdict is `unharmed`, or `harmed` if the result is not the one that an undisturbed call has.
 * An elapsed time is judged by the reader; for D of it the thread could have run and had no CPU. Ends
 * with 0, or with 99 if any call was harmed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HARMED 99
#define FOREVER (-1)

static long wait_ms;

static long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static struct timespec wait_span(void) {
    return (struct timespec){wait_ms / 1000, wait_ms % 1000 * 1000000};
}

static struct timeval wait_val(void) {
    return (struct timeval){wait_ms / 1000, wait_ms % 1000 * 1000};
}

static struct timespec wait_until(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_sec += wait_ms / 1000;
    t.tv_nsec += wait_ms % 1000 * 1000000;
    if (t.tv_nsec >= 1000000000) t.tv_nsec -= 1000000000, t.tv_sec++;
    return t;
}

/* What the woken ones wait on. */
static int pipe_fds[2], epoll_forever_fd, epoll_wake_fd, event_fd, listen_fd, sem_id, msg_id, inotify_fd;
static int quiet_pair[2], flag_file;
static _Atomic uint32_t futex_finite, futex_forever;
static sem_t sem_never;
static pid_t child;
static pthread_t paused, awaited, suspended;
static struct sockaddr_un address;

static void nothing(int signal) { (void)signal; }

/* ---- waits that end by themselves: with a timeout ---- */

static long do_nanosleep(void) {
    struct timespec span = wait_span();
    return syscall(SYS_nanosleep, &span, NULL);
}
static long do_clock_nanosleep_abs(void) {
    struct timespec at = wait_until(CLOCK_MONOTONIC);
    long r = syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    return r;
}
static long do_poll(void) {
    struct pollfd fd = {quiet_pair[0], POLLIN, 0};
    return syscall(SYS_poll, &fd, 1, (int)wait_ms);
}
static long do_ppoll(void) {
    struct pollfd fd = {quiet_pair[0], POLLIN, 0};
    struct timespec span = wait_span();
    return syscall(SYS_ppoll, &fd, 1, &span, NULL, 8);
}
static long do_select(void) {
    fd_set set;
    struct timeval span = wait_val();
    FD_ZERO(&set);
    FD_SET(quiet_pair[0], &set);
    return syscall(SYS_select, quiet_pair[0] + 1, &set, NULL, NULL, &span);
}
static long do_futex(void) {
    struct timespec span = wait_span();
    return syscall(SYS_futex, &futex_finite, FUTEX_WAIT_PRIVATE, 0, &span, NULL, 0);
}
static long do_sem_timedwait(void) {
    struct timespec at = wait_until(CLOCK_REALTIME);
    return sem_timedwait(&sem_never, &at);
}
static long do_epoll_wait(void) {
    struct epoll_event event;
    int fd = epoll_create1(EPOLL_CLOEXEC);
    return syscall(SYS_epoll_wait, fd, &event, 1, (int)wait_ms);
}
static long do_epoll_pwait(void) {
    struct epoll_event event;
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    int fd = epoll_create1(EPOLL_CLOEXEC);
    return syscall(SYS_epoll_pwait, fd, &event, 1, (int)wait_ms, &mask, 8);
}
static long do_sigtimedwait(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 5);
    struct timespec span = wait_span();
    return syscall(SYS_rt_sigtimedwait, &set, NULL, &span, 8);
}
static long do_semtimedop(void) {
    struct sembuf op = {1, -1, 0};
    struct timespec span = wait_span();
    return syscall(SYS_semtimedop, sem_id, &op, 1, &span);
}
static long do_recv_timeout(void) {
    char byte;
    struct timeval span = wait_val();
    setsockopt(quiet_pair[1], SOL_SOCKET, SO_RCVTIMEO, &span, sizeof span);
    return syscall(SYS_recvfrom, quiet_pair[1], &byte, 1, 0, NULL, NULL);
}
static long do_timerfd_read(void) {
    uint64_t ticks;
    struct itimerspec span = {{0, 0}, wait_span()};
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    timerfd_settime(fd, 0, &span, NULL);
    return syscall(SYS_read, fd, &ticks, sizeof ticks);
}

/* ---- waits that `check` ends ---- */

static long do_read_pipe(void) {
    char byte;
    return syscall(SYS_read, pipe_fds[0], &byte, 1);
}
static long do_futex_forever(void) {
    return syscall(SYS_futex, &futex_forever, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}
static long do_epoll_forever(void) {
    struct epoll_event event;
    return syscall(SYS_epoll_wait, epoll_forever_fd, &event, 1, -1);
}
static long do_sigwaitinfo(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 6);
    awaited = pthread_self();
    return syscall(SYS_rt_sigtimedwait, &set, NULL, NULL, 8);
}
static long do_accept(void) {
    int fd = (int)syscall(SYS_accept4, listen_fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return fd;
    close(fd);
    return 1;
}
static long do_pause(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 7);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    paused = pthread_self();
    return syscall(SYS_pause);
}
static long do_sigsuspend(void) {
    sigset_t mask;
    sigfillset(&mask);
    sigdelset(&mask, SIGRTMIN + 8);
    suspended = pthread_self();
    return syscall(SYS_rt_sigsuspend, &mask, 8);
}
static long do_semop(void) {
    struct sembuf op = {0, -1, 0};
    return syscall(SYS_semop, sem_id, &op, 1);
}
static long do_msgrcv(void) {
    struct {
        long type;
        char text[8];
    } message;
    return syscall(SYS_msgrcv, msg_id, &message, sizeof message.text, 0, 0);
}
static long do_waitpid(void) {
    int status;
    long r = syscall(SYS_wait4, child, &status, 0, NULL);
    return r == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
static long do_eventfd(void) {
    uint64_t value;
    return syscall(SYS_read, event_fd, &value, sizeof value);
}
static long do_inotify(void) {
    char events[512];
    return syscall(SYS_read, inotify_fd, events, sizeof events) > 0 ? 1 : -1;
}
static long do_setlkw(void) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    return syscall(SYS_fcntl, flag_file, F_OFD_SETLKW, &lock);
}

static int lock_holder;

static struct wait {
    const char *name;
    long (*call)(void);
    int forever;
    long want;
    int want_errno;
    _Atomic int started;
    long ret, elapsed, no_cpu;
    int error;
} waits[] = {
    {"nanosleep", do_nanosleep, 0, 0, 0, 0, 0, 0, 0},
    {"clock_nanosleep_abs", do_clock_nanosleep_abs, 0, 0, 0, 0, 0, 0, 0},
    {"poll", do_poll, 0, 0, 0, 0, 0, 0, 0},
    {"ppoll", do_ppoll, 0, 0, 0, 0, 0, 0, 0},
    {"select", do_select, 0, 0, 0, 0, 0, 0, 0},
    {"futex", do_futex, 0, -1, ETIMEDOUT, 0, 0, 0, 0},
    {"sem_timedwait", do_sem_timedwait, 0, -1, ETIMEDOUT, 0, 0, 0, 0},
    {"epoll_wait", do_epoll_wait, 0, 0, 0, 0, 0, 0, 0},
    {"epoll_pwait", do_epoll_pwait, 0, 0, 0, 0, 0, 0, 0},
    {"sigtimedwait", do_sigtimedwait, 0, -1, EAGAIN, 0, 0, 0, 0},
    {"semtimedop", do_semtimedop, 0, -1, EAGAIN, 0, 0, 0, 0},
    {"recv_timeout", do_recv_timeout, 0, -1, EAGAIN, 0, 0, 0, 0},
    {"timerfd_read", do_timerfd_read, 0, 8, 0, 0, 0, 0, 0},
    {"read_pipe", do_read_pipe, 1, 1, 0, 0, 0, 0, 0},
    {"futex_forever", do_futex_forever, 1, 0, 0, 0, 0, 0, 0},
    {"epoll_forever", do_epoll_forever, 1, 1, 0, 0, 0, 0, 0},
    {"sigwaitinfo", do_sigwaitinfo, 1, 0, 0, 0, 0, 0, 0},
    {"accept", do_accept, 1, 1, 0, 0, 0, 0, 0},
    {"pause", do_pause, 1, -1, EINTR, 0, 0, 0, 0},
    {"sigsuspend", do_sigsuspend, 1, -1, EINTR, 0, 0, 0, 0},
    {"semop", do_semop, 1, 0, 0, 0, 0, 0, 0},
    {"msgrcv", do_msgrcv, 1, 3, 0, 0, 0, 0, 0},
    {"waitpid", do_waitpid, 1, 5, 0, 0, 0, 0, 0},
    {"eventfd", do_eventfd, 1, 8, 0, 0, 0, 0, 0},
    {"inotify", do_inotify, 1, 1, 0, 0, 0, 0, 0},
    {"setlkw", do_setlkw, 1, 0, 0, 0, 0, 0, 0},
};
#define WAITS (sizeof waits / sizeof waits[0])

static long woken_at;

/* How long this thread could have run and had no CPU, in all. */
static long no_cpu_ms(void) {
    unsigned long long ran = 0, waited = 0;
    FILE *file = fopen("/proc/thread-self/schedstat", "re");
    if (file && fscanf(file, "%llu %llu", &ran, &waited) != 2) waited = 0;
    if (file) fclose(file);
    return waited / 1000000;
}

static void wait_in(struct wait *wait) {
    long begin = now_ms(), no_cpu = no_cpu_ms();
    atomic_store(&wait->started, gettid());
    errno = 0;
    wait->ret = wait->call();
    wait->error = wait->ret < 0 ? errno : 0;
    wait->elapsed = now_ms() - (wait->forever ? woken_at : begin);
    wait->no_cpu = no_cpu_ms() - no_cpu;
}

static void *wait_thread(void *wait) {
    wait_in(wait);
    return NULL;
}

/* Returns when the thread sleeps, as the kernel sees it. */
static void until_asleep(const struct wait *wait) {
    char path[64], stat[256];
    while (!atomic_load(&wait->started)) usleep(100);
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", atomic_load(&wait->started));
    for (;;) {
        FILE *file = fopen(path, "re");
        size_t n = file ? fread(stat, 1, sizeof stat - 1, file) : 0;
        if (file) fclose(file);
        stat[n] = 0;
        char *state = strrchr(stat, ')');
        if (!state || state[2] == 'S') return;
        usleep(100);
    }
}

static int report(const struct wait *wait) {
    long want = wait->want;
    if (!strcmp(wait->name, "sigwaitinfo")) want = SIGRTMIN + 6;
    int harmed = wait->ret != want || wait->error != wait->want_errno ||
                 (wait->forever && wait->elapsed < 0);
    printf("%s ret=%ld errno=%d elapsed_ms=%ld expected_ms=%ld no_cpu_ms=%ld %s\n", wait->name, wait->ret,
           wait->error, wait->elapsed, wait->forever ? 0 : wait_ms, wait->no_cpu,
           harmed ? "harmed" : "unharmed");
    return harmed;
}

static void need(int ok, const char *what) {
    if (ok) return;
    perror(what);
    exit(1);
}

static char directory[] = "/tmp/nanoprobe-blocked-XXXXXX";
static char touched[64], locked[64];

static void set_up(void) {
    need(pipe(pipe_fds) == 0, "pipe");
    need(socketpair(AF_UNIX, SOCK_DGRAM, 0, quiet_pair) == 0, "socketpair");
    event_fd = eventfd(0, EFD_CLOEXEC);
    epoll_forever_fd = epoll_create1(EPOLL_CLOEXEC);
    epoll_wake_fd = eventfd(0, EFD_CLOEXEC);
    struct epoll_event in = {.events = EPOLLIN};
    need(epoll_ctl(epoll_forever_fd, EPOLL_CTL_ADD, epoll_wake_fd, &in) == 0, "epoll_ctl");
    futex_finite = futex_forever = 0;
    sem_init(&sem_never, 0, 0);

    listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path + 1, 64, "nanoprobe-blocked-%d", getpid());
    need(bind(listen_fd, (struct sockaddr *)&address, sizeof address) == 0, "bind");
    need(listen(listen_fd, 1) == 0, "listen");

    need((sem_id = semget(IPC_PRIVATE, 2, 0600)) >= 0, "semget");
    need((msg_id = msgget(IPC_PRIVATE, 0600)) >= 0, "msgget");

    need(mkdtemp(directory) != NULL, "mkdtemp");
    snprintf(touched, sizeof touched, "%s/touched", directory);
    snprintf(locked, sizeof locked, "%s/locked", directory);
    inotify_fd = inotify_init1(IN_CLOEXEC);
    need(inotify_add_watch(inotify_fd, directory, IN_DELETE) >= 0, "inotify_add_watch");
    close(open(touched, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    lock_holder = open(locked, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    flag_file = open(locked, O_RDWR | O_CLOEXEC);
    need(fcntl(lock_holder, F_OFD_SETLKW, &lock) == 0, "F_OFD_SETLKW");

    struct sigaction act = {.sa_handler = nothing};
    sigaction(SIGRTMIN + 7, &act, NULL);
    sigaction(SIGRTMIN + 8, &act, NULL);
    sigset_t set;
    sigemptyset(&set);
    for (int s = 5; s <= 8; s++) sigaddset(&set, SIGRTMIN + s);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static void tear_down(void) {
    semctl(sem_id, 0, IPC_RMID);
    msgctl(msg_id, IPC_RMID, NULL);
    unlink(touched);
    unlink(locked);
    rmdir(directory);
}

static int fork_child(void) {
    int gate[2];
    need(pipe2(gate, O_CLOEXEC) == 0, "pipe2");
    child = fork();
    need(child >= 0, "fork");
    if (child == 0) {
        char byte;
        close(gate[1]);
        if (read(gate[0], &byte, 1) < 0) _exit(6);
        _exit(5);
    }
    close(gate[0]);
    return gate[1];
}

static void wake_all(int release_child) {
    struct {
        long type;
        char text[8];
    } message = {1, "abc"};
    struct sembuf up = {0, 1, 0};
    uint64_t one = 1;
    struct flock unlock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_len = 1};

    woken_at = now_ms();
    need(write(pipe_fds[1], "x", 1) == 1, "write");
    syscall(SYS_futex, &futex_forever, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    need(write(epoll_wake_fd, &one, sizeof one) == sizeof one, "write to eventfd");
    pthread_kill(awaited, SIGRTMIN + 6);
    pthread_kill(paused, SIGRTMIN + 7);
    pthread_kill(suspended, SIGRTMIN + 8);
    int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    connect(client, (struct sockaddr *)&address, sizeof address);
    semop(sem_id, &up, 1);
    msgsnd(msg_id, &message, 3, 0);
    close(release_child);
    need(write(event_fd, &one, sizeof one) == sizeof one, "write to eventfd");
    unlink(touched);
    fcntl(lock_holder, F_OFD_SETLK, &unlock);
    close(client);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    int harmed = 0;
    if (argc == 4 && !strcmp(argv[1], "only")) {
        wait_ms = atol(argv[3]);
        set_up();
        printf("ready pid=%d\n", getpid());
        for (size_t w = 0; w < WAITS; w++)
            if (!strcmp(waits[w].name, argv[2]) && !waits[w].forever) {
                wait_in(&waits[w]);
                harmed |= report(&waits[w]);
            }
        tear_down();
        return harmed ? HARMED : 0;
    }
    if (argc != 3 || strcmp(argv[1], "all")) {
        fprintf(stderr, "usage: blocked all MS | blocked only NAME MS\n");
        return 1;
    }
    wait_ms = atol(argv[2]);
    int release_child = fork_child();
    set_up();
    pthread_t threads[WAITS];
    for (size_t w = 0; w < WAITS; w++) pthread_create(&threads[w], NULL, wait_thread, &waits[w]);
    for (size_t w = 0; w < WAITS; w++) until_asleep(&waits[w]);
    printf("ready pid=%d\n", getpid());

    char line[64];
    if (fgets(line, sizeof line, stdin) == NULL || strcmp(line, "check\n")) {
        tear_down();
        return 1;
    }
    wake_all(release_child);
    for (size_t w = 0; w < WAITS; w++) pthread_join(threads[w], NULL);
    for (size_t w = 0; w < WAITS; w++) harmed |= report(&waits[w]);
    tear_down();
    return harmed ? HARMED : 0;
}

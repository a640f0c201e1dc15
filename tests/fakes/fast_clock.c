// Time that runs faster for one process: preloaded, every clock that it reads and every wait that it makes is scaled.
// And a wall clock that jumps: by as many nanoseconds as the file in SHARER_CLOCK_JUMP says at the moment.
//
// The process starts at the true time; from then on SHARER_CLOCK_RATE of its seconds pass in each of ours. Or, if the
// file in SHARER_CLOCK_PACE is named, from the moment on that is in it: by the monotonic clock, in nanoseconds, and then
// the rate, 0 for as long as it is not known. Waits that have begun before go on as long as they would have. Waits are
// those of CPython 3.11 to 3.14 (locks, sleep, select) and of gRPC's core (poll, condition variables, futexes). Clocks
// that count a process's CPU time stay as they are, as do the times of files.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define REAL(name) ((__typeof__(&name))real(#name))

static struct pace {
    long long since_ns, rate;  // it holds from then on; before, the time is the true one
} given = {0, 1};
static const volatile struct pace *pace = &given;
static long long start_ns[CLOCK_BOOTTIME + 1];
static const volatile long long *jump_ns = NULL;

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);  // glibc keeps what it finds; a look-up takes less than a microsecond
    if (found == NULL)
        abort();
    return found;
}

static long long in_ns(struct timespec time) { return time.tv_sec * SECOND + time.tv_nsec; }

static struct timespec as_time(long long ns) {
    return (struct timespec){.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};
}

static int clock_of(clockid_t clock) {  // which start counts for it; -1: it is not scaled
    switch (clock) {
    case CLOCK_REALTIME_COARSE: return CLOCK_REALTIME;
    case CLOCK_MONOTONIC_COARSE: return CLOCK_MONOTONIC;
    case CLOCK_REALTIME: case CLOCK_MONOTONIC: case CLOCK_MONOTONIC_RAW: case CLOCK_BOOTTIME: return clock;
    default: return -1;
    }
}

static const void *mapped(const char *name, size_t size) {
    int file = open(name, O_RDONLY | O_CLOEXEC);
    void *found = file < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
    if (found == MAP_FAILED)
        abort();
    close(file);
    return found;
}

__attribute__((constructor)) static void begin(void) {
    const clockid_t clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_BOOTTIME};
    for (size_t i = 0; i < sizeof clocks / sizeof *clocks; i++) {
        struct timespec now;
        REAL(clock_gettime)(clocks[i], &now);
        start_ns[clocks[i]] = in_ns(now);
    }
    const char *rate = getenv("SHARER_CLOCK_RATE"), *pace_file = getenv("SHARER_CLOCK_PACE");
    if (rate != NULL)
        given = (struct pace){start_ns[CLOCK_MONOTONIC], atoll(rate)};
    if (given.rate < 1)
        abort();
    if (pace_file != NULL)
        pace = mapped(pace_file, sizeof *pace);
    const char *jumps = getenv("SHARER_CLOCK_JUMP");
    if (jumps != NULL)
        jump_ns = mapped(jumps, sizeof *jump_ns);
}

static struct pace present(void) {  // read once for each use: it may change in the middle
    long long rate = pace->rate;
    return rate > 1 ? (struct pace){pace->since_ns - start_ns[CLOCK_MONOTONIC], rate} : (struct pace){0, 1};
}

static long long jumped(int clock) { return clock == CLOCK_REALTIME && jump_ns != NULL ? *jump_ns : 0; }

// -- how long, and until when, in our time; rounded up, so that nothing is over too early

static long long shorter(long long duration, long long rate) {
    return duration <= 0 ? duration : (duration + rate - 1) / rate;
}

static struct timespec duration(const struct timespec *theirs) {
    return as_time(shorter(in_ns(*theirs), present().rate));
}

static struct timespec until(clockid_t clock, const struct timespec *theirs) {
    int known = clock_of(clock);
    if (known < 0)
        return *theirs;
    long long waiting = in_ns(*theirs) - jumped(known) - start_ns[known];
    if (waiting <= 0)
        return *theirs;
    struct pace now = present();
    long long before = waiting < now.since_ns ? waiting : now.since_ns;
    return as_time(start_ns[known] + before + shorter(waiting - before, now.rate));
}

static clockid_t guessed(const struct timespec *theirs) {  // of a condition variable; it does not tell
    return theirs->tv_sec > start_ns[CLOCK_REALTIME] / SECOND / 2 ? CLOCK_REALTIME : CLOCK_MONOTONIC;
}

// -- what time it is

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = REAL(clock_gettime)(clock, now), known = clock_of(clock);
    if (result == 0 && known >= 0 && start_ns[known] != 0) {
        struct pace then = present();
        long long passed = in_ns(*now) - start_ns[known], before = passed < then.since_ns ? passed : then.since_ns;
        *now = as_time(start_ns[known] + before + (passed - before) * then.rate + jumped(known));
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec found;
    int result = clock_gettime(CLOCK_REALTIME, &found);
    *now = (struct timeval){.tv_sec = found.tv_sec, .tv_usec = found.tv_nsec / 1000};
    return result;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into != NULL)
        *into = now.tv_sec;
    return now.tv_sec;
}

// -- waiting for a time

int nanosleep(const struct timespec *wanted, struct timespec *left) {
    struct timespec ours = duration(wanted);
    return REAL(nanosleep)(&ours, left);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *wanted, struct timespec *left) {
    struct timespec ours = flags & TIMER_ABSTIME ? until(clock, wanted) : duration(wanted);
    return REAL(clock_nanosleep)(clock, flags, &ours, left);
}

// -- waiting for each other

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict deadline) {
    struct timespec ours = until(CLOCK_REALTIME, deadline);
    return REAL(sem_timedwait)(semaphore, &ours);
}

int sem_clockwait(sem_t *restrict semaphore, clockid_t clock, const struct timespec *restrict deadline) {
    struct timespec ours = until(clock, deadline);
    return REAL(sem_clockwait)(semaphore, clock, &ours);
}

int pthread_cond_timedwait(
    pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, const struct timespec *restrict deadline
) {
    struct timespec ours = until(guessed(deadline), deadline);
    return REAL(pthread_cond_timedwait)(condition, mutex, &ours);
}

int pthread_cond_clockwait(
    pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, clockid_t clock,
    const struct timespec *restrict deadline
) {
    struct timespec ours = until(clock, deadline);
    return REAL(pthread_cond_clockwait)(condition, mutex, clock, &ours);
}

long syscall(long number, ...) {
    va_list list;
    va_start(list, number);
    long a[6];
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    struct timespec ours;
    if (number == SYS_futex && a[3] != 0) {
        const struct timespec *theirs = (const struct timespec *)a[3];
        int command = (int)a[1] & FUTEX_CMD_MASK;
        if (command == FUTEX_WAIT)
            ours = duration(theirs);
        else if (command == FUTEX_WAIT_BITSET)
            ours = until((int)a[1] & FUTEX_CLOCK_REALTIME ? CLOCK_REALTIME : CLOCK_MONOTONIC, theirs);
        if (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET)
            a[3] = (long)&ours;
    }
    return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

// -- waiting for files

static int in_ms(int theirs) { return (int)shorter(theirs, present().rate); }

int poll(struct pollfd *files, nfds_t count, int timeout_ms) {
    return REAL(poll)(files, count, in_ms(timeout_ms));
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms) {
    return REAL(epoll_wait)(epoll, events, most, in_ms(timeout_ms));
}

int select(
    int most, fd_set *restrict in, fd_set *restrict out, fd_set *restrict odd, struct timeval *restrict timeout
) {
    if (timeout == NULL)
        return REAL(select)(most, in, out, odd, NULL);
    long long us = shorter(timeout->tv_sec * 1000000LL + timeout->tv_usec, present().rate);
    struct timeval ours = {.tv_sec = us / 1000000, .tv_usec = us % 1000000};
    return REAL(select)(most, in, out, odd, &ours);
}

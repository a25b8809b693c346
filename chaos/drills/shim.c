/* Stands between a node and its C library, and does what the control file says: slow disks, failing fsyncs, writes that
 * a power cut takes back, and clocks that are wrong. Loaded by LD_PRELOAD; chaos/drills/shim.py is the other half.
 *
 * Disk: files below SHIM_DIR. While it records, what a write covers is kept in the undo file before it is written, and a
 * flush that has come back makes what came before it void; so the undo file says what no flush covers.
 *
 * Clock: only what the interpreter reads (SHIM_CALLER is in the path of its code). gRPC hands absolute deadlines to the
 * kernel, whose clock is right. The interpreter's own absolute deadlines are turned back before the kernel sees them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* The control file; shim.py writes each field as one aligned word. */
struct control {
    int64_t delay_us;     /* before each flush */
    int64_t flush_errno;  /* what each flush fails with; 0: none fails */
    int64_t record;       /* keep what no flush covers */
    int64_t jump_ns;      /* added to the wall clock */
    int64_t rate_ppm;     /* how much faster all clocks run */
    int64_t rate_from_ns; /* since when, by the true monotonic clock */
    int64_t flushes;      /* counted here, for the drill to read */
    int64_t wrong_times;  /* readings of clocks that were changed */
};

/* One write, as the undo file has it; ``size`` bytes of old content follow. Kind 2: a flush that covers all before
 * ``offset`` bytes of the undo file. */
struct undo {
    int64_t kind, inode, offset, size, length, file_size;
};

#define SLICE_US 5000

static volatile struct control *control;
static char directory[PATH_MAX], caller[64];
static size_t directory_length;
static int undo_fd = -1;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

#define REAL(result, name, ...) \
    static result (*real_##name)(__VA_ARGS__); \
    if (!real_##name) real_##name = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static int64_t ns_of(const struct timespec *t) { return t->tv_sec * 1000000000LL + t->tv_nsec; }

static void to_timespec(int64_t ns, struct timespec *t) {
    t->tv_sec = ns / 1000000000LL;
    t->tv_nsec = ns % 1000000000LL;
}

static int true_time(clockid_t clock, struct timespec *t) {
    REAL(int, clock_gettime, clockid_t, struct timespec *);
    return real_clock_gettime(clock, t);
}

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("SHIM_CONTROL"), *below = getenv("SHIM_DIR"), *undo = getenv("SHIM_UNDO");
    const char *who = getenv("SHIM_CALLER");
    if (!path || !below || !undo || !who) return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *found = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (found == MAP_FAILED) return;
    snprintf(directory, sizeof directory, "%s", below);
    snprintf(caller, sizeof caller, "%s", who);
    directory_length = strlen(directory);
    undo_fd = open(undo, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    control = found;
}

/* Disk. */

static int is_ours(int fd, struct stat *about) {
    char link[64], path[PATH_MAX];
    if (!control || fd == undo_fd) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    if (length < (ssize_t)directory_length || memcmp(path, directory, directory_length)) return 0;
    return fstat(fd, about) == 0 && S_ISREG(about->st_mode);
}

static void say(const void *bytes, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t);
    if (real_write(undo_fd, bytes, size) != (ssize_t)size) abort(); /* a drill that cannot take back proves nothing */
}

/* Keeps what a write will cover. To be called with the turn held. */
static void keep(int fd, const struct stat *about, int64_t offset, int64_t length) {
    int64_t old = about->st_size > offset ? about->st_size - offset : 0;
    if (old > length) old = length;
    struct undo head = {1, about->st_ino, offset, old, length, about->st_size};
    char *bytes = malloc(sizeof head + old);
    if (!bytes) abort();
    ssize_t got = old ? pread(fd, bytes + sizeof head, old, offset) : 0;
    if (got < 0) { /* opened for writing only */
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        int readable = open(link, O_RDONLY | O_CLOEXEC);
        got = readable < 0 ? -1 : pread(readable, bytes + sizeof head, old, offset);
        if (readable >= 0) close(readable);
    }
    if (got != old) abort();
    memcpy(bytes, &head, sizeof head);
    say(bytes, sizeof head + old);
    free(bytes);
}

static int64_t length_of(const struct iovec *parts, int count) {
    int64_t length = 0;
    for (int i = 0; i < count; i++) length += parts[i].iov_len;
    return length;
}

/* A file that is opened so flushes each write by itself. */
static int flushes_itself(int fd) { return fcntl(fd, F_GETFL) & (O_DSYNC | O_SYNC); }

static int flush_fails(void) {
    /* In slices, so that a disk that stands still goes on when it is told to. */
    for (int64_t waited_us = 0; waited_us < control->delay_us; waited_us += SLICE_US) {
        struct timespec pause;
        to_timespec(SLICE_US * 1000, &pause);
        while (nanosleep(&pause, &pause) && errno == EINTR) continue;
    }
    __atomic_add_fetch(&control->flushes, 1, __ATOMIC_RELAXED);
    errno = (int)control->flush_errno;
    return errno != 0;
}

#define WRITING(result_t, offset_, length_, call) \
    do { \
        struct stat about; \
        if (!is_ours(fd, &about)) return call; \
        if (flushes_itself(fd)) return flush_fails() ? -1 : call; \
        if (!control->record) return call; \
        pthread_mutex_lock(&turn); \
        fstat(fd, &about); \
        keep(fd, &about, offset_, length_); \
        result_t result = call; \
        int error = errno; \
        pthread_mutex_unlock(&turn); \
        errno = error; \
        return result; \
    } while (0)

static int64_t place_of(int fd, const struct stat *about) {
    return fcntl(fd, F_GETFL) & O_APPEND ? about->st_size : lseek(fd, 0, SEEK_CUR);
}

ssize_t write(int fd, const void *bytes, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t);
    WRITING(ssize_t, place_of(fd, &about), size, real_write(fd, bytes, size));
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    WRITING(ssize_t, place_of(fd, &about), length_of(parts, count), real_writev(fd, parts, count));
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t offset) {
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    WRITING(ssize_t, offset, size, real_pwrite64(fd, bytes, size, offset));
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset) { return pwrite64(fd, bytes, size, offset); }

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags) {
    REAL(ssize_t, pwritev64v2, int, const struct iovec *, int, off64_t, int);
    WRITING(ssize_t, offset, length_of(parts, count), real_pwritev64v2(fd, parts, count, offset, flags));
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return pwritev64v2(fd, parts, count, offset, flags);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    return pwritev64v2(fd, parts, count, offset, 0);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    return pwritev64v2(fd, parts, count, offset, 0);
}

/* A flush covers what was written before it began, and counts once it has come back. */
static int flush(int fd, int (*real)(int)) {
    struct stat about;
    if (!is_ours(fd, &about)) return real(fd);
    if (flush_fails()) return -1;
    pthread_mutex_lock(&turn);
    int64_t covered = lseek(undo_fd, 0, SEEK_END);
    pthread_mutex_unlock(&turn);
    int result = real(fd);
    if (result == 0 && control->record) {
        struct undo done = {2, about.st_ino, covered, 0, 0, 0};
        pthread_mutex_lock(&turn);
        say(&done, sizeof done);
        pthread_mutex_unlock(&turn);
    }
    return result;
}

int fsync(int fd) {
    REAL(int, fsync, int);
    return flush(fd, real_fsync);
}

int fdatasync(int fd) {
    REAL(int, fdatasync, int);
    return flush(fd, real_fdatasync);
}

/* Clock. */

static int is_caller(const void *from) {
    Dl_info about;
    if (!control || (!control->jump_ns && !control->rate_ppm)) return 0;
    return dladdr(from, &about) && about.dli_fname && strstr(about.dli_fname, caller);
}

static int is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

static int goes_on(clockid_t clock) {
    return clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_MONOTONIC_COARSE ||
           clock == CLOCK_BOOTTIME;
}

static void make_wrong(clockid_t clock, struct timespec *t) {
    int wall = is_wall(clock);
    if (!wall && !goes_on(clock)) return;
    struct timespec true_now;
    true_time(CLOCK_MONOTONIC, &true_now);
    int64_t now = ns_of(t), since = ns_of(&true_now) - control->rate_from_ns;
    int64_t more = since / 1000000 * control->rate_ppm + (wall ? control->jump_ns : 0);
    if (!more) return;
    __atomic_add_fetch(&control->wrong_times, 1, __ATOMIC_RELAXED);
    to_timespec(now + more, t);
}

/* When a deadline by our clock is due by the kernel's. */
static struct timespec kernels(clockid_t clock, const struct timespec *due) {
    struct timespec now, ours, turned;
    true_time(clock, &now);
    ours = now;
    make_wrong(clock, &ours);
    to_timespec(ns_of(&now) + (ns_of(due) - ns_of(&ours)), &turned);
    if (turned.tv_sec < 0 || turned.tv_nsec < 0) turned = now;
    return turned;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    int result = true_time(clock, t);
    if (result == 0 && is_caller(__builtin_return_address(0))) make_wrong(clock, t);
    return result;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    REAL(int, gettimeofday, struct timeval *, void *);
    int result = real_gettimeofday(t, zone);
    if (result == 0 && is_caller(__builtin_return_address(0))) {
        struct timespec now = {t->tv_sec, t->tv_usec * 1000};
        make_wrong(CLOCK_REALTIME, &now);
        t->tv_sec = now.tv_sec;
        t->tv_usec = now.tv_nsec / 1000;
    }
    return result;
}

time_t time(time_t *t) {
    struct timespec now;
    true_time(CLOCK_REALTIME, &now);
    if (is_caller(__builtin_return_address(0))) make_wrong(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}

int sem_clockwait(sem_t *sem, clockid_t clock, const struct timespec *due) {
    REAL(int, sem_clockwait, sem_t *, clockid_t, const struct timespec *);
    if (!is_caller(__builtin_return_address(0))) return real_sem_clockwait(sem, clock, due);
    struct timespec turned = kernels(clock, due);
    return real_sem_clockwait(sem, clock, &turned);
}

/* The interpreter waits by the monotonic clock. */
int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *due) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) *(void **)&real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    if (!is_caller(__builtin_return_address(0))) return real(cond, mutex, due);
    struct timespec turned = kernels(CLOCK_MONOTONIC, due);
    return real(cond, mutex, &turned);
}

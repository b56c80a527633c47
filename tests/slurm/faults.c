/* Preloaded into heads and jobs: a file system that refuses reads, and a clock that is wrong.
 *
 * RB_FAULT_FILE names a file; while it exists, each of its lines, `errno part-of-a-path`, makes every look at such a
 * path fail with that number, programs too; with a `!` before the part it is only opening that fails, with a `$` behind
 * it only paths that end so. RB_CLOCK_S is added to the time of day; monotonic clocks stay right. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int fault(const char *path, int opens) {
    const char *name = getenv("RB_FAULT_FILE");
    char text[1024], *line, *rest;
    if (!name || !path) return 0;
    int file = syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    long size = syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
    text[size > 0 ? size : 0] = 0;
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *part = strchr(line, ' ');
        if (!part++ || (*part == '!' && !opens)) continue;
        part += *part == '!';
        size_t length = strlen(part), whole = strlen(path);
        int ends = length && part[length - 1] == '$';
        if (ends) part[--length] = 0;
        const char *end = whole >= length ? path + whole - length : "";
        if (ends ? !strcmp(end, part) : !!strstr(path, part)) { errno = atoi(line); return 1; }
    }
    return 0;
}

#define REAL(result, name, ...) static result (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, name)

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, #name, const char *, int, ...); \
        va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more); \
        return fault(path, 1) ? -1 : real(path, flags, mode); }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        REAL(int, #name, int, const char *, int, ...); \
        va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more); \
        return fault(path, 1) ? -1 : real(folder, path, flags, mode); }
OPENAT(openat)
OPENAT(openat64)

#define STAT(name, kind) \
    int name(const char *path, struct kind *out) { \
        REAL(int, #name, const char *, struct kind *); return fault(path, 0) ? -1 : real(path, out); }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)

int fstatat(int folder, const char *path, struct stat *out, int flags) {
    REAL(int, "fstatat", int, const char *, struct stat *, int);
    return fault(path, 0) ? -1 : real(folder, path, out, flags);
}
int fstatat64(int folder, const char *path, struct stat64 *out, int flags) {
    REAL(int, "fstatat64", int, const char *, struct stat64 *, int);
    return fault(path, 0) ? -1 : real(folder, path, out, flags);
}
DIR *opendir(const char *path) {
    REAL(DIR *, "opendir", const char *);
    return fault(path, 1) ? NULL : real(path);
}

int execve(const char *path, char *const words[], char *const environment[]) {
    REAL(int, "execve", const char *, char *const[], char *const[]);
    return fault(path, 1) ? -1 : real(path, words, environment);
}

static long shift(void) { const char *by = getenv("RB_CLOCK_S"); return by ? atol(by) : 0; }

int clock_gettime(clockid_t which, struct timespec *out) {
    REAL(int, "clock_gettime", clockid_t, struct timespec *);
    int result = real(which, out);
    if (which == CLOCK_REALTIME) out->tv_sec += shift();
    return result;
}
int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    REAL(int, "gettimeofday", struct timeval *, void *);
    int result = real(out, zone);
    out->tv_sec += shift();
    return result;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

// Folders that are read-only for one process, and only now and then, without the right to mount anything.
//
// SHARER_READ_ONLY is a file and then folders, with a colon before each folder. Byte n of the file says whether the
// n-th folder is read-only at the moment. Whatever would change something in such a folder fails with EROFS; what is
// open for writing stays open, as below a mount that was made over it. Calls are those of CPython and of gRPC's core.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <unistd.h>

#define MOST 8
#define REAL(name) ((__typeof__(&name))real(#name))
#define REFUSE(refused) do { if (refused) { errno = EROFS; return -1; } } while (0)

static char folders[MOST][PATH_MAX];
static int count = 0;
static const volatile char *read_only = NULL;

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL)
        abort();
    return found;
}

__attribute__((constructor)) static void begin(void) {
    const char *wanted = getenv("SHARER_READ_ONLY");
    if (wanted == NULL)
        return;
    char *words = strdup(wanted), *rest = words, *word = words == NULL ? NULL : strsep(&rest, ":");
    int file = word == NULL ? -1 : open(word, O_RDONLY | O_CLOEXEC);
    void *found = file < 0 ? MAP_FAILED : mmap(NULL, MOST, PROT_READ, MAP_SHARED, file, 0);
    if (found == MAP_FAILED)
        abort();
    close(file);
    while (count < MOST && (word = strsep(&rest, ":")) != NULL)
        snprintf(folders[count++], PATH_MAX, "%s", word);
    free(words);
    read_only = found;
}

static int is_below(const char *path) {
    for (int i = 0; i < count; i++) {
        size_t length = strlen(folders[i]);
        if (read_only[i] && strncmp(path, folders[i], length) == 0 && (path[length] == '/' || path[length] == '\0'))
            return 1;
    }
    return 0;
}

static int is_at(int folder, const char *path) {  // whether what a call names is read-only
    if (read_only == NULL || path == NULL)
        return 0;
    if (path[0] == '/')
        return is_below(path);
    char link[64], full[2 * PATH_MAX];
    if (folder == AT_FDCWD)
        snprintf(link, sizeof link, "/proc/self/cwd");
    else
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, full, PATH_MAX - 1);
    if (length < 0)
        return 0;
    snprintf(full + length, sizeof full - length, "/%s", path);
    return is_below(full);
}

static int is(const char *path) { return is_at(AT_FDCWD, path); }

static int would_write(int folder, const char *path, int flags) {  // as the kernel: what is there may be "created"
    if ((flags & O_ACCMODE) != O_RDONLY || flags & O_TRUNC)
        return is_at(folder, path);
    return flags & O_CREAT && is_at(folder, path) && faccessat(folder, path, F_OK, AT_SYMLINK_NOFOLLOW) != 0;
}

static mode_t mode_of(int flags, va_list list) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; }

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        va_list list;                                                                                                  \
        va_start(list, flags);                                                                                         \
        mode_t mode = mode_of(flags, list);                                                                            \
        va_end(list);                                                                                                  \
        REFUSE(would_write(AT_FDCWD, path, flags));                                                                    \
        return REAL(name)(path, flags, mode);                                                                          \
    }

#define OPENAT(name)                                                                                                   \
    int name(int folder, const char *path, int flags, ...) {                                                           \
        va_list list;                                                                                                  \
        va_start(list, flags);                                                                                         \
        mode_t mode = mode_of(flags, list);                                                                            \
        va_end(list);                                                                                                  \
        REFUSE(would_write(folder, path, flags));                                                                      \
        return REAL(name)(folder, path, flags, mode);                                                                  \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

int mkdirat(int folder, const char *path, mode_t mode) {
    if (is_at(folder, path) && faccessat(folder, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
        errno = EEXIST;  // which the kernel says first
        return -1;
    }
    REFUSE(is_at(folder, path));
    return REAL(mkdirat)(folder, path, mode);
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int unlinkat(int folder, const char *path, int flags) {
    if (is_at(folder, path) && faccessat(folder, path, F_OK, AT_SYMLINK_NOFOLLOW) != 0) {
        errno = ENOENT;
        return -1;
    }
    REFUSE(is_at(folder, path));
    return REAL(unlinkat)(folder, path, flags);
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }

int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int rename(const char *from, const char *to) {
    REFUSE(is(from) || is(to));
    return REAL(rename)(from, to);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    REFUSE(is_at(from_folder, from) || is_at(to_folder, to));
    return REAL(renameat)(from_folder, from, to_folder, to);
}

int link(const char *from, const char *to) {
    REFUSE(is(from) || is(to));
    return REAL(link)(from, to);
}

int symlink(const char *from, const char *to) {
    REFUSE(is(to));
    return REAL(symlink)(from, to);
}

int chmod(const char *path, mode_t mode) {
    REFUSE(is(path));
    return REAL(chmod)(path, mode);
}

int fchmodat(int folder, const char *path, mode_t mode, int flags) {
    REFUSE(is_at(folder, path));
    return REAL(fchmodat)(folder, path, mode, flags);
}

int bind(int socket, const struct sockaddr *address, socklen_t length) {
    REFUSE(address->sa_family == AF_UNIX && is(((const struct sockaddr_un *)address)->sun_path));
    return REAL(bind)(socket, address, length);
}

int statvfs64(const char *path, struct statvfs64 *found) {
    int result = REAL(statvfs64)(path, found);
    if (result == 0 && is(path))
        found->f_flag |= ST_RDONLY;
    return result;
}

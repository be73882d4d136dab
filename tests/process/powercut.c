/*
 * LD_PRELOAD shim: logs every change to the files beneath one directory, and
 * every sync, in the order in which they happened. From that log
 * power_cut_image.rs builds what a disk could hold after a power cut.
 *
 *   cc -shared -fPIC -O2 -o powercut.so powercut.c -ldl -lpthread
 *
 *   POWERCUT_DIR  directory to watch (absolute; it or its parent must exist)
 *   POWERCUT_LOG  log file, outside of that directory; appended to
 *
 * Without both variables, the shim passes every call through.
 *
 * The real calls are raw system calls rather than dlsym(RTLD_NEXT) pointers:
 * nothing to resolve means nothing to recurse into, no malloc, and no call
 * that comes too early. One mutex covers a real call and its record, so the
 * log has the real order; a sync is logged only once it has succeeded. A kill
 * between a call and its record loses only the record of a call that has not
 * returned, and so of nothing that anyone was told about.
 *
 * Not intercepted on purpose: sync_file_range (promises nothing), mmap (SQLite
 * writes only the -shm file through it, which recovery rebuilds), mkdir.
 */
#include "powercut_log.h"

/* ---- open and close ---- */

static int do_open(int dirfd, const char *path, int flags, mode_t mode) {
    char absolute[PATH_MAX];
    const char *rel = active() ? locate(dirfd, path, absolute) : NULL;
    if (!rel) {
        int fd = raw_openat(dirfd, path, flags, mode);
        /* UNKNOWN, not FOREIGN: the last component may be a symlink to a watched file. */
        if (fd >= 0 && active())
            forget(fd);
        return fd;
    }
    pthread_mutex_lock(&lock);
    int saved = errno;
    struct stat before, st;
    int existed = fstatat(dirfd, path, &before, 0) == 0;
    errno = saved;
    int fd = raw_openat(dirfd, path, flags, mode);
    if (fd >= 0) {
        saved = errno;
        if (fstat(fd, &st) != 0)
            die("cannot stat an open file");
        if ((flags & O_TMPFILE) == O_TMPFILE || (flags & O_PATH)) {
            /* It has no name, or cannot be written through. */
            remember(fd, FOREIGN, NULL);
        } else if (S_ISDIR(st.st_mode)) {
            remember(fd, WATCHED_DIR, &st);
        } else if (S_ISREG(st.st_mode)) {
            remember(fd, WATCHED_FILE, &st);
            record_bytes(OP_OPEN, st.st_ino, existed ? 0 : 1, rel, strlen(rel));
            if (existed && (flags & O_TRUNC) && (flags & O_ACCMODE) != O_RDONLY)
                record_plain(OP_RESIZE, st.st_ino, 0);
        } else {
            remember(fd, FOREIGN, NULL);
        }
        errno = saved;
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

static mode_t mode_argument(int flags, va_list list) {
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(list, mode_t) : 0;
}

#define DEFINE_OPEN(name)                                                                          \
    int name(const char *path, int flags, ...) {                                                   \
        va_list list;                                                                              \
        va_start(list, flags);                                                                     \
        mode_t mode = mode_argument(flags, list);                                                  \
        va_end(list);                                                                              \
        return do_open(AT_FDCWD, path, flags, mode);                                               \
    }
#define DEFINE_OPENAT(name)                                                                        \
    int name(int dirfd, const char *path, int flags, ...) {                                        \
        va_list list;                                                                              \
        va_start(list, flags);                                                                     \
        mode_t mode = mode_argument(flags, list);                                                  \
        va_end(list);                                                                              \
        return do_open(dirfd, path, flags, mode);                                                  \
    }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)
/* What _FORTIFY_SOURCE makes of open() with two arguments. */
int __open_2(const char *path, int flags) { return do_open(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return do_open(AT_FDCWD, path, flags, 0); }
int __openat_2(int dirfd, const char *path, int flags) { return do_open(dirfd, path, flags, 0); }
int __openat64_2(int dirfd, const char *path, int flags) { return do_open(dirfd, path, flags, 0); }
int creat(const char *path, mode_t mode) {
    return do_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
int creat64(const char *path, mode_t mode) {
    return do_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int close(int fd) {
    /* A program that closes all it finds must not close the log. */
    if (active()) {
        if (fd == log_fd) {
            errno = EBADF;
            return -1;
        }
        /* Before the real call: afterwards the number may belong to another thread. */
        forget(fd);
    }
    return raw_close(fd);
}

int close_range(unsigned first, unsigned last, int flags) {
    unsigned log = (unsigned)log_fd;
    if (!active() || (flags & 4 /* CLOSE_RANGE_CLOEXEC: closes nothing yet */))
        return (int)syscall(SYS_close_range, first, last, flags);
    for (unsigned fd = first; fd <= last && fd < MAX_FDS; fd++)
        forget((int)fd);
    if (log < first || log > last)
        return (int)syscall(SYS_close_range, first, last, flags);
    if (first < log && syscall(SYS_close_range, first, log - 1, flags) != 0)
        return -1;
    return log < last ? (int)syscall(SYS_close_range, log + 1, last, flags) : 0;
}

void closefrom(int first) { close_range(first < 0 ? 0 : (unsigned)first, ~0u, 0); }

static void copy_slot(int from, int to) {
    if (!active() || to < 0 || to >= MAX_FDS)
        return;
    pthread_mutex_lock(&lock);
    if (from >= 0 && from < MAX_FDS) {
        slots[to].dev = slots[from].dev;
        slots[to].ino = slots[from].ino;
        __atomic_store_n(&slots[to].state, slots[from].state, __ATOMIC_RELEASE);
    } else {
        forget(to);
    }
    pthread_mutex_unlock(&lock);
}

int dup(int fd) {
    int copy = (int)syscall(SYS_dup, fd);
    if (copy >= 0)
        copy_slot(fd, copy);
    return copy;
}

int dup3(int fd, int target, int flags) {
    int copy = (int)syscall(SYS_dup3, fd, target, flags);
    if (copy >= 0)
        copy_slot(fd, copy);
    return copy;
}

int dup2(int fd, int target) {
    if (fd == target) /* dup3 refuses this; dup2 only asks whether fd is open */
        return syscall(SYS_fcntl, fd, F_GETFD) < 0 ? -1 : fd;
    return dup3(fd, target, 0);
}

static int do_fcntl(int fd, int command, void *argument) {
    int result = (int)syscall(SYS_fcntl, fd, command, argument);
    if (result >= 0 && (command == F_DUPFD || command == F_DUPFD_CLOEXEC))
        copy_slot(fd, result);
    return result;
}

int fcntl(int fd, int command, ...) {
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    return do_fcntl(fd, command, argument);
}

int fcntl64(int fd, int command, ...) {
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    return do_fcntl(fd, command, argument);
}

/* ---- writes ---- */

/* offset < 0: at the file position. flags: as for pwritev2. */
static ssize_t do_write(int fd, const struct iovec *data, int count, off_t offset, int flags) {
    struct stat st;
    ssize_t n;
    int watched_file = 0, mode = 0;
    off_t at = offset;
    if (maybe_watched(fd)) {
        pthread_mutex_lock(&lock);
        watched_file = resolve(fd, &st) == WATCHED_FILE;
        if (!watched_file)
            pthread_mutex_unlock(&lock);
    }
    if (watched_file) {
        mode = (int)syscall(SYS_fcntl, fd, F_GETFL);
        /* With O_APPEND, Linux appends whatever the offset, also in pwrite. */
        if (mode & O_APPEND)
            at = st.st_size;
        else if (offset < 0)
            at = (off_t)syscall(SYS_lseek, fd, 0, SEEK_CUR);
        /* The header of the record needs a place in the list; a short write is allowed. */
        if (count > IOV_MAX - 1)
            count = IOV_MAX - 1;
    }
    if (flags != 0)
        n = syscall(SYS_pwritev2, fd, data, count, offset, 0L, flags);
    else if (count == 1 && offset < 0)
        n = syscall(SYS_write, fd, data[0].iov_base, data[0].iov_len);
    else if (count == 1)
        n = syscall(SYS_pwrite64, fd, data[0].iov_base, data[0].iov_len, offset);
    else if (offset < 0)
        n = syscall(SYS_writev, fd, data, count);
    else
        n = syscall(SYS_pwritev, fd, data, count, offset, 0L);
    if (watched_file) {
        if (n > 0) {
            record(OP_WRITE, st.st_ino, at, data, count, n);
            if (mode & O_DSYNC) /* O_SYNC includes its bit */
                record_plain(OP_SYNC, st.st_ino, 0);
            if (flags != 0)
                unsupported("pwritev2 with flags");
        }
        pthread_mutex_unlock(&lock);
    }
    return n;
}

/* The kernel refuses negative offsets, which do_write would take for "none". */
#define REFUSE_NEGATIVE(offset)                                                                    \
    if ((offset) < 0) {                                                                            \
        errno = EINVAL;                                                                            \
        return -1;                                                                                 \
    }

ssize_t write(int fd, const void *data, size_t length) {
    struct iovec part = {(void *)data, length};
    return do_write(fd, &part, 1, -1, 0);
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    REFUSE_NEGATIVE(offset)
    struct iovec part = {(void *)data, length};
    return do_write(fd, &part, 1, offset, 0);
}
ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    REFUSE_NEGATIVE(offset)
    struct iovec part = {(void *)data, length};
    return do_write(fd, &part, 1, offset, 0);
}
ssize_t writev(int fd, const struct iovec *data, int count) {
    return do_write(fd, data, count, -1, 0);
}
ssize_t pwritev(int fd, const struct iovec *data, int count, off_t offset) {
    REFUSE_NEGATIVE(offset)
    return do_write(fd, data, count, offset, 0);
}
ssize_t pwritev64(int fd, const struct iovec *data, int count, off64_t offset) {
    REFUSE_NEGATIVE(offset)
    return do_write(fd, data, count, offset, 0);
}
ssize_t pwritev2(int fd, const struct iovec *data, int count, off_t offset, int flags) {
    return do_write(fd, data, count, offset, flags);
}
ssize_t pwritev64v2(int fd, const struct iovec *data, int count, off64_t offset, int flags) {
    return do_write(fd, data, count, offset, flags);
}

/* Copies within the kernel carry no data that could be logged. Their callers fall back to plain
 * writes when a file system does not offer them, so a watched target does not offer them. */
static int is_watched_file(int fd) {
    struct stat st;
    int result = 0;
    if (maybe_watched(fd)) {
        pthread_mutex_lock(&lock);
        result = resolve(fd, &st) == WATCHED_FILE;
        pthread_mutex_unlock(&lock);
    }
    return result;
}
ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t length,
                        unsigned flags) {
    if (is_watched_file(out)) {
        errno = ENOSYS;
        return -1;
    }
    return syscall(SYS_copy_file_range, in, in_at, out, out_at, length, flags);
}
ssize_t sendfile(int out, int in, off_t *at, size_t length) {
    if (is_watched_file(out)) {
        errno = EINVAL;
        return -1;
    }
    return syscall(SYS_sendfile, out, in, at, length);
}
ssize_t sendfile64(int out, int in, off64_t *at, size_t length) {
    return sendfile(out, in, at, length);
}
ssize_t splice(int in, off64_t *in_at, int out, off64_t *out_at, size_t length, unsigned flags) {
    if (is_watched_file(out)) {
        errno = EINVAL;
        return -1;
    }
    return syscall(SYS_splice, in, in_at, out, out_at, length, flags);
}

/* ---- sizes ---- */

static int do_ftruncate(int fd, off_t length) {
    struct stat st;
    if (!maybe_watched(fd))
        return (int)syscall(SYS_ftruncate, fd, length);
    pthread_mutex_lock(&lock);
    int watched_file = resolve(fd, &st) == WATCHED_FILE;
    int result = (int)syscall(SYS_ftruncate, fd, length);
    if (result == 0 && watched_file)
        record_plain(OP_RESIZE, st.st_ino, length);
    pthread_mutex_unlock(&lock);
    return result;
}
int ftruncate(int fd, off_t length) { return do_ftruncate(fd, length); }
int ftruncate64(int fd, off64_t length) { return do_ftruncate(fd, length); }

static int do_truncate(const char *path, off_t length) {
    char absolute[PATH_MAX];
    struct stat st;
    const char *rel = active() ? locate(AT_FDCWD, path, absolute) : NULL;
    if (!rel)
        return (int)syscall(SYS_truncate, path, length);
    pthread_mutex_lock(&lock);
    int result = (int)syscall(SYS_truncate, path, length);
    if (result == 0 && fstatat(AT_FDCWD, path, &st, 0) == 0) {
        record_bytes(OP_OPEN, st.st_ino, 0, rel, strlen(rel));
        record_plain(OP_RESIZE, st.st_ino, length);
    }
    pthread_mutex_unlock(&lock);
    return result;
}
int truncate(const char *path, off_t length) { return do_truncate(path, length); }
int truncate64(const char *path, off64_t length) { return do_truncate(path, length); }

static int do_fallocate(int fd, int mode, off_t offset, off_t length) {
    struct stat st;
    if (!maybe_watched(fd))
        return (int)syscall(SYS_fallocate, fd, mode, offset, length);
    pthread_mutex_lock(&lock);
    int watched_file = resolve(fd, &st) == WATCHED_FILE;
    int result = (int)syscall(SYS_fallocate, fd, mode, offset, length);
    if (result == 0 && watched_file) {
        uint64_t range = (uint64_t)length;
        if (mode & ~(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
            unsupported("fallocate that moves data");
        if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
            record_bytes(OP_ZERO, st.st_ino, offset, &range, sizeof range);
        if (!(mode & FALLOC_FL_KEEP_SIZE))
            record_plain(OP_EXTEND, st.st_ino, offset + length);
    }
    pthread_mutex_unlock(&lock);
    return result;
}
int fallocate(int fd, int mode, off_t offset, off_t length) {
    return do_fallocate(fd, mode, offset, length);
}
int fallocate64(int fd, int mode, off64_t offset, off64_t length) {
    return do_fallocate(fd, mode, offset, length);
}

static int do_posix_fallocate(int fd, off_t offset, off_t length) {
    struct stat st;
    int saved = errno;
    int result = do_fallocate(fd, 0, offset, length) == 0 ? 0 : errno;
    /* libc emulates it where the file system cannot; the size is what matters here. */
    if (result == EOPNOTSUPP && fstat(fd, &st) == 0) {
        result = 0;
        if (st.st_size < offset + length && do_ftruncate(fd, offset + length) != 0)
            result = errno;
    }
    errno = saved;
    return result;
}
int posix_fallocate(int fd, off_t offset, off_t length) {
    return do_posix_fallocate(fd, offset, length);
}
int posix_fallocate64(int fd, off64_t offset, off64_t length) {
    return do_posix_fallocate(fd, offset, length);
}

/* ---- syncs ---- */

static int do_sync(long number, int fd) {
    struct stat st;
    if (!maybe_watched(fd))
        return (int)syscall(number, fd);
    /* The lock is held throughout: a write that came in meanwhile would be logged before the
     * sync, and so count as durable although the sync may not have covered it. */
    pthread_mutex_lock(&lock);
    int state = resolve(fd, &st);
    int result = (int)syscall(number, fd);
    if (result == 0 && state == WATCHED_FILE)
        record_plain(OP_SYNC, st.st_ino, 0);
    if (result == 0 && state == WATCHED_DIR) {
        char path[PATH_MAX];
        const char *rel = path_of_fd(fd, path) == 0 ? relative(path) : NULL;
        if (rel)
            record_bytes(OP_SYNCDIR, st.st_ino, 0, rel, strlen(rel));
    }
    pthread_mutex_unlock(&lock);
    return result;
}
int fsync(int fd) { return do_sync(SYS_fsync, fd); }
int fdatasync(int fd) { return do_sync(SYS_fdatasync, fd); }

int syncfs(int fd) {
    struct stat st;
    if (!maybe_watched(fd))
        return (int)syscall(SYS_syncfs, fd);
    pthread_mutex_lock(&lock);
    int state = resolve(fd, &st);
    int result = (int)syscall(SYS_syncfs, fd);
    if (result == 0 && (state == WATCHED_FILE || state == WATCHED_DIR))
        record_plain(OP_SYNCALL, 0, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
void sync(void) {
    if (!active()) {
        syscall(SYS_sync);
        return;
    }
    pthread_mutex_lock(&lock);
    syscall(SYS_sync);
    record_plain(OP_SYNCALL, 0, 0);
    pthread_mutex_unlock(&lock);
}

#include "powercut_names.h"

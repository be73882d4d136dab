/*
 * What the shim knows and writes: the record format, the table of descriptors, and the log itself.
 * Included once, by powercut.c.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#if !defined(__LP64__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the shim passes 64-bit offsets in one register and logs in host order"
#endif

/* glibc's headers may turn these names into macros or aliases. */
#undef open
#undef open64
#undef openat
#undef openat64
#undef fcntl

enum {
    OP_HELLO = 0,   /* the shim was loaded */
    OP_OPEN = 1,    /* offset: 1 = this call created the file; payload: path */
    OP_WRITE = 2,   /* offset; payload: data */
    OP_RESIZE = 3,  /* offset: new size */
    OP_EXTEND = 4,  /* offset: size is at least this now */
    OP_ZERO = 5,    /* offset; payload: u64 length of the zeroed range */
    OP_SYNC = 6,    /* the file's contents are durable */
    OP_SYNCDIR = 7, /* payload: path; its entries are durable */
    OP_SYNCALL = 8, /* everything is durable */
    OP_UNLINK = 9,  /* payload: path */
    OP_RENAME = 10, /* payload: old path, NUL, new path */
    OP_UNSUPPORTED = 11, /* payload: a call that the log cannot express */
};

#define MAGIC 0x54554350u /* "PCUT" */

struct header {
    uint32_t magic;
    uint8_t op;
    uint8_t pad[3];
    uint64_t file_id;
    uint64_t offset;
    uint64_t length; /* of the payload that follows */
};

/* What is known of a descriptor. UNKNOWN is looked up on first use, so that a
 * descriptor opened by a path the shim does not see is still noticed. */
enum { UNKNOWN = 0, FOREIGN = 1, WATCHED_FILE = 2, WATCHED_DIR = 3 };

struct slot {
    int state;
    dev_t dev;
    ino_t ino;
};

#define MAX_FDS 65536
static struct slot slots[MAX_FDS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char watched[PATH_MAX];
static size_t watched_len;
static int log_fd = -1;
static int ready;
static pid_t owner;

/* ---- helpers, all of them raw system calls ---- */

static int raw_openat(int dirfd, const char *path, int flags, mode_t mode) {
    return (int)syscall(SYS_openat, dirfd, path, flags, mode);
}

static int raw_close(int fd) { return (int)syscall(SYS_close, fd); }

static void die(const char *what) {
    static const char prefix[] = "powercut: ";
    syscall(SYS_write, 2, prefix, sizeof prefix - 1);
    syscall(SYS_write, 2, what, strlen(what));
    syscall(SYS_write, 2, "\n", 1);
    abort();
}

/* In a vfork child the table is the parent's, so the child must not touch it.
 * After a fork, the atfork handler has made the child the owner of its copy. */
static int active(void) {
    return __atomic_load_n(&ready, __ATOMIC_ACQUIRE) && (pid_t)syscall(SYS_getpid) == owner;
}

static void record(uint8_t op, uint64_t id, uint64_t offset, const struct iovec *data, int count,
                   uint64_t length) {
    /* IOV_MAX is 1024: one for the header. writev() below refuses longer lists. */
    struct iovec parts[IOV_MAX];
    struct header header = {MAGIC, op, {0, 0, 0}, id, offset, length};
    uint64_t left = length;
    int used = 1;
    parts[0].iov_base = &header;
    parts[0].iov_len = sizeof header;
    for (int i = 0; i < count && left > 0; i++) {
        parts[used] = data[i];
        if (parts[used].iov_len > left)
            parts[used].iov_len = left;
        left -= parts[used].iov_len;
        used++;
    }
    int saved = errno;
    ssize_t wrote = syscall(SYS_writev, log_fd, parts, used);
    if (wrote != (ssize_t)(sizeof header + length))
        die("cannot write the log");
    errno = saved;
}

static void record_bytes(uint8_t op, uint64_t id, uint64_t offset, const void *data, size_t length) {
    struct iovec part = {(void *)data, length};
    record(op, id, offset, &part, 1, length);
}

static void record_plain(uint8_t op, uint64_t id, uint64_t offset) {
    record(op, id, offset, NULL, 0, 0);
}

static void unsupported(const char *what) {
    record_bytes(OP_UNSUPPORTED, 0, 0, what, strlen(what));
}

/* The path relative to the watched directory ("" for itself), NULL if it is not beneath. */
static const char *relative(const char *absolute) {
    if (strncmp(absolute, watched, watched_len) != 0)
        return NULL;
    if (absolute[watched_len] == '\0')
        return absolute + watched_len;
    if (absolute[watched_len] != '/')
        return NULL;
    return absolute + watched_len + 1;
}

static int path_of_fd(int fd, char out[PATH_MAX]) {
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, out, PATH_MAX - 1);
    if (n < 0)
        return -1;
    out[n] = '\0';
    return 0;
}

/* The path with its parent resolved and its last component as it is; relative to the watched
 * directory, or NULL. The kernel resolves the parent, so symlinks and ".." come out right. */
static const char *locate(int dirfd, const char *path, char out[PATH_MAX]) {
    char parent[PATH_MAX];
    int saved = errno;
    const char *found = NULL;
    size_t length = path ? strlen(path) : 0;
    if (length == 0 || length >= PATH_MAX)
        return NULL;
    memcpy(parent, path, length + 1);
    while (length > 1 && parent[length - 1] == '/')
        parent[--length] = '\0';
    char *slash = strrchr(parent, '/');
    const char *base = slash ? slash + 1 : parent;
    char name[NAME_MAX + 1];
    if (strlen(base) > NAME_MAX)
        return NULL;
    strcpy(name, base);
    if (slash)
        slash[slash == parent ? 1 : 0] = '\0';
    else
        strcpy(parent, ".");
    int whole = name[0] == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
    int fd = raw_openat(dirfd, whole ? path : parent, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd >= 0) {
        if (path_of_fd(fd, out) == 0) {
            size_t n = strlen(out);
            if (whole) {
                found = relative(out);
            } else if (n + 1 + strlen(name) < PATH_MAX) {
                if (n == 0 || out[n - 1] != '/')
                    out[n++] = '/';
                strcpy(out + n, name);
                found = relative(out);
            }
        }
        raw_close(fd);
    }
    errno = saved;
    return found;
}

static void forget(int fd) {
    if (fd >= 0 && fd < MAX_FDS)
        __atomic_store_n(&slots[fd].state, UNKNOWN, __ATOMIC_RELEASE);
}

static void remember(int fd, int state, const struct stat *st) {
    if (fd >= MAX_FDS) {
        if (state != FOREIGN)
            die("descriptor number too large");
        return;
    }
    slots[fd].dev = st ? st->st_dev : 0;
    slots[fd].ino = st ? st->st_ino : 0;
    __atomic_store_n(&slots[fd].state, state, __ATOMIC_RELEASE);
}

/* Without the lock: may this descriptor be a watched one? */
static int maybe_watched(int fd) {
    return active() && fd >= 0 && fd < MAX_FDS &&
           __atomic_load_n(&slots[fd].state, __ATOMIC_ACQUIRE) != FOREIGN;
}

/* With the lock: what this descriptor is, and its status if it is watched. */
static int resolve(int fd, struct stat *st) {
    int saved = errno;
    int state = slots[fd].state;
    if (state == WATCHED_FILE || state == WATCHED_DIR) {
        /* libc may have closed it internally (fclose, closedir) and the number been reused. */
        if (fstat(fd, st) != 0 || st->st_dev != slots[fd].dev || st->st_ino != slots[fd].ino)
            state = UNKNOWN;
    }
    if (state == UNKNOWN) {
        char path[PATH_MAX];
        const char *rel = NULL;
        state = FOREIGN;
        if (fstat(fd, st) != 0) {
            errno = saved;
            return FOREIGN; /* not open: nothing to remember */
        }
        if ((S_ISREG(st->st_mode) || S_ISDIR(st->st_mode)) && st->st_nlink > 0 &&
            path_of_fd(fd, path) == 0)
            rel = relative(path);
        if (rel) {
            state = S_ISDIR(st->st_mode) ? WATCHED_DIR : WATCHED_FILE;
            if (state == WATCHED_FILE)
                record_bytes(OP_OPEN, st->st_ino, 0, rel, strlen(rel));
        }
        remember(fd, state, st);
    }
    errno = saved;
    return state;
}

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork_parent(void) { pthread_mutex_unlock(&lock); }
static void after_fork_child(void) {
    pthread_mutex_init(&lock, NULL);
    owner = (pid_t)syscall(SYS_getpid);
}

__attribute__((constructor)) static void start(void) {
    const char *dir = getenv("POWERCUT_DIR");
    const char *log = getenv("POWERCUT_LOG");
    char path[PATH_MAX];
    if (!dir || !log)
        return;
    if (dir[0] != '/' || strlen(dir) >= PATH_MAX)
        die("POWERCUT_DIR must be an absolute path");
    /* The kernel names files by their resolved path, so that is what to compare with. */
    if (!realpath(dir, watched)) {
        strcpy(path, dir);
        size_t n = strlen(path);
        while (n > 1 && path[n - 1] == '/')
            path[--n] = '\0';
        char *slash = strrchr(path, '/');
        *slash = '\0';
        if (!realpath(slash == path ? "/" : path, watched))
            die("neither POWERCUT_DIR nor its parent exists");
        n = strlen(watched);
        if (n + 1 + strlen(slash + 1) >= PATH_MAX)
            die("POWERCUT_DIR is too long");
        if (watched[n - 1] != '/')
            watched[n++] = '/';
        strcpy(watched + n, slash + 1);
    }
    watched_len = strlen(watched);
    int fd = raw_openat(AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0)
        die("cannot open POWERCUT_LOG");
    /* Out of the way of programs that close or reuse the low numbers. */
    log_fd = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 700);
    if (log_fd < 0)
        log_fd = fd;
    else
        raw_close(fd);
    if (path_of_fd(log_fd, path) == 0 && relative(path))
        die("POWERCUT_LOG must be outside of POWERCUT_DIR");
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    owner = (pid_t)syscall(SYS_getpid);
    record_plain(OP_HELLO, 0, 0);
    __atomic_store_n(&ready, 1, __ATOMIC_RELEASE);
}

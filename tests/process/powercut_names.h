/* The calls that change names. Included once, by powercut.c. */

static int do_unlink(int dirfd, const char *path, int flags) {
    char absolute[PATH_MAX];
    struct stat st;
    const char *rel = active() && !(flags & AT_REMOVEDIR) ? locate(dirfd, path, absolute) : NULL;
    if (!rel)
        return (int)syscall(SYS_unlinkat, dirfd, path, flags);
    pthread_mutex_lock(&lock);
    int saved = errno;
    int known = fstatat(dirfd, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
    errno = saved;
    int result = (int)syscall(SYS_unlinkat, dirfd, path, flags);
    if (result == 0 && known && S_ISREG(st.st_mode))
        record_bytes(OP_UNLINK, st.st_ino, 0, rel, strlen(rel));
    pthread_mutex_unlock(&lock);
    return result;
}
int unlink(const char *path) { return do_unlink(AT_FDCWD, path, 0); }
int unlinkat(int dirfd, const char *path, int flags) { return do_unlink(dirfd, path, flags); }
int remove(const char *path) {
    int saved = errno;
    if (do_unlink(AT_FDCWD, path, 0) == 0)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return -1;
    errno = saved;
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

static int do_rename(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    char from_path[PATH_MAX], to_path[PATH_MAX];
    const char *from_rel = active() ? locate(from_dir, from, from_path) : NULL;
    const char *to_rel = active() ? locate(to_dir, to, to_path) : NULL;
    struct stat st;
    if (!from_rel && !to_rel)
        return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    pthread_mutex_lock(&lock);
    int saved = errno;
    int known = fstatat(from_dir, from, &st, AT_SYMLINK_NOFOLLOW) == 0;
    errno = saved;
    int result = (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    if (result == 0) {
        if (!known || !S_ISREG(st.st_mode)) {
            unsupported("rename of something that is not a file");
        } else if (!from_rel) {
            unsupported("rename into the watched directory");
        } else if (flags & ~1u /* RENAME_NOREPLACE */) {
            unsupported("renameat2 that exchanges files");
        } else if (!to_rel) {
            record_bytes(OP_UNLINK, st.st_ino, 0, from_rel, strlen(from_rel));
        } else {
            struct iovec names[2] = {{(void *)from_rel, strlen(from_rel) + 1},
                                     {(void *)to_rel, strlen(to_rel)}};
            record(OP_RENAME, st.st_ino, 0, names, 2, names[0].iov_len + names[1].iov_len);
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}
int rename(const char *from, const char *to) {
    return do_rename(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    return do_rename(from_dir, from, to_dir, to, 0);
}
int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    return do_rename(from_dir, from, to_dir, to, flags);
}

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    char path[PATH_MAX];
    int result = (int)syscall(SYS_linkat, from_dir, from, to_dir, to, flags);
    if (result == 0 && active() && locate(to_dir, to, path)) {
        pthread_mutex_lock(&lock);
        unsupported("hard link");
        pthread_mutex_unlock(&lock);
    }
    return result;
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

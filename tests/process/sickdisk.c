/* Makes the disk sick on demand, for a program that is started with this preloaded.
 *
 * SICKDISK names a file. While it exists and says "fsync", every fsync and fdatasync fails with EIO; while it says "copy",
 * those of the database itself do, which only gets what is copied from its log; while it says "full", every write to a
 * file at an offset fails with ENOSPC. Otherwise all goes on as usual. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static int sick(const char *how) {
  const char *path = getenv("SICKDISK");
  char word[8] = {0};
  int saved = errno, fd = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd >= 0) {
    if (syscall(SYS_read, fd, word, sizeof word - 1) < 0) word[0] = 0;
    syscall(SYS_close, fd);
  }
  errno = saved;
  return strncmp(word, how, strlen(how)) == 0;
}

static int is_database(int fd) {
  static const char name[] = "/redrive.db";
  char link[32], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path);
  size_t tail = sizeof name - 1;
  return length >= (ssize_t)tail && memcmp(path + length - tail, name, tail) == 0;
}

static int sync_by(long number, int fd) {
  if (sick("fsync") || (is_database(fd) && sick("copy"))) {
    errno = EIO;
    return -1;
  }
  return (int)syscall(number, fd);
}

int fsync(int fd) { return sync_by(SYS_fsync, fd); }
int fdatasync(int fd) { return sync_by(SYS_fdatasync, fd); }

ssize_t pwrite64(int fd, const void *data, size_t length, off_t at) {
  if (sick("full")) {
    errno = ENOSPC;
    return -1;
  }
  return syscall(SYS_pwrite64, fd, data, length, at);
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t at) { return pwrite64(fd, data, length, at); }

// Kills a program, which loads this with LD_PRELOAD, in place of giving a file or a folder the name in TEST_RENAME, or of
// removing the file with this name.

#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void end_at(const char *path) {
    const char *name = getenv("TEST_RENAME");
    if (name && !strcmp(path, name))
        kill(getpid(), SIGKILL);
}

int unlink(const char *path) {
    end_at(path);
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int rename(const char *from, const char *to) {
    end_at(to);
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

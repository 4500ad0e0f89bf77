// Kills a program, which loads this with LD_PRELOAD, in place of giving a file or a folder the name in TEST_RENAME.

#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int rename(const char *from, const char *to) {
    const char *name = getenv("TEST_RENAME");
    if (name && !strcmp(to, name))
        kill(getpid(), SIGKILL);
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

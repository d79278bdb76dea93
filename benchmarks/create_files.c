/* The least that copies of many small files cost: create directories and files, and write to them, in several processes.
 *
 *   create_files DIR PROCESSES FILES IN_DIRECTORY BYTES
 *
 * It reads nothing, checks nothing, and writes the same bytes into every file. The directories are those of make_files in
 * workspace.py. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GROUP = 100 };

static int create(int top, long directory, long count, const char *data, size_t size) {
    char name[64];
    snprintf(name, sizeof name, "d%03ld", directory / GROUP);
    mkdirat(top, name, 0755); /* another process may have created it */
    snprintf(name, sizeof name, "d%03ld/%02ld", directory / GROUP, directory % GROUP);
    int fd, at = mkdirat(top, name, 0755) ? -1 : openat(top, name, O_RDONLY | O_DIRECTORY);
    if (at < 0) return 1;
    for (long n = 0; n < count; n++) {
        snprintf(name, sizeof name, "file%02ld.txt", n);
        fd = openat(at, name, O_WRONLY | O_CREAT | O_EXCL, 0644);
        if (fd < 0 || write(fd, data, size) != (ssize_t)size || close(fd)) return 1;
    }
    return close(at);
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    long processes = atol(argv[2]), files = atol(argv[3]), each = atol(argv[4]);
    size_t size = (size_t)atol(argv[5]);
    char *data = malloc(size);
    int status, failed = 0, top = mkdir(argv[1], 0755) ? -1 : open(argv[1], O_RDONLY | O_DIRECTORY);
    if (!data || top < 0) return 1;
    memset(data, 'x', size);
    for (long number = 0; number < processes; number++) {
        if (fork()) continue;
        for (long directory = number; directory * each < files; directory += processes)
            if (create(top, directory, each, data, size)) _exit(1);
        _exit(0);
    }
    while (wait(&status) > 0) failed |= status;
    return failed != 0;
}

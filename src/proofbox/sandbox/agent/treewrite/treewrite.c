/* treewrite: writes stored files into new directories, for a workspace's forks. In Python, a file takes three times as
 * long, and two can't be written in parallel.
 *
 *   treewrite ROOTFD PACKFD <questions >answers
 *
 * A question describes an existing directory: a head, its path from ROOTFD with a NUL, the names of new files each with a
 * NUL, and for each name a place: the file's mode, the digest of its content, and where the content is in PACKFD. Each
 * file is created, and its content is checked against the digest before it is written. The answer is one record for each
 * file, in order, as the workspace's scanner packs it. Both use the machine's byte order; the questions are a file, which
 * is mapped. The first failure ends the program, after the records of all files before it, with the error number as its
 * exit code, or with DAMAGED. Nothing is opened through a symbolic link, and nothing that exists is written to.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sha256.h"

enum { DAMAGED = 250, USAGE = 251, FOLDER = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };

struct __attribute__((packed)) head {
    uint32_t path, names, count; /* lengths with their NULs */
};

struct __attribute__((packed)) place {
    uint32_t mode;
    uint8_t digest[32];
    uint64_t offset, length;
};

struct __attribute__((packed)) record {
    uint32_t mode;
    uint8_t digest[32];
    uint64_t size;
    int64_t mtime, ctime;
    uint64_t ino;
};

static void fail(int code) {
    fflush(stdout);
    _exit(code);
}

/* The lower 64 bits, as the workspace's scanner stores them. */
static int64_t ns(struct timespec t) { return (int64_t)((uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec); }

static const char *content(int pack, const struct place *p) {
    static char *buffer;
    static uint64_t room;
    uint64_t done = 0;
    uint8_t found[32];
    if (p->length >= room && !(buffer = realloc(buffer, room = p->length + 65536))) fail(ENOMEM);
    while (done < p->length) {
        ssize_t got = pread(pack, buffer + done, p->length - done, (off_t)(p->offset + done));
        if (got < 0) fail(errno);
        if (got == 0) fail(DAMAGED);
        done += (uint64_t)got;
    }
    sha256(buffer, p->length, found);
    if (memcmp(found, p->digest, sizeof found)) fail(DAMAGED);
    return buffer;
}

/* As the kernel does in one call. Older ones, and some sandboxes, lack it: then a component at a time. */
static int open_below(int root, const char *path) {
    struct open_how how = {.flags = FOLDER, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    int fd = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
    if (fd >= 0 || (errno != ENOSYS && errno != EPERM)) return fd;
    for (fd = dup(root); fd >= 0 && *path;) {
        char name[256];
        size_t length = strcspn(path, "/");
        if (length >= sizeof name) return errno = ENAMETOOLONG, -1;
        memcpy(name, path, length);
        name[length] = 0;
        int below = openat(fd, name, FOLDER);
        close(fd);
        fd = below;
        path += length + (path[length] == '/');
    }
    return fd;
}

static void create(int folder, const char *name, int pack, const struct place *p) {
    struct stat st;
    const char *data = content(pack, p);
    int fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, p->mode & 0777);
    if (fd < 0) fail(errno);
    for (uint64_t done = 0; done < p->length;) {
        ssize_t put = write(fd, data + done, p->length - done);
        if (put < 0) fail(errno);
        done += (uint64_t)put;
    }
    if (fstat(fd, &st)) fail(errno);
    if ((st.st_mode & 07777) != (p->mode & 07777) && (fchmod(fd, p->mode & 07777) || fstat(fd, &st))) fail(errno);
    if (close(fd)) fail(errno);
    struct record r = {.mode = p->mode, .size = (uint64_t)st.st_size, .mtime = ns(st.st_mtim), .ctime = ns(st.st_ctim)};
    r.ino = st.st_ino;
    memcpy(r.digest, p->digest, sizeof r.digest);
    if (fwrite(&r, sizeof r, 1, stdout) != 1) fail(errno);
}

int main(int argc, char **argv) {
    struct stat st;
    if (argc == 2 && !strcmp(argv[1], "--version")) return printf("treewrite 1\n") < 0;
    if (argc != 3 || fstat(0, &st)) return USAGE;
    if (st.st_size == 0) return 0;
    int root = atoi(argv[1]), pack = atoi(argv[2]);
    const char *at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, 0, 0), *end = at + st.st_size;
    if (at == MAP_FAILED) return errno;
    umask(0);
    while (at < end) {
        struct head h;
        memcpy(&h, at, sizeof h);
        const char *path = at + sizeof h, *name = path + h.path;
        const struct place *p = (const struct place *)(name + h.names);
        int folder = open_below(root, path);
        if (folder < 0) fail(errno);
        for (uint32_t n = 0; n < h.count; n++, p++, name += strlen(name) + 1) create(folder, name, pack, p);
        close(folder);
        at = (const char *)p;
    }
    return fflush(stdout) ? errno : 0;
}

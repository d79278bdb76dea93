/* treestat: finds changed files by their metadata, for the workspace's scans. In Python, each system call takes twice as
 * long, and two can't run in parallel.
 *
 *   treestat ROOTFD <questions >answers
 *
 * A question describes a directory: a head, its path from ROOTFD with a NUL, its file names each with a NUL, and for each
 * name a record as packed by the workspace's scanner. An answer is given only for a changed directory: its number, the action
 * (LOOK at the files whose numbers follow, LIST it again, or it is GONE), and the count of numbers. Both use the machine's
 * byte order. The questions are a file, which is mapped. Only directories are opened, and never through a symbolic link.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOOK, LIST, GONE };

struct __attribute__((packed)) head {
    uint32_t path, names, count, mode; /* lengths with their NULs; mode 0: any */
    int64_t ctime;
    uint64_t ino;
};

struct __attribute__((packed)) record {
    uint32_t mode;
    uint8_t digest[32];
    uint64_t size;
    int64_t mtime, ctime;
    uint64_t ino;
};

/* The lower 64 bits, as the workspace's scanner stores them: a file's time may be in the year 2400. */
static int64_t ns(struct timespec t) { return (int64_t)((uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec); }

static void answer(uint32_t number, uint32_t what, const uint32_t *look, uint32_t count) {
    uint32_t words[3] = {number, what, count};
    if (fwrite(words, sizeof words, 1, stdout) != 1 || fwrite(look, sizeof *look, count, stdout) != count) exit(1);
}

static void ask(int root, uint32_t number, const struct head *h, const char *path, const char *name, const struct record *r) {
    static uint32_t *look, room;
    uint32_t found = 0;
    struct stat st;
    int fd = openat(root, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return answer(number, GONE, NULL, 0);
    if (fstat(fd, &st)) exit(1);
    if (ns(st.st_ctim) != h->ctime || st.st_ino != h->ino || (h->mode && st.st_mode != h->mode)) {
        close(fd);
        return answer(number, LIST, NULL, 0);
    }
    if (h->count > room && !(look = realloc(look, (room = h->count) * sizeof *look))) exit(1);
    for (uint32_t n = 0; n < h->count; n++, r++, name += strlen(name) + 1)
        if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) || ns(st.st_ctim) != r->ctime || ns(st.st_mtim) != r->mtime ||
            st.st_ino != r->ino || (uint64_t)st.st_size != r->size)
            look[found++] = n;
    close(fd);
    if (found) answer(number, LOOK, look, found);
}

int main(int argc, char **argv) {
    struct stat st;
    if (argc == 2 && !strcmp(argv[1], "--version")) return printf("treestat 1\n") < 0;
    if (argc != 2 || fstat(0, &st)) return 2;
    if (st.st_size == 0) return 0;
    const char *at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, 0, 0), *end = at + st.st_size;
    if (at == MAP_FAILED) return 1;
    for (uint32_t number = 0; at < end; number++) {
        struct head h;
        memcpy(&h, at, sizeof h);
        const char *path = at + sizeof h, *names = path + h.path;
        ask(atoi(argv[1]), number, &h, path, names, (const struct record *)(names + h.names));
        at = names + h.names + h.count * sizeof(struct record);
    }
    return fflush(stdout) != 0;
}

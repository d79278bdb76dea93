/* treewrite: writes a stored tree into an empty directory, for a workspace's forks. In Python, a file takes three times as
 * long, and two can't be written in parallel.
 *
 *   treewrite ROOTFD PACKFD PROCESSES TREE <tables >answers
 *
 * TREE is a digest in hexadecimal digits. The tables say where in PACKFD the objects are (objects.c). The program reads all
 * trees, then processes divide the directories between them. Each content is checked against its digest before it is
 * written. Nothing is opened through a symbolic link, and nothing that exists is written to.
 *
 * The answers are a file, which is mapped: a head, and every directory, parents first, each with its name, the names of its
 * files and links, and their records as the workspace's scanner packs them. Names end with a NUL; numbers use the machine's
 * byte order. A directory is left for the caller to complete if it contains a large file, whose record has no inode, or if
 * its mode would have been in the way of writing what is below it. After a failure, the exit code is 1, and the head has the
 * error number, DAMAGED, MISSING or MALFORMED, with the path or the digest. The processes of a killed program end with it,
 * and hold its standard error open until then.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "objects.h"
#include "trees.h"

enum { USAGE = 2, FOLDER = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, ANSWERS = 1, OWNER = 0700 };

struct __attribute__((packed)) head {
    uint32_t next, failed, code; /* next: the first folder that no process has taken */
    uint8_t digest[32];
    char path[PATH_MAX + NAME_MAX + 1];
};

struct __attribute__((packed)) folder {
    uint32_t depth, mode, name, names, count; /* lengths with their NULs */
    uint8_t digest[32];
    int64_t ctime;
    uint64_t ino;
    uint8_t made, left;
};

struct __attribute__((packed)) record {
    uint32_t mode;
    uint8_t digest[32];
    uint64_t size;
    int64_t mtime, ctime;
    uint64_t ino;
};

struct job {
    size_t at; /* of its folder in the answers */
    uint32_t below, next; /* the first folder in it, and the next one beside it; 0: none */
    char *path;
};

static int root;
static char *answers;
static size_t used, room;
static struct job *jobs;
static uint32_t job_count;

static struct head *head(void) { return (struct head *)answers; }

static struct folder *folder_of(const struct job *job) { return (struct folder *)(answers + job->at); }

static char *name_of(struct folder *folder) { return (char *)(folder + 1); }

static int has_failed(void) { return __atomic_load_n(&head()->failed, __ATOMIC_ACQUIRE) != 0; }

static void fail(int code, const uint8_t *digest, const char *path, const char *name) {
    if (!__atomic_exchange_n(&head()->failed, 1, __ATOMIC_ACQ_REL)) {
        head()->code = (uint32_t)code;
        if (digest) memcpy(head()->digest, digest, 32);
        snprintf(head()->path, sizeof head()->path, "%s%s%s", path, *path && *name ? "/" : "", name);
    }
    _exit(1);
}

/* The lower 64 bits, as the workspace's scanner stores them. */
static int64_t ns(struct timespec t) { return (int64_t)((uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec); }

/* Reading: before there is more than one process. */

static void *more_answers(size_t size) {
    if (used + size > room) {
        size_t wanted = 2 * (used + size);
        char *moved = ftruncate(ANSWERS, (off_t)wanted) ? MAP_FAILED : mremap(answers, room, wanted, MREMAP_MAYMOVE);
        if (moved == MAP_FAILED) fail(errno, NULL, "", "");
        answers = moved;
        room = wanted;
    }
    used += size;
    return answers + used - size;
}

static uint32_t new_job(const char *above, const char *name) {
    char *path;
    if (asprintf(&path, "%s%s%s", above, *above ? "/" : "", name) < 0) fail(ENOMEM, NULL, "", "");
    if (strlen(path) >= PATH_MAX) fail(ENAMETOOLONG, NULL, path, "");
    if (!(job_count & (job_count - 1)) && !(jobs = reallocarray(jobs, 2 * job_count + 1, sizeof *jobs)))
        fail(ENOMEM, NULL, "", "");
    jobs[job_count] = (struct job){.at = used, .path = path};
    return job_count++;
}

/* Add a directory, and all below it, to the answers. Return its number. */
static uint32_t plan(const char *above, const char *name, uint32_t depth, uint32_t mode, const uint8_t digest[32]) {
    struct rows rows;
    struct row row;
    struct folder new = {.depth = depth, .mode = mode, .name = (uint32_t)strlen(name) + 1, .ctime = -1, .made = !depth};
    uint32_t number = new_job(above, name), before = 0;
    const char *path = jobs[number].path;
    int code = read_rows(digest, &rows);
    if (code) fail(code, rows.wrong, path, "");
    memcpy(new.digest, digest, sizeof new.digest);
    while (next_row(&rows, &row))
        if (!S_ISDIR(row.mode)) new.count++, new.names += row.length + 1;
    struct folder *folder = more_answers(sizeof new + new.name + new.names + new.count * sizeof(struct record));
    *folder = new;
    char *names = mempcpy(name_of(folder), name, new.name);
    struct record *record = (struct record *)(names + new.names);
    while (next_row(&rows, &row)) {
        if (S_ISDIR(row.mode)) continue;
        names = mempcpy(names, row.name, row.length + 1);
        record->mode = row.mode;
        memcpy(record++->digest, row.digest, 32);
    }
    while (next_row(&rows, &row)) {
        if (!S_ISDIR(row.mode)) continue;
        uint32_t below = plan(path, row.name, depth + 1, row.mode, row.digest);
        *(before ? &jobs[before].next : &jobs[number].below) = below;
        before = below;
    }
    free(rows.data);
    return number;
}

/* Writing: each process takes the next directory. */

/* As the kernel does in one call. Older ones, and some sandboxes, lack it: then a component at a time. */
static int open_below(const char *path) {
    struct open_how how = {.flags = FOLDER, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    int fd = (int)syscall(SYS_openat2, root, *path ? path : ".", &how, sizeof how);
    if (fd >= 0 || (errno != ENOSYS && errno != EPERM)) return fd;
    for (fd = dup(root); fd >= 0 && *path;) {
        char name[NAME_MAX + 1];
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

static int create(int fd, const char *name, mode_t mode, const char *data, uint64_t length, struct stat *st) {
    if (S_ISLNK(mode)) {
        char target[PATH_MAX];
        if (length >= sizeof target || memchr(data, 0, length)) return errno = EINVAL, -1;
        *(char *)mempcpy(target, data, length) = 0;
        return symlinkat(target, fd, name) || fstatat(fd, name, st, AT_SYMLINK_NOFOLLOW);
    }
    int out = openat(fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode & 0777);
    if (out < 0) return -1;
    for (uint64_t done = 0; done < length;) {
        ssize_t put = write(out, data + done, length - done);
        if (put < 0) return -1;
        done += (uint64_t)put;
    }
    if (fstat(out, st)) return -1;
    if ((st->st_mode & 07777) != (mode & 07777) && (fchmod(out, mode & 07777) || fstat(out, st))) return -1;
    return close(out);
}

struct file { struct place place; struct record *record; const char *name; };

static int by_offset(const void *one, const void *other) {
    uint64_t a = ((const struct file *)one)->place.offset, b = ((const struct file *)other)->place.offset;
    return (a > b) - (a < b);
}

/* In the order of their contents in the pack, so that those of a directory are read together. */
static void write_files(int fd, const struct job *job) {
    static struct file *files;
    static struct place *places;
    struct folder *folder = folder_of(job);
    const char *name = name_of(folder) + folder->name, *data;
    struct record *record = (struct record *)(name + folder->names);
    struct stat st;
    files = reallocarray(files, folder->count + 1, sizeof *files);
    places = reallocarray(places, folder->count + 1, sizeof *places);
    if (!files || !places) fail(ENOMEM, NULL, job->path, "");
    for (uint32_t n = 0; n < folder->count; n++, record++, name += strlen(name) + 1) {
        files[n] = (struct file){.record = record, .name = name};
        int code = find(record->digest, &files[n].place);
        if (code) fail(code, record->digest, job->path, "");
    }
    qsort(files, folder->count, sizeof *files, by_offset);
    for (uint32_t n = 0; n < folder->count; n++) places[n] = files[n].place;
    for (uint32_t n = 0; n < folder->count; n++) {
        record = files[n].record;
        if (!places[n].offset) {
            folder->left = 1;
            continue;
        }
        int code = content(places + n, folder->count - n, record->digest, &data);
        if (code || has_failed()) fail(code, record->digest, job->path, files[n].name);
        if (create(fd, files[n].name, record->mode, data, places[n].length, &st)) fail(errno, record->digest, job->path, files[n].name);
        record->size = (uint64_t)st.st_size;
        record->mtime = ns(st.st_mtim);
        record->ctime = ns(st.st_ctim);
        record->ino = st.st_ino;
    }
}

static void write_folder(const struct job *job) {
    struct folder *folder = folder_of(job);
    struct stat st;
    while (!__atomic_load_n(&folder->made, __ATOMIC_ACQUIRE)) {
        if (has_failed()) _exit(1);
        sched_yield();
    }
    int fd = open_below(job->path);
    if (fd < 0) fail(errno, NULL, job->path, "");
    for (uint32_t n = job->below; n; n = jobs[n].next) {
        struct folder *below = folder_of(jobs + n);
        /* Others can write to it only when it is complete. */
        if (mkdirat(fd, name_of(below), (below->mode | OWNER) & 0755)) fail(errno, NULL, jobs[n].path, "");
        __atomic_store_n(&below->made, 1, __ATOMIC_RELEASE);
    }
    write_files(fd, job);
    if ((folder->mode & OWNER) != OWNER) folder->left = 1;
    if (folder->depth && !folder->left) {
        mode_t mode = folder->mode & 07777;
        if (fstat(fd, &st) || ((st.st_mode & 07777) != mode && (fchmod(fd, mode) || fstat(fd, &st))))
            fail(errno, NULL, job->path, "");
        folder->ctime = ns(st.st_ctim);
        folder->ino = st.st_ino;
    }
    close(fd);
}

static void work(void) {
    uint32_t next;
    while ((next = __atomic_fetch_add(&head()->next, 1, __ATOMIC_RELAXED)) < job_count) write_folder(jobs + next);
}

int main(int argc, char **argv) {
    uint8_t tree[32];
    int code, status, started = 0, has_ended = 0;
    if (argc == 2 && !strcmp(argv[1], "--version")) return printf("treewrite 2\n") < 0;
    if (argc != 5 || strlen(argv[4]) != 64) return USAGE;
    for (int n = 0; n < 32; n++)
        if (sscanf(argv[4] + 2 * n, "%2hhx", tree + n) != 1) return USAGE;
    root = atoi(argv[1]);
    room = used = sizeof(struct head);
    if (ftruncate(ANSWERS, (off_t)room)) return USAGE;
    answers = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED, ANSWERS, 0);
    if (answers == MAP_FAILED) return USAGE;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    umask(0);
    if ((code = open_objects(0, atoi(argv[2])))) fail(code, NULL, "", "");
    plan("", "", 0, 0, tree);
    if (ftruncate(ANSWERS, (off_t)used)) fail(errno, NULL, "", "");
    for (int n = atoi(argv[3]), parent = getpid(); n > 0; n--) {
        pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) _exit(1);
            work();
            _exit(0);
        }
        started += pid > 0;
    }
    if (!started) work();
    while (wait(&status) > 0)
        if (status) {
            __atomic_store_n(&head()->failed, 1, __ATOMIC_RELEASE);
            has_ended = 1;
        }
    return has_ended;
}

/* boxprobe: tries operations that a sandbox may allow or deny, and reports what the kernel answered.
 *
 *   boxprobe SECONDS < REQUESTS
 *   boxprobe --version
 *
 * A request is a line of fields separated by tabs: id, operation, arguments. Each runs in a separate process with a time
 * limit, so that one that hangs, crashes or is killed does not affect the others. The answer is a line of JSON on stdout:
 *
 *   {"id":"…","result":0,"errno":13,"ns":1200,"timed_out":false,"signal":0,"path":"…","value":"…"}
 *
 * `result` is -1 if the operation failed, and `errno` says why; `signal` is what killed the process. `path` is the name of
 * the file that was opened, as the kernel gives it; `value` depends on the operation. This program decides nothing: whether
 * an answer means "allowed" or "denied" is decided outside.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_openat2
#define SYS_openat2 437
#endif

enum { PROTOCOL = 1 };
enum { MAX_LINE = 16 << 10, MAX_FIELDS = 12, ROOM = 4096, CONNECT_SECONDS = 2, MAX_CHILDREN = 4096, MAX_NUMBERS = 64 };

/* What a child reports to its parent, in one write to a pipe. */
struct answer {
    long result;
    int error;
    char links[16]; /* whether the path led through symbolic links; empty: not known */
    char path[ROOM / 2];
    char value[ROOM / 4];
};

static struct answer answer;
static pid_t parent; /* of this program: in a box, the agent */

static void note(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(answer.value, sizeof answer.value, format, list);
    va_end(list);
}

static long number(const char *text) { return strcmp(text, "parent") ? strtol(text, NULL, 0) : parent; }

/* Fills in the numbers of a list such as "0,3-9", and returns how many there are. */
static int numbers(const char *text, int *list) {
    int count = 0;
    for (char *end = NULL; *text; text = *end ? end + 1 : end) {
        long first = strtol(text, &end, 0), last = *end == '-' ? strtol(end + 1, &end, 0) : first;
        while (first <= last && count < MAX_NUMBERS) list[count++] = first++;
    }
    return count;
}

/* Files */

/* Whether opening the file could change something: a pipe has another reader, and a watchdog starts when it is opened. */
static bool reacts(const char *path) {
    static const unsigned HARMLESS[][2] = {{10, 200}, {10, 229}, {10, 232}, {10, 237}}; /* tun, fuse, kvm, loop-control */
    struct stat found;
    if (stat(path, &found)) return false;
    if (!S_ISCHR(found.st_mode)) return S_ISFIFO(found.st_mode);
    unsigned kind = major(found.st_rdev);
    for (size_t i = 0; i < sizeof HARMLESS / sizeof *HARMLESS; i++)
        if (kind == HARMLESS[i][0] && minor(found.st_rdev) == HARMLESS[i][1]) return false;
    return kind != 1 && kind != 5 && kind != 136; /* memory and terminals */
}

static int opened(const char *path, int flags, mode_t mode) {
    if (reacts(path)) {
        errno = EBADRQC;
        return -1;
    }
    int fd = open(path, flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, mode);
    if (fd < 0) {
        struct statvfs mounted; /* of a program that runs, the kernel reports ETXTBSY before it looks at the mount */
        if (errno == ETXTBSY && !statvfs(path, &mounted)) errno = mounted.f_flag & ST_RDONLY ? EROFS : ETXTBSY;
        return fd;
    }
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, answer.path, sizeof answer.path - 1);
    if (length > 0) answer.path[length] = 0;
    struct {
        uint64_t flags, mode, resolve;
    } how = {O_PATH | O_CLOEXEC, 0, 0x04}; /* RESOLVE_NO_SYMLINKS */
    long again = syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    if (again >= 0 || errno == ELOOP) strcpy(answer.links, again >= 0 ? "none" : "followed"); /* a filter may refuse the call */
    if (again >= 0) close(again);
    errno = 0;
    return fd;
}

static long file_read(char **args) {
    char start[65] = "";
    int fd = opened(args[0], O_RDONLY, 0);
    if (fd < 0) return -1;
    if (!strcmp(answer.path, "/proc/kmsg")) return 1; /* a read would take messages away from the system's log */
    ssize_t got = read(fd, start, sizeof start - 1);
    if (got < 0) return -1;
    for (ssize_t i = 0; i < got; i++) snprintf(answer.value + 2 * i, 3, "%02x", (unsigned char)start[i]);
    return got; /* 0: the file is empty, or masked by /dev/null */
}

/* Opens for writing and writes nothing: the kernel decides at the open, and no file of the system is changed. */
static long file_open_write(char **args) { return opened(args[0], O_WRONLY | O_APPEND, 0); }

static int first_error;

static int open_entry(const char *path, const struct stat *found, int kind, struct FTW *walk) {
    (void)found, (void)walk;
    if (kind != FTW_F) return 0;
    int fd = opened(path, O_WRONLY | O_APPEND, 0);
    if (fd >= 0) return close(fd), 1;
    if (!first_error && errno != EBADRQC) first_error = errno;
    return 0;
}

/* Opens every file below a directory for writing, until one can be opened. */
static long tree_open_write(char **args) {
    int found = nftw(args[0], open_entry, 16, FTW_PHYS);
    if (found != 1) errno = first_error ? first_error : ENOENT;
    return found == 1 ? 0 : -1;
}

static long file_write(char **args) {
    int fd = opened(args[0], O_WRONLY | O_APPEND, 0);
    return fd < 0 ? -1 : write(fd, args[1], strlen(args[1]));
}

static long file_create(char **args) { return opened(args[0], O_WRONLY | O_CREAT | O_EXCL, 0644); }
static long file_stat(char **args) {
    struct stat found;
    if (lstat(args[0], &found)) return -1;
    note("%o", found.st_mode);
    return 0;
}
static long file_unlink(char **args) { return unlink(args[0]); }
static long file_rename(char **args) { return rename(args[0], args[1]); }
static long file_link(char **args) { return linkat(AT_FDCWD, args[0], AT_FDCWD, args[1], AT_SYMLINK_FOLLOW); }
static long file_symlink(char **args) { return symlink(args[0], args[1]); }
static long file_chmod(char **args) { return chmod(args[0], strtol(args[1], NULL, 8)); }
static long file_chown(char **args) { return lchown(args[0], number(args[1]), number(args[2])); }
static long file_truncate(char **args) { return truncate(args[0], 0); }
static long file_device(char **args) { /* a node that cannot be opened is of no use */
    mode_t kind = *args[1] == 'b' ? S_IFBLK : S_IFCHR;
    if (mknod(args[0], kind | 0600, makedev(number(args[2]), number(args[3])))) return -1;
    return open(args[0], O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

/* In a directory, tries every call that gives a file its mode, until one sets the setuid or setgid bit. */
static long file_setid(char **args) {
    enum { OPENAT, TMPFILE, MKNODAT, FCHMOD, FCHMODAT, FCHMODAT2, OPEN, CREAT, MKNOD, CHMOD, END };
    mode_t mode = strtol(args[1], NULL, 8);
    int error = EPERM, make = O_CREAT | O_WRONLY | O_CLOEXEC;
    if (chdir(args[0])) return -1;
    for (int way = 0; way < END; way++) {
        struct stat found = {0};
        bool exists = way == FCHMOD || way == FCHMODAT || way == FCHMODAT2 || way == CHMOD;
        long done = -1, fd = exists ? syscall(SYS_openat, AT_FDCWD, "plain", make, 0600) : -1;
        char name[] = "new-0";
        name[4] = 'a' + way;
        errno = 0;
        switch (way) {
        case OPENAT: done = fd = syscall(SYS_openat, AT_FDCWD, name, make, mode); break;
        case TMPFILE: done = fd = syscall(SYS_openat, AT_FDCWD, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, mode); break;
        case MKNODAT: done = syscall(SYS_mknodat, AT_FDCWD, name, S_IFREG | mode, 0); break;
        case FCHMOD: done = syscall(SYS_fchmod, fd, mode); break;
        case FCHMODAT: done = syscall(SYS_fchmodat, AT_FDCWD, "plain", mode); break;
        case FCHMODAT2: done = syscall(452, AT_FDCWD, "plain", mode, 0); break;
#ifdef SYS_open
        case OPEN: done = fd = syscall(SYS_open, name, make, mode); break;
        case CREAT: done = fd = syscall(SYS_creat, name, mode); break;
        case MKNOD: done = syscall(SYS_mknod, name, S_IFREG | mode, 0); break;
        case CHMOD: done = syscall(SYS_chmod, "plain", mode); break;
#endif
        }
        if (done < 0) error = errno ? errno : error;
        else if (!(fd >= 0 ? fstat(fd, &found) : stat(name, &found)) && found.st_mode & (S_ISUID | S_ISGID)) return note("%d", way), 0;
        if (fd >= 0) close(fd);
    }
    errno = error;
    return -1;
}

static long dir_make(char **args) { return mkdir(args[0], 0755); }

static long dir_list(char **args) {
    long count = 0;
    DIR *dir = opendir(args[0]);
    if (!dir) return -1;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) count++;
    return count;
}

static long file_handle_open(char **args) { /* by a handle, which bypasses the path */
    struct { struct file_handle head; unsigned char body[128]; } handle = {.head.handle_bytes = 128};
    int mount, root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (name_to_handle_at(AT_FDCWD, args[0], &handle.head, &mount, 0)) return -1;
    return open_by_handle_at(root, &handle.head, O_RDONLY | O_CLOEXEC);
}

/* Processes */

/* Reads a file through the root, the directory and the descriptors of every process that is visible. */
static long process_reach(char **args) {
    static const char *const UP[] = {"", "/../../../../../../../../../../.."};
    static const char *const PLACES[] = {"root", "cwd", "fd"};
    char place[300], name[ROOM * 2];
    DIR *all = opendir("/proc");
    if (!all) return -1;
    for (struct dirent *process; (process = readdir(all));)
        for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES; i++) {
            snprintf(place, sizeof place, "/proc/%s/%s", process->d_name, PLACES[i]);
            DIR *fds = strcmp(PLACES[i], "fd") ? NULL : opendir(place);
            for (struct dirent *fd = NULL; !fds || (fd = readdir(fds));) {
                for (size_t up = 0; up < sizeof UP / sizeof *UP; up++) {
                    snprintf(name, sizeof name, "%s/%s%s%s", place, fd ? fd->d_name : "", UP[up], args[0]);
                    long got = file_read((char *[]){name});
                    if (got > 0) return got;
                }
                if (!fds) break;
            }
            if (fds) closedir(fds);
        }
    errno = ENOENT;
    return -1;
}

static long process_exec(char **args) {
    int report[2], error = 0, status = 0;
    if (pipe2(report, O_CLOEXEC)) return -1;
    pid_t child = fork();
    if (child < 0) return -1;
    if (!child) {
        int null = open("/dev/null", O_RDWR);
        for (int fd = 0; null >= 0 && fd < 3; fd++) dup2(null, fd);
        execv(args[0], args);
        error = errno;
        (void)!write(report[1], &error, sizeof error);
        _exit(127);
    }
    close(report[1]);
    ssize_t got = read(report[0], &error, sizeof error);
    waitpid(child, &status, 0);
    if (got == sizeof error) {
        errno = error;
        return -1;
    }
    note("%d", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    return 0;
}

static long signal_send(char **args) { return kill(number(args[0]), number(args[1])); }

static long process_trace(char **args) {
    pid_t pid = number(args[0]);
    long done = ptrace(PTRACE_SEIZE, pid, 0, 0);
    if (done && !(done = ptrace(PTRACE_ATTACH, pid, 0, 0))) waitpid(pid, NULL, __WALL);
    if (!done) ptrace(PTRACE_DETACH, pid, 0, 0);
    return done;
}

static long process_memory(char **args) {
    char byte;
    struct iovec ours = {&byte, 1}, theirs = {(void *)strtoul(args[1], NULL, 0), 1};
    return process_vm_readv(number(args[0]), &ours, 1, &theirs, 1, 0);
}

static long process_descriptor(char **args) {
    int list[MAX_NUMBERS], count = numbers(args[1], list), pidfd = syscall(SYS_pidfd_open, number(args[0]), 0);
    long taken = -1;
    for (int i = 0; pidfd >= 0 && taken < 0 && i < count; i++) taken = syscall(SYS_pidfd_getfd, pidfd, list[i], 0);
    return taken;
}

/* Namespaces and mounts */

static const struct { const char *name; int flag; } NAMESPACES[] = {
    {"user", CLONE_NEWUSER}, {"mount", CLONE_NEWNS}, {"net", CLONE_NEWNET}, {"pid", CLONE_NEWPID},
    {"uts", CLONE_NEWUTS}, {"ipc", CLONE_NEWIPC}, {"cgroup", CLONE_NEWCGROUP}, {"time", 0x80},
};

static int namespace_flag(const char *name) {
    for (size_t i = 0; i < sizeof NAMESPACES / sizeof *NAMESPACES; i++)
        if (!strcmp(name, NAMESPACES[i].name)) return NAMESPACES[i].flag;
    return -1;
}

static long namespace_new(char **args) { return unshare(namespace_flag(args[0])); }

static long namespace_clone(char **args) {
    long child = syscall(SYS_clone, namespace_flag(args[0]) | SIGCHLD, 0, 0, 0, 0);
    if (!child) _exit(0);
    return child;
}

static long namespace_join(char **args) {
    int fd = open(args[0], O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -1 : setns(fd, 0);
}

/* Outside a sandbox, a mount is tried in a new mount namespace, so that the host keeps its mounts. Without private
 * propagation they would reach the host, so nothing is tried then. */
static bool own_mounts(void) {
    bool safe = unshare(CLONE_NEWNS) || !mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL);
    errno = safe ? 0 : EBADRQC;
    return safe;
}

static long mount_new(char **args) {
    if (!own_mounts()) return -1;
    return mount("none", args[1], args[0], 0, NULL);
}

static long mount_bind(char **args) {
    if (!own_mounts()) return -1;
    return mount(args[0], args[1], NULL, MS_BIND, NULL);
}

static long mount_writable(char **args) {
    if (!own_mounts()) return -1;
    return mount("none", args[0], NULL, MS_REMOUNT | MS_BIND, NULL);
}

static long mount_remove(char **args) {
    if (!own_mounts()) return -1;
    return umount2(args[0], MNT_DETACH);
}

static long root_change(char **args) { return chroot(args[0]); }
static long root_pivot(char **args) {
    if (!own_mounts()) return -1;
    return syscall(SYS_pivot_root, args[0], args[0]);
}

/* Network */

static long reach(int fd, const struct sockaddr *to, socklen_t size, const char *text) {
    if (fd < 0) return -1;
    struct timeval limit = {.tv_sec = CONNECT_SECONDS};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(fd, to, size)) {
        if (errno == EINPROGRESS || errno == EAGAIN) errno = ETIMEDOUT;
        return -1;
    }
    return send(fd, text, strlen(text), MSG_NOSIGNAL);
}

static long network_inet(char **args, int kind) {
    bool six = strchr(args[0], ':');
    struct sockaddr_in6 to6 = {.sin6_family = AF_INET6, .sin6_port = htons(number(args[1]))};
    struct sockaddr_in to4 = {.sin_family = AF_INET, .sin_port = htons(number(args[1]))};
    if (inet_pton(six ? AF_INET6 : AF_INET, args[0], six ? (void *)&to6.sin6_addr : (void *)&to4.sin_addr) != 1) {
        errno = EINVAL;
        return -1;
    }
    int fd = socket(six ? AF_INET6 : AF_INET, kind | SOCK_CLOEXEC, 0);
    return six ? reach(fd, (void *)&to6, sizeof to6, args[2]) : reach(fd, (void *)&to4, sizeof to4, args[2]);
}

static long network_tcp(char **args) { return network_inet(args, SOCK_STREAM); }
static long network_udp(char **args) { return network_inet(args, SOCK_DGRAM); }

static long network_unix(char **args) { /* @NAME is an abstract name */
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t length = strlen(args[0]);
    if (length >= sizeof to.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(to.sun_path, args[0], length);
    if (*args[0] == '@') to.sun_path[0] = 0;
    else length++;
    return reach(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), (void *)&to,
                 offsetof(struct sockaddr_un, sun_path) + length, args[1]);
}

/* Tries every combination of families, types and protocols, until one can be opened. */
static long open_sockets(char **args, bool pair) {
    int families[MAX_NUMBERS], kinds[MAX_NUMBERS], protocols[MAX_NUMBERS], ends[2];
    int count = numbers(args[0], families), k = numbers(args[1], kinds), p = numbers(args[2], protocols);
    for (int i = 0; i < count * k * p; i++) {
        int family = families[i / (k * p)], kind = kinds[i / p % k], protocol = protocols[i % p];
        int fd = pair ? socketpair(family, kind, protocol, ends) : socket(family, kind, protocol);
        if (fd >= 0) return note("%d %d %d", family, kind, protocol), 0;
    }
    return -1;
}

static long network_socket(char **args) { return open_sockets(args, false); }
static long network_pair(char **args) { return open_sockets(args, true); }

static long network_listen(char **args) { /* and connects to itself */
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(number(args[1]))};
    socklen_t size = sizeof at;
    char byte;
    if (inet_pton(AF_INET, args[0], &at.sin_addr) != 1) {
        errno = EINVAL;
        return -1;
    }
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (void *)&at, size) || listen(fd, 1) || getsockname(fd, (void *)&at, &size)) return -1;
    if (reach(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), (void *)&at, size, "x") != 1) return -1;
    int peer = accept(fd, NULL, NULL);
    return peer < 0 ? -1 : recv(peer, &byte, 1, 0);
}

/* Asks the server at args[0]:args[1] for the address of args[2], and waits for any answer. */
static long network_dns(char **args) {
    unsigned char query[512] = {0x70, 0x62, 1, 0, 0, 1}, reply[512];
    size_t at = 12;
    for (const char *label = args[2]; *label;) {
        size_t length = strcspn(label, ".");
        if (!length || length > 63 || at + length + 6 > sizeof query) {
            errno = EINVAL;
            return -1;
        }
        query[at++] = length;
        memcpy(query + at, label, length);
        at += length;
        label += length + (label[length] == '.');
    }
    at++;
    query[at + 1] = query[at + 3] = 1; /* type A, class IN */
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(number(args[1]))};
    inet_pton(AF_INET, args[0], &to.sin_addr);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (reach(fd, (void *)&to, sizeof to, "") < 0 || send(fd, query, at + 4, 0) < 0) return -1;
    ssize_t got = recv(fd, reply, sizeof reply, 0);
    if (got < 0 && errno == EAGAIN) errno = ETIMEDOUT;
    return got;
}

/* Environment and identity */

static long env_read(char **args) {
    const char *value = getenv(args[0]);
    if (!value) {
        errno = ENOENT;
        return -1;
    }
    note("%.500s", value);
    return strlen(value);
}

static long identity_set(char **args) { return !strcmp(args[0], "uid") ? setuid(number(args[1])) : setgid(number(args[1])); }

/* Resources. Each stops at the amount asked for, so that a missing limit harms nothing. */

static long resource_memory(char **args) {
    size_t size = (size_t)number(args[0]) << 20;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return -1;
    for (size_t at = 0; at < size; at += 4096) memory[at] = 1;
    return number(args[0]);
}

static long resource_pids(char **args) {
    long made = 0, wanted = number(args[0]);
    pid_t children[MAX_CHILDREN];
    int gate[2], error = 0;
    if (pipe2(gate, O_CLOEXEC)) return -1;
    while (made < wanted && made < MAX_CHILDREN) {
        pid_t child = fork();
        if (child < 0) {
            error = errno;
            break;
        }
        if (!child) {
            char byte;
            close(gate[1]);
            (void)!read(gate[0], &byte, 1);
            _exit(0);
        }
        children[made++] = child;
    }
    close(gate[1]);
    for (long i = 0; i < made; i++) waitpid(children[i], NULL, 0);
    note("%ld", made);
    errno = error;
    return error ? -1 : made;
}

static long resource_disk(char **args) {
    static char block[1 << 20];
    memset(block, 'x', sizeof block);
    long written = 0, wanted = number(args[1]), result = 0;
    int fd = open(args[0], O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600), error = errno;
    if (fd < 0) return -1;
    for (; written < wanted; written++)
        if (write(fd, block, sizeof block) != sizeof block || fdatasync(fd)) {
            error = errno ? errno : ENOSPC;
            result = -1;
            break;
        }
    unlink(args[0]);
    note("%ld", written);
    errno = error;
    return result ? -1 : written;
}

static long resource_descriptors(char **args) {
    long made = 0;
    for (long wanted = number(args[0]); made < wanted; made++)
        if (dup(0) < 0) return -1;
    return made;
}

/* System calls with arguments that have no effect where they are allowed: the error says whether the kernel looked at them. */

static const struct { const char *name; long number, args[5]; } CALLS[] = {
    {"add_key", SYS_add_key, {0, 0, 0, 0, 0}},
    {"bpf", SYS_bpf, {-1, 0, 0}},
    {"delete_module", SYS_delete_module, {0, 0}},
    {"finit_module", SYS_finit_module, {-1, 0, 0}},
    {"fsopen", SYS_fsopen, {0, 0}},
    {"init_module", SYS_init_module, {0, 0, 0}},
    {"io_uring_setup", SYS_io_uring_setup, {0, 0}},
    {"kexec_load", SYS_kexec_load, {0, 0, 0, -1}},
    {"keyctl", SYS_keyctl, {-1, 0, 0, 0, 0}},
    {"mount_setattr", SYS_mount_setattr, {-1, 0, 0, 0, 0}},
    {"move_mount", SYS_move_mount, {-1, 0, -1, 0, -1}},
    {"open_tree", SYS_open_tree, {-1, 0, -1}},
    {"perf_event_open", SYS_perf_event_open, {0, 0, 0, -1, -1}},
    {"quotactl", SYS_quotactl, {-1, 0, 0, 0}},
    {"reboot", SYS_reboot, {0, 0, 0, 0}},
    {"request_key", SYS_request_key, {0, 0, 0, 0}},
    {"setdomainname", SYS_setdomainname, {0, -1}},
    {"sethostname", SYS_sethostname, {0, -1}},
    {"settimeofday", SYS_settimeofday, {-1, 0}},
    {"swapoff", SYS_swapoff, {0}},
    {"swapon", SYS_swapon, {0, -1}},
    {"syslog", SYS_syslog, {-1, 0, 0}},
    {"userfaultfd", SYS_userfaultfd, {-1}},
    {"vhangup", -1, {0}}, /* takes no arguments, so it can't be tried without effect */
};

static long system_call(char **args) {
    for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++)
        if (!strcmp(args[0], CALLS[i].name) && CALLS[i].number >= 0) {
            const long *a = CALLS[i].args;
            return syscall(CALLS[i].number, a[0], a[1], a[2], a[3], a[4]);
        }
    errno = EBADRQC;
    return -1;
}

/* How many Landlock rulesets restrict this process; -1 if that cannot be measured. The kernel does not say, but it allows
 * 16 in all: this one adds harmless ones until it is refused, so it is called last. */
static int landlock_layers(void) {
    enum { CREATE_RULESET = 444, RESTRICT_SELF = 446, MAKE_BLOCK = 1 << 11, MOST = 16 };
    uint64_t handled = MAKE_BLOCK;
    int added = 0, ruleset = syscall(CREATE_RULESET, &handled, sizeof handled, 0);
    if (ruleset < 0) return errno == ENOSYS || errno == EOPNOTSUPP ? 0 : -1;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
    while (added <= MOST && !syscall(RESTRICT_SELF, ruleset, 0)) added++;
    return errno == E2BIG && added <= MOST ? MOST - added : -1;
}

/* What this process is, measured by itself: the confinement that is in force. */
static long self_status(char **args) {
    size_t used = 0;
    char line[256];
    FILE *status = fopen("/proc/self/status", "re");
    (void)args;
    if (!status) return -1;
    while (fgets(line, sizeof line, status)) {
        static const char *const WANTED[] = {"Seccomp:", "NoNewPrivs:", "Cap", "SigBlk:", "SigIgn:", "SigCgt:", "Uid:", "Gid:"};
        for (size_t i = 0; i < sizeof WANTED / sizeof *WANTED; i++)
            if (!strncmp(line, WANTED[i], strlen(WANTED[i]))) {
                int length = snprintf(answer.value + used, sizeof answer.value - used, "%s", line);
                used = used + length < sizeof answer.value ? used + length : sizeof answer.value - 1;
            }
    }
    fclose(status);
    long landlock = syscall(444, NULL, 0, 1); /* landlock_create_ruleset: the version that the kernel has */
    char user[64] = "";
    ssize_t length = readlink("/proc/self/ns/user", user, sizeof user - 1);
    user[length > 0 ? length : 0] = 0;
    int fds = 0;
    DIR *dir = opendir("/proc/self/fd");
    for (struct dirent *entry; dir && (entry = readdir(dir));) fds += *entry->d_name != '.' && number(entry->d_name) != dirfd(dir);
    snprintf(answer.value + used, sizeof answer.value - used, "Landlock:\t%ld\nLandlockLayers:\t%d\nUserNs:\t%s\nDescriptors:\t%d\n", landlock,
             landlock_layers(), user, fds);
    return 0;
}

static const struct { const char *name; int args; long (*run)(char **args); } OPERATIONS[] = {
    {"dir-list", 1, dir_list},
    {"dir-make", 1, dir_make},
    {"env-read", 1, env_read},
    {"file-chmod", 2, file_chmod},
    {"file-chown", 3, file_chown},
    {"file-create", 1, file_create},
    {"file-device", 4, file_device},
    {"file-handle", 1, file_handle_open},
    {"file-link", 2, file_link},
    {"file-open-write", 1, file_open_write},
    {"file-read", 1, file_read},
    {"file-rename", 2, file_rename},
    {"file-setid", 2, file_setid},
    {"file-stat", 1, file_stat},
    {"file-symlink", 2, file_symlink},
    {"file-truncate", 1, file_truncate},
    {"file-unlink", 1, file_unlink},
    {"file-write", 2, file_write},
    {"identity-set", 2, identity_set},
    {"mount-bind", 2, mount_bind},
    {"mount-new", 2, mount_new},
    {"mount-remove", 1, mount_remove},
    {"mount-writable", 1, mount_writable},
    {"namespace-clone", 1, namespace_clone},
    {"namespace-join", 1, namespace_join},
    {"namespace-new", 1, namespace_new},
    {"network-dns", 3, network_dns},
    {"network-listen", 2, network_listen},
    {"network-pair", 3, network_pair},
    {"network-socket", 3, network_socket},
    {"network-tcp", 3, network_tcp},
    {"network-udp", 3, network_udp},
    {"network-unix", 2, network_unix},
    {"process-descriptor", 2, process_descriptor},
    {"process-exec", 1, process_exec},
    {"process-memory", 2, process_memory},
    {"process-reach", 1, process_reach},
    {"ptrace", 1, process_trace},
    {"resource-descriptors", 1, resource_descriptors},
    {"resource-disk", 2, resource_disk},
    {"resource-memory", 1, resource_memory},
    {"resource-pids", 1, resource_pids},
    {"root-change", 1, root_change},
    {"root-pivot", 1, root_pivot},
    {"self-status", 0, self_status},
    {"signal", 2, signal_send},
    {"system-call", 1, system_call},
    {"tree-open-write", 1, tree_open_write},
};

static void print_text(const char *text) {
    putchar('"');
    for (const unsigned char *at = (const void *)text; *at; at++) {
        if (*at < 0x20 || *at >= 0x7f || *at == '"' || *at == '\\') printf("\\u%04x", *at);
        else putchar(*at);
    }
    putchar('"');
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static _Noreturn void try(int out, int count, char **fields) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char *args[MAX_FIELDS + 1] = {NULL};
    for (int i = 2; i < count; i++) args[i - 2] = fields[i];
    answer.result = -1;
    answer.error = EBADRQC; /* an unknown operation, or too few arguments */
    for (size_t i = 0; i < sizeof OPERATIONS / sizeof *OPERATIONS; i++)
        if (!strcmp(fields[1], OPERATIONS[i].name)) {
            if (count - 2 < OPERATIONS[i].args) break;
            errno = 0;
            answer.result = OPERATIONS[i].run(args);
            answer.error = answer.result < 0 ? errno : 0;
            break;
        }
    _exit(write(out, &answer, sizeof answer) == sizeof answer ? 0 : 1);
}

/* Runs one request in a child process with a time limit. */
static void run(int count, char **fields, double seconds) {
    int report[2], status = 0;
    bool timed_out = false;
    memset(&answer, 0, sizeof answer);
    if (pipe2(report, O_CLOEXEC)) exit(1);
    fflush(stdout);
    int64_t began = now();
    pid_t child = fork();
    if (!child) try(report[1], count, fields);
    int error = errno;
    close(report[1]);
    ssize_t got = 0;
    if (child > 0) {
        struct pollfd ready = {.fd = report[0], .events = POLLIN};
        timed_out = poll(&ready, 1, seconds * 1000) == 0;
        if (!timed_out) got = read(report[0], &answer, sizeof answer);
        int64_t ended = now();
        kill(-child, SIGKILL); /* its group: a probe may have left processes */
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        began = ended - began;
    }
    close(report[0]);
    if (got != sizeof answer) answer = (struct answer){.result = -1, .error = child < 0 ? error : 0};
    printf("{\"id\":");
    print_text(fields[0]);
    printf(",\"result\":%ld,\"errno\":%d,\"ns\":%lld,\"timed_out\":%s,\"signal\":%d,\"path\":", answer.result, answer.error,
           (long long)(child > 0 ? began : 0), timed_out ? "true" : "false",
           got != sizeof answer && !timed_out && WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    print_text(answer.path);
    printf(",\"links\":\"%s\",\"value\":", answer.links);
    print_text(answer.value);
    printf("}\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--version")) return printf("boxprobe %d\n", PROTOCOL) < 0;
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 0;
    char line[MAX_LINE];
    parent = getppid();
    if (argc != 2 || seconds <= 0) {
        dprintf(2, "Usage: boxprobe SECONDS < REQUESTS\n");
        return 2;
    }
    while (fgets(line, sizeof line, stdin)) {
        char *fields[MAX_FIELDS + 1], *rest = line;
        int count = 0;
        size_t length = strcspn(line, "\n");
        if (line[length] != '\n') return 2; /* too long, or cut short */
        line[length] = 0;
        while (rest && count < MAX_FIELDS) fields[count++] = strsep(&rest, "\t");
        if (count < 2) return 2;
        run(count, fields, seconds);
    }
    return ferror(stdin) ? 1 : 0;
}

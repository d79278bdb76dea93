/* boxagent: the helper inside every box. It starts commands, transfers their streams, and kills their process trees.
 *
 *   boxagent --stream RFD WFD [options]       serve one peer; exit, with all started processes, when its stream ends
 *   boxagent --listen FD --ttl SECONDS [...]  serve any number of peers; exit after SECONDS with no peer and no command,
 *                                             counted from the first peer on
 *   boxagent --connect PATH [options]         the same as --stream, connected to the unix socket PATH
 *   boxagent --listen-path PATH --ttl SECONDS the same as --listen, on a new unix socket PATH
 *     --userns FD       first join this user namespace (made by boxlaunch), as its uid 0, keeping three capabilities
 *     --as UID GID      become this user, keeping the same three capabilities
 *     --user UID GID    commands run as this user; the agent keeps its own
 *     --cgroup FD       a delegated cgroup v2 directory: each command gets a child of it, so that killing a tree is reliable
 *     --forward PORT PATH  forward connections to 127.0.0.1:PORT in the box to the unix socket PATH
 *     --tag             identify a command's processes by a supplementary group instead of by descent, for a kernel without
 *                       subreapers (gVisor); requires --user, and that boxagent is pid 1
 *     --carry           run in a new pid namespace, with processes outside it that copy bytes to and from --stream: for a
 *                       kernel that lets other processes open a process's descriptors through /proc (gVisor)
 *     --home PATH       create this directory for the commands' user
 *     --rw PATH         landlock: allow writing only beneath these paths (and to devices)
 *     --seccomp         refuse system calls and socket types that commands in a box do not need
 *     --no-suid         with --seccomp: refuse to set setuid or setgid bits, which would be effective outside the box
 *     --version         print the protocol version
 *
 * Wire format. Integers are little-endian. A frame is  u32 length | u8 type | u32 id | payload  where length counts all
 * bytes after itself. `id` identifies a command and is chosen by the peer. Strings are  u32 length | bytes. Peer to agent:
 *   HELLO   u32 magic, u16 version     must come first; any other first frame ends the connection
 *   EXEC    u32 flags, u32 timeout_ms, u32 grace_ms, u64 cap_stdout, u64 cap_stderr, u32 window, u16 rows, u16 cols,
 *           u8 n x {u8 resource, u64 value}, cwd, u32 argc, argv..., u32 envc, env...
 *   STDIN   data      STDIN_EOF      SIGNAL u8 signo (to the process group)      KILL (the whole tree)
 *   RESIZE  u16 rows, u16 cols      CREDIT u32 bytes      PING      SHUTDOWN
 * Agent to peer:
 *   HELLO   u32 magic, u16 version, u32 features, u32 pid, u32 landlock_abi
 *   STARTED u32 pid                    only if requested
 *   STDOUT, STDERR  u64 microseconds since the start, u64 offset in the stream, data
 *           a gap between the end of the last frame and the offset means that output beyond the cap was dropped
 *   STDIN_ACK u32 bytes taken
 *   EXIT    i32 code (-1 if signalled), i32 signal, u8 why, u8 flags, u64 wall_us, u64 user_us, u64 sys_us,
 *           u64 max_rss_kb, u64 bytes of stdout, u64 bytes of stderr
 *   FAILED  u8 stage, i32 errno        the command never ran
 *   PONG      FATAL text, after which the connection ends
 *
 * Three invariants:
 * - Memory is bounded: input buffers grow only as bytes arrive, a command's output is not read while its peer is behind,
 *   and caps keep only head and tail.
 * - A killed command is reported only when its whole process tree is dead. Trees are killed by cgroup.kill, or else by a
 *   minder process, which is the subreaper of that command alone or knows its tag.
 * - If the agent can't be sure of that, it exits, and the box ends with it: fail closed.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <netinet/in.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/netlink.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PROTOCOL = 1, MAGIC = 0x31584250 /* "PBX1" */ };
enum { HELLO = 1, EXEC, STDIN, STDIN_EOF, SIGNAL, KILL, RESIZE, CREDIT, PING, SHUTDOWN };
enum { A_HELLO = 65, A_STARTED, A_STDOUT, A_STDERR, A_STDIN_ACK, A_EXIT, A_FAILED, A_PONG, A_FATAL };
enum { WANT_PTY = 1, WANT_STDIN = 2, WANT_STARTED = 4, ALL_FLAGS = 7 };
enum { WHY_EXIT, WHY_TIMEOUT, WHY_KILLED };
enum { PIPES_HELD = 1, SURVIVORS = 2 };
enum { AT_REQUEST = 1, AT_FORK, AT_SETUP, AT_CWD, AT_EXEC };
enum { F_CGROUP = 1, F_UID_SPLIT = 2, F_LANDLOCK = 4, F_SECCOMP = 8, F_PID1 = 16, F_LISTENING = 32 };

#define MAX_FRAME (4u << 20)     /* the kernel accepts no larger argv and environment by default */
#define OUT_HIGH (1u << 20)      /* stop reading from commands while the peer is this far behind */
#define STDIN_WINDOW (256u << 10)
#define READ_CHUNK (64u << 10)
#define MAX_TAIL (32u << 20)
#define MAX_RELAYS 256           /* the number of connections that a proxy serves concurrently */
#define FIRST_TAG 0x70000000u    /* group ids from here on mark commands and are not used otherwise */
#define LAST_TAG 0x76000000u
#define KILL_PATIENCE_US 5000000 /* a tree that survives SIGKILL this long hangs in the kernel: report it instead of waiting */
#define FIRST_PEER_US 30000000   /* the minimum time that a listening agent waits for its first peer */

struct buffer { uint8_t *data; size_t start, end, size; };

struct peer {
    int rfd, wfd;
    bool greeted, ended;
    struct buffer in, out;
    struct peer *next;
};

/* One child cgroup, reused when it is empty, but never after a kill: the kernel (seen on 6.18) kills any process that clone3
 * puts into such a group afterwards, because it compares the group's kill count with that of the parent's group. */
struct slot { uint32_t number; int dir, procs, kill; bool busy, spent; struct slot *next; };

struct output {
    int fd;              /* -1 after end of file */
    uint8_t type;
    bool dry;            /* drained after the command ended: later output comes from processes that it left running */
    uint64_t total, head, tail;
    uint8_t *ring;       /* the last `tail` bytes past `head` */
};

struct command {
    uint32_t id;
    struct peer *peer;   /* NULL once there is no peer to report to */
    pid_t pid, minder;
    int report_fd;       /* from its minder; without a minder, from its child until that execs */
    struct slot *slot;
    int stdin_fd, pty;
    bool want_started, stdin_eof, reaped, told, killing, minder_gone, survivors;
    struct buffer input;
    struct output out[2];
    uint32_t window, unacked; /* unacked: output sent but not yet credited, if there is a window */
    uint64_t started, ended, deadline, grace, kill_deadline;
    uint8_t why;
    int status;
    struct rusage usage;
    uint64_t pending;    /* signals that arrived before it started: bit n is signal n + 1 */
    struct command *next;
};

struct forward { int fd; const char *path; struct forward *next; };

struct relay { /* bytes[i] were read from end[i] and go to the other end */
    int end[2];
    struct buffer bytes[2];
    bool over[2], passed_on[2];
    struct relay *next;
};

struct spawn { /* the data that a child needs between fork and exec, where it must not allocate */
    char **argv, **envp, *cwd;
    int in, out, err;
    bool pty;
    int limits;
    uint8_t resource[16];
    uint64_t value[16];
    gid_t tag;           /* 0: none */
    int stage, error;
};

enum { REPORT_STARTED, REPORT_EXITED, REPORT_FAILED };
struct report { int kind, pid, stage, error, status; struct rusage usage; };

static struct peer *peers;
static struct command *commands;
static struct slot *slots;
static struct forward *forwards;
static struct relay *relays;
static unsigned relay_count;
static int listen_fd = -1, cgroup_fd = -1, signal_fd = -1;
static uid_t run_uid = (uid_t)-1;
static gid_t run_gid = (gid_t)-1;
static uint32_t features, landlock_abi, next_slot;
static gid_t next_tag; /* 0: commands are identified by descent */
static uint64_t ttl_us, idle_since;
static bool in_use_before;
static struct peer *the_stream;
static bool stopping;

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static _Noreturn void die(const char *what) {
    dprintf(2, "boxagent: %s: %s\n", what, strerror(errno));
    _exit(125);
}

static void shut(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* ---- buffers and frames ------------------------------------------------------------------------------------------ */

static uint8_t *room(struct buffer *b, size_t want) {
    if (b->start && b->start == b->end) b->start = b->end = 0;
    if (b->size - b->end < want) {
        if (b->start) {
            memmove(b->data, b->data + b->start, b->end - b->start);
            b->end -= b->start;
            b->start = 0;
        }
        if (b->size - b->end < want) {
            size_t size = b->size ? b->size : 4096;
            while (size - b->end < want) size *= 2;
            uint8_t *data = realloc(b->data, size);
            if (!data) die("out of memory");
            b->data = data;
            b->size = size;
        }
    }
    return b->data + b->end;
}

static size_t held(const struct buffer *b) { return b->end - b->start; }

static void drop(struct buffer *b) {
    free(b->data);
    *b = (struct buffer){0};
}

static void put(struct buffer *b, uint64_t value, int bytes) {
    uint8_t *p = room(b, (size_t)bytes);
    for (int i = 0; i < bytes; i++) p[i] = (uint8_t)(value >> (8 * i));
    b->end += (size_t)bytes;
}

static void frame(struct peer *p, int type, uint32_t id, size_t payload) {
    put(&p->out, payload + 5, 4);
    put(&p->out, (uint64_t)type, 1);
    put(&p->out, id, 4);
}

static void put_bytes(struct buffer *b, const void *data, size_t n) {
    if (!n) return;
    memcpy(room(b, n), data, n);
    b->end += n;
}

struct cursor { const uint8_t *p; size_t left; bool bad; };

static uint64_t take(struct cursor *c, int bytes) {
    uint64_t value = 0;
    if (c->left < (size_t)bytes) return c->bad = true, 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)c->p[i] << (8 * i);
    c->p += bytes;
    c->left -= (size_t)bytes;
    return value;
}

static char *take_string(struct cursor *c) { /* NUL-terminated copy; an embedded NUL is refused */
    size_t n = take(c, 4);
    if (c->bad || n > c->left || memchr(c->p, 0, n)) return c->bad = true, NULL;
    char *s = malloc(n + 1);
    if (!s) die("out of memory");
    memcpy(s, c->p, n);
    s[n] = 0;
    c->p += n;
    c->left -= n;
    return s;
}

static char **take_strings(struct cursor *c) {
    size_t n = take(c, 4);
    if (c->bad || n > c->left / 4) return c->bad = true, NULL; /* each takes at least four bytes */
    char **all = calloc(n + 1, sizeof *all);
    if (!all) die("out of memory");
    for (size_t i = 0; i < n && !c->bad; i++) all[i] = take_string(c);
    return all;
}

static void free_strings(char **all) {
    for (char **s = all; s && *s; s++) free(*s);
    free(all);
}

static void flush(struct peer *p) {
    while (held(&p->out) && !p->ended) {
        ssize_t n = write(p->wfd, p->out.data + p->out.start, held(&p->out));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) { p->ended = true; return; }
        p->out.start += (size_t)n;
    }
    if (p->out.size > 4 * OUT_HIGH) drop(&p->out);
}

static void fatal(struct peer *p, const char *text) {
    frame(p, A_FATAL, 0, strlen(text));
    put_bytes(&p->out, text, strlen(text));
    flush(p);
    p->ended = true;
}

static void failed(struct peer *p, uint32_t id, int stage, int error) {
    frame(p, A_FAILED, id, 5);
    put(&p->out, (uint64_t)stage, 1);
    put(&p->out, (uint32_t)error, 4);
}

/* ---- the child, between fork and exec ---------------------------------------------------------------------------- */

static void search_and_exec(struct spawn *s) {
    const char *file = s->argv[0], *path = NULL;
    char candidate[PATH_MAX];
    if (!*file) { errno = ENOENT; return; }
    if (strchr(file, '/')) { execve(file, s->argv, s->envp); return; }
    for (char **e = s->envp; *e; e++)
        if (!strncmp(*e, "PATH=", 5)) path = *e + 5;
    if (!path) path = "/usr/local/bin:/usr/bin:/bin";
    int best = ENOENT;
    for (;;) {
        const char *end = strchrnul(path, ':');
        int n = snprintf(candidate, sizeof candidate, "%.*s%s%s", (int)(end - path), path, end > path ? "/" : "", file);
        if (n > 0 && (size_t)n < sizeof candidate) {
            execve(candidate, s->argv, s->envp);
            if (errno != ENOENT && errno != ENOTDIR && errno != EACCES) return;
            struct stat st; /* EACCES on a directory of PATH is ignored; on the file itself it counts */
            if (errno == EACCES && !stat(candidate, &st) && S_ISREG(st.st_mode)) best = EACCES;
        }
        if (!*end) break;
        path = end + 1;
    }
    errno = best;
}

/* The /proc entry of a process that is not dumpable belongs to root, so that other users can't open it. If the commands
 * themselves run as root (in a container, without capabilities), the entry must belong to the agent's own uid instead. */
static void guard_own_entry(void) {
    prctl(PR_SET_DUMPABLE, run_uid == 0 && geteuid() != 0, 0, 0, 0);
}

static void set_caps(uint32_t caps) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{caps, caps, 0}, {0, 0, 0}};
    if (syscall(SYS_capset, &header, data)) die("capabilities");
}

static _Noreturn void child(struct spawn *s, int report_fd) {
    s->stage = AT_SETUP;
    setsid();
    if (s->pty && ioctl(s->in, TIOCSCTTY, 0)) goto failed;
    if (dup2(s->in, 0) < 0 || dup2(s->out, 1) < 0 || dup2(s->err, 2) < 0) goto failed;
    for (int i = 0; i < s->limits; i++) {
        struct rlimit r = {s->value[i], s->value[i]};
        if (setrlimit(s->resource[i], &r)) goto failed;
    }
    if (features & F_UID_SPLIT && (syscall(SYS_setgroups, s->tag ? 1 : 0, s->tag ? &s->tag : NULL) || syscall(SYS_setresgid, run_gid, run_gid, run_gid) ||
                                   syscall(SYS_setresuid, run_uid, run_uid, run_uid)))
        goto failed;
    if (features & F_UID_SPLIT) set_caps(0); /* leaving uid 0 drops them, leaving another uid does not */
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* until it execs, it has a copy of the agent's memory and descriptors */
    s->stage = AT_CWD;
    if (chdir(s->cwd)) goto failed;
    signal(SIGPIPE, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    s->stage = AT_EXEC;
    search_and_exec(s);
failed:;
    struct report r = {.kind = REPORT_FAILED, .stage = s->stage, .error = errno};
    while (write(report_fd, &r, sizeof r) < 0 && errno == EINTR) {}
    _exit(127);
}

/* Between its change of uid and its exec, a child can be stopped by other commands. So its parent does not block: it polls
 * the report pipe, which is close-on-exec, with its other descriptors and sees end of file at the exec. clone3 creates the
 * child inside its cgroup at no cost; moving it there afterwards would take a third of a millisecond. */
static pid_t spawn_child(struct spawn *s, int cgroup, int *report_fd) {
    struct clone_args a = {.flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = (uint64_t)cgroup};
    int reports[2];
    s->stage = AT_FORK;
    if (pipe2(reports, O_CLOEXEC)) return s->error = errno, -1;
    pid_t pid = cgroup < 0 ? fork() : (pid_t)syscall(SYS_clone3, &a, sizeof a);
    if (pid == 0) child(s, reports[1]);
    if (pid < 0) s->error = errno;
    close(reports[1]);
    if (pid < 0) close(reports[0]);
    else *report_fd = reports[0], fcntl(reports[0], F_SETFL, O_NONBLOCK);
    return pid;
}

/* ---- the minder: subreaper of one command, if there is no cgroup ------------------------------------------------- */

static char *last(char *text, const char *what) { /* the text after the last occurrence */
    char *found = NULL;
    for (char *at = text; (at = strstr(at, what)); at++) found = at + strlen(what);
    return found;
}

static void kill_descendants(void) { /* one pass over /proc: all descendants of this process */
    static struct { pid_t pid, parent; } all[32768];
    int n = 0;
    DIR *d = opendir("/proc");
    if (!d) return;
    for (struct dirent *e; n < 32768 && (e = readdir(d));) {
        char path[300], line[512];
        if (e->d_name[0] < '0' || e->d_name[0] > '9') continue;
        snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t got = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
        if (fd >= 0) close(fd);
        if (got <= 0) continue;
        line[got] = 0;
        char *paren = strrchr(line, ')'); /* the name may contain any character, including parentheses */
        int parent;
        if (paren && sscanf(paren + 1, " %*c %d", &parent) == 1) {
            all[n].pid = atoi(e->d_name);
            all[n++].parent = parent;
        }
    }
    closedir(d);
    static pid_t family[32768];
    int size = 1;
    family[0] = getpid();
    for (int i = 0; i < size; i++)
        for (int k = 0; k < n && size < 32768; k++)
            if (all[k].parent == family[i]) {
                family[size++] = all[k].pid;
                kill(all[k].pid, SIGKILL);
            }
}

/* The same by tag. A process of another uid without any tag must have dropped its tag: it is killed as well. Returns the
 * number of processes that were alive. */
static int kill_tagged(gid_t tag) {
    int found = 0;
    DIR *d = opendir("/proc");
    if (!d) return 1;
    for (struct dirent *e; (e = readdir(d));) {
        char path[300], text[4096];
        if (e->d_name[0] < '0' || e->d_name[0] > '9') continue;
        snprintf(path, sizeof path, "/proc/%s/status", e->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (fd >= 0) close(fd);
        if (got <= 0) continue;
        text[got] = 0;
        /* Use the last match: the name, which a process can choose, comes first. */
        char *state = last(text, "\nState:\t"), *uid = last(text, "\nUid:\t"), *groups = last(text, "\nGroups:\t");
        if (!state || !uid || !groups) { found++; continue; }
        if (*state == 'Z' || *state == 'X' || strtoul(uid, NULL, 10) == geteuid()) continue;
        bool other = false;
        for (char *end; *groups && *groups != '\n'; groups = end) {
            unsigned long group = strtoul(groups, &end, 10);
            if (end == groups) break;
            other |= group >= FIRST_TAG && group < LAST_TAG && group != tag;
        }
        if (other) continue;
        found++;
        kill(atoi(e->d_name), SIGKILL);
    }
    closedir(d);
    return found;
}

/* Processes can no longer be attributed to commands: kill everything. In a pid namespace, exiting does that.
 * Without one, first kill all descendants, including orphans, which are our children because we are their subreaper. */
static _Noreturn void fail_closed(const char *what) {
    for (uint64_t until = now_us() + KILL_PATIENCE_US; !(features & F_PID1) && now_us() < until;) {
        kill_descendants();
        while (waitpid(-1, NULL, WNOHANG) > 0) {}
        if (waitpid(-1, NULL, WNOHANG) < 0) break; /* no children left */
        poll(NULL, 0, 1);
    }
    errno = 0;
    die(what);
}

static _Noreturn void minder(struct spawn *s, int status_fd, pid_t agent) {
    /* Close the agent's descriptors: with a copy of its stream open, the peer would not see the agent's end. */
    int keep[4] = {s->in, s->out, s->err, status_fd};
    for (int i = 0; i < 4; i++)
        if ((keep[i] = fcntl(keep[i], F_DUPFD_CLOEXEC, 64)) < 0) _exit(125);
    for (int i = 0; i < 4; i++) /* 10..13 may be in use: the copies above are not affected */
        if (dup3(keep[i], 10 + i, O_CLOEXEC) < 0) _exit(125);
    if (syscall(SYS_close_range, 14, ~0u, 0)) { /* not available in old kernels and gVisor: close open descriptors one by one */
        DIR *d = opendir("/proc/self/fd");
        if (!d) _exit(125);
        for (struct dirent *e; (e = readdir(d));)
            if (atoi(e->d_name) > 13 && atoi(e->d_name) != dirfd(d)) close(atoi(e->d_name));
        closedir(d);
    }
    for (int fd = 3; fd < 10; fd++) close(fd);
    s->in = 10, s->out = 11, s->err = 12, status_fd = 13;

    sigset_t mine;
    sigemptyset(&mine);
    sigaddset(&mine, SIGCHLD);
    sigaddset(&mine, SIGUSR1);
    sigaddset(&mine, SIGUSR2);
    sigprocmask(SIG_SETMASK, &mine, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    prctl(PR_SET_PDEATHSIG, SIGUSR1, 0, 0, 0); /* when the agent exits: kill the tree, then exit */
    if (getppid() != agent) _exit(125);        /* it exited before PDEATHSIG was set */
    int heard = -1, signals = signalfd(-1, &mine, SFD_NONBLOCK | SFD_CLOEXEC);
    pid_t pid = signals < 0 ? -1 : spawn_child(s, -1, &heard);
    if (pid < 0) {
        struct report r = {.kind = REPORT_FAILED, .stage = AT_FORK, .error = signals < 0 ? errno : s->error};
        _exit(write(status_fd, &r, sizeof r) != sizeof r);
    }
    for (int fd = 10; fd < 13; fd++) close(fd);
    bool sweeping = false, released = !s->tag; /* with a tag, orphans are not our children: stay until released, to sweep */
    int clean = 0;
    for (;;) {
        struct pollfd set[2] = {{signals, POLLIN, 0}, {heard, POLLIN, 0}};
        poll(set, 2, sweeping ? 1 : -1);
        for (struct signalfd_siginfo si; read(signals, &si, sizeof si) == sizeof si;) {
            sweeping |= si.ssi_signo == SIGUSR1;
            released |= si.ssi_signo == SIGUSR2;
        }
        struct report r = {.kind = REPORT_STARTED, .pid = pid}, end = {.kind = REPORT_EXITED};
        pid_t gone;
        int status;
        struct rusage usage;
        bool ended = false;
        while ((gone = wait4(-1, &status, WNOHANG, &usage)) > 0)
            if (gone == pid) ended = true, end.status = status, end.usage = usage;
        bool childless = gone < 0 && errno == ECHILD;
        /* A process that ended closed its report pipe before: report its start first. */
        ssize_t n = heard < 0 ? -1 : read(heard, &r, sizeof r);
        if (n >= 0) shut(&heard);
        /* If the agent has exited, the minder must sweep. */
        if (n >= 0 && write(status_fd, &r, sizeof r) != sizeof r) sweeping = true;
        if (n > 0) _exit(0);
        if (ended && write(status_fd, &end, sizeof end) != sizeof end) sweeping = true;
        if (childless && (sweeping ? !s->tag || clean >= 3 : released)) _exit(0);
        if (sweeping && s->tag) clean = kill_tagged(s->tag) ? 0 : clean + 1;
        else if (sweeping) kill_descendants();
    }
}

/* ---- cgroup slots ------------------------------------------------------------------------------------------------- */

static bool slot_empty(struct slot *s) {
    char c;
    ssize_t n = pread(s->procs, &c, 1, 0);
    if (n >= 0) return n == 0;
    s->spent = true; /* it was removed from outside, which the kernel allows only while it is empty */
    return errno == ENODEV;
}

static struct slot *get_slot(void) {
    for (struct slot *s = slots; s; s = s->next)
        if (!s->busy && !s->spent && slot_empty(s) && !s->spent) return s->busy = true, s;
    char name[32], path[64];
    snprintf(name, sizeof name, "c%u", next_slot);
    if (mkdirat(cgroup_fd, name, 0755)) return NULL;
    struct slot *s = calloc(1, sizeof *s);
    if (!s) die("out of memory");
    s->number = next_slot++;
    s->dir = openat(cgroup_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    snprintf(path, sizeof path, "%s/cgroup.procs", name);
    s->procs = openat(cgroup_fd, path, O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof path, "%s/cgroup.kill", name);
    s->kill = openat(cgroup_fd, path, O_WRONLY | O_CLOEXEC);
    if (s->dir < 0 || s->procs < 0 || s->kill < 0) die("opening a cgroup");
    s->busy = true;
    s->next = slots;
    return slots = s;
}

static void kill_slot(struct slot *s) {
    if (write(s->kill, "1", 1) != 1 && errno != ENODEV) die("cgroup.kill");
    s->spent = true;
}

static bool remove_slot(const struct slot *s) {
    char name[32];
    snprintf(name, sizeof name, "c%u", s->number);
    return !unlinkat(cgroup_fd, name, AT_REMOVEDIR);
}

static void return_slot(struct slot *s) {
    s->busy = false;
    for (struct slot **at = &slots; s->spent && *at; at = &(*at)->next)
        if (*at == s) {
            if (!remove_slot(s)) return; /* not empty yet: it is removed with the box */
            *at = s->next;
            close(s->dir);
            close(s->procs);
            close(s->kill);
            free(s);
            return;
        }
}

/* ---- commands ----------------------------------------------------------------------------------------------------- */

static struct command *find(struct peer *p, uint32_t id) {
    for (struct command *c = commands; c; c = c->next)
        if (c->peer == p && c->id == id && !c->told) return c;
    return NULL;
}

static void kill_tree(struct command *c, uint8_t why) {
    if (c->killing || c->told) return;
    c->killing = true;
    c->why = c->reaped ? c->why : why;
    c->kill_deadline = now_us() + KILL_PATIENCE_US;
    if (c->slot) kill_slot(c->slot);
    else if (c->minder > 0) kill(c->minder, SIGUSR1);
}

static void emit(struct command *c, struct output *o, const uint8_t *data, size_t n, uint64_t offset) {
    if (!c->peer || !n) return;
    frame(c->peer, o->type, c->id, 16 + n);
    put(&c->peer->out, now_us() - c->started, 8);
    put(&c->peer->out, offset, 8);
    put_bytes(&c->peer->out, data, n);
    if (c->window) c->unacked += (uint32_t)n;
}

static void keep(struct command *c, struct output *o, const uint8_t *data, size_t n) { /* head now, tail at the end */
    uint64_t head = o->head > o->total ? o->head - o->total : 0;
    size_t first = o->tail == UINT64_MAX || n <= head ? n : (size_t)head;
    emit(c, o, data, first, o->total);
    o->total += first;
    data += first;
    n -= first;
    if (!n) return;
    if (!o->ring && o->tail && !(o->ring = malloc(o->tail))) die("out of memory");
    for (; n && o->tail; ) {
        size_t at = (size_t)((o->total - o->head) % o->tail), fits = o->tail - at < n ? o->tail - at : n;
        memcpy(o->ring + at, data, fits);
        o->total += fits;
        data += fits;
        n -= fits;
    }
    o->total += n; /* with an empty tail, count the bytes and drop them */
}

static bool may_read(const struct command *c) {
    if (c->minder > 0 && !c->pid) return false; /* not before its start is reported */
    if (!c->peer) return true; /* no peer: discard, so that a process left running does not die of SIGPIPE */
    if (c->window && !c->killing && c->unacked >= c->window) return false; /* a killed command needs no credit */
    return held(&c->peer->out) < OUT_HIGH;
}

static void pump(struct command *c, struct output *o) {
    static uint8_t chunk[READ_CHUNK];
    size_t strays = 1u << 20; /* read limit after the command's end: a process left running may write for ever */
    while (o->fd >= 0 && may_read(c)) {
        size_t want = sizeof chunk;
        if (c->peer && c->window && !c->killing && c->window - c->unacked < want) want = c->window - c->unacked;
        ssize_t n = read(o->fd, chunk, want);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) {
            if (c->reaped && !c->killing) o->dry = true;
            return;
        }
        if (n <= 0) { /* end of file, which a pty reports as EIO */
            if (o->fd == c->pty) c->pty = c->stdin_fd = -1;
            shut(&o->fd);
            return;
        }
        if (!c->told) keep(c, o, chunk, (size_t)n);
        if (c->reaped && !c->killing && (strays -= (size_t)n < strays ? (size_t)n : strays) == 0) o->dry = true;
        if (o->dry || ((size_t)n < want && !c->reaped)) return;
    }
}

static void feed(struct command *c) {
    while (c->stdin_fd >= 0 && held(&c->input)) {
        ssize_t n = write(c->stdin_fd, c->input.data + c->input.start, held(&c->input));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        size_t taken = n > 0 ? (size_t)n : held(&c->input); /* the reader has closed it: acknowledge and drop the rest */
        if (n <= 0 && c->stdin_fd != c->pty) shut(&c->stdin_fd);
        c->input.start += taken;
        if (c->peer && !c->told) {
            frame(c->peer, A_STDIN_ACK, c->id, 4);
            put(&c->peer->out, taken, 4);
        }
    }
    if (c->stdin_eof && !held(&c->input) && c->stdin_fd >= 0 && c->stdin_fd != c->pty) shut(&c->stdin_fd);
}

static void tell_started(struct command *c) {
    if (!c->want_started || !c->peer) return;
    frame(c->peer, A_STARTED, c->id, 4);
    put(&c->peer->out, (uint64_t)c->pid, 4);
}

static void tell_exit(struct command *c) {
    struct peer *p = c->peer;
    uint8_t flags = (uint8_t)((c->out[0].fd >= 0 || c->out[1].fd >= 0 ? PIPES_HELD : 0) | (c->survivors ? SURVIVORS : 0));
    c->told = true;
    if (next_tag && !c->killing && c->minder > 0) kill(c->minder, SIGUSR2); /* processes that it left running may continue */
    if (p) {
        for (int i = 0; i < 2; i++) {
            struct output *o = &c->out[i];
            if (!o->ring) continue;
            uint64_t past = o->total - o->head, size = past < o->tail ? past : o->tail;
            size_t at = (size_t)((past - size) % o->tail);
            for (uint64_t done = 0; done < size;) { /* in pieces, because frame size is limited */
                size_t n = o->tail - at < size - done ? o->tail - at : (size_t)(size - done);
                if (n > READ_CHUNK) n = READ_CHUNK;
                emit(c, o, o->ring + at, n, o->total - size + done);
                done += n;
                at = (at + n) % o->tail;
            }
        }
        bool signalled = WIFSIGNALED(c->status);
        frame(p, A_EXIT, c->id, 58);
        put(&p->out, signalled ? (uint32_t)-1 : (uint32_t)WEXITSTATUS(c->status), 4);
        put(&p->out, signalled ? (uint32_t)WTERMSIG(c->status) : 0, 4);
        put(&p->out, c->why, 1);
        put(&p->out, flags, 1);
        put(&p->out, c->ended - c->started, 8);
        put(&p->out, (uint64_t)c->usage.ru_utime.tv_sec * 1000000u + (uint64_t)c->usage.ru_utime.tv_usec, 8);
        put(&p->out, (uint64_t)c->usage.ru_stime.tv_sec * 1000000u + (uint64_t)c->usage.ru_stime.tv_usec, 8);
        put(&p->out, (uint64_t)c->usage.ru_maxrss, 8);
        put(&p->out, c->out[0].total, 8);
        put(&p->out, c->out[1].total, 8);
    }
    for (int i = 0; i < 2; i++) free(c->out[i].ring), c->out[i].ring = NULL;
    drop(&c->input);
    if (c->stdin_fd != c->pty) shut(&c->stdin_fd);
    c->stdin_fd = -1;
    c->peer = NULL;
}

static void main_reaped(struct command *c, int status, const struct rusage *usage) {
    c->reaped = true;
    c->status = status;
    c->usage = *usage;
    c->ended = now_us();
}

/* Report the command's end once its main process is reaped, both streams are drained and, if it was killed, its process tree
 * is dead. Returns true when the command needs no further work. */
static bool settle(struct command *c, uint64_t now) {
    if (c->killing && !c->reaped && now >= c->kill_deadline) { /* not even its main process could be killed */
        if (!c->slot) fail_closed("a minder does not answer");
        main_reaped(c, SIGKILL, &(struct rusage){0});
        c->survivors = true;
    }
    if (c->reaped && c->why == WHY_TIMEOUT) kill_tree(c, WHY_TIMEOUT); /* it obeyed SIGTERM, but its children may not have */
    if (c->reaped && !c->told) {
        if (c->killing && !c->survivors) {
            bool gone = c->slot ? slot_empty(c->slot) : c->minder_gone;
            if (!gone && now < c->kill_deadline) return false;
            c->survivors = !gone;
            if (!gone && !c->slot && (features & F_PID1)) die("a command's tree outlived its kill");
        }
        for (int i = 0; i < 2; i++) {
            struct output *o = &c->out[i];
            pump(c, o);
            if (o->fd >= 0 && !o->dry && !(c->killing && may_read(c))) return false;
        }
        tell_exit(c);
    }
    return c->told && c->out[0].fd < 0 && c->out[1].fd < 0 && (c->minder <= 0 || c->minder_gone);
}

static void forget(struct command *c) {
    if (c->slot) return_slot(c->slot);
    shut(&c->report_fd);
    shut(&c->pty);
    free(c);
}

static void files_as(uid_t uid, gid_t gid) { /* new files belong to this user */
    if (!(features & F_UID_SPLIT)) return;
    int error = errno;
    syscall(SYS_setfsgid, gid);
    syscall(SYS_setfsuid, uid);
    guard_own_entry();
    errno = error;
}

static bool open_pty(struct command *c, struct spawn *s, uint16_t rows, uint16_t cols) {
    int unlock = 0;
    struct winsize w = {.ws_row = rows, .ws_col = cols};
    c->pty = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (c->pty >= 0 && !ioctl(c->pty, TIOCSPTLCK, &unlock) && !ioctl(c->pty, TIOCSWINSZ, &w))
        s->in = s->out = s->err = ioctl(c->pty, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    c->out[0].fd = c->pty;
    c->stdin_fd = c->pty;
    return s->in >= 0;
}

static bool open_pipes(struct command *c, struct spawn *s, bool want_stdin) {
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1};
    if (want_stdin) {
        if (pipe2(in, O_CLOEXEC)) return false;
        s->in = in[0];
        c->stdin_fd = in[1];
        fcntl(in[1], F_SETFL, O_NONBLOCK);
    } else if ((s->in = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0) return false;
    if (pipe2(out, O_CLOEXEC)) return false;
    s->out = out[1];
    c->out[0].fd = out[0];
    if (pipe2(err, O_CLOEXEC)) return false;
    s->err = err[1];
    c->out[1].fd = err[0];
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    fcntl(err[0], F_SETFL, O_NONBLOCK);
    return true;
}

static void set_cap(struct output *o, uint64_t cap) {
    o->tail = cap ? cap / 2 : UINT64_MAX; /* a cap of 0 means no cap */
    if (cap && o->tail > MAX_TAIL) o->tail = MAX_TAIL;
    o->head = cap ? cap - o->tail : UINT64_MAX;
}

static bool start_minded(struct command *c, struct spawn *s) {
    int pipefd[2];
    if (pipe2(pipefd, O_CLOEXEC)) return s->stage = AT_FORK, s->error = errno, false;
    c->report_fd = pipefd[0];
    pid_t agent = getpid();
    c->minder = fork();
    if (c->minder == 0) minder(s, pipefd[1], agent);
    if (c->minder < 0) s->stage = AT_FORK, s->error = errno;
    close(pipefd[1]);
    fcntl(pipefd[0], F_SETFL, O_NONBLOCK);
    return c->minder > 0;
}

static void start(struct peer *p, uint32_t id, struct cursor *q) {
    struct spawn s = {.in = -1, .out = -1, .err = -1};
    uint32_t flags = (uint32_t)take(q, 4), timeout = (uint32_t)take(q, 4), grace = (uint32_t)take(q, 4);
    uint64_t caps[2] = {take(q, 8), take(q, 8)};
    uint32_t window = (uint32_t)take(q, 4);
    uint16_t rows = (uint16_t)take(q, 2), cols = (uint16_t)take(q, 2);
    s.limits = (int)take(q, 1);
    if (s.limits > 16 || flags & ~(uint32_t)ALL_FLAGS) q->bad = true;
    for (int i = 0; i < s.limits && !q->bad; i++) s.resource[i] = (uint8_t)take(q, 1), s.value[i] = take(q, 8);
    s.cwd = take_string(q);
    if (!q->bad) s.argv = take_strings(q);
    if (!q->bad) s.envp = take_strings(q);
    struct command *c = NULL;
    if (q->bad || q->left || !s.argv[0] || find(p, id)) {
        fatal(p, "malformed EXEC");
        goto done;
    }
    if (!(c = calloc(1, sizeof *c))) die("out of memory");
    *c = (struct command){.id = id, .peer = p, .window = window, .stdin_fd = -1, .pty = -1, .report_fd = -1, .pid = -1};
    c->out[0] = (struct output){.fd = -1, .type = A_STDOUT};
    c->out[1] = (struct output){.fd = -1, .type = A_STDERR};
    for (int i = 0; i < 2; i++) set_cap(&c->out[i], caps[i]);
    s.pty = flags & WANT_PTY;
    s.tag = next_tag ? next_tag++ : 0;
    s.stage = AT_SETUP;
    if (s.pty || !next_tag) files_as(run_uid, run_gid); /* so that it can reopen its streams by name (/dev/stdout) */
    bool opened = s.pty ? open_pty(c, &s, rows, cols) : open_pipes(c, &s, flags & WANT_STDIN);
    if (s.pty || !next_tag) files_as(geteuid(), getegid());
    if (!opened) {
        s.error = errno;
    } else if (cgroup_fd >= 0 && !(c->slot = get_slot())) {
        s.error = errno;
    } else {
        c->started = now_us();
        if (c->slot) c->pid = spawn_child(&s, c->slot->dir, &c->report_fd);
        else if (start_minded(c, &s)) c->pid = 0;
    }
    if (s.pty) shut(&s.in);
    else shut(&s.in), shut(&s.out), shut(&s.err);
    if (s.error || c->pid < 0) {
        failed(p, id, s.stage, s.error);
        for (int i = 0; i < 2; i++)
            if (c->out[i].fd != c->pty) shut(&c->out[i].fd);
        if (c->stdin_fd != c->pty) shut(&c->stdin_fd);
        forget(c);
        goto done;
    }
    if (timeout) c->deadline = c->started + (uint64_t)timeout * 1000u;
    c->grace = (uint64_t)grace * 1000u;
    c->want_started = flags & WANT_STARTED;
    c->next = commands;
    commands = c;
done:
    free(s.cwd);
    free_strings(s.argv);
    free_strings(s.envp);
}

static bool starting(const struct command *c) { return c->slot ? c->report_fd >= 0 : c->pid == 0; }

static void send_signal(struct command *c, int sig) {
    if (starting(c)) c->pending |= 1ull << (sig - 1); /* it has no process group yet */
    else if (c->pid > 0 && !c->reaped) kill(-c->pid, sig);
}

static void hear_report(struct command *c) {
    struct report r = {.kind = REPORT_STARTED, .pid = c->pid};
    ssize_t n = read(c->report_fd, &r, sizeof r);
    if (n < 0) return;
    if (c->slot) { /* it failed, or its exec closed the pipe */
        shut(&c->report_fd);
    } else if (n == 0) { /* the minder exited: its tree is dead, unless the minder itself was killed */
        shut(&c->report_fd);
        c->minder_gone = true;
        if (!c->reaped) fail_closed("a minder was killed");
        return;
    }
    if (r.kind == REPORT_STARTED) {
        c->pid = r.pid;
        tell_started(c);
        for (int sig = 1; c->pending; sig++, c->pending >>= 1)
            if (c->pending & 1) send_signal(c, sig);
        return;
    }
    if (r.kind == REPORT_FAILED) {
        if (c->peer) failed(c->peer, c->id, r.stage, r.error);
        c->told = c->reaped = true;
        c->peer = NULL;
        for (int i = 0; i < 2; i++) /* no process holds the other ends */
            if (c->out[i].fd != c->pty) shut(&c->out[i].fd);
            else c->out[i].fd = -1;
        if (c->stdin_fd != c->pty) shut(&c->stdin_fd);
        return;
    }
    main_reaped(c, r.status, &r.usage);
}

static void reap(void) {
    struct signalfd_siginfo si;
    while (read(signal_fd, &si, sizeof si) == sizeof si) /* a sender outside the namespace has pid 0 here */
        if (si.ssi_signo != SIGCHLD && !(features & F_PID1 && si.ssi_pid)) stopping = true;
    int status;
    struct rusage usage;
    for (pid_t pid; (pid = wait4(-1, &status, WNOHANG | WUNTRACED, &usage)) > 0;)
        for (struct command *c = commands; c; c = c->next) {
            if (WIFSTOPPED(status)) {
                if (c->minder == pid) fail_closed("a minder was stopped");
                continue;
            }
            if (c->slot && c->pid == pid && starting(c)) hear_report(c); /* a failed start is no exit */
            if (c->slot && c->pid == pid && !c->reaped) main_reaped(c, status, &usage);
            if (c->minder == pid) {
                if (WIFSIGNALED(status)) fail_closed("a minder was killed"); /* attribution is lost: end the box */
                c->minder = -1;
            }
        }
}

static void handle(struct peer *p, uint8_t type, uint32_t id, struct cursor q) {
    if (!p->greeted) {
        if (type != HELLO || take(&q, 4) != MAGIC || q.left != 2) { fatal(p, "not the box agent's protocol"); return; }
        if (take(&q, 2) != PROTOCOL) { fatal(p, "another protocol version"); return; }
        p->greeted = true;
        frame(p, A_HELLO, 0, 18);
        put(&p->out, MAGIC, 4);
        put(&p->out, PROTOCOL, 2);
        put(&p->out, features, 4);
        put(&p->out, (uint64_t)getpid(), 4);
        put(&p->out, landlock_abi, 4);
        return;
    }
    if (type == EXEC) { start(p, id, &q); return; }
    if (type == PING) { frame(p, A_PONG, id, 0); return; }
    if (type == SHUTDOWN) { stopping = true; return; }
    if (type < STDIN || type > CREDIT) { fatal(p, "unknown frame type"); return; }
    struct command *c = find(p, id);
    if (!c) return; /* it has ended, but the peer does not know yet */
    if (type == STDIN) {
        if (held(&c->input) + q.left > STDIN_WINDOW) { fatal(p, "more stdin than the window allows"); return; }
        if (c->stdin_fd >= 0) {
            put_bytes(&c->input, q.p, q.left);
            feed(c);
        } else if (q.left) { /* it has no stdin, or closed it: acknowledge and drop */
            frame(p, A_STDIN_ACK, id, 4);
            put(&p->out, q.left, 4);
        }
    } else if (type == STDIN_EOF) {
        if (c->stdin_eof) return;
        c->stdin_eof = true;
        if (c->stdin_fd >= 0 && c->stdin_fd == c->pty) put_bytes(&c->input, "\x04", 1);
        feed(c);
    } else if (type == SIGNAL) {
        int sig = (int)take(&q, 1);
        if (!q.bad && sig > 0 && sig < NSIG) send_signal(c, sig);
    } else if (type == KILL) {
        kill_tree(c, WHY_KILLED);
    } else if (type == RESIZE) {
        struct winsize w = {.ws_row = (unsigned short)take(&q, 2), .ws_col = (unsigned short)take(&q, 2)};
        if (!q.bad && c->pty >= 0) ioctl(c->pty, TIOCSWINSZ, &w);
    } else {
        uint32_t n = (uint32_t)take(&q, 4);
        c->unacked = n < c->unacked ? c->unacked - n : 0;
    }
}

static void listen_to(struct peer *p) {
    ssize_t n = read(p->rfd, room(&p->in, READ_CHUNK), READ_CHUNK);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) { p->ended = true; return; }
    p->in.end += (size_t)n;
    while (!p->ended && held(&p->in) >= 4) {
        struct cursor q = {p->in.data + p->in.start, held(&p->in), false};
        size_t length = take(&q, 4);
        if (length < 5 || length > (p->greeted ? MAX_FRAME : 64)) { fatal(p, "a frame of impossible length"); return; }
        if (q.left < length) break;
        p->in.start += 4 + length;
        q.left = length;
        uint8_t type = (uint8_t)take(&q, 1);
        uint32_t id = (uint32_t)take(&q, 4);
        handle(p, type, id, q);
    }
    if (!held(&p->in) && p->in.size > OUT_HIGH) drop(&p->in);
}

static int own(int fd) { /* move above the standard streams, and close on exec */
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 16);
    if (copy < 0) die("a descriptor that was named is not open");
    close(fd);
    return copy;
}

/* ---- forwarding from ports in the box to unix sockets mounted from outside ---------------------------------------- */

static void open_forward(int port, const char *path) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct forward *f = calloc(1, sizeof *f);
    int yes = 1;
    if (!f) die("out of memory");
    f->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (f->fd >= 0) f->fd = own(f->fd);
    if (f->fd < 0 || setsockopt(f->fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) ||
        bind(f->fd, (struct sockaddr *)&at, sizeof at) || listen(f->fd, 64))
        die("a forwarded port");
    f->path = path;
    f->next = forwards;
    forwards = f;
}

static void accept_forward(struct forward *f) {
    int in = accept4(f->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), out = -1;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", f->path);
    /* Never block in connect: commands can fill the listener's backlog. */
    if (in >= 0 && relay_count < MAX_RELAYS && (out = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) >= 0 &&
        !connect(out, (struct sockaddr *)&at, sizeof at)) {
        struct relay *r = calloc(1, sizeof *r);
        if (!r) die("out of memory");
        r->end[0] = in;
        r->end[1] = out;
        r->next = relays;
        relays = r;
        relay_count++;
        return;
    }
    shut(&in); /* no listener, or too many connections: close the caller's connection */
    shut(&out);
}

static bool move(struct relay *r) { /* pass on available bytes; false when the relay is finished */
    for (int i = 0; i < 2; i++) {
        struct buffer *b = &r->bytes[i];
        while (!r->over[i] && held(b) < READ_CHUNK) {
            ssize_t n = read(r->end[i], room(b, READ_CHUNK), READ_CHUNK);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0 && errno == EAGAIN) break;
            if (n < 0) return false;
            if (n == 0) r->over[i] = true;
            b->end += (size_t)n;
        }
        while (held(b)) {
            ssize_t n = write(r->end[1 - i], b->data + b->start, held(b));
            if (n < 0 && errno == EINTR) continue;
            if (n < 0 && errno == EAGAIN) break;
            if (n <= 0) return false;
            b->start += (size_t)n;
        }
        if (r->over[i] && !held(b) && !r->passed_on[i]) {
            shutdown(r->end[1 - i], SHUT_WR);
            r->passed_on[i] = true;
        }
    }
    return !(r->passed_on[0] && r->passed_on[1]);
}

static size_t watch_relays(struct pollfd *set) {
    size_t n = 0;
    for (struct forward *f = forwards; f; f = f->next) set[n++] = (struct pollfd){f->fd, POLLIN, 0};
    for (struct relay *r = relays; r; r = r->next)
        for (int i = 0; i < 2; i++) {
            short events = (short)((!r->over[i] && held(&r->bytes[i]) < READ_CHUNK ? POLLIN : 0) | (held(&r->bytes[1 - i]) ? POLLOUT : 0));
            set[n++] = (struct pollfd){events ? r->end[i] : -1, events, 0};
        }
    return n;
}

static void serve_relays(const struct pollfd *set) { /* in the order of watch_relays; new relays are added after the loop */
    struct relay *watched = relays;
    size_t n = 0;
    for (struct forward *f = forwards; f; f = f->next)
        if (set[n++].revents) accept_forward(f);
    struct relay **at = &relays;
    while (*at && *at != watched) at = &(*at)->next;
    while (*at) {
        struct relay *r = *at;
        bool ready = set[n].revents || set[n + 1].revents;
        n += 2;
        if (!ready || move(r)) { at = &r->next; continue; }
        *at = r->next;
        for (int i = 0; i < 2; i++) shut(&r->end[i]), drop(&r->bytes[i]);
        free(r);
        relay_count--;
    }
}

/* ---- confinement --------------------------------------------------------------------------------------------------- */

#define DENY(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)
#define MISSING(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS)

#define ARGUMENT(n) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + 8 * (n)) /* the lower 32 bits */
#define NO_SUID(name, mode) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 4), ARGUMENT(mode), \
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, S_ISUID | S_ISGID, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM), \
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define NO_SUID_CREATED(name, flags, mode) /* without O_CREAT and O_TMPFILE, mode is undefined */ \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 6), ARGUMENT(flags), \
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_CREAT | (O_TMPFILE & ~O_DIRECTORY), 0, 3), ARGUMENT(mode), \
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, S_ISUID | S_ISGID, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM), \
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define REFUSE(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))
#define IF_EQUAL(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no)
/* Every family is kernel code that a box could attack, and AF_VSOCK ignores network namespaces: it reaches the hypervisor in
 * every network mode. Allowed are AF_UNIX; AF_INET and AF_INET6 with TCP, UDP and ICMP echo (AF_INET with SOCK_PACKET is
 * AF_PACKET); and NETLINK_ROUTE, because the C library lists addresses with it. */
#define ONLY_KNOWN_SOCKETS \
    IF_EQUAL(SYS_socket, 0, 19), ARGUMENT(0), \
    IF_EQUAL(AF_UNIX, 14, 0), IF_EQUAL(AF_NETLINK, 11, 0), IF_EQUAL(AF_INET, 1, 0), IF_EQUAL(AF_INET6, 0, 13), \
    ARGUMENT(1), BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xf), IF_EQUAL(SOCK_PACKET, 10, 0), \
    ARGUMENT(2), IF_EQUAL(0, 6, 0), IF_EQUAL(IPPROTO_TCP, 5, 0), IF_EQUAL(IPPROTO_UDP, 4, 0), \
    IF_EQUAL(IPPROTO_ICMP, 3, 0), IF_EQUAL(IPPROTO_ICMPV6, 2, 3), \
    ARGUMENT(2), IF_EQUAL(NETLINK_ROUTE, 0, 1), \
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW), REFUSE(EPROTONOSUPPORT), REFUSE(EAFNOSUPPORT), \
    IF_EQUAL(SYS_socketpair, 0, 4), ARGUMENT(0), \
    IF_EQUAL(AF_UNIX, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW), REFUSE(EAFNOSUPPORT)
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

static void install_seccomp(bool no_suid) {
#if defined(__x86_64__)
    enum { ARCH = AUDIT_ARCH_X86_64 };
#elif defined(__aarch64__)
    enum { ARCH = AUDIT_ARCH_AARCH64 };
#else
#error "boxagent knows x86_64 and aarch64"
#endif
    /* A deny list in addition to namespaces: system calls into kernel parts that builds and tests don't need and that have
     * had vulnerabilities. Foreign architectures (i386, x32) would bypass a list of native numbers, so they are refused. */
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
#if defined(__x86_64__)
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
#endif
        DENY(bpf), DENY(perf_event_open), DENY(userfaultfd), DENY(keyctl), DENY(add_key), DENY(request_key),
        DENY(kexec_load), DENY(kexec_file_load), DENY(init_module), DENY(finit_module), DENY(delete_module),
        DENY(mount), DENY(umount2), DENY(pivot_root), DENY(chroot), DENY(setns), DENY(unshare),
        DENY(move_mount), DENY(open_tree), DENY(fsopen), DENY(fsconfig), DENY(fsmount), DENY(fspick), DENY(mount_setattr),
        DENY(open_by_handle_at), DENY(reboot), DENY(swapon), DENY(swapoff), DENY(acct),
        DENY(quotactl), DENY(settimeofday), DENY(clock_settime), DENY(clock_adjtime), DENY(adjtimex),
        DENY(sethostname), DENY(setdomainname), DENY(syslog),
        MISSING(io_uring_setup), MISSING(io_uring_enter), MISSING(io_uring_register), /* io_uring can also open sockets */
        ONLY_KNOWN_SOCKETS,
        no_suid ? (struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA, 0) : (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
#if defined(__x86_64__)
        NO_SUID(chmod, 1), NO_SUID(creat, 1), NO_SUID(mknod, 1), NO_SUID_CREATED(open, 1, 2),
#endif
        NO_SUID(fchmod, 1), NO_SUID(fchmodat, 2), NO_SUID(fchmodat2, 2), NO_SUID(mknodat, 2), NO_SUID_CREATED(openat, 2, 3),
        MISSING(openat2), /* its mode is in memory, which a filter can't read */
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)) die("seccomp");
    features |= F_SECCOMP;
}

#define FS_REFER (1ull << 13)
#define FS_TRUNCATE (1ull << 14)
#define WRITES 0x1ff2ull /* ABI 1: write and remove files, remove directories, create any file type */

static void allow_beneath(int ruleset, int fd, uint64_t access) {
    struct stat st;
    if (fstat(fd, &st)) die("landlock");
    if (!S_ISDIR(st.st_mode)) access &= 2 | FS_TRUNCATE; /* for a file, only writing and truncation apply */
    struct landlock_path_beneath_attr rule = {.allowed_access = access, .parent_fd = fd};
    if (syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0)) die("landlock rule");
}

static void install_landlock(char **rw, int count) {
    long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (abi < 2) return; /* not supported, or ABI 1, which forbids all renames across directories */
    landlock_abi = (uint32_t)abi;
    struct { uint64_t fs, net, scoped; } attr = {WRITES | FS_REFER | (abi >= 3 ? FS_TRUNCATE : 0), 0, abi >= 6 ? 3 : 0};
    int ruleset = (int)syscall(SYS_landlock_create_ruleset, &attr, abi >= 6 ? 24 : abi >= 4 ? 16 : 8, 0);
    if (ruleset < 0) die("landlock");
    for (int i = 0; i < count; i++) {
        int fd = open(rw[i], O_PATH | O_CLOEXEC);
        if (fd < 0) die(rw[i]);
        allow_beneath(ruleset, fd, attr.fs);
        close(fd);
    }
    if (cgroup_fd >= 0) allow_beneath(ruleset, cgroup_fd, attr.fs); /* accessible only through this descriptor */
    if (syscall(SYS_landlock_restrict_self, ruleset, 0)) die("landlock");
    close(ruleset);
    features |= F_LANDLOCK;
}

static void become(uid_t uid, gid_t gid) {
    /* Needed to start commands as another user and to signal them. Commands with our uid would inherit them: keep none. */
    uint32_t keep_caps = run_uid == uid ? 0 : 1u << CAP_SETUID | 1u << CAP_SETGID | 1u << CAP_KILL;
    for (int cap = 0, has; (has = prctl(PR_CAPBSET_READ, cap, 0, 0, 0)) >= 0; cap++)
        if (has && (cap > 31 || !(keep_caps >> cap & 1)) && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0)) die("dropping a capability");
    prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0);
    if (setgroups(0, NULL) || setresgid(gid, gid, gid) || setresuid(uid, uid, uid)) die("becoming the agent's user");
    set_caps(keep_caps);
}

static void copy(int from, int to) {
    static char chunk[READ_CHUNK];
    for (ssize_t n; (n = read(from, chunk, sizeof chunk)) > 0 || (n < 0 && errno == EINTR);)
        for (ssize_t done = 0; done < n;) {
            ssize_t written = write(to, chunk + done, (size_t)(n - done));
            if (written < 0 && errno != EINTR) return;
            if (written > 0) done += written;
        }
}

/* In gVisor, any process that may open a file can reopen another process's descriptor of it, and the container's streams
 * belong to root. Sockets can't be reopened. So the agent uses sockets, and the processes that hold the streams are in no
 * /proc that a command can see. */
static void carry(int *rfd, int *wfd) {
    int stream[2], account[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, stream) || socketpair(AF_UNIX, SOCK_STREAM, 0, account)) die("socketpair");
    pid_t inwards = fork();
    if (inwards == 0) { /* each process holds only its own ends, so that end of file is visible */
        close(stream[1]), close(account[0]), close(account[1]), close(*wfd);
        set_caps(0);
        copy(*rfd, stream[0]);
        shutdown(stream[0], SHUT_WR); /* the agent exits when its stream ends */
        _exit(0);
    }
    pid_t said = fork();
    if (said == 0) {
        close(stream[0]), close(stream[1]), close(account[1]), close(*rfd), close(*wfd);
        set_caps(0);
        copy(account[0], 2);
        _exit(0);
    }
    if (inwards < 0 || said < 0 || unshare(CLONE_NEWPID)) die("a pid namespace");
    pid_t agent = fork();
    if (agent < 0) die("fork");
    if (agent == 0) {
        /* Read-only, because this /proc lacks the engine's protective mounts, such as a read-only /proc/sys. */
        if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, NULL)) die("mounting /proc");
        close(*rfd), close(*wfd), close(stream[0]), close(account[0]);
        if (dup2(account[1], 2) < 0) die("dup2");
        close(account[1]);
        *rfd = *wfd = stream[1];
        return;
    }
    close(stream[1]), close(account[0]), close(account[1]), close(*rfd);
    set_caps(0);
    copy(stream[0], *wfd);
    int status;
    while (waitpid(agent, &status, 0) < 0 && errno == EINTR) {}
    while (waitpid(said, NULL, 0) < 0 && errno == EINTR) {}
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

static void enter_userns(int fd) {
    if (setns(fd, CLONE_NEWUSER)) die("joining the user namespace");
    close(fd);
    become(0, 0);
}

/* ---- the loop ------------------------------------------------------------------------------------------------------ */

static void end_everything(void) { /* if pid 1 of a namespace exits, the kernel kills all its processes */
    if (features & F_PID1) _exit(0);
    for (struct slot *s = slots; s; s = s->next) kill_slot(s);
    for (struct command *c = commands; c; c = c->next)
        if (c->minder > 0) kill(c->minder, SIGUSR1);
    for (uint64_t until = now_us() + KILL_PATIENCE_US; now_us() < until;) {
        bool left = false;
        while (waitpid(-1, NULL, WNOHANG) > 0) {}
        for (struct slot *s = slots; s; s = s->next) left |= !slot_empty(s);
        for (struct command *c = commands; c; c = c->next) left |= c->minder > 0 && !kill(c->minder, 0);
        if (!left) break;
        poll(NULL, 0, 1);
    }
    for (struct slot *s = slots; s; s = s->next) remove_slot(s);
    _exit(0);
}

static void add_peer(int rfd, int wfd) {
    struct peer *p = calloc(1, sizeof *p);
    if (!p) die("out of memory");
    fcntl(rfd, F_SETFL, fcntl(rfd, F_GETFL) | O_NONBLOCK);
    fcntl(wfd, F_SETFL, fcntl(wfd, F_GETFL) | O_NONBLOCK);
    *p = (struct peer){.rfd = rfd, .wfd = wfd, .next = peers};
    peers = p;
    if (listen_fd < 0) the_stream = p;
}

static void remove_ended_peers(void) {
    for (struct peer **at = &peers; *at;) {
        struct peer *p = *at;
        if (!p->ended) { at = &p->next; continue; }
        if (p == the_stream) end_everything();
        for (struct command *c = commands; c; c = c->next)
            if (c->peer == p) { /* its client has disconnected and can't stop it */
                kill_tree(c, WHY_KILLED);
                c->peer = NULL;
            }
        *at = p->next;
        close(p->rfd);
        drop(&p->in);
        drop(&p->out);
        free(p);
    }
}

static uint64_t expire(uint64_t now) { /* handle expired deadlines; return the time of the next one */
    uint64_t next = UINT64_MAX;
    for (struct command *c = commands; c; c = c->next) {
        if (c->deadline && !c->reaped && !c->killing) {
            if (now >= c->deadline && c->grace) {
                send_signal(c, SIGTERM);
                c->why = WHY_TIMEOUT;
                c->deadline = now + c->grace;
                c->grace = 0;
            } else if (now >= c->deadline) {
                kill_tree(c, WHY_TIMEOUT);
            }
            if (c->deadline < next) next = c->deadline;
        }
        if (c->killing && !c->told && now + 1000 < next) next = now + 1000;
    }
    if (listen_fd >= 0) {
        bool busy = false; /* a peer that has sent nothing only tests whether we are running, which does not count */
        for (struct peer *p = peers; p; p = p->next) busy |= p->greeted;
        for (struct command *c = commands; c; c = c->next) busy |= !c->told;
        in_use_before |= busy;
        if (busy) idle_since = 0;
        else if (!idle_since) idle_since = now;
        /* On a busy machine, the first peer may take long to connect: the idle time applies after that. */
        uint64_t idle_us = in_use_before || ttl_us > FIRST_PEER_US ? ttl_us : FIRST_PEER_US;
        if (idle_since && now >= idle_since + idle_us) end_everything();
        if (idle_since && idle_since + idle_us < next) next = idle_since + idle_us;
    }
    return next;
}

static void serve(void) {
    struct pollfd *set = NULL;
    size_t size = 0;
    for (;;) {
        uint64_t now = now_us();
        for (struct command **at = &commands; *at;) {
            struct command *c = *at;
            if (settle(c, now)) *at = c->next, forget(c);
            else at = &c->next;
        }
        for (struct peer *p = peers; p; p = p->next) flush(p);
        remove_ended_peers();
        if (stopping) end_everything();
        uint64_t next = expire(now); /* last, because a disconnect above may start the idle time */

        size_t n = 2 + 2 * relay_count;
        for (struct forward *f = forwards; f; f = f->next) n++;
        for (struct peer *p = peers; p; p = p->next) n += 2;
        for (struct command *c = commands; c; c = c->next) n += 4;
        if (n > size && !(set = realloc(set, (size = n * 2) * sizeof *set))) die("out of memory");
        n = 0;
        set[n++] = (struct pollfd){signal_fd, POLLIN, 0};
        set[n++] = (struct pollfd){listen_fd, POLLIN, 0};
        for (struct peer *p = peers; p; p = p->next) {
            set[n++] = (struct pollfd){p->rfd, POLLIN, 0};
            set[n++] = (struct pollfd){p->wfd, held(&p->out) ? POLLOUT : 0, 0};
        }
        size_t first_command = n;
        struct command *newest = commands;
        for (struct command *c = commands; c; c = c->next) {
            bool ready = may_read(c); /* poll ignores a descriptor of -1 */
            for (int i = 0; i < 2; i++)
                set[n++] = (struct pollfd){ready && !(c->out[i].dry && !c->told) ? c->out[i].fd : -1, POLLIN, 0};
            set[n++] = (struct pollfd){held(&c->input) ? c->stdin_fd : -1, POLLOUT, 0};
            /* Without a minder, the child's end is noticed anyway: wake up for its start only if the peer requested that. */
            set[n++] = (struct pollfd){c->slot && !c->want_started && !c->pending ? -1 : c->report_fd, POLLIN, 0};
        }
        size_t first_relay = n;
        n += watch_relays(set + n);
        now = now_us();
        int wait = next == UINT64_MAX ? -1 : next <= now ? 0 : (int)((next - now + 999) / 1000 < INT_MAX ? (next - now + 999) / 1000 : INT_MAX);
        for (struct peer *p = peers; p; p = p->next)
            if (p->ended) wait = 0;
        if (poll(set, n, wait) < 0 && errno != EINTR) die("poll");

        if (set[0].revents) reap();
        if (set[1].revents) {
            int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
            if (fd >= 0) add_peer(fd, fd);
            else if (errno == EMFILE || errno == ENFILE) poll(NULL, 0, 10); /* new peers must wait; don't spin */
        }
        serve_relays(set + first_relay);
        n = first_command;
        for (struct command *c = newest; c; c = c->next, n += 4) {
            for (int i = 0; i < 2; i++)
                if (set[n + (size_t)i].revents && set[n + (size_t)i].fd == c->out[i].fd) pump(c, &c->out[i]);
            if (set[n + 2].revents) feed(c);
            if (set[n + 3].revents && c->report_fd >= 0) hear_report(c);
        }
        n = 2;
        for (struct peer *p = peers; p && n < first_command; p = p->next) { /* a new peer is first and has no entry yet */
            if (set[n].fd != p->rfd) continue;
            if (set[n].revents) listen_to(p);
            if (set[n + 1].revents & (POLLERR | POLLHUP | POLLNVAL)) p->ended = true;
            n += 2;
        }
    }
}

static int number(const char *text) {
    char *end;
    long value = text ? strtol(text, &end, 10) : -1;
    if (!text || *end || value < 0 || value > INT_MAX) errno = EINVAL, die(text ? text : "a number is missing");
    return (int)value;
}

static int unix_socket(const char *path, bool listening) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (strlen(path) >= sizeof at.sun_path) errno = ENAMETOOLONG, die(path);
    strcpy(at.sun_path, path);
    if (fd < 0 || (listening ? bind : connect)(fd, (struct sockaddr *)&at, sizeof at)) die(path);
    if (listening && (chmod(path, 0666) || listen(fd, 64))) die(path); /* its directory decides who may connect */
    return fd;
}

int main(int argc, char **argv) {
    int rfd = -1, wfd = -1, userns = -1, as_uid = -1, as_gid = -1, count = 0;
    bool seccomp = false, no_suid = false, landlock = false, carried = false;
    const char *home = NULL, *connect_to = NULL, *listen_on = NULL;
    char **rw = calloc((size_t)argc + 1, sizeof *rw), **paths = calloc((size_t)argc + 1, sizeof *paths);
    int *ports = calloc((size_t)argc + 1, sizeof *ports), port_count = 0;
    if (argc == 2 && !strcmp(argv[1], "--version")) return printf("boxagent %d\n", PROTOCOL) < 0;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *b = i + 1 < argc ? argv[i + 1] : NULL, *c = i + 2 < argc ? argv[i + 2] : NULL;
        if (!strcmp(a, "--stream")) rfd = number(b), wfd = number(c), i += 2;
        else if (!strcmp(a, "--listen")) listen_fd = number(b), i++;
        else if (!strcmp(a, "--connect") && b) connect_to = argv[++i];
        else if (!strcmp(a, "--listen-path") && b) listen_on = argv[++i];
        else if (!strcmp(a, "--ttl")) ttl_us = (uint64_t)number(b) * 1000000u, i++;
        else if (!strcmp(a, "--userns")) userns = number(b), i++;
        else if (!strcmp(a, "--as")) as_uid = number(b), as_gid = number(c), i += 2;
        else if (!strcmp(a, "--user")) run_uid = (uid_t)number(b), run_gid = (gid_t)number(c), i += 2;
        else if (!strcmp(a, "--cgroup")) cgroup_fd = number(b), i++;
        else if (!strcmp(a, "--forward") && c) ports[port_count] = number(b), paths[port_count++] = argv[i + 2], i += 2;
        else if (!strcmp(a, "--home") && b) home = argv[++i];
        else if (!strcmp(a, "--rw") && b) landlock = true, rw[count++] = argv[++i];
        else if (!strcmp(a, "--seccomp")) seccomp = true;
        else if (!strcmp(a, "--no-suid")) no_suid = true;
        else if (!strcmp(a, "--tag")) next_tag = FIRST_TAG;
        else if (!strcmp(a, "--carry")) carried = true;
        else errno = EINVAL, die(a);
    }
    if ((rfd >= 0) + (listen_fd >= 0) + !!connect_to + !!listen_on != 1)
        errno = EINVAL, die("one of --stream, --listen, --connect and --listen-path is needed");

    if ((carried && rfd < 0) || (next_tag && run_uid == (uid_t)-1))
        errno = EINVAL, die("--carry needs --stream, and --tag needs --user");
    if (no_suid && !seccomp) errno = EINVAL, die("--no-suid needs --seccomp");

    /* Leave nothing that a command could read, trace or inherit: no dumps, no environment, no extra descriptors. */
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    clearenv();
    if (userns >= 0) enter_userns(userns);
    if (carried) carry(&rfd, &wfd);
    if (next_tag && getpid() != 1) errno = EPERM, die("--tag ends whatever it does not know, and is for a pid namespace alone");
    if (as_uid >= 0) become((uid_t)as_uid, (gid_t)as_gid);
    if (connect_to) rfd = wfd = unix_socket(connect_to, false);
    if (listen_on) listen_fd = unix_socket(listen_on, true);
    guard_own_entry(); /* changing ids resets the dumpable flag */
    bool same = rfd == wfd;
    if (rfd >= 0) rfd = own(rfd), wfd = same ? rfd : own(wfd);
    if (listen_fd >= 0) listen_fd = own(listen_fd), fcntl(listen_fd, F_SETFL, O_NONBLOCK);
    if (cgroup_fd >= 0) cgroup_fd = own(cgroup_fd);
    int null = open("/dev/null", O_RDWR);
    if (null < 0) die("/dev/null");
    for (int fd = 0; fd < 2; fd++) dup2(null, fd);
    if (fcntl(2, F_GETFD) < 0) dup2(null, 2);
    for (int fd = 3; fd < 16; fd++) close(fd);
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) files.rlim_cur = files.rlim_max, setrlimit(RLIMIT_NOFILE, &files);

    /* A process started in the background inherits ignored signals; glibc's posix_spawn ignores one that libc functions
       can't change. The kernel's structure for the default action is all zero on every architecture. */
    static const unsigned long by_default[8];
    for (int sig = 1; sig <= 64; sig++) syscall(SYS_rt_sigaction, sig, by_default, NULL, (size_t)8);
    signal(SIGPIPE, SIG_IGN);
    sigset_t set;
    sigemptyset(&set);
    for (const int *s = (const int[]){SIGCHLD, SIGTERM, SIGINT, SIGHUP, 0}; *s; s++) sigaddset(&set, *s);
    signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    sigaddset(&set, SIGUSR1); /* for minders, which must not be killed by a signal that arrives before they handle it */
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_SETMASK, &set, NULL);
    if (signal_fd < 0) die("signalfd");

    features |= (cgroup_fd >= 0 ? F_CGROUP : 0) | (run_uid != (uid_t)-1 && run_uid != geteuid() ? F_UID_SPLIT : 0) |
                (getpid() == 1 ? F_PID1 : 0) | (listen_fd >= 0 ? F_LISTENING : 0);
    files_as(run_uid, run_gid);
    if (home && mkdir(home, 0700)) die(home);
    files_as(geteuid(), getegid());
    while (port_count--) open_forward(ports[port_count], paths[port_count]);
    if (landlock) install_landlock(rw, count);
    if (seccomp) install_seccomp(no_suid);
    if (rfd >= 0) add_peer(rfd, wfd);
    serve();
}

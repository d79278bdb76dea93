/* The child of a command, between fork and exec. */
#include "boxagent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void search_and_exec(struct spawn *s) {
    const char *file = s->argv[0], *path = NULL;
    if (!*file) { errno = ENOENT; return; }
    if (strchr(file, '/')) { execve(file, s->argv, s->envp); return; }
    for (char **e = s->envp; *e; e++)
        if (!strncmp(*e, "PATH=", 5)) path = *e + 5;
    if (!path) path = "/usr/local/bin:/usr/bin:/bin";
    int best = ENOENT;
    size_t size = strlen(file) + 1, longest = strlen(path) + 1 + size;
    char candidate[longest < PATH_MAX ? longest : PATH_MAX]; /* no larger, because each page of the stack costs a fault */
    for (;;) {
        const char *end = strchrnul(path, ':');
        size_t n = (size_t)(end - path);
        struct stat st; /* a failed execve would copy the arguments before it looks for the file */
        errno = ENOENT;
        if (n + 1 + size <= sizeof candidate) {
            char *at = mempcpy(candidate, path, n);
            if (n) *at++ = '/';
            memcpy(at, file, size);
        }
        if (n + 1 + size <= sizeof candidate && !stat(candidate, &st)) {
            execve(candidate, s->argv, s->envp);
            if (errno == EACCES && S_ISREG(st.st_mode)) best = EACCES; /* on a directory of PATH it is ignored */
        }
        if (errno != ENOENT && errno != ENOTDIR && errno != EACCES) return;
        if (!*end) break;
        path = end + 1;
    }
    errno = best;
}

/* The /proc entry of a process that is not dumpable belongs to root, so that other users can't open it. If the commands
 * themselves run as root (in a container, without capabilities), the entry must belong to the agent's own uid instead. */
void guard_own_entry(void) {
    prctl(PR_SET_DUMPABLE, run_uid == 0 && geteuid() != 0, 0, 0, 0);
}

void set_caps(uint32_t caps) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{caps, caps, 0}, {0, 0, 0}};
    if (syscall(SYS_capset, &header, data)) die("capabilities");
}

/* Check a request; return the number of its strings, or 0 if it is malformed. */
size_t count_strings(struct cursor q) {
    size_t total = 0, limits = take(&q, 1);
    if (limits > 16 || limits * 9 > q.left) return 0;
    q.p += limits * 9;
    q.left -= limits * 9;
    for (int list = 0; list < 3; list++) { /* the cwd, argv, and the environment */
        size_t n = list ? take(&q, 4) : 1;
        if (n > q.left / 4 || (list == 1 && !n)) return 0;
        for (total += n; n--;) {
            size_t length = take(&q, 4);
            if (q.bad || length > q.left || memchr(q.p, 0, length)) return 0;
            q.p += length;
            q.left -= length;
        }
    }
    return q.bad || q.left ? 0 : total;
}

static size_t take_length(struct cursor *q, uint8_t **end) { /* and terminate the string before it, which it directly follows */
    size_t length = take(q, 4);
    if (*end) **end = 0;
    *end = NULL;
    return length;
}

/* Behind a request there must be room for the terminator of its last string, and for aligned pointers to all of them. */
size_t request_room(size_t size, size_t strings) { return size + sizeof(char *) + (strings + 2) * sizeof(char *); }

void read_spawn(struct spawn *s) { /* a request that was checked; its strings stay where they are */
    uint8_t *text = s->request, *end = NULL;
    struct cursor q = {text, s->size, false};
    char **pointers = (char **)(((uintptr_t)text + s->size + sizeof(char *)) / sizeof(char *) * sizeof(char *));
    s->limits = (int)take(&q, 1);
    for (int i = 0; i < s->limits; i++) s->resource[i] = (uint8_t)take(&q, 1), s->value[i] = take(&q, 8);
    for (int list = 0; list < 3; list++) {
        char **strings = pointers;
        for (size_t n = list ? take_length(&q, &end) : 1; n--;) {
            size_t length = take_length(&q, &end);
            *pointers++ = (char *)text + (q.p - text);
            end = text + (q.p - text) + length;
            q.p += length;
            q.left -= length;
        }
        if (list) *pointers++ = NULL;
        if (!list) s->cwd = *strings;
        else if (list == 1) s->argv = strings;
        else s->envp = strings;
    }
    if (end) *end = 0;
}

void release_spawn(struct spawn *s) { /* in the parent, which needs neither the streams nor the request any more */
    if (s->pty) s->out = s->err = -1; /* the same as s->in */
    shut_later(&s->in), shut_later(&s->out), shut_later(&s->err);
    for (int i = 0; i < 2; i++) shut_later(&s->report[i]);
    if (s->request) explicit_bzero(s->request, s->size);
    if (s->request != s->small) free(s->request);
    s->request = NULL;
}

static void close_from_to(unsigned first, unsigned last) {
    if (first > last || !syscall(SYS_close_range, first, last, 0)) return;
    DIR *d = opendir("/proc/self/fd"); /* not available in old kernels and gVisor: close them one by one */
    if (!d) _exit(125);
    for (struct dirent *e; (e = readdir(d));) {
        unsigned fd = (unsigned)atoi(e->d_name);
        if (fd >= first && fd <= last && (int)fd != dirfd(d)) close((int)fd);
    }
    closedir(d);
}

void keep_only(int *fds, int count) { /* close all descriptors except the standard streams and these, which get sorted */
    unsigned first = 3;
    for (int i = 1; i < count; i++)
        for (int k = i; k > 0 && fds[k - 1] > fds[k]; k--) {
            int higher = fds[k - 1];
            fds[k - 1] = fds[k];
            fds[k] = higher;
        }
    for (int i = 0; i < count; first = (unsigned)fds[i++] + 1) close_from_to(first, (unsigned)fds[i] - 1);
    close_from_to(first, ~0u);
}

static bool connect_streams(const struct spawn *s) {
    if (s->pty && ioctl(s->in, TIOCSCTTY, 0)) return false;
    const int from[3] = {s->in, s->out, s->err};
    for (int i = 0; i < 3; i++)
        if (from[i] >= 0 && dup2(from[i], i) < 0) return false;
    return true;
}

static bool set_limits(const struct spawn *s) {
    for (int i = 0; i < s->limits; i++) {
        struct rlimit r = {s->value[i], s->value[i]};
        if (setrlimit(s->resource[i], &r)) return false;
    }
    return true;
}

static bool become_commands_user(const struct spawn *s) {
    if (features & F_UID_SPLIT && (syscall(SYS_setgroups, s->tag ? 1 : 0, s->tag ? &s->tag : NULL) || syscall(SYS_setresgid, run_gid, run_gid, run_gid) ||
                                   syscall(SYS_setresuid, run_uid, run_uid, run_uid)))
        return false;
    if (features & F_UID_SPLIT) set_caps(0); /* leaving uid 0 drops them, leaving another uid does not */
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* until it execs, it has a copy of the agent's memory and descriptors */
    return true;
}

static _Noreturn void child(struct spawn *s) {
    s->stage = AT_SETUP;
    setsid();
    signal(SIGPIPE, SIG_DFL);
    if (s->request_fd >= 0) { /* a spare: everything that does not depend on the request comes first */
        if (!connect_streams(s)) _exit(SPARE_FAILED);
        keep_only((int[]){s->request_fd, s->report[1]}, 2);
        if (!become_commands_user(s)) _exit(SPARE_FAILED);
        await_request(s);
        if (!connect_streams(s) || !set_limits(s)) goto failed;
    } else if (!connect_streams(s) || !set_limits(s) || !become_commands_user(s)) {
        goto failed;
    }
    s->stage = AT_CWD;
    if (chdir(s->cwd)) goto failed;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    s->stage = AT_EXEC;
    search_and_exec(s);
failed:;
    struct report r = {.kind = REPORT_FAILED, .stage = s->stage, .error = errno};
    while (write(s->report[1], &r, sizeof r) < 0 && errno == EINTR) {}
    _exit(127);
}

/* Between its change of uid and its exec, a child can be stopped by other commands. So its parent does not block: it polls
 * the report pipe, which is close-on-exec, with its other descriptors and sees end of file at the exec. clone3 creates the
 * child inside its cgroup at no cost; moving it there afterwards would take a third of a millisecond. */
pid_t spawn_child(struct spawn *s, int cgroup, int *report_fd) {
    struct clone_args a = {.flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = (uint64_t)cgroup};
    s->stage = AT_FORK;
    if (s->report[0] < 0 && pipe2(s->report, O_CLOEXEC | O_NONBLOCK)) return s->error = errno, -1;
    pid_t pid = cgroup < 0 ? fork() : (pid_t)syscall(SYS_clone3, &a, sizeof a);
    if (pid == 0) child(s);
    if (pid < 0) s->error = errno;
    else *report_fd = s->report[0], s->report[0] = -1;
    for (int i = 0; i < 2; i++) shut(&s->report[i]);
    return pid;
}

/* The child of a command, between fork and exec, where it must not allocate. */
#include "boxagent.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

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
void guard_own_entry(void) {
    prctl(PR_SET_DUMPABLE, run_uid == 0 && geteuid() != 0, 0, 0, 0);
}

void set_caps(uint32_t caps) {
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
pid_t spawn_child(struct spawn *s, int cgroup, int *report_fd) {
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

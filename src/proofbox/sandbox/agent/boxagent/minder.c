/* The minder: the subreaper of one command, if there is no cgroup. */
#include "boxagent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

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
_Noreturn void fail_closed(const char *what) {
    for (uint64_t until = now_us() + KILL_PATIENCE_US; !(features & F_PID1) && now_us() < until;) {
        kill_descendants();
        while (waitpid(-1, NULL, WNOHANG) > 0) {}
        if (waitpid(-1, NULL, WNOHANG) < 0) break; /* no children left */
        poll(NULL, 0, 1);
    }
    errno = 0;
    die(what);
}

_Noreturn void minder(struct spawn *s, int status_fd, pid_t agent) {
    /* Close the agent's descriptors: with a copy of its stream open, the peer would not see the agent's end. */
    keep_only((int[]){s->in, s->out, s->err, status_fd}, 4);

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
    shut(&s->in), shut(&s->out), shut(&s->err);
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

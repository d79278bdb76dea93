/* The loop that serves peers, and the command line. */
#include "boxagent.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static struct peer *peers;
static struct peer *the_stream;
static int listen_fd = -1;
int signal_fd = -1;
static uint64_t ttl_us;
static uint64_t idle_since;
static bool in_use_before;
bool stopping;

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
    struct peer *p = unshared(sizeof *p);
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
        unmap(p, sizeof *p);
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
        struct command *ended = NULL;
        for (struct command **at = &commands; *at;) {
            struct command *c = *at;
            if (settle(c, now)) *at = c->next, c->next = ended, ended = c;
            else at = &c->next;
        }
        for (struct peer *p = peers; p; p = p->next) flush(p);
        for (struct command *c; (c = ended); forget(c), note_end()) ended = c->next; /* now that no peer waits for it */
        remove_ended_peers();
        if (stopping) end_everything();
        uint64_t next = expire(now); /* last, because a disconnect above may start the idle time */
        if (now >= spare_deadline) end_spare();
        if (spare_due()) make_spare();
        if (commands) close_later(), prepare_streams(); /* while it runs, the agent has nothing else to do */
        else if (closing() && now + CLOSE_US < next) next = now + CLOSE_US;
        if (spare_deadline < next) next = spare_deadline;

        size_t n = 2 + 2 * relay_count;
        for (struct forward *f = forwards; f; f = f->next) n++;
        for (struct peer *p = peers; p; p = p->next) n += 2;
        for (struct command *c = commands; c; c = c->next) n += 4;
        if (n > size) {
            unmap(set, size * sizeof *set);
            set = unshared((size = n * 2) * sizeof *set);
        }
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
            /* Without a minder, the child's end is noticed anyway: wake up for its start only if the peer requested that,
               or to close the stdin that a spare has. */
            set[n++] = (struct pollfd){c->slot && !c->want_started && !c->pending && !(c->given && c->spawn.in >= 0) ? -1 : c->report_fd, POLLIN, 0};
        }
        size_t first_relay = n;
        n += watch_relays(set + n);
        now = now_us();
        int wait = next == UINT64_MAX ? -1 : next <= now ? 0 : (int)((next - now + 999) / 1000 < INT_MAX ? (next - now + 999) / 1000 : INT_MAX);
        for (struct peer *p = peers; p; p = p->next)
            if (p->ended) wait = 0;
        int ready = poll(set, n, wait);
        if (ready < 0 && errno != EINTR) die("poll");
        if (ready == 0) close_later();

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
    char *rw[argc + 1], *paths[argc + 1];
    int ports[argc + 1], port_count = 0;
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
        else if (!strcmp(a, "--report-oom")) report_oom = true;
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

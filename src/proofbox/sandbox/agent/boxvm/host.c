/* The host's side: starts virtiofsd and QEMU, and connects clients with the guest. Ends when any of them ends. */
#include "boxvm.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SHARES = 2, COMMAND_ID = 1000 };
struct sharing { char **command; const char *place; };

#define END_PATIENCE_MS 3000 /* for the guest to write its files after its client has left */

static int stream_fd = -1, listen_fd = -1, userns_fd = -1;
static char **targets;
static uint32_t target_count;
static char **guest_options;
static int ttl;
static bool ready, finished;
static char **template; /* paths */

static int number(const char *text) {
    char *end;
    long value = text ? strtol(text, &end, 10) : -1;
    if (!text || *end || value < 0 || value > 1 << 30) errno = EINVAL, die(text ? text : "a number is missing");
    return (int)value;
}

static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

static int connect_to(const char *path) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at)) close(fd), fd = -1;
    return fd;
}

static void configure(void) {
    struct bytes b = {0};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    put(&b, (uint64_t)now.tv_sec, 8);
    put(&b, (uint64_t)now.tv_nsec, 8);
    if (getrandom(room(&b, RANDOM), RANDOM, 0) != RANDOM) die("random bytes");
    b.end += RANDOM;
    char text[32];
    snprintf(text, sizeof text, "%d", ttl);
    for (char **option = guest_options; *option; option++) {
        const char *word = strcmp(*option, "@ttl") ? *option : text;
        size_t size = strlen(word) + 1;
        memcpy(room(&b, size), word, size);
        b.end += size;
    }
    if (b.end > MAX_PAYLOAD) errno = E2BIG, die("the machine's configuration");
    frame(CONFIG, 0, b.data, b.end);
    free(b.data);
}

static void on_frame(uint8_t type, uint32_t id, const uint8_t *data, size_t size) {
    if (type == READY && !ready) {
        ready = true;
        configure();
        if (stream_fd >= 0) open_channel(stream_fd, 0);
    } else if (type == OPEN && size == 4) {
        uint64_t target = get(data, 4);
        accept_channel(id, target < target_count && channel_count() < MAX_CHANNELS ? connect_to(targets[target]) : -1);
    } else if (type == TEXT) {
        for (size_t i = 0; i < size && i < 1000; i++)
            if (dprintf(2, "%c", data[i] >= ' ' && data[i] < 127 ? data[i] : i + 1 < size ? '?' : '\n') < 0) break;
        finished = true;
    } else if (type == BYE) {
        finished = true;
    } else {
        errno = EPROTO, die("a frame's type");
    }
}

static void keep_caps(uint64_t caps) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{(uint32_t)caps, (uint32_t)caps, (uint32_t)caps}, {0, 0, 0}};
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        if (cap > 31 || !(caps >> cap & 1)) prctl(PR_CAPBSET_DROP, cap, 0, 0, 0); /* fails without CAP_SETPCAP: nothing to drop */
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    /* Renames and links are made with virtiofsd's own ids, which an idmapped mount of the project must know. */
    if (caps && userns_fd >= 0 && (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) || setresgid(COMMAND_ID, COMMAND_ID, COMMAND_ID) ||
                                   setresuid(COMMAND_ID, COMMAND_ID, COMMAND_ID)))
        die("becoming the commands' user");
    if (syscall(SYS_capset, &header, data)) die("capabilities");
    for (int cap = 0; cap < 32; cap++)
        if (caps >> cap & 1) prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0);
}

/* Files of the project belong to the commands' user: virtiofsd creates them with that id, and acts for it. */
#define SHARING (1u << CAP_CHOWN | 1u << CAP_DAC_OVERRIDE | 1u << CAP_FOWNER | 1u << CAP_FSETID | 1u << CAP_SETGID | \
                 1u << CAP_SETUID | 1u << CAP_MKNOD | 1u << CAP_SETFCAP | 1u << CAP_SYS_CHROOT | 1u << CAP_SETPCAP)

static void pass(char **argv, const char *place, int fd) { /* "…fd=@port" becomes "…fd=7", which the program inherits */
    fcntl(fd, F_SETFD, 0);
    for (; *argv; argv++) {
        char *at = strstr(*argv, place);
        if (at && !at[strlen(place)]) snprintf(at, strlen(place) + 1, "%d", fd);
    }
}

static pid_t run(char **argv, uint64_t caps) {
    pid_t pid = fork();
    if (pid < 0) die("fork");
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    keep_caps(caps);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    execv(argv[0], argv);
    die(argv[0]);
}

static bool has(char **at, const char *name) {
    while (*at && strcmp(*at, name)) at++;
    return *at;
}

static char **section(char **at, const char *name) { /* cuts the arguments from `name` on off, and returns those after it */
    while (*at && strcmp(*at, name)) at++;
    if (!*at || !at[1]) errno = EINVAL, die(name);
    *at = NULL;
    return at + 1;
}

static void open_pair(int *ends) {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) die("socketpair");
}

static void listen_and_connect(int *listener, int *client) { /* an abstract name, which the network namespace keeps private */
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    socklen_t size = sizeof at.sun_family;
    *listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*listener < 0 || *client < 0 || bind(*listener, (struct sockaddr *)&at, size) || listen(*listener, 1)) die("a socket");
    size = sizeof at;
    if (getsockname(*listener, (struct sockaddr *)&at, &size) || connect(*client, (struct sockaddr *)&at, size)) die("a socket");
}

static void report_end(const char *what, int status) {
    if (WIFSIGNALED(status)) dprintf(2, "boxvm: %s was killed by signal %d\n", what, WTERMSIG(status));
    else dprintf(2, "boxvm: %s ended with exit code %d\n", what, WEXITSTATUS(status));
}

static int serve(int signals, const pid_t *pids) {
    struct pollfd set[MAX_CHANNELS + 8];
    uint64_t deadline = 0;
    bool leaving = false; /* the client has left: the machine may end */
    for (;;) {
        size_t n = 0;
        set[n++] = (struct pollfd){signals, POLLIN, 0};
        set[n++] = ready ? (struct pollfd){channel_count() < MAX_CHANNELS ? listen_fd : -1, POLLIN, 0}
                         : (struct pollfd){stream_fd, POLLRDHUP, 0};
        watch_channels(set + n);
        uint64_t now = now_ms();
        if (deadline && now >= deadline) return 0;
        if (poll(set, n + 1 + channel_count(), deadline ? (int)(deadline - now) : -1) < 0 && errno != EINTR) die("poll");
        if (set[0].revents) {
            struct signalfd_siginfo info;
            while (read(signals, &info, sizeof info) == sizeof info)
                if (info.ssi_signo != SIGCHLD) return 0;
            int status;
            for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
                for (int n = 0; n <= SHARES; n++)
                    if (pid == pids[n]) {
                        if (!leaving) report_end(n == SHARES ? "QEMU" : "virtiofsd", status);
                        return leaving ? 0 : 1;
                    }
        }
        bool was_ready = ready, open = serve_channels(set + 2, on_frame);
        if (set[1].revents && !was_ready) return 0; /* its client has left before the guest was up */
        if (set[1].revents) {
            int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
            if (fd >= 0) open_channel(fd, 0);
            flush_port();
        }
        if (finished) return 0;
        if (!open && !deadline) deadline = now_ms() + 500; /* QEMU ends: wait for its status */
        bool left = stream_fd >= 0 && ready;
        for (struct channel *c = channels; c; c = c->next) left &= c->fd != stream_fd || c->sent_end;
        if (left && !leaving) leaving = true, deadline = now_ms() + END_PATIENCE_MS;
    }
}

int main(int argc, char **argv) {
    if (getpid() == 1 && !strcmp(argv[0], "/init")) guest();
    if (argc == 2 && !strcmp(argv[1], "--version")) return printf("boxvm %d\n", PROTOCOL) < 0;
    guest_options = section(argv, "--guest");
    char **qemu = section(argv, "--qemu");
    struct template from = {.attach = has(argv, "--attach") ? section(argv, "--attach") : NULL};
    struct sharing shares[SHARES] = {{section(argv, "--files"), "@files"}, {section(argv, "--system"), "@system"}};
    targets = calloc((size_t)argc, sizeof *targets);
    for (char **a = argv + 1; *a; a++) {
        if (!a[1]) errno = EINVAL, die(*a);
        if (!strcmp(*a, "--stream")) stream_fd = number(*++a), a++;
        else if (!strcmp(*a, "--listen")) listen_fd = number(*++a);
        else if (!strcmp(*a, "--ttl")) ttl = number(*++a);
        else if (!strcmp(*a, "--cgroup")) close(number(*++a));
        else if (!strcmp(*a, "--userns")) userns_fd = number(*++a);
        else if (!strcmp(*a, "--template") && a[2]) template = a + 1, a += 2;
        else if (!strcmp(*a, "--target")) targets[target_count++] = *++a;
        else errno = EINVAL, die(*a);
    }
    if (!template != !from.attach) errno = EINVAL, die("--template and --attach belong together");
    if ((stream_fd < 0) == (listen_fd < 0)) errno = EINVAL, die("one of --stream and --listen is needed");
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (userns_fd >= 0) {
        if (setns(userns_fd, CLONE_NEWUSER)) die("joining the user namespace");
        close(userns_fd);
        if (setgroups(0, NULL) || setresgid(0, 0, 0) || setresuid(0, 0, 0)) die("becoming the machine's user");
    }
    fcntl(stream_fd >= 0 ? stream_fd : listen_fd, F_SETFD, FD_CLOEXEC);
    if (listen_fd >= 0) fcntl(listen_fd, F_SETFL, O_NONBLOCK);

    int ends[2], monitor[2];
    pid_t pids[SHARES + 1];
    open_pair(ends);
    signal(SIGPIPE, SIG_IGN);
    sigset_t set;
    sigemptyset(&set);
    for (const int *s = (const int[]){SIGCHLD, SIGTERM, SIGINT, SIGHUP, 0}; *s; s++) sigaddset(&set, *s);
    int signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (signals < 0 || sigprocmask(SIG_SETMASK, &set, NULL)) die("signalfd");

    for (int n = 0; n < SHARES; n++) {
        int listener, share;
        listen_and_connect(&listener, &share);
        pass(shares[n].command, shares[n].place, listener);
        pids[n] = run(shares[n].command, SHARING);
        close(listener);
        pass(qemu, shares[n].place, share); /* the other virtiofsd inherits it, too: it can do no more with it than QEMU */
    }
    pass(qemu, "@port", ends[1]);
    if (template) {
        open_pair(monitor);
        open_template(&from, template[0], template[1]);
        pass(qemu, "@memory", from.memory);
        pass(qemu, "@monitor", monitor[1]);
    }
    pids[SHARES] = run(qemu, 0);
    close(ends[1]);
    keep_caps(0);
    use_port(ends[0]);
    if (template) {
        close(monitor[1]);
        restore(&from, monitor[0], signals);
        frame(READY, 0, NULL, 0);
        flush_port();
    }
    return serve(signals, pids);
}

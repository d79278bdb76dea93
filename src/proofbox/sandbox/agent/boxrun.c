/* boxrun: the `proofbox` program inside a box. It asks the supervisor outside to run a command, and connects its streams.
 *
 *   proofbox run [-n] [--] COMMAND [ARG...]        -n: the command's stdin is empty
 *   proofbox mcp proxy [--] COMMAND [ARG...]       COMMAND is an MCP server on stdin and stdout
 *   proofbox --version
 *
 * The supervisor listens at the path in PROOFBOX_FUNNEL, or at its default path. It starts the command and keeps the record;
 * this program only transfers bytes. The supervisor does not trust it, so it performs no checks.
 *
 * Frames both ways: u8 type, u32 length (most significant byte first), payload.
 *   to the supervisor    Q request: NUL-terminated strings: version, mode, cwd, argc, argv..., environment...
 *                        I stdin      E end of stdin      S u8 signal
 *   from the supervisor  O stdout      R stderr      C u32 stdin credit in bytes      X u8 exit code, the last frame
 *                        F u8 exit code and a message: the command did not run or did not finish; the last frame
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { PROTOCOL = 1 };
enum { FAILED = 125, HEADER = 5, CHUNK = 16 << 10, MAX_FRAME = 64 << 10, MAX_REQUEST = 1 << 20 };

static const char DEFAULT_SOCKET[] = "/run/proofbox/funnel";
static const int PASSED_ON[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
enum { SIGNALS = sizeof PASSED_ON / sizeof *PASSED_ON };

static volatile sig_atomic_t came[NSIG];
static int sock;

extern char **environ;

static _Noreturn void fail(const char *what, const char *why) {
    dprintf(2, "proofbox: %s%s%s\n", what, why ? ": " : "", why ? why : "");
    _exit(FAILED);
}

static _Noreturn void usage(int code) {
    dprintf(code ? 2 : 1, "Usage: proofbox run [-n] -- COMMAND [ARG...]\n"
                          "       proofbox mcp proxy -- COMMAND [ARG...]\n\n"
                          "Has the supervisor outside this box run COMMAND in it, and keep the record of that.\n"
                          "The exit code is the command's own; 125 when it could not be asked, 126 when it was declined.\n");
    _exit(code);
}

static void send_all(const void *data, size_t size) {
    for (const char *at = data; size;) {
        ssize_t sent = send(sock, at, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return; /* the supervisor has closed its end; its last frames can still be read */
        at += sent;
        size -= (size_t)sent;
    }
}

static void send_frame(char type, const void *payload, size_t size) {
    unsigned char head[HEADER] = {(unsigned char)type, (unsigned char)(size >> 24), (unsigned char)(size >> 16),
                                  (unsigned char)(size >> 8), (unsigned char)size};
    send_all(head, sizeof head);
    send_all(payload, size);
}

static uint32_t number(const unsigned char *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void add(char *request, size_t *used, const char *text) {
    size_t size = strlen(text) + 1;
    if (size > MAX_REQUEST - *used) fail("the command line and the environment are larger than a request may be", NULL);
    memcpy(request + *used, text, size);
    *used += size;
}

static void send_request(const char *mode, char **argv) {
    static char request[MAX_REQUEST];
    char cwd[PATH_MAX], text[16];
    size_t used = 0;
    int argc = 0;
    if (!getcwd(cwd, sizeof cwd)) fail("the working directory", strerror(errno));
    while (argv[argc]) argc++;
    snprintf(text, sizeof text, "%d", PROTOCOL);
    add(request, &used, text);
    add(request, &used, mode);
    add(request, &used, cwd);
    snprintf(text, sizeof text, "%d", argc);
    add(request, &used, text);
    for (int i = 0; i < argc; i++) add(request, &used, argv[i]);
    for (char **variable = environ; *variable; variable++) add(request, &used, *variable);
    send_frame('Q', request, used);
}

/* Our socket must not get the number of a closed standard stream: open a directory, which can't be read or written, instead. */
static void fill_closed_streams(void) {
    int fd;
    do fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (fd >= 0 && fd <= 2);
    if (fd >= 0) close(fd);
}

static void reach_supervisor(void) {
    const char *path = getenv("PROOFBOX_FUNNEL");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!path || !*path) path = DEFAULT_SOCKET;
    if (strlen(path) >= sizeof address.sun_path) fail("PROOFBOX_FUNNEL", "too long for a socket's path");
    strcpy(address.sun_path, path);
    sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (sock < 0 || connect(sock, (struct sockaddr *)&address, sizeof address)) fail("no supervisor answers here", strerror(errno));
}

static void on_signal(int signo) { came[signo] = 1; }

/* Signals are delivered only while we wait. A signal that was ignored at the start (as by nohup) stays ignored. */
static sigset_t catch_signals(void) {
    sigset_t caught, before;
    struct sigaction old, ours = {.sa_handler = on_signal};
    sigemptyset(&caught);
    for (int i = 0; i < SIGNALS; i++) {
        if (sigaction(PASSED_ON[i], NULL, &old) == 0 && old.sa_handler == SIG_IGN) continue;
        sigaction(PASSED_ON[i], &ours, NULL);
        sigaddset(&caught, PASSED_ON[i]);
    }
    sigprocmask(SIG_BLOCK, &caught, &before);
    for (int i = 0; i < SIGNALS; i++) sigdelset(&before, PASSED_ON[i]);
    return before;
}

static void pass_signals_on(void) {
    for (int i = 0; i < SIGNALS; i++)
        if (came[PASSED_ON[i]]) {
            unsigned char signo = (unsigned char)PASSED_ON[i];
            came[signo] = 0;
            send_frame('S', &signo, 1);
        }
}

static unsigned char in[HEADER + MAX_FRAME];
static size_t have, shown; /* bytes in `in`, and how many of its output frame have been written */

static bool output_waits(void) { return have >= HEADER && have >= HEADER + number(in + 1) && (in[0] == 'O' || in[0] == 'R'); }

static void drop_frame(void) {
    size_t size = HEADER + number(in + 1);
    memmove(in, in + size, have - size);
    have -= size;
    shown = 0;
}

static void write_output(int fd) {
    size_t left = number(in + 1) - shown, most = left < PIPE_BUF ? left : PIPE_BUF; /* never blocks once there is room */
    ssize_t wrote = write(fd, in + HEADER + shown, most);
    if (wrote < 0 && errno != EAGAIN && errno != EINTR) fail(fd == 1 ? "stdout" : "stderr", strerror(errno)); /* ends the command */
    if (wrote > 0) shown += (size_t)wrote;
    if (shown == number(in + 1)) drop_frame();
}

/* Process all complete frames except output, which waits until it can be written. */
static void take_frames(size_t *credit) {
    while (have >= HEADER) {
        uint32_t size = number(in + 1);
        if (size > MAX_FRAME) fail("the supervisor does not speak as it should", NULL);
        if (have < HEADER + size || (output_waits() && size)) return;
        if (in[0] == 'X' && size == 1) _exit(in[HEADER]);
        if (in[0] == 'F' && size >= 1) {
            dprintf(2, "proofbox: %.*s\n", (int)size - 1, (char *)in + HEADER + 1);
            _exit(in[HEADER]);
        }
        if (in[0] == 'C' && size == 4) *credit += number(in + HEADER);
        drop_frame();
    }
}

static _Noreturn void carry(bool with_stdin) {
    size_t credit = 0;
    bool open = with_stdin;
    char chunk[CHUNK];
    sigset_t waiting = catch_signals();
    if (!open) send_frame('E', NULL, 0);
    for (;;) {
        int target = output_waits() ? (in[0] == 'O' ? 1 : 2) : -1;
        struct pollfd set[] = {{target < 0 ? sock : -1, POLLIN, 0}, {target, POLLOUT, 0}, {open && credit ? 0 : -1, POLLIN, 0}};
        if (ppoll(set, 3, NULL, &waiting) < 0 && errno != EINTR) fail("waiting", strerror(errno));
        pass_signals_on();
        if (set[2].revents) {
            ssize_t size = read(0, chunk, credit < CHUNK ? credit : CHUNK);
            if (size > 0) credit -= (size_t)size, send_frame('I', chunk, (size_t)size);
            if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) open = false, send_frame('E', NULL, 0);
        }
        if (set[1].revents) write_output(target);
        if (set[0].revents) {
            ssize_t size = recv(sock, in + have, sizeof in - have, 0);
            if (size == 0 || (size < 0 && errno != EINTR)) fail("the supervisor has left", NULL);
            if (size > 0) have += (size_t)size;
        }
        take_frames(&credit);
    }
}

int main(int argc, char **argv) {
    const char *mode = NULL;
    bool with_stdin = true;
    int at = 1;
    if (argc == 2 && !strcmp(argv[1], "--version")) return printf("boxrun %d\n", PROTOCOL) < 0;
    if (argc == 1 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "help")) usage(0);
    if (!strcmp(argv[1], "run")) mode = "run", at = 2;
    else if (argc > 2 && !strcmp(argv[1], "mcp") && !strcmp(argv[2], "proxy")) mode = "mcp", at = 3;
    else fail("in a box there are only `run` and `mcp proxy`", NULL);
    for (; at < argc && argv[at][0] == '-'; at++) {
        if (!strcmp(argv[at], "--")) {
            at++;
            break;
        }
        if (strcmp(argv[at], "-n")) usage(strcmp(argv[at], "--help") ? 2 : 0);
        with_stdin = false;
    }
    if (at >= argc) usage(2);
    fill_closed_streams();
    reach_supervisor();
    send_request(mode, argv + at);
    carry(with_stdin);
}

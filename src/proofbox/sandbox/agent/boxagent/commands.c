/* Commands: start them, transfer their streams, kill their trees, and report their ends. */
#include "boxagent.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct command *commands;
static struct command first; /* memory for a command that runs alone, so that it needs no other */
static bool first_used;
gid_t next_tag; /* 0: commands are identified by descent */

static struct command *find(struct peer *p, uint32_t id) {
    for (struct command *c = commands; c; c = c->next)
        if (c->peer == p && c->id == id && !c->told) return c;
    return NULL;
}

void kill_tree(struct command *c, uint8_t why) {
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

bool may_read(const struct command *c) {
    if (c->minder > 0 && !c->pid) return false; /* not before its start is reported */
    if (!c->peer) return true; /* no peer: discard, so that a process left running does not die of SIGPIPE */
    if (c->window && !c->killing && c->unacked >= c->window) return false; /* a killed command needs no credit */
    return held(&c->peer->out) < OUT_HIGH;
}

void pump(struct command *c, struct output *o) {
    static uint8_t *chunk;
    if (!chunk) chunk = unshared(READ_CHUNK);
    size_t strays = 1u << 20; /* read limit after the command's end: a process left running may write for ever */
    while (o->fd >= 0 && may_read(c)) {
        size_t want = READ_CHUNK;
        if (c->peer && c->window && !c->killing && c->window - c->unacked < want) want = c->window - c->unacked;
        ssize_t n = read(o->fd, chunk, want);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) {
            if (c->reaped && !c->killing) o->dry = true;
            return;
        }
        if (n <= 0) { /* end of file, which a pty reports as EIO */
            if (o->fd == c->pty) c->pty = c->stdin_fd = -1;
            shut_later(&o->fd);
            return;
        }
        if (!c->told) keep(c, o, chunk, (size_t)n);
        if (c->reaped && !c->killing && (strays -= (size_t)n < strays ? (size_t)n : strays) == 0) o->dry = true;
        if (o->dry || ((size_t)n < want && !c->reaped)) return;
    }
}

void feed(struct command *c) {
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

static void free_ring(struct output *o) {
    if (!o->ring) return;
    uint64_t past = o->total - o->head;
    explicit_bzero(o->ring, past < o->tail ? past : o->tail);
    free(o->ring);
    o->ring = NULL;
}

static void tell_started(struct command *c) {
    if (!c->want_started || !c->peer) return;
    frame(c->peer, A_STARTED, c->id, 4);
    put(&c->peer->out, (uint64_t)c->pid, 4);
}

static void tell_exit(struct command *c) {
    struct peer *p = c->peer;
    uint8_t flags = (uint8_t)((c->out[0].fd >= 0 || c->out[1].fd >= 0 ? PIPES_HELD : 0) | (c->survivors ? SURVIVORS : 0) |
                              (count_oom_kills() > c->oom_kills ? OOM_KILLED : 0));
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
    for (int i = 0; i < 2; i++) free_ring(&c->out[i]);
    drop(&c->input);
    if (c->stdin_fd != c->pty) shut(&c->stdin_fd);
    c->stdin_fd = -1;
    c->peer = NULL;
}

static void confirm_spawn(struct command *c) { /* a spare has read it, or the command ended */
    c->given = false;
    release_spawn(&c->spawn);
}

static void main_reaped(struct command *c, int status, const struct rusage *usage) {
    confirm_spawn(c);
    c->reaped = true;
    c->status = status;
    c->usage = *usage;
    c->ended = now_us();
}

/* Report the command's end once its main process is reaped, both streams are drained and, if it was killed, its process tree
 * is dead. Returns true when the command needs no further work. */
bool settle(struct command *c, uint64_t now) {
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

/* Until a process writes to the memory that it shares with another after a fork, each first write to a page costs a fault. */
void touch_memory(void) {
    ((volatile struct command *)&first)->spawn.small[sizeof first.spawn.small - 1] = 0;
    ((volatile struct command *)&first)->id = 0;
    errno = 0;
}

void forget(struct command *c) {
    confirm_spawn(c);
    if (c->slot) return_slot(c->slot);
    shut(&c->report_fd);
    shut(&c->pty);
    if (c == &first) first_used = false;
    else free(c);
}

void files_as(uid_t uid, gid_t gid) { /* new files belong to this user */
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

bool open_outputs(struct spawn *s, int ends[2]) { /* also opens an empty stdin, unless stdin is open */
    int out[2] = {-1, -1}, err[2] = {-1, -1};
    bool opened = (s->in >= 0 || (s->in = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) && !pipe2(out, O_CLOEXEC) && !pipe2(err, O_CLOEXEC);
    ends[0] = out[0], ends[1] = err[0];
    s->out = out[1], s->err = err[1];
    for (int i = 0; opened && i < 2; i++) fcntl(ends[i], F_SETFL, O_NONBLOCK);
    return opened;
}

static bool open_pipes(struct command *c, struct spawn *s, bool want_stdin, bool want_outputs) {
    int in[2], ends[2] = {-1, -1};
    if (want_stdin) {
        if (pipe2(in, O_CLOEXEC)) return false;
        s->in = in[0];
        c->stdin_fd = in[1];
        fcntl(in[1], F_SETFL, O_NONBLOCK);
    }
    bool opened = !want_outputs || open_outputs(s, ends);
    for (int i = 0; i < 2; i++) c->out[i].fd = ends[i];
    return opened;
}

static void set_cap(struct output *o, uint64_t cap) {
    o->tail = cap ? cap / 2 : UINT64_MAX; /* a cap of 0 means no cap */
    if (cap && o->tail > MAX_TAIL) o->tail = MAX_TAIL;
    o->head = cap ? cap - o->tail : UINT64_MAX;
}

static bool start_minded(struct command *c, struct spawn *s) {
    int pipefd[2];
    if (pipe2(pipefd, O_CLOEXEC)) return s->stage = AT_FORK, s->error = errno, false;
    read_spawn(s);
    c->report_fd = pipefd[0];
    pid_t agent = getpid();
    c->minder = fork();
    if (c->minder == 0) minder(s, pipefd[1], agent);
    if (c->minder < 0) s->stage = AT_FORK, s->error = errno;
    close(pipefd[1]);
    fcntl(pipefd[0], F_SETFL, O_NONBLOCK);
    return c->minder > 0;
}

static void start_in_slot(struct command *c, struct spawn *s) {
    read_spawn(s);
    if (!(c->slot = get_slot(false))) s->error = errno;
    else c->pid = spawn_child(s, c->slot->dir, &c->report_fd);
}

static void start_without_spare(struct command *c, struct spawn *s) { /* its outputs were those of a spare that has ended */
    int ends[2] = {-1, -1};
    if (!s->pty) {
        files_as(run_uid, run_gid);
        if (!open_outputs(s, ends)) s->error = errno;
        files_as(geteuid(), getegid());
        for (int i = 0; i < 2; i++) shut(&c->out[i].fd), c->out[i].fd = ends[i];
    }
    if (!s->error) start_in_slot(c, s);
}

static void start(struct peer *p, uint32_t id, struct cursor *q) {
    uint32_t flags = (uint32_t)take(q, 4), timeout = (uint32_t)take(q, 4), grace = (uint32_t)take(q, 4);
    uint64_t caps[2] = {take(q, 8), take(q, 8)};
    uint32_t window = (uint32_t)take(q, 4);
    uint16_t rows = (uint16_t)take(q, 2), cols = (uint16_t)take(q, 2);
    size_t strings = count_strings(*q);
    if (!strings || flags & ~(uint32_t)ALL_FLAGS || find(p, id)) {
        fatal(p, "malformed EXEC");
        return;
    }
    struct command *c = first_used ? malloc(sizeof *c) : &first;
    if (!c) die("out of memory");
    first_used |= c == &first;
    *c = (struct command){.id = id, .peer = p, .window = window, .stdin_fd = -1, .pty = -1, .report_fd = -1, .pid = -1};
    c->out[0] = (struct output){.fd = -1, .type = A_STDOUT};
    c->out[1] = (struct output){.fd = -1, .type = A_STDERR};
    for (int i = 0; i < 2; i++) set_cap(&c->out[i], caps[i]);
    struct spawn *s = &c->spawn;
    *s = (struct spawn){NO_STREAMS, .size = q->left, .limits = *q->p, .pty = flags & WANT_PTY, .stage = AT_SETUP};
    size_t room = request_room(s->size, strings);
    if (!(s->request = room <= sizeof s->small ? s->small : malloc(room))) die("out of memory");
    memcpy(s->request, q->p, s->size);
    s->tag = next_tag ? next_tag++ : 0;
    bool spare = spare_ready(s), own_streams = !spare || s->pty || flags & WANT_STDIN;
    if (own_streams && (s->pty || !next_tag)) files_as(run_uid, run_gid); /* so that it can reopen them by name (/dev/stdout) */
    bool opened = s->pty ? open_pty(c, s, rows, cols) : open_pipes(c, s, flags & WANT_STDIN, !spare);
    if (own_streams && (s->pty || !next_tag)) files_as(geteuid(), getegid());
    c->started = now_us();
    c->oom_kills = count_oom_kills();
    if (!opened) s->error = errno;
    else if (cgroup_fd < 0) c->pid = start_minded(c, s) ? 0 : -1;
    else if (!spare) start_in_slot(c, s);
    else if (!(c->given = give_to_spare(c, s))) start_without_spare(c, s);
    if (!c->given) release_spawn(s);
    if (s->error || c->pid < 0) {
        failed(p, id, s->stage, s->error);
        for (int i = 0; i < 2; i++)
            if (c->out[i].fd != c->pty) shut(&c->out[i].fd);
        if (c->stdin_fd != c->pty) shut(&c->stdin_fd);
        forget(c);
        return;
    }
    if (timeout) c->deadline = c->started + (uint64_t)timeout * 1000u;
    c->grace = (uint64_t)grace * 1000u;
    c->want_started = flags & WANT_STARTED;
    c->next = commands;
    commands = c;
}

static bool starting(const struct command *c) { return c->slot ? c->report_fd >= 0 || c->given : c->pid == 0; }

void send_signal(struct command *c, int sig) {
    if (starting(c)) c->pending |= 1ull << (sig - 1); /* it has no process group yet */
    else if (c->pid > 0 && !c->reaped) kill(-c->pid, sig);
}

static void never_started(struct command *c, int stage, int error) {
    if (c->peer) failed(c->peer, c->id, stage, error);
    c->told = c->reaped = true;
    c->peer = NULL;
    for (int i = 0; i < 2; i++) /* no process holds the other ends */
        if (c->out[i].fd != c->pty) shut(&c->out[i].fd);
        else c->out[i].fd = -1;
    if (c->stdin_fd != c->pty) shut(&c->stdin_fd);
}

void hear_report(struct command *c) {
    struct report r = {.kind = REPORT_STARTED, .pid = c->pid};
    ssize_t n = read(c->report_fd, &r, sizeof r);
    if (n < 0) return;
    if (c->slot) { /* it failed, or its exec closed the pipe */
        shut_later(&c->report_fd);
        if (c->given && !n && request_unread()) return; /* a spare died: see reap */
        confirm_spawn(c);
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
    if (r.kind == REPORT_FAILED) never_started(c, r.stage, r.error);
    else main_reaped(c, r.status, &r.usage);
}

static void replace_spare(struct command *c) { /* it died before it read the request: fork a child */
    struct spawn *s = &c->spawn;
    c->given = false;
    return_slot(c->slot);
    c->slot = NULL;
    shut(&c->report_fd);
    c->pid = -1;
    s->stage = AT_SETUP;
    start_without_spare(c, s);
    if (s->error || c->pid < 0) never_started(c, s->stage, s->error);
    release_spawn(s);
}

void reap(void) {
    struct signalfd_siginfo si[8];
    ssize_t got;
    do { /* a sender outside the namespace has pid 0 here */
        got = read(signal_fd, si, sizeof si);
        for (ssize_t i = 0; i < got / (ssize_t)sizeof *si; i++)
            if (si[i].ssi_signo != SIGCHLD && !(features & F_PID1 && si[i].ssi_pid)) stopping = true;
    } while (got == sizeof si);
    int status;
    struct rusage usage;
    for (pid_t pid; (pid = wait4(-1, &status, WNOHANG | WUNTRACED, &usage)) > 0;) {
        reap_spare(pid, status);
        for (struct command *c = commands; c; c = c->next) {
            if (WIFSTOPPED(status) && c->minder == pid) fail_closed("a minder was stopped");
            /* A spare exits with this status if it can't take a request, and with any other only after it has. */
            if (c->slot && c->pid == pid && WIFEXITED(status) && WEXITSTATUS(status) != SPARE_FAILED) confirm_spawn(c);
            if (c->slot && c->pid == pid && starting(c)) hear_report(c); /* a failed start is not an exit */
            if (WIFSTOPPED(status)) {
                if (c->slot && c->pid == pid && c->given && request_unread()) kill(pid, SIGKILL); /* a spare */
                continue;
            }
            if (c->slot && c->pid == pid && c->given && !c->killing) { replace_spare(c); continue; }
            if (c->slot && c->pid == pid && !c->reaped) main_reaped(c, status, &usage);
            if (c->minder == pid) {
                if (WIFSIGNALED(status)) fail_closed("a minder was killed"); /* attribution is lost: end the box */
                c->minder = -1;
            }
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

void listen_to(struct peer *p) {
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

int own(int fd) { /* move above the standard streams, and close on exec */
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 16);
    if (copy < 0) die("a descriptor that was named is not open");
    close(fd);
    return copy;
}

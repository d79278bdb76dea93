/* The spare: a child that is forked while no command runs, and waits for the next request. The command that it becomes
 * starts without a fork.
 *
 * It exists only while no process of any command is alive, so that no command can see, signal or inspect it, and it never
 * adds to the processes that a limit counts. It has no data of an earlier request: it gets no copy of the agent's
 * buffers. If it dies or is stopped, from outside, no command fails: a child is forked instead. Commands with minders, or with
 * limits that the agent may set but their own user may not, are always forked. */
#include "boxagent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GROUP_MODE = 0755, SPARE_GROUP_MODE = 0700 }; /* the second tells the host that no command runs in this group */

uint64_t spare_deadline = UINT64_MAX;
static struct { pid_t pid; int report_fd, out[2]; struct slot *slot; } spare = {-1, -1, {-1, -1}, NULL};
static struct spawn next = {NO_STREAMS}; /* the next spare's ends of its streams, and the agent's */
static int next_out[2] = {-1, -1};
static int request_ends[2] = {-1, -1}; /* of a socket: the agent's end, and the end that all spares inherit, one after the other */
static unsigned ended_commands;
static bool wanted;

void note_end(void) { /* a box with a single command never needs a spare */
    wanted = ++ended_commands > 1;
}

bool spare_due(void) {
    return wanted && !commands && cgroup_fd >= 0 && !relay_count && all_slots_empty();
}

static void forget_spare(void) {
    shut(&spare.report_fd);
    for (int i = 0; i < 2; i++) shut(&spare.out[i]);
    if (spare.slot) fchmod(spare.slot->dir, GROUP_MODE), return_slot(spare.slot);
    spare.slot = NULL;
    spare.pid = -1;
    spare_deadline = UINT64_MAX;
}

void prepare_streams(void) {
    if (cgroup_fd < 0 || !ended_commands || next.report[0] >= 0) return;
    if (request_ends[0] < 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, request_ends)) return;
    files_as(run_uid, run_gid);
    bool opened = open_outputs(&next, next_out) && !pipe2(next.report, O_CLOEXEC | O_NONBLOCK);
    files_as(geteuid(), getegid());
    if (opened) return;
    release_spawn(&next);
    for (int i = 0; i < 2; i++) shut(&next_out[i]);
}

static void discard_request(void) { /* of a spare that died before it read it */
    while (recv(request_ends[1], &(char){0}, 1, MSG_DONTWAIT) > 0) {}
}

void make_spare(void) {
    wanted = false;
    prepare_streams();
    discard_request();
    for (int i = 0; i < 2; i++) spare.out[i] = next_out[i], next_out[i] = -1;
    next.request_fd = request_ends[1];
    if (next.report[0] >= 0 && (spare.slot = get_slot(true)) && !fchmod(spare.slot->dir, SPARE_GROUP_MODE))
        spare.pid = spawn_child(&next, spare.slot->dir, &spare.report_fd);
    release_spawn(&next);
    if (spare.pid < 0) forget_spare();
    else spare_deadline = now_us() + SPARE_US, touch_memory();
}

void end_spare(void) {
    if (spare.pid > 0) kill(spare.pid, SIGKILL);
    /* Without a limit, a debugger that is attached to the spare could block the agent. */
    for (uint64_t until = now_us() + 1000000; spare.pid > 0 && !waitpid(spare.pid, NULL, WNOHANG) && now_us() < until;)
        poll(&(struct pollfd){signal_fd, POLLIN, 0}, 1, 1);
    forget_spare();
}

void reap_spare(pid_t pid, int status) {
    if (pid != spare.pid) return;
    if (WIFSTOPPED(status)) end_spare();
    else forget_spare();
}

/* Otherwise there is no spare afterwards: neither it nor a command may see the other. */
bool spare_ready(const struct spawn *s) {
    int status;
    if (spare.pid < 0) return false;
    pid_t changed = waitpid(spare.pid, &status, WNOHANG | WUNTRACED);
    if (changed == spare.pid && !WIFSTOPPED(status)) return forget_spare(), false;
    if (changed || s->size > MAX_SPARE_REQUEST || (s->limits && features & F_UID_SPLIT)) return end_spare(), false;
    return true;
}

/* The request is the rest of an EXEC frame. Only a stdin, or a terminal for all streams, goes with it. */
static bool send_request(const struct spawn *s) {
    uint8_t pty = s->pty;
    union { struct cmsghdr align; char bytes[CMSG_SPACE(sizeof(int))]; } control = {0};
    struct iovec parts[2] = {{&pty, 1}, {s->request, s->size}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    if (s->in >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(head), &s->in, sizeof(int));
    }
    return sendmsg(request_ends[0], &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)(1 + s->size);
}

bool give_to_spare(struct command *c, struct spawn *s) {
    if (fchmod(spare.slot->dir, GROUP_MODE) || !send_request(s)) return end_spare(), false;
    c->pid = spare.pid;
    c->slot = spare.slot;
    c->report_fd = spare.report_fd;
    for (int i = 0; i < 2 && !s->pty; i++) c->out[i].fd = spare.out[i], spare.out[i] = -1;
    spare.report_fd = -1;
    spare.slot = NULL;
    forget_spare();
    return true;
}

bool request_unread(void) {
    return recv(request_ends[1], &(char){0}, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

/* In the spare. If there is no agent any more, it exits. */
void await_request(struct spawn *s) {
    static uint8_t memory[4096 + 1 + MAX_SPARE_REQUEST + (MAX_SPARE_REQUEST / 4 + 3) * sizeof(char *)]; /* see request_room */
    uint8_t *text = memory + (4096 - (uintptr_t)memory % 4096); /* a page begins here, so that a small request needs one page */
    union { struct cmsghdr align; char bytes[CMSG_SPACE(sizeof(int))]; } control;
    struct iovec part = {text, 1 + MAX_SPARE_REQUEST};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t n;
    *(volatile uint8_t *)text = 0; /* as in touch_memory */
    while ((n = recvmsg(s->request_fd, &message, MSG_PEEK | MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {}
    if (n <= 0 || message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) _exit(SPARE_FAILED);
    /* Taken only now: a signal that ended the wait above would have killed or stopped the spare in between. */
    if (recv(s->request_fd, &(char){0}, 1, MSG_DONTWAIT) != 1) _exit(SPARE_FAILED);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    s->in = s->out = s->err = -1;
    if (head && head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN(sizeof(int))) memcpy(&s->in, CMSG_DATA(head), sizeof(int));
    if ((s->pty = text[0])) s->out = s->err = s->in;
    if (s->pty && s->in < 0) _exit(SPARE_FAILED);
    s->size = (size_t)n - 1;
    s->request = text + 1;
    read_spawn(s);
}

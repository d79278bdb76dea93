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
 *     --report-oom      with --cgroup: say of each command whether processes were killed at the group's memory limit
 *                       in the meantime; for a guest, whose groups the host can't read
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
#ifndef BOXAGENT_H
#define BOXAGENT_H
#define _GNU_SOURCE
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

enum { PROTOCOL = 1, MAGIC = 0x31584250 /* "PBX1" */ };
enum { HELLO = 1, EXEC, STDIN, STDIN_EOF, SIGNAL, KILL, RESIZE, CREDIT, PING, SHUTDOWN };
enum { A_HELLO = 65, A_STARTED, A_STDOUT, A_STDERR, A_STDIN_ACK, A_EXIT, A_FAILED, A_PONG, A_FATAL };
enum { WANT_PTY = 1, WANT_STDIN = 2, WANT_STARTED = 4, ALL_FLAGS = 7 };
enum { WHY_EXIT, WHY_TIMEOUT, WHY_KILLED };
enum { PIPES_HELD = 1, SURVIVORS = 2, OOM_KILLED = 4 };
enum { AT_REQUEST = 1, AT_FORK, AT_SETUP, AT_CWD, AT_EXEC };
enum { F_CGROUP = 1, F_UID_SPLIT = 2, F_LANDLOCK = 4, F_SECCOMP = 8, F_PID1 = 16, F_LISTENING = 32 };

#define MAX_FRAME (4u << 20)     /* the kernel accepts no larger argv and environment by default */
#define OUT_HIGH (1u << 20)      /* stop reading from commands while the peer is this far behind */
#define STDIN_WINDOW (256u << 10)
#define READ_CHUNK (64u << 10)
#define MAX_TAIL (32u << 20)
#define MAX_SPARE_REQUEST (64u << 10) /* fits into the buffer of a socket; for a larger request, a child is forked */
#define CLOSE_US 1000            /* descriptors are closed after this time without a command */
#define SPARE_FAILED 125
#define SPARE_US 1000000         /* an unused spare ends after this time, so that idle boxes cost no more */
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

struct spawn { /* the data that a child needs between fork and exec */
    uint8_t *request;    /* the rest of an EXEC frame, with room behind it: see request_room */
    size_t size;
    uint8_t small[1024]; /* memory for a small request */
    char **argv, **envp, *cwd;
    int in, out, err;
    bool pty;
    int limits;
    uint8_t resource[16];
    uint64_t value[16];
    gid_t tag;           /* 0: none */
    int request_fd;      /* of a spare: the socket for its request; else -1 */
    int report[2];       /* the child reports to it, and closes it when it execs */
    int stage, error;
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
    uint64_t oom_kills;  /* of the box, before it started */
    uint64_t pending;    /* signals that arrived before it started: bit n is signal n + 1 */
    struct command *next;
    struct spawn spawn;
    bool given;          /* to a spare, which may have died before it read the request; false once it is known to have read it */
};

struct forward { int fd; const char *path; struct forward *next; };

struct relay { /* bytes[i] were read from end[i] and go to the other end */
    int end[2];
    struct buffer bytes[2];
    bool over[2], passed_on[2];
    struct relay *next;
};

enum { REPORT_STARTED, REPORT_EXITED, REPORT_FAILED };
struct report { int kind, pid, stage, error, status; struct rusage usage; };

#define NO_STREAMS .in = -1, .out = -1, .err = -1, .request_fd = -1, .report = {-1, -1}

struct cursor { const uint8_t *p; size_t left; bool bad; };

/* frames.c */
uint64_t now_us(void);
_Noreturn void die(const char *what);
void shut(int *fd);
void shut_later(int *fd);
void close_later(void);
bool closing(void);
void *unshared(size_t size);
void unmap(void *data, size_t size);
uint8_t *room(struct buffer *b, size_t want);
size_t held(const struct buffer *b);
void drop(struct buffer *b);
void put(struct buffer *b, uint64_t value, int bytes);
void frame(struct peer *p, int type, uint32_t id, size_t payload);
void put_bytes(struct buffer *b, const void *data, size_t n);
uint64_t take(struct cursor *c, int bytes);
void flush(struct peer *p);
void fatal(struct peer *p, const char *text);
void failed(struct peer *p, uint32_t id, int stage, int error);

/* child.c */
void guard_own_entry(void);
void set_caps(uint32_t caps);
size_t count_strings(struct cursor q);
size_t request_room(size_t size, size_t strings);
void read_spawn(struct spawn *s);
void release_spawn(struct spawn *s);
void keep_only(int *fds, int count);
pid_t spawn_child(struct spawn *s, int cgroup, int *report_fd);

/* minder.c */
_Noreturn void fail_closed(const char *what);
_Noreturn void minder(struct spawn *s, int status_fd, pid_t agent);

/* spare.c */
extern uint64_t spare_deadline; /* UINT64_MAX: there is no spare */
void note_end(void);
bool spare_due(void);
void prepare_streams(void);
void make_spare(void);
bool spare_ready(const struct spawn *s);
bool give_to_spare(struct command *c, struct spawn *s);
bool request_unread(void);
void end_spare(void);
void reap_spare(pid_t pid, int status);
void await_request(struct spawn *s);

/* slots.c */
extern struct slot *slots;
extern int cgroup_fd;
extern bool report_oom;
bool slot_empty(struct slot *s);
bool all_slots_empty(void);
struct slot *get_slot(bool all_empty);
void kill_slot(struct slot *s);
bool remove_slot(const struct slot *s);
void return_slot(struct slot *s);
uint64_t count_oom_kills(void);

/* commands.c */
extern struct command *commands;
extern gid_t next_tag; /* 0: commands are identified by descent */
void kill_tree(struct command *c, uint8_t why);
bool may_read(const struct command *c);
void pump(struct command *c, struct output *o);
void feed(struct command *c);
bool settle(struct command *c, uint64_t now);
void forget(struct command *c);
void touch_memory(void);
void files_as(uid_t uid, gid_t gid);
void send_signal(struct command *c, int sig);
void hear_report(struct command *c);
void reap(void);
void listen_to(struct peer *p);
bool open_outputs(struct spawn *s, int ends[2]);
int own(int fd);

/* forwarding.c */
extern struct forward *forwards;
extern unsigned relay_count;
void open_forward(int port, const char *path);
size_t watch_relays(struct pollfd *set);
void serve_relays(const struct pollfd *set);

/* confinement.c */
extern uid_t run_uid;
extern gid_t run_gid;
extern uint32_t features;
extern uint32_t landlock_abi;
void install_seccomp(bool no_suid);
void install_landlock(char **rw, int count);
void become(uid_t uid, gid_t gid);
void carry(int *rfd, int *wfd);
void enter_userns(int fd);

/* loop.c */
extern int signal_fd;
extern bool stopping;

#endif

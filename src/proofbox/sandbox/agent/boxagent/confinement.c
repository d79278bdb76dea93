/* Confinement: seccomp, landlock, user namespaces, and the carrier of --carry. */
#include "boxagent.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

uid_t run_uid = (uid_t)-1;
gid_t run_gid = (gid_t)-1;
uint32_t features;
uint32_t landlock_abi;

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
 * every network mode. It allows AF_UNIX; AF_INET and AF_INET6 with TCP, UDP and ICMP echo (AF_INET with SOCK_PACKET is
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

void install_seccomp(bool no_suid) {
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

void install_landlock(char **rw, int count) {
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

void become(uid_t uid, gid_t gid) {
    /* Needed to start commands as another user and to signal them. Commands with our uid would inherit them: keep none. */
    uint32_t keep_caps = run_uid == uid ? 0 : 1u << CAP_SETUID | 1u << CAP_SETGID | 1u << CAP_KILL;
    for (int cap = 0, has; (has = prctl(PR_CAPBSET_READ, cap, 0, 0, 0)) >= 0; cap++)
        if (has && (cap > 31 || !(keep_caps >> cap & 1)) && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0)) die("dropping a capability");
    prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0);
    if (setgroups(0, NULL) || setresgid(gid, gid, gid) || setresuid(uid, uid, uid)) die("becoming the agent's user");
    set_caps(keep_caps);
}

static void copy(int from, int to) {
    char chunk[READ_CHUNK]; /* not static: it would spread the variables that the agent writes after each fork over more pages */
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
void carry(int *rfd, int *wfd) {
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

void enter_userns(int fd) {
    if (setns(fd, CLONE_NEWUSER)) die("joining the user namespace");
    close(fd);
    become(0, 0);
}

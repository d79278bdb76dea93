/* boxlaunch: prepares cgroups, namespaces and mounts with the caller's privileges, and then runs bubblewrap.
 *
 *   boxlaunch [option...] -- COMMAND [ARG...]
 *     --join FILE              enter a cgroup: write our pid to its cgroup.procs
 *     --cgroup FD              continue in a child created in this cgroup v2 directory, and wait for it: entering with
 *                              --join takes the kernel up to 20 ms, creating a child there takes no extra time
 *     --userns FD MAP GIDMAP   create a user namespace with these maps ("0 100000 1,1000 0 1": inside, outside, count),
 *                              in which no further one can be created and which can't use up the caller's inotify
 *                              instances and watches, and leave it open as descriptor FD for boxagent
 *     --idmap PATH UID GID TOUID TOGID
 *                              map the owners UID and GID beneath PATH to TOUID and TOGID, in both directions, so that
 *                              an unprivileged box can work in root's project and the files it writes belong to root
 *     --overlay PATH BYTES     cover PATH with a temporary copy-on-write layer in memory (BYTES: size limit, 0 for none)
 *     --layers PATH COUNT LOWER... UPPER WORK
 *                              cover PATH with COUNT layered directories, the first on top, and store changes in UPPER
 *     --without PATH           remove what is mounted on PATH and below it: for every mount that it makes, bubblewrap reads
 *                              the table of all mounts
 *     --devices DIR            cover DIR with a new /dev, the same that bubblewrap makes with a mount for each device
 *     --stage DIR              cover DIR with an empty directory in memory, for mounts of --pin
 *     --pin PATH AT            mount PATH on AT, a new name in a staging directory; fail if PATH contains a symbolic
 *                              link. A process that can write to PATH's parents can later change what PATH refers to,
 *                              but not what is mounted at AT
 *     --open FD PATH           leave PATH open for reading as descriptor FD, for bubblewrap to copy
 *     --version
 *
 * All mounts are made in a new mount namespace: they are invisible outside it and disappear when the box ends. --idmap,
 * --overlay and --layers mount over PATH itself. Options are applied in the order given. For an ordinary user, --overlay,
 * --layers, --stage and --pin work in a new user namespace; --userns and --idmap require root.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_openat2
#define SYS_openat2 437
#endif

enum { PROTOCOL = 1 }; /* must match boxagent's: the two programs are built together */

static _Noreturn void die(const char *what, const char *of) {
    dprintf(2, "boxlaunch: %s %s: %s\n", what, of, strerror(errno));
    _exit(125);
}

static void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text)) die("writing", path);
    close(fd);
}

static void write_map(pid_t pid, const char *name, const char *map) { /* commas become newlines */
    char path[64], lines[256];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    snprintf(lines, sizeof lines, "%s", map);
    for (char *c = lines; *c; c++)
        if (*c == ',') *c = '\n';
    write_file(path, lines);
}

/* The kernel also charges these to the user who made the namespace, so a box gets a quarter of the host's limit. */
static const char *const shared[] = {"/proc/sys/user/max_inotify_instances", "/proc/sys/user/max_inotify_watches"};
enum { SHARED = sizeof shared / sizeof *shared };

static void quarter(const char *path, char *text, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    text[0] = 0;
    if (fd < 0 && errno == ENOENT) return; /* a kernel without inotify */
    ssize_t length = fd < 0 ? -1 : read(fd, text, size - 1);
    if (length < 0) die("reading", path);
    close(fd);
    text[length] = 0;
    snprintf(text, size, "%ld", strtol(text, NULL, 10) / 4);
}

/* Create a user namespace with these maps and return its descriptor. Maps are written through a process inside it, so this
 * needs a short-lived child. With `seal`, its inotify use is limited and no user namespace can be created within it, and so
 * no other namespace either, because those require one. */
static int make_userns(const char *uids, const char *gids, bool seal) {
    int go[2], status;
    char byte, path[64], limits[SHARED][32];
    for (int n = 0; n < SHARED; n++) quarter(shared[n], limits[n], sizeof limits[n]);
    if (pipe2(go, O_CLOEXEC)) die("pipe", "");
    struct clone_args a = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    long pid = syscall(SYS_clone3, &a, sizeof a);
    if (pid < 0) die("making a user namespace", "");
    if (pid == 0) {
        close(go[1]);
        if (seal) write_file("/proc/sys/user/max_user_namespaces", "0");
        for (int n = 0; seal && n < SHARED; n++)
            if (*limits[n]) write_file(shared[n], limits[n]);
        _exit(read(go[0], &byte, 1) == 0 ? 0 : 125);
    }
    write_map((pid_t)pid, "uid_map", uids);
    write_map((pid_t)pid, "gid_map", gids);
    snprintf(path, sizeof path, "/proc/%ld/ns/user", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) die("opening", path);
    close(go[1]);
    close(go[0]);
    if (waitpid((pid_t)pid, &status, 0) != pid || status) _exit(125); /* the child has printed the reason */
    return fd;
}

static void own_mounts(void) { /* once: enter a mount namespace whose changes are invisible outside */
    static bool done;
    if (done) return;
    done = true;
    uid_t uid = geteuid();
    gid_t gid = getegid();
    char map[64];
    if (unshare(uid ? CLONE_NEWUSER | CLONE_NEWNS : CLONE_NEWNS)) die("making a mount namespace", "");
    if (uid) {
        snprintf(map, sizeof map, "%u %u 1", uid, uid);
        write_map(getpid(), "uid_map", map);
        write_map(getpid(), "setgroups", "deny");
        snprintf(map, sizeof map, "%u %u 1", gid, gid);
        write_map(getpid(), "gid_map", map);
    }
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) die("making mounts private", "");
}

static void go_on_in(int cgroup) {
    struct clone_args a = {.flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = (uint64_t)cgroup};
    long pid = syscall(SYS_clone3, &a, sizeof a);
    if (pid < 0) die("starting in a cgroup", "");
    if (pid == 0) return;
    syscall(SYS_close_range, 3, ~0u, 0); /* keep no descriptor open that should close when the child exits */
    int status;
    while (waitpid((pid_t)pid, &status, 0) < 0)
        if (errno != EINTR) _exit(125);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

static int clone_tree(const char *path) {
    int fd = (int)syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    if (fd < 0) die("open_tree", path);
    return fd;
}

static void attach(int tree, const char *path) {
    if (syscall(SYS_move_mount, tree, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH)) die("move_mount", path);
    close(tree);
}

static void idmap(const char *path, unsigned uid, unsigned gid, unsigned to_uid, unsigned to_gid) {
    char uids[64], gids[64];
    own_mounts();
    snprintf(uids, sizeof uids, "%u %u 1", uid, to_uid);
    snprintf(gids, sizeof gids, "%u %u 1", gid, to_gid);
    int userns = make_userns(uids, gids, false), tree = clone_tree(path);
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)userns};
    if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr, sizeof attr)) die("idmapped mount of", path);
    close(userns);
    attach(tree, path);
}

static void overlay(const char *path, const char *bytes) {
    char options[3 * PATH_MAX + 64], lower[PATH_MAX + 8], upper[PATH_MAX + 8], work[PATH_MAX + 8];
    struct stat owner;
    own_mounts();
    int tree = clone_tree(path);
    if (fstat(tree, &owner)) die("stat", path); /* as seen through an idmapped mount, if any */
    snprintf(options, sizeof options, "mode=0755,size=%s", bytes);
    if (mount("proofbox", path, "tmpfs", MS_NOSUID | MS_NODEV, strcmp(bytes, "0") ? options : "mode=0755")) die("tmpfs on", path);
    snprintf(lower, sizeof lower, "%s/lower", path);
    snprintf(upper, sizeof upper, "%s/upper", path);
    snprintf(work, sizeof work, "%s/work", path);
    if (mkdir(lower, 0755) || mkdir(upper, owner.st_mode & 07777) || mkdir(work, 0755)) die("mkdir in", path);
    if (geteuid() == 0 && (chown(upper, owner.st_uid, owner.st_gid) || chmod(upper, owner.st_mode & 07777))) die("chown", upper);
    attach(tree, lower);
    /* Commas separate options and colons separate layers: use relative names, so that the caller's paths are not in them. */
    if (chdir(path)) die("chdir", path);
    const char *layers = geteuid() ? "lowerdir=lower,upperdir=upper,workdir=work,userxattr"
                                   : "lowerdir=lower,upperdir=upper,workdir=work,volatile";
    if (mount("proofbox", path, "overlay", MS_NOSUID | MS_NODEV, layers)) die("overlay on", path);
    if (chdir("/")) die("chdir", "/");
}

/* Commas separate options and colons separate layers, so name the layers by their descriptors. */
static void add_layer(char *options, size_t size, const char *before, const char *path) {
    int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) die("opening", path);
    size_t used = strlen(options);
    if ((size_t)snprintf(options + used, size - used, "%s/proc/self/fd/%d", before, fd) >= size - used) errno = E2BIG, die("layer", path);
}

static void layers(const char *path, char **lower, unsigned count, const char *upper, const char *work) {
    char options[4096 + 16] = "redirect_dir=nofollow,metacopy=off,index=off";
    struct stat owner;
    own_mounts();
    /* Files in UPPER must belong to the workload's user, as LOWER's do through an idmapped mount. UPPER can't be idmapped:
     * the kernel accesses it as root, which such a mount does not map. */
    if (stat(lower[0], &owner)) die("stat", lower[0]);
    if (geteuid() == 0 && chown(upper, owner.st_uid, owner.st_gid)) die("chown", upper);
    for (unsigned n = 0; n < count; n++) add_layer(options, 4096, n ? ":" : ",lowerdir=", lower[n]);
    add_layer(options, 4096, ",upperdir=", upper);
    add_layer(options, 4096, ",workdir=", work);
    strcat(options, geteuid() ? ",userxattr" : ",volatile");
    if (mount("proofbox", path, "overlay", MS_NOSUID | MS_NODEV, options)) die("layers on", path);
}

static void stage(const char *path) {
    own_mounts();
    if (mount("proofbox", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0700")) die("tmpfs on", path);
}

static void without(const char *path) {
    own_mounts();
    if (umount2(path, MNT_DETACH) && errno != EINVAL && errno != ENOENT) die("unmounting", path); /* EINVAL: not a mount point */
}

static const struct { const char *name; unsigned minor, major; } nodes[] = {
    {"null", 3, 1}, {"zero", 5, 1}, {"full", 7, 1}, {"random", 8, 1}, {"urandom", 9, 1}, {"tty", 0, 5},
};
static const char *const links[][2] = {
    {"/proc/self/fd", "fd"}, {"/proc/self/fd/0", "stdin"}, {"/proc/self/fd/1", "stdout"}, {"/proc/self/fd/2", "stderr"},
    {"/proc/kcore", "core"}, {"pts/ptmx", "ptmx"},
};

static void devices(const char *path) {
    char host[32];
    own_mounts();
    if (mount("proofbox", path, "tmpfs", MS_NOSUID, "mode=0755")) die("tmpfs on", path);
    if (chdir(path)) die("chdir", path);
    mode_t mask = umask(0);
    for (size_t n = 0; n < sizeof nodes / sizeof *nodes; n++) {
        if (!mknod(nodes[n].name, S_IFCHR | 0666, makedev(nodes[n].major, nodes[n].minor))) continue;
        snprintf(host, sizeof host, "/dev/%s", nodes[n].name); /* root in a container may not be allowed to create devices */
        if (mknod(nodes[n].name, S_IFREG | 0444, 0)) die("creating", nodes[n].name);
        attach(clone_tree(host), nodes[n].name);
    }
    for (size_t n = 0; n < sizeof links / sizeof *links; n++)
        if (symlink(links[n][0], links[n][1])) die("linking", links[n][1]);
    if (mkdir("pts", 0755) || mkdir("shm", 0755)) die("mkdir in", path);
    umask(mask);
    if (mount("devpts", "pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")) die("devpts in", path);
    if (chdir("/")) die("chdir", "/");
}

static void pin(const char *path, const char *at) {
    struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
    struct stat found;
    own_mounts();
    int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    if (fd < 0 || fstat(fd, &found)) die("opening without symbolic links", path);
    int tree = (int)syscall(SYS_open_tree, fd, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    if (tree < 0) die("open_tree", path);
    if (S_ISDIR(found.st_mode) ? mkdir(at, 0700) : mknod(at, S_IFREG | 0600, 0)) die("creating", at);
    attach(tree, at);
    close(fd);
}

static void open_as(int as, const char *path) {
    int fd = open(path, O_RDONLY);
    if (fd < 0 || dup2(fd, as) < 0) die("opening", path); /* stays open across exec */
    if (fd != as) close(fd);
}

static unsigned number(const char *text) {
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    if (!*text || *end || value > UINT_MAX) errno = EINVAL, die("number", text);
    return (unsigned)value;
}

int main(int argc, char **argv) {
    int i = 1;
    if (argc == 2 && !strcmp(argv[1], "--version")) return printf("boxlaunch %d\n", PROTOCOL) < 0;
    for (; i < argc && strcmp(argv[i], "--"); i++) {
        char **a = argv + i;
        int left = argc - i - 1;
        if (!strcmp(a[0], "--join") && left >= 1) {
            write_file(a[1], "0");
            i += 1;
        } else if (!strcmp(a[0], "--cgroup") && left >= 1) {
            go_on_in((int)number(a[1]));
            i += 1;
        } else if (!strcmp(a[0], "--userns") && left >= 3) {
            int fd = make_userns(a[2], a[3], true), as = (int)number(a[1]);
            if (dup2(fd, as) < 0) die("dup2", a[1]); /* stays open across exec */
            i += 3;
        } else if (!strcmp(a[0], "--open") && left >= 2) {
            open_as((int)number(a[1]), a[2]);
            i += 2;
        } else if (!strcmp(a[0], "--idmap") && left >= 5) {
            idmap(a[1], number(a[2]), number(a[3]), number(a[4]), number(a[5]));
            i += 5;
        } else if (!strcmp(a[0], "--overlay") && left >= 2) {
            overlay(a[1], a[2]);
            i += 2;
        } else if (!strcmp(a[0], "--layers") && left >= 5 && number(a[2]) && left >= 4 + (int)number(a[2])) {
            unsigned count = number(a[2]);
            layers(a[1], a + 3, count, a[3 + count], a[4 + count]);
            i += 4 + (int)count;
        } else if (!strcmp(a[0], "--without") && left >= 1) {
            without(a[1]);
            i += 1;
        } else if (!strcmp(a[0], "--devices") && left >= 1) {
            devices(a[1]);
            i += 1;
        } else if (!strcmp(a[0], "--stage") && left >= 1) {
            stage(a[1]);
            i += 1;
        } else if (!strcmp(a[0], "--pin") && left >= 2) {
            pin(a[1], a[2]);
            i += 2;
        } else {
            errno = EINVAL;
            die("option", a[0]);
        }
    }
    if (i + 1 >= argc) errno = EINVAL, die("no command", "");
    execvp(argv[i + 1], argv + i + 1);
    die("exec", argv[i + 1]);
}

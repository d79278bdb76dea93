/* The guest's side: init. It builds the root from the share, starts the box agent, and serves the console port. */
#include "boxvm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <linux/random.h>
#include <net/if.h>
#include <netinet/in.h>
#include <net/route.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#define AGENT_ID 2000000061u /* as in the bubblewrap provider: no account has it */
#define AGENT_SOCKET "/agent"
enum { AGENT_FD = 20, CGROUP_FD = 21, MAX_SOCKETS = 64, MAX_KEPT = 4 << 20, MAX_PLACES = 8 };

static const char *const modules[] = {"virtio", "virtio_ring", "virtio_console", "fuse", "virtiofs"};
/* The initramfs contains those that its hypervisor needs: QEMU's microvm has no PCI, Virtualization.framework has only PCI. */
static const char *const transports[] = {"virtio_mmio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci"};
static const char *const network_modules[] = {"failover", "net_failover", "virtio_net"};
/* Entries of /proc that reveal the kernel; container runtimes mask the same ones. */
static const char *const masked[] = {"acpi", "asound", "interrupts", "kcore", "keys", "latency_stats", "sched_debug", "scsi",
                                     "timer_list", "timer_stats"};
/* Nearly every program opens these files, and each opening and closing of a shared file is a request to the host. */
static const char *const kept[] = {"/etc/ld.so.cache", "/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6",
                                   "/lib/ld-linux-aarch64.so.1", "/lib/aarch64-linux-gnu/libc.so.6"};
static const struct { const char *path; mode_t mode; } private[] = {
    {"/tmp", 01777}, {"/var/tmp", 01777}, {"/home", 01777}, {"/run", 0755}};
static const struct { const char *name; int minor, major; } devices[] = {
    {"null", 3, 1}, {"zero", 5, 1}, {"full", 7, 1}, {"random", 8, 1}, {"urandom", 9, 1}, {"tty", 0, 5}};

static char **options, **agent;
static bool with_network, composed, attached;
static const char *memory, *pids, *cpu;
static char places[MAX_PLACES][NAME_MAX + 1];
static int place_count, bind_fd = -1;
static int sockets[MAX_SOCKETS], socket_count, agent_fd, stream_fd = -1;

/* Which module needs which differs between releases of the kernel. One whose symbols are unknown yet is tried again. */
static void load(const char *const *names, size_t count, bool needed) {
    char path[64];
    uint32_t left = (1u << count) - 1;
    while (left) {
        uint32_t before = left;
        for (size_t i = 0; i < count; i++) {
            if (!(left >> i & 1)) continue;
            snprintf(path, sizeof path, "/modules/%s.ko", names[i]);
            int fd = open(path, O_RDONLY | O_CLOEXEC);
            if (fd < 0 && (errno != ENOENT || needed)) die(path);
            if (fd < 0 || !syscall(SYS_finit_module, fd, "", 0) || errno == EEXIST) left &= ~(1u << i);
            else if (errno != ENOENT) die(path);
            if (fd >= 0) close(fd);
        }
        if (left == before) errno = ENOEXEC, die("the kernel's modules do not fit each other");
    }
}

static void must_mount(const char *source, const char *place, const char *kind, unsigned long flags, const char *data) {
    if (mount(source, place, kind, flags, data)) die(place);
}

static char *in_root(const char *path) {
    static char place[4096 + 8];
    snprintf(place, sizeof place, "/new%s", path);
    return place;
}

static void make_parents(char *path) {
    for (char *at = path + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        if (mkdir(path, 0755) && errno != EEXIST && errno != EROFS) die(path);
        *at = '/';
    }
}

static void show(const char *source, const char *path) { /* bind a file or directory at a path of the root */
    struct stat found;
    char *place = in_root(path);
    if (stat(source, &found)) die(source);
    make_parents(place);
    if (S_ISDIR(found.st_mode) ? mkdir(place, 0755) && errno != EEXIST : access(place, F_OK) && mknod(place, S_IFREG | 0644, 0)) die(place);
    must_mount(source, place, NULL, MS_BIND, NULL);
}

static int open_without_links(const char *path) { /* commands of earlier boxes may have made links in shared directories */
    struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
    return (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
}

static void attach(const char *source, const char *path, bool read_only) { /* show(), for a root that is composed here */
    struct stat found;
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY};
    char *place = in_root(path);
    int from = open_without_links(source), to = open_without_links(place);
    if (from < 0 || fstat(from, &found)) die(source);
    if (to < 0 && errno == ENOENT) {
        make_parents(place);
        if (S_ISDIR(found.st_mode) ? mkdir(place, 0755) : mknod(place, S_IFREG | 0644, 0)) die(place);
        to = open_without_links(place);
    }
    int tree = (int)syscall(SYS_open_tree, from, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (to < 0 || tree < 0 || (read_only && syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof attr)) ||
        syscall(SYS_move_mount, tree, "", to, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH))
        die(place);
    close(from);
    close(to);
    close(tree);
}

/* Show the entries of a directory of the share of programs. The directory and its links are made here: each use of a shared
 * link, and each search for a file that does not exist, would be a request to the host. */
static void show_entries(const char *directory) {
    DIR *share = opendir(directory);
    if (!share) die(directory);
    for (struct dirent *e; (e = readdir(share));) {
        char target[PATH_MAX], source[PATH_MAX];
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        ssize_t size = readlinkat(dirfd(share), e->d_name, target, sizeof target - 1);
        snprintf(source, sizeof source, "%s/%s", directory, e->d_name);
        const char *path = source + strlen("/system");
        if (size < 0 && !strcmp(path, "/etc")) {
            show_entries(source);
        } else if (size < 0) {
            show(source, path);
        } else {
            target[size] = 0;
            make_parents(in_root(path));
            if (symlink(target, in_root(path))) die(source);
        }
    }
    closedir(share);
}

static void keep_in_memory(const char *path, int number) { /* a file that is missing, or large, stays in the share */
    struct stat found;
    struct open_how how = {.flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT};
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    int root = open("/new", O_PATH | O_CLOEXEC), file = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
    if (file >= 0 && !fstat(file, &found) && S_ISREG(found.st_mode) && found.st_size <= MAX_KEPT) {
        char name[32];
        snprintf(name, sizeof name, "/kept/%d", number);
        int copy = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        for (off_t at = 0; copy >= 0 && at < found.st_size;)
            if (sendfile(copy, file, &at, (size_t)(found.st_size - at)) <= 0) die(path);
        if (copy < 0 || fchown(copy, found.st_uid, found.st_gid) || fchmod(copy, found.st_mode & 0777) ||
            futimens(copy, (struct timespec[]){found.st_atim, found.st_mtim}))
            die(name);
        int tree = (int)syscall(SYS_open_tree, copy, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
        if (tree < 0 || syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof attr) ||
            syscall(SYS_move_mount, tree, "", file, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH))
            die(path);
        close(copy);
        close(tree);
    }
    close(file);
    close(root);
}

static int listen_at(const char *path) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    strncpy(at.sun_path, path, sizeof at.sun_path - 1);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) || chmod(path, 0666) || listen(fd, 64)) die(path);
    return fd;
}

static void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text)) die(path);
    close(fd);
}

static void set_up_devices(void) {
    must_mount("dev", "/new/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=0755");
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        char *place = in_root("/dev/");
        strcat(place, devices[i].name);
        if (mknod(place, S_IFCHR | 0666, makedev((unsigned)devices[i].major, (unsigned)devices[i].minor)) || chmod(place, 0666)) die(place);
    }
    if (mkdir("/new/dev/pts", 0755) || mkdir("/new/dev/shm", 01777) || symlink("pts/ptmx", "/new/dev/ptmx") ||
        symlink("/proc/self/fd", "/new/dev/fd") || symlink("/proc/self/fd/0", "/new/dev/stdin") ||
        symlink("/proc/self/fd/1", "/new/dev/stdout") || symlink("/proc/self/fd/2", "/new/dev/stderr"))
        die("/dev");
    must_mount("devpts", "/new/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620");
    must_mount("shm", "/new/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
}

/* In a template, find the places of devices that will be attached: the kernel finds them empty. */
static void find_places(void) {
    if (access("/kernel", F_OK)) return; /* with the table that lists them */
    if (mkdir("/sys", 0700)) die("/sys");
    must_mount("sys", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    DIR *found = opendir("/sys/bus/platform/devices");
    bind_fd = open("/sys/bus/platform/drivers/virtio-mmio/bind", O_WRONLY | O_CLOEXEC);
    if (!found || bind_fd < 0) die("/sys");
    for (struct dirent *e; (e = readdir(found));)
        if (!strncmp(e->d_name, "LNRO0005:", 9) && write(bind_fd, e->d_name, strlen(e->d_name)) < 0 && errno == ENODEV && place_count < MAX_PLACES)
            strcpy(places[place_count++], e->d_name);
    closedir(found);
}

static void detect_devices(void) { /* let the kernel look again; not all of them are used */
    for (int i = 0; i < place_count; i++)
        if (write(bind_fd, places[i], strlen(places[i])) < 0 && errno != ENODEV) die(places[i]);
}

static void set_up_groups(void) {
    if (mkdir("/cgroup", 0700)) die("/cgroup");
    must_mount("cgroup", "/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    write_file("/cgroup/cgroup.subtree_control", "+memory +pids");
    if (mkdir("/cgroup/box", 0755) || chown("/cgroup/box", AGENT_ID, AGENT_ID) || chown("/cgroup/box/cgroup.procs", AGENT_ID, AGENT_ID)) die("/cgroup/box");
}

static void set_limits(void) {
    if (memory) write_file("/cgroup/box/memory.max", memory);
    if (pids) write_file("/cgroup/box/pids.max", pids);
    if (!cpu) return;
    write_file("/cgroup/cgroup.subtree_control", "+cpu"); /* only now: it slows every switch of processes */
    write_file("/cgroup/box/cpu.max", cpu);
}

static void set_up_loopback(void) {
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &lo)) die("the loopback interface");
    close(fd);
}

static void set_up_network(void) { /* the addresses of QEMU's user network */
    struct ifreq eth = {.ifr_name = "eth0"};
    struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY};
    struct sockaddr_in *at = (struct sockaddr_in *)&eth.ifr_addr, *via = (struct sockaddr_in *)&route.rt_gateway;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(0x0a00020f)}};
    if (fd < 0 || ioctl(fd, SIOCSIFADDR, &eth)) die("eth0");
    at->sin_addr.s_addr = htonl(0xffffff00);
    if (ioctl(fd, SIOCSIFNETMASK, &eth)) die("eth0");
    eth.ifr_flags = IFF_UP | IFF_RUNNING;
    if (ioctl(fd, SIOCSIFFLAGS, &eth)) die("eth0");
    *via = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(0x0a000202)}};
    route.rt_dst.sa_family = route.rt_genmask.sa_family = AF_INET;
    if (ioctl(fd, SIOCADDRT, &route)) die("the default route");
    close(fd);
}

static void parse(void) {
    for (char **a = options; *a; a++) {
        if (!strcmp(*a, "--")) { agent = a + 1; *a = NULL; return; }
        if (!strcmp(*a, "--network")) with_network = true;
        else if (!strcmp(*a, "--attach")) attached = true;
        else if (!strcmp(*a, "--composed")) composed = true;
        else if (!strcmp(*a, "--memory")) memory = *++a;
        else if (!strcmp(*a, "--pids")) pids = *++a;
        else if (!strcmp(*a, "--cpu")) cpu = *++a;
        else if (!strcmp(*a, "--show") || !strcmp(*a, "--socket")) a++; /* when the root is there */
        else if (!strcmp(*a, "--bind") || !strcmp(*a, "--ro-bind") || !strcmp(*a, "--symlink")) a += 2;
        else errno = EINVAL, die(*a);
    }
    errno = EINVAL, die("no agent");
}

static char **build(char **a) { /* follow the options up to --composed, or to the end */
    for (; *a && strcmp(*a, "--composed"); a++) {
        char path[4096 + 8];
        if (!strcmp(*a, "--show")) {
            snprintf(path, sizeof path, "/files%s", *++a);
            show(path, *a);
        } else if (!strcmp(*a, "--socket")) {
            if (socket_count == MAX_SOCKETS) errno = E2BIG, die("sockets");
            snprintf(path, sizeof path, "/sockets/%d", socket_count);
            sockets[socket_count++] = listen_at(path);
            show(path, *++a);
        } else if (!strcmp(*a, "--bind") || !strcmp(*a, "--ro-bind")) {
            attach(a[1], a[2], (*a)[2] == 'r');
            a += 2;
        } else if (!strcmp(*a, "--symlink")) {
            make_parents(in_root(a[2]));
            if (symlink(a[1], in_root(a[2]))) die(a[2]);
            a += 2;
        } else if (strcmp(*a, "--network") && strcmp(*a, "--attach")) {
            a++; /* a limit */
        }
    }
    return a;
}

static void set_up_root(void) {
    char **rest = options;
    for (const char *const *place = (const char *const[]){"/files", "/new", "/sockets", "/system", "/kept", NULL}; *place; place++)
        if (mkdir(*place, 0755)) die(*place);
    must_mount("files", "/files", "virtiofs", MS_NOSUID | MS_NODEV, NULL);
    must_mount("system", "/system", "virtiofs", MS_NOSUID | MS_NODEV | MS_RDONLY, NULL);
    must_mount("sockets", "/sockets", "tmpfs", 0, "mode=0755");
    must_mount("root", "/new", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755");
    if (composed) {
        if (mkdir("/covers", 0755) || mkdir("/covers/empty", 0555) || mkdir("/covers/directory", 0) || mknod("/covers/file", S_IFREG, 0))
            die("mkdir");
        rest = build(options) + 1;
        if (mkdir("/new/proc", 0755) || mkdir("/new/dev", 0755)) die("mkdir");
    } else {
        show_entries("/system");
    }
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) keep_in_memory(kept[i], (int)i);
    for (size_t i = 0; i < sizeof private / sizeof *private; i++) {
        char mode[32];
        snprintf(mode, sizeof mode, "mode=%o", private[i].mode);
        char *place = in_root(private[i].path);
        if (composed && mkdir(place, 0755) && errno != EEXIST && errno != EROFS) die(place);
        must_mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, mode);
    }
    if (chown("/new/run", AGENT_ID, AGENT_ID)) die("/run");
    set_up_devices();
    build(rest);
    must_mount(NULL, "/new", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL);
}

static pid_t start_agent(void) {
    int program = open("/boxagent", O_RDONLY | O_CLOEXEC), group = open("/cgroup/box", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (program < 0 || group < 0) die("/boxagent");
    pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | SIGCHLD, NULL, NULL, NULL, 0); /* the machine is its own otherwise */
    if (pid < 0) die("fork");
    if (pid) {
        close(program);
        close(group);
        return pid;
    }
    write_file("/cgroup/box/cgroup.procs", "0");
    unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
    must_mount("proc", "/new/proc", "proc", flags, NULL);
    write_file("/new/proc/sys/user/max_user_namespaces", "0"); /* in one, a command would have capabilities */
    for (size_t i = 0; i < sizeof masked / sizeof *masked; i++) {
        struct stat found;
        char *place = in_root("/proc/");
        strcat(place, masked[i]);
        if (stat(place, &found)) continue;
        if (S_ISDIR(found.st_mode)) must_mount("tmpfs", place, "tmpfs", flags | MS_RDONLY, "mode=0555");
        else must_mount("/new/dev/null", place, NULL, MS_BIND, NULL);
    }
    must_mount(NULL, "/new/proc", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | flags, NULL);
    if (chdir("/new") || mount("/new", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/")) die("/new");
    if (dup2(agent_fd, AGENT_FD) < 0 || dup2(group, CGROUP_FD) < 0) die("dup2");
    syscall(SYS_execveat, program, "", agent, (char *[]){NULL}, AT_EMPTY_PATH);
    die("the box agent");
}

static void configure(const uint8_t *data, size_t size) {
    struct timespec now = {(time_t)get(data, 8), (long)get(data + 8, 8)};
    struct { struct rand_pool_info info; uint8_t bytes[RANDOM]; } seed = {.info = {RANDOM * 8, RANDOM}};
    if (clock_settime(CLOCK_REALTIME, &now)) die("the clock");
    memcpy(seed.bytes, data + 16, RANDOM);
    int fd = open("/dev/urandom", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || ioctl(fd, RNDADDENTROPY, &seed) || ioctl(fd, RNDRESEEDCRNG)) die("/dev/urandom"); /* used from now on */
    close(fd);
    size_t count = 0, at = 16 + RANDOM;
    char *text = malloc(size);
    for (size_t i = at; i < size; i++) count += data[i] == 0;
    options = calloc(count + 1, sizeof *options);
    if (!text || !options) die("out of memory");
    memcpy(text, data, size);
    for (size_t n = 0; n < count; at += strlen(text + at) + 1) options[n++] = text + at;
    parse();
    if (!strcmp(agent[1] ? agent[1] : "", "--listen")) {
        agent_fd = listen_at(AGENT_SOCKET); /* a path that only init sees */
        return;
    }
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) die("socketpair");
    stream_fd = ends[0];
    agent_fd = ends[1];
}

static int connect_to_agent(void) {
    int fd = stream_fd;
    stream_fd = -1;
    if (fd >= 0 || strcmp(agent[1], "--listen")) return fd;
    struct sockaddr_un to = {.sun_family = AF_UNIX, .sun_path = AGENT_SOCKET};
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to)) close(fd), fd = -1;
    return fd;
}

static void on_frame(uint8_t type, uint32_t id, const uint8_t *data, size_t size) {
    if (type == CONFIG && size > 16 + RANDOM && data[size - 1] == 0 && !options) configure(data, size);
    else if (type == READY && !options) frame(READY, 0, NULL, 0);
    else if (type == OPEN && options) accept_channel(id, connect_to_agent());
    else errno = EPROTO, die("a frame's type");
}

_Noreturn static void finish(void) {
    sync();
    frame(BYE, 0, NULL, 0);
    for (int tries = 0; tries < 100 && !flush_port(); tries++) poll(NULL, 0, 10);
    reboot(RB_AUTOBOOT); /* QEMU ends instead: -no-reboot */
    for (;;) pause();
}

_Noreturn static void serve(int signals, pid_t agent_pid) {
    struct pollfd set[MAX_CHANNELS + MAX_SOCKETS + 8];
    for (;;) {
        int n = 0;
        set[n++] = (struct pollfd){signals, POLLIN, 0};
        for (int i = 0; i < socket_count; i++)
            set[n++] = (struct pollfd){channel_count() < MAX_CHANNELS - MAX_SOCKETS ? sockets[i] : -1, POLLIN, 0};
        if (poll(set, (nfds_t)n + watch_channels(set + n), -1) < 0 && errno != EINTR) die("poll");
        if (set[0].revents) {
            struct signalfd_siginfo info;
            while (read(signals, &info, sizeof info) == sizeof info) {}
            for (pid_t pid; (pid = waitpid(-1, NULL, WNOHANG)) > 0;)
                if (pid == agent_pid) finish();
        }
        if (!serve_channels(set + n, on_frame)) finish();
        for (int i = 0; i < socket_count; i++) {
            int fd = set[1 + i].revents ? accept4(sockets[i], NULL, NULL, SOCK_CLOEXEC) : -1;
            if (fd >= 0) open_channel(fd, (uint32_t)i);
        }
        flush_port();
    }
}

static int open_port(void) { /* its name contains the number of its device, which depends on the order of their detection */
    for (int tries = 0, fd; tries < 12000; tries++) {
        char path[32];
        snprintf(path, sizeof path, "/dev/vport%dp%d", tries % 3, tries / 3 % 2); /* QEMU reserves the port 0 */
        if ((fd = open(path, O_RDWR | O_CLOEXEC)) >= 0) {
            /* Until the kernel has received the news that the host is connected, the port is at its end. */
            struct pollfd set = {fd, 0, 0};
            for (; tries < 12000 && poll(&set, 1, 0) == 1 && set.revents & POLLHUP; tries++) poll(NULL, 0, 5);
            return fd;
        }
        if (tries % 6 == 5) poll(NULL, 0, 5);
    }
    die("the console port");
}

_Noreturn void guest(void) {
    struct pollfd set[2];
    is_guest = true;
    if (mount("dev", "/dev", "devtmpfs", 0, NULL)) die("/dev");
    load(modules, sizeof modules / sizeof *modules, true);
    load(transports, sizeof transports / sizeof *transports, false);
    set_up_loopback();
    set_up_groups();
    find_places();
    use_port(open_port()); /* what follows depends on the box; a template is saved here */
    frame(READY, 0, NULL, 0);
    flush_port();
    while (!options) {
        watch_channels(set);
        if (poll(set, 1, -1) < 0 || !serve_channels(set, on_frame)) die("the console port");
    }
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    int signals = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
    if (signals < 0 || sigprocmask(SIG_SETMASK, &mask, NULL)) die("signalfd");
    sethostname("box", 3);
    if (with_network) load(network_modules, sizeof network_modules / sizeof *network_modules, true);
    if (attached) detect_devices();
    if (with_network) set_up_network();
    set_limits();
    set_up_root();
    pid_t pid = start_agent();
    close(agent_fd);
    serve(signals, pid);
}

/* Slots: the child cgroups of commands. */
#include "boxagent.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct slot *slots;
int cgroup_fd = -1;
bool report_oom = false;
static uint32_t next_slot;

bool slot_empty(struct slot *s) {
    char c;
    ssize_t n = pread(s->procs, &c, 1, 0);
    if (n >= 0) return n == 0;
    s->spent = true; /* it was removed from outside, which the kernel allows only while it is empty */
    return errno == ENODEV;
}

bool all_slots_empty(void) {
    for (struct slot *s = slots; s; s = s->next)
        if (!slot_empty(s)) return false;
    return true;
}

bool remove_slot(const struct slot *s) {
    char name[32];
    snprintf(name, sizeof name, "c%u", s->number);
    return !unlinkat(cgroup_fd, name, AT_REMOVEDIR);
}

static void free_slot(struct slot *s) {
    shut(&s->dir), shut(&s->procs), shut(&s->kill);
    unmap(s, sizeof *s);
}

struct slot *get_slot(bool all_empty) {
    for (struct slot *s = slots; s; s = s->next)
        if (!s->busy && !s->spent && (all_empty || slot_empty(s)) && !s->spent) return s->busy = true, s;
    char name[32], path[64];
    snprintf(name, sizeof name, "c%u", next_slot);
    if (mkdirat(cgroup_fd, name, 0755)) return NULL;
    struct slot *s = unshared(sizeof *s);
    s->number = next_slot++;
    s->dir = openat(cgroup_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    snprintf(path, sizeof path, "%s/cgroup.procs", name);
    s->procs = openat(cgroup_fd, path, O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof path, "%s/cgroup.kill", name);
    s->kill = openat(cgroup_fd, path, O_WRONLY | O_CLOEXEC);
    if (s->dir < 0 || s->procs < 0 || s->kill < 0) { /* for example, too many open files: only this command fails */
        int error = errno;
        remove_slot(s);
        free_slot(s);
        errno = error;
        return NULL;
    }
    s->busy = true;
    s->next = slots;
    return slots = s;
}

void kill_slot(struct slot *s) {
    if (write(s->kill, "1", 1) != 1 && errno != ENODEV) die("cgroup.kill");
    s->spent = true;
}

void return_slot(struct slot *s) {
    s->busy = false;
    for (struct slot **at = &slots; s->spent && *at; at = &(*at)->next)
        if (*at == s) {
            if (!remove_slot(s)) return; /* not empty yet: it is removed with the box */
            *at = s->next;
            free_slot(s);
            return;
        }
}

uint64_t count_oom_kills(void) { /* at the memory limit of the box's group; 0 without --report-oom or such a limit */
    static int fd = -2;
    char text[512];
    if (fd == -2) fd = cgroup_fd < 0 || !report_oom ? -1 : openat(cgroup_fd, "memory.events", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
    if (n < 0) return 0;
    text[n] = 0;
    const char *at = strstr(text, "\noom_kill ");
    return at ? strtoull(at + 10, NULL, 10) : 0;
}

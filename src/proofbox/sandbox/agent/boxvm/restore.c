/* The host's side of a machine that is restored from a template, through QEMU's monitor, instead of booted. */
#include "boxvm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_ANSWER = 64 << 10 };
static int monitor, stop_fd;

void open_template(struct template *t, const char *memory, const char *state) {
    struct stat found;
    t->source = open(memory, O_RDONLY | O_CLOEXEC);
    t->memory = memfd_create("memory", MFD_CLOEXEC);
    if (t->source < 0 || t->memory < 0 || fstat(t->source, &found) || ftruncate(t->memory, found.st_size)) die(memory);
    if ((t->state = open(state, O_RDONLY)) < 0) die(state); /* QEMU inherits it */
}

static void copy_memory(int source, int memory) { /* only what is not zero: the rest are holes in both */
    for (off_t at = 0, end; (at = lseek(source, at, SEEK_DATA)) >= 0;) {
        if ((end = lseek(source, at, SEEK_HOLE)) < 0 || lseek(memory, at, SEEK_SET) < 0) die("the template's memory");
        while (at < end)
            if (sendfile(memory, source, &at, (size_t)(end - at)) <= 0) die("the template's memory");
    }
    if (errno != ENXIO) die("the template's memory");
    close(source);
    close(memory);
}

static void await_answer(const char *wanted) { /* a line that contains it; a failure ends the machine */
    static char text[MAX_ANSWER + 1];
    static size_t size;
    for (;;) {
        for (char *end; (end = memchr(text, '\n', size));) {
            *end = 0;
            bool found = strstr(text, wanted), failed = strstr(text, "\"error\"") || strstr(text, "\"failed\"");
            if (failed) dprintf(2, "boxvm: QEMU can't restore the template: %.500s\n", text), _exit(125);
            size -= (size_t)(end + 1 - text);
            memmove(text, end + 1, size);
            if (found) return;
        }
        struct pollfd set[] = {{monitor, POLLIN, 0}, {stop_fd, POLLIN, 0}};
        if (poll(set, 2, -1) < 0 && errno != EINTR) die("poll");
        ssize_t n = set[0].revents ? read(monitor, text + size, MAX_ANSWER - size) : -1;
        if (n > 0) size += (size_t)n;
        else if (n == 0 || set[1].revents) errno = ECONNRESET, die("QEMU ended while the template was restored");
    }
}

static void command(const char *text) {
    if (send(monitor, text, strlen(text), MSG_NOSIGNAL) != (ssize_t)strlen(text)) die("QEMU's monitor");
    await_answer("\"return\"");
}

/* Restore the machine that QEMU has started without running it, attach devices to it, and let it run. `stop` becomes readable
 * when there is a reason to give up. */
void restore(const struct template *t, int to, int stop) {
    char incoming[128];
    monitor = to;
    stop_fd = stop;
    copy_memory(t->source, t->memory); /* while QEMU starts: it uses the memory later */
    await_answer("\"QMP\"");
    command("{\"execute\":\"qmp_capabilities\"}\n");
    command("{\"execute\":\"migrate-set-capabilities\",\"arguments\":{\"capabilities\":["
            "{\"capability\":\"x-ignore-shared\",\"state\":true},{\"capability\":\"events\",\"state\":true}]}}\n");
    snprintf(incoming, sizeof incoming, "{\"execute\":\"migrate-incoming\",\"arguments\":{\"uri\":\"fd:%d\"}}\n", t->state);
    command(incoming);
    await_answer("\"completed\"");
    close(t->state);
    for (char **attach = t->attach; *attach; attach++) command(*attach);
    command("{\"execute\":\"cont\"}\n");
    close(monitor); /* nothing more is asked of QEMU */
}

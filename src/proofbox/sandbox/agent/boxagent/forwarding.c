/* Forwarding from ports in the box to unix sockets mounted from outside. */
#include "boxagent.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/un.h>
#include <unistd.h>

struct forward *forwards;
static struct relay *relays;
unsigned relay_count;

void open_forward(int port, const char *path) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct forward *f = calloc(1, sizeof *f);
    int yes = 1;
    if (!f) die("out of memory");
    f->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (f->fd >= 0) f->fd = own(f->fd);
    if (f->fd < 0 || setsockopt(f->fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) ||
        bind(f->fd, (struct sockaddr *)&at, sizeof at) || listen(f->fd, 64))
        die("a forwarded port");
    f->path = path;
    f->next = forwards;
    forwards = f;
}

static void accept_forward(struct forward *f) {
    int in = accept4(f->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), out = -1;
    int yes = 1;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    /* Streams consist of small pieces: none must wait for the acknowledgement of the one before it. */
    if (in >= 0) (void)setsockopt(in, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    snprintf(at.sun_path, sizeof at.sun_path, "%s", f->path);
    /* Never block in connect: commands can fill the listener's backlog. */
    if (in >= 0 && relay_count < MAX_RELAYS && (out = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) >= 0 &&
        !connect(out, (struct sockaddr *)&at, sizeof at)) {
        struct relay *r = calloc(1, sizeof *r);
        if (!r) die("out of memory");
        r->end[0] = in;
        r->end[1] = out;
        r->next = relays;
        relays = r;
        relay_count++;
        return;
    }
    shut(&in); /* no listener, or too many connections: close the caller's connection */
    shut(&out);
}

static bool move(struct relay *r) { /* pass on available bytes; false when the relay is finished */
    for (int i = 0; i < 2; i++) {
        struct buffer *b = &r->bytes[i];
        while (!r->over[i] && held(b) < READ_CHUNK) {
            ssize_t n = read(r->end[i], room(b, READ_CHUNK), READ_CHUNK);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0 && errno == EAGAIN) break;
            if (n < 0) return false;
            if (n == 0) r->over[i] = true;
            b->end += (size_t)n;
        }
        while (held(b)) {
            ssize_t n = write(r->end[1 - i], b->data + b->start, held(b));
            if (n < 0 && errno == EINTR) continue;
            if (n < 0 && errno == EAGAIN) break;
            if (n <= 0) return false;
            b->start += (size_t)n;
        }
        if (r->over[i] && !held(b) && !r->passed_on[i]) {
            shutdown(r->end[1 - i], SHUT_WR);
            r->passed_on[i] = true;
        }
    }
    return !(r->passed_on[0] && r->passed_on[1]);
}

size_t watch_relays(struct pollfd *set) {
    size_t n = 0;
    for (struct forward *f = forwards; f; f = f->next) set[n++] = (struct pollfd){f->fd, POLLIN, 0};
    for (struct relay *r = relays; r; r = r->next)
        for (int i = 0; i < 2; i++) {
            short events = (short)((!r->over[i] && held(&r->bytes[i]) < READ_CHUNK ? POLLIN : 0) | (held(&r->bytes[1 - i]) ? POLLOUT : 0));
            set[n++] = (struct pollfd){events ? r->end[i] : -1, events, 0};
        }
    return n;
}

void serve_relays(const struct pollfd *set) { /* in the order of watch_relays; new relays are added after the loop */
    struct relay *watched = relays;
    size_t n = 0;
    for (struct forward *f = forwards; f; f = f->next)
        if (set[n++].revents) accept_forward(f);
    struct relay **at = &relays;
    while (*at && *at != watched) at = &(*at)->next;
    while (*at) {
        struct relay *r = *at;
        bool ready = set[n].revents || set[n + 1].revents;
        n += 2;
        if (!ready || move(r)) { at = &r->next; continue; }
        *at = r->next;
        for (int i = 0; i < 2; i++) shut(&r->end[i]), drop(&r->bytes[i]);
        free(r);
        relay_count--;
    }
}

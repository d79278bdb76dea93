/* Channels: many streams over one console port, each with its own flow control. */
#include "boxvm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct channel *channels;
bool is_guest;
static int port = -1;
static struct bytes in, out;
static uint32_t next_id;

_Noreturn void die(const char *what) {
    char text[256];
    int size = snprintf(text, sizeof text, "boxvm: %s%s: %s\n", is_guest ? "in the guest: " : "", what, strerror(errno));
    if (is_guest && port >= 0) { /* as much as the port takes; the machine ends anyway */
        frame(TEXT, 0, text, (size_t)size);
        for (int tries = 0; tries < 100 && !flush_port(); tries++) poll(NULL, 0, 10);
    } else if (write(2, text, (size_t)size) < 0) {
    }
    _exit(125);
}

uint8_t *room(struct bytes *b, size_t want) {
    if (b->start && b->start == b->end) b->start = b->end = 0;
    if (b->size - b->end < want && b->start) {
        memmove(b->data, b->data + b->start, b->end - b->start);
        b->end -= b->start;
        b->start = 0;
    }
    if (b->size - b->end < want && !(b->data = realloc(b->data, b->size = b->end + want))) die("out of memory");
    return b->data + b->end;
}

void put(struct bytes *b, uint64_t value, int size) {
    uint8_t *at = room(b, (size_t)size);
    for (int i = 0; i < size; i++) at[i] = (uint8_t)(value >> 8 * i);
    b->end += (size_t)size;
}

uint64_t get(const uint8_t *at, int size) {
    uint64_t value = 0;
    for (int i = size; i--;) value = value << 8 | at[i];
    return value;
}

void frame(uint8_t type, uint32_t id, const void *payload, size_t size) {
    put(&out, size, 4);
    put(&out, type, 1);
    put(&out, id, 4);
    if (size) memcpy(room(&out, size), payload, size), out.end += size;
    if (!is_guest && out.end - out.start > MAX_OUT) errno = EPROTO, die("a guest that does not read");
}

void use_port(int fd) {
    port = fd;
    next_id = is_guest;
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK)) die("the console port");
}

bool flush_port(void) { /* true when everything is written */
    while (out.end > out.start) {
        ssize_t n = write(port, out.data + out.start, out.end - out.start);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN) die("writing to the console port");
        if (n < 0) return false;
        out.start += (size_t)n;
    }
    return true;
}

static struct channel *add(uint32_t id, int fd) {
    struct channel *c = calloc(1, sizeof *c);
    if (!c) die("out of memory");
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    *c = (struct channel){.id = id, .fd = fd, .credit = WINDOW, .next = channels};
    return channels = c;
}

size_t channel_count(void) {
    size_t n = 0;
    for (struct channel *c = channels; c; c = c->next) n++;
    return n;
}

static void send_number(uint8_t type, uint32_t id, uint32_t value) {
    frame(type, id, (uint8_t[]){(uint8_t)value, (uint8_t)(value >> 8), (uint8_t)(value >> 16), (uint8_t)(value >> 24)}, 4);
}

void open_channel(int fd, uint32_t target) {
    struct channel *c = add(next_id, fd);
    next_id += 2;
    send_number(OPEN, c->id, target);
}

/* The other end opened a channel: connect it to fd, or close it if there is nothing to connect it to. */
void accept_channel(uint32_t id, int fd) {
    for (struct channel *c = channels; c; c = c->next)
        if (c->id == id) errno = EPROTO, die("a channel's number");
    if ((id & 1) == is_guest) errno = EPROTO, die("a channel's number");
    if (fd >= 0) add(id, fd);
    else frame(CLOSE, id, NULL, 0);
}

static void break_channel(struct channel *c, bool tell) {
    if (c->broken) return;
    c->broken = true;
    if (tell) frame(CLOSE, c->id, NULL, 0);
}

static void move(struct channel *c) {
    static uint8_t chunk[CHUNK];
    while (!c->broken && c->out.end > c->out.start) {
        ssize_t n = send(c->fd, c->out.data + c->out.start, c->out.end - c->out.start, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) return break_channel(c, true);
        c->out.start += (size_t)n;
        c->taken += (uint32_t)n;
    }
    if (c->taken >= WINDOW / 16) {
        send_number(CREDIT, c->id, c->taken);
        c->taken = 0;
    }
    if (c->got_end && !c->passed_end && c->out.end == c->out.start) {
        c->passed_end = true;
        shutdown(c->fd, SHUT_WR);
    }
    while (!c->broken && !c->sent_end && c->credit && out.end - out.start < MAX_PAYLOAD) {
        ssize_t n = recv(c->fd, chunk, c->credit < CHUNK ? c->credit : CHUNK, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0) return break_channel(c, true);
        if (n == 0) {
            c->sent_end = true;
            frame(END, c->id, NULL, 0);
            return;
        }
        c->credit -= (uint32_t)n;
        frame(DATA, c->id, chunk, (size_t)n);
        if ((size_t)n < CHUNK) return; /* nothing more is there now */
    }
}

static void drop_finished(void) {
    for (struct channel **at = &channels; *at;) {
        struct channel *c = *at;
        if (!c->broken && !(c->passed_end && c->sent_end)) { at = &c->next; continue; }
        *at = c->next;
        close(c->fd);
        free(c->out.data);
        free(c);
    }
}

static void take_frame(uint8_t type, uint32_t id, const uint8_t *data, size_t size) {
    struct channel *c = channels;
    while (c && c->id != id) c = c->next;
    if (!c || c->broken) return; /* it was closed here while the frame was on its way */
    if (type == DATA) {
        if (c->got_end || c->out.end - c->out.start + size > WINDOW) errno = EPROTO, die("a channel's data");
        memcpy(room(&c->out, size), data, size);
        c->out.end += size;
    } else if (type == END) {
        c->got_end = true;
    } else if (type == CLOSE) {
        break_channel(c, false);
    } else if (size != 4 || get(data, 4) > WINDOW - c->credit) {
        errno = EPROTO, die("a channel's credit");
    } else {
        c->credit += (uint32_t)get(data, 4);
    }
}

size_t watch_channels(struct pollfd *set) { /* the port first, then each channel */
    size_t n = 0;
    set[n++] = (struct pollfd){port, (short)(POLLIN | (out.end > out.start ? POLLOUT : 0)), 0};
    for (struct channel *c = channels; c; c = c->next) {
        bool reads = !c->sent_end && c->credit && out.end - out.start < MAX_PAYLOAD, writes = c->out.end > c->out.start;
        set[n++] = (struct pollfd){reads || writes ? c->fd : -1, (short)((reads ? POLLIN : 0) | (writes ? POLLOUT : 0)), 0};
    }
    return n;
}

/* Serve what poll reported. Returns false when the port has ended. Frames other than a channel's go to on_frame. */
bool serve_channels(const struct pollfd *set, void (*on_frame)(uint8_t, uint32_t, const uint8_t *, size_t)) {
    bool open = true;
    struct channel *c = channels;
    for (size_t n = 1; c; c = c->next, n++)
        if (set[n].revents) move(c);
    if (set[0].revents & (POLLIN | POLLHUP | POLLERR)) {
        ssize_t n = read(port, room(&in, CHUNK), CHUNK);
        if (n > 0) in.end += (size_t)n;
        else if (n == 0 || (errno != EAGAIN && errno != EINTR)) open = false;
        while (in.end - in.start >= HEADER) {
            const uint8_t *at = in.data + in.start;
            size_t size = get(at, 4);
            if (size > MAX_PAYLOAD) errno = EPROTO, die("a frame's length");
            if (in.end - in.start < HEADER + size) break;
            in.start += HEADER + size;
            if (at[4] == DATA || at[4] == END || at[4] == CLOSE || at[4] == CREDIT) take_frame(at[4], (uint32_t)get(at + 5, 4), at + HEADER, size);
            else on_frame(at[4], (uint32_t)get(at + 5, 4), at + HEADER, size);
        }
        for (c = channels; c; c = c->next) move(c);
    }
    flush_port();
    drop_finished();
    return open;
}

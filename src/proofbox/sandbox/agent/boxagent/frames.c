/* Buffers and frames, and the functions that every part uses. */
#include "boxagent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

_Noreturn void die(const char *what) {
    dprintf(2, "boxagent: %s: %s\n", what, strerror(errno));
    _exit(125);
}

void shut(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

uint8_t *room(struct buffer *b, size_t want) {
    if (b->start && b->start == b->end) b->start = b->end = 0;
    if (b->size - b->end < want) {
        if (b->start) {
            memmove(b->data, b->data + b->start, b->end - b->start);
            b->end -= b->start;
            b->start = 0;
        }
        if (b->size - b->end < want) {
            size_t size = b->size ? b->size : 4096;
            while (size - b->end < want) size *= 2;
            uint8_t *data = realloc(b->data, size);
            if (!data) die("out of memory");
            b->data = data;
            b->size = size;
        }
    }
    return b->data + b->end;
}

size_t held(const struct buffer *b) { return b->end - b->start; }

void drop(struct buffer *b) {
    free(b->data);
    *b = (struct buffer){0};
}

void put(struct buffer *b, uint64_t value, int bytes) {
    uint8_t *p = room(b, (size_t)bytes);
    for (int i = 0; i < bytes; i++) p[i] = (uint8_t)(value >> (8 * i));
    b->end += (size_t)bytes;
}

void frame(struct peer *p, int type, uint32_t id, size_t payload) {
    put(&p->out, payload + 5, 4);
    put(&p->out, (uint64_t)type, 1);
    put(&p->out, id, 4);
}

void put_bytes(struct buffer *b, const void *data, size_t n) {
    if (!n) return;
    memcpy(room(b, n), data, n);
    b->end += n;
}

uint64_t take(struct cursor *c, int bytes) {
    uint64_t value = 0;
    if (c->left < (size_t)bytes) return c->bad = true, 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)c->p[i] << (8 * i);
    c->p += bytes;
    c->left -= (size_t)bytes;
    return value;
}

char *take_string(struct cursor *c) { /* NUL-terminated copy; an embedded NUL is refused */
    size_t n = take(c, 4);
    if (c->bad || n > c->left || memchr(c->p, 0, n)) return c->bad = true, NULL;
    char *s = malloc(n + 1);
    if (!s) die("out of memory");
    memcpy(s, c->p, n);
    s[n] = 0;
    c->p += n;
    c->left -= n;
    return s;
}

char **take_strings(struct cursor *c) {
    size_t n = take(c, 4);
    if (c->bad || n > c->left / 4) return c->bad = true, NULL; /* each takes at least four bytes */
    char **all = calloc(n + 1, sizeof *all);
    if (!all) die("out of memory");
    for (size_t i = 0; i < n && !c->bad; i++) all[i] = take_string(c);
    return all;
}

void free_strings(char **all) {
    for (char **s = all; s && *s; s++) free(*s);
    free(all);
}

void flush(struct peer *p) {
    while (held(&p->out) && !p->ended) {
        ssize_t n = write(p->wfd, p->out.data + p->out.start, held(&p->out));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) { p->ended = true; return; }
        p->out.start += (size_t)n;
    }
    if (p->out.size > 4 * OUT_HIGH) drop(&p->out);
}

void fatal(struct peer *p, const char *text) {
    frame(p, A_FATAL, 0, strlen(text));
    put_bytes(&p->out, text, strlen(text));
    flush(p);
    p->ended = true;
}

void failed(struct peer *p, uint32_t id, int stage, int error) {
    frame(p, A_FAILED, id, 5);
    put(&p->out, (uint64_t)stage, 1);
    put(&p->out, (uint32_t)error, 4);
}

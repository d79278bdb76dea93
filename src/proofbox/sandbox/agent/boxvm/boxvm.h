/* boxvm: both ends of a virtual machine's console port. On the host it starts virtiofsd and QEMU; in the guest it is init.
 *
 *   boxvm [option...] --system ARG... --files ARG... [--attach ARG...] --qemu ARG... --guest ARG...   on the host, in this order
 *     --stream FD FD    the client's stream, for the box agent in the guest; the machine ends with it
 *     --listen FD       a listening socket: each client's connection is passed on to the agent
 *     --ttl SECONDS     passed on to the agent
 *     --cgroup FD       ignored: commands are in control groups of the guest
 *     --userns FD       first join this user namespace (made by boxlaunch), as its uid 0
 *     --target PATH     a unix socket that the guest may connect to; the guest names it by its position
 *     --template MEMORY STATE    do not boot: restore these files of a template. QEMU gets `@memory` and `@monitor`
 *     --attach ARG...   after --files: commands for QEMU's monitor that attach devices to the restored machine, before it runs
 *     --system, --files command lines of virtiofsd: one shares programs, which don't change, the other all other files
 *   They and QEMU get the numbers of their descriptors in place of the words @system, @files and @port
 *   init [option...]  in the guest; the options come from the host, after --guest
 *     --show PATH       show this part of the share of files
 *     --bind SOURCE PATH, --ro-bind SOURCE PATH, --symlink TARGET PATH    compose the root from the mounted shares, /system and
 *                       /files, from the root so far, /new, and from /covers/empty, /covers/directory and /covers/file
 *     --composed        the root is composed here, from the options before this one; the others are for when it is complete.
 *                       Without it, the share of programs is the root
 *     --socket PATH     connect clients of this unix socket to the host's next target
 *     --memory BYTES, --pids COUNT, --cpu "QUOTA PERIOD"    limits of all commands together
 *     --attach          detect devices that were attached after the boot
 *     --network         configure the network device as QEMU's user network expects it
 *     -- ARG...         the arguments of the box agent, starting with --stream or --listen
 *
 * The port carries channels. A frame is  u32 length | u8 type | u32 channel | payload  with little-endian integers, where
 * length counts the payload. The host opens channels with even numbers, the guest with odd numbers.
 *   READY   the first frame from the guest; after that and before CONFIG, it answers the host's READY with another one: a
 *           restored guest has sent its first one in the template
 *   CONFIG  u64 seconds, u64 nanoseconds, 64 random bytes, NUL-terminated options of init; the first frame to the guest
 *   OPEN    u32 target      DATA bytes      END no more data from the sender      CLOSE the channel is broken
 *   CREDIT  u32 bytes that were taken      TEXT why the guest gives up      BYE the agent has ended, and files are written
 *
 * The host trusts nothing that the guest sends: lengths, numbers and credits are checked, memory is bounded, and a frame that
 * breaks a rule ends the machine.
 */
#ifndef BOXVM_H
#define BOXVM_H
#define _GNU_SOURCE
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PROTOCOL = 1 }; /* must match boxagent's: the programs are built together */
enum { CONFIG = 1, OPEN, DATA, END, CLOSE, CREDIT, TEXT, BYE, READY };
enum { HEADER = 9, CHUNK = 32 << 10, MAX_PAYLOAD = 256 << 10, WINDOW = 256 << 10, MAX_CHANNELS = 512, RANDOM = 64 };
enum { MAX_OUT = 4 << 20 }; /* many times what the host sends to a guest that reads */

struct bytes { uint8_t *data; size_t start, end, size; };

struct channel {
    uint32_t id;
    int fd;
    struct bytes out;            /* received, not yet written to fd */
    uint32_t credit, taken;      /* may still be sent; written to fd, not yet acknowledged */
    bool sent_end, got_end, passed_end, broken;
    struct channel *next;
};

/* channels.c */
extern struct channel *channels;
extern bool is_guest;
_Noreturn void die(const char *what);
uint8_t *room(struct bytes *b, size_t want);
void put(struct bytes *b, uint64_t value, int size);
uint64_t get(const uint8_t *at, int size);
void frame(uint8_t type, uint32_t id, const void *payload, size_t size);
void use_port(int fd);
bool flush_port(void);
void open_channel(int fd, uint32_t target);
void accept_channel(uint32_t id, int fd);
size_t watch_channels(struct pollfd *set);
size_t channel_count(void);
bool serve_channels(const struct pollfd *set, void (*on_frame)(uint8_t type, uint32_t id, const uint8_t *data, size_t size));

/* restore.c */
struct template { int source, memory, state; char **attach; };
void open_template(struct template *t, const char *memory, const char *state);
void restore(const struct template *t, int monitor, int stop);

/* guest.c */
_Noreturn void guest(void);
#endif

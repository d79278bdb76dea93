/* SHA-256 of one message. */
#ifndef SHA256_H
#define SHA256_H
#include <stddef.h>
#include <stdint.h>

void sha256(const void *message, size_t length, uint8_t digest[32]);

#endif

/* SHA-256 (FIPS 180-4), with the processor's own instructions on x86-64 if it has them: they are four times as fast.
 * PORTABLE leaves them out. */
#include "sha256.h"

#include <string.h>

static const uint32_t K[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t load(const uint8_t *p) { return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]; }

static void store(uint8_t *p, uint32_t v) {
    for (int n = 0; n < 4; n++) p[n] = (uint8_t)(v >> (24 - 8 * n));
}

static uint32_t right(uint32_t v, int n) { return v >> n | v << (32 - n); }

static void portable(uint32_t h[8], const uint8_t *p, size_t count) {
    for (; count; count--, p += 64) {
        uint32_t w[64], s[8];
        for (int n = 0; n < 16; n++) w[n] = load(p + 4 * n);
        for (int n = 16; n < 64; n++)
            w[n] = w[n - 16] + w[n - 7] + (right(w[n - 15], 7) ^ right(w[n - 15], 18) ^ w[n - 15] >> 3) +
                   (right(w[n - 2], 17) ^ right(w[n - 2], 19) ^ w[n - 2] >> 10);
        memcpy(s, h, sizeof s);
        for (int n = 0; n < 64; n++) {
            uint32_t a = s[0], e = s[4];
            uint32_t one = s[7] + (right(e, 6) ^ right(e, 11) ^ right(e, 25)) + ((e & s[5]) ^ (~e & s[6])) + K[n] + w[n];
            uint32_t two = (right(a, 2) ^ right(a, 13) ^ right(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
            memmove(s + 1, s, 7 * sizeof *s);
            s[4] += one;
            s[0] = one + two;
        }
        for (int n = 0; n < 8; n++) h[n] += s[n];
    }
}

#if defined __x86_64__ && !defined PORTABLE
#define HAS_INSTRUCTIONS
#include <cpuid.h>
#include <immintrin.h>

__attribute__((target("sha,sse4.1"))) static void accelerated(uint32_t h[8], const uint8_t *p, size_t count) {
    const __m128i swapped = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    /* The instructions expect the state as ABEF and CDGH. */
    __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)h), 0xB1);
    __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(h + 4)), 0x1B);
    __m128i abef = _mm_alignr_epi8(abcd, efgh, 8), cdgh = _mm_blend_epi16(efgh, abcd, 0xF0);
    for (; count; count--, p += 64) {
        __m128i before[2] = {abef, cdgh}, w[4];
        for (int n = 0; n < 4; n++) w[n] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(p + 16 * n)), swapped);
#pragma GCC unroll 16
        for (int n = 0; n < 16; n++) {
            __m128i now = w[n & 3], last = w[(n + 3) & 3], sum = _mm_add_epi32(now, _mm_load_si128((const __m128i *)(K + 4 * n)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E));
            sum = _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(n + 1) & 3]), _mm_alignr_epi8(last, w[(n + 2) & 3], 4));
            w[n & 3] = _mm_sha256msg2_epu32(sum, last);
        }
        abef = _mm_add_epi32(abef, before[0]);
        cdgh = _mm_add_epi32(cdgh, before[1]);
    }
    __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128((__m128i *)h, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128((__m128i *)(h + 4), _mm_alignr_epi8(dchg, feba, 8));
}

static int has_instructions(void) {
    unsigned a, b, c, d, ssse3_and_sse41 = 1u << 9 | 1u << 19;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & ssse3_and_sse41) == ssse3_and_sse41 &&
           __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & 1u << 29;
}
#endif

static void blocks(uint32_t h[8], const uint8_t *p, size_t count) {
#ifdef HAS_INSTRUCTIONS
    static int known, has;
    if (!known) has = has_instructions(), known = 1;
    if (has) return accelerated(h, p, count);
#endif
    portable(h, p, count);
}

void sha256(const void *message, size_t length, uint8_t digest[32]) {
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t end[128] = {0};
    size_t whole = length / 64, rest = length % 64, ends = rest < 56 ? 1 : 2;
    blocks(h, message, whole);
    memcpy(end, (const uint8_t *)message + 64 * whole, rest);
    end[rest] = 0x80;
    store(end + 64 * ends - 8, (uint32_t)((uint64_t)length >> 29));
    store(end + 64 * ends - 4, (uint32_t)((uint64_t)length << 3));
    blocks(h, end, ends);
    for (int n = 0; n < 8; n++) store(digest + 4 * n, h[n]);
}

// Advanced Matrix Extensions: products of 16×32 by 32×16 bfloat16 tiles, summed in float32.
//
// The tiles are always whole and configured by constants: some hypervisors hide the leaf that describes them. With
// TRELLIS_EMULATE the same code runs on tiles written in plain C++, so that it is tested where there are no real ones.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(TRELLIS_AMX)
#include <immintrin.h>

namespace {

#if defined(TRELLIS_EMULATE)

struct Tile {
    uint32_t unit[16][16];
};
thread_local Tile tile[8];

inline float upper(uint32_t bits) {
    float x;
    bits &= 0xffff0000u;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
inline void product(Tile& c, const Tile& a, const Tile& b) {
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) {
            float sum;
            std::memcpy(&sum, &c.unit[i][j], sizeof sum);
            for (int k = 0; k < 16; ++k) {
                const uint32_t x = a.unit[i][k], y = b.unit[k][j];
                sum += upper(x << 16) * upper(y << 16) + upper(x) * upper(y);
            }
            std::memcpy(&c.unit[i][j], &sum, sizeof sum);
        }
}
inline void copy_rows(void* to, int64_t to_stride, const void* from, int64_t from_stride) {
    for (int i = 0; i < 16; ++i)
        std::memcpy(static_cast<char*>(to) + i * to_stride, static_cast<const char*>(from) + i * from_stride, 64);
}
#define TILE_ZERO(t) std::memset(&tile[t], 0, sizeof(Tile))
#define TILE_LOAD(t, from, stride) copy_rows(&tile[t], 64, from, (stride) * 4)
#define TILE_STORE(t, to, stride) copy_rows(to, (stride) * 4, &tile[t], 64)
#define TILE_PRODUCT(c, a, b) product(tile[c], tile[a], tile[b])
inline void tiles_begin() {}
inline void tiles_end() {}

#else

// Macros: the compiler pastes a tile's number into the instruction's text.
#define TILE_ZERO(t) _tile_zero(t)
#define TILE_LOAD(t, from, stride) _tile_loadd(t, from, (stride) * 4)
#define TILE_STORE(t, to, stride) _tile_stored(t, to, (stride) * 4)
#define TILE_PRODUCT(c, a, b) _tile_dpbf16ps(c, a, b)

inline void tiles_begin() {
    struct alignas(64) {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    _tile_loadconfig(&config);
}
inline void tiles_end() { _tile_release(); }

#endif

// Tiles 0 to 3 hold a 32×32 block of c (or its upper half), 4 and 5 rows of a, 6 and 7 columns of b.
template <bool two>
void tile_block(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t units, float* c, int64_t ldc,
                bool add) {
    if (add) {
        TILE_LOAD(0, c, ldc);
        TILE_LOAD(1, c + 16, ldc);
        if constexpr (two) {
            TILE_LOAD(2, c + 16 * ldc, ldc);
            TILE_LOAD(3, c + 16 * ldc + 16, ldc);
        }
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (int64_t k = 0; k < units; k += 16) {
        TILE_LOAD(4, a + k, lda);
        TILE_LOAD(6, b + k * ldb, ldb);
        TILE_PRODUCT(0, 4, 6);
        TILE_LOAD(7, b + k * ldb + 16, ldb);
        TILE_PRODUCT(1, 4, 7);
        if constexpr (two) {
            TILE_LOAD(5, a + 16 * lda + k, lda);
            TILE_PRODUCT(2, 5, 6);
            TILE_PRODUCT(3, 5, 7);
        }
    }
    TILE_STORE(0, c, ldc);
    TILE_STORE(1, c + 16, ldc);
    if constexpr (two) {
        TILE_STORE(2, c + 16 * ldc, ldc);
        TILE_STORE(3, c + 16 * ldc + 16, ldc);
    }
}

// As `multiply` in matmul.h, for panels of 32 columns and rows padded to 16.
inline void multiply_tiles(const float* a, int64_t lda, int64_t rows, const float* b, int64_t ldb, int64_t next,
                           int64_t panel_columns, int64_t columns, int64_t units, float* c, int64_t ldc, bool add) {
    tiles_begin();
    for (int64_t n = 0; n < columns; n += panel_columns, b += next)
        for (int64_t i = 0; i < rows; i += 32)
            if (rows - i > 16)
                tile_block<true>(a + i * lda, lda, b, ldb, units, c + i * ldc + n, ldc, add);
            else
                tile_block<false>(a + i * lda, lda, b, ldb, units, c + i * ldc + n, ldc, add);
    tiles_end();
}

}  // namespace
#endif

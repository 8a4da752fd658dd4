// The one product everything else is made of: c = a · b, or c += a · b, with c held in registers.
//
// Operands are sequences of 32-bit units along the summed dimension. A unit is one float32, or two neighbouring
// bfloat16 (their products are summed in float32), which is how both the AVX-512 and the tile instructions want them:
//   a  row-major: `lda` units from row to row;
//   b  panels of N columns: a panel is one row of N units for each unit of the summed dimension, `ldb` apart.
// Columns of c are padded to whole panels. With bfloat16 all operands are ours and padded: the summed dimension to 32
// numbers, rows to 16, so that the tiles are always whole.
#pragma once
#include "simd.h"
#include "tiles.h"

namespace {

#if defined(__AVX512F__)
constexpr int M = 12, NV = 2;  // 24 sums, 2 columns and 1 broadcast in 32 registers
#else
constexpr int M = 6, NV = 2;  // 12 sums, 2 columns and 1 broadcast in 16 registers
#endif
constexpr int N = NV * W;
constexpr int ROWS = 16, DEPTH = 32;  // what bfloat16 operands are padded to
constexpr int64_t SECOND_CACHE = 1 << 17;  // in units: half of what the smaller ones of today have

struct Float32 {
    static constexpr bool halves = false;
    static int64_t units(int64_t depth) { return depth; }
    static V add_product(V sum, V a, V b) { return sum + a * b; }
};

struct BFloat16 {
    static constexpr bool halves = true;
    static int64_t units(int64_t depth) { return up(depth, DEPTH) / 2; }
    static V add_product(V sum, V a, V b) {
#if defined(__AVX512BF16__)
        return (V)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
        const I high = (I)splat(0) | ~0xffff;
        sum += (V)((I)a << 16) * (V)((I)b << 16);
        return sum + (V)((I)a & high) * (V)((I)b & high);
#endif
    }
};

// A unit in every lane: as bits, since two bfloat16 may look like no number at all.
inline V splat_unit(const float* p) {
    int32_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return (V)(bits - I{});
}

template <class Kind, int m>
void block(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t units, float* c, int64_t ldc, bool add) {
    V sum[m][NV] = {};
    if (add)
        for (int i = 0; i < m; ++i)
            for (int n = 0; n < NV; ++n) sum[i][n] = load(c + i * ldc + n * W);
    for (int64_t k = 0; k < units; ++k, b += ldb) {
        V column[NV];
#pragma GCC unroll 4
        for (int n = 0; n < NV; ++n) column[n] = load(b + n * W);
#pragma GCC unroll 16
        for (int i = 0; i < m; ++i) {
            V x = splat_unit(a + i * lda + k);
#pragma GCC unroll 4
            for (int n = 0; n < NV; ++n) sum[i][n] = Kind::add_product(sum[i][n], x, column[n]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < m; ++i)
#pragma GCC unroll 4
        for (int n = 0; n < NV; ++n) store(c + i * ldc + n * W, sum[i][n]);
}

// The last rows, fewer than M.
template <class Kind, int m = M - 1>
void last_block(int64_t rows, const float* a, int64_t lda, const float* b, int64_t ldb, int64_t units, float* c,
                int64_t ldc, bool add) {
    if (rows == m) return block<Kind, m>(a, lda, b, ldb, units, c, ldc, add);
    if constexpr (m > 1) last_block<Kind, m - 1>(rows, a, lda, b, ldb, units, c, ldc, add);
}

// Where the panels of b are: packed one after the other, or side by side in a row-major matrix.
struct Panels {
    const float* data;
    int64_t ldb, next;
};

template <class Kind>
void multiply(const float* a, int64_t lda, int64_t rows, Panels b, int64_t columns, int64_t depth, float* c,
              int64_t ldc, bool add) {
    const int64_t units = Kind::units(depth);
#if defined(TRELLIS_AMX)
    if (Kind::halves) return multiply_tiles(a, lda, rows, b.data, b.ldb, b.next, N, columns, units, c, ldc, add);
#endif
    auto some = [&](int64_t i, int64_t n) {
        const float *rows_of_a = a + i * lda, *panel = b.data + n / N * b.next;
        if (rows - i >= M)
            block<Kind, M>(rows_of_a, lda, panel, b.ldb, units, c + i * ldc + n, ldc, add);
        else
            last_block<Kind>(rows - i, rows_of_a, lda, panel, b.ldb, units, c + i * ldc + n, ldc, add);
    };
    if (units * columns <= SECOND_CACHE) {  // a few rows of a stay in the first cache while all of b goes by
        for (int64_t i = 0; i < rows; i += M)
            for (int64_t n = 0; n < columns; n += N) some(i, n);
    } else {  // b comes from afar: each panel once, while all of a goes by
        for (int64_t n = 0; n < columns; n += N)
            for (int64_t i = 0; i < rows; i += M) some(i, n);
    }
}

// W units of a row of numbers, from unit k on; what is past `depth` numbers is zero.
template <class Kind>
V row_units(const float* x, int64_t k, int64_t depth) {
    if (!Kind::halves) return load_part(x + k, depth - k);
    uint16_t pair[2 * W];
    store_bf16(pair, load_part(x + 2 * k, depth - 2 * k));
    store_bf16(pair + W, load_part(x + 2 * k + W, depth - 2 * k - W));
    V units;
    std::memcpy(&units, pair, sizeof units);
    return units;
}

// Floats that the packed panels of a depth × columns matrix take.
template <class Kind>
int64_t packed_size(int64_t depth, int64_t columns) {
    return Kind::units(depth) * up(columns, N);
}

// Panels of the transpose of x: column n of b is row n of x.
template <class Kind>
Panels pack_transposed(const float* x, int64_t columns, int64_t depth, float* out) {
    const int64_t units = Kind::units(depth);
    for (int64_t n = 0; n < up(columns, N); n += W) {
        float* panel = out + n / N * N * units + n % N;
        for (int64_t k = 0; k < units; k += W) {
            V tile[W];
            for (int i = 0; i < W; ++i)
                tile[i] = n + i < columns ? row_units<Kind>(x + (n + i) * depth, k, depth) : V{};
            transpose(tile);
            for (int i = 0; i < least(W, units - k); ++i) store(panel + (k + i) * N, tile[i]);
        }
    }
    return {out, N, N * units};
}

// Panels of x itself: row k of b is row k of x, or two rows interleaved.
template <class Kind>
Panels pack_straight(const float* x, int64_t depth, int64_t columns, float* out) {
    const int64_t units = Kind::units(depth);
    for (int64_t n = 0; n < up(columns, N); n += W) {
        float* panel = out + n / N * N * units + n % N;
        const int64_t width = columns - n;
        auto row = [&](int64_t k) { return k < depth ? load_part(x + k * columns + n, width) : V{}; };
        for (int64_t k = 0; k < units; ++k)
            store(panel + k * N, Kind::halves ? (V)(bf16_bits(row(2 * k)) | bf16_bits(row(2 * k + 1)) << 16) : row(k));
    }
    return {out, N, N * units};
}

// The same without a copy, where the columns fill whole panels as they are.
template <class Kind>
Panels straight(const float* x, int64_t depth, int64_t columns, float* out) {
    if (!Kind::halves && columns % N == 0) return {x, columns, N};
    return pack_straight<Kind>(x, depth, columns, out);
}

// Rows of x as rows of a: in place, or rounded to bfloat16 and padded.
template <class Kind>
int64_t row_length(int64_t depth) {
    return Kind::halves ? Kind::units(depth) : up(depth, W);
}
template <class Kind>
void fill_rows(const float* x, int64_t rows, int64_t depth, float* out) {
    const int64_t length = row_length<Kind>(depth);
    for (int64_t i = 0; i < up(rows, ROWS); ++i)
        for (int64_t k = 0; k < length; k += W)
            store(out + i * length + k, i < rows ? row_units<Kind>(x + i * depth, k, depth) : V{});
}

// A vector of computed numbers, as part of a row of a.
template <class Kind>
void store_units(float* row, int64_t at, V x) {
    if (Kind::halves)
        store_bf16(reinterpret_cast<uint16_t*>(row) + at, x);
    else
        store(row + at, x);
}

}  // namespace

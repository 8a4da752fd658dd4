// The one product everything else is made of: c = a · b, or c += a · b, with c held in registers.
//
// Operands are sequences of units along the summed dimension. A unit is one float32, one float64, or two neighbouring
// bfloat16 (their products are summed in float32), which is how both the AVX-512 and the tile instructions want them:
//   a  row-major: `lda` units from row to row; or, turned, from unit to unit of the summed dimension;
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
template <class Kind>
constexpr int PANEL = NV * width<typename Kind::Real>;  // columns: N, or half as many of float64
constexpr int ROWS = 16, DEPTH = 32;  // what bfloat16 operands are padded to
constexpr int64_t SECOND_CACHE = 1 << 19;  // in bytes: half of what the smaller ones of today have

template <class R>
struct Plain {
    using Real = R;
    using Vector = VectorOf<R>;
    static constexpr bool halves = false;
    static int64_t units(int64_t depth) { return depth; }
    static Vector none() { return Vector{}; }
    static Vector add_product(Vector sum, Vector a, Vector b) { return sum + a * b; }
};
using Float32 = Plain<float>;
using Float64 = Plain<double>;

struct BFloat16 {
    using Real = float;
    using Vector = V;
    static constexpr bool halves = true;
    static V none() { return V{}; }
    static int64_t units(int64_t depth) { return up(depth, DEPTH) / 2; }
    static V add_product(V sum, V a, V b) {
#if defined(__AVX512BF16__)
        return (V)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
        const I high = (I)V{} | ~0xffff;
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
inline D splat_unit(const double* p) { return splat(*p); }

// Where the panels of b are: packed one after the other, or side by side in a row-major matrix.
template <class Real>
struct PanelsOf {
    const Real* data;
    int64_t ldb, next;
};
using Panels = PanelsOf<float>;

// m rows by some panels, from the first of b on.
template <class Kind, bool turned, int m, int panels, class Real = typename Kind::Real>
void block(const Real* a, int64_t lda, PanelsOf<Real> b, int64_t units, Real* c, int64_t ldc, bool add) {
    using Vector = typename Kind::Vector;
    constexpr int wide = width<Real>, vectors = panels * NV;
    Vector sum[m][vectors];
#pragma GCC unroll 16
    for (int i = 0; i < m; ++i)
#pragma GCC unroll 16
        for (int n = 0; n < vectors; ++n) sum[i][n] = Kind::none();
    if (add)
        for (int i = 0; i < m; ++i)
            for (int n = 0; n < vectors; ++n) sum[i][n] = load(c + i * ldc + n * wide);
    for (int64_t k = 0; k < units; ++k, b.data += b.ldb) {
        Vector column[vectors];
#pragma GCC unroll 16
        for (int n = 0; n < vectors; ++n) column[n] = load(b.data + n / NV * b.next + n % NV * wide);
#pragma GCC unroll 16
        for (int i = 0; i < m; ++i) {
            Vector x = splat_unit(turned ? a + k * lda + i : a + i * lda + k);
#pragma GCC unroll 16
            for (int n = 0; n < vectors; ++n) sum[i][n] = Kind::add_product(sum[i][n], x, column[n]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < m; ++i)
#pragma GCC unroll 16
        for (int n = 0; n < vectors; ++n) store(c + i * ldc + n * wide, sum[i][n]);
}

// The last rows, fewer than M.
template <class Kind, bool turned, int m = M - 1, class Real = typename Kind::Real>
void last_block(int64_t rows, const Real* a, int64_t lda, PanelsOf<Real> b, int64_t units, Real* c, int64_t ldc,
                bool add) {
    if (rows == m) return block<Kind, turned, m, 1>(a, lda, b, units, c, ldc, add);
    if constexpr (m > 1) last_block<Kind, turned, m - 1>(rows, a, lda, b, units, c, ldc, add);
}

// One row alone: as few sums as one panel has would wait for one another.
template <class Kind, class Real = typename Kind::Real>
void one_row(const Real* a, PanelsOf<Real> b, int64_t columns, int64_t units, Real* c, bool add) {
    constexpr int panels = 4, N = PANEL<Kind>;
    int64_t n = 0;
    for (; n + (panels - 1) * N < columns; n += panels * N, b.data += panels * b.next)
        block<Kind, false, 1, panels>(a, 0, b, units, c + n, 0, add);
    for (; n < columns; n += N, b.data += b.next) block<Kind, false, 1, 1>(a, 0, b, units, c + n, 0, add);
}

template <class Kind, bool turned = false, class Real = typename Kind::Real>
void multiply(const Real* a, int64_t lda, int64_t rows, PanelsOf<Real> b, int64_t columns, int64_t depth, Real* c,
              int64_t ldc, bool add) {
    constexpr int N = PANEL<Kind>;
    const int64_t units = Kind::units(depth);
#if defined(TRELLIS_AMX)
    if constexpr (Kind::halves)
        return multiply_tiles(a, lda, rows, b.data, b.ldb, b.next, N, columns, units, c, ldc, add);
#endif
    if (rows == 1 && !turned) return one_row<Kind>(a, b, columns, units, c, add);
    auto some = [&](int64_t i, int64_t n) {
        const Real* rows_of_a = turned ? a + i : a + i * lda;
        const PanelsOf<Real> panel = {b.data + n / N * b.next, b.ldb, b.next};
        if (rows - i >= M)
            block<Kind, turned, M, 1>(rows_of_a, lda, panel, units, c + i * ldc + n, ldc, add);
        else
            last_block<Kind, turned>(rows - i, rows_of_a, lda, panel, units, c + i * ldc + n, ldc, add);
    };
    if (units * columns * int64_t(sizeof(Real)) <= SECOND_CACHE) {
        for (int64_t i = 0; i < rows; i += M)  // a few rows of a stay in the first cache while all of b goes by
            for (int64_t n = 0; n < columns; n += N) some(i, n);
    } else {  // b comes from afar: each panel once, while all of a goes by
        for (int64_t n = 0; n < columns; n += N)
            for (int64_t i = 0; i < rows; i += M) some(i, n);
    }
}

// W units of a row of numbers, from unit k on; what is past `depth` numbers is zero.
template <class Kind, class Real = typename Kind::Real>
VectorOf<Real> row_units(const Real* x, int64_t k, int64_t depth) {
    if constexpr (!Kind::halves) {
        return load_part(x + k, depth - k);
    } else {
        uint16_t pair[2 * W];
        store_bf16(pair, load_part(x + 2 * k, depth - 2 * k));
        store_bf16(pair + W, load_part(x + 2 * k + W, depth - 2 * k - W));
        V units;
        std::memcpy(&units, pair, sizeof units);
        return units;
    }
}

// Units that the packed panels of a depth × columns matrix take.
template <class Kind>
int64_t packed_size(int64_t depth, int64_t columns) {
    return Kind::units(depth) * up(columns, PANEL<Kind>);
}

// Panels of the transpose of x: column n of b is row n of x.
template <class Kind, class Real = typename Kind::Real>
PanelsOf<Real> pack_transposed(const Real* x, int64_t columns, int64_t depth, Real* out) {
    constexpr int W = width<Real>, N = PANEL<Kind>;
    const int64_t units = Kind::units(depth);
    for (int64_t n = 0; n < up(columns, N); n += W) {
        Real* panel = out + n / N * N * units + n % N;
        for (int64_t k = 0; k < units; k += W) {
            VectorOf<Real> tile[W];
            for (int i = 0; i < W; ++i)
                tile[i] = n + i < columns ? row_units<Kind>(x + (n + i) * depth, k, depth) : VectorOf<Real>{};
            transpose(tile);
            for (int i = 0; i < least(W, units - k); ++i) store(panel + (k + i) * N, tile[i]);
        }
    }
    return {out, N, N * units};
}

// Panels of x itself: row k of b is row k of x, or two rows interleaved.
template <class Kind, class Real = typename Kind::Real>
PanelsOf<Real> pack_straight(const Real* x, int64_t depth, int64_t columns, Real* out) {
    constexpr int W = width<Real>, N = PANEL<Kind>;
    const int64_t units = Kind::units(depth);
    for (int64_t n = 0; n < up(columns, N); n += W) {
        Real* panel = out + n / N * N * units + n % N;
        const int64_t left = columns - n;
        auto row = [&](int64_t k) { return k < depth ? load_part(x + k * columns + n, left) : VectorOf<Real>{}; };
        for (int64_t k = 0; k < units; ++k)
            if constexpr (Kind::halves)
                store(panel + k * N, (V)(bf16_bits(row(2 * k)) | bf16_bits(row(2 * k + 1)) << 16));
            else
                store(panel + k * N, row(k));
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
    return Kind::halves ? Kind::units(depth) : up(depth, width<typename Kind::Real>);
}
template <class Kind>
void fill_rows(const float* x, int64_t rows, int64_t depth, float* out) {
    const int64_t length = row_length<Kind>(depth);
    for (int64_t i = 0; i < up(rows, ROWS); ++i)
        for (int64_t k = 0; k < length; k += W)
            store(out + i * length + k, i < rows ? row_units<Kind>(x + i * depth, k, depth) : V{});
}

// A vector of computed numbers, as part of a row of a.
template <class Kind, class Real = typename Kind::Real>
void store_units(Real* row, int64_t at, VectorOf<Real> x) {
    if constexpr (Kind::halves)
        store_bf16(reinterpret_cast<uint16_t*>(row) + at, x);
    else
        store(row + at, x);
}

}  // namespace

// Vectors as wide as the level has them, in the compiler's own vector types: one source for every width.
//
// Everything of a level lives in an unnamed namespace. The same templates are compiled several times with different
// instructions; with a common name the linker would keep one copy for all, and old processors would meet new
// instructions in it. For the same reason nothing here uses the standard library's templates.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float V __attribute__((vector_size(W * 4)));
typedef double D __attribute__((vector_size(W * 4)));
typedef int32_t I __attribute__((vector_size(W * 4)));
typedef float Anywhere __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef double DoublesAnywhere __attribute__((vector_size(W * 4), aligned(8), may_alias));
typedef uint16_t Halves __attribute__((vector_size(W * 2)));
typedef uint16_t HalvesAnywhere __attribute__((vector_size(W * 2), aligned(2), may_alias));

// What is written once for both kinds of number: a vector of them, and how many it holds.
template <class Real>
struct Wide {
    typedef V Vector;
};
template <>
struct Wide<double> {
    typedef D Vector;
};
template <class Real>
using VectorOf = typename Wide<Real>::Vector;
template <class Real>
constexpr int width = sizeof(V) / sizeof(Real);

inline V load(const float* p) { return *reinterpret_cast<const Anywhere*>(p); }
inline D load(const double* p) { return *reinterpret_cast<const DoublesAnywhere*>(p); }
inline void store(float* p, V x) { *reinterpret_cast<Anywhere*>(p) = x; }
inline void store(double* p, D x) { *reinterpret_cast<DoublesAnywhere*>(p) = x; }
inline V splat(float x) { return x - V{}; }
inline D splat(double x) { return x - D{}; }

inline int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// A row; one of no numbers may have no address either.
template <class Real>
inline void copy(Real* to, const Real* from, int64_t n) {
    if (n > 0) std::memcpy(to, from, n * sizeof(Real));
}

// The first n lanes, the others zero; and back.
template <class Real>
inline VectorOf<Real> load_part(const Real* p, int64_t n) {
    if (n >= width<Real>) return load(p);
    VectorOf<Real> x = {};
    if (n > 0) std::memcpy(&x, p, n * sizeof(Real));
    return x;
}
template <class Real>
inline void store_part(Real* p, VectorOf<Real> x, int64_t n) {
    if (n >= width<Real>)
        store(p, x);
    else if (n > 0)
        std::memcpy(p, &x, n * sizeof(Real));
}

// The larger and the smaller of two, the second if either is NaN; and x · 2^n for whole n. AVX-512 has an instruction
// for each, which the compiler does not find by itself.
#if defined(__AVX512F__)
inline V larger(V a, V b) { return (V)_mm512_max_ps((__m512)a, (__m512)b); }
inline D larger(D a, D b) { return (D)_mm512_max_pd((__m512d)a, (__m512d)b); }
inline V smaller(V a, V b) { return (V)_mm512_min_ps((__m512)a, (__m512)b); }
inline D smaller(D a, D b) { return (D)_mm512_min_pd((__m512d)a, (__m512d)b); }
inline V times_power(V x, V n) { return (V)_mm512_scalef_ps((__m512)x, (__m512)n); }
#else
inline V larger(V a, V b) { return a > b ? a : b; }
inline D larger(D a, D b) { return a > b ? a : b; }
inline V smaller(V a, V b) { return a < b ? a : b; }
inline D smaller(D a, D b) { return a < b ? a : b; }
inline V times_power(V x, V n) {  // written into the exponent in two halves, since n alone may exceed it
    I whole = __builtin_convertvector(n, I), half = whole >> 1;
    return x * (V)((half + 127) << 23) * (V)((whole - half + 127) << 23);
}
#endif

// The largest and the smallest lane, of lanes that are numbers.
#if defined(__AVX512F__)
inline float lane_largest(V x) { return _mm512_reduce_max_ps((__m512)x); }
inline double lane_largest(D x) { return _mm512_reduce_max_pd((__m512d)x); }
inline float lane_smallest(V x) { return _mm512_reduce_min_ps((__m512)x); }
inline double lane_smallest(D x) { return _mm512_reduce_min_pd((__m512d)x); }
inline float lane_total(V x) { return _mm512_reduce_add_ps((__m512)x); }
inline double lane_total(D x) { return _mm512_reduce_add_pd((__m512d)x); }
#else
template <class Vector>
inline auto lane_largest(Vector x) {
    auto most = x[0];
    for (unsigned i = 1; i < sizeof x / sizeof x[0]; ++i) most = x[i] > most ? x[i] : most;
    return most;
}
template <class Vector>
inline auto lane_smallest(Vector x) {
    return -lane_largest(-x);
}
template <class Vector>
inline auto lane_total(Vector x) {
    auto sum = x[0];
    for (unsigned i = 1; i < sizeof x / sizeof x[0]; ++i) sum += x[i];
    return sum;
}
#endif

// Whole parts, which must fit; and whether every lane of x is at least that of y.
inline void store_int16(int16_t* p, V x) {
    typedef int16_t Narrow __attribute__((vector_size(W * 2)));
    const Narrow whole = __builtin_convertvector(__builtin_convertvector(x, I), Narrow);
    std::memcpy(p, &whole, sizeof whole);
}
inline void store_int16(int16_t* p, D x) {
    typedef int32_t Whole __attribute__((vector_size(W * 2)));
    typedef int16_t Narrow __attribute__((vector_size(W)));
    const Narrow whole = __builtin_convertvector(__builtin_convertvector(x, Whole), Narrow);
    std::memcpy(p, &whole, sizeof whole);
}
#if defined(__AVX512F__)
inline bool all_at_least(V x, V y) { return _mm512_cmp_ps_mask((__m512)x, (__m512)y, _CMP_GE_OQ) == 0xffff; }
inline bool all_at_least(D x, D y) { return _mm512_cmp_pd_mask((__m512d)x, (__m512d)y, _CMP_GE_OQ) == 0xff; }
#else
template <class Vector>
inline bool all_at_least(Vector x, Vector y) {
    bool all = true;
    for (unsigned i = 0; i < sizeof x / sizeof x[0]; ++i) all &= x[i] >= y[i];
    return all;
}
#endif

// Bit i: whether a[i] + b[i], which must not overflow, is at least `bound`.
inline uint64_t at_least(const int16_t* a, const int16_t* b, int16_t bound) {
    uint64_t found = 0;
#if defined(__AVX512BW__)
    for (int i = 0; i < 64; i += 32) {
        const __m512i sum = _mm512_add_epi16(_mm512_loadu_si512(a + i), _mm512_loadu_si512(b + i));
        found |= uint64_t(_mm512_cmpge_epi16_mask(sum, _mm512_set1_epi16(bound))) << i;
    }
#elif defined(__SSE2__)
    auto below = [&](int i) {
        const __m128i sum = _mm_add_epi16(_mm_loadu_si128((const __m128i*)(a + i)), _mm_loadu_si128((const __m128i*)(b + i)));
        return _mm_cmplt_epi16(sum, _mm_set1_epi16(bound));
    };
    for (int i = 0; i < 64; i += 16)
        found |= uint64_t(uint16_t(~_mm_movemask_epi8(_mm_packs_epi16(below(i), below(i + 8))))) << i;
#else
    for (int i = 0; i < 64; ++i) found |= uint64_t(a[i] + b[i] >= bound) << i;
#endif
    return found;
}

// e^x within 2 ulp; beyond the range of float32 it is 0 or infinite, and NaN stays NaN.
//
// x = n ln 2 + r with |r| ≤ ln 2 / 2; e^r = 1 + r + r² q(r) with the q of degree 4 whose largest relative error,
// 3e-9, is least.
inline V exponential(V x) {
    x = smaller(splat(89.0f), larger(splat(-104.0f), x));
    const V magic = splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to whole numbers
    V n = (x * 1.44269504f + magic) - magic;
    V r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    V q = splat(1.38145401768e-3f);
    q = q * r + 8.36874510894e-3f;
    q = q * r + 4.16683907835e-2f;
    q = q * r + 1.66665203990e-1f;
    q = q * r + 4.99999934321e-1f;
    return times_power((q * (r * r) + r) + 1.0f, n);
}

inline D exponential(D x) {
    for (int i = 0; i < W / 2; ++i) x[i] = __builtin_exp(x[i]);
    return x;
}

template <int... lane>
struct Lanes {};
template <int n, int... lane>
struct Count : Count<n - 1, n - 1, lane...> {};
template <int... lane>
struct Count<0, lane...> {
    using Type = Lanes<lane...>;
};

// Swaps the off-diagonal quarters of a and b, seen as rows of blocks `step` wide.
template <int step, class Vector, int... lane>
inline void exchange(Vector& a, Vector& b, Lanes<lane...>) {
    constexpr int n = sizeof...(lane);
    Vector low = __builtin_shufflevector(a, b, (lane & step ? lane - step + n : lane)...);
    Vector high = __builtin_shufflevector(a, b, (lane & step ? lane + n : lane + step)...);
    a = low, b = high;
}

// As many vectors as each has lanes become their transpose.
template <int n, int step = n / 2, class Vector>
inline void transpose_in_steps(Vector (&x)[n]) {
    if constexpr (step > 0) {
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i)
            if (!(i & step)) exchange<step>(x[i], x[i + step], typename Count<n>::Type{});
        transpose_in_steps<n, step / 2>(x);
    }
}
inline void transpose(V (&x)[W]) { transpose_in_steps<W>(x); }
inline void transpose(D (&x)[W / 2]) { transpose_in_steps<W / 2>(x); }

// bfloat16 is the upper half of a float32, rounded to even.
inline I bf16_bits(V x) {
    I bits = (I)x;
    return ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) & 0xffff;
}
inline void store_bf16(uint16_t* p, V x) {
    *reinterpret_cast<HalvesAnywhere*>(p) = __builtin_convertvector(bf16_bits(x), Halves);
}

}  // namespace

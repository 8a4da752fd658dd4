// Vectors as wide as the level has them, in the compiler's own vector types: one source for every width.
//
// Everything of a level lives in an unnamed namespace. The same templates are compiled several times with different
// instructions; with a common name the linker would keep one copy for all, and old processors would meet new
// instructions in it. For the same reason nothing here uses the standard library's templates.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__AVX512F__)
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
// The larger of two of which none is positive: the one with the smaller bits, and integers have units of their own.
inline V larger_of_negatives(V a, V b) { return (V)_mm512_min_epu32((__m512i)a, (__m512i)b); }
inline D larger_of_negatives(D a, D b) { return (D)_mm512_min_epu64((__m512i)a, (__m512i)b); }
#else
inline V larger(V a, V b) { return a > b ? a : b; }
inline D larger(D a, D b) { return a > b ? a : b; }
inline V smaller(V a, V b) { return a < b ? a : b; }
inline D smaller(D a, D b) { return a < b ? a : b; }
inline V larger_of_negatives(V a, V b) { return larger(a, b); }
inline D larger_of_negatives(D a, D b) { return larger(a, b); }
inline V times_power(V x, V n) {  // written into the exponent in two halves, since n alone may exceed it
    I whole = __builtin_convertvector(n, I), half = whole >> 1;
    return x * (V)((half + 127) << 23) * (V)((whole - half + 127) << 23);
}
#endif

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

// The recursion of a dense HMM over a ragged batch: forward, back, and the expected counts of transitions.
//
// Rows do not meet: a task takes some rows and walks all their steps, so that threads wait for nobody. A step is one
// product with the transition matrix, packed once, and one pass that weighs, sums and rescales while the numbers are
// in the cache. Rows are sorted longest first: at step t the first running[t] still run; what is past a row's end is
// zero. The formulas are those of trellis/inference/recursion.py.
#pragma once
#include "totals.h"

namespace {

// As in trellis/ops/walks.py: below `underflow` a scale has lost digits, and the tiniest number is what we divide by.
template <class Real>
struct Limits;
template <>
struct Limits<float> {
    static constexpr float underflow = 1e-20f, largest_message = 1e30f, tiny = 1.17549435e-38f;
    static float log(float x) { return __builtin_logf(x); }
};
template <>
struct Limits<double> {
    static constexpr double underflow = 1e-290, largest_message = 1e290, tiny = 2.2250738585072014e-308;
    static double log(double x) { return __builtin_log(x); }
};

constexpr int64_t ROWS_TOGETHER = 16 * M;  // in one task: the transition matrix goes by once for all of them
constexpr int64_t STEPS = 256;             // of a sum over time and rows, in one block

template <class Real>
inline Real lane_sum(VectorOf<Real> x) {
    Real sum = 0;
    for (int i = 0; i < width<Real>; ++i) sum += x[i];
    return sum;
}

// Memory of this thread's own, and of all together, for any kind of number.
template <class Real>
Real* own_numbers(int slot, int64_t count) {
    return reinterpret_cast<Real*>(own_scratch(slot, count * sizeof(Real) / sizeof(float)));
}
template <class Real>
Real* shared_numbers(int slot, int64_t count) {
    return reinterpret_cast<Real*>(shared_scratch(slot, count * sizeof(Real) / sizeof(float)));
}
template <class Real>
Real* zeros(Real* data, int64_t count) {
    std::memset(data, 0, count * sizeof(Real));
    return data;
}
template <class Real>
Real* own_zeros(int slot, int64_t count) {
    return zeros(own_numbers<Real>(slot, count), count);
}

// The rows of one task, and the first operand of their product: in place, or rounded as they are written.
template <class Kind>
struct Walkers {
    using Real = typename Kind::Real;
    using Vector = VectorOf<Real>;
    static constexpr int W = width<Real>;
    const WalkCall<Real>& call;
    int64_t first, count, S = call.S, ld = up(S, PANEL<Kind>), length = row_length<Kind>(S);
    Real* moved = own_numbers<Real>(LOGITS, up(count, ROWS) * ld);  // what the product gives
    Real* rounded = Kind::halves ? own_zeros<Real>(DIFFERENCE, up(count, ROWS) * length) : nullptr;
    Real* summed = call.log_columns ? own_numbers<Real>(SUMS, ld) : nullptr;  // one token's likelihood

    int64_t running(int64_t t) const {
        const int64_t rows = (t < call.T ? call.running[t] : 0) - first;
        return rows < 0 ? 0 : least(rows, count);
    }

    int64_t at(int64_t t, int64_t b) const { return t * call.B + first + b; }

    // How well each state explains a token, S numbers, and the logarithm of what they were divided by. Where two rows
    // are added, that is the largest sum, so that only a belief can underflow.
    struct Likelihood {
        const Real* row;
        Real log_peak;
    };
    Likelihood likelihood(int64_t t, int64_t b) const {
        const int64_t n = call.index[at(t, b)];
        if (!call.log_columns) return {call.likelihood + n * S, call.log_peak ? call.log_peak[n] : Real(0)};
        const int64_t k = call.enter[at(t, b)];
        const Real *column = call.log_columns + n * S, *more = k < 0 ? nullptr : call.log_enter + k * S;
        const Real never = -__builtin_huge_val();
        Vector most = splat(never);
        auto add = [&](int64_t i, Vector x) {
            most = larger(most, x);
            store(summed + i, x);
        };
        int64_t i = 0;
        for (; i + W <= S; i += W) add(i, more ? load(column + i) + load(more + i) : load(column + i));
        if (i < S) {
            Vector x = load_part(column + i, S - i) + (more ? load_part(more + i, S - i) : Vector{});
            for (int64_t lane = S - i; lane < W; ++lane) x[lane] = never;
            add(i, x);
        }
        Real peak = lane_largest(most);
        if (peak == never) peak = 0;
        for (i = 0; i < S; i += W) store(summed + i, exponential(load(summed + i) - peak));
        return {summed, peak};
    }

    void keep(int64_t b, int64_t i, Vector x) const {
        if (Kind::halves) store_units<Kind>(rounded + b * length, i, x);
    }
    void move(const Real* from, int64_t rows, PanelsOf<Real> matrix) const {
        multiply<Kind>(Kind::halves ? rounded : from, Kind::halves ? length : S, rows, matrix, S, S, moved, ld, false);
    }
    void end(Real* data, int64_t t, int64_t rows) const { zeros(data + at(t, rows) * S, (count - rows) * S); }

    // What `likelihood` will read of a token soon: its rows come from afar, and in no order.
    void ask_for(int64_t t, int64_t b) const {
        if (b >= running(t)) return;
        const int64_t n = call.index[at(t, b)], k = call.log_columns ? call.enter[at(t, b)] : -1;
        const Real* column = (call.log_columns ? call.log_columns : call.likelihood) + n * S;
        for (int64_t i = 0; i < S; i += W) __builtin_prefetch(column + i);
        if (k >= 0)
            for (int64_t i = 0; i < S; i += W) __builtin_prefetch(call.log_enter + k * S + i);
    }

    void weigh(int64_t t, int64_t b) const {
        ask_for(t, b + 1);
        const auto [weight, log_peak] = likelihood(t, b);
        const Real* predicted = t ? moved + b * ld : call.first + (first + b) * S;
        Real* belief = call.belief + at(t, b) * S;
        Vector sum = {};
        for (int64_t i = 0; i < S; i += W) {
            const Vector x = load_part(predicted + i, S - i) * load_part(weight + i, S - i);
            sum += x;
            store_part(belief + i, x, S - i);
        }
        const Real tiny = Limits<Real>::tiny, scale = lane_sum<Real>(sum), by = Real(1) / (scale < tiny ? tiny : scale);
        for (int64_t i = 0; i < S; i += W) {
            const Vector x = load_part(belief + i, S - i) * by;
            store_part(belief + i, x, S - i);
            keep(b, i, x);
        }
        call.scale[at(t, b)] = scale;
        call.log_prob[at(t, b)] = log_peak + Limits<Real>::log(scale);
    }

    void forward(PanelsOf<Real> transition) const {
        for (int64_t t = 0; t < call.T; ++t) {
            const int64_t rows = running(t), going_on = running(t + 1);
            if (t && rows) move(call.belief + at(t - 1, 0) * S, rows, transition);
            for (int64_t b = 0; b < rows; ++b) weigh(t, b);
            for (int64_t b = going_on; b < rows; ++b)
                copy(call.final + (first + b) * S, call.belief + at(t, b) * S, S);
            end(call.belief, t, rows);
            for (int64_t b = rows; b < count; ++b) call.scale[at(t, b)] = 1, call.log_prob[at(t, b)] = 0;
        }
    }

    // With g the gradient by the belief and u = w + g − ⟨g, belief⟩: posterior u · belief, message u · likelihood / scale.
    void weigh_back(int64_t t, int64_t b, const Real* g) const {
        ask_for(t, b + 1);
        const Real *belief = call.belief + at(t, b) * S, *weight = likelihood(t, b).row;
        Real *posterior = call.posterior + at(t, b) * S, *message = call.message + at(t, b) * S;
        Vector dot = {};
        for (int64_t i = 0; i < S; i += W) dot += load_part(g + i, S - i) * load_part(belief + i, S - i);
        const Real shift = call.grad_log_prob[at(t, b)] - lane_sum<Real>(dot), scale = call.scale[at(t, b)];
        const Real by = scale < Limits<Real>::underflow ? Real(0) : Real(1) / scale;
        const Real most = Limits<Real>::largest_message;
        for (int64_t i = 0; i < S; i += W) {
            const Vector outer = load_part(g + i, S - i) + shift;
            Vector back = outer * load_part(weight + i, S - i) * by;
            back = back > most ? splat(most) : back;
            back = back < -most ? splat(-most) : back;
            store_part(posterior + i, outer * load_part(belief + i, S - i), S - i);
            store_part(message + i, back, S - i);
            keep(b, i, i + W <= S ? back : load_part(message + i, S - i));  // lanes past the end stay zero
        }
    }

    void backward(PanelsOf<Real> transposed) const {
        for (int64_t t = call.T - 1; t >= 0; --t) {
            const int64_t rows = running(t), going_on = running(t + 1);
            for (int64_t b = 0; b < rows; ++b)
                weigh_back(t, b, b < going_on ? moved + b * ld : call.grad_final + (first + b) * S);
            end(call.posterior, t, rows), end(call.message, t, rows);
            if (t && rows) move(call.message + at(t, 0) * S, rows, transposed);
        }
    }
};

template <class Kind, class Step>
void each_walker(const WalkCall<typename Kind::Real>& call, const Step& step) {
    const int64_t share = (call.B + (call.threads < 1 ? 1 : call.threads) - 1) / (call.threads < 1 ? 1 : call.threads);
    const int64_t some = least(up(share, M), ROWS_TOGETHER);
    if (call.B == 0) return;
    parallel((call.B + some - 1) / some, call.threads, [&](int64_t task) {
        step(Walkers<Kind>{call, task * some, least(some, call.B - task * some)});
    });
}

template <class Kind, class Real = typename Kind::Real>
void walk_as(const WalkCall<Real>& call) {
    Real* packed = shared_numbers<Real>(STRAIGHT, packed_size<Kind>(call.S, call.S));
    const PanelsOf<Real> transition = pack_straight<Kind>(call.transition, call.S, call.S, packed);
    each_walker<Kind>(call, [&](const Walkers<Kind>& walkers) { walkers.forward(transition); });
}

template <class Kind, class Real = typename Kind::Real>
void walk_back_as(const WalkCall<Real>& call) {
    Real* packed = shared_numbers<Real>(STRAIGHT, packed_size<Kind>(call.S, call.S));
    const PanelsOf<Real> transposed = pack_transposed<Kind>(call.transition, call.S, call.S, packed);
    each_walker<Kind>(call, [&](const Walkers<Kind>& walkers) { walkers.backward(transposed); });
}

// Rows of a from the columns of x: out[i] = (x[0][i], …, x[depth − 1][i]).
template <class Kind, class Real = typename Kind::Real>
void fill_columns(const Real* x, int64_t depth, int64_t columns, Real* out, int64_t length) {
    constexpr int W = width<Real>;
    for (int64_t i = 0; i < columns; i += W)
        for (int64_t n = 0; n < (Kind::halves ? up(depth, DEPTH) : depth); n += W) {
            VectorOf<Real> tile[W];
            for (int k = 0; k < W; ++k)
                tile[k] = n + k < depth ? load_part(x + (n + k) * columns + i, columns - i) : VectorOf<Real>{};
            transpose(tile);
            for (int k = 0; k < least(W, columns - i); ++k) store_units<Kind>(out + (i + k) * length, n, tile[k]);
        }
}

// Σ_n before[n] ⊗ after[n]: each thread sums a fixed share of the blocks of n, and then these sums are summed.
template <class Kind, class Real = typename Kind::Real>
void counts_as(const CountCall<Real>& call) {
    constexpr int W = width<Real>;
    const int64_t D = call.D, C = call.C, ldc = up(C, PANEL<Kind>), padded = up(D, ROWS);
    const int64_t length = row_length<Kind>(STEPS), blocks = (call.N + STEPS - 1) / STEPS;
    const int64_t parts = blocks < 1 ? 1 : least(blocks, call.threads < 1 ? 1 : call.threads);
    Real* partial = shared_numbers<Real>(PARTIAL, parts * padded * ldc);
    parallel(parts, call.threads, [&](int64_t part) {
        Real* sums = zeros(partial + part * padded * ldc, padded * ldc);
        Real* a = own_zeros<Real>(DIFFERENCE, padded * length);
        Real* b = own_numbers<Real>(PANELS, packed_size<Kind>(STEPS, C));
        for (int64_t block = part * blocks / parts; block < (part + 1) * blocks / parts; ++block) {
            const int64_t first = block * STEPS, some = least(STEPS, call.N - first);
            fill_columns<Kind>(call.before + first * D, some, D, a, length);
            const PanelsOf<Real> after = pack_straight<Kind>(call.after + first * C, some, C, b);
            multiply<Kind>(a, length, D, after, C, some, sums, ldc, true);
        }
    });
    parallel(D, call.threads, [&](int64_t i) {
        for (int64_t j = 0; j < C; j += W) {
            VectorOf<Real> sum = {};
            for (int64_t part = 0; part < parts; ++part) sum += load(partial + (part * padded + i) * ldc + j);
            store_part(call.out + i * C + j, sum, C - j);
        }
    });
}

// rows · matrix: a task takes some rows, and the matrix is packed once for all of them.
template <class Kind, class Real = typename Kind::Real>
void product_as(const ProductCall<Real>& call) {
    const int64_t D = call.D, C = call.C, ldc = up(C, PANEL<Kind>), length = row_length<Kind>(D);
    Real* packed = shared_numbers<Real>(STRAIGHT, packed_size<Kind>(D, C));
    const PanelsOf<Real> matrix = call.matrix ? pack_straight<Kind>(call.matrix, D, C, packed)
                                              : pack_transposed<Kind>(call.transposed, C, D, packed);
    parallel((call.N + ROWS_TOGETHER - 1) / ROWS_TOGETHER, call.threads, [&](int64_t task) {
        const int64_t first = task * ROWS_TOGETHER, count = least(ROWS_TOGETHER, call.N - first);
        Real* out = own_numbers<Real>(LOGITS, up(count, ROWS) * ldc);
        const Real* rows = call.rows + first * D;
        if constexpr (Kind::halves) {
            Real* rounded = own_numbers<Real>(DIFFERENCE, up(count, ROWS) * length);
            fill_rows<Kind>(rows, count, D, rounded);
            multiply<Kind>(rounded, length, count, matrix, C, D, out, ldc, false);
        } else {
            multiply<Kind>(rows, D, count, matrix, C, D, out, ldc, false);
        }
        for (int64_t n = 0; n < count; ++n) copy(call.out + (first + n) * C, out + n * ldc, C);
    });
}

void walk(const WalkCall<float>& call) { call.bf16 ? walk_as<BFloat16>(call) : walk_as<Float32>(call); }
void walk_back(const WalkCall<float>& call) { call.bf16 ? walk_back_as<BFloat16>(call) : walk_back_as<Float32>(call); }
void counts(const CountCall<float>& call) { call.bf16 ? counts_as<BFloat16>(call) : counts_as<Float32>(call); }
void product(const ProductCall<float>& call) { call.bf16 ? product_as<BFloat16>(call) : product_as<Float32>(call); }
void walk_float64(const WalkCall<double>& call) { walk_as<Float64>(call); }
void walk_back_float64(const WalkCall<double>& call) { walk_back_as<Float64>(call); }
void counts_float64(const CountCall<double>& call) { counts_as<Float64>(call); }
void product_float64(const ProductCall<double>& call) { product_as<Float64>(call); }

}  // namespace

// The recursion of a dense HMM over a ragged batch: forward, back, and the expected counts of transitions.
//
// Rows do not meet: a task takes some rows and walks all their steps, so that threads wait for nobody. A step is one
// product with the transition matrix, packed once, and one pass that weighs, sums and rescales while the numbers are
// in the cache. Rows are sorted longest first: at step t the first running[t] still run; what is past a row's end is
// zero. The formulas are those of trellis/inference/recursion.py.
#pragma once
#include "totals.h"

namespace {

constexpr float UNDERFLOW_SCALE = 1e-20f, LARGEST_MESSAGE = 1e30f, TINY = 1.17549435e-38f;
constexpr int64_t ROWS_TOGETHER = 16 * M;  // in one task: the transition matrix goes by once for all of them
constexpr int64_t STEPS = 256;             // of a sum over time and rows, in one block

inline float lane_sum(V x) {
    float sum = 0.0f;
    for (int i = 0; i < W; ++i) sum += x[i];
    return sum;
}

// The rows of one task, and the first operand of their product: in place, or rounded as they are written.
template <class Kind>
struct Walkers {
    const WalkCall& call;
    int64_t first, count, S = call.S, ld = up(S, N), length = row_length<Kind>(S);
    float* moved = own_scratch(LOGITS, up(count, ROWS) * ld);  // what the product gives
    float* rounded = Kind::halves ? cleared(DIFFERENCE, up(count, ROWS) * length) : nullptr;

    int64_t running(int64_t t) const {
        const int64_t rows = (t < call.T ? call.running[t] : 0) - first;
        return rows < 0 ? 0 : least(rows, count);
    }
    int64_t at(int64_t t, int64_t b) const { return t * call.B + first + b; }
    const float* likelihood(int64_t t, int64_t b) const { return call.likelihood + call.index[at(t, b)] * S; }

    void keep(int64_t b, int64_t i, V x) const {
        if (Kind::halves) store_units<Kind>(rounded + b * length, i, x);
    }
    void move(const float* from, int64_t rows, Panels matrix) const {
        multiply<Kind>(Kind::halves ? rounded : from, Kind::halves ? length : S, rows, matrix, S, S, moved, ld, false);
    }
    void end(float* data, int64_t t, int64_t rows) const { clear(data + at(t, rows) * S, (count - rows) * S); }

    void weigh(int64_t t, int64_t b) const {
        const float *predicted = t ? moved + b * ld : call.first + (first + b) * S, *weight = likelihood(t, b);
        float* belief = call.belief + at(t, b) * S;
        V sum = {};
        for (int64_t i = 0; i < S; i += W) {
            const V x = load_part(predicted + i, S - i) * load_part(weight + i, S - i);
            sum += x;
            store_part(belief + i, x, S - i);
        }
        const float scale = lane_sum(sum), by = 1.0f / (scale < TINY ? TINY : scale);
        for (int64_t i = 0; i < S; i += W) {
            const V x = load_part(belief + i, S - i) * by;
            store_part(belief + i, x, S - i);
            keep(b, i, x);
        }
        call.scale[at(t, b)] = scale;
        call.log_prob[at(t, b)] = call.log_peak[call.index[at(t, b)]] + __builtin_logf(scale);
    }

    void forward(Panels transition) const {
        for (int64_t t = 0; t < call.T; ++t) {
            const int64_t rows = running(t), going_on = running(t + 1);
            if (t && rows) move(call.belief + at(t - 1, 0) * S, rows, transition);
            for (int64_t b = 0; b < rows; ++b) weigh(t, b);
            for (int64_t b = going_on; b < rows; ++b)
                std::memcpy(call.final + (first + b) * S, call.belief + at(t, b) * S, S * sizeof(float));
            end(call.belief, t, rows);
            for (int64_t b = rows; b < count; ++b) call.scale[at(t, b)] = 1.0f, call.log_prob[at(t, b)] = 0.0f;
        }
    }

    // With g the gradient by the belief and u = w + g − ⟨g, belief⟩: posterior u · belief, message u · likelihood / scale.
    void weigh_back(int64_t t, int64_t b, const float* g) const {
        const float *belief = call.belief + at(t, b) * S, *weight = likelihood(t, b);
        float *posterior = call.posterior + at(t, b) * S, *message = call.message + at(t, b) * S;
        V dot = {};
        for (int64_t i = 0; i < S; i += W) dot += load_part(g + i, S - i) * load_part(belief + i, S - i);
        const float shift = call.grad_log_prob[at(t, b)] - lane_sum(dot), scale = call.scale[at(t, b)];
        const float by = scale < UNDERFLOW_SCALE ? 0.0f : 1.0f / scale;
        for (int64_t i = 0; i < S; i += W) {
            const V outer = load_part(g + i, S - i) + shift;
            V back = outer * load_part(weight + i, S - i) * by;
            back = back > LARGEST_MESSAGE ? splat(LARGEST_MESSAGE) : back;
            back = back < -LARGEST_MESSAGE ? splat(-LARGEST_MESSAGE) : back;
            store_part(posterior + i, outer * load_part(belief + i, S - i), S - i);
            store_part(message + i, back, S - i);
            keep(b, i, i + W <= S ? back : load_part(message + i, S - i));  // lanes past the end stay zero
        }
    }

    void backward(Panels transposed) const {
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
void each_walker(const WalkCall& call, const Step& step) {
    const int64_t share = (call.B + (call.threads < 1 ? 1 : call.threads) - 1) / (call.threads < 1 ? 1 : call.threads);
    const int64_t some = least(up(share, M), ROWS_TOGETHER);
    if (call.B == 0) return;
    parallel((call.B + some - 1) / some, call.threads, [&](int64_t task) {
        step(Walkers<Kind>{call, task * some, least(some, call.B - task * some)});
    });
}

template <class Kind>
void walk_as(const WalkCall& call) {
    float* packed = shared_scratch(STRAIGHT, packed_size<Kind>(call.S, call.S));
    const Panels transition = pack_straight<Kind>(call.transition, call.S, call.S, packed);
    each_walker<Kind>(call, [&](const Walkers<Kind>& walkers) { walkers.forward(transition); });
}

template <class Kind>
void walk_back_as(const WalkCall& call) {
    float* packed = shared_scratch(STRAIGHT, packed_size<Kind>(call.S, call.S));
    const Panels transposed = pack_transposed<Kind>(call.transition, call.S, call.S, packed);
    each_walker<Kind>(call, [&](const Walkers<Kind>& walkers) { walkers.backward(transposed); });
}

// Rows of a from the columns of x: out[i] = (x[0][i], …, x[depth − 1][i]).
template <class Kind>
void fill_columns(const float* x, int64_t depth, int64_t columns, float* out, int64_t length) {
    for (int64_t i = 0; i < columns; i += W)
        for (int64_t n = 0; n < (Kind::halves ? up(depth, DEPTH) : depth); n += W) {
            V tile[W];
            for (int k = 0; k < W; ++k)
                tile[k] = n + k < depth ? load_part(x + (n + k) * columns + i, columns - i) : V{};
            transpose(tile);
            for (int k = 0; k < least(W, columns - i); ++k) store_units<Kind>(out + (i + k) * length, n, tile[k]);
        }
}

// Σ_n before[n] ⊗ after[n]: each thread sums a fixed share of the blocks of n, and then these sums are summed.
template <class Kind>
void counts_as(const CountCall& call) {
    const int64_t S = call.S, ldc = up(S, N), padded = up(S, ROWS), length = row_length<Kind>(STEPS);
    const int64_t blocks = (call.rows + STEPS - 1) / STEPS;
    const int64_t parts = blocks < 1 ? 1 : least(blocks, call.threads < 1 ? 1 : call.threads);
    float* partial = shared_scratch(PARTIAL, parts * padded * ldc);
    parallel(parts, call.threads, [&](int64_t part) {
        float* sums = clear(partial + part * padded * ldc, padded * ldc);
        float* a = cleared(DIFFERENCE, padded * length);
        float* b = own_scratch(PANELS, packed_size<Kind>(STEPS, S));
        for (int64_t block = part * blocks / parts; block < (part + 1) * blocks / parts; ++block) {
            const int64_t first = block * STEPS, some = least(STEPS, call.rows - first);
            fill_columns<Kind>(call.before + first * S, some, S, a, length);
            const Panels after = pack_straight<Kind>(call.after + first * S, some, S, b);
            multiply<Kind>(a, length, S, after, S, some, sums, ldc, true);
        }
    });
    parallel(S, call.threads, [&](int64_t i) {
        for (int64_t j = 0; j < S; j += W) {
            V sum = {};
            for (int64_t part = 0; part < parts; ++part) sum += load(partial + (part * padded + i) * ldc + j);
            store_part(call.out + i * S + j, sum, S - j);
        }
    });
}

void walk(const WalkCall& call) { call.bf16 ? walk_as<BFloat16>(call) : walk_as<Float32>(call); }
void walk_back(const WalkCall& call) { call.bf16 ? walk_back_as<BFloat16>(call) : walk_back_as<Float32>(call); }
void counts(const CountCall& call) { call.bf16 ? counts_as<BFloat16>(call) : counts_as<Float32>(call); }

}  // namespace

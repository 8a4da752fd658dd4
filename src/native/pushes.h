// One step of the recursion across the matrices of pairs, each read where it lies.
//
// push   message[b] = into[pair_b] · belief[b]     a belief moves on
// pull   belief[b] = into[pair_b]ᵀ · message[b]    a message moves back
// outer  grad_into[p] = Σ message[n] ⊗ belief[n]   over the rows n that crossed pair p
//
// A matrix is used once for each row, so what counts is to read it once and in order.
#pragma once
#include "pairs.h"

namespace {

constexpr int64_t ROWS_A_TASK = 4;

template <class F>
void each_row(const PushCall& call, const F& body) {
    parallel((call.rows + ROWS_A_TASK - 1) / ROWS_A_TASK, call.threads, [&](int64_t task) {
        for (int64_t b = task * ROWS_A_TASK; b < least(call.rows, (task + 1) * ROWS_A_TASK); ++b)
            body(call.into + call.pair[b] * call.J * call.K, call.belief + b * call.K, call.message + b * call.J);
    });
}

// The sums of W vectors, one a lane.
inline V lane_sums(V (&x)[W]) {
    transpose(x);
    for (int half = W / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) x[i] += x[i + half];
    return x[0];
}

void push(const PushCall& call) {
    const int64_t J = call.J, K = call.K;
    each_row(call, [&](const float* into, const float* belief, float* message) {
        for (int64_t j = 0; j < J; j += W) {
            V sum[W] = {};
            const int64_t whole = J - j < W ? 0 : K / W * W;
            for (int64_t i = 0; i < whole; i += W) {
                const V x = load(belief + i);
#pragma GCC unroll 16
                for (int n = 0; n < W; ++n) sum[n] += load(into + (j + n) * K + i) * x;
            }
            for (int64_t i = whole; i < K; i += W)
                for (int n = 0; n < least(W, J - j); ++n)
                    sum[n] += load_part(into + (j + n) * K + i, K - i) * load_part(belief + i, K - i);
            store_part(message + j, lane_sums(sum), J - j);
        }
    });
}

void pull(const PushCall& call) {
    constexpr int wide = 8;
    const int64_t J = call.J, K = call.K;
    each_row(call, [&](const float* into, float* belief, const float* message) {
        int64_t i = 0;
        for (; i + wide * W <= K; i += wide * W) {
            V sum[wide] = {};
            for (int64_t j = 0; j < J; ++j) {
                const V x = splat(message[j]);
#pragma GCC unroll 8
                for (int n = 0; n < wide; ++n) sum[n] += load(into + j * K + i + n * W) * x;
            }
            for (int n = 0; n < wide; ++n) store(belief + i + n * W, sum[n]);
        }
        for (; i < K; i += W) {
            V sum = {};
            for (int64_t j = 0; j < J; ++j) sum += load_part(into + j * K + i, K - i) * splat(message[j]);
            store_part(belief + i, sum, K - i);
        }
    });
}

// The sum over a pair's rows for `high` to-states from j on and one or two vectors of from-states from i on.
template <int high>
void outer_block(const PushCall& call, int64_t p, int64_t j, int64_t i) {
    V sum[high][2] = {};
    const int64_t left = call.K - i;
    for (int64_t at = call.start[p]; at < call.start[p + 1]; ++at) {
        const float* belief = call.belief + call.order[at] * call.K + i;
        const float* message = call.message + call.order[at] * call.J + j;
        const V x = load_part(belief, left), y = load_part(belief + W, left - W);
#pragma GCC unroll 8
        for (int n = 0; n < high; ++n) {
            const V m = splat(message[n]);
            sum[n][0] += m * x, sum[n][1] += m * y;
        }
    }
    for (int n = 0; n < high; ++n) {
        float* out = call.grad_into + (p * call.J + j + n) * call.K + i;
        store_part(out, sum[n][0], left), store_part(out + W, sum[n][1], left - W);
    }
}

void outer(const PushCall& call) {
    constexpr int high = W == 16 ? 8 : 4;
    parallel(call.P, call.threads, [&](int64_t p) {
        for (int64_t j = 0; j < call.J;) {
            const bool full = call.J - j >= high;
            for (int64_t i = 0; i < call.K; i += 2 * W)
                full ? outer_block<high>(call, p, j, i) : outer_block<1>(call, p, j, i);
            j += full ? high : 1;
        }
    });
}

}  // namespace

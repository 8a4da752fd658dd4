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

inline V product_sum(const float* x, const float* y, int64_t n) {
    V sum[4] = {};
    int64_t i = 0;
    for (; i + 4 * W <= n; i += 4 * W)
        for (int k = 0; k < 4; ++k) sum[k] += load(x + i + k * W) * load(y + i + k * W);
    for (; i < n; i += W) sum[0] += load_part(x + i, n - i) * load_part(y + i, n - i);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

void push(const PushCall& call) {
    const int64_t J = call.J, K = call.K;
    each_row(call, [&](const float* into, const float* belief, float* message) {
        for (int64_t j = 0; j < J; j += W) {
            V sum[W] = {};
            for (int n = 0; n < least(W, J - j); ++n) sum[n] = product_sum(into + (j + n) * K, belief, K);
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

// The sum over a pair's rows for `high` to-states from j on and a stretch of from-states from i on: written in order.
constexpr int STRETCH = W == 16 ? 8 : 4;

template <int high>
void outer_block(const PushCall& call, int64_t p, int64_t j, int64_t i) {
    V sum[high][STRETCH] = {};
    const int64_t left = call.K - i;
    for (int64_t at = call.start[p]; at < call.start[p + 1]; ++at) {
        const float* belief = call.belief + call.order[at] * call.K + i;
        const float* message = call.message + call.order[at] * call.J + j;
#pragma GCC unroll 8
        for (int k = 0; k < STRETCH; ++k) {
            const V x = load_part(belief + k * W, left - k * W);
#pragma GCC unroll 2
            for (int n = 0; n < high; ++n) sum[n][k] += splat(message[n]) * x;
        }
    }
    for (int n = 0; n < high; ++n)
        for (int k = 0; k < STRETCH; ++k)
            store_part(call.grad_into + (p * call.J + j + n) * call.K + i + k * W, sum[n][k], left - k * W);
}

void outer(const PushCall& call) {
    parallel(call.P, call.threads, [&](int64_t p) {
        for (int64_t j = 0; j < call.J; j += 2)
            for (int64_t i = 0; i < call.K; i += STRETCH * W)
                j + 1 < call.J ? outer_block<2>(call, p, j, i) : outer_block<1>(call, p, j, i);
    });
}

}  // namespace

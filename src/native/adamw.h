// AdamW in one pass: the gradient is scaled (clipped), the moments move, the weight decays, the parameter steps.
//
// Step s has three numbers: keep = 1 − rate · decay, size = rate / (1 − β₁ˢ), root = √(1 − β₂ˢ); the update is
//   m ← m + (1 − β₁)(g − m),  v ← β₂ v + (1 − β₂) g²,  p ← keep · p − size · m / (√v / root + ε),
// where the last is computed as size · root · m / (√v + ε · root): divisions are what a step is made of.
#pragma once
#include "pairs.h"

namespace {

inline V square_root(V x) {
    for (int i = 0; i < W; ++i) x[i] = __builtin_sqrtf(x[i]);
    return x;
}

// One vector of the numbers, from `at` on, of which `n` are left.
inline void adam_vector(const AdamCall& call, int64_t at, int64_t n) {
    const float keep = call.keep, size = call.size, root = call.root, scale = call.scale;
    const float beta = 1.0 - call.beta1, gamma = 1.0 - call.beta2, beta2 = call.beta2, epsilon = call.epsilon;
    V p = load_part(call.param + at, n), m = load_part(call.moment + at, n), v = load_part(call.square + at, n);
    const V g = load_part(call.grad + at, n) * scale;
    m += beta * (g - m);
    v = beta2 * v + gamma * g * g;
    p = p * keep - size * root * m / (square_root(v) + epsilon * root);
    store_part(call.param + at, p, n), store_part(call.moment + at, m, n), store_part(call.square + at, v, n);
}

void adamw_step(const AdamCall& call) {
    constexpr int64_t some = 1 << 15;
    parallel((call.numbers + some - 1) / some, call.threads, [&](int64_t task) {
        const int64_t end = least(call.numbers, (task + 1) * some);
        for (int64_t i = task * some; i < end; i += W) adam_vector(call, i, end - i);
    });
}

}  // namespace

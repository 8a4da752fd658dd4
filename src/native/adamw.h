// AdamW in one pass: the gradient is scaled (clipped), the moments move, the weight decays, the parameter steps.
//
// Step s has three numbers: keep = 1 − rate · decay, size = rate / (1 − β₁ˢ), root = √(1 − β₂ˢ); the update is
//   m ← m + (1 − β₁)(g − m),  v ← β₂ v + (1 − β₂) g²,  p ← keep · p − size · m / (√v / root + ε),
// where the last is computed as size · root · m / (√v + ε · root): divisions are what a step is made of.
// In a table of which a batch touches some rows, the others have g = 0: they are left alone, and when next touched
// they first take all the steps they missed, in registers. The result is the same, number for number.
#pragma once
#include "pairs.h"

namespace {

inline V square_root(V x) {
    for (int i = 0; i < W; ++i) x[i] = __builtin_sqrtf(x[i]);
    return x;
}

struct AdamStep {
    float keep, size, root;
};

// One vector of the parameters: steps first to last − 1 without a gradient, then `last` with one.
inline void adam_vector(const AdamCall& call, int64_t at, const float* gradient, int64_t n, int64_t first) {
    const AdamStep* steps = reinterpret_cast<const AdamStep*>(call.steps);
    V p = load_part(call.param + at, n), m = load_part(call.moment + at, n), v = load_part(call.square + at, n);
    const float beta = 1.0 - call.beta1, gamma = 1.0 - call.beta2, beta2 = call.beta2, epsilon = call.epsilon;
    auto take = [&](const AdamStep& step, V g) {
        m += beta * (g - m);
        v = beta2 * v + gamma * g * g;
        p = p * step.keep - step.size * step.root * m / (square_root(v) + epsilon * step.root);
    };
    for (int64_t s = first; s < call.steps_taken - 1; ++s) take(steps[s], V{});
    take(steps[call.steps_taken - 1], gradient ? load_part(gradient, n) * static_cast<float>(call.scale) : V{});
    store_part(call.param + at, p, n), store_part(call.moment + at, m, n), store_part(call.square + at, v, n);
}

// Every parameter, and only the last step.
void adam_all(const AdamCall& call) {
    constexpr int64_t some = 1 << 15;
    const int64_t numbers = call.rows * call.R;
    parallel((numbers + some - 1) / some, call.threads, [&](int64_t task) {
        const int64_t end = least(numbers, (task + 1) * some);
        for (int64_t i = task * some; i < end; i += W)
            adam_vector(call, i, call.grad + i, end - i, call.steps_taken - 1);
    });
}

// Some rows, with the steps that each has missed.
void adam_rows(const AdamCall& call) {
    constexpr int64_t some = 16;
    parallel((call.rows + some - 1) / some, call.threads, [&](int64_t task) {
        for (int64_t n = task * some; n < least(call.rows, (task + 1) * some); ++n) {
            const int64_t row = call.which[n], seen = call.seen[row];
            if (seen >= call.steps_taken) continue;  // nothing missed
            for (int64_t r = 0; r < call.R; r += W)
                adam_vector(call, row * call.R + r, call.grad ? call.grad + n * call.R + r : nullptr, call.R - r, seen);
            call.seen[row] = call.steps_taken;
        }
    });
}

void adamw(const AdamCall& call) { call.which ? adam_rows(call) : adam_all(call); }

}  // namespace

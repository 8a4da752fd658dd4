// Emission columns of blocked models: log p(word | state) of some words, among all the words of the state's block.
//
// A block is one thread's. Its words go by some at a time: their logits in its states are made, used and forgotten.
// Forward keeps running maxima and sums, and the logits of the words that are asked for. Backward, with D the gradient by
// the logits, which is grad − probability · Σ grad, the words' is D · states and the states' the sum of Dᵀ · words. Words
// are read, and their gradients written, where they lie in the table of all words. Float32 alone: a logit rounded to
// bfloat16 would be wrong by more than a score may be.
#pragma once
#include "totals.h"

namespace {

enum ColumnSlot { STATES = BIAS + 1, WORD_PANELS, STATE_SUMS, GRAD_SUM };

// A block's words from `first` on, at most BLOCK of them.
struct Words {
    int64_t first, count;
    float *rows, *bias;

    Words(const ColumnCall& call, int64_t g, int64_t from)
        : first(from), count(least(BLOCK, call.start[g + 1] - from)), rows(own_scratch(DIFFERENCE, BLOCK * call.R)),
          bias(own_scratch(BIAS, BLOCK)) {
        for (int64_t v = 0; v < count; ++v) {
            const int64_t word = call.which[first + v];
            copy(rows + v * call.R, call.words + word * call.R, call.R);
            bias[v] = call.bias[word];
        }
    }
};

void columns_forward(const ColumnCall& call) {
    const int64_t K = call.K, R = call.R, ld = up(K, N);
    parallel(call.G, call.threads, [&](int64_t g) {
        float* packed = own_scratch(PANELS, packed_size<Float32>(R, K));
        const Panels states = pack_transposed<Float32>(call.states + g * K * R, K, R, packed);
        float* logits = own_scratch(LOGITS, BLOCK * ld);
        float *top = own_scratch(SUMS, 2 * ld), *sum = clear(top + ld, ld), *log_total = call.log_total + g * K;
        for (int64_t k = 0; k < ld; ++k) top[k] = -__builtin_inff();
        int64_t asked = call.asked_start[g];
        const int64_t asked_end = call.asked_start[g + 1];
        for (int64_t first = call.start[g]; first < call.start[g + 1]; first += BLOCK) {
            const Words words(call, g, first);
            multiply<Float32>(words.rows, R, words.count, states, K, R, logits, ld, false);
            take_in(logits, ld, words.count, words.bias, K, top, sum);
            for (; asked < asked_end && call.asked[asked] < first + words.count; ++asked) {
                const int64_t v = call.asked[asked] - first;
                for (int64_t k = 0; k < K; k += W)
                    store_part(call.columns + asked * K + k, load(logits + v * ld + k) + words.bias[v], K - k);
            }
        }
        for (int64_t k = 0; k < K; ++k) log_total[k] = top[k] + __builtin_logf(sum[k]);
        for (asked = call.asked_start[g]; asked < asked_end; ++asked)
            for (int64_t k = 0; k < K; ++k) call.columns[asked * K + k] -= log_total[k];
    });
}

// From logits to D in their place, and its sums over states to the gradient by the bias.
inline void to_difference(const ColumnCall& call, int64_t g, const Words& words, const float* grad_sum, float* logits,
                          int64_t ld, int64_t& asked) {
    const int64_t K = call.K;
    const float* log_total = call.log_total + g * K;
    for (int64_t v = 0; v < words.count; ++v) {
        const bool wanted = asked < call.asked_start[g + 1] && call.asked[asked] == words.first + v;
        V sum = {};
        for (int64_t k = 0; k < K; k += W) {
            const V logit = load(logits + v * ld + k) + words.bias[v], by = load(grad_sum + k);
            V d = by != 0.0f ? -by * exponential(logit - load_part(log_total + k, K - k)) : V{};
            if (wanted) d += load_part(call.grad + asked * K + k, K - k);
            store(logits + v * ld + k, d);
            sum += d;
        }
        float total = 0.0f;
        for (int i = 0; i < W; ++i) total += sum[i];
        call.grad_bias[call.which[words.first + v]] = total;
        asked += wanted;
    }
}

// Rows of states from rows of words; what is past the last word or state is zero.
inline void turn_over(const float* rows, int64_t ld, int64_t count, int64_t K, float* out, int64_t ldo) {
    for (int64_t k = 0; k < K; k += W)
        for (int64_t v = 0; v < count; v += W) {
            V tile[W];
            for (int i = 0; i < W; ++i) tile[i] = v + i < count ? load(rows + (v + i) * ld + k) : V{};
            transpose(tile);
            for (int i = 0; i < W; ++i) store(out + (k + i) * ldo + v, tile[i]);
        }
}

void columns_backward(const ColumnCall& call) {
    const int64_t K = call.K, R = call.R, ld = up(K, N), ldc = up(R, N);
    parallel(call.G, call.threads, [&](int64_t g) {
        const float* rows = call.states + g * K * R;
        float* packed = own_scratch(PANELS, packed_size<Float32>(R, K));
        const Panels across = pack_transposed<Float32>(rows, K, R, packed);
        const Panels along = straight<Float32>(rows, K, R, own_scratch(STATES, packed_size<Float32>(K, R)));
        float *logits = own_scratch(LOGITS, BLOCK * ld), *turned = own_scratch(TRANSPOSED, up(K, W) * BLOCK);
        float *by_words = own_scratch(SUMS, BLOCK * ldc), *by_states = cleared(STATE_SUMS, K * ldc);
        float* word_panels = own_scratch(WORD_PANELS, packed_size<Float32>(BLOCK, R));
        float* grad_sum = cleared(GRAD_SUM, ld);
        int64_t asked = call.asked_start[g];
        for (int64_t n = asked; n < call.asked_start[g + 1]; ++n)
            for (int64_t k = 0; k < K; ++k) grad_sum[k] += call.grad[n * K + k];
        for (int64_t first = call.start[g]; first < call.start[g + 1]; first += BLOCK) {
            const Words words(call, g, first);
            multiply<Float32>(words.rows, R, words.count, across, K, R, logits, ld, false);
            to_difference(call, g, words, grad_sum, logits, ld, asked);
            multiply<Float32>(logits, ld, words.count, along, R, K, by_words, ldc, false);
            for (int64_t v = 0; v < words.count; ++v)
                copy(call.grad_words + call.which[first + v] * R, by_words + v * ldc, R);
            turn_over(logits, ld, words.count, K, turned, BLOCK);
            const Panels own = straight<Float32>(words.rows, words.count, R, word_panels);
            multiply<Float32>(turned, BLOCK, K, own, R, words.count, by_states, ldc, true);
        }
        for (int64_t k = 0; k < K; ++k)
            copy(call.grad_states + (g * K + k) * R, by_states + k * ldc, R);
    });
}

}  // namespace

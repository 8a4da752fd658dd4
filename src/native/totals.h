// Normalisers of bilinear logits: log Σ_v exp(h_n · w_v + bias_v) for every row n, and the gradient back.
//
// The logits are made in blocks of some columns v by a group of rows n that fit the second cache, used and forgotten.
// Forward, a group of rows sees all columns go by and keeps a running maximum and sum. Backward, with
// p_vn = exp(logit − log total) · grad, a block of columns sees all groups of rows go by: it sums p · rows itself, and
// adds pᵀ · columns to sums over rows of which each thread has its own. Threads have fixed shares of the columns, so
// that results depend on their number, but on nothing else.
#pragma once
#include "pairs.h"

namespace {

enum TotalSlot { TRANSPOSED = DIFFERENCE + 1, BIAS };
enum TotalSharedSlot { GROUPS = STRAIGHT + 1, PARTIAL };

constexpr int64_t BLOCK = 96;  // columns at a time: whole rows of M, whole depths of bfloat16

// Rows at a time: their panels should take a part of the second cache, and every thread should have some.
inline int64_t group_size(int64_t rows, int64_t width, int64_t most, int64_t threads) {
    const int64_t fit = least(most, 65536 / (width < 1 ? 1 : width)), share = (rows + threads - 1) / threads;
    return up(least(fit < 1 ? 1 : fit, share < 1 ? 1 : share), DEPTH);
}

// Takes a block of logits (rows v, `ld` apart; columns n) into the running maxima and sums.
inline void take_in(const float* logits, int64_t ld, int64_t columns, const float* bias, int64_t rows, float* top,
                    float* sum) {
    for (int64_t n = 0; n < rows; n += W) {
        const V before = load(top + n);
        V now = before, total = {};
        auto at = [&](int64_t v) { return load(logits + v * ld + n) + splat(bias ? bias[v] : 0.0f); };
        for (int64_t v = 0; v < columns; ++v) now = larger(at(v), now);
        const V shift = now == -__builtin_inff() ? V{} : now;
        for (int64_t v = 0; v < columns; ++v) total += exponential(at(v) - shift);
        store(sum + n, load(sum + n) * exponential(before - shift) + total);
        store(top + n, now);
    }
}

template <class Kind>
void totals_forward_as(const TotalCall& call) {
    const int64_t R = call.R, group = group_size(call.N, R, 256, call.threads), ld = up(group, N);
    const float* columns = all_rows<Kind>(call.columns, 1, call.V, R, call.threads);
    const int64_t lda = Kind::halves ? row_length<Kind>(R) : R;
    parallel((call.N + group - 1) / group, call.threads, [&](int64_t g) {
        const int64_t first = g * group, rows = least(group, call.N - first);
        float* logits = own_scratch(LOGITS, BLOCK * ld);
        float* top = own_scratch(SUMS, 2 * ld);
        float* sum = clear(top + ld, ld);
        for (int64_t n = 0; n < ld; ++n) top[n] = -__builtin_inff();
        float* packed = own_scratch(PANELS, packed_size<Kind>(R, group));
        const Panels panels = pack_transposed<Kind>(call.rows + first * R, rows, R, packed);
        for (int64_t v = 0; v < call.V; v += BLOCK) {
            const int64_t some = least(BLOCK, call.V - v);
            multiply<Kind>(columns + v * lda, lda, some, panels, rows, R, logits, ld, false);
            take_in(logits, ld, some, call.bias ? call.bias + v : nullptr, rows, top, sum);
        }
        for (int64_t n = 0; n < rows; ++n) call.log_total[first + n] = top[n] + __builtin_logf(sum[n]);
    });
}

// From a block of logits to p, as rows of columns v and as rows of rows n, and to its sums over n, lane by lane.
template <class Kind>
void shares(const TotalCall& call, const float* logits, int64_t ld, int64_t first_v, int64_t columns, int64_t first_n,
            int64_t rows, float* p, int64_t ldp, float* transposed, int64_t ldt, float* sums) {
    for (int64_t n = 0; n < up(rows, DEPTH); n += W) {
        const V total = load_part(call.log_total + first_n + n, rows - n);
        const V by = total == -__builtin_inff() ? V{} : load_part(call.grad + first_n + n, rows - n);
        for (int64_t v = 0; v < up(columns, DEPTH); v += W) {
            V tile[W];
            for (int i = 0; i < W; ++i) {
                if (v + i >= columns) {
                    tile[i] = V{};
                    continue;
                }
                V logit = load(logits + (v + i) * ld + n) + splat(call.bias ? call.bias[first_v + v + i] : 0.0f);
                tile[i] = by != 0.0f ? exponential(logit - total) * by : V{};
                store_units<Kind>(p + (v + i) * ldp, n, tile[i]);
                if (call.grad_bias) store(sums + (v + i) * W, load(sums + (v + i) * W) + tile[i]);
            }
            transpose(tile);
            for (int i = 0; i < W; ++i) store_units<Kind>(transposed + (n + i) * ldt, v, tile[i]);
        }
    }
}

template <class Kind>
struct TotalsBackward {
    const TotalCall& call;
    int64_t R = call.R, ldc = up(R, N), group = group_size(call.N, R, 128, 1), groups = (call.N + group - 1) / group;
    int64_t ld = up(group, N), ldp = row_length<Kind>(group), ldt = row_length<Kind>(BLOCK);
    int64_t lda = Kind::halves ? row_length<Kind>(R) : R;
    int64_t across = packed_size<Kind>(R, group), along = packed_size<Kind>(group, R);
    int64_t blocks = (call.V + BLOCK - 1) / BLOCK, parts = least(call.threads < 1 ? 1 : call.threads, blocks);
    bool in_place = !Kind::halves && R % N == 0;  // the rows and columns are panels as they are
    const float* columns = nullptr;
    float *panels = nullptr, *straight_panels = nullptr, *partial = nullptr;

    int64_t rows_of(int64_t g) const { return least(group, call.N - g * group); }

    void prepare() {
        columns = all_rows<Kind>(call.columns, 1, call.V, R, call.threads);
        panels = shared_scratch(GROUPS, groups * across);
        straight_panels = in_place ? nullptr : shared_scratch(STRAIGHT, groups * along);
        partial = shared_scratch(PARTIAL, parts * groups * group * ldc);
        parallel(groups, call.threads, [&](int64_t g) {
            const float* rows = call.rows + g * group * R;
            pack_transposed<Kind>(rows, rows_of(g), R, panels + g * across);
            if (!in_place) pack_straight<Kind>(rows, rows_of(g), R, straight_panels + g * along);
            for (int64_t part = 0; part < parts; ++part)
                clear(partial + (part * groups + g) * group * ldc, group * ldc);
        });
    }

    Panels rows_straight(int64_t g) const {
        if (in_place) return {call.rows + g * group * R, R, N};
        return {straight_panels + g * along, N, N * Kind::units(rows_of(g))};
    }

    void block_of_columns(int64_t first, int64_t some, float* my_rows) const {
        float* logits = own_scratch(LOGITS, BLOCK * ld);
        float* p = cleared(DIFFERENCE, BLOCK * ldp);
        float* transposed = own_scratch(TRANSPOSED, group * ldt);
        float* sums = cleared(SUMS, BLOCK * ldc);
        float* bias_sums = cleared(BIAS, BLOCK * W);
        float* packed = own_scratch(PANELS, packed_size<Kind>(BLOCK, R));
        const Panels mine = straight<Kind>(call.columns + first * R, some, R, packed);
        for (int64_t g = 0; g < groups; ++g) {
            const int64_t rows = rows_of(g);
            const Panels group_panels = {panels + g * across, N, N * Kind::units(R)};
            multiply<Kind>(columns + first * lda, lda, some, group_panels, rows, R, logits, ld, false);
            shares<Kind>(call, logits, ld, first, some, g * group, rows, p, ldp, transposed, ldt, bias_sums);
            multiply<Kind>(p, ldp, some, rows_straight(g), R, rows, sums, ldc, true);
            multiply<Kind>(transposed, ldt, rows, mine, R, some, my_rows + g * group * ldc, ldc, true);
        }
        for (int64_t v = 0; v < some; ++v) {
            copy(call.grad_columns + (first + v) * R, sums + v * ldc, R);
            if (!call.grad_bias) continue;
            float total = 0.0f;
            for (int i = 0; i < W; ++i) total += bias_sums[v * W + i];
            call.grad_bias[first + v] = total;
        }
    }

    void run() {
        prepare();
        parallel(parts, call.threads, [&](int64_t part) {
            for (int64_t block = part * blocks / parts; block < (part + 1) * blocks / parts; ++block)
                block_of_columns(block * BLOCK, least(BLOCK, call.V - block * BLOCK),
                                 partial + part * groups * group * ldc);
        });
        parallel(groups, call.threads, [&](int64_t g) {
            for (int64_t n = g * group; n < g * group + rows_of(g); ++n)
                for (int64_t r = 0; r < R; r += W) {
                    V sum = {};
                    for (int64_t part = 0; part < parts; ++part)
                        sum += load(partial + (part * groups * group + n) * ldc + r);
                    store_part(call.grad_rows + n * R + r, sum, R - r);
                }
        });
    }
};

void totals_forward(const TotalCall& call) {
    call.bf16 ? totals_forward_as<BFloat16>(call) : totals_forward_as<Float32>(call);
}
void totals_backward(const TotalCall& call) {
    call.bf16 ? TotalsBackward<BFloat16>{call}.run() : TotalsBackward<Float32>{call}.run();
}

}  // namespace

// Blocked transitions: the probabilities of every distinct pair of blocks in a batch, and the gradient back.
//
// Forward, for each pair: logits = right[to] · left[from]ᵀ, J×K; then down each column (from-state) the softmax times
// `scale`, or exp(logit − shift) · scale. Vectors run over from-states, so no sum crosses lanes.
//
// Backward, with g the gradient by `into`: D = into · (g − Σ_j into·g / scale) is the gradient by the logits (without
// the second term if nothing was normalised). A first sweep over from-lists sums Dᵀ · right[to] into grad_left, a
// second over to-lists sums D · left[from] into grad_right: each list's sum is one thread's, in one order, so that
// results do not depend on the number of threads. D is made twice; nothing larger than one pair's is ever held.
#pragma once
#include "matmul.h"
#include "pool.h"

namespace {

enum OwnSlot { PANELS, LOGITS, SUMS, DIFFERENCE };
enum SharedSlot { RIGHT_ROWS, STRAIGHT };

template <class F>
void parallel(int64_t tasks, int64_t threads, const F& body) {
    auto call = [](const void* context, int64_t task) { (*static_cast<const F*>(context))(task); };
    run_tasks(tasks, threads, call, &body);
}

inline float* clear(float* data, int64_t floats) {
    std::memset(data, 0, floats * sizeof(float));
    return data;
}
inline float* cleared(int slot, int64_t floats) { return clear(own_scratch(slot, floats), floats); }

// A few vectors of columns go down the rows together, so that their exponentials overlap.
constexpr int TOGETHER = W == 16 ? 4 : 2;

// From logits (J×K, rows `ldl` apart) to probabilities (rows K apart).
inline void probabilities(float* logits, int64_t ldl, int64_t J, int64_t K, const float* scale, const float* shift,
                          float* into) {
    for (int64_t i = 0; i < K; i += W * TOGETHER) {
        V top[TOGETHER], sum[TOGETHER] = {};
        if (shift) {
            for (int n = 0; n < TOGETHER; ++n) top[n] = load_part(shift + i + n * W, K - i - n * W);
        } else {
            for (int n = 0; n < TOGETHER; ++n) top[n] = splat(-__builtin_inff());
            for (int64_t j = 0; j < J; ++j)
                for (int n = 0; n < TOGETHER; ++n) top[n] = larger(load(logits + j * ldl + i + n * W), top[n]);
            for (int n = 0; n < TOGETHER; ++n) top[n] = top[n] == -__builtin_inff() ? V{} : top[n];
        }
        for (int64_t j = 0; j < J; ++j)
            for (int n = 0; n < TOGETHER; ++n) {
                float* at = logits + j * ldl + i + n * W;
                V e = exponential(load(at) - top[n]);
                sum[n] += e;
                store(at, e);
            }
        for (int n = 0; n < TOGETHER; ++n) {
            V by = load_part(scale + i + n * W, K - i - n * W);
            if (!shift) by = sum[n] > 0.0f ? by / sum[n] : sum[n];  // a column of −inf stays zero, of NaN stays NaN
            for (int64_t j = 0; j < J; ++j)
                store_part(into + j * K + i + n * W, load(logits + j * ldl + i + n * W) * by, K - i - n * W);
        }
    }
}

// Rows of every list, for use as the first operand: in place, or rounded and padded once for all pairs.
template <class Kind>
const float* all_rows(const float* lists, int64_t count, int64_t rows, int64_t depth, int64_t threads) {
    if (!Kind::halves) return lists;
    const int64_t chunks = up(rows, ROWS) / ROWS, size = ROWS * row_length<Kind>(depth);
    float* out = shared_scratch(RIGHT_ROWS, count * chunks * size);
    parallel(count * chunks, threads, [&](int64_t task) {
        const int64_t list = task / chunks, row = task % chunks * ROWS;
        fill_rows<Kind>(lists + (list * rows + row) * depth, least(ROWS, rows - row), depth, out + task * size);
    });
    return out;
}

template <class Kind>
void pair_forward_as(const PairCall& call) {
    const int64_t K = call.K, J = call.J, R = call.R, ldl = up(K, N > W * TOGETHER ? N : W * TOGETHER);
    const float* right = all_rows<Kind>(call.right, call.G, J, R, call.threads);
    const int64_t lda = Kind::halves ? row_length<Kind>(R) : R, size = (Kind::halves ? up(J, ROWS) : J) * lda;
    parallel(call.F, call.threads, [&](int64_t f) {
        if (call.from_start[f] == call.from_start[f + 1]) return;
        float* panels = own_scratch(PANELS, packed_size<Kind>(R, K));
        float* logits = own_scratch(LOGITS, up(J, ROWS) * ldl);
        Panels left = pack_transposed<Kind>(call.left + f * K * R, K, R, panels);
        for (int64_t p = call.from_start[f]; p < call.from_start[f + 1]; ++p) {
            multiply<Kind>(right + call.to[p] * size, lda, J, left, K, R, logits, ldl, false);
            probabilities(logits, ldl, J, K, call.scale + p * K, call.normalise ? nullptr : call.shift + f * K,
                          call.into + p * J * K);
        }
    });
}

// Σ_j into · grad for every from-state. Row by row, as the matrices lie: they come from memory here.
inline void sum_rows(const float* into, const float* grad, int64_t J, int64_t K, float* sums) {
    constexpr int wide = 8;
    for (int64_t i = 0; i < K; i += wide * W) {
        V sum[wide] = {};
        for (int64_t j = 0; j < J; ++j)
            for (int n = 0; n < wide; ++n) {
                const int64_t at = i + n * W;
                if (at < K) sum[n] += load_part(into + j * K + at, K - at) * load_part(grad + j * K + at, K - at);
            }
        for (int n = 0; n < wide; ++n) store_part(sums + i + n * W, sum[n], K - i - n * W);
    }
}

// The part of the gradient that every to-state of a column shares.
inline V shared_part(const PairCall& call, int64_t p, int64_t i) {
    if (!call.normalise) return V{};
    V scale = load_part(call.scale + p * call.K + i, call.K - i);
    return scale != 0.0f ? load_part(call.row_sum + p * call.K + i, call.K - i) / scale : V{};
}

inline V difference_at(const PairCall& call, int64_t p, int64_t j, int64_t i, V shared) {
    const int64_t at = (p * call.J + j) * call.K + i, n = call.K - i;
    return load_part(call.into + at, n) * (load_part(call.grad_into + at, n) - shared);
}

// D as rows of to-states, and its transpose, rows of from-states.
template <class Kind>
void difference(const PairCall& call, int64_t p, float* out, int64_t length) {
    float* shared = own_scratch(LOGITS, up(call.K, W));
    for (int64_t i = 0; i < call.K; i += W) store(shared + i, shared_part(call, p, i));
    for (int64_t j = 0; j < call.J; ++j)
        for (int64_t i = 0; i < call.K; i += W)
            store_units<Kind>(out + j * length, i, difference_at(call, p, j, i, load(shared + i)));
}
template <class Kind>
void difference_transposed(const PairCall& call, int64_t p, float* out, int64_t length) {
    for (int64_t i = 0; i < call.K; i += W) {
        const V shared = shared_part(call, p, i);
        for (int64_t j = 0; j < call.J; j += W) {
            V tile[W];
            for (int n = 0; n < W; ++n) tile[n] = j + n < call.J ? difference_at(call, p, j + n, i, shared) : V{};
            transpose(tile);
            for (int n = 0; n < least(W, call.K - i); ++n) store_units<Kind>(out + (i + n) * length, j, tile[n]);
        }
    }
}

// Panels of every list, each row of the summed dimension one state: in place, or packed once for all pairs.
template <class Kind>
Panels all_straight(const float* lists, int64_t count, int64_t depth, int64_t columns, int64_t threads) {
    if (!Kind::halves && columns % N == 0) return {lists, columns, N};
    const int64_t size = packed_size<Kind>(depth, columns);
    float* out = shared_scratch(STRAIGHT, count * size);
    parallel(count, threads, [&](int64_t g) {
        pack_straight<Kind>(lists + g * depth * columns, depth, columns, out + g * size);
    });
    return {out, N, N * Kind::units(depth)};
}

// One sweep: for every list, the sum over its pairs of D (rows × depth) · other (depth × R).
template <class Kind, class Fill>
void sweep(int64_t lists, int64_t rows, const float* other, int64_t others, int64_t depth, int64_t R, int64_t threads,
           const int64_t* start, float* grad, const Fill& fill) {
    const Panels panels = all_straight<Kind>(other, others, depth, R, threads);
    const int64_t size = panels.data == other ? depth * R : packed_size<Kind>(depth, R);
    const int64_t length = row_length<Kind>(depth), ldc = up(R, N), padded = up(rows, ROWS);
    parallel(lists, threads, [&](int64_t list) {
        float* sums = cleared(SUMS, padded * ldc);
        float* difference = cleared(DIFFERENCE, padded * length);
        for (int64_t at = start[list]; at < start[list + 1]; ++at) {
            const int64_t its_other = fill(at, difference, length);
            const Panels its_panels = {panels.data + its_other * size, panels.ldb, panels.next};
            multiply<Kind>(difference, length, rows, its_panels, R, depth, sums, ldc, true);
        }
        for (int64_t i = 0; i < rows; ++i) copy(grad + (list * rows + i) * R, sums + i * ldc, R);
    });
}

template <class Kind>
void pair_backward_as(const PairCall& call) {
    const int64_t K = call.K, J = call.J, R = call.R;
    sweep<Kind>(call.F, K, call.right, call.G, J, R, call.threads, call.from_start, call.grad_left,
                [&](int64_t p, float* out, int64_t length) {
                    sum_rows(call.into + p * J * K, call.grad_into + p * J * K, J, K, call.row_sum + p * K);
                    difference_transposed<Kind>(call, p, out, length);
                    return call.to[p];
                });
    sweep<Kind>(call.G, J, call.left, call.F, K, R, call.threads, call.to_start, call.grad_right,
                [&](int64_t at, float* out, int64_t length) {
                    difference<Kind>(call, call.by_to[at], out, length);
                    return call.from[call.by_to[at]];
                });
}

void pair_forward(const PairCall& call) {
    call.bf16 ? pair_forward_as<BFloat16>(call) : pair_forward_as<Float32>(call);
}
void pair_backward(const PairCall& call) {
    call.bf16 ? pair_backward_as<BFloat16>(call) : pair_backward_as<Float32>(call);
}

}  // namespace

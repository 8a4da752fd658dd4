// The most probable state path of each of many sequences, in log space: rows in groups, as sequences.h has them.
//
// A step is the product with the transition matrix in which sums of logarithms stand for products and the largest for
// the sum. Scores are kept relative to a row's best, so that none is positive; neither is a logarithm of the matrix,
// from which the largest is taken if it is, by rounding or because it is no probability. Where a best score came from
// is found again on the way back, for the one state of each step that the path goes through.
#pragma once
#include "sequences.h"

namespace {

template <class Real>
struct Climbers {
    using Kind = MaxPlus<Real>;
    using Vector = VectorOf<Real>;
    static constexpr int W = width<Real>;
    const SequenceCall<Real>& call;
    const Real* into;  // the transposed matrix, rows `ld` apart
    Real lacking;      // what was taken from the matrix
    int64_t first, count, S = call.S, ld = up(S, PANEL<Kind>), T = count ? call.length[first] : 0;
    Real* moved = own_numbers<Real>(LOGITS, count * ld);
    Real* scores = own_numbers<Real>(SUMS, T * count * ld);

    Real* score(int64_t t, int64_t b) const { return scores + (t * count + b) * ld; }
    int64_t length(int64_t b) const { return call.length[first + b]; }
    bool counted(int64_t t, int64_t b) const { return t >= call.from[first + b] && t < call.to[first + b]; }
    void note(int64_t which, int64_t b, const Real* vector) const {
        if (call.edge) std::memcpy(call.edge + (which * call.B + first + b) * S, vector, S * sizeof(Real));
    }
    static Vector part(const Real* p, int64_t n) {  // what is past the end can be no path
        if (n >= W) return load(p);
        Vector x = Kind::none();
        std::memcpy(&x, p, n * sizeof(Real));
        return x;
    }
    static Real largest(Vector x) {
        Real most = x[0];
        for (int i = 1; i < W; ++i) most = x[i] > most ? x[i] : most;
        return most;
    }

    void weigh(int64_t t, int64_t b) const {
        const Real* predicted = t ? moved + b * ld : call.first + call.which[first + b] * S;
        const Real* weight = call.likelihood + call.symbol[call.begin[first + b] + t] * S;
        Real* to = score(t, b);
        Vector top = Kind::none();
        for (int64_t i = 0; i < S; i += W) {
            const Vector x = part(predicted + i, S - i) + part(weight + i, S - i);
            top = larger(x, top);
            store(to + i, x);
        }
        const Real peak = largest(top), shift = peak == -__builtin_inf() ? Real(0) : peak;
        for (int64_t i = 0; i < S; i += W) store(to + i, load(to + i) - shift);
        if (counted(t, b)) call.log_prob[first + b] += double(peak) + (t ? double(lacking) : 0.0);
        if (t + 1 == call.from[first + b]) note(0, b, to);
        if (t + 1 == call.to[first + b]) note(1, b, to);
    }

    void forward(PanelsOf<Real> transition) const {
        for (int64_t b = 0; b < count; ++b) call.log_prob[first + b] = 0.0;
        int64_t rows = count;
        for (int64_t t = 0; t < T; ++t) {
            while (length(rows - 1) <= t) --rows;
            if (t) multiply<Kind>(score(t - 1, 0), ld, rows, transition, S, S, moved, ld, false);
            for (int64_t b = 0; b < rows; ++b) weigh(t, b);
        }
    }

    // The first of the largest of score + step; without a step, of scores.
    int64_t best(const Real* score, const Real* step) const {
        Vector top = Kind::none(), where = {};  // in each lane; a float32 can count 2^24 states
        for (int64_t i = 0; i < S; i += W) {
            const Vector x = step ? load(score + i) + load(step + i) : load(score + i);
            where = x > top ? splat(Real(i)) : where;
            top = larger(x, top);
        }
        const Real most = largest(top);
        int64_t found = S;
        for (int k = 0; k < W; ++k)
            if (top[k] == most) found = least(found, int64_t(where[k]) + k);
        return least(found, S - 1);  // of scores that are no numbers none is the largest
    }

    void backward(int64_t b) const {
        const bool none = call.log_prob[first + b] == -__builtin_inf();
        int64_t state = 0, *states = call.state + call.begin[first + b];
        for (int64_t t = length(b) - 1; t >= 0; --t) {
            if (!none) state = best(score(t, b), t == length(b) - 1 ? nullptr : into + state * ld);
            if (counted(t, b)) states[t] = none ? -1 : state;
            if (t == call.to[first + b] && !none) call.lost[first + b] = state;  // to be met by the row that goes on there
        }
    }
};

// Panels of the matrix of which the transpose is given, rows `ld` apart.
template <class Real>
PanelsOf<Real> pack_into(const Real* into, int64_t ld, int64_t S, Real* out) {
    constexpr int N = PANEL<MaxPlus<Real>>;
    for (int64_t j = 0; j < up(S, N); ++j)
        for (int64_t i = 0; i < S; ++i)
            out[j / N * N * S + i * N + j % N] = j < S ? into[j * ld + i] : Real(-__builtin_inf());
    return {out, N, N * S};
}

template <class Real>
void best_paths_as(const SequenceCall<Real>& call) {
    using Kind = MaxPlus<Real>;
    const int64_t S = call.S, ld = up(S, PANEL<Kind>);
    Real* into = shared_numbers<Real>(GROUPS, S * ld);
    Real* packed = shared_numbers<Real>(STRAIGHT, packed_size<Kind>(S, S));
    Real most = 0;
    for (int64_t i = 0; i < S * S; ++i) most = call.transition[i] > most ? call.transition[i] : most;
    for (int64_t i = 0; i < S * ld; ++i) into[i] = Real(-__builtin_inf());
    for (int64_t i = 0; i < S; ++i)
        for (int64_t j = 0; j < S; ++j) into[j * ld + i] = call.transition[i * S + j] - most;
    const PanelsOf<Real> transition = pack_into(into, ld, S, packed);
    parallel(call.G, call.threads, [&](int64_t g) {
        const Climbers<Real> climbers{call, into, most, call.group[g], call.group[g + 1] - call.group[g]};
        climbers.forward(transition);
        for (int64_t b = 0; b < climbers.count; ++b) climbers.backward(b);
    });
}

void best_paths(const SequenceCall<float>& call) { best_paths_as(call); }
void best_paths_float64(const SequenceCall<double>& call) { best_paths_as(call); }

}  // namespace

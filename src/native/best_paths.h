// The most probable state path of each of many sequences, in log space.
//
// A step takes, for each to-state j, the largest of score_i + step_ij over the from-states i. Few i can win. To-states are
// taken in panels; with some potential_j and reach_i ≥ step_ij − potential_j for all j of a panel, i adds nothing to it if
// score_i + reach_i is below a bound, and the best ways from other states are at least potential_j + bound. Scores and
// reaches are rounded up to units of 16 bits to compare them, so that i is below the bound by a whole unit, more than
// floating point rounds. A bound is guessed, and lowered if the best ways do not prove it: the answer is exact.
//
// Scores are kept relative to a row's best. Where a best score came from is found again on the way back, for the one
// state of each step that the path goes through.
#pragma once
#include "sequences.h"

namespace {

constexpr int64_t WORD = 64;                   // from-states that are compared at once
constexpr int UNITS = 64, FARTHEST = 1 << 14;  // of a logarithm in 16 bits: how many in 1, and how many at most
constexpr int LOWEST = -2 * FARTHEST;          // a bound that is below no sum
constexpr float LARGEST_POTENTIAL = 4096;      // beyond, float32 rounds by more than a small part of a unit
constexpr float RISE = 0.03f, MARGIN = 0.3f;   // of guesses: after one that was proved, and below what could be proved
constexpr int PATH_VECTORS = 4;                // in a panel
constexpr int64_t FEW_STATES = 32;             // of so few, all are tried: to compare bounds would take as long
template <class Real>
constexpr int PATH_PANEL = PATH_VECTORS * width<Real>;

template <class Number>
inline int16_t bounded(Number units, int low, int high) {
    return int16_t(units > Number(low) ? units < Number(high) ? units : Number(high) : Number(low));
}

// The steps from state to state, as both ways need them.
template <class Real>
struct Steps {
    static constexpr int N = PATH_PANEL<Real>;
    int64_t S, ld = up(S, width<Real>), panels = up(S, N) / N, padded = up(S, WORD);
    Real* from = shared_numbers<Real>(STRAIGHT, panels * S * N);  // from[p][i] are the steps from i to the states of panel p
    Real* into = shared_numbers<Real>(GROUPS, S * ld);            // into[j] are the steps to j
    Real* potential = shared_numbers<Real>(PARTIAL, panels * N);  // the logarithm of the sum of steps to j
    int16_t* reach = reinterpret_cast<int16_t*>(shared_scratch(RIGHT_ROWS, panels * padded / 2));  // of each panel

    void fill(const Real* transition) const {
        const Real none = -__builtin_inf();
        for (int64_t n = 0; n < panels * S * N; ++n) from[n] = none;
        for (int64_t n = 0; n < S * ld; ++n) into[n] = none;
        for (int64_t n = 0; n < panels * N; ++n) potential[n] = none;
        for (int64_t n = 0; n < panels * padded; ++n) reach[n] = -FARTHEST;
        for (int64_t i = 0; i < S; ++i)
            for (int64_t j = 0; j < S; ++j)
                from[(j / N * S + i) * N + j % N] = into[j * ld + i] = transition[i * S + j];
        for (int64_t j = 0; j < S; ++j) measure(j);
    }

    void measure(int64_t j) const {
        const Real* step = into + j * ld;
        Real most = -__builtin_inf();
        for (int64_t i = 0; i < S; ++i) most = step[i] > most ? step[i] : most;
        if (most == -__builtin_inf()) return;
        V sum = {};
        float share[W];
        for (int64_t i = 0; i < S; i += W) {
            for (int k = 0; k < W; ++k) share[k] = i + k < S ? float(step[i + k] - most) : -__builtin_inff();
            sum += exponential(load(share));
        }
        potential[j] = most + Real(__builtin_logf(lane_sum<float>(sum)));
        const bool fine = potential[j] > -LARGEST_POTENTIAL && potential[j] < LARGEST_POTENTIAL;
        for (int64_t i = 0; i < S; ++i) {
            int16_t& most_units = reach[j / N * padded + i];
            const Real units = fine ? (step[i] - potential[j]) * UNITS + Real(0.0625) : Real(FARTHEST);
            const int16_t rounded = bounded(units, -FARTHEST, FARTHEST - 1);  // towards zero, which is up
            most_units = rounded > most_units ? rounded : most_units;
        }
    }
};

// The best ways into a panel's states from those of `count` that may reach its bound; returns how many these are. Not
// inlined, so that what the loop needs stays in registers.
template <class Real, class Vector = VectorOf<Real>>
__attribute__((noinline)) int64_t best_ways(const Real* score, const int16_t* units, const int16_t* reach,
                                            const Real* from, int64_t count, int16_t bound, Vector* best) {
    constexpr int W = width<Real>, N = PATH_PANEL<Real>;
    int64_t tried = 0;
    Vector most[PATH_VECTORS];
    for (int n = 0; n < PATH_VECTORS; ++n) most[n] = splat(Real(-__builtin_inf()));
    for (; count > 0; count -= WORD, units += WORD, reach += WORD, score += WORD, from += WORD * N) {
        uint64_t there = at_least(units, reach, bound);
        if (count < WORD) there &= (uint64_t(1) << count) - 1;
        tried += __builtin_popcountll(there);
        for (; there; there &= there - 1) {
            __asm__("" : "+r"(there));  // a mask register would be a detour
            const int64_t i = __builtin_ctzll(there);
            const Vector x = splat(score[i]);
#pragma GCC unroll 16
            for (int n = 0; n < PATH_VECTORS; ++n) most[n] = larger(x + load(from + i * N + n * W), most[n]);
        }
    }
    for (int n = 0; n < PATH_VECTORS; ++n) best[n] = most[n];
    return tried;
}

// The best ways into a panel's states from all of `count`.
template <class Real, class Vector = VectorOf<Real>>
__attribute__((noinline)) void all_ways(const Real* score, const Real* from, int64_t count, Vector* best) {
    constexpr int W = width<Real>, N = PATH_PANEL<Real>;
    Vector most[PATH_VECTORS];
    for (int n = 0; n < PATH_VECTORS; ++n) most[n] = splat(Real(-__builtin_inf()));
    for (int64_t i = 0; i < count; ++i) {
        const Vector x = splat(score[i]);
#pragma GCC unroll 16
        for (int n = 0; n < PATH_VECTORS; ++n) most[n] = larger(x + load(from + i * N + n * W), most[n]);
    }
    for (int n = 0; n < PATH_VECTORS; ++n) best[n] = most[n];
}

// One row at a time.
template <class Real>
struct Climber {
    using Vector = VectorOf<Real>;
    static constexpr int W = width<Real>, N = PATH_PANEL<Real>;
    const SequenceCall<Real>& call;
    const Steps<Real>& steps;
    int64_t row, S = call.S, ld = steps.ld, T = call.length[row];
    Real* scores = own_numbers<Real>(SUMS, T * ld);
    Real* moved = own_numbers<Real>(LOGITS, steps.panels * N);
    float* guess = own_scratch(DIFFERENCE, steps.panels);  // of each panel's bound, relative to what `weigh` returns
    int16_t* units = reinterpret_cast<int16_t*>(own_scratch(PANELS, steps.padded / 2));  // the last scores

    static Vector none() { return splat(Real(-__builtin_inf())); }
    Real* score(int64_t t) const { return scores + t * ld; }
    bool counted(int64_t t) const { return t >= call.from[row] && t < call.to[row]; }
    void note(int64_t which, const Real* vector) const {
        if (call.edge) copy(call.edge + (which * call.B + row) * S, vector, S);
    }
    static Vector part(const Real* p, int64_t n) {  // what is past the end can be no path
        if (n >= W) return load(p);
        Vector x = none();
        std::memcpy(&x, p, n * sizeof(Real));
        return x;
    }

    // Returns roughly the logarithm of how many states are as good as the best: bounds rise and fall with it.
    float weigh(int64_t t) const {
        const Real* predicted = t ? moved : call.first + call.which[row] * S;
        const Real* weight = call.likelihood + call.symbol[call.begin[row] + t] * S;
        Real* to = score(t);
        Vector top = none(), good = {};
        for (int64_t i = 0; i < S; i += W) {
            const Vector x = part(predicted + i, S - i) + part(weight + i, S - i);
            top = larger(x, top);
            store(to + i, x);
        }
        const Real peak = lane_largest(top), shift = peak == -__builtin_inf() ? Real(0) : peak;
        if (S <= FEW_STATES)
            for (int64_t i = 0; i < S; i += W) store(to + i, load(to + i) - shift);
        for (int64_t i = S <= FEW_STATES ? S : 0; i < S; i += W) {
            const Vector x = load(to + i) - shift, scaled = larger(x * UNITS, splat(Real(-FARTHEST)));
            const Vector near = larger(scaled * Real(0.25 / UNITS) + Real(1), splat(Real(0)));
            store(to + i, x);
            store_int16(units + i, scaled);  // towards zero, which is up
            good += near * near * (near * near);  // (1 + x / 4)^4, about e^x
        }
        if (counted(t)) call.log_prob[row] += double(peak);
        if (t + 1 == call.from[row]) note(0, to);
        if (t + 1 == call.to[row]) note(1, to);
        return rough_log(float(lane_total(good)));
    }
    static float rough_log(float x) {  // from its bits: the exponent, and the fraction as if it were linear
        int32_t bits;
        std::memcpy(&bits, &x, sizeof bits);
        return float(bits - (127 << 23)) * (0.69314718f / (1 << 23));
    }

    int64_t climb(const Real* score, int64_t panel, int16_t bound, Vector* best) const {
        return best_ways(score, units, steps.reach + panel * steps.padded, steps.from + panel * S * N, S, bound, best);
    }
    bool proves(const Vector* best, const Real* potential, int16_t bound) const {
        bool all = true;
        for (int n = 0; n < PATH_VECTORS; ++n)
            all &= all_at_least(best[n], load(potential + n * W) + Real(bound) / UNITS);
        return all;
    }
    // The largest bound that the best ways prove, rounded down.
    int16_t proved(const Vector* best, const Real* potential) const {
        Vector low = splat(Real(0));
        for (int n = 0; n < PATH_VECTORS; ++n) low = smaller(best[n] - load(potential + n * W), low);
        return bounded(lane_smallest(low) * UNITS - Real(1.0625), LOWEST, -1);
    }

    void move(const Real* score, float good) const {
        for (int64_t panel = 0; panel < steps.panels; ++panel) {
            const Real* potential = steps.potential + panel * N;
            Vector best[PATH_VECTORS];
            if (S <= FEW_STATES) {
                all_ways(score, steps.from + panel * S * N, S, best);
                for (int n = 0; n < PATH_VECTORS; ++n) store(moved + panel * N + n * W, best[n]);
                continue;
            }
            int16_t bound = bounded((guess[panel] + good) * UNITS, LOWEST, -1);
            const int64_t tried = climb(score, panel, bound, best);
            const bool sure = bound == LOWEST || proves(best, potential, bound);
            if (sure && 4 * tried <= S) {
                guess[panel] += RISE;
            } else {
                bound = proved(best, potential);
                if (!sure) climb(score, panel, bound, best);
                guess[panel] = float(bound) / UNITS - good - MARGIN;
            }
            for (int n = 0; n < PATH_VECTORS; ++n) store(moved + panel * N + n * W, best[n]);
        }
    }

    void forward() const {
        float good = 0;
        call.log_prob[row] = 0.0;
        for (int64_t i = 0; i < steps.padded; ++i) units[i] = -FARTHEST;
        for (int64_t panel = 0; panel < steps.panels; ++panel) guess[panel] = -MARGIN;
        for (int64_t t = 0; t < T; ++t) {
            if (t) move(score(t - 1), good);
            good = weigh(t);
        }
    }

    // The first of the largest of score + step; without a step, of scores.
    int64_t best(const Real* score, const Real* step) const {
        Vector top = none(), here = {}, where = {};  // in each lane; a float32 can count 2^24 states
        for (int k = 0; k < W; ++k) here[k] = Real(k);
        for (int64_t i = 0; i < S; i += W, here += Real(W)) {
            const Vector x = step ? load(score + i) + load(step + i) : load(score + i);
            where = x > top ? here : where;
            top = larger(x, top);
        }
        const Vector last = splat(Real(S - 1));  // of scores that are no numbers none is the largest
        return int64_t(lane_smallest(top == lane_largest(top) ? smaller(where, last) : last));
    }

    void backward() const {
        const bool none = call.log_prob[row] == -__builtin_inf();
        int64_t state = 0, *states = call.state + call.begin[row];
        for (int64_t t = T - 1; t >= 0; --t) {
            for (int64_t i = 0; i < S && t >= 8; i += 64 / sizeof(Real)) __builtin_prefetch(score(t - 8) + i);
            if (!none) state = best(score(t), t == T - 1 ? nullptr : steps.into + state * ld);
            if (counted(t)) states[t] = none ? -1 : state;
            if (t == call.to[row] && !none) call.lost[row] = state;  // to be met by the row that goes on there
        }
    }
};

template <class Real>
void best_paths_as(const SequenceCall<Real>& call) {
    const Steps<Real> steps{call.S};
    steps.fill(call.transition);
    parallel(call.B, call.threads, [&](int64_t row) {
        const Climber<Real> climber{call, steps, row};
        climber.forward();
        climber.backward();
    });
}

void best_paths(const SequenceCall<float>& call) { best_paths_as(call); }
void best_paths_float64(const SequenceCall<double>& call) { best_paths_as(call); }

}  // namespace

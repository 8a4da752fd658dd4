// Expected counts of a dense HMM over many sequences of symbols: what one step of Baum–Welch needs, and no more.
//
// A row is a window of the array of all symbols; rows come in groups of similar length, longest first, which are walked
// side by side, so that a step is one product with the transition matrix. With predicted_t the belief before token t,
// u_t = predicted_t ⊙ likelihood_t and c_t its sum, beliefs are u_t / c_t. They are never made: the walk keeps u_t, and
// the way back w_t = β_t / c_t, so that posteriors are u_t ⊙ w_t, and with the message m_t = likelihood_t ⊙ w_t / c_t−1
//   w_t−1 = transition · m_t,   expected transitions = transition ⊙ Σ u_t−1 ⊗ m_t.
// The last sum is one product for many tokens. Nothing but u outlives a few steps of the way back.
#pragma once
#include "dense.h"

namespace {

constexpr int64_t COUNTED_TOGETHER = 192;  // tokens in one product of counts
constexpr double LOGARITHM_BELOW = 1e-15;  // scales are multiplied until they are so small, and then their log is taken

// What a part of the groups adds up.
template <class Real>
struct Sums {
    Real *start, *emission, *transition;
    int64_t ld;
};

// The rows of one group, at most `count`, of at most T symbols.
template <class Real>
struct Group {
    using Kind = Plain<Real>;
    using Vector = VectorOf<Real>;
    static constexpr int W = width<Real>;
    const SequenceCall<Real>& call;
    int64_t first, count, S = call.S, ld = up(S, PANEL<Kind>), T = count ? call.length[first] : 0;
    bool back = call.emission;  // whether there is a way back
    int64_t kept = back ? T : 2, together = count < COUNTED_TOGETHER ? COUNTED_TOGETHER / (count ? count : 1) : 1;
    Real* moved = own_numbers<Real>(LOGITS, count * ld);
    Real* reached = own_numbers<Real>(SUMS, kept * count * ld);  // u
    Real* message = own_zeros<Real>(PANELS, together * count * ld);
    Real* inverse = own_numbers<Real>(DIFFERENCE, (T + 1) * count);  // 1 / c, and the product of the last few c

    Real* u(int64_t t, int64_t b) const { return reached + (t % kept * count + b) * ld; }
    Real* m(int64_t t, int64_t b) const { return message + ((t - 1) % together * count + b) * ld; }
    Real& by(int64_t t, int64_t b) const { return inverse[t * count + b]; }
    int64_t length(int64_t b) const { return call.length[first + b]; }
    int64_t symbol(int64_t t, int64_t b) const { return call.symbol[call.begin[first + b] + t]; }
    const Real* likelihood(int64_t t, int64_t b) const { return call.likelihood + symbol(t, b) * S; }
    bool counted(int64_t t, int64_t b) const { return t >= call.from[first + b] && t < call.to[first + b]; }
    void note(int64_t which, int64_t b, const Real* vector) const {  // where rows overlap, they are compared
        if (call.edge) copy(call.edge + (which * call.B + first + b) * S, vector, S);
    }

    void weigh(int64_t t, int64_t b) const {
        const Real *predicted = t ? moved + b * ld : call.first + call.which[first + b] * S, *weight = likelihood(t, b);
        const Real scaled = t ? by(t - 1, b) : Real(1);
        Real* to = u(t, b);
        Vector sum = {}, other = {};
        int64_t i = 0;
        for (; i + 2 * W <= S; i += 2 * W) {
            const Vector x = load(predicted + i) * (load(weight + i) * scaled);
            const Vector y = load(predicted + i + W) * (load(weight + i + W) * scaled);
            sum += x, other += y;
            store(to + i, x), store(to + i + W, y);
        }
        for (; i < S; i += W) {
            const Vector x = load_part(predicted + i, S - i) * (load_part(weight + i, S - i) * scaled);
            sum += x;
            store(to + i, x);
        }
        take(t, b, lane_sum<Real>(sum + other));
    }

    void take(int64_t t, int64_t b, Real scale) const {
        const bool low = scale < Limits<Real>::underflow;
        call.lost[first + b] |= low;
        by(t, b) = low ? Real(0) : Real(1) / scale;
        if (counted(t, b)) {
            Real& product = by(T, b);
            product *= scale;
            call.log_prob[first + b] += double(call.log_peak[symbol(t, b)]);
            if (product < Real(LOGARITHM_BELOW)) close(b);
        }
        if (t + 1 == call.from[first + b]) note(0, b, u(t, b));
        if (t + 1 == call.to[first + b]) note(1, b, u(t, b));
    }

    void close(int64_t b) const {  // what is impossible is −inf from here on
        call.log_prob[first + b] += __builtin_log(double(by(T, b)));
        by(T, b) = Real(1);
    }

    void forward(PanelsOf<Real> transition) const {
        for (int64_t b = 0; b < count; ++b) call.log_prob[first + b] = 0.0, call.lost[first + b] = 0, by(T, b) = Real(1);
        int64_t rows = count;
        for (int64_t t = 0; t < T; ++t) {
            while (length(rows - 1) <= t) --rows;
            if (t) multiply<Kind>(u(t - 1, 0), ld, rows, transition, S, S, moved, ld, false);
            for (int64_t b = 0; b < rows; ++b) weigh(t, b);
            if (back) zeros(u(t, rows), (count - rows) * ld);
        }
        for (int64_t b = 0; b < count; ++b) close(b);
    }

    // w is where the product put it, or the same everywhere at a row's last symbol.
    void weigh_back(int64_t t, int64_t b, bool last, const Sums<Real>& sums) const {
        const Real *weight = likelihood(t, b), *reached_here = u(t, b);
        const Real before = t ? by(t - 1, b) : Real(0), most = Limits<Real>::largest_message, end = by(t, b);
        Real *w = moved + b * ld, *to = m(t ? t : 1, b);
        const bool here = counted(t, b), start = t == 0 && call.which[first + b] == 0;
        Real* emission = sums.emission + symbol(t, b) * S;
        for (int64_t i = 0; i < S; i += W) {
            const Vector back = last ? splat(end) : load(w + i);
            const Vector posterior = load(reached_here + i) * back;
            if (here) store_part(emission + i, load_part(emission + i, S - i) + posterior, S - i);
            if (start) store_part(sums.start + i, load_part(sums.start + i, S - i) + posterior, S - i);
            if (last) store(w + i, back);
            if (t) store(to + i, smaller(load_part(weight + i, S - i) * back * before, splat(most)));
        }
        if (t == call.to[first + b]) note(2, b, w);
        if (t == call.from[first + b]) note(3, b, w);
    }

    void backward(PanelsOf<Real> transposed, const Sums<Real>& sums) const {
        int64_t rows = 0, end = T;  // of the messages that are not counted yet
        for (int64_t t = T - 1; t >= 0; --t) {
            const int64_t going_on = rows;
            while (rows < count && length(rows) > t) ++rows;
            for (int64_t b = 0; b < rows; ++b)
                if (!call.lost[first + b]) weigh_back(t, b, b >= going_on, sums);
            if (t == 0) break;
            for (int64_t b = 0; b < rows; ++b)
                if (call.lost[first + b]) zeros(m(t, b), ld);
            multiply<Kind>(m(t, 0), ld, rows, transposed, S, S, moved, ld, false);
            for (int64_t b = 0; b < count; ++b)
                if (b >= rows || !counted(t - 1, b)) zeros(m(t, b), ld);
            if ((t - 1) % together) continue;
            const PanelsOf<Real> after = {m(t, 0), ld, PANEL<Kind>};
            multiply<Kind, true>(u(t - 1, 0), ld, S, after, S, (end - t) * count, sums.transition, sums.ld, true);
            end = t;
        }
    }
};

// Groups are dealt out among as many parts as there are threads, each with sums of its own.
template <class Real>
void expect_as(const SequenceCall<Real>& call) {
    using Kind = Plain<Real>;
    const int64_t S = call.S, ld = up(S, PANEL<Kind>), size = S * ld, emissions = call.V * S;
    const int64_t threads = call.threads < 1 || emissions > 1 << 26 ? 1 : call.threads;
    const int64_t parts = least(threads, call.G < 1 ? 1 : call.G), matrix = packed_size<Kind>(S, S);
    Real* packed = shared_numbers<Real>(STRAIGHT, 2 * matrix);
    const PanelsOf<Real> transition = pack_straight<Kind>(call.transition, S, S, packed);
    PanelsOf<Real> transposed = {};
    if (call.emission) transposed = pack_transposed<Kind>(call.transition, S, S, packed + matrix);
    Real* counts = call.emission ? shared_numbers<Real>(PARTIAL, parts * (size + emissions + S)) : nullptr;
    auto sums_of = [&](int64_t part) {
        Real* own = counts + part * (size + emissions + S);
        return part ? Sums<Real>{own + size + emissions, own + size, own, ld}
                    : Sums<Real>{call.start, call.emission, own, ld};
    };
    parallel(parts, threads, [&](int64_t part) {
        const Sums<Real> sums = sums_of(part);
        if (counts) zeros(sums.start, S), zeros(sums.emission, emissions), zeros(sums.transition, size);
        for (int64_t g = part; g < call.G; g += parts) {
            const Group<Real> group{call, call.group[g], call.group[g + 1] - call.group[g]};
            group.forward(transition);
            if (counts) group.backward(transposed, sums);
        }
    });
    if (!counts) return;
    for (int64_t part = 1; part < parts; ++part) {
        const Sums<Real> sums = sums_of(part);
        for (int64_t i = 0; i < S; ++i) call.start[i] += sums.start[i];
        for (int64_t i = 0; i < emissions; ++i) call.emission[i] += sums.emission[i];
        for (int64_t i = 0; i < size; ++i) counts[i] += sums.transition[i];
    }
    for (int64_t i = 0; i < S; ++i) copy(call.crossed + i * S, counts + i * ld, S);
}

void expect(const SequenceCall<float>& call) { expect_as(call); }
void expect_float64(const SequenceCall<double>& call) { expect_as(call); }

}  // namespace

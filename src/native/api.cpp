// The plain C interface. Calls take turns: they share their threads and their memory.
#include "api.h"

#include <mutex>
#include <new>

#include "cpu.h"

// Weak: a level that the compiler did not know has no address.
extern const Level level_portable;
extern const Level level_avx2 __attribute__((weak));
extern const Level level_avx512 __attribute__((weak));
extern const Level level_avx512_bf16 __attribute__((weak));
extern const Level level_amx __attribute__((weak));
extern const Level level_amx_emulated __attribute__((weak));

namespace {

const Level* active = nullptr;
std::mutex turn;

const Level* find(int64_t number) {
    const Features& has = features();
    switch (number) {
        case 0: return &level_portable;
        case 1: return has.avx2 ? &level_avx2 : nullptr;
        case 2: return has.avx512_bf16 && &level_avx512_bf16 ? &level_avx512_bf16 : find(5);
        case 3: return has.amx ? &level_amx : nullptr;
        case 4: return has.avx512_bf16 ? &level_amx_emulated : nullptr;
        case 5: return has.avx512 ? &level_avx512 : nullptr;
        default: return nullptr;
    }
}

bool within(const int64_t* index, int64_t count, int64_t end, int64_t first = 0) {
    bool good = true;
    for (int64_t i = 0; i < count; ++i) good &= index[i] >= first && index[i] < end;
    return good;
}
bool shared_out(const int64_t* start, int64_t parts, int64_t count) {  // among parts, all of them in order
    bool good = start[0] == 0 && start[parts] == count;
    for (int64_t i = 0; i < parts; ++i) good &= start[i] <= start[i + 1];
    return good;
}
bool sound(const PairCall& call) {
    bool good = within(call.from, call.P, call.F) && within(call.to, call.P, call.G);
    good = good && (!call.from_start || shared_out(call.from_start, call.F, call.P));
    good = good && (!call.to_start || shared_out(call.to_start, call.G, call.P));
    return good && (!call.by_to || within(call.by_to, call.P, call.P));
}
bool sound(const PushCall& call) {
    bool good = !call.pair || within(call.pair, call.rows, call.P);
    good = good && (!call.start || shared_out(call.start, call.P, call.rows));
    return good && (!call.order || within(call.order, call.rows, call.rows));
}
bool sound(const TotalCall&) { return true; }
bool sound(const ColumnCall& call) {
    bool good = within(call.which, call.count, call.V) && shared_out(call.start, call.G, call.count) &&
                shared_out(call.asked_start, call.G, call.N);
    for (int64_t g = 0; good && g < call.G; ++g)
        for (int64_t n = call.asked_start[g]; n < call.asked_start[g + 1]; ++n)
            good &= call.asked[n] >= call.start[g] && call.asked[n] < call.start[g + 1] &&
                    (n == call.asked_start[g] || call.asked[n - 1] < call.asked[n]);
    return good;
}
template <class Real>
bool sound(const WalkCall<Real>& call) {
    bool good = within(call.running, call.T, call.B + 1);
    for (int64_t t = 1; t < call.T; ++t) good &= call.running[t] <= call.running[t - 1];  // longest first
    for (int64_t t = 0; good && t < call.T; ++t) {
        good = within(call.index + t * call.B, call.running[t], call.columns);
        if (call.log_columns) good = good && within(call.enter + t * call.B, call.running[t], call.entered, -1);
    }
    return good;
}
template <class Real>
bool sound(const CountCall<Real>&) {
    return true;
}
template <class Real>
bool sound(const ProductCall<Real>&) {
    return true;
}
template <class Real>
bool sound(const SequenceCall<Real>& call) {
    bool good = within(call.which, call.B, call.F) && shared_out(call.group, call.G, call.B);
    for (int64_t b = 0; good && b < call.B; ++b)
        good = call.length[b] >= 1 && call.begin[b] >= 0 && call.length[b] <= call.N - call.begin[b] &&
               within(call.symbol + call.begin[b], call.length[b], call.V);
    for (int64_t g = 0; good && g < call.G; ++g)
        for (int64_t b = call.group[g] + 1; b < call.group[g + 1]; ++b) good &= call.length[b] <= call.length[b - 1];
    return good;
}
bool sound(const AdamCall&) { return true; }

enum Answer { DONE, NO_LEVEL, NO_MEMORY, BAD_INDEX };

template <class Call>
int run(void (*Level::*kernel)(const Call&), const Call* call) {
    std::lock_guard<std::mutex> lock(turn);
    if (!active) return NO_LEVEL;
    if (!sound(*call)) return BAD_INDEX;
    try {
        (active->*kernel)(*call);
    } catch (const std::bad_alloc&) {
        return NO_MEMORY;
    }
    return DONE;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// Bits: avx2, avx512, avx512_bf16, amx.
EXPORT int64_t trellis_features() {
    const Features& has = features();
    return has.avx2 | has.avx512 << 1 | has.avx512_bf16 << 2 | has.amx << 3;
}
// 0 portable, 1 avx2, 2 avx512, 3 amx, 4 amx with emulated tiles, 5 avx512 without its bfloat16. False: not here.
EXPORT int64_t trellis_use(int64_t level) {
    std::lock_guard<std::mutex> lock(turn);
    const Level* found = find(level);
    if (found) active = found;
    return found != nullptr;
}

EXPORT void trellis_exponentials(const float* x, float* out, int64_t n) { active->exponentials(x, out, n); }
EXPORT double trellis_products(int64_t bf16, int64_t times) { return active->products(bf16, times); }
EXPORT int trellis_pair_forward(const PairCall* call) { return run(&Level::pair_forward, call); }
EXPORT int trellis_pair_backward(const PairCall* call) { return run(&Level::pair_backward, call); }
EXPORT int trellis_push(const PushCall* call) { return run(&Level::push, call); }
EXPORT int trellis_pull(const PushCall* call) { return run(&Level::pull, call); }
EXPORT int trellis_outer(const PushCall* call) { return run(&Level::outer, call); }
EXPORT int trellis_totals_forward(const TotalCall* call) { return run(&Level::totals_forward, call); }
EXPORT int trellis_totals_backward(const TotalCall* call) { return run(&Level::totals_backward, call); }
EXPORT int trellis_columns_forward(const ColumnCall* call) { return run(&Level::columns_forward, call); }
EXPORT int trellis_columns_backward(const ColumnCall* call) { return run(&Level::columns_backward, call); }
EXPORT int trellis_walk(const WalkCall<float>* call) { return run(&Level::walk, call); }
EXPORT int trellis_walk_float64(const WalkCall<double>* call) { return run(&Level::walk_float64, call); }
EXPORT int trellis_walk_back(const WalkCall<float>* call) { return run(&Level::walk_back, call); }
EXPORT int trellis_walk_back_float64(const WalkCall<double>* call) { return run(&Level::walk_back_float64, call); }
EXPORT int trellis_counts(const CountCall<float>* call) { return run(&Level::counts, call); }
EXPORT int trellis_counts_float64(const CountCall<double>* call) { return run(&Level::counts_float64, call); }
EXPORT int trellis_product(const ProductCall<float>* call) { return run(&Level::product, call); }
EXPORT int trellis_product_float64(const ProductCall<double>* call) { return run(&Level::product_float64, call); }
EXPORT int trellis_adamw_step(const AdamCall* call) { return run(&Level::adamw_step, call); }
EXPORT int trellis_expect(const SequenceCall<float>* call) { return run(&Level::expect, call); }
EXPORT int trellis_expect_float64(const SequenceCall<double>* call) { return run(&Level::expect_float64, call); }
EXPORT int trellis_best_paths(const SequenceCall<float>* call) { return run(&Level::best_paths, call); }
EXPORT int trellis_best_paths_float64(const SequenceCall<double>* call) { return run(&Level::best_paths_float64, call); }

// One level of the processor: compiled once for each, with its own instructions and its own name (setup.py).
#include "api.h"

#include "adamw.h"
#include "best_paths.h"
#include "columns.h"
#include "dense.h"
#include "pairs.h"
#include "pushes.h"
#include "sequences.h"
#include "totals.h"

namespace {

void exponentials(const float* x, float* out, int64_t n) {
    for (int64_t i = 0; i < n; i += W) store_part(out + i, exponential(load_part(x + i, n - i)), n - i);
}

// The bare rate: products of operands that stay in the first cache. Returns how many operations it did.
double products(int64_t bf16, int64_t times) {
    constexpr int64_t rows = M > 16 ? M : 16 / M * M, depth = 64;
    float* a = clear(own_scratch(PANELS, 32 * depth), 32 * depth);
    float* b = clear(own_scratch(DIFFERENCE, depth * N), depth * N);
    float* c = own_scratch(SUMS, 32 * N);
    for (int64_t i = 0; i < times; ++i) {
        if (bf16)
            multiply<BFloat16>(a, depth, 2 * ROWS, {b, N, 0}, N, 2 * depth, c, N, false);
        else
            multiply<Float32>(a, depth, rows, {b, N, 0}, N, depth, c, N, false);
        __asm__ volatile("" : : "r"(c) : "memory");
    }
    return 2.0 * times * N * depth * (bf16 ? 4.0 * ROWS : rows);
}

}  // namespace

extern const Level TRELLIS_LEVEL = {
    exponentials, products, pair_forward, pair_backward, push, pull, outer, totals_forward, totals_backward,
    columns_forward, columns_backward, walk, walk_back, counts, walk_float64, walk_back_float64, counts_float64,
    product, product_float64, expect, expect_float64, best_paths, best_paths_float64, adamw_step,
};

// What crosses the borders: the calls Python makes, and the table of functions that each processor level fills.
//
// Every struct is mirrored field by field in trellis/ops; all fields are eight bytes wide, so that there is no
// padding to get wrong. Matrices are dense and row-major, numbers float32, or `Real`, indices int64.
#pragma once
#include <cstdint>

// Blocked transitions (pairs.h). Pair p leads from list from[p] of `left` to list to[p] of `right`.
struct PairCall {
    const float* left;             // F×K×R
    const float* right;            // G×J×R
    const float* scale;            // P×K, what the probabilities of a from-state sum to
    const float* shift;            // F×K, subtracted from the logits before exp, if nothing is normalised
    const int64_t* from;           // P, ascending
    const int64_t* to;             // P
    const int64_t* from_start;     // F+1: the pairs of from-list f are from_start[f] up to from_start[f+1]
    const int64_t* to_start;       // G+1: the same in the order of `by_to`
    const int64_t* by_to;          // P: pairs ordered by to-list
    float* into;                   // P×J×K, [to, from]
    const float* grad_into;        // P×J×K
    float* row_sum;                // P×K, Σ_j into · grad_into
    float* grad_left;              // F×K×R
    float* grad_right;             // G×J×R
    int64_t F, G, P, K, J, R;
    int64_t normalise;             // softmax over the to-states
    int64_t bf16, threads;
};

// Beliefs across their pairs' matrices, and back (pushes.h). Rows b, each with its pair.
struct PushCall {
    const float* into;             // P×J×K
    const int64_t* pair;           // rows
    const int64_t* order;          // rows ordered by pair
    const int64_t* start;          // P+1: the rows of pair p are order[start[p]] up to order[start[p+1]]
    float* belief;                 // rows×K
    float* message;                // rows×J
    float* grad_into;              // P×J×K
    int64_t rows, P, K, J;
    int64_t threads;
};

// log Σ_v exp(h_n · w_v + bias_v) (totals.h).
struct TotalCall {
    const float* rows;             // N×R
    const float* columns;          // V×R
    const float* bias;             // V, or null
    float* log_total;              // N: backward, what forward found
    const float* grad;             // N
    float* grad_rows;              // N×R
    float* grad_columns;           // V×R
    float* grad_bias;              // V, or null
    int64_t N, V, R;
    int64_t bf16, threads;
};

// Emission columns of blocked models (columns.h): the words of G blocks, of which N are asked for.
struct ColumnCall {
    const float* states;           // G×K×R
    const float* words;            // V×R
    const float* bias;             // V
    const int64_t* which;          // count, distinct words, block after block
    const int64_t* start;          // G+1: the words of block g are which[start[g]] up to which[start[g+1]]
    const int64_t* asked;          // N, ascending: places in `which`
    const int64_t* asked_start;    // G+1: the same for those asked of each block
    float* columns;                // N×K
    float* log_total;              // G×K: backward, what forward found
    const float* grad;             // N×K
    float* grad_states;            // G×K×R
    float* grad_words;             // V×R: rows of words of no block are left as they are
    float* grad_bias;              // V
    int64_t G, V, K, R, count, N;
    int64_t threads;
};

// The recursion of a dense HMM (dense.h): rows longest first, T steps.
template <class Real>
struct WalkCall {
    const Real* first;             // B×S, the belief before the first token
    const Real* transition;        // S×S, [from, to]
    const Real* likelihood;        // columns×S, or null
    const Real* log_peak;          // columns: forward
    const Real* log_columns;       // columns×S, if that is: their logarithms,
    const Real* log_enter;         // entered×S: and what is added to them
    const int64_t* index;          // T×B, the column of each token
    const int64_t* enter;          // T×B, what is added to it; −1: nothing
    const int64_t* running;        // T, how many rows still run
    Real* belief;                  // T×B×S
    Real* scale;                   // T×B
    Real* log_prob;                // T×B
    Real* final;                   // B×S; of rows without tokens it is left as it is
    const Real* grad_log_prob;     // T×B
    const Real* grad_final;        // B×S
    Real* posterior;               // T×B×S
    Real* message;                 // T×B×S
    int64_t T, B, S, columns, entered;
    int64_t bf16, threads;
};

// Σ_n before[n] ⊗ after[n] (dense.h).
template <class Real>
struct CountCall {
    const Real* before;            // N×D
    const Real* after;             // N×C
    Real* out;                     // D×C
    int64_t N, D, C;
    int64_t bf16, threads;
};

// rows · matrix, given as it is or as its transpose (dense.h).
template <class Real>
struct ProductCall {
    const Real* rows;              // N×D
    const Real* matrix;            // D×C, or null
    const Real* transposed;        // C×D, if that is
    Real* out;                     // N×C
    int64_t N, D, C;
    int64_t bf16, threads;
};

// Sequences of symbols and a dense HMM: expected counts (sequences.h), or most probable paths (best_paths.h), for which
// first, transition and likelihood are logarithms. A row is a window of the symbols; rows come in groups, longest first.
template <class Real>
struct SequenceCall {
    const Real* first;             // F×S, distributions of the first state; row 0 is that of sequences
    const Real* transition;        // S×S, [from, to]
    const Real* likelihood;        // V×S
    const Real* log_peak;          // V, what the logarithms of the likelihoods lack
    const int64_t* symbol;         // N
    const int64_t* begin;          // B: rows are symbol[begin] up to symbol[begin + length]
    const int64_t* length;         // B
    const int64_t* which;          // B: their row of `first`
    const int64_t* from;           // B: of a row, what is from `from` up to `to` is counted; other rows have the rest
    const int64_t* to;             // B
    const int64_t* group;          // G+1: the rows of group g are group[g] up to group[g+1]
    double* log_prob;              // B
    int64_t* lost;                 // B: whether digits were lost to underflow: then nothing of the row is counted;
                                   // of paths, the state at `to`
    Real* start;                   // S, expected first states
    Real* crossed;                 // S×S: times the transition, the expected transitions
    Real* emission;                // V×S, expected emissions; null: the likelihood is all that is asked for
    Real* edge;                    // 4×B×S: beliefs at from−1 and to−1, messages at to and from; or null
    int64_t* state;                // N, the path
    int64_t S, V, N, B, G, F, E, J;  // E is 4 and J is G+1
    int64_t threads;
};

// One step of AdamW (adamw.h).
struct AdamCall {
    float* param;                  // all of them: numbers
    const float* grad;
    float* moment;
    float* square;
    int64_t numbers, threads;
    double keep, size, root;       // of this step
    double scale, beta1, beta2, epsilon;
};

struct Level {
    void (*exponentials)(const float* x, float* out, int64_t n);
    double (*products)(int64_t bf16, int64_t times);  // returns the operations it did
    void (*pair_forward)(const PairCall&);
    void (*pair_backward)(const PairCall&);
    void (*push)(const PushCall&);
    void (*pull)(const PushCall&);
    void (*outer)(const PushCall&);
    void (*totals_forward)(const TotalCall&);
    void (*totals_backward)(const TotalCall&);
    void (*columns_forward)(const ColumnCall&);
    void (*columns_backward)(const ColumnCall&);
    void (*walk)(const WalkCall<float>&);
    void (*walk_back)(const WalkCall<float>&);
    void (*counts)(const CountCall<float>&);
    void (*walk_float64)(const WalkCall<double>&);
    void (*walk_back_float64)(const WalkCall<double>&);
    void (*counts_float64)(const CountCall<double>&);
    void (*product)(const ProductCall<float>&);
    void (*product_float64)(const ProductCall<double>&);
    void (*expect)(const SequenceCall<float>&);
    void (*expect_float64)(const SequenceCall<double>&);
    void (*best_paths)(const SequenceCall<float>&);
    void (*best_paths_float64)(const SequenceCall<double>&);
    void (*adamw_step)(const AdamCall&);
};

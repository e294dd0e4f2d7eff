// A token for every row of logits of a step: adjust them, then let the kernels choose.
#pragma once

#include <cstdint>
#include <mutex>

#include "../ops.h"
#include "memory.h"
#include "thread_pool.h"

namespace legato {

// Logits and how to sample them. Lists of a row's entries stand one after the other: row r has those of
// [starts[r], starts[r + 1]), and names an id at most once in each list.
struct SamplingRows {
    int64_t num_rows, vocab;
    float* logits;              // [num_rows, vocab], overwritten
    const float* temperatures;  // [num_rows], 0: the largest logit
    const int32_t* top_ks;      // [num_rows], 0: every token
    const float* top_ps;        // [num_rows]
    const float* min_ps;        // [num_rows]
    const double* numbers;      // [num_rows], uniform in (0, 1)

    const int32_t* added_starts;  // [num_rows + 1]
    const int32_t* added_ids;
    const float* added_values;  // -infinity forbids the token: no penalty undoes it

    const double* penalties;     // [num_rows, 3]: repetition, frequency, presence
    const int32_t* seen_starts;  // [num_rows + 1]
    const int32_t* seen_ids;     // of the tokens in prompt or output
    const int32_t* seen_counts;  // how often each is in the output
};

class RowSampler {
 public:
    RowSampler(const Kernels& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

    // tokens [num_rows]: -1 for a row whose logits are not all finite.
    // Throws std::invalid_argument for an id outside the vocabulary.
    void sample(const SamplingRows& rows, int32_t* tokens);

 private:
    int32_t sample_row(const SamplingRows& rows, int64_t row, float* scratch) const;

    const Kernels& kernels_;
    ThreadPool& pool_;
    std::mutex mutex_;  // of the scratch
    Memory scratch_;    // float32 [num_threads, vocab]
};

}  // namespace legato

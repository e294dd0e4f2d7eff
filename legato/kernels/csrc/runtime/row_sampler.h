// A token for every row of logits of a step: adjust them, then let the kernels choose. Or logprobs of a given token.
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

    // What rows may become: bit i of word w is the token 32 * w + i, tokens past the last word are not allowed. A mask
    // leaves its row something.
    int64_t num_masks, num_words;
    const uint32_t* masks;     // [num_masks, num_words]
    const int32_t* mask_rows;  // [num_rows], the mask of each row, -1: every token; null: all rows every token

    const int32_t* num_logprobs;  // [num_rows], of most likely tokens, 0 to RowLogprobs::max_logprobs; -1: no logprobs
};

// Logits, and the token of each row that is scored.
struct ScoredRows {
    int64_t num_rows, vocab;
    const float* logits;          // [num_rows, vocab]
    const int32_t* tokens;        // [num_rows]
    const int32_t* num_logprobs;  // [num_rows], of most likely tokens, 0 to RowLogprobs::max_logprobs
};

// Of the logits as the model gave them.
struct RowLogprobs {
    int64_t max_logprobs;
    double* own;           // [num_rows], of the row's token
    int32_t* top_ids;      // [num_rows, max_logprobs], the most likely first, of equal ones the lowest id
    double* top_logprobs;  // like top_ids
};

class RowSampler {
 public:
    RowSampler(const Kernels& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

    // Gives tokens [num_rows], -1 for a row whose logits are not all finite, and the logprobs that are asked for.
    // Throws std::invalid_argument for an id outside the vocabulary, or a mask that is not there.
    void sample(const SamplingRows& rows, int32_t* tokens, const RowLogprobs& logprobs);

    // Gives each row's logprobs; `own` is NaN for a row whose logits are not all finite. Throws like sample().
    void score(const ScoredRows& rows, const RowLogprobs& logprobs);

 private:
    int32_t sample_row(const SamplingRows& rows, int64_t row, float* scratch) const;
    void write_logprobs(const float* logits, int64_t vocab, int32_t token, int64_t num_top, const RowLogprobs& logprobs,
                        int64_t row) const;

    const Kernels& kernels_;
    ThreadPool& pool_;
    std::mutex mutex_;  // of the scratch
    Memory scratch_;    // float32 [num_threads, 2, vocab]: the kernel's, and a copy of the logits for logprobs
};

}  // namespace legato

#include "row_sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace legato {

namespace {

// Of the logits as the model gave them: a kernel takes -infinity for a token that may not be drawn.
bool are_finite(const float* logits, int64_t vocab) {
    constexpr uint32_t kExponent = 0x7f800000;
    uint32_t is_other = 0;
    for (int64_t i = 0; i < vocab; ++i) {
        uint32_t bits;
        std::memcpy(&bits, logits + i, sizeof bits);
        is_other |= (bits & kExponent) == kExponent;
    }
    return !is_other;
}

void check_ids(const char* name, const int32_t* ids, int64_t count, int64_t vocab) {
    for (int64_t i = 0; i < count; ++i) {
        if (ids[i] >= 0 && ids[i] < vocab) continue;
        throw std::invalid_argument(std::string(name) + ": " + std::to_string(ids[i]) + " is not in the vocabulary of " +
                                    std::to_string(vocab));
    }
}

// -infinity for the tokens that the row's mask, if it has one, does not allow.
void forbid(const SamplingRows& rows, int64_t row, float* logits) {
    if (rows.mask_rows == nullptr || rows.mask_rows[row] < 0) return;
    const auto* mask = rows.masks + rows.mask_rows[row] * rows.num_words;
    constexpr auto kForbidden = -std::numeric_limits<float>::infinity();
    for (int64_t begin = 0; begin < rows.vocab; begin += 32) {
        const auto allowed = begin / 32 < rows.num_words ? mask[begin / 32] : 0;
        const auto end = std::min(begin + 32, rows.vocab);
        for (auto i = begin; i < end; ++i) logits[i] = (allowed >> (i - begin) & 1) != 0 ? logits[i] : kForbidden;
    }
}

void add_biases(const SamplingRows& rows, int64_t row, float* logits) {
    for (auto i = rows.added_starts[row]; i < rows.added_starts[row + 1]; ++i) {
        logits[rows.added_ids[i]] += rows.added_values[i];
    }
}

// Rounded where the reference rounds: repetition in float32, the sum of the other two in float64.
void penalize(const SamplingRows& rows, int64_t row, float* logits) {
    const auto* penalties = rows.penalties + row * 3;
    const auto repetition = static_cast<float>(penalties[0]);
    for (auto i = rows.seen_starts[row]; i < rows.seen_starts[row + 1]; ++i) {
        auto& logit = logits[rows.seen_ids[i]];
        logit = logit > 0 ? logit / repetition : logit * repetition;
        if (rows.seen_counts[i] > 0) {
            logit -= static_cast<float>(penalties[1] * rows.seen_counts[i] + penalties[2]);
        }
    }
}

}  // namespace

void RowSampler::sample(const SamplingRows& rows, int32_t* tokens, const RowLogprobs& logprobs) {
    check_ids("added_ids", rows.added_ids, rows.added_starts[rows.num_rows], rows.vocab);
    check_ids("seen_ids", rows.seen_ids, rows.seen_starts[rows.num_rows], rows.vocab);
    if (rows.mask_rows != nullptr && *std::max_element(rows.mask_rows, rows.mask_rows + rows.num_rows) >= rows.num_masks) {
        throw std::invalid_argument("mask_rows: names more masks than the " + std::to_string(rows.num_masks) + " there are");
    }
    std::lock_guard lock(mutex_);
    const auto thread_bytes = 2 * rows.vocab * static_cast<int64_t>(sizeof(float));
    if (scratch_.num_bytes() < thread_bytes * pool_.num_threads()) scratch_ = Memory(thread_bytes * pool_.num_threads());
    pool_.run(rows.num_rows, 1, [&](int64_t begin, int64_t end, int thread) {
        auto* scratch = scratch_.at<float>(thread * thread_bytes);
        auto* unchanged = scratch + rows.vocab;
        for (auto row = begin; row < end; ++row) {
            const auto num_top = rows.num_logprobs[row];
            if (num_top >= 0) std::copy_n(rows.logits + row * rows.vocab, rows.vocab, unchanged);
            tokens[row] = sample_row(rows, row, scratch);
            if (num_top >= 0 && tokens[row] >= 0) {
                write_logprobs(unchanged, rows.vocab, tokens[row], num_top, logprobs, row);
            }
        }
    });
}

void RowSampler::score(const ScoredRows& rows, const RowLogprobs& logprobs) {
    check_ids("token_ids", rows.tokens, rows.num_rows, rows.vocab);
    pool_.run(rows.num_rows, 1, [&](int64_t begin, int64_t end, int) {
        for (auto row = begin; row < end; ++row) {
            const auto* logits = rows.logits + row * rows.vocab;
            if (are_finite(logits, rows.vocab)) {
                write_logprobs(logits, rows.vocab, rows.tokens[row], rows.num_logprobs[row], logprobs, row);
            } else {
                logprobs.own[row] = std::numeric_limits<double>::quiet_NaN();
            }
        }
    });
}

int32_t RowSampler::sample_row(const SamplingRows& rows, int64_t row, float* scratch) const {
    auto* logits = rows.logits + row * rows.vocab;
    if (!are_finite(logits, rows.vocab)) return -1;
    forbid(rows, row, logits);
    add_biases(rows, row, logits);
    penalize(rows, row, logits);
    if (rows.temperatures[row] == 0) return kernels_.argmax(logits, rows.vocab);
    const SampleArgs args{rows.temperatures[row], rows.top_ps[row], rows.min_ps[row], rows.top_ks[row], rows.numbers[row]};
    return kernels_.sample(logits, rows.vocab, args, scratch);
}

void RowSampler::write_logprobs(const float* logits, int64_t vocab, int32_t token, int64_t num_top,
                                const RowLogprobs& logprobs, int64_t row) const {
    const auto largest = logits[kernels_.argmax(logits, vocab)];
    const auto log_sum = largest + std::log(kernels_.exp_sum(logits, vocab, largest));
    logprobs.own[row] = logits[token] - log_sum;
    if (num_top == 0) return;
    std::vector<float> top(static_cast<size_t>(num_top));
    kernels_.top_logits(logits, vocab, num_top, logprobs.top_ids + row * logprobs.max_logprobs, top.data());
    auto* top_logprobs = logprobs.top_logprobs + row * logprobs.max_logprobs;
    std::transform(top.begin(), top.end(), top_logprobs, [&](float logit) { return logit - log_sum; });
}

}  // namespace legato

#include "row_sampler.h"

#include <cstring>
#include <stdexcept>
#include <string>

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

void check_ids(const char* name, const int32_t* starts, const int32_t* ids, const SamplingRows& rows) {
    for (int64_t i = starts[0]; i < starts[rows.num_rows]; ++i) {
        if (ids[i] >= 0 && ids[i] < rows.vocab) continue;
        throw std::invalid_argument(std::string(name) + ": " + std::to_string(ids[i]) + " is not in the vocabulary of " +
                                    std::to_string(rows.vocab));
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

void RowSampler::sample(const SamplingRows& rows, int32_t* tokens) {
    check_ids("added_ids", rows.added_starts, rows.added_ids, rows);
    check_ids("seen_ids", rows.seen_starts, rows.seen_ids, rows);
    std::lock_guard lock(mutex_);
    const auto row_bytes = rows.vocab * static_cast<int64_t>(sizeof(float));
    if (scratch_.num_bytes() < row_bytes * pool_.num_threads()) scratch_ = Memory(row_bytes * pool_.num_threads());
    pool_.run(rows.num_rows, 1, [&](int64_t begin, int64_t end, int thread) {
        for (auto row = begin; row < end; ++row) {
            tokens[row] = sample_row(rows, row, scratch_.at<float>(thread * row_bytes));
        }
    });
}

int32_t RowSampler::sample_row(const SamplingRows& rows, int64_t row, float* scratch) const {
    auto* logits = rows.logits + row * rows.vocab;
    if (!are_finite(logits, rows.vocab)) return -1;
    add_biases(rows, row, logits);
    penalize(rows, row, logits);
    if (rows.temperatures[row] == 0) return kernels_.argmax(logits, rows.vocab);
    const SampleArgs args{rows.temperatures[row], rows.top_ps[row], rows.min_ps[row], rows.top_ks[row], rows.numbers[row]};
    return kernels_.sample(logits, rows.vocab, args, scratch);
}

}  // namespace legato

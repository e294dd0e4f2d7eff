#include "tape.h"

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "../require.h"
#include "buffer_plan.h"

namespace legato {

namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kClaimBytes = 32 * 1024;  // a claim costs well under a microsecond; this much memory takes a few

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

Tape::Tape(const Kernels& kernels, ThreadPool& pool, const KVStore& kv, int64_t max_tokens, int64_t max_samples)
    : kernels_(kernels),
      pool_(pool),
      kv_(kv),
      attention_tasks_(kv.shape().num_kv_heads, pool.num_threads()),
      routing_(max_tokens),
      request_of_row_(max_tokens * static_cast<int64_t>(sizeof(int32_t))) {
    require(max_tokens >= 1 && max_samples >= 1, "max_tokens and max_samples must be at least 1");
    const auto unlimited = std::numeric_limits<int64_t>::max();
    limits_ = {max_tokens, max_samples, unlimited, unlimited, kv.shape().num_pages, kv.shape().page_size};
}

int64_t Tape::buffer_bytes() const {
    int64_t bytes = 0;
    for (const auto& buffer : buffers_) bytes += buffer.num_bytes();
    return bytes;
}

// ---- recording --------------------------------------------------------------------------------------------------

int Tape::add_value(bool is_samples, int64_t width, int64_t per_token) {
    Value value{};
    value.is_samples = is_samples;
    value.per_token = per_token;
    value.width = width;
    values_.push_back(value);
    return static_cast<int>(values_.size()) - 1;
}

Tape::Value& Tape::value(int index, const char* operation) {
    require(index >= 0 && index < static_cast<int>(values_.size()) && values_[static_cast<size_t>(index)].per_token == 1,
            std::string(operation) + ": there is no value " + std::to_string(index));
    return values_[static_cast<size_t>(index)];
}

void Tape::record(Operation operation) {
    require(logits_ < 0, "the tape is finished: nothing can be added");
    const auto joins = [&](const Job& job) {
        const bool is_row_wise = operation.parts == Parts::kTokens || operation.parts == Parts::kSamples;
        return is_row_wise && job.back().parts == operation.parts && job.back().count == operation.count;
    };
    if (jobs_.empty() || !joins(jobs_.back())) jobs_.emplace_back();
    jobs_.back().push_back(std::move(operation));
}

void Tape::record_rows(std::vector<int> uses, int out, Compute compute) {
    int64_t row_bytes = 0;
    for (const int index : uses) row_bytes += values_[index].width * static_cast<int64_t>(sizeof(float));
    const auto parts = values_[out].is_samples ? Parts::kSamples : Parts::kTokens;
    record({parts, values_[out].per_token, row_bytes, 0, std::move(uses), std::move(compute)});
}

int Tape::attention(int qkv, const Rotation& rotation, int64_t layer, int64_t num_heads, const Scores& scores) {
    const auto& shape = kv_.shape();
    require(layer >= 0 && layer < shape.num_layers, "attention: the K/V store has no layer " + std::to_string(layer));
    require(num_heads >= 1 && num_heads % shape.num_kv_heads == 0,
            "attention: heads must be a multiple of the " + std::to_string(shape.num_kv_heads) + " K/V heads");
    require_equal(value(qkv, "attention").width, (num_heads + 2 * shape.num_kv_heads) * shape.head_dim,
                  "attention: width of q, k and v");
    require(!values_[qkv].is_samples, "attention: its input must have a row for each token");
    require(rotation.half_dim >= 1 && rotation.half_dim * 2 <= shape.head_dim,
            "attention: twice the width of cos and sin must be at most " + std::to_string(shape.head_dim));
    require(scores.window >= 0 && scores.cap >= 0, "attention: window and cap must not be negative");

    const auto kv = kv_.layer(layer);
    const int q = record_rope(qkv, rotation, kv, num_heads);
    const int out = add_value(false, values_[q].width);
    const auto args = [this, q, out, num_heads, scores, kv] {
        return AttentionArgs{values_[q].values, values_[out].values, num_heads, scores.scale, scores.window, scores.cap, kv};
    };
    const auto max_kv_len = std::min(rotation.num_positions, shape.num_pages * shape.page_size);
    const auto part_floats = kernels_.attention_part_floats(args());
    scratch_floats_ = std::max(scratch_floats_, kernels_.attention_scratch_floats(args()));
    attention_tasks_.reserve(num_heads / shape.num_kv_heads, part_floats, max_kv_len);
    record({Parts::kAttention, 1, 0, 2 * (shape.head_bytes() + shape.scale_bytes()), {q, out},
            [this, args](const Replay& replay, int64_t begin, int64_t end, int thread) {
                auto* scratch = scratch_.at<float>() + thread * scratch_floats_;
                for (auto task = begin; task < end; ++task) {
                    kernels_.attention(args(), replay.step, attention_tasks_.tasks()[task], scratch);
                }
            }});
    record({Parts::kMerges, 1, 0, std::max<int64_t>(1, part_floats * 4 / kSpan), {out},
            [this, args](const Replay&, int64_t begin, int64_t end, int) {
                for (auto merge = begin; merge < end; ++merge) {
                    kernels_.merge_attention(args(), attention_tasks_.merges()[merge]);
                }
            }});
    return out;
}

int Tape::record_rope(int qkv, const Rotation& rotation, const KVLayer& kv, int64_t num_heads) {
    const auto q_width = num_heads * kv.head_dim;
    const int q = add_value(false, q_width);
    limits_.num_positions = std::min(limits_.num_positions, rotation.num_positions);
    record_rows({qkv, q}, q, [this, qkv, q, q_width, rotation, kv](const Replay& replay, int64_t begin, int64_t end, int) {
        kernels_.rope_and_store(values_[qkv].values, rotation.cos, rotation.sin, rotation.half_dim, q_width, replay.step,
                                replay.request_of_row, kv, values_[q].values, begin, end);
    });
    return q;
}

void Tape::finish(int logits) {
    require(value(logits, "finish").is_samples, "finish: the logits must have a row for each sample");
    require(logits_ < 0, "the tape is finished already");
    logits_ = logits;
    scratch_floats_ = aligned(scratch_floats_ * 4) / 4;
    scratch_ = Memory(scratch_floats_ * 4 * pool_.num_threads());
    plan_memory();
}

// A value lives from the first job that uses it to the last: within a job, threads are not in step.
void Tape::plan_memory() {
    std::vector<Lifetime> lifetimes(values_.size(), {0, -1, -1});
    const auto last_job = static_cast<int>(jobs_.size()) - 1;
    for (int job = 0; job <= last_job; ++job) {
        for (const auto& operation : jobs_[job]) {
            for (const int index : operation.uses) {
                if (lifetimes[index].first < 0) lifetimes[index].first = job;
                lifetimes[index].last = job;
            }
        }
    }
    lifetimes[logits_].last = last_job;

    for (size_t index = 0; index < values_.size(); ++index) lifetimes[index].num_bytes = place(values_[index], nullptr);
    const auto plan = plan_buffers(lifetimes);
    for (const auto bytes : plan.num_bytes) buffers_.emplace_back(bytes);
    for (size_t index = 0; index < values_.size(); ++index) {
        place(values_[index], buffers_[plan.buffer_of[index]].at<std::byte>());
    }
}

// Gives a value and its copies their places from `base` on; returns how many bytes they take.
int64_t Tape::place(Value& value, std::byte* base) const {
    const auto rows = max_rows(value);
    int64_t num_bytes = 0;
    const auto take = [&](auto*& pointer, int64_t width) {
        pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(reinterpret_cast<uintptr_t>(base) + num_bytes);
        num_bytes += aligned(rows * width * static_cast<int64_t>(sizeof *pointer));
    };
    take(value.values, value.width);
    if (value.rounded.exists) take(value.halves, value.width + value.width % 2);
    if (value.quantized.exists) {
        const auto num_groups = value.width / kGroup, most = num_groups / kRefinedShare;
        take(value.int8.q, value.width);
        take(value.int8.scales, num_groups);
        take(value.int8.sums, num_groups);
        take(value.int8.refined, 1 + most);
        take(value.int8.fine_q, most * kGroup);
        take(value.int8.fine_scales, most);
        take(value.int8.fine_sums, most);
        if (value.has_offsets) {
            take(value.int8.offsets, 2 * num_groups);
            take(value.int8.fine_offsets, 2 * most);
        }
    }
    return num_bytes;
}

// ---- replaying --------------------------------------------------------------------------------------------------

float* Tape::replay(const Step& step) {
    require(logits_ >= 0, "the tape is not finished");
    check_step(step, limits_);
    fill_request_of_row(step);
    attention_tasks_.plan(step);
    const Replay replay{step, request_of_row_.at<int32_t>()};
    for (const auto& job : jobs_) {
        pool_.run(num_parts(job.front(), step), grain(job, step), [&](int64_t begin, int64_t end, int thread) {
            for (const auto& operation : job) operation.compute(replay, begin, end, thread);
        });
        if (pulse_ != nullptr) *pulse_ += 1;
    }
    return values_[logits_].values;
}

void Tape::fill_request_of_row(const Step& step) {
    auto* requests = request_of_row_.at<int32_t>();
    for (int64_t request = 0; request < step.num_requests; ++request) {
        std::fill(requests + step.query_starts[request], requests + step.query_starts[request + 1],
                  static_cast<int32_t>(request));
    }
}

int64_t Tape::num_parts(const Operation& operation, const Step& step) const {
    switch (operation.parts) {
        case Parts::kTokens: return step.num_tokens * operation.count;
        case Parts::kSamples: return step.num_samples;
        case Parts::kPanels: return values_[operation.uses.front()].is_samples && step.num_samples == 0 ? 0 : operation.count;
        case Parts::kExperts: return static_cast<int64_t>(routing_.used().size()) * operation.count;
        case Parts::kAttention: return static_cast<int64_t>(attention_tasks_.tasks().size());
        case Parts::kMerges: return static_cast<int64_t>(attention_tasks_.merges().size());
        case Parts::kWhole: return 1;
    }
    return 0;
}

// Parts that one claim takes at least, so that what is claimed takes longer than claiming it.
int64_t Tape::grain(const Job& job, const Step& step) const {
    int64_t part_cost = 0;
    for (const auto& operation : job) {
        int64_t rows = 0;
        if (operation.parts == Parts::kPanels) {
            rows = values_[operation.uses.front()].is_samples ? step.num_samples : step.num_tokens;
        } else if (operation.parts == Parts::kExperts) {  // of an expert, about
            rows = step.num_tokens * values_[operation.uses.front()].per_token / static_cast<int64_t>(routing_.used().size());
        } else if (operation.parts == Parts::kAttention) {
            rows = attention_tasks_.mean_positions();
        } else if (operation.parts == Parts::kMerges) {
            rows = *std::max_element(step.kv_lens, step.kv_lens + step.num_requests);
        }
        part_cost += std::max(operation.cost, operation.row_cost * rows);
    }
    return std::max<int64_t>(1, kClaimBytes / std::max<int64_t>(part_cost, 1));
}

}  // namespace legato

// A model's operations with their buffers, recorded once and replayed in one call a step.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "../../ops.h"
#include "attention_tasks.h"
#include "routing.h"
#include "../kv_store.h"
#include "../memory.h"
#include "step_check.h"
#include "../thread_pool.h"

namespace legato {

struct Rotation {
    const float* cos;  // [num_positions, half_dim], like sin
    const float* sin;
    int64_t num_positions, half_dim;
};

// How attention scores: see AttentionArgs.
struct Scores {
    float scale;
    int64_t window;
    float cap;
};

// A gated MLP: gate and up are one product, gate before up; each may be weights side by side.
struct Expert {
    std::vector<PackedWeight> gate_up, down;
};

// An operation takes the numbers of the values it reads and gives the number of the one it writes. Weights, rotations
// and the K/V store are not copied: they must outlive the tape. std::invalid_argument names what does not fit.
class Tape {
 public:
    Tape(const Kernels& kernels, ThreadPool& pool, const KVStore& kv, int64_t max_tokens, int64_t max_samples);
    Tape(const Tape&) = delete;
    Tape& operator=(const Tape&) = delete;

    int embedding(const PackedWeight& weight, bool by_position, int64_t offset);
    int rms_norm(int x, std::vector<float> weight, float eps);
    void rms_norm_heads(int x, int64_t column, int64_t num_heads, std::vector<float> weight, float eps);
    int layer_norm(int x, std::vector<float> weight, std::vector<float> bias, float eps);
    // Products with each of the weights, side by side; bias is of all of them, or empty.
    int linear(int x, const std::vector<PackedWeight>& weights, std::vector<float> bias);
    void add_linear(int into, int x, const std::vector<PackedWeight>& weights, std::vector<float> bias);
    int add(int a, int b);
    int attention(int qkv, const Rotation& rotation, int64_t layer, int64_t num_heads, const Scores& scores);
    int activate(int x, Activation function, bool is_gated);
    // Each row through the top_k experts that its scores are highest for, weighed: see legato/program/ops.py, Experts.
    int experts(int x, int scores, const std::vector<Expert>& experts, int64_t top_k, bool is_normalized,
                Activation function);
    int scale(int x, float factor);
    int soft_cap(int x, float cap);
    int select(int x);
    void finish(int logits);

    // Logits [num_samples, logits_width()], until the next replay. One at a time.
    float* replay(const Step& step);

    int64_t logits_width() const { return values_.at(static_cast<size_t>(logits_)).width; }
    int64_t buffer_bytes() const;

    // Adds one to `pulse` with each job that a replay has done, so that others see it get on.
    void beat_into(uint64_t* pulse) { pulse_ = pulse; }

 private:
    // What the parts are that an operation is cut into.
    enum class Parts { kTokens, kSamples, kPanels, kExperts, kAttention, kMerges, kWhole };

    struct Copy {
        bool is_current = false;  // while recording: made since `values` was last written
        bool exists = false;      // at any time: there is room for it
    };

    struct Value {
        bool is_samples;
        int64_t per_token;  // rows: more than one where a token has one for each of its experts
        int64_t width;
        Copy rounded, quantized;        // what products read instead of `values`
        float* values = nullptr;        // [rows, width]
        uint16_t* halves = nullptr;     // rounded: [rows, width, even]
        Int8Rows int8{};                // quantized
        bool has_offsets = false;       // among int8
    };

    struct Replay {
        const Step& step;
        const int32_t* request_of_row;
    };

    using Compute = std::function<void(const Replay& replay, int64_t begin, int64_t end, int thread)>;

    struct Operation {
        Parts parts;
        int64_t count;          // panels, of an expert; rows of a token; else 1
        int64_t cost;           // of a part at least, in bytes read and written: see grain()
        int64_t row_cost;       // of a part for each row of a product, or position attended to
        std::vector<int> uses;  // values
        Compute compute;
    };

    // Operations that need no barrier between them: row-wise ones over the same rows, one after the other.
    using Job = std::vector<Operation>;

    int add_value(bool is_samples, int64_t width, int64_t per_token = 1);
    Value& value(int index, const char* operation);
    void record(Operation operation);
    void record_rows(std::vector<int> uses, int out, Compute compute);
    void record_linear(int out, int x, const std::vector<PackedWeight>& weights, std::vector<float> bias, bool add);
    static Activations activations(const Value& value, int64_t first_row, int64_t rows);
    void make_copy(int x, Copy Value::* copy, Compute compute);
    void make_readable(int x, Format format);
    int record_activation(int x, Activation function, bool is_gated);
    void record_routing(int scores, const Routes& routes);
    int record_gather(int x, const Routes& routes);
    int record_routed(int x, const std::vector<std::vector<PackedWeight>>& weights);
    int record_weighed_sum(int routed, const Routes& routes);
    int record_rope(int qkv, const Rotation& rotation, const KVLayer& kv, int64_t num_heads);
    void plan_memory();
    int64_t place(Value& value, std::byte* base) const;
    int64_t max_rows(const Value& value) const {
        return value.is_samples ? limits_.max_samples : limits_.max_tokens * value.per_token;
    }

    int64_t num_parts(const Operation& operation, const Step& step) const;
    int64_t grain(const Job& job, const Step& step) const;
    void fill_request_of_row(const Step& step);

    const Kernels& kernels_;
    ThreadPool& pool_;
    const KVStore& kv_;
    StepLimits limits_;
    std::vector<Value> values_;
    std::vector<Job> jobs_;
    volatile uint64_t* pulse_ = nullptr;  // another process may read it
    int logits_ = -1;
    AttentionTasks attention_tasks_;
    Routing routing_;

    std::vector<Memory> buffers_;
    Memory request_of_row_;       // int32 [max_tokens]
    Memory scratch_;              // float32 [num_threads, scratch_floats_]
    int64_t scratch_floats_ = 0;  // that attention needs, a thread
};

}  // namespace legato

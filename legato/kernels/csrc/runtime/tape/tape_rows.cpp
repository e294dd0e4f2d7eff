// The tape's operations that compute each row by itself.
#include <algorithm>
#include <string>
#include <utility>

#include "../require.h"
#include "tape.h"

namespace legato {

int Tape::embedding(const PackedWeight& weight, bool by_position, int64_t offset) {
    require(offset >= 0 && offset < weight.outputs, "embedding: the offset must be that of a row");
    const int out = add_value(false, weight.inputs);
    auto& limit = by_position ? limits_.num_positions : limits_.vocab;
    limit = std::min(limit, weight.outputs - offset);
    record_rows({out}, out, [this, out, weight, by_position, offset](const Replay& replay, int64_t begin, int64_t end, int) {
        const auto* indices = by_position ? replay.step.positions : replay.step.token_ids;
        for (int64_t row = begin; row < end; ++row) {
            kernels_.unpack_row(weight, indices[row] + offset, values_[out].values + row * weight.inputs);
        }
    });
    return out;
}

int Tape::rms_norm(int x, std::vector<float> weight, float eps) {
    const auto row_width = value(x, "rms_norm").width, width = static_cast<int64_t>(weight.size());
    require(width >= 1 && row_width % width == 0, "rms_norm: width of the weight: " + std::to_string(width) +
                                                      ", must divide " + std::to_string(row_width));
    const auto heads = row_width / width;
    const int out = add_value(values_[x].is_samples, row_width);
    record_rows({x, out}, out, [=, weight = std::move(weight)](const Replay&, int64_t begin, int64_t end, int) {
        const auto& in = values_[x];
        kernels_.rms_norm(in.values, weight.data(), eps, width, values_[out].values, begin * heads, end * heads);
    });
    return out;
}

// Each head of columns [column, column + num_heads * width of the weight), in place.
void Tape::rms_norm_heads(int x, int64_t column, int64_t num_heads, std::vector<float> weight, float eps) {
    const auto row_width = value(x, "rms_norm_heads").width, width = static_cast<int64_t>(weight.size());
    require(width >= 1 && column >= 0 && num_heads >= 1 && column + num_heads * width <= row_width,
            "rms_norm_heads: the heads must lie within the " + std::to_string(row_width) + " columns of the value");
    values_[x].rounded.is_current = values_[x].quantized.is_current = false;
    record_rows({x}, x, [=, weight = std::move(weight)](const Replay&, int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; ++row) {
            auto* heads = values_[x].values + row * row_width + column;
            kernels_.rms_norm(heads, weight.data(), eps, width, heads, 0, num_heads);
        }
    });
}

int Tape::layer_norm(int x, std::vector<float> weight, std::vector<float> bias, float eps) {
    const auto width = value(x, "layer_norm").width;
    require_equal(static_cast<int64_t>(weight.size()), width, "layer_norm: width of the weight");
    require_equal(static_cast<int64_t>(bias.size()), width, "layer_norm: width of the bias");
    const int out = add_value(values_[x].is_samples, width);
    record_rows({x, out}, out,
                [=, weight = std::move(weight), bias = std::move(bias)](const Replay&, int64_t begin, int64_t end,
                                                                              int) {
                    kernels_.layer_norm(values_[x].values, weight.data(), bias.data(), eps, width, values_[out].values,
                                        begin, end);
                });
    return out;
}

int Tape::add(int a, int b) {
    const auto width = value(a, "add").width;
    require_equal(value(b, "add").width, width, "add: width of what is added");
    require_equal(values_[b].is_samples, values_[a].is_samples, "add: rows are of samples");
    const int out = add_value(values_[a].is_samples, width);
    record_rows({a, b, out}, out, [=](const Replay&, int64_t begin, int64_t end, int) {
        const auto *in = values_[a].values, *added = values_[b].values;
        auto* sum = values_[out].values;
        for (auto i = begin * width; i < end * width; ++i) sum[i] = in[i] + added[i];
    });
    return out;
}

int Tape::activate(int x, Activation function, bool is_gated) {
    const auto width = value(x, "activate").width;
    require(!is_gated || width % 2 == 0, "activate: a gated input must be two halves of equal width");
    return record_activation(x, function, is_gated);
}

int Tape::record_activation(int x, Activation function, bool is_gated) {
    const auto width = is_gated ? values_[x].width / 2 : values_[x].width;
    const int out = add_value(values_[x].is_samples, width, values_[x].per_token);
    record_rows({x, out}, out, [=](const Replay&, int64_t begin, int64_t end, int) {
        kernels_.activate(function, is_gated, values_[x].values, width, values_[out].values, begin, end);
    });
    return out;
}

int Tape::scale(int x, float factor) {
    const auto width = value(x, "scale").width;
    const int out = add_value(values_[x].is_samples, width);
    record_rows({x, out}, out, [=](const Replay&, int64_t begin, int64_t end, int) {
        const auto* in = values_[x].values;
        auto* scaled = values_[out].values;
        for (auto i = begin * width; i < end * width; ++i) scaled[i] = in[i] * factor;
    });
    return out;
}

int Tape::soft_cap(int x, float cap) {
    const auto width = value(x, "soft_cap").width;
    require(cap > 0, "soft_cap: the cap must be positive");
    const int out = add_value(values_[x].is_samples, width);
    record_rows({x, out}, out, [=](const Replay&, int64_t begin, int64_t end, int) {
        kernels_.soft_cap(values_[x].values, cap, width, values_[out].values, begin, end);
    });
    return out;
}

int Tape::select(int x) {
    require(!value(x, "select").is_samples, "select: its input must have a row for each token");
    const auto width = values_[x].width;
    const int out = add_value(true, width);
    record_rows({x, out}, out, [this, x, out, width](const Replay& replay, int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; ++row) {
            const auto* source = values_[x].values + replay.step.sample_rows[row] * width;
            std::copy(source, source + width, values_[out].values + row * width);
        }
    });
    return out;
}

}  // namespace legato

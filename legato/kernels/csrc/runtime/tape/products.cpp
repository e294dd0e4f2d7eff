// Products on the tape: their weights side by side, and their rows made what they read.
#include <algorithm>
#include <string>
#include <utility>

#include "../require.h"
#include "tape.h"

namespace legato {

namespace {

constexpr int64_t kWorkPerByte = 8;  // multiply-adds in the time of a byte

int64_t outputs_of(const std::vector<PackedWeight>& weights) {
    int64_t outputs = 0;
    for (const auto& weight : weights) outputs += weight.outputs;
    return outputs;
}

// One of the weights of a product: where its panels begin among those of all, and its columns in a row.
struct Side {
    PackedWeight weight;
    int64_t first_panel, first_column;
};

}  // namespace

int Tape::linear(int x, const std::vector<PackedWeight>& weights, std::vector<float> bias) {
    value(x, "linear");
    const int out = add_value(values_[x].is_samples, outputs_of(weights));
    record_linear(out, x, weights, std::move(bias), false);
    return out;
}

void Tape::add_linear(int into, int x, const std::vector<PackedWeight>& weights, std::vector<float> bias) {
    require(into != x, "add_linear: a product cannot be added to its own input");
    require_equal(value(into, "add_linear").width, outputs_of(weights), "add_linear: width of what is added to");
    require_equal(values_[into].is_samples, value(x, "add_linear").is_samples, "add_linear: rows are of samples");
    record_linear(into, x, weights, std::move(bias), true);
    values_[into].rounded.is_current = values_[into].quantized.is_current = false;
}

// The panels of all weights are parts of one operation, so that threads wait for each other once.
void Tape::record_linear(int out, int x, const std::vector<PackedWeight>& weights, std::vector<float> bias, bool add) {
    const auto inputs = values_[x].width, outputs = outputs_of(weights), width = kernels_.panel_width;
    if (!bias.empty()) require_equal(static_cast<int64_t>(bias.size()), outputs, "linear: width of the bias");
    std::vector<Side> sides;
    int64_t num_panels = 0, column = 0, bytes = 0;
    for (const auto& weight : weights) {
        require_equal(weight.inputs, inputs, "linear: inputs of the weight");
        make_readable(x, weight.format);
        sides.push_back({weight, num_panels, column});
        num_panels += (weight.outputs + width - 1) / width;
        column += weight.outputs;
        bytes += kernels_.packed_bytes(weight.format, weight.outputs, inputs);
    }
    record({Parts::kPanels, num_panels, bytes / num_panels, width * inputs / kWorkPerByte, {x, out},
            [=, sides = std::move(sides), bias = std::move(bias)](const Replay& replay, int64_t begin, int64_t end, int) {
                const auto& in = values_[x];
                const auto rows = in.is_samples ? replay.step.num_samples : replay.step.num_tokens;
                const Activations activations{rows, in.width, in.values, in.halves, in.int8};
                for (const auto& [weight, first_panel, first_column] : sides) {
                    const auto panels = (weight.outputs + width - 1) / width;
                    const auto from = std::max<int64_t>(begin - first_panel, 0), to = std::min(end - first_panel, panels);
                    if (from >= to) continue;
                    const auto* added = bias.empty() ? nullptr : bias.data() + first_column;
                    kernels_.linear(weight, activations, added, values_[out].values + first_column, outputs, add, from, to);
                }
            }});
}

// Makes the rows of x what products with such weights read.
void Tape::make_readable(int x, Format format) {
    switch (kernels_.row_format(format)) {
        case RowFormat::F32: return;
        case RowFormat::BF16:
            return make_copy(x, &Value::rounded, [this, x](const Replay&, int64_t begin, int64_t end, int) {
                const auto& in = values_[x];
                kernels_.round_rows(in.values, in.width, in.halves, begin, end);
            });
        case RowFormat::I8:
            values_[x].has_offsets |= reads_offsets(format);
            require(values_[x].width % kGroup == 0, "linear: the inputs of an int8 product must be a multiple of 32");
            return make_copy(x, &Value::quantized, [this, x](const Replay&, int64_t begin, int64_t end, int) {
                const auto& in = values_[x];
                kernels_.quantize(in.values, in.width, in.int8, begin, end);
            });
    }
}

// A row-wise operation, so it joins the norm or activation before it and costs no barrier.
void Tape::make_copy(int x, Copy Value::* copy, Compute compute) {
    auto& made = values_[x].*copy;
    if (made.is_current) return;
    made.is_current = made.exists = true;
    record_rows({x}, x, std::move(compute));
}

}  // namespace legato

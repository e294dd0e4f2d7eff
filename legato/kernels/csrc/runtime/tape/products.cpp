// Products on the tape, and their rows made what they read.
#include "products.h"

#include <algorithm>
#include <utility>

#include "../require.h"
#include "tape.h"

namespace legato {

namespace {

constexpr int64_t kWorkPerByte = 8;  // multiply-adds in the time of a byte

}  // namespace

Product::Product(const Kernels& kernels, const std::vector<PackedWeight>& weights, int64_t inputs)
    : kernels_(&kernels), inputs_(inputs) {
    require(!weights.empty(), "linear: there is no weight");
    const auto width = kernels.panel_width;
    for (const auto& weight : weights) {
        require_equal(weight.inputs, inputs, "linear: inputs of the weight");
        sides_.push_back({weight, num_panels_, outputs_});
        num_panels_ += (weight.outputs + width - 1) / width;
        outputs_ += weight.outputs;
        num_bytes_ += kernels.packed_bytes(weight.format, weight.outputs, inputs);
    }
}

int64_t Product::row_cost() const { return kernels_->panel_width * inputs_ / kWorkPerByte; }

void Product::compute(const Activations& x, const float* bias, float* out, bool add, int64_t begin, int64_t end) const {
    const auto width = kernels_->panel_width;
    for (const auto& [weight, first_panel, first_column] : sides_) {
        const auto panels = (weight.outputs + width - 1) / width;
        const auto from = std::max<int64_t>(begin - first_panel, 0), to = std::min(end - first_panel, panels);
        if (from >= to) continue;
        const auto* added = bias != nullptr ? bias + first_column : nullptr;
        kernels_->linear(weight, x, added, out + first_column, outputs_, add, from, to);
    }
}

int Tape::linear(int x, const std::vector<PackedWeight>& weights, std::vector<float> bias) {
    const Product product(kernels_, weights, value(x, "linear").width);
    const int out = add_value(values_[x].is_samples, product.outputs());
    record_linear(out, x, weights, std::move(bias), false);
    return out;
}

void Tape::add_linear(int into, int x, const std::vector<PackedWeight>& weights, std::vector<float> bias) {
    require(into != x, "add_linear: a product cannot be added to its own input");
    const Product product(kernels_, weights, value(x, "add_linear").width);
    require_equal(value(into, "add_linear").width, product.outputs(), "add_linear: width of what is added to");
    require_equal(values_[into].is_samples, values_[x].is_samples, "add_linear: rows are of samples");
    record_linear(into, x, weights, std::move(bias), true);
    values_[into].rounded.is_current = values_[into].quantized.is_current = false;
}

// The panels of all weights are parts of one operation, so that threads wait for each other once.
void Tape::record_linear(int out, int x, const std::vector<PackedWeight>& weights, std::vector<float> bias, bool add) {
    Product product(kernels_, weights, values_[x].width);
    if (!bias.empty()) require_equal(static_cast<int64_t>(bias.size()), product.outputs(), "linear: width of the bias");
    for (const auto& weight : weights) make_readable(x, weight.format);
    const auto num_panels = product.num_panels(), panel_bytes = product.panel_bytes(), row_cost = product.row_cost();
    record({Parts::kPanels, num_panels, panel_bytes, row_cost, {x, out},
            [=, product = std::move(product), bias = std::move(bias)](const Replay& replay, int64_t begin, int64_t end, int) {
                const auto& in = values_[x];
                const auto rows = in.is_samples ? replay.step.num_samples : replay.step.num_tokens;
                const auto* added = bias.empty() ? nullptr : bias.data();
                product.compute(activations(in, 0, rows), added, values_[out].values, add, begin, end);
            }});
}

Activations Tape::activations(const Value& value, int64_t first_row, int64_t rows) {
    return {rows, value.width, value.values, value.halves, value.int8, first_row};
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

// A mixture of experts on the tape. Rows are grouped by expert, so that a step reads an expert's weights once. A routed
// row's products have the bits that they have alone, as all products have; a row's sum over its experts is in the order
// of their scores, whatever their groups.
#include <algorithm>
#include <memory>
#include <utility>

#include "../require.h"
#include "products.h"
#include "tape.h"

namespace legato {

int Tape::experts(int x, int scores, const std::vector<Expert>& experts, int64_t top_k, bool is_normalized,
                  Activation function) {
    const Routes routes{static_cast<int64_t>(experts.size()), top_k, is_normalized};
    require(!value(x, "experts").is_samples && !value(scores, "experts").is_samples,
            "experts: rows must be those of tokens");
    require_equal(values_[scores].width, routes.num_experts, "experts: width of the scores");
    require(top_k >= 1 && top_k <= routes.num_experts,
            "experts: top_k: " + std::to_string(top_k) + ", must be 1 to " + std::to_string(routes.num_experts));
    std::vector<std::vector<PackedWeight>> gate_ups, downs;
    for (const auto& expert : experts) {
        gate_ups.push_back(expert.gate_up);
        downs.push_back(expert.down);
    }
    record_routing(scores, routes);
    const int gathered = record_gather(x, routes);
    const int gate_up = record_routed(gathered, gate_ups);
    require(values_[gate_up].width % 2 == 0, "experts: gate and up must be of one width");
    const int down = record_routed(record_activation(gate_up, function, true), downs);
    return record_weighed_sum(down, routes);
}

void Tape::record_routing(int scores, const Routes& routes) {
    routing_.reserve(routes);
    record_rows({scores}, scores, [=](const Replay&, int64_t begin, int64_t end, int) {
        routing_.choose(routes, values_[scores].values, begin, end);
    });
    record({Parts::kWhole, 1, 0, 0, {scores}, [=](const Replay& replay, int64_t, int64_t, int) {
                routing_.group(routes, replay.step.num_tokens);
            }});
}

int Tape::record_gather(int x, const Routes& routes) {
    const auto width = values_[x].width;
    const int gathered = add_value(false, width, routes.top_k);
    record_rows({x, gathered}, gathered, [=](const Replay&, int64_t begin, int64_t end, int) {
        for (auto routed = begin; routed < end; ++routed) {
            const auto* row = values_[x].values + routing_.row(routed) * width;
            std::copy(row, row + width, values_[gathered].values + routed * width);
        }
    });
    return gathered;
}

// The panels of every expert that has rows are parts of one operation.
int Tape::record_routed(int x, const std::vector<std::vector<PackedWeight>>& weights) {
    auto products = std::make_shared<std::vector<Product>>();  // a job is copied when it is recorded
    for (const auto& of_expert : weights) {
        products->emplace_back(kernels_, of_expert, values_[x].width);
        require_equal(products->back().outputs(), products->front().outputs(), "experts: outputs of an expert");
        for (const auto& weight : of_expert) make_readable(x, weight.format);
    }
    const auto& first = products->front();
    const auto num_panels = std::max_element(products->begin(), products->end(), [](const auto& a, const auto& b) {
                                return a.num_panels() < b.num_panels();
                            })->num_panels();
    const int out = add_value(false, first.outputs(), values_[x].per_token);
    record({Parts::kExperts, num_panels, first.panel_bytes(), first.row_cost(), {x, out},
            [=](const Replay&, int64_t begin, int64_t end, int) {
                while (begin < end) {
                    const auto expert = routing_.used()[static_cast<size_t>(begin / num_panels)];
                    const auto from = begin % num_panels, to = std::min(num_panels, from + end - begin);
                    const auto first_row = routing_.first(expert);
                    const auto rows = activations(values_[x], first_row, routing_.num_rows(expert));
                    const auto& product = (*products)[static_cast<size_t>(expert)];
                    auto* results = values_[out].values + first_row * product.outputs();
                    product.compute(rows, nullptr, results, false, from, to);
                    begin += to - from;
                }
            }});
    return out;
}

int Tape::record_weighed_sum(int routed, const Routes& routes) {
    const auto width = values_[routed].width;
    const int out = add_value(false, width);
    record_rows({routed, out}, out, [=](const Replay&, int64_t begin, int64_t end, int) {
        for (auto row = begin; row < end; ++row) {
            const auto* places = routing_.places(routes, row);
            const auto* shares = routing_.shares(routes, row);
            auto* sum = values_[out].values + row * width;
            std::fill(sum, sum + width, 0.0f);
            for (int64_t rank = 0; rank < routes.top_k; ++rank) {
                const auto* result = values_[routed].values + places[rank] * width;
                for (int64_t i = 0; i < width; ++i) sum[i] += shares[rank] * result[i];
            }
        }
    });
    return out;
}

}  // namespace legato

// A product with weights of several formats whose outputs lie side by side, cut into panels.
#pragma once

#include <cstdint>
#include <vector>

#include "../../ops.h"

namespace legato {

class Product {
 public:
    // Throws std::invalid_argument unless all weights have so many inputs.
    Product(const Kernels& kernels, const std::vector<PackedWeight>& weights, int64_t inputs);

    int64_t outputs() const { return outputs_; }
    int64_t num_panels() const { return num_panels_; }
    int64_t panel_bytes() const { return num_bytes_ / num_panels_; }
    int64_t row_cost() const;  // of a panel for each row, in bytes that would be read in the time

    // out[row, output] (+= when add) of panels [begin, end), the bias, of all outputs or null, added before that.
    void compute(const Activations& x, const float* bias, float* out, bool add, int64_t begin, int64_t end) const;

 private:
    // One of the weights: where its panels begin among those of all, and its columns in a row.
    struct Side {
        PackedWeight weight;
        int64_t first_panel, first_column;
    };

    const Kernels* kernels_;
    std::vector<Side> sides_;
    int64_t inputs_, outputs_ = 0, num_panels_ = 0, num_bytes_ = 0;
};

}  // namespace legato

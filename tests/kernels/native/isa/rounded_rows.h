// Rows of activations as a product reads them, and the same numbers in double precision.
#pragma once

#include "checks.h"

namespace legato {

// Int8Rows that own their memory.
struct OwnedInt8Rows {
    std::vector<int8_t> q, fine_q;
    Floats scales, sums, fine_scales, fine_sums;
    std::vector<int32_t> refined, offsets, fine_offsets;
    int64_t num_groups;

    OwnedInt8Rows(const Kernels& kernels, const Floats& x, int64_t num_rows, int64_t width)
        : num_groups(width / kGroup) {
        const auto groups = static_cast<size_t>(num_rows * num_groups);
        const auto fine_groups = static_cast<size_t>(num_rows * max_refined());
        q.resize(groups * kGroup);
        scales.resize(groups);
        sums.resize(groups);
        refined.resize(fine_groups + static_cast<size_t>(num_rows));
        fine_q.resize(fine_groups * kGroup);
        fine_scales.resize(fine_groups);
        fine_sums.resize(fine_groups);
        offsets.resize(2 * groups);
        fine_offsets.resize(2 * fine_groups);
        kernels.quantize(x.data(), width, view(), 0, num_rows);
    }

    Int8Rows view() {
        return {q.data(), scales.data(), sums.data(), refined.data(), fine_q.data(), fine_scales.data(),
                fine_sums.data(), offsets.data(), fine_offsets.data()};
    }

    int64_t max_refined() const { return num_groups / kRefinedShare; }
    const int32_t* refined_of(int64_t row) const { return refined.data() + row * (1 + max_refined()); }

    // What the row stands for: double [num_groups * 32].
    Doubles exact(int64_t row) const {
        Doubles out(static_cast<size_t>(num_groups * kGroup));
        for (int64_t k = 0; k < num_groups * kGroup; ++k) {
            const auto at = row * num_groups + k / kGroup;
            out[static_cast<size_t>(k)] = static_cast<double>(q[static_cast<size_t>(row * num_groups * kGroup + k)]) *
                                          scales[static_cast<size_t>(at)];
        }
        const auto* groups = refined_of(row);
        for (int64_t i = 0; i < groups[0]; ++i) {
            const auto fine = static_cast<size_t>(row * max_refined() + i);
            for (size_t j = 0; j < kGroup; ++j) {
                out[static_cast<size_t>(groups[1 + i]) * kGroup + j] +=
                    static_cast<double>(fine_q[fine * kGroup + j]) * fine_scales[fine];
            }
        }
        return out;
    }
};

}  // namespace legato

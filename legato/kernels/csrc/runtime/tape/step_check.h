// Whether a step's index arrays stay inside what they index: no value in them may reach foreign memory.
#pragma once

#include <cstdint>

#include "../../ops.h"

namespace legato {

struct StepLimits {
    int64_t max_tokens, max_samples;
    int64_t vocab, num_positions;
    int64_t num_pages, page_size;
};

// Throws std::invalid_argument naming the array and the value that does not fit.
void check_step(const Step& step, const StepLimits& limits);

}  // namespace legato

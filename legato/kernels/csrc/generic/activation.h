// SwiGLU without its products: silu(gate) * up, where silu(x) = x / (1 + e^-x).
#pragma once

#include "vector_math.h"

static inline F32 silu(F32 x) { return div(x, add(set1(1.0f), exp(neg(x)))); }

static void silu_mul(const float* x, int64_t width, float* out, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        const float* gate = x + row * 2 * width;
        const float* up = gate + width;
        for (int64_t i = 0; i < width; i += kLanes) {
            const int64_t left = width - i;
            const F32 product = mul(silu(load_up_to(gate + i, left)), load_up_to(up + i, left));
            store_up_to(out + row * width + i, product, left);
        }
    }
}

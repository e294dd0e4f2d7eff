// Root mean square normalisation, arXiv:1910.07467: weight * x / sqrt(mean(x^2) + eps).
#pragma once

#include "vector_math.h"

// Several sums at a time, since one would wait for each of its additions.
static inline float sum_of_squares(const float* x, int64_t width) {
    constexpr int kSums = 4;
    F32 sums[kSums] = {zero(), zero(), zero(), zero()};
    int64_t i = 0;
    for (; i + kSums * kLanes <= width; i += kSums * kLanes) {
        for (int j = 0; j < kSums; ++j) {
            const F32 v = load(x + i + j * kLanes);
            sums[j] = fma(v, v, sums[j]);
        }
    }
    for (; i < width; i += kLanes) {
        const F32 v = load_up_to(x + i, width - i);
        sums[0] = fma(v, v, sums[0]);
    }
    return reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

static void rms_norm(const float* x, const float* weight, float eps, int64_t width, float* out, int64_t begin,
                     int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        const float* in = x + row * width;
        const F32 mean_square = set1(sum_of_squares(in, width) / static_cast<float>(width));
        const F32 scale = div(set1(1.0f), sqrt(add(mean_square, set1(eps))));
        for (int64_t i = 0; i < width; i += kLanes) {
            const int64_t left = width - i;
            const F32 normed = mul(load_up_to(in + i, left), scale);
            store_up_to(out + row * width + i, mul(normed, load_up_to(weight + i, left)), left);
        }
    }
}

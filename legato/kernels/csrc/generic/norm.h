// Normalisation of rows: by their root mean square, arXiv:1910.07467, or by mean and variance, arXiv:1607.06450.
#pragma once

#include "vector_math.h"

static inline F32 add_value(F32 sum, F32 v) { return add(sum, v); }
static inline F32 add_square(F32 sum, F32 v) { return fma(v, v, sum); }

// Several sums at a time, since one would wait for each of its additions.
template <F32 (*accumulate)(F32, F32)>
static inline float sum_of(const float* x, int64_t width) {
    constexpr int kSums = 4;
    F32 sums[kSums] = {zero(), zero(), zero(), zero()};
    int64_t i = 0;
    for (; i + kSums * kLanes <= width; i += kSums * kLanes) {
        for (int j = 0; j < kSums; ++j) sums[j] = accumulate(sums[j], load(x + i + j * kLanes));
    }
    for (; i < width; i += kLanes) sums[0] = accumulate(sums[0], load_up_to(x + i, width - i));
    return reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

// 1 / sqrt(mean(x^2) + eps)
static inline F32 scale_to_unit(const float* x, int64_t width, float eps) {
    const F32 mean_square = set1(sum_of<add_square>(x, width) / static_cast<float>(width));
    return div(set1(1.0f), sqrt(add(mean_square, set1(eps))));
}

// weight * x / sqrt(mean(x^2) + eps); out may be x.
static void rms_norm(const float* x, const float* weight, float eps, int64_t width, float* out, int64_t begin,
                     int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        const float* in = x + row * width;
        const F32 scale = scale_to_unit(in, width, eps);
        for (int64_t i = 0; i < width; i += kLanes) {
            const int64_t left = width - i;
            const F32 normed = mul(load_up_to(in + i, left), scale);
            store_up_to(out + row * width + i, mul(normed, load_up_to(weight + i, left)), left);
        }
    }
}

// weight * (x - mean(x)) / sqrt(variance(x) + eps) + bias
static void layer_norm(const float* x, const float* weight, const float* bias, float eps, int64_t width, float* out,
                       int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        const float* in = x + row * width;
        float* centered = out + row * width;
        const F32 mean = set1(sum_of<add_value>(in, width) / static_cast<float>(width));
        for (int64_t i = 0; i < width; i += kLanes) {
            store_up_to(centered + i, sub(load_up_to(in + i, width - i), mean), width - i);
        }
        const F32 scale = scale_to_unit(centered, width, eps);
        for (int64_t i = 0; i < width; i += kLanes) {
            const int64_t left = width - i;
            const F32 normed = mul(load_up_to(centered + i, left), scale);
            store_up_to(centered + i, fma(normed, load_up_to(weight + i, left), load_up_to(bias + i, left)), left);
        }
    }
}

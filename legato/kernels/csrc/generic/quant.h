// Activations as int8 with a scale for every group of 32: x is about q * scale, q from -127 to 127.
#pragma once

#include "vector_math.h"

constexpr float kLeastMagnitude = 0x1p-100f;  // below it, 127 over a magnitude might not be a number

// The largest magnitude; NaN if any number is not finite, so that what is made of them shows it.
static inline float largest_magnitude(const float* x, int64_t len) {
    F32 largest = zero(), differences = zero();
    for (int64_t i = 0; i < len; i += kLanes) {
        const F32 v = load_up_to(x + i, len - i);
        largest = max(largest, abs(v));
        differences = add(differences, sub(v, v));  // 0, or NaN where v is NaN or infinite
    }
    return reduce_max(largest) + reduce_add(differences);
}

static inline void quantize_group(const float* x, int8_t* q, float* scale, float* sum) {
    const float largest = largest_magnitude(x, kGroup);
    if (!(largest > kLeastMagnitude)) {  // nothing to speak of, or NaN
        std::memset(q, 0, kGroup);
        *scale = *sum = largest * 0.0f;
        return;
    }
    *scale = largest / 127.0f;
    const F32 reciprocal = set1(127.0f / largest);
    I32 total = set1(int32_t{0});
    for (int64_t i = 0; i < kGroup; i += kLanes) {
        const I32 rounded = to_i32(mul(load(x + i), reciprocal));
        store_i8(q + i, rounded);
        total = add(total, rounded);
    }
    *sum = *scale * reduce_add(to_f32(total));
}

static void quantize(const float* x, int64_t width, int8_t* q, float* scales, float* sums, int64_t begin, int64_t end) {
    const int64_t groups = width / kGroup;
    for (int64_t group = begin * groups; group < end * groups; ++group) {
        quantize_group(x + group * kGroup, q + group * kGroup, scales + group, sums + group);
    }
}

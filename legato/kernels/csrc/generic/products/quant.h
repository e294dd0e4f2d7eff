// Activations as int8 with a scale for every group of 32: see Int8Rows. q is from -127 to 127.
#pragma once

#include "row_format.h"
#include "../vector_math.h"

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

// Rounds a group to q * scale, given its largest magnitude, and leaves what is lacking in `rest` unless that is null.
static inline void quantize_group(const float* x, float largest, int8_t* q, float* scale, float* sum, float* rest) {
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
        if (rest) store(rest + i, fma(to_f32(rounded), set1(-*scale), load(x + i)));
    }
    *sum = *scale * reduce_add(to_f32(total));
}

// The offsets of a group's halves.
static inline void sum_halves(const int8_t* q, int32_t* offsets) {
    for (int64_t half = 0; half < 2; half++) {
        int32_t sums[2] = {};
        for (int64_t i = 0; i < kGroup / 2; i++) sums[i / 2 % 2] += q[half * kGroup / 2 + i];
        const int16_t words[2] = {static_cast<int16_t>(-32 * sums[0]), static_cast<int16_t>(-32 * sums[1])};
        std::memcpy(offsets + half, words, sizeof words);
    }
}

// The magnitude above which the rounding of a group is too coarse for its row, given the largest one of each group:
// one and a half times their root mean square. So fewer than half of the groups are above it; mostly a tenth is.
static inline float coarse_magnitude(const float* largest, int64_t num_groups) {
    float squares = 0.0f;
    for (int64_t g = 0; g < num_groups; ++g) squares += largest[g] * largest[g];
    return 1.5f * first_lane(sqrt(set1(squares / static_cast<float>(num_groups))));
}

// Groups with outliers carry most of the error of 8 bits, and there are few of them: they get 8 bits more.
static inline void quantize_row(const float* x, int64_t num_groups, const Int8Rows& out) {
    for (int64_t g = 0; g < num_groups; ++g) out.scales[g] = largest_magnitude(x + g * kGroup, kGroup);
    const float coarse = coarse_magnitude(out.scales, num_groups);
    int32_t num_refined = 0;
    for (int64_t g = 0; g < num_groups; ++g) {
        const float largest = out.scales[g];
        const bool is_refined = largest > coarse && largest > kLeastMagnitude && num_refined < num_groups / kRefinedShare;
        float rest[kGroup];
        quantize_group(x + g * kGroup, largest, out.q + g * kGroup, out.scales + g, out.sums + g,
                       is_refined ? rest : nullptr);
        if (out.offsets) sum_halves(out.q + g * kGroup, out.offsets + 2 * g);
        if (!is_refined) continue;
        quantize_group(rest, largest_magnitude(rest, kGroup), out.fine_q + num_refined * kGroup,
                       out.fine_scales + num_refined, out.fine_sums + num_refined, nullptr);
        if (out.offsets) sum_halves(out.fine_q + num_refined * kGroup, out.fine_offsets + 2 * num_refined);
        out.refined[++num_refined] = static_cast<int32_t>(g);
    }
    out.refined[0] = num_refined;
}

static void quantize(const float* x, int64_t width, const Int8Rows& out, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) quantize_row(x + row * width, width / kGroup, int8_row(out, width, row));
}

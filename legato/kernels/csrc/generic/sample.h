// From a row of logits to a token, with the meaning and the order of legato/sampling/sampler.py.
//
// Nothing is sorted. top_k and top_p each keep the heaviest weights up to a goal, a number or a mass; the lightest
// kept is found by halving the range of its bits, for the bits of positive floats are in the floats' own order.
#pragma once

#include "vector_math.h"

static inline float float_of(int32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

static inline int32_t bits_of(float value) {
    int32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// NaN where a logit is NaN or the largest is not finite. Others may be -infinity: tokens that may not be drawn.
static float largest_logit(const float* logits, int64_t vocab) {
    F32 largest_of_lane = set1(-kInfinity), nan_of_lane = zero();
    int64_t i = 0;
    for (; i + kLanes <= vocab; i += kLanes) {
        const F32 x = load(logits + i);
        largest_of_lane = max(largest_of_lane, x);
        nan_of_lane = select(equal(x, x), nan_of_lane, x);
    }
    float largest = reduce_max(largest_of_lane), nan = reduce_add(nan_of_lane);
    for (; i < vocab; ++i) {
        largest = logits[i] > largest ? logits[i] : largest;
        nan = logits[i] == logits[i] ? nan : logits[i];
    }
    return largest + (largest - largest) + nan;  // infinity - infinity is NaN
}

static int32_t argmax(const float* logits, int64_t vocab) {
    const float largest = largest_logit(logits, vocab);
    if (largest != largest) return -1;
    int64_t i = 0;
    while (i + kLanes <= vocab && !any(equal(load(logits + i), set1(largest)))) i += kLanes;
    while (logits[i] != largest) ++i;
    return static_cast<int32_t>(i);
}

// Probabilities in units of the largest one, in the logits' place.
static void logits_to_weights(float* logits, int64_t vocab, float largest, float temperature) {
    const F32 scale = set1(1.0f / temperature);
    for (int64_t i = 0; i < vocab; i += kLanes) {
        const int64_t left = vocab - i;
        const F32 x = sub(load_up_to(logits + i, left), set1(largest));
        store_up_to(logits + i, exp(mul(x, scale)), left);
    }
}

static void drop_below(float* weights, int64_t count, float floor) {
    for (int64_t i = 0; i < count; i += kLanes) {
        const F32 weight = load_up_to(weights + i, count - i);
        store_up_to(weights + i, select(less(weight, set1(floor)), zero(), weight), count - i);
    }
}

static inline Mask at_least(F32 v, F32 floor) { return equal(max(v, floor), v); }

static double mass(const float* weights, int64_t count) {
    F64 sum{};
    for (int64_t i = 0; i < count; i += kLanes) sum = add_wide(sum, load_up_to(weights + i, count - i));
    return reduce_add(sum);
}

// What the weights of at least `floor`, which is above 0, come to: their mass, or their number.
template <bool kIsMass>
static double measure(const float* weights, int64_t count, float floor) {
    F64 sum{};
    for (int64_t i = 0; i < count; i += kLanes) {
        const F32 weight = load_up_to(weights + i, count - i);
        sum = add_wide(sum, select(at_least(weight, set1(floor)), kIsMass ? weight : set1(1.0f), zero()));
    }
    return reduce_add(sum);
}

// The weights whose bits are in [floor, ceiling), one after the other; returns their number. `out` may be `weights`.
static int64_t gather(const float* weights, int64_t count, int32_t floor, int32_t ceiling, float* out) {
    int64_t gathered = 0;
    for (int64_t begin = 0; begin < count; begin += kLanes) {
        const int64_t end = smaller(begin + kLanes, count);
        const F32 v = load_up_to(weights + begin, end - begin);
        if (!any(at_least(v, set1(float_of(floor))))) continue;  // as nearly always: natural logits are far apart
        for (int64_t i = begin; i < end; ++i) {
            const int32_t bits = bits_of(weights[i]);
            out[gathered] = weights[i];
            gathered += (bits >= floor) & (bits < ceiling);
        }
    }
    return gathered;
}

// Of the weights equal to `weight` drops all but the first ones, as many as it takes to reach `num_needed`.
static void drop_later_equals(float* weights, int64_t count, float weight, double num_needed) {
    for (int64_t i = 0; i < count; ++i) {
        if (weights[i] != weight) continue;
        if (num_needed <= 0) weights[i] = 0.0f;
        num_needed -= 1;
    }
}

// A weight from which on they reach the goal, so far from the largest that for natural logits the first will do: the
// nucleus of a language model is some hundred tokens. 0 if all of them together do not reach it.
template <bool kIsMass>
static float reaching_floor(const float* weights, int64_t count, double goal) {
    constexpr float kFloors[] = {0x1p-12f, 0x1p-24f, 0x1p-48f, __FLT_MIN__};
    for (const float floor : kFloors) {
        if (measure<kIsMass>(weights, count, floor) >= goal) return floor;
    }
    return 0.0f;
}

// Keeps the heaviest weights, none of which is above 1, until they reach `goal`; of equal ones the first.
// Scratch holds `count` floats.
template <bool kIsMass>
static void keep_heaviest(float* weights, int64_t count, double goal, float* scratch) {
    const float floor = reaching_floor<kIsMass>(weights, count, goal);
    if (floor == 0.0f) return;

    // The bits of two floats: weights of at least `edge` reach the goal, those of at least `above` do not.
    int32_t edge = bits_of(floor), above = bits_of(1.0f) + 1;
    int64_t num_candidates = gather(weights, count, edge, above, scratch);
    double heavier = 0;  // what candidates of at least `above` come to
    for (int step = 1; above - edge > 1; ++step) {
        const int32_t middle = edge + (above - edge) / 2;
        const double measured = measure<kIsMass>(scratch, num_candidates, float_of(middle));
        if (measured >= goal) {
            edge = middle;
        } else {
            above = middle;
            heavier = measured;
        }
        if (step % 8 == 0) {
            num_candidates = gather(scratch, num_candidates, edge, above, scratch);
            goal -= heavier;
            heavier = 0;
        }
    }
    const float lightest = float_of(edge);
    drop_below(weights, count, lightest);
    num_candidates = gather(scratch, num_candidates, edge, above, scratch);
    const double num_needed = (goal - heavier) / (kIsMass ? lightest : 1.0f);
    if (num_needed <= num_candidates - 1) drop_later_equals(weights, count, lightest, num_needed);
}

// Id of the token at `number`, in (0, 1), of the cumulated weights; one of weight 0 is never drawn.
static int32_t draw(const float* weights, int64_t count, double number) {
    constexpr int64_t kBlocks = 256;
    const int64_t block_len = (count + kBlocks - 1) / kBlocks;
    double masses[kBlocks], total = 0;
    for (int64_t block = 0; block < kBlocks; ++block) {
        const int64_t begin = smaller(block * block_len, count), end = smaller(begin + block_len, count);
        masses[block] = mass(weights + begin, end - begin);
        total += masses[block];
    }

    const double target = number * total;
    double before = 0;
    int64_t block = 0;
    while (before + masses[block] < target) before += masses[block++];
    const int64_t begin = block * block_len, end = smaller(begin + block_len, count);
    int64_t drawn = begin;
    for (int64_t i = begin; i < end && before < target; ++i) {
        if (weights[i] == 0.0f) continue;
        before += weights[i];
        drawn = i;  // stays, where rounding leaves the sum of a whole block below what it was above
    }
    return static_cast<int32_t>(drawn);
}

// Scratch holds `vocab` floats.
static int32_t sample(float* logits, int64_t vocab, const SampleArgs& args, float* scratch) {
    const float largest = largest_logit(logits, vocab);
    if (largest != largest) return -1;
    float* weights = logits;
    logits_to_weights(logits, vocab, largest, args.temperature);
    if (args.min_p > 0) drop_below(weights, vocab, args.min_p);
    if (0 < args.top_k && args.top_k < vocab) keep_heaviest<false>(weights, vocab, args.top_k, scratch);
    if (args.top_p < 1) keep_heaviest<true>(weights, vocab, args.top_p * mass(weights, vocab), scratch);
    return draw(weights, vocab, args.number);
}

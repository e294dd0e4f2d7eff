// What the row-wise kernels share: vectors that may end early, and exp.
#pragma once

constexpr float kInfinity = __builtin_inff();

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t padded_to_lanes(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Both kinds of floats under one name; uint16_t holds bfloat16 bits.
static inline F32 load_floats(const float* p) { return load(p); }
static inline F32 load_floats(const uint16_t* p) { return load_bf16(p); }

// The first n lanes, all of them where n >= kLanes.
static inline F32 load_up_to(const float* p, int64_t n) { return n >= kLanes ? load(p) : partial_load(p, n); }

static inline F32 load_up_to(const uint16_t* p, int64_t n) {
    return n >= kLanes ? load_bf16(p) : partial_load_bf16(p, n);
}

static inline void store_up_to(float* p, F32 v, int64_t n) { n >= kLanes ? store(p, v) : partial_store(p, v, n); }

static inline void store_up_to(uint16_t* p, F32 v, int64_t n) {
    n >= kLanes ? store_bf16(p, v) : partial_store_bf16(p, v, n);
}

static inline float first_lane(F32 v) {
    float lanes[kLanes];
    store(lanes, v);
    return lanes[0];
}

// e^x to about one unit in the last place; 0 below e^-87.3, where numbers stop being normal, e^88.37 above; NaN stays.
static inline F32 exp(F32 x) {
    const F32 lowest = set1(-87.3f), highest = set1(88.37f);
    const F32 clamped = max(lowest, min(highest, x));

    // x = n ln 2 + r. Adding 1.5 * 2^23 rounds to whole numbers, and leaves n + 127 in the low bits of the sum.
    const F32 shifter = set1(0x1.8p23f + 127.0f);
    const F32 shifted = fma(clamped, set1(0x1.715476p0f), shifter);
    const F32 n = sub(shifted, shifter);
    F32 r = fma(n, set1(-0x1.62e4p-1f), clamped);  // so few bits that n times them is exact
    r = fma(n, set1(-0x1.7f7d1cp-20f), r);         // the rest of ln 2

    // e^r = 1 + r + r^2 q(r) for |r| <= ln 2 / 2, q fitted for the least relative error: 3e-9.
    const F32 r2 = mul(r, r);
    const F32 q_low = fma(set1(0x1.555492p-3f), r, set1(0x1.fffffcp-2f));
    const F32 q_high = fma(set1(0x1.6a23cep-10f), r2, fma(set1(0x1.123a2p-7f), r, set1(0x1.5558f2p-5f)));
    const F32 e_to_r = add(fma(fma(q_high, r2, q_low), r2, r), set1(1.0f));

    const F32 two_to_n = as_f32(shift_left<23>(as_i32(shifted)));
    return select(less(x, lowest), zero(), mul(e_to_r, two_to_n));
}

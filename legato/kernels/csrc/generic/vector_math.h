// What the row-wise kernels share: vectors that may end early, and exp.
#pragma once

constexpr float kInfinity = __builtin_inff();

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t padded_to_lanes(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// All kinds of numbers under one name; uint16_t holds bfloat16 bits.
static inline F32 load_floats(const float* p) { return load(p); }
static inline F32 load_floats(const uint16_t* p) { return load_bf16(p); }
static inline F32 load_floats(const int8_t* p) { return to_f32(load_i8(p)); }

// Of 2 * kLanes numbers, those at even places (kHalf = 0) or at odd ones, or the first or the last kLanes: which of them
// is read fastest.
template <int kHalf, typename T>
static inline F32 load_half(const T* p) {
    if constexpr (sizeof(T) != 2) return load_floats(p + kHalf * kLanes);
    else if constexpr (kHalf == 0) return as_f32(shift_left<16>(load(reinterpret_cast<const int32_t*>(p))));
    else return as_f32(bit_and(load(reinterpret_cast<const int32_t*>(p)), set1(int32_t{-0x10000})));
}

// The first n lanes, all of them where n >= kLanes.
static inline F32 load_up_to(const float* p, int64_t n) { return n >= kLanes ? load(p) : partial_load(p, n); }

static inline F32 load_up_to(const uint16_t* p, int64_t n) {
    return n >= kLanes ? load_bf16(p) : partial_load_bf16(p, n);
}

static inline F32 load_up_to(const int8_t* p, int64_t n) { return n >= kLanes ? load_floats(p) : partial_load_i8(p, n); }

static inline void store_up_to(float* p, F32 v, int64_t n) { n >= kLanes ? store(p, v) : partial_store(p, v, n); }

static inline void store_up_to(uint16_t* p, F32 v, int64_t n) {
    n >= kLanes ? store_bf16(p, v) : partial_store_bf16(p, v, n);
}

// Rounds; what is stored must fit.
static inline void store_up_to(int8_t* p, F32 v, int64_t n) {
    n >= kLanes ? store_i8(p, to_i32(v)) : partial_store_i8(p, v, n);
}

static inline float first_lane(F32 v) {
    float lanes[kLanes];
    store(lanes, v);
    return lanes[0];
}

// 2^(n + r) for |r| <= 1/2, where the low bits of `shifted` are n + 127; 0 where these are 0.
static inline F32 power_of_two(F32 shifted, F32 r) {
    // 1 + r q(r), fitted for the least relative error: 2e-9.
    F32 q = set1(0x1.41fbbcp-13f);
    q = fma(q, r, set1(0x1.5f3e54p-10f));
    q = fma(q, r, set1(0x1.3b2d4cp-7f));
    q = fma(q, r, set1(0x1.c6aee8p-5f));
    q = fma(q, r, set1(0x1.ebfbdcp-3f));
    q = fma(q, r, set1(0x1.62e430p-1f));
    return mul(fma(q, r, set1(1.0f)), as_f32(shift_left<23>(as_i32(shifted))));
}

// Added to a number, it rounds that to a whole one, n, and leaves n + 127 in the low bits of the sum.
constexpr float kShifter = 0x1.8p23f + 127.0f;

// 2^x for x <= 127, to about one unit in the last place; 0 below -126.5; NaN stays.
static inline F32 exp2(F32 x) {
    const F32 clamped = max(set1(-127.0f), x);
    const F32 shifted = add(clamped, set1(kShifter));
    return power_of_two(shifted, sub(clamped, sub(shifted, set1(kShifter))));
}

// e^x to about one unit in the last place; 0 below e^-87.7, where numbers stop being normal, e^88.37 above; NaN stays.
static inline F32 exp(F32 x) {
    const F32 clamped = max(set1(-88.0f), min(set1(88.37f), x));
    const F32 shifted = fma(clamped, set1(0x1.715476p0f), set1(kShifter));
    const F32 n = sub(shifted, set1(kShifter));
    F32 r = fma(n, set1(-0x1.62e4p-1f), clamped);  // x - n ln 2: so few bits that n times them is exact
    r = fma(n, set1(-0x1.7f7d1cp-20f), r);         // the rest of ln 2
    return power_of_two(shifted, mul(r, set1(0x1.715476p0f)));
}

// cap * tanh(x / cap), where t = e^(-2 |x| / cap) gives tanh |x / cap| = (1 - t) / (1 + t); NaN stays.
static inline F32 capped(F32 x, float cap) {
    const F32 t = exp(mul(abs(x), set1(-2.0f / cap)));
    const F32 magnitude = mul(set1(cap), div(sub(set1(1.0f), t), add(set1(1.0f), t)));
    return select(less(x, zero()), neg(magnitude), magnitude);
}

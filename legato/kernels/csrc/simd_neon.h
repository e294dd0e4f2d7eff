// Four lanes: arm64 with products of bytes (Armv8.2-A's dotprod, in all that servers and phones use).

using F32 = float32x4_t;
using I32 = int32x4_t;
using Mask = uint32x4_t;  // all bits of a lane, or none

constexpr int64_t kLanes = 4;
constexpr int kRegisters = 32;
constexpr bool kDotsBf16 = false;

static inline F32 as_f32(I32 v) { return vreinterpretq_f32_s32(v); }
static inline I32 as_i32(F32 v) { return vreinterpretq_s32_f32(v); }

static inline F32 zero() { return vdupq_n_f32(0.0f); }
static inline F32 set1(float value) { return vdupq_n_f32(value); }
static inline I32 set1(int32_t value) { return vdupq_n_s32(value); }
static inline I32 lane_ids() { return I32{0, 1, 2, 3}; }

static inline F32 load(const float* p) { return vld1q_f32(p); }
static inline void store(float* p, F32 v) { vst1q_f32(p, v); }
static inline I32 load(const int32_t* p) { return vld1q_s32(p); }
static inline void store(int32_t* p, I32 v) { vst1q_s32(p, v); }

static inline F32 add(F32 a, F32 b) { return vaddq_f32(a, b); }
static inline F32 sub(F32 a, F32 b) { return vsubq_f32(a, b); }
static inline F32 mul(F32 a, F32 b) { return vmulq_f32(a, b); }
static inline F32 div(F32 a, F32 b) { return vdivq_f32(a, b); }
static inline F32 fma(F32 a, F32 b, F32 c) { return vfmaq_f32(c, a, b); }
static inline F32 min(F32 a, F32 b) { return vminq_f32(a, b); }
static inline F32 max(F32 a, F32 b) { return vmaxq_f32(a, b); }
static inline F32 neg(F32 v) { return vnegq_f32(v); }
static inline F32 abs(F32 v) { return vabsq_f32(v); }
static inline F32 sqrt(F32 v) { return vsqrtq_f32(v); }

static inline float reduce_add(F32 v) {
    float32x2_t two = vadd_f32(vget_low_f32(v), vget_high_f32(v));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

static inline float reduce_max(F32 v) { return vmaxvq_f32(v); }

static inline I32 add(I32 a, I32 b) { return vaddq_s32(a, b); }
static inline I32 sub(I32 a, I32 b) { return vsubq_s32(a, b); }
static inline I32 mul(I32 a, I32 b) { return vmulq_s32(a, b); }
static inline I32 bit_and(I32 a, I32 b) { return vandq_s32(a, b); }
static inline I32 bit_or(I32 a, I32 b) { return vorrq_s32(a, b); }
template <int n> static inline I32 shift_left(I32 v) { return vshlq_n_s32(v, n); }
template <int n> static inline I32 shift_right(I32 v) { return vshrq_n_s32(v, n); }

static inline Mask less(F32 a, F32 b) { return vcltq_f32(a, b); }
static inline Mask equal(F32 a, F32 b) { return vceqq_f32(a, b); }
static inline Mask less(I32 a, I32 b) { return vcltq_s32(a, b); }
static inline Mask equal(I32 a, I32 b) { return vceqq_s32(a, b); }
static inline F32 select(Mask mask, F32 a, F32 b) { return vbslq_f32(mask, a, b); }
static inline I32 select(Mask mask, I32 a, I32 b) { return vbslq_s32(mask, a, b); }
static inline bool any(Mask mask) { return vmaxvq_u32(mask) != 0; }

static inline F32 round(F32 v) { return vrndnq_f32(v); }
static inline I32 to_i32(F32 v) { return vcvtnq_s32_f32(v); }
static inline F32 to_f32(I32 v) { return vcvtq_f32_s32(v); }

static inline I32 load_i8(const int8_t* p) {
    int32_t word;
    std::memcpy(&word, p, sizeof word);
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(word)))));
}

static inline void store_i8(int8_t* p, I32 v) {
    int16x4_t words = vmovn_s32(v);
    int32_t word = vget_lane_s32(vreinterpret_s32_s8(vmovn_s16(vcombine_s16(words, words))), 0);
    std::memcpy(p, &word, sizeof word);
}

static inline F32 load_bf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
static inline F32 load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }

static inline void store_bf16(uint16_t* p, F32 v) {
    uint32x4_t bits = vreinterpretq_u32_f32(v);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint16x4_t rounded = vshrn_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
    uint16x4_t quiet = vorr_u16(vshrn_n_u32(bits, 16), vdup_n_u16(0x40));
    vst1_u16(p, vbsl_u16(vmovn_u32(vceqq_f32(v, v)), rounded, quiet));
}

struct F64 {
    float64x2_t low, high;
};

static inline F64 add_wide(F64 sum, F32 v) {
    return {vaddq_f64(sum.low, vcvt_f64_f32(vget_low_f32(v))), vaddq_f64(sum.high, vcvt_high_f64_f32(v))};
}

static inline double reduce_add(F64 sum) {
    float64x2_t two = vaddq_f64(sum.low, sum.high);
    return vgetq_lane_f64(two, 0) + vgetq_lane_f64(two, 1);
}

struct U6Bytes {
    int32x4_t bytes;
};

struct U6Sum {
    int32x4_t total;
};

struct I8Bytes {
    int8x16_t bytes;
};

static inline I8Bytes i8_bytes(I32 w) { return {vreinterpretq_s8_s32(w)}; }
static inline I32 dot(I32 sum, I8Bytes w, I32 x) { return vdotq_s32(sum, w.bytes, vreinterpretq_s8_s32(x)); }
static inline U6Sum dot(U6Sum sum, U6Bytes w, I32 x) { return {dot(sum.total, i8_bytes(w.bytes), x)}; }
static inline U6Sum u6_sum(I32 pairs) {
    return {add(shift_right<16>(shift_left<16>(pairs)), shift_right<16>(pairs))};
}
static inline I32 to_i32(U6Sum sum) { return sum.total; }

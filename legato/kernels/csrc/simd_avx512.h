// Sixteen lanes: x86-64 with AVX-512 F, BW, DQ and VL; products of bytes and of bfloat16 pairs by VNNI and BF16 where
// the translation unit is compiled for them.

using F32 = __m512;
using I32 = __m512i;
using Mask = __mmask16;

constexpr int64_t kLanes = 16;
constexpr int kRegisters = 32;

static inline F32 as_f32(I32 v) { return _mm512_castsi512_ps(v); }
static inline I32 as_i32(F32 v) { return _mm512_castps_si512(v); }

static inline F32 zero() { return _mm512_setzero_ps(); }
static inline F32 set1(float value) { return _mm512_set1_ps(value); }
static inline I32 set1(int32_t value) { return _mm512_set1_epi32(value); }
static inline I32 lane_ids() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

static inline F32 load(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, F32 v) { _mm512_storeu_ps(p, v); }
static inline I32 load(const int32_t* p) { return _mm512_loadu_si512(p); }
static inline void store(int32_t* p, I32 v) { _mm512_storeu_si512(p, v); }
static inline __m256i load_u16x16(const uint16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

static inline F32 add(F32 a, F32 b) { return _mm512_add_ps(a, b); }
static inline F32 sub(F32 a, F32 b) { return _mm512_sub_ps(a, b); }
static inline F32 mul(F32 a, F32 b) { return _mm512_mul_ps(a, b); }
static inline F32 div(F32 a, F32 b) { return _mm512_div_ps(a, b); }
static inline F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
static inline F32 min(F32 a, F32 b) { return _mm512_min_ps(a, b); }
static inline F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }
static inline F32 neg(F32 v) { return _mm512_xor_ps(v, set1(-0.0f)); }
static inline F32 abs(F32 v) { return _mm512_abs_ps(v); }
static inline F32 sqrt(F32 v) { return _mm512_sqrt_ps(v); }

static inline float reduce_add(F32 v) {
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline float reduce_max(F32 v) {
    __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

static inline I32 add(I32 a, I32 b) { return _mm512_add_epi32(a, b); }
static inline I32 sub(I32 a, I32 b) { return _mm512_sub_epi32(a, b); }
static inline I32 mul(I32 a, I32 b) { return _mm512_mullo_epi32(a, b); }
static inline I32 bit_and(I32 a, I32 b) { return _mm512_and_si512(a, b); }
static inline I32 bit_or(I32 a, I32 b) { return _mm512_or_si512(a, b); }
template <int n> static inline I32 shift_left(I32 v) { return _mm512_slli_epi32(v, n); }
template <int n> static inline I32 shift_right(I32 v) { return _mm512_srai_epi32(v, n); }

static inline Mask less(F32 a, F32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static inline Mask equal(F32 a, F32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
static inline Mask less(I32 a, I32 b) { return _mm512_cmplt_epi32_mask(a, b); }
static inline Mask equal(I32 a, I32 b) { return _mm512_cmpeq_epi32_mask(a, b); }
static inline F32 select(Mask mask, F32 a, F32 b) { return _mm512_mask_blend_ps(mask, b, a); }
static inline I32 select(Mask mask, I32 a, I32 b) { return _mm512_mask_blend_epi32(mask, b, a); }
static inline bool any(Mask mask) { return mask != 0; }

static inline F32 round(F32 v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline I32 to_i32(F32 v) { return _mm512_cvtps_epi32(v); }
static inline F32 to_f32(I32 v) { return _mm512_cvtepi32_ps(v); }

static inline I32 load_i8(const int8_t* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

static inline void store_i8(int8_t* p, I32 v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
}

static inline F32 load_bf16(const uint16_t* p) { return as_f32(shift_left<16>(_mm512_cvtepu16_epi32(load_u16x16(p)))); }
static inline F32 load_f16(const uint16_t* p) { return _mm512_cvtph_ps(load_u16x16(p)); }

// Not the instruction of BF16, which takes subnormals for zeros.
static inline void store_bf16(uint16_t* p, F32 v) {
    I32 bits = as_i32(v);
    I32 odd = bit_and(_mm512_srli_epi32(bits, 16), set1(1));
    I32 rounded = _mm512_srli_epi32(add(bits, add(odd, set1(0x7fff))), 16);
    I32 quiet = bit_or(_mm512_srli_epi32(bits, 16), set1(0x40));
    I32 words = select(equal(v, v), rounded, quiet);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(words));
}

struct F64 {
    __m512d low, high;
};

static inline F64 add_wide(F64 sum, F32 v) {
    return {_mm512_add_pd(sum.low, _mm512_cvtps_pd(_mm512_castps512_ps256(v))),
            _mm512_add_pd(sum.high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)))};
}

static inline double reduce_add(F64 sum) {
    __m512d eight = _mm512_add_pd(sum.low, sum.high);
    __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

// Products take unsigned by signed bytes, so a weight's sign goes over to x.
struct I8Bytes {
    __m512i magnitude;
    __mmask64 negative;
};

static inline I8Bytes i8_bytes(I32 w) { return {_mm512_abs_epi8(w), _mm512_movepi8_mask(w)}; }
static inline I32 signed_by(I8Bytes w, I32 x) { return _mm512_mask_sub_epi8(x, w.negative, _mm512_setzero_si512(), x); }

struct U6Bytes {
    __m512i bytes;
};

#ifdef __AVX512VNNI__

struct U6Sum {
    __m512i total;
};

static inline U6Sum dot(U6Sum sum, U6Bytes w, I32 x) { return {_mm512_dpbusd_epi32(sum.total, w.bytes, x)}; }
static inline U6Sum u6_sum(I32 pairs) {
    return {add(shift_right<16>(shift_left<16>(pairs)), shift_right<16>(pairs))};
}
static inline I32 to_i32(U6Sum sum) { return sum.total; }
static inline I32 dot(I32 sum, I8Bytes w, I32 x) { return _mm512_dpbusd_epi32(sum, w.magnitude, signed_by(w, x)); }

#else

// Pairs of products, at most 2 * 63 * 127, gather in 16 bits, which wrap around: the last sum alone must fit, as must
// 2 * 128 * 127 of 8-bit weights.
struct U6Sum {
    __m512i pairs;
};

// Left alone, the compiler adds products to each other before it adds them to a sum, and holds more of them than there
// are registers; it cannot see through this.
static inline I32 opaque(I32 v) {
    asm("" : "+v"(v));
    return v;
}

static inline I32 add_pairs(__m512i words) { return _mm512_madd_epi16(words, _mm512_set1_epi16(1)); }
static inline U6Sum dot(U6Sum sum, U6Bytes w, I32 x) {
    return {opaque(_mm512_add_epi16(sum.pairs, _mm512_maddubs_epi16(w.bytes, x)))};
}
static inline U6Sum u6_sum(I32 pairs) { return {pairs}; }
static inline I32 to_i32(U6Sum sum) { return add_pairs(sum.pairs); }
static inline I32 dot(I32 sum, I8Bytes w, I32 x) {
    return opaque(add(sum, add_pairs(_mm512_maddubs_epi16(w.magnitude, signed_by(w, x)))));
}

#endif

#ifdef __AVX512BF16__
constexpr bool kDotsBf16 = true;
static inline F32 dot_bf16(F32 sum, I32 w, I32 x) { return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x); }
#else
constexpr bool kDotsBf16 = false;
#endif

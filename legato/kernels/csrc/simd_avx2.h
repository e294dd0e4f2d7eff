// Eight lanes: x86-64 with AVX2, FMA and F16C.

using F32 = __m256;
using I32 = __m256i;
using Mask = __m256;  // all bits of a lane, or none

constexpr int64_t kLanes = 8;
constexpr int kRegisters = 16;
constexpr bool kDotsBf16 = false;

static inline F32 as_f32(I32 v) { return _mm256_castsi256_ps(v); }
static inline I32 as_i32(F32 v) { return _mm256_castps_si256(v); }

static inline F32 zero() { return _mm256_setzero_ps(); }
static inline F32 set1(float value) { return _mm256_set1_ps(value); }
static inline I32 set1(int32_t value) { return _mm256_set1_epi32(value); }
static inline I32 lane_ids() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }

static inline F32 load(const float* p) { return _mm256_loadu_ps(p); }
static inline void store(float* p, F32 v) { _mm256_storeu_ps(p, v); }
static inline I32 load(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
static inline void store(int32_t* p, I32 v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
static inline __m128i load_u16x8(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

static inline F32 add(F32 a, F32 b) { return _mm256_add_ps(a, b); }
static inline F32 sub(F32 a, F32 b) { return _mm256_sub_ps(a, b); }
static inline F32 mul(F32 a, F32 b) { return _mm256_mul_ps(a, b); }
static inline F32 div(F32 a, F32 b) { return _mm256_div_ps(a, b); }
static inline F32 fma(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }
static inline F32 min(F32 a, F32 b) { return _mm256_min_ps(a, b); }
static inline F32 max(F32 a, F32 b) { return _mm256_max_ps(a, b); }
static inline F32 neg(F32 v) { return _mm256_xor_ps(v, set1(-0.0f)); }
static inline F32 abs(F32 v) { return _mm256_andnot_ps(set1(-0.0f), v); }
static inline F32 sqrt(F32 v) { return _mm256_sqrt_ps(v); }

static inline float reduce_add(F32 v) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline float reduce_max(F32 v) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

static inline I32 add(I32 a, I32 b) { return _mm256_add_epi32(a, b); }
static inline I32 sub(I32 a, I32 b) { return _mm256_sub_epi32(a, b); }
static inline I32 mul(I32 a, I32 b) { return _mm256_mullo_epi32(a, b); }
static inline I32 bit_and(I32 a, I32 b) { return _mm256_and_si256(a, b); }
static inline I32 bit_or(I32 a, I32 b) { return _mm256_or_si256(a, b); }
template <int n> static inline I32 shift_left(I32 v) { return _mm256_slli_epi32(v, n); }
template <int n> static inline I32 shift_right(I32 v) { return _mm256_srai_epi32(v, n); }

static inline Mask less(F32 a, F32 b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
static inline Mask equal(F32 a, F32 b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
static inline Mask less(I32 a, I32 b) { return as_f32(_mm256_cmpgt_epi32(b, a)); }
static inline Mask equal(I32 a, I32 b) { return as_f32(_mm256_cmpeq_epi32(a, b)); }
static inline F32 select(Mask mask, F32 a, F32 b) { return _mm256_blendv_ps(b, a, mask); }
static inline I32 select(Mask mask, I32 a, I32 b) { return as_i32(_mm256_blendv_ps(as_f32(b), as_f32(a), mask)); }
static inline bool any(Mask mask) { return _mm256_movemask_ps(mask) != 0; }

static inline F32 round(F32 v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline I32 to_i32(F32 v) { return _mm256_cvtps_epi32(v); }
static inline F32 to_f32(I32 v) { return _mm256_cvtepi32_ps(v); }

static inline I32 load_i8(const int8_t* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

static inline void store_i8(int8_t* p, I32 v) {
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}

static inline F32 load_bf16(const uint16_t* p) { return as_f32(shift_left<16>(_mm256_cvtepu16_epi32(load_u16x8(p)))); }
static inline F32 load_f16(const uint16_t* p) { return _mm256_cvtph_ps(load_u16x8(p)); }

static inline void store_bf16(uint16_t* p, F32 v) {
    I32 bits = as_i32(v);
    I32 odd = bit_and(_mm256_srli_epi32(bits, 16), set1(1));
    I32 rounded = _mm256_srli_epi32(add(bits, add(odd, set1(0x7fff))), 16);
    I32 quiet = bit_or(_mm256_srli_epi32(bits, 16), set1(0x40));
    I32 words = select(equal(v, v), rounded, quiet);
    __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}

struct F64 {
    __m256d low, high;
};

static inline F64 add_wide(F64 sum, F32 v) {
    return {_mm256_add_pd(sum.low, _mm256_cvtps_pd(_mm256_castps256_ps128(v))),
            _mm256_add_pd(sum.high, _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)))};
}

static inline double reduce_add(F64 sum) {
    __m256d four = _mm256_add_pd(sum.low, sum.high);
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

struct U6Bytes {
    __m256i bytes;
};

// Pairs of products, at most 2 * 63 * 127, gather in 16 bits, which wrap around: the last sum alone must fit.
struct U6Sum {
    __m256i pairs;
};

// maddubs takes unsigned by signed bytes, so a weight's sign goes over to x; 2 * 128 * 127 stays below 2^15.
struct I8Bytes {
    __m256i magnitude, sign;
};

// Left alone, the compiler adds products to each other before it adds them to a sum, and holds more of them than there
// are registers; it cannot see through this.
static inline I32 opaque(I32 v) {
    asm("" : "+x"(v));
    return v;
}

static inline I32 add_pairs(__m256i words) { return _mm256_madd_epi16(words, _mm256_set1_epi16(1)); }
static inline U6Sum dot(U6Sum sum, U6Bytes w, I32 x) {
    return {opaque(_mm256_add_epi16(sum.pairs, _mm256_maddubs_epi16(w.bytes, x)))};
}
static inline U6Sum u6_sum(I32 pairs) { return {pairs}; }
static inline I32 to_i32(U6Sum sum) { return add_pairs(sum.pairs); }
static inline I8Bytes i8_bytes(I32 w) { return {_mm256_abs_epi8(w), w}; }
static inline I32 dot(I32 sum, I8Bytes w, I32 x) {
    return opaque(add(sum, add_pairs(_mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8(x, w.sign)))));
}

// The instructions of AVX-512 that the kernels use, in plain C++, for machines without them: included before all else.
// Source: the Intel Intrinsics Guide.
#pragma once
#include <immintrin.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#if defined(LEGATO_EMULATE_VNNI_BF16)
#define __AVX512VNNI__
#define __AVX512BF16__
#endif

namespace emulated {

using F = __m512;
using I = __m512i;
using D = __m512d;

template <typename To, typename From>
To cast(const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

template <typename T, typename V>
using Lanes = std::array<T, sizeof(V) / sizeof(T)>;

// Each lane of V, of type T, is op of those of the arguments.
template <typename T, typename V, typename Op>
V lanes(Op op, V a) {
    auto x = cast<Lanes<T, V>>(a);
    for (auto& each : x) each = op(each);
    return cast<V>(x);
}

template <typename T, typename V, typename Op>
V lanes(Op op, V a, V b) {
    auto x = cast<Lanes<T, V>>(a);
    const auto y = cast<Lanes<T, V>>(b);
    for (size_t i = 0; i < x.size(); ++i) x[i] = op(x[i], y[i]);
    return cast<V>(x);
}

template <typename T, typename V>
V set1(T value) {
    Lanes<T, V> x;
    x.fill(value);
    return cast<V>(x);
}

template <typename To, typename R, typename From, typename V>
R convert(V v) {
    const auto x = cast<Lanes<From, V>>(v);
    Lanes<To, R> out;
    static_assert(x.size() == out.size());
    for (size_t i = 0; i < x.size(); ++i) out[i] = static_cast<To>(x[i]);
    return cast<R>(out);
}

template <typename T, typename V, typename Op>
__mmask16 compare(Op op, V a, V b) {
    const auto x = cast<Lanes<T, V>>(a), y = cast<Lanes<T, V>>(b);
    unsigned mask = 0;
    for (size_t i = 0; i < x.size(); ++i) mask |= static_cast<unsigned>(op(x[i], y[i])) << i;
    return static_cast<__mmask16>(mask);
}

// b where the mask has a bit, else a.
template <typename T, typename V>
V blend(uint64_t mask, V a, V b) {
    auto x = cast<Lanes<T, V>>(a);
    const auto y = cast<Lanes<T, V>>(b);
    for (size_t i = 0; i < x.size(); ++i) {
        if (mask >> i & 1) x[i] = y[i];
    }
    return cast<V>(x);
}

template <typename Half, typename V>
Half half(V v, int which) {
    return cast<std::array<Half, 2>>(v)[static_cast<size_t>(which)];
}

template <typename V>
V load(const void* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline __mmask64 signs(I v) {
    const auto x = cast<Lanes<int8_t, I>>(v);
    uint64_t mask = 0;
    for (size_t i = 0; i < x.size(); ++i) mask |= static_cast<uint64_t>(x[i] < 0) << i;
    return mask;
}

inline int16_t saturated(int32_t v) { return static_cast<int16_t>(v < -32768 ? -32768 : v > 32767 ? 32767 : v); }

inline I maddubs(I a, I b) {
    const auto x = cast<Lanes<uint8_t, I>>(a);
    const auto y = cast<Lanes<int8_t, I>>(b);
    Lanes<int16_t, I> out;
    for (size_t i = 0; i < out.size(); ++i) out[i] = saturated(x[2 * i] * y[2 * i] + x[2 * i + 1] * y[2 * i + 1]);
    return cast<I>(out);
}

inline I madd(I a, I b) {
    const auto x = cast<Lanes<int16_t, I>>(a), y = cast<Lanes<int16_t, I>>(b);
    Lanes<int32_t, I> out;
    for (size_t i = 0; i < out.size(); ++i) out[i] = x[2 * i] * y[2 * i] + x[2 * i + 1] * y[2 * i + 1];
    return cast<I>(out);
}

inline I dpbusd(I sum, I a, I b) {
    auto out = cast<Lanes<int32_t, I>>(sum);
    const auto x = cast<Lanes<uint8_t, I>>(a);
    const auto y = cast<Lanes<int8_t, I>>(b);
    for (size_t i = 0; i < x.size(); ++i) out[i / 4] += x[i] * y[i];
    return cast<I>(out);
}

inline float of_bf16(uint16_t bits) { return cast<float>(static_cast<uint32_t>(bits) << 16); }

inline F dpbf16(F sum, __m512bh a, __m512bh b) {
    auto out = cast<Lanes<float, F>>(sum);
    const auto x = cast<Lanes<uint16_t, F>>(a), y = cast<Lanes<uint16_t, F>>(b);
    for (size_t i = 0; i < out.size(); ++i) {
        out[i] += of_bf16(x[2 * i + 1]) * of_bf16(y[2 * i + 1]);
        out[i] += of_bf16(x[2 * i]) * of_bf16(y[2 * i]);
    }
    return cast<F>(out);
}

inline F of_halves(__m256i v) {
    const std::array<__m256, 2> out{_mm256_cvtph_ps(half<__m128i>(v, 0)), _mm256_cvtph_ps(half<__m128i>(v, 1))};
    return cast<F>(out);
}

inline uint32_t u32(int32_t v) { return static_cast<uint32_t>(v); }

// Each argument is read once; the compiler takes what is `T, V` for two arguments of a macro, so these are functions.
template <typename Op> F f32(Op op, F a, F b) { return lanes<float>(op, a, b); }
template <typename Op> F f32(Op op, F a) { return lanes<float>(op, a); }
template <typename Op> I i32(Op op, I a, I b) { return lanes<uint32_t>(op, a, b); }
template <typename Op> I i32(Op op, I a) { return lanes<uint32_t>(op, a); }

inline F add(F a, F b) { return f32([](float x, float y) { return x + y; }, a, b); }
inline F sub(F a, F b) { return f32([](float x, float y) { return x - y; }, a, b); }
inline F mul(F a, F b) { return f32([](float x, float y) { return x * y; }, a, b); }
inline F div(F a, F b) { return f32([](float x, float y) { return x / y; }, a, b); }
inline F min(F a, F b) { return f32([](float x, float y) { return x < y ? x : y; }, a, b); }
inline F max(F a, F b) { return f32([](float x, float y) { return x > y ? x : y; }, a, b); }
inline F abs(F v) { return f32([](float x) { return std::fabs(x); }, v); }
inline F sqrt(F v) { return f32([](float x) { return std::sqrt(x); }, v); }
inline F round(F v) { return f32([](float x) { return std::nearbyint(x); }, v); }
inline F exclusive_or(F a, F b) { return cast<F>(i32([](uint32_t x, uint32_t y) { return x ^ y; }, cast<I>(a), cast<I>(b))); }
inline F fma(F a, F b, F c) {
    auto x = cast<Lanes<float, F>>(a);
    const auto y = cast<Lanes<float, F>>(b), z = cast<Lanes<float, F>>(c);
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::fma(x[i], y[i], z[i]);
    return cast<F>(x);
}
inline I add(I a, I b) { return i32([](uint32_t x, uint32_t y) { return x + y; }, a, b); }
inline I sub(I a, I b) { return i32([](uint32_t x, uint32_t y) { return x - y; }, a, b); }
inline I mul(I a, I b) { return i32([](uint32_t x, uint32_t y) { return x * y; }, a, b); }
inline I both(I a, I b) { return i32([](uint32_t x, uint32_t y) { return x & y; }, a, b); }
inline I either(I a, I b) { return i32([](uint32_t x, uint32_t y) { return x | y; }, a, b); }
inline I left(I v, int n) { return i32([n](uint32_t x) { return x << n; }, v); }
inline I right(I v, int n) { return i32([n](uint32_t x) { return x >> n; }, v); }
inline I right_signed(I v, int n) { return i32([n](uint32_t x) { return u32(static_cast<int32_t>(x) >> n); }, v); }
inline I add_words(I a, I b) {
    return lanes<uint16_t>([](uint16_t x, uint16_t y) { return static_cast<uint16_t>(x + y); }, a, b);
}
inline I abs_bytes(I v) { return lanes<uint8_t>([](uint8_t x) { return static_cast<uint8_t>(x < 128 ? x : 256 - x); }, v); }
inline I sub_bytes(I a, I b) {
    return lanes<uint8_t>([](uint8_t x, uint8_t y) { return static_cast<uint8_t>(x - y); }, a, b);
}
inline D add(D a, D b) { return lanes<double>([](double x, double y) { return x + y; }, a, b); }
inline I to_i32(F v) { return convert<int32_t, I, float>(round(v)); }
inline F to_f32(I v) { return convert<float, F, int32_t>(v); }
inline __mmask16 less(I a, I b) { return compare<int32_t>([](int32_t x, int32_t y) { return x < y; }, a, b); }
inline __mmask16 equal(I a, I b) { return compare<int32_t>([](int32_t x, int32_t y) { return x == y; }, a, b); }
inline __mmask16 compare_f32(F a, F b, int how) {
    return compare<float>([how](float x, float y) { return how == _CMP_LT_OQ ? x < y : x == y; }, a, b);
}
template <typename... T>
I of_numbers(T... numbers) {
    return cast<I>(Lanes<int32_t, I>{numbers...});
}

}  // namespace emulated

#define asm(...)  // constraints name registers that are not there
#undef _mm512_cmp_ps_mask
#undef _mm512_cmplt_epi32_mask
#undef _mm512_cmpeq_epi32_mask
#undef _mm512_extractf32x8_ps
#undef _mm512_extractf64x4_pd
#undef _mm512_roundscale_ps
#undef _mm512_setr_epi32
#undef _mm512_slli_epi32
#undef _mm512_srai_epi32
#undef _mm512_srli_epi32
#define _mm512_abs_epi8 emulated::abs_bytes
#define _mm512_abs_ps emulated::abs
#define _mm512_add_epi16 emulated::add_words
#define _mm512_add_epi32 emulated::add
#define _mm512_add_pd emulated::add
#define _mm512_add_ps emulated::add
#define _mm512_and_si512 emulated::both
#define _mm512_castpd512_pd256(v) emulated::half<__m256d>(v, 0)
#define _mm512_castps512_ps256(v) emulated::half<__m256>(v, 0)
#define _mm512_castps_si512 emulated::cast<__m512i>
#define _mm512_castsi512_ps emulated::cast<__m512>
#define _mm512_cmp_ps_mask emulated::compare_f32
#define _mm512_cmpeq_epi32_mask emulated::equal
#define _mm512_cmplt_epi32_mask emulated::less
#define _mm512_cvtepi32_epi16(v) emulated::convert<int16_t, __m256i, int32_t>(v)
#define _mm512_cvtepi32_epi8(v) emulated::convert<int8_t, __m128i, int32_t>(v)
#define _mm512_cvtepi32_ps emulated::to_f32
#define _mm512_cvtepi8_epi32(v) emulated::convert<int32_t, __m512i, int8_t>(v)
#define _mm512_cvtepu16_epi32(v) emulated::convert<int32_t, __m512i, uint16_t>(v)
#define _mm512_cvtph_ps emulated::of_halves
#define _mm512_cvtps_epi32 emulated::to_i32
#define _mm512_cvtps_pd(v) emulated::convert<double, __m512d, float>(v)
#define _mm512_div_ps emulated::div
#define _mm512_dpbf16_ps emulated::dpbf16
#define _mm512_dpbusd_epi32 emulated::dpbusd
#define _mm512_extractf32x8_ps(v, which) emulated::half<__m256>(v, which)
#define _mm512_extractf64x4_pd(v, which) emulated::half<__m256d>(v, which)
#define _mm512_fmadd_ps emulated::fma
#define _mm512_loadu_ps(p) emulated::load<__m512>(p)
#define _mm512_loadu_si512(p) emulated::load<__m512i>(p)
#define _mm512_madd_epi16 emulated::madd
#define _mm512_maddubs_epi16 emulated::maddubs
#define _mm512_mask_blend_epi32(mask, a, b) emulated::blend<int32_t>(mask, a, b)
#define _mm512_mask_blend_ps(mask, a, b) emulated::blend<float>(mask, a, b)
#define _mm512_mask_sub_epi8(x, mask, a, b) emulated::blend<int8_t>(mask, x, emulated::sub_bytes(a, b))
#define _mm512_max_ps emulated::max
#define _mm512_min_ps emulated::min
#define _mm512_movepi8_mask emulated::signs
#define _mm512_mul_ps emulated::mul
#define _mm512_mullo_epi32 emulated::mul
#define _mm512_or_si512 emulated::either
#define _mm512_roundscale_ps(v, how) emulated::round(v)
#define _mm512_set1_epi16(v) emulated::set1<int16_t, __m512i>(v)
#define _mm512_set1_epi32(v) emulated::set1<int32_t, __m512i>(v)
#define _mm512_set1_ps(v) emulated::set1<float, __m512>(v)
#define _mm512_setr_epi32 emulated::of_numbers
#define _mm512_setzero_ps() emulated::set1<float, __m512>(0)
#define _mm512_setzero_si512() emulated::set1<int32_t, __m512i>(0)
#define _mm512_slli_epi32 emulated::left
#define _mm512_sqrt_ps emulated::sqrt
#define _mm512_srai_epi32 emulated::right_signed
#define _mm512_srli_epi32 emulated::right
#define _mm512_storeu_ps(p, v) std::memcpy(p, &(v), sizeof(__m512))
#define _mm512_storeu_si512(p, v) std::memcpy(p, &(v), sizeof(__m512i))
#define _mm512_sub_epi32 emulated::sub
#define _mm512_sub_ps emulated::sub
#define _mm512_xor_ps emulated::exclusive_or

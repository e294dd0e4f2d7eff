// Activations, alone or as the gate of another value: silu(gate) * up is SwiGLU without its products.
#pragma once

#include "vector_math.h"

static inline F32 silu(F32 x) { return div(x, add(set1(1.0f), exp(neg(x)))); }

// x * Phi(x), Phi of the normal distribution: 2 Phi(-z) = erfc(z / sqrt 2) = e^(-z^2 / 2) t q(t), where
// t = 1 / (1 + 0.45 z / sqrt 2) and q is fitted for the least relative error: 3e-7. Source: arXiv:1606.08415.
static inline F32 gelu(F32 x) {
    constexpr float kFit[] = {0x1.0f290cp-4f, -0x1.e626d8p-3f, 0x1.a10eb8p-3f, 0x1.72f83ep-5f,
                              0x1.7cb7b8p-3f, 0x1.d4e02cp-3f,  0x1.0393aep-2f, 0x1.040338p-2f};
    const F32 t = div(set1(1.0f), fma(abs(x), set1(0.3181980515f), set1(1.0f)));
    F32 q = set1(kFit[0]);
    LEGATO_UNROLL for (int i = 1; i < 8; i++) q = fma(q, t, set1(kFit[i]));
    const F32 tail = mul(mul(q, t), mul(set1(0.5f), exp(mul(mul(x, x), set1(-0.5f)))));
    return mul(x, select(less(x, zero()), tail, sub(set1(1.0f), tail)));
}

// x (1 + tanh u) / 2 = x / (1 + e^(-2 u)), where u = sqrt(2 / pi) (x + 0.044715 x^3): close to gelu.
static inline F32 gelu_tanh(F32 x) {
    const F32 minus_2u = mul(x, fma(mul(x, x), set1(-0.0713548163f), set1(-1.5957691216f)));
    return div(x, add(set1(1.0f), exp(minus_2u)));
}

static inline F32 relu(F32 x) { return max(zero(), x); }

template <F32 (*function)(F32)>
static inline void activate_as(bool is_gated, const float* x, int64_t width, float* out, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        const float* in = x + row * (is_gated ? 2 * width : width);
        for (int64_t i = 0; i < width; i += kLanes) {
            const int64_t left = width - i;
            F32 value = function(load_up_to(in + i, left));
            if (is_gated) value = mul(value, load_up_to(in + width + i, left));
            store_up_to(out + row * width + i, value, left);
        }
    }
}

static void activate(Activation function, bool is_gated, const float* x, int64_t width, float* out, int64_t begin,
                     int64_t end) {
    switch (function) {
        case Activation::Silu: return activate_as<silu>(is_gated, x, width, out, begin, end);
        case Activation::Gelu: return activate_as<gelu>(is_gated, x, width, out, begin, end);
        case Activation::GeluTanh: return activate_as<gelu_tanh>(is_gated, x, width, out, begin, end);
        case Activation::Relu: return activate_as<relu>(is_gated, x, width, out, begin, end);
    }
}

static void soft_cap(const float* x, float cap, int64_t width, float* out, int64_t begin, int64_t end) {
    for (int64_t i = begin * width; i < end * width; i += kLanes) {
        const int64_t left = end * width - i;
        store_up_to(out + i, capped(load_up_to(x + i, left), cap), left);
    }
}

// What the checks of an instruction set share. Each check holds one table of kernels against the plain C++ one, or against
// a loop in double precision, and ends the program with what is wrong.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "ops.h"

namespace legato {

void check_products(const Kernels& kernels);
void check_row_kernels(const Kernels& kernels);
void check_attention(const Kernels& kernels);
void check_logits(const Kernels& kernels);

constexpr double kTolerance = 1e-5;

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

inline void check(bool holds, const std::string& what) {
    if (holds) return;
    std::fprintf(stderr, "failed: %s\n", what.c_str());
    std::exit(1);
}

template <typename T>
bool same_bits(const T* a, const T* b, size_t count) {
    return std::memcmp(a, b, count * sizeof(T)) == 0;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && same_bits(a.data(), b.data(), a.size());
}

// The norm of what they differ by over the norm of what is wanted; NaN if anything found is.
template <typename T>
double relative_error(const float* found, const T* wanted, size_t count) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; ++i) {
        const double w = wanted[i], d = found[i] - w;
        difference += d * d;
        norm += w * w;
    }
    return std::sqrt(difference / norm);
}

template <typename T>
void check_near(const float* found, const T* wanted, size_t count, const std::string& what) {
    const double error = relative_error(found, wanted, count);
    check(error < kTolerance, what + ": relative error " + std::to_string(error));
}

inline bool is_same(float found, float wanted) { return found == wanted || (found != found && wanted != wanted); }

inline bool is_near(float found, float wanted) {
    return is_same(found, wanted) || std::fabs(found - wanted) <= kTolerance * std::fabs(wanted) + 1e-37;
}

class Random {
 public:
    explicit Random(uint32_t seed) : bits_(seed) {}

    uint32_t bits() { return static_cast<uint32_t>(bits_()); }
    int below(int bound) { return static_cast<int>(bits() % static_cast<uint32_t>(bound)); }
    float uniform() { return static_cast<float>(below(2'000'001) - 1'000'000) * 1e-6f; }  // -1 to 1
    float normal() { return uniform() + uniform() + uniform(); }                            // nearly: its variance is 1

    Floats normals(int64_t count) {
        Floats numbers(static_cast<size_t>(count));
        for (auto& number : numbers) number = normal();
        return numbers;
    }

 private:
    std::mt19937 bits_;
};

inline float float_of_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint32_t bits_of_float(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float value_of_bf16(uint16_t bits) { return float_of_bits(static_cast<uint32_t>(bits) << 16); }

inline float value_of_half(uint16_t bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const double magnitude = exponent == 31  ? (mantissa ? NAN : INFINITY)
                             : exponent == 0 ? std::ldexp(mantissa, -24)
                                             : std::ldexp(1024 + mantissa, exponent - 25);
    return static_cast<float>(bits >> 15 ? -magnitude : magnitude);
}

}  // namespace legato

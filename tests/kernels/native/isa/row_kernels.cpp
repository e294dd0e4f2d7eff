// Roundings, norms and activations of rows.
#include <functional>

#include "checks.h"
#include "rounded_rows.h"

namespace legato {

namespace {

constexpr int64_t kNumRows = 5;
constexpr int64_t kWidths[] = {1, 3, 4, 5, 8, 17, 64, 577};

using RowKernel = std::function<void(const Kernels&, const float* x, float* out, int64_t begin, int64_t end)>;

// Rows of x, `in_width` wide, become rows of `out`: near those of plain C++, and each alone with the bits that it has among
// the others.
void check_rows(const Kernels& kernels, const RowKernel& run, const Floats& x, int64_t in_width, int64_t out_width,
                const std::string& what) {
    Floats found(static_cast<size_t>(kNumRows * out_width), NAN), wanted = found;
    run(kernels, x.data(), found.data(), 2, kNumRows);
    run(kernels, x.data(), found.data(), 0, 2);
    run(scalar_kernels(), x.data(), wanted.data(), 0, kNumRows);
    for (size_t i = 0; i < found.size(); ++i) {
        check(std::fabs(found[i] - wanted[i]) <= kTolerance * std::fabs(wanted[i]) + kTolerance, what + ": one number");
    }
    check_near(found.data(), wanted.data(), found.size(), what);
    for (int64_t row = 0; row < kNumRows; ++row) {
        const Floats in(x.begin() + row * in_width, x.begin() + (row + 1) * in_width);
        Floats alone(static_cast<size_t>(out_width), NAN);
        run(kernels, in.data(), alone.data(), 0, 1);
        check(same_bits(alone.data(), found.data() + row * out_width, alone.size()), what + ": bits alone");
    }
}

void check_norms(const Kernels& kernels, int64_t width, Random& random) {
    const auto what = std::string(kernels.name) + ", norm of " + std::to_string(width);
    const auto x = random.normals(kNumRows * width), weight = random.normals(width), bias = random.normals(width);
    const auto rms = [&](const Kernels& set, const float* in, float* out, int64_t begin, int64_t end) {
        set.rms_norm(in, weight.data(), 1e-5f, width, out, begin, end);
    };
    const auto layer = [&](const Kernels& set, const float* in, float* out, int64_t begin, int64_t end) {
        set.layer_norm(in, weight.data(), bias.data(), 1e-5f, width, out, begin, end);
    };
    check_rows(kernels, rms, x, width, width, what + ", rms");
    check_rows(kernels, layer, x, width, width, what + ", layer");
}

void check_activations(const Kernels& kernels, int64_t width, Random& random) {
    for (const auto function : {Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::Relu}) {
        for (const bool is_gated : {false, true}) {
            const auto in_width = is_gated ? 2 * width : width;
            auto x = random.normals(kNumRows * in_width);
            for (auto& value : x) value *= 3;
            const auto run = [&](const Kernels& set, const float* in, float* out, int64_t begin, int64_t end) {
                set.activate(function, is_gated, in, width, out, begin, end);
            };
            check_rows(kernels, run, x, in_width, width,
                       std::string(kernels.name) + ", activation " + std::to_string(static_cast<int>(function)) +
                           (is_gated ? ", gated, of " : " of ") + std::to_string(width));
        }
    }
}

// Where exponentials end, and what is no number.
void check_extremes(const Kernels& kernels) {
    const Floats x = {0.0f,   -0.0f,  1e-30f, -1e-30f, 5.0f,   -5.0f, 13.2f, -13.2f,   86.0f,     -86.0f,
                      100.0f, -100.f, 1e30f,  -1e30f,  88.37f, -88.f, NAN,   INFINITY, -INFINITY, 1e-45f};
    const auto width = static_cast<int64_t>(x.size());
    for (const auto function : {Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::Relu}) {
        Floats found(x.size()), wanted(x.size());
        kernels.activate(function, false, x.data(), width, found.data(), 0, 1);
        scalar_kernels().activate(function, false, x.data(), width, wanted.data(), 0, 1);
        for (size_t i = 0; i < x.size(); ++i) {
            check(is_near(found[i], wanted[i]), std::string(kernels.name) + ", activation " +
                                                    std::to_string(static_cast<int>(function)) + " of " +
                                                    std::to_string(x[i]) + ": " + std::to_string(found[i]));
        }
    }
}

// Every half there is in bfloat16, with what lies around the middle to its neighbour.
void check_bfloat16(const Kernels& kernels) {
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
        Floats x(1 << 16);
        for (uint32_t high = 0; high < x.size(); ++high) x[high] = float_of_bits(high << 16 | low);
        std::vector<uint16_t> found(x.size()), wanted(x.size());
        kernels.round_rows(x.data(), static_cast<int64_t>(x.size()), found.data(), 0, 1);
        scalar_kernels().round_rows(x.data(), static_cast<int64_t>(x.size()), wanted.data(), 0, 1);
        check(same_bits(found, wanted), std::string(kernels.name) + ", rounding to bfloat16");
    }
}

// The first 8 bits are as those of plain C++; the finer ones come nearer to x.
void check_int8(const Kernels& kernels, int64_t width, Random& random) {
    const auto what = std::string(kernels.name) + ", rounding to int8, " + std::to_string(width);
    auto x = random.normals(kNumRows * width);
    for (int64_t i = 0; i < width; ++i) {
        x[static_cast<size_t>(width + i)] *= i / kGroup % 3 == 1 ? 40.0f : 1.0f;
        x[static_cast<size_t>(2 * width + i)] *= i / kGroup == 0 ? 0.0f : i / kGroup == 1 ? 1e-33f : 1e-12f;
    }
    x[static_cast<size_t>(3 * width)] = NAN;
    x[static_cast<size_t>(4 * width)] = INFINITY;
    const OwnedInt8Rows found(kernels, x, kNumRows, width), wanted(scalar_kernels(), x, kNumRows, width);
    check(same_bits(found.q, wanted.q), what + ": q");
    check(same_bits(found.refined, wanted.refined), what + ": refined");
    check(same_bits(found.offsets, wanted.offsets), what + ": offsets");
    for (size_t i = 0; i < found.scales.size(); ++i) {
        check(is_same(found.scales[i], wanted.scales[i]), what + ": scales");
        check(is_same(found.sums[i], wanted.sums[i]), what + ": sums");
    }
    for (int64_t row = 0; row < 3; ++row) {
        check(row != 1 || width / kGroup < 4 || found.refined_of(row)[0] > 0, what + ": outliers are refined");
        const auto exact = found.exact(row);
        for (int64_t g = 0; g < width / kGroup; ++g) {
            bool is_refined = false;
            for (int32_t i = 0; i < found.refined_of(row)[0]; ++i) is_refined |= found.refined_of(row)[1 + i] == g;
            const double scale = found.scales[static_cast<size_t>(row * (width / kGroup) + g)];
            for (int64_t k = g * kGroup; k < (g + 1) * kGroup; ++k) {
                const double off = std::fabs(exact[static_cast<size_t>(k)] - x[static_cast<size_t>(row * width + k)]);
                check(off <= scale * (is_refined ? 0.51 / 254 : 0.501) + 1e-32, what + ": near x");
            }
        }
    }
}

}  // namespace

void check_row_kernels(const Kernels& kernels) {
    Random random(1);
    for (const auto width : kWidths) {
        check_norms(kernels, width, random);
        check_activations(kernels, width, random);
    }
    check_extremes(kernels);
    check_bfloat16(kernels);
    for (const int64_t width : {32, 64, 96, 576}) check_int8(kernels, width, random);
    const auto numbers = random.normals(1000);
    double sum = 0;
    for (size_t i = 3; i < 998; ++i) sum += numbers[i];
    check(std::fabs(kernels.probe_read(numbers.data(), 3, 998) - sum) < 1e-3, std::string(kernels.name) + ", sum");
}

}  // namespace legato

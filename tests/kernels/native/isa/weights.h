// Weights of every kind that files hold, drawn at random, and the same numbers in double precision.
#pragma once

#include <cstddef>

#include "checks.h"

namespace legato {

struct Kind {
    const char* name;
    Format format;
    bool has_minimums;  // Q4, Q5: of its own, as Q4_1; otherwise those of Q4_0, 8 scales below zero
};

constexpr Kind kKinds[] = {{"f32", Format::F32, false},   {"bf16", Format::BF16, false}, {"f16", Format::F16, false},
                           {"q4_0", Format::Q4, false},   {"q4_1", Format::Q4, true},    {"q8_0", Format::Q8, false},
                           {"int8", Format::I8, false},  {"q5_0", Format::Q5, false},    {"q5_1", Format::Q5, true},
                           {"q6_k", Format::Q6, false}};

inline bool is_quantised(Format format) {
    return format != Format::F32 && format != Format::BF16 && format != Format::F16;
}

// Bytes of a group's values in the source.
inline size_t group_bytes(Format format) {
    return format == Format::Q4 ? 16 : format == Format::Q5 ? 20 : format == Format::Q6 ? 26 : 32;
}

// Number k of the group whose bytes begin here: as legato/backends/group_packing.py puts it there.
inline int32_t integer(Format format, const uint8_t* group, size_t k) {
    if (format == Format::Q8 || format == Format::I8) return static_cast<int8_t>(group[k]);
    const uint8_t* nibbles = group + (format == Format::Q6 ? 2 : 0);
    const uint8_t* above = nibbles + 16;
    const size_t half = k / 16, place = k % 16;
    const int32_t low = half ? nibbles[place] >> 4 : nibbles[place] & 15;
    if (format == Format::Q5) return low + (above[k % 4] >> k / 4 & 1) * 16;
    if (format == Format::Q6) return low + (above[4 * half + k % 4] >> 2 * (place / 4) & 3) * 16 - 32;
    return low;
}

struct Matrix {
    Kind kind;
    int64_t outputs, inputs;
    std::vector<uint32_t> values;  // as WeightSource has them
    Floats scales, minimums;
    Doubles exact;  // [outputs, inputs]

    Matrix(const Kind& of_kind, int64_t num_outputs, int64_t num_inputs, Random& random)
        : kind(of_kind), outputs(num_outputs), inputs(num_inputs) {
        const auto count = static_cast<size_t>(outputs * inputs);
        values.resize(count);
        exact.resize(count);
        is_quantised(kind.format) ? fill_integers(random) : fill_floats(random);
    }

    WeightSource source() const {
        return {kind.format, outputs, inputs, values.data(), scales.data(), minimums.data()};
    }

 private:
    void fill_floats(Random& random) {
        auto* floats = reinterpret_cast<float*>(values.data());
        auto* halves = reinterpret_cast<uint16_t*>(values.data());
        for (size_t i = 0; i < exact.size(); ++i) {
            const float value = random.normal();
            if (kind.format == Format::F32) {
                exact[i] = floats[i] = value;
            } else if (kind.format == Format::BF16) {
                halves[i] = static_cast<uint16_t>(bits_of_float(value) >> 16);
                exact[i] = value_of_bf16(halves[i]);
            } else {
                halves[i] = static_cast<uint16_t>((random.bits() & 0x83ff) | (8 + random.below(8)) << 10);
                exact[i] = value_of_half(halves[i]);
            }
        }
    }

    void fill_integers(Random& random) {
        auto* bytes = reinterpret_cast<uint8_t*>(values.data());
        const auto num_groups = static_cast<size_t>(inputs / kGroup);
        const auto num_scales = static_cast<size_t>(outputs) * (kind.format == Format::I8 ? 1 : num_groups);
        for (auto& word : values) word = random.bits();
        for (size_t i = 0; i < num_scales; ++i) {  // such as a half holds
            scales.push_back(std::ldexp(static_cast<float>(1 + random.below(1023)), -14));
            const auto minimum = std::ldexp(static_cast<float>(random.below(1024)), -11);
            minimums.push_back(kind.has_minimums ? -minimum : -8 * scales.back());
        }
        for (size_t i = 0; i < exact.size(); ++i) {
            const auto group = i / kGroup, in_group = i % kGroup;
            const uint8_t* values = bytes + group * group_bytes(kind.format);
            const double scale = scales[kind.format == Format::I8 ? i / static_cast<size_t>(inputs) : group];
            const double multiplier = kind.format == Format::Q6 ? static_cast<int8_t>(values[in_group / 16]) : 1;
            const bool is_above = kind.format == Format::Q4 || kind.format == Format::Q5;
            exact[i] = integer(kind.format, values, in_group) * scale * multiplier + (is_above ? minimums[group] : 0);
        }
    }
};

// A matrix in the layout of a set.
class Packed {
 public:
    Packed(const Kernels& kernels, const Matrix& matrix)
        : kernels_(kernels), num_panels_((matrix.outputs + kernels.panel_width - 1) / kernels.panel_width) {
        const auto num_bytes = kernels.packed_bytes(matrix.kind.format, matrix.outputs, matrix.inputs);
        bytes_.resize(static_cast<size_t>(num_bytes + kAlignment));
        auto* begin = bytes_.data() + (-reinterpret_cast<intptr_t>(bytes_.data()) & (kAlignment - 1));
        kernels.pack(matrix.source(), begin, num_panels_ / 2, num_panels_);
        kernels.pack(matrix.source(), begin, 0, num_panels_ / 2);
        weight_ = {matrix.kind.format, matrix.outputs, matrix.inputs, begin};
    }

    const PackedWeight& weight() const { return weight_; }
    int64_t num_panels() const { return num_panels_; }

    Floats row(int64_t output) const {
        Floats out(static_cast<size_t>(weight_.inputs));
        kernels_.unpack_row(weight_, output, out.data());
        return out;
    }

 private:
    static constexpr int64_t kAlignment = 64;

    const Kernels& kernels_;
    int64_t num_panels_;
    std::vector<std::byte> bytes_;
    PackedWeight weight_{};
};

}  // namespace legato

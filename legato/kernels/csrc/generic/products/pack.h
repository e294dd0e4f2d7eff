// How the weights of a product lie in memory, and how they come there and back.
//
// A panel holds kPanelWidth outputs, each in a lane of its own of kPanelVectors vectors. A product reads a panel from
// its first byte to its last; panels follow each other. Outputs past the last are zeros.
//
//   F32   for each input, a float for each output
//   F16   for each input, a half for each output
//   BF16  for each input and each two vectors, a word for each lane: the first vector's weight low, the second's high.
//         Where the set multiplies pairs of bfloat16 (kDotsBf16): for each two inputs, a word for each output.
//   Q4    for each group, a half scale for each output, then the half minimums, then 4 words for each output: byte b
//         of word i holds q[4 i + b] low and q[16 + 4 i + b] high, as in the source
//   Q5    the same, with a fifth word for each output: bit i of byte b is the highest of q[4 i + b]
//   Q6    for each group, a half scale for each output, then the int8 multipliers of first halves, then those of second
//         ones, then 6 words for each output: 4 as in Q4, of q + 32, then one for each half, whose byte b has the two
//         highest bits of its q[4 i + b] at bit 2 i
//   Q8    for each group, a half scale for each output, then 8 words for each output: four q each
//   I8    for each group, 8 words for each output; at the end, a float scale for each output
//
// Words lie as vectors are loaded: word i of every output, then word i + 1. Scales that come from halves, as in most
// files, are held exactly; others are rounded to the nearest half.
#pragma once

constexpr int kPanelVectors = 2;
constexpr int64_t kPanelWidth = kPanelVectors * kLanes;

constexpr bool has_minimums(Format format) { return format == Format::Q4 || format == Format::Q5; }
constexpr bool has_nibbles(Format format) { return has_minimums(format) || format == Format::Q6; }
constexpr bool is_grouped(Format format) { return has_nibbles(format) || format == Format::Q8 || format == Format::I8; }

// Bytes of one group before its words of weights.
constexpr int64_t group_head_bytes(Format format) {
    return has_nibbles(format) ? 4 * kPanelWidth : format == Format::Q8 ? 2 * kPanelWidth : 0;
}

constexpr int64_t group_words(Format format) {
    return format == Format::Q4 ? 4 : format == Format::Q5 ? 5 : format == Format::Q6 ? 6 : 8;
}

constexpr int64_t group_bytes(Format format) {
    return group_head_bytes(format) + 4 * group_words(format) * kPanelWidth;
}

// Bytes of a panel's weights for one input, of the formats without groups.
constexpr int64_t input_bytes(Format format) { return kPanelWidth * (format == Format::F32 ? 4 : 2); }

static inline int64_t panel_bytes(Format format, int64_t inputs) {
    const bool in_pairs = format == Format::BF16 && kDotsBf16;
    if (!is_grouped(format)) return input_bytes(format) * (inputs + (in_pairs ? inputs % 2 : 0));
    return inputs / kGroup * group_bytes(format) + (format == Format::I8 ? 4 * kPanelWidth : 0);
}

static inline int64_t packed_bytes(Format format, int64_t outputs, int64_t inputs) {
    return (outputs + kPanelWidth - 1) / kPanelWidth * panel_bytes(format, inputs);
}

// Where, among the 16-bit weights of a panel, output `lane` of the panel has its weight for input k.
static inline int64_t index_of_half(Format format, int64_t k, int64_t lane) {
    if (format == Format::F16) return k * kPanelWidth + lane;
    if (kDotsBf16) return k / 2 * 2 * kPanelWidth + 2 * lane + k % 2;
    int64_t vector = lane / kLanes;
    return k * kPanelWidth + vector / 2 * 2 * kLanes + lane % kLanes * 2 + vector % 2;
}

static inline uint16_t half_from_float(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    uint32_t half;
    if (magnitude > 0x7f800000) {
        half = 0x7e00;  // NaN
    } else if (magnitude >= 0x47800000) {
        half = 0x7c00;  // 2^16 and more: infinity
    } else if (magnitude < 0x38800000) {
        float aligned = (value < 0 ? -value : value) + 0.5f;  // a half's subnormals are steps of 0.5's last bit
        std::memcpy(&half, &aligned, sizeof half);
        half -= 0x3f000000;
    } else {
        half = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;  // to nearest even, in its own bias
    }
    return static_cast<uint16_t>(sign | half);
}

static inline float float_from_half(uint16_t half) {
    const uint16_t halves[kLanes] = {half};
    float floats[kLanes];
    store(floats, load_f16(halves));
    return floats[0];
}

static inline float float_from_bf16(uint16_t bits) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

// One output's groups, to its lane of a panel.
static inline void pack_groups(const WeightSource& source, int64_t output, std::byte* panel, int64_t lane) {
    const Format format = source.format;
    const int64_t num_multipliers = format == Format::Q6 ? 2 : 0;
    const int64_t num_groups = source.inputs / kGroup, source_bytes = num_multipliers + group_words(format) * 4;
    const auto* values = static_cast<const std::byte*>(source.values) + output * num_groups * source_bytes;
    for (int64_t g = 0; g < num_groups; g++, values += source_bytes) {
        std::byte* group = panel + g * group_bytes(format);
        auto* head = reinterpret_cast<uint16_t*>(group);
        if (format != Format::I8) head[lane] = half_from_float(source.scales[output * num_groups + g]);
        if (has_minimums(format)) {
            head[kPanelWidth + lane] = half_from_float(source.minimums[output * num_groups + g]);
        }
        for (int64_t half = 0; half < num_multipliers; half++) group[(2 + half) * kPanelWidth + lane] = values[half];
        std::byte* words = group + group_head_bytes(format);
        for (int64_t i = 0; i < group_words(format); i++) {
            std::memcpy(words + (i * kPanelWidth + lane) * 4, values + num_multipliers + i * 4, 4);
        }
    }
    auto* tail = reinterpret_cast<float*>(panel + num_groups * group_bytes(format));
    if (format == Format::I8) tail[lane] = source.scales[output];
}

static inline void pack_output(const WeightSource& source, int64_t output, std::byte* panel, int64_t lane) {
    if (is_grouped(source.format)) return pack_groups(source, output, panel, lane);
    for (int64_t k = 0; k < source.inputs; k++) {
        const int64_t from = output * source.inputs + k;
        if (source.format == Format::F32) {
            reinterpret_cast<float*>(panel)[k * kPanelWidth + lane] = static_cast<const float*>(source.values)[from];
        } else {
            auto* halves = reinterpret_cast<uint16_t*>(panel);
            halves[index_of_half(source.format, k, lane)] = static_cast<const uint16_t*>(source.values)[from];
        }
    }
}

static inline void pack(const WeightSource& source, std::byte* packed, int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; panel++) {
        std::byte* to = packed + panel * panel_bytes(source.format, source.inputs);
        for (int64_t lane = 0; lane < kPanelWidth; lane++) {
            const int64_t output = panel * kPanelWidth + lane;
            if (output < source.outputs) pack_output(source, output, to, lane);
        }
    }
}

// Number k of a group, as Q4, Q5 and Q6 keep it. word_bytes: those of the output's first word.
static inline int32_t small_number(Format format, const uint8_t* word_bytes, int64_t k) {
    const auto byte = [&](int64_t word, int64_t b) { return word_bytes[word * kPanelWidth * 4 + b]; };
    const int64_t half = k / 16, i = k % 16 / 4, b = k % 4;
    const int32_t low = byte(i, b) >> (4 * half) & 15;
    if (format == Format::Q5) return low | (byte(4, b) >> (4 * half + i) & 1) << 4;
    if (format == Format::Q6) return (low | (byte(4 + half, b) >> (2 * i) & 3) << 4) - 32;
    return low;
}

static inline void unpack_group(Format format, const std::byte* group, int64_t lane, float* out) {
    const auto* head = reinterpret_cast<const uint16_t*>(group);
    const auto* words = reinterpret_cast<const uint8_t*>(group + group_head_bytes(format));
    const auto* multipliers = reinterpret_cast<const int8_t*>(group + 2 * kPanelWidth);
    const float scale = format == Format::I8 ? 1.0f : float_from_half(head[lane]);
    const float minimum = has_minimums(format) ? float_from_half(head[kPanelWidth + lane]) : 0.0f;
    for (int64_t k = 0; k < kGroup; k++) {
        if (has_nibbles(format)) {
            const auto q = static_cast<float>(small_number(format, words + 4 * lane, k));
            if (format == Format::Q6) out[k] = q * (scale * multipliers[k / 16 * kPanelWidth + lane]);
            else out[k] = q * scale + minimum;
        } else {
            out[k] = static_cast<float>(static_cast<int8_t>(words[(k / 4 * kPanelWidth + lane) * 4 + k % 4])) * scale;
        }
    }
}

static inline void unpack_groups(Format format, int64_t inputs, const std::byte* panel, int64_t lane, float* out) {
    const int64_t num_groups = inputs / kGroup;
    for (int64_t g = 0; g < num_groups; g++) {
        unpack_group(format, panel + g * group_bytes(format), lane, out + g * kGroup);
    }
    if (format != Format::I8) return;
    const float scale = reinterpret_cast<const float*>(panel + num_groups * group_bytes(format))[lane];
    for (int64_t k = 0; k < inputs; k++) out[k] *= scale;
}

static inline void unpack_row(const PackedWeight& weight, int64_t output, float* out) {
    const std::byte* panel = weight.data + output / kPanelWidth * panel_bytes(weight.format, weight.inputs);
    const int64_t lane = output % kPanelWidth;
    if (is_grouped(weight.format)) return unpack_groups(weight.format, weight.inputs, panel, lane, out);
    for (int64_t k = 0; k < weight.inputs; k++) {
        if (weight.format == Format::F32) {
            out[k] = reinterpret_cast<const float*>(panel)[k * kPanelWidth + lane];
        } else {
            const uint16_t bits = reinterpret_cast<const uint16_t*>(panel)[index_of_half(weight.format, k, lane)];
            out[k] = weight.format == Format::F16 ? float_from_half(bits) : float_from_bf16(bits);
        }
    }
}

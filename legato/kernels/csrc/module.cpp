// The door from Python: checks what numpy arrays claim to be, then hands raw pointers on.
// Signatures and meanings are in legato/kernels/_native.pyi.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "dispatch.h"
#include "python/arrays.h"
#include "python/device.h"
#include "python/sampling.h"
#include "runtime/kv_store.h"
#include "runtime/memory.h"
#include "runtime/probe.h"
#include "runtime/tape/tape.h"

using nb::literals::operator""_a;

namespace legato {

namespace {

using AnyArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>;

constexpr std::array<const char*, 8> kFormatNames = {"f32", "bf16", "f16", "q4",
                                                     "q8",  "i8",   "q5",  "q6"};  // in the order of Format
constexpr std::array<const char*, 4> kActivationNames = {"silu", "gelu", "gelu_tanh", "relu"};  // of Activation

template <size_t size>
int32_t index_named(const char* kind, const std::string& name, const std::array<const char*, size>& names) {
    std::string all;
    for (size_t i = 0; i < size; ++i) {
        if (name == names[i]) return static_cast<int32_t>(i);
        all += (i ? ", " : "") + std::string(names[i]);
    }
    throw std::invalid_argument("there is no " + std::string(kind) + " \"" + name + "\"; there are " + all);
}

Format format_named(const std::string& name) {
    return static_cast<Format>(index_named("weight format", name, kFormatNames));
}

bool has_minimums(Format format) { return format == Format::Q4 || format == Format::Q5; }
bool has_groups(Format format) { return has_minimums(format) || format == Format::Q6 || format == Format::Q8; }

// Columns of values for a group of 32 inputs.
int64_t group_columns(Format format) {
    return format == Format::Q4 ? 16 : format == Format::Q5 ? 20 : format == Format::Q6 ? 26 : kGroup;
}

struct Weight {
    PackedWeight packed;
    int64_t num_bytes;
    Memory memory;  // none when the bytes belong to a Python array
};

void check_inputs(Format format, int64_t inputs) {
    const bool is_int8_product = has_groups(format) || format == Format::I8;
    require(!is_int8_product || inputs % kGroup == 0,
            "inputs: " + std::to_string(inputs) + ", must be a multiple of 32 in this format");
}

// ---- weights ----------------------------------------------------------------------------------------------------

void check_values(Format format, const AnyArray& values) {
    require(values.ndim() == 2 && values.shape(0) >= 1 && values.shape(1) >= 1, "values: must be a matrix, not empty");
    const nb::dlpack::dtype wanted = format == Format::F32                             ? nb::dtype<float>()
                                     : format == Format::BF16 || format == Format::F16 ? nb::dtype<uint16_t>()
                                     : group_columns(format) != kGroup                 ? nb::dtype<uint8_t>()
                                                                                       : nb::dtype<int8_t>();
    if (values.dtype() != wanted) {
        throw nb::type_error(("values: wrong dtype for " + std::string(kFormatNames[static_cast<size_t>(format)])).c_str());
    }
}

using Scales = std::optional<nb::ndarray<const float, nb::c_contig, nb::device::cpu>>;

const float* checked_scales(const char* name, const Scales& scales, bool is_wanted, int64_t outputs, int64_t columns) {
    require(scales.has_value() == is_wanted, std::string(name) + (is_wanted ? ": missing" : ": not used by this format"));
    if (!is_wanted) return nullptr;
    const bool is_vector = columns == 1 && scales->ndim() == 1;
    const bool fits = is_vector || (scales->ndim() == 2 && static_cast<int64_t>(scales->shape(1)) == columns);
    require(fits && static_cast<int64_t>(scales->shape(0)) == outputs,
            std::string(name) + ": must be [" + std::to_string(outputs) + ", " + std::to_string(columns) + "]");
    return scales->data();
}

std::unique_ptr<Weight> pack(Device& device, const std::string& format_name, const AnyArray& values, const Scales& scales,
                             const Scales& minimums) {
    const auto format = format_named(format_name);
    check_values(format, values);
    const auto outputs = static_cast<int64_t>(values.shape(0));
    const auto columns_of_group = group_columns(format), num_columns = static_cast<int64_t>(values.shape(1));
    require(columns_of_group == kGroup || num_columns % columns_of_group == 0,
            "values: must have a multiple of " + std::to_string(columns_of_group) + " columns in this format");
    const auto inputs = columns_of_group == kGroup ? num_columns : num_columns / columns_of_group * kGroup;
    check_inputs(format, inputs);
    const auto columns = has_groups(format) ? inputs / kGroup : 1;
    const WeightSource source{format,
                              outputs,
                              inputs,
                              values.data(),
                              checked_scales("scales", scales, has_groups(format) || format == Format::I8, outputs, columns),
                              checked_scales("minimums", minimums, has_minimums(format), outputs, columns)};

    nb::gil_scoped_release released;
    const auto num_bytes = device.kernels.packed_bytes(format, outputs, inputs);
    Memory memory(num_bytes);
    auto* packed = memory.at<std::byte>();
    const auto width = device.kernels.panel_width;
    device.pool.run((outputs + width - 1) / width, 1,
                    [&](int64_t begin, int64_t end, int) { device.kernels.pack(source, packed, begin, end); });
    return std::make_unique<Weight>(Weight{{format, outputs, inputs, packed}, num_bytes, std::move(memory)});
}

std::unique_ptr<Weight> packed(Device& device, const std::string& format_name, int64_t outputs, int64_t inputs,
                               const Array<uint8_t, 1>& data) {
    const auto format = format_named(format_name);
    require(outputs >= 1 && inputs >= 1, "outputs and inputs must be at least 1");
    check_inputs(format, inputs);
    const auto num_bytes = device.kernels.packed_bytes(format, outputs, inputs);
    require_size("data", data.size(), num_bytes);
    require(reinterpret_cast<uintptr_t>(data.data()) % 64 == 0, "data: must be 64-byte aligned");
    const auto* bytes = reinterpret_cast<const std::byte*>(data.data());
    return std::make_unique<Weight>(Weight{{format, outputs, inputs, bytes}, num_bytes, Memory()});
}

// ---- steps ------------------------------------------------------------------------------------------------------

nb::ndarray<nb::numpy, float, nb::ndim<2>> forward(Tape& tape, const Array<int32_t, 1>& token_ids,
                                                   const Array<int32_t, 1>& positions,
                                                   const Array<int32_t, 1>& query_starts, const Array<int32_t, 1>& kv_lens,
                                                   const Array<int32_t, 2>& page_table,
                                                   const Array<int32_t, 1>& sample_rows) {
    const Step step{static_cast<int64_t>(token_ids.size()),
                    static_cast<int64_t>(kv_lens.size()),
                    static_cast<int64_t>(sample_rows.size()),
                    static_cast<int64_t>(page_table.shape(1)),
                    token_ids.data(),
                    positions.data(),
                    query_starts.data(),
                    kv_lens.data(),
                    page_table.data(),
                    sample_rows.data()};
    require_size("positions", positions.size(), step.num_tokens);
    require_size("query_starts", query_starts.size(), step.num_requests + 1);
    require_size("page_table", page_table.shape(0), step.num_requests);
    float* logits;
    {
        nb::gil_scoped_release released;
        logits = tape.replay(step);
    }
    return {logits, {static_cast<size_t>(step.num_samples), static_cast<size_t>(tape.logits_width())}};
}

std::unique_ptr<KVStore> kv_store(Device&, int64_t num_layers, int64_t num_pages, int64_t page_size, int64_t num_kv_heads,
                                  int64_t head_dim, const std::string& format_name) {
    const auto format = format_named(format_name);
    require(format == Format::F32 || format == Format::BF16 || format == Format::I8,
            "format: \"" + format_name + "\"; a K/V store keeps f32, bf16 or i8");
    require(num_layers >= 1 && num_pages >= 1 && page_size >= 1 && num_kv_heads >= 1 && head_dim >= 1,
            "every size of a K/V store must be at least 1");
    require(head_dim % 2 == 0 && head_dim <= kMaxHeadDim,
            "head_dim: " + std::to_string(head_dim) + ", must be even and at most " + std::to_string(kMaxHeadDim));
    return std::make_unique<KVStore>(KVShape{num_layers, num_pages, page_size, num_kv_heads, head_dim, format});
}

using Vector = Array<float, 1>;

std::vector<float> copied(const Vector& array) { return {array.data(), array.data() + array.size()}; }

std::vector<float> copied(const std::optional<Vector>& array) {
    return array ? copied(*array) : std::vector<float>();
}

// Of a tuple of PackedWeight, which the caller keeps alive and which keeps its elements.
std::vector<PackedWeight> packed_of(const nb::tuple& weights) {
    require(weights.size() >= 1, "weight: none");
    std::vector<PackedWeight> all;
    for (const auto weight : weights) all.push_back(nb::cast<const Weight&>(weight).packed);
    return all;
}

// Of tuples as packed_of takes them, one for each expert.
int experts(Tape& tape, int x, int scores, const nb::tuple& gate_ups, const nb::tuple& downs, int64_t top_k,
            bool is_normalized, const std::string& function) {
    require_size("downs", downs.size(), static_cast<int64_t>(gate_ups.size()));
    std::vector<Expert> experts;
    for (size_t i = 0; i < gate_ups.size(); ++i) {
        experts.push_back({packed_of(nb::cast<nb::tuple>(gate_ups[i])), packed_of(nb::cast<nb::tuple>(downs[i]))});
    }
    const auto activation = static_cast<Activation>(index_named("activation", function, kActivationNames));
    return tape.experts(x, scores, experts, top_k, is_normalized, activation);
}

int activate(Tape& tape, int x, const std::string& function, bool is_gated) {
    return tape.activate(x, static_cast<Activation>(index_named("activation", function, kActivationNames)), is_gated);
}

int attention(Tape& tape, int qkv, const Array<float, 2>& cos, const Array<float, 2>& sin, int64_t layer,
              int64_t num_heads, float scale, int64_t window, float cap) {
    require(cos.shape(0) == sin.shape(0) && cos.shape(1) == sin.shape(1), "cos and sin must be of one shape");
    const Rotation rotation{cos.data(), sin.data(), static_cast<int64_t>(cos.shape(0)), static_cast<int64_t>(cos.shape(1))};
    return tape.attention(qkv, rotation, layer, num_heads, {scale, window, cap});
}

// ---- ceilings ---------------------------------------------------------------------------------------------------

double read_all(Device& device, const Array<float, 1>& data) {
    nb::gil_scoped_release released;
    return probe_read(device.kernels, device.pool, data.data(), static_cast<int64_t>(data.size()));
}

int64_t multiply(Device& device, const std::string& format_name, int64_t rounds) {
    const auto format = format_named(format_name);
    require(rounds >= 1, "rounds must be at least 1");
    nb::gil_scoped_release released;
    return probe_multiply(device.kernels, device.pool, format, rounds);
}

// ---- the module -------------------------------------------------------------------------------------------------

void bind_weights_and_stores(nb::module_& m) {
    nb::class_<Weight>(m, "PackedWeight")
        .def_prop_ro("format", [](const Weight& self) { return kFormatNames[static_cast<size_t>(self.packed.format)]; })
        .def_prop_ro("outputs", [](const Weight& self) { return self.packed.outputs; })
        .def_prop_ro("inputs", [](const Weight& self) { return self.packed.inputs; })
        .def_prop_ro(
            "data",
            [](const Weight& self) {
                return Bytes(reinterpret_cast<const uint8_t*>(self.packed.data), {static_cast<size_t>(self.num_bytes)});
            },
            nb::rv_policy::reference_internal);
    nb::class_<KVStore>(m, "KVStore").def_prop_ro("num_bytes", &KVStore::num_bytes);
}

// Arrays are never converted: a copy that Python makes in passing would die with the call.
void bind_device(nb::module_& m) {
    nb::class_<Device> device(m, "Device");
    device.def(nb::init<const std::string&, int>(), "isa"_a, "num_threads"_a)
        .def_prop_ro("isa", [](const Device& self) { return self.kernels.name; })
        .def_prop_ro("num_threads", [](const Device& self) { return self.pool.num_threads(); })
        .def("pack", &pack, "format"_a, "values"_a.noconvert(), "scales"_a.noconvert() = nb::none(),
             "minimums"_a.noconvert() = nb::none(), nb::keep_alive<0, 1>())
        .def("packed", &packed, "format"_a, "outputs"_a, "inputs"_a, "data"_a.noconvert(), nb::keep_alive<0, 1>(),
             nb::keep_alive<0, 5>())
        .def("kv_store", &kv_store, "num_layers"_a, "num_pages"_a, "page_size"_a, "num_kv_heads"_a, "head_dim"_a,
             "format"_a)
        .def(
            "tape",
            [](Device& self, const KVStore& kv, int64_t max_tokens, int64_t max_samples) {
                return std::make_unique<Tape>(self.kernels, self.pool, kv, max_tokens, max_samples);
            },
            "kv"_a, "max_tokens"_a, "max_samples"_a, nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>())
        .def("probe_read", &read_all, "data"_a.noconvert())
        .def("probe_multiply", &multiply, "format"_a, "rounds"_a);
    bind_sampling(device);
}

void bind_tape(nb::module_& m) {
    nb::class_<Tape>(m, "Tape")
        .def(
            "embedding",
            [](Tape& self, const Weight& weight, bool by_position, int64_t offset) {
                return self.embedding(weight.packed, by_position, offset);
            },
            "weight"_a, "by_position"_a = false, "offset"_a = 0, nb::keep_alive<1, 2>())
        .def(
            "rms_norm",
            [](Tape& self, int x, const Vector& weight, float eps) { return self.rms_norm(x, copied(weight), eps); },
            "x"_a, "weight"_a.noconvert(), "eps"_a)
        .def(
            "rms_norm_heads",
            [](Tape& self, int x, int64_t column, int64_t num_heads, const Vector& weight, float eps) {
                self.rms_norm_heads(x, column, num_heads, copied(weight), eps);
            },
            "x"_a, "column"_a, "num_heads"_a, "weight"_a.noconvert(), "eps"_a)
        .def(
            "layer_norm",
            [](Tape& self, int x, const Vector& weight, const Vector& bias, float eps) {
                return self.layer_norm(x, copied(weight), copied(bias), eps);
            },
            "x"_a, "weight"_a.noconvert(), "bias"_a.noconvert(), "eps"_a)
        .def(
            "linear",
            [](Tape& self, int x, const Weight& weight, const std::optional<Vector>& bias) {
                return self.linear(x, {weight.packed}, copied(bias));
            },
            "x"_a, "weight"_a, "bias"_a.noconvert() = nb::none(), nb::keep_alive<1, 3>())
        .def(
            "linear",
            [](Tape& self, int x, const nb::tuple& weights, const std::optional<Vector>& bias) {
                return self.linear(x, packed_of(weights), copied(bias));
            },
            "x"_a, "weight"_a, "bias"_a.noconvert() = nb::none(), nb::keep_alive<1, 3>())
        .def(
            "add_linear",
            [](Tape& self, int into, int x, const Weight& weight, const std::optional<Vector>& bias) {
                self.add_linear(into, x, {weight.packed}, copied(bias));
            },
            "into"_a, "x"_a, "weight"_a, "bias"_a.noconvert() = nb::none(), nb::keep_alive<1, 4>())
        .def(
            "add_linear",
            [](Tape& self, int into, int x, const nb::tuple& weights, const std::optional<Vector>& bias) {
                self.add_linear(into, x, packed_of(weights), copied(bias));
            },
            "into"_a, "x"_a, "weight"_a, "bias"_a.noconvert() = nb::none(), nb::keep_alive<1, 4>())
        .def("add", &Tape::add, "a"_a, "b"_a)
        .def("attention", &attention, "qkv"_a, "cos"_a.noconvert(), "sin"_a.noconvert(), "layer"_a, "num_heads"_a,
             "scale"_a, "window"_a = 0, "cap"_a = 0.0f, nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
        .def("experts", &experts, "x"_a, "scores"_a, "gate_ups"_a, "downs"_a, "top_k"_a, "is_normalized"_a, "function"_a,
             nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>())
        .def("activate", &activate, "x"_a, "function"_a, "is_gated"_a)
        .def("scale", &Tape::scale, "x"_a, "factor"_a)
        .def("soft_cap", &Tape::soft_cap, "x"_a, "cap"_a)
        .def("select", &Tape::select, "x"_a)
        .def("finish", &Tape::finish, "logits"_a)
        .def("forward", &forward, "token_ids"_a.noconvert(), "positions"_a.noconvert(), "query_starts"_a.noconvert(),
             "kv_lens"_a.noconvert(), "page_table"_a.noconvert(), "sample_rows"_a.noconvert(),
             nb::rv_policy::reference_internal)
        .def(
            "beat_into",
            [](Tape& self, const nb::ndarray<uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& pulse) {
                require_size("pulse", pulse.size(), 1);
                self.beat_into(pulse.data());
            },
            "pulse"_a.noconvert(), nb::keep_alive<1, 2>())
        .def_prop_ro("buffer_bytes", &Tape::buffer_bytes);
}

}  // namespace

}  // namespace legato

NB_MODULE(_native, m) {
    m.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const auto* kernels : legato::runnable_kernels()) names.emplace_back(kernels->name);
        return names;
    });
    legato::bind_weights_and_stores(m);
    legato::bind_device(m);
    legato::bind_tape(m);
}

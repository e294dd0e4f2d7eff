// All kernels of this instruction set and the table of them.
#include "activation.h"
#include "attention.h"
#include "logprobs.h"
#include "products/matmul.h"
#include "norm.h"
#include "products/pack.h"
#include "probe.h"
#include "products/quant.h"
#include "rope.h"
#include "sample.h"

static inline Kernels make_kernels(const char* name) {
    Kernels kernels{};
    kernels.name = name;
    kernels.lanes = kLanes;
    kernels.panel_width = kPanelWidth;
    kernels.packed_bytes = packed_bytes;
    kernels.pack = pack;
    kernels.unpack_row = unpack_row;
    kernels.linear = linear;
    kernels.row_format = row_format;
    kernels.round_rows = round_rows;
    kernels.quantize = quantize;
    kernels.rms_norm = rms_norm;
    kernels.layer_norm = layer_norm;
    kernels.activate = activate;
    kernels.soft_cap = soft_cap;
    kernels.rope_and_store = rope_and_store;
    kernels.attention_scratch_floats = attention_scratch_floats;
    kernels.attention_part_floats = attention_part_floats;
    kernels.attention = attention;
    kernels.merge_attention = merge_attention;
    kernels.argmax = argmax;
    kernels.sample = sample;
    kernels.exp_sum = exp_sum;
    kernels.top_logits = top_logits;
    kernels.probe_read = probe_read;
    kernels.probe_multiply = probe_multiply;
    return kernels;
}

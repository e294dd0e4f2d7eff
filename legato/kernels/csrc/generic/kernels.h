// All kernels of this instruction set and the table of them.
#include "pack.h"
#include "matmul.h"

static inline Kernels make_kernels(const char* name) {
    Kernels kernels{};
    kernels.name = name;
    kernels.lanes = kLanes;
    kernels.panel_width = kPanelWidth;
    kernels.packed_bytes = packed_bytes;
    kernels.pack = pack;
    kernels.unpack_row = unpack_row;
    kernels.linear = linear;
    return kernels;
}

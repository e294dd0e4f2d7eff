// The kernels for arm64 with products of bytes (dotprod).
#include <arm_neon.h>

#include <cstring>

#include "../ops.h"

#define LEGATO_SIMD_NEON
namespace legato::neon {
#include "../simd.h"
#include "../generic/kernels.h"
}  // namespace legato::neon

const legato::Kernels& legato::neon_kernels() {
    static const Kernels kernels = neon::make_kernels("neon");
    return kernels;
}

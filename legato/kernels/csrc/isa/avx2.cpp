// The kernels for x86-64 with AVX2, FMA and F16C.
#include <immintrin.h>

#include <cstring>

#include "../ops.h"

#define LEGATO_SIMD_AVX2
namespace legato::avx2 {
#include "../simd.h"
#include "../generic/kernels.h"
}  // namespace legato::avx2

const legato::Kernels& legato::avx2_kernels() {
    static const Kernels kernels = avx2::make_kernels("avx2");
    return kernels;
}

// The kernels for x86-64 with AVX2, FMA and F16C.
#include <immintrin.h>

#include <cstring>

#include "../ops.h"

#define LEGATO_SIMD_AVX2
namespace legato::avx2 {
#include "../simd.h"
}  // namespace legato::avx2

// The kernels for x86-64 with AVX-512, VNNI and BF16.
// GCC 12 warns of values that its own header leaves open on purpose.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstring>

#include "../ops.h"

#define LEGATO_SIMD_AVX512
namespace legato::avx512_vnni_bf16 {
#include "../simd.h"
#include "../generic/kernels.h"
}  // namespace legato::avx512_vnni_bf16

const legato::Kernels& legato::avx512_vnni_bf16_kernels() {
    static const Kernels kernels = avx512_vnni_bf16::make_kernels("avx512_vnni_bf16");
    return kernels;
}

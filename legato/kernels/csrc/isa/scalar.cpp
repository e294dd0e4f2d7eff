// The kernels in plain C++, for machines with none of the other sets.
#include <cstring>

#include "../ops.h"

namespace legato::scalar {
#include "../simd.h"
#include "../generic/kernels.h"
}  // namespace legato::scalar

const legato::Kernels& legato::scalar_kernels() {
    static const Kernels kernels = scalar::make_kernels("scalar");
    return kernels;
}

// The kernels in plain C++, for machines with none of the other sets.

#include <cstring>

#include "../ops.h"

#define LEGATO_SIMD_SCALAR
namespace legato::scalar {
#include "../simd.h"
}  // namespace legato::scalar

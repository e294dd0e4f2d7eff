// Which of the compiled instruction sets this processor and its system can run.
#pragma once

#include <string>
#include <vector>

#include "ops.h"

namespace legato {

// Best first; scalar is always among them.
std::vector<const Kernels*> runnable_kernels();

// Throws std::invalid_argument, listing the possible names, for one that is not runnable here.
const Kernels& kernels_named(const std::string& name);

}  // namespace legato

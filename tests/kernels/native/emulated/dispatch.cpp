// The sets whose instructions are emulated: every machine can run them.
#include "dispatch.h"

#include <stdexcept>

const legato::Kernels& legato::kernels_named(const std::string& name) {
    for (const auto* kernels : {&avx512_kernels(), &avx512_vnni_bf16_kernels(), &scalar_kernels()}) {
        if (kernels->name == name) return *kernels;
    }
    throw std::invalid_argument(name + " is not emulated");
}

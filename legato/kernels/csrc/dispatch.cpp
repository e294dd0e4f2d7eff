#include "dispatch.h"

#include <stdexcept>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace legato {

namespace {

// LEGATO_HAS_… : the build has this set's translation unit, for the compiler knew its instructions.

#if defined(__x86_64__)
// __builtin_cpu_supports asks the system too: its answer is no when the wide registers are not saved.
void add_x86([[maybe_unused]] std::vector<const Kernels*>& sets) {
    __builtin_cpu_init();
    const bool has_avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    [[maybe_unused]] const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                                             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                                             __builtin_cpu_supports("avx512vl");
#if defined(LEGATO_HAS_AVX512_VNNI_BF16)
    if (has_avx512 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16")) {
        sets.push_back(&avx512_vnni_bf16_kernels());
    }
#endif
#if defined(LEGATO_HAS_AVX512)
    if (has_avx512) sets.push_back(&avx512_kernels());
#endif
#if defined(LEGATO_HAS_AVX2)
    if (has_avx2) sets.push_back(&avx2_kernels());
#endif
}
#endif

#if defined(__aarch64__) && defined(LEGATO_HAS_NEON)
void add_arm64(std::vector<const Kernels*>& sets) {
#if defined(__linux__)
    if (!(getauxval(AT_HWCAP) & HWCAP_ASIMDDP)) return;
#endif
    sets.push_back(&neon_kernels());
}
#endif

}  // namespace

std::vector<const Kernels*> runnable_kernels() {
    std::vector<const Kernels*> sets;
#if defined(__x86_64__)
    add_x86(sets);
#elif defined(__aarch64__) && defined(LEGATO_HAS_NEON)
    add_arm64(sets);
#endif
    sets.push_back(&scalar_kernels());
    return sets;
}

const Kernels& kernels_named(const std::string& name) {
    std::string possible;
    for (const auto* kernels : runnable_kernels()) {
        if (kernels->name == name) return *kernels;
        possible += (possible.empty() ? "" : ", ") + std::string(kernels->name);
    }
    throw std::invalid_argument("this machine cannot run the instruction set \"" + name + "\"; possible: " + possible);
}

}  // namespace legato

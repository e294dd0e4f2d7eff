// Checks the kernels of the instruction sets that it is given the names of, without Python: for sets that only an emulator
// runs here.
#include "checks.h"
#include "dispatch.h"

int main(int argc, char** argv) {
    legato::check(argc > 1, "name the instruction sets to check");
    for (int i = 1; i < argc; ++i) {
        const auto& kernels = legato::kernels_named(argv[i]);  // throws for one that the processor does not have
        legato::check_products(kernels);
        legato::check_row_kernels(kernels);
        legato::check_attention(kernels);
        legato::check_logits(kernels);
        std::printf("%s, %d lanes: ok\n", kernels.name, static_cast<int>(kernels.lanes));
    }
}

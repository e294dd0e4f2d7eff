// What is said of an argument that does not fit: std::invalid_argument, which Python sees as ValueError.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace legato {

inline void require(bool holds, const std::string& text) {
    if (!holds) throw std::invalid_argument(text);
}

inline void require_equal(int64_t found, int64_t wanted, const char* what) {
    require(found == wanted, std::string(what) + ": " + std::to_string(found) + ", must be " + std::to_string(wanted));
}

}  // namespace legato

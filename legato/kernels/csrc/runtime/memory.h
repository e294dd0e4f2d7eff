// Memory that begins as zeros, starts on a page, and is taken from the system page by page as it is first written.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace legato {

class Memory {
 public:
    Memory() = default;

    explicit Memory(int64_t num_bytes) : num_bytes_(static_cast<size_t>(num_bytes)) {
        if (num_bytes_ == 0) return;
        void* data = mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (data == MAP_FAILED) throw std::bad_alloc();
        data_ = data;
    }

    ~Memory() {
        if (data_) munmap(data_, num_bytes_);
    }

    Memory(Memory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}

    Memory& operator=(Memory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(num_bytes_, other.num_bytes_);
        return *this;
    }

    int64_t num_bytes() const { return static_cast<int64_t>(num_bytes_); }

    template <typename T>
    T* at(int64_t byte_offset = 0) const {
        return reinterpret_cast<T*>(static_cast<std::byte*>(data_) + byte_offset);
    }

 private:
    void* data_ = nullptr;
    size_t num_bytes_ = 0;
};

}  // namespace legato

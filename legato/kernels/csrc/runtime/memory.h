// Memory that begins as zeros, starts on a page, and is taken from the system page by page as it is first written.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace legato {

class Memory {
 public:
    Memory() = default;

    explicit Memory(int64_t num_bytes) : num_bytes_(static_cast<size_t>(num_bytes)) {
        if (num_bytes_ == 0) return;
        data_ = take(num_bytes_);
        if (!data_) throw std::bad_alloc();
    }

    ~Memory() {
        if (data_) give_back(data_, num_bytes_);
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
#if defined(__SANITIZE_ADDRESS__)  // it watches the bounds of what the allocator gave
    static void* take(size_t num_bytes) {
        void* data = nullptr;
        return posix_memalign(&data, 4096, num_bytes) == 0 ? std::memset(data, 0, num_bytes) : nullptr;
    }

    static void give_back(void* data, size_t) { std::free(data); }
#else
    static void* take(size_t num_bytes) {
        constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void* data = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
        return data == MAP_FAILED ? nullptr : data;
    }

    static void give_back(void* data, size_t num_bytes) { munmap(data, num_bytes); }
#endif

    void* data_ = nullptr;
    size_t num_bytes_ = 0;
};

}  // namespace legato

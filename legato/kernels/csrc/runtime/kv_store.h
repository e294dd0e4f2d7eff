// Keys and values of all layers, each [num_layers, num_pages, page_size, num_kv_heads, head_dim].
#pragma once

#include <cstdint>

#include "../ops.h"
#include "memory.h"

namespace legato {

struct KVShape {
    int64_t num_layers, num_pages, page_size, num_kv_heads, head_dim;
    bool is_bf16;

    int64_t layer_bytes() const { return num_pages * page_size * num_kv_heads * head_dim * (is_bf16 ? 2 : 4); }
};

class KVStore {
 public:
    explicit KVStore(const KVShape& shape)
        : shape_(shape), k_(shape.num_layers * shape.layer_bytes()), v_(shape.num_layers * shape.layer_bytes()) {}

    const KVShape& shape() const { return shape_; }
    int64_t num_bytes() const { return k_.num_bytes() + v_.num_bytes(); }

    KVLayer layer(int64_t index) const {
        const auto offset = index * shape_.layer_bytes();
        return KVLayer{k_.at<void>(offset), v_.at<void>(offset), shape_.is_bf16,
                       shape_.page_size,    shape_.num_kv_heads, shape_.head_dim};
    }

 private:
    KVShape shape_;
    Memory k_, v_;
};

}  // namespace legato

// Keys and values of all layers; how they lie within a layer is in ops.h: KVLayer.
#pragma once

#include <cstdint>

#include "../ops.h"
#include "memory.h"

namespace legato {

struct KVShape {
    int64_t num_layers, num_pages, page_size, num_kv_heads, head_dim;
    Format format;  // F32, BF16 or I8

    int64_t layer_heads() const { return num_pages * page_size * num_kv_heads; }  // of all its tokens
    int64_t layer_bytes() const { return layer_heads() * head_bytes(); }
    int64_t head_bytes() const { return head_dim * (format == Format::F32 ? 4 : format == Format::BF16 ? 2 : 1); }
    int64_t scale_bytes() const { return format == Format::I8 ? static_cast<int64_t>(sizeof(float)) : 0; }
};

class KVStore {
 public:
    explicit KVStore(const KVShape& shape)
        : shape_(shape),
          k_(shape.num_layers * shape.layer_bytes()),
          v_(shape.num_layers * shape.layer_bytes()),
          k_scales_(shape.num_layers * shape.layer_heads() * shape.scale_bytes()),
          v_scales_(shape.num_layers * shape.layer_heads() * shape.scale_bytes()) {}

    const KVShape& shape() const { return shape_; }
    int64_t num_bytes() const {
        return k_.num_bytes() + v_.num_bytes() + k_scales_.num_bytes() + v_scales_.num_bytes();
    }

    KVLayer layer(int64_t index) const {
        const auto offset = index * shape_.layer_bytes(), scales = index * shape_.layer_heads() * shape_.scale_bytes();
        return KVLayer{k_.at<void>(offset),
                       v_.at<void>(offset),
                       k_scales_.at<float>(scales),
                       v_scales_.at<float>(scales),
                       shape_.format,
                       shape_.page_size,
                       shape_.num_kv_heads,
                       shape_.head_dim};
    }

 private:
    KVShape shape_;
    Memory k_, v_;
    Memory k_scales_, v_scales_;  // empty when there are none
};

}  // namespace legato

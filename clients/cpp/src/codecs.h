/// What the codecs share: bytes of their own, and LZ4 blocks without a size before them.
#pragma once

#include "mqinfer/tensor.h"

namespace mqinfer {

using Bytes = std::shared_ptr<std::uint8_t>;

Bytes new_bytes(std::size_t size);

/// Return what a block holds, which has to be so many bytes. Throws BadEncoding, before memory is taken where it can't be.
Bytes decompressed(const std::string& name, const std::uint8_t* block, std::size_t size, std::size_t expected);

/// Return room for a head, and a block behind it; and the size of both.
std::pair<Bytes, std::size_t> compressed(const std::uint8_t* content, std::size_t size, std::size_t head);

Tensor encoded_mask(const Tensor& raw);
Tensor decoded_mask(const Tensor& encoded);

}  // namespace mqinfer

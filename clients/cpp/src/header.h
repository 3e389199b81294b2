/// The header of a message: its fields, but the bytes of its tensors.
#pragma once

#include "mqinfer/message.h"
#include "msgpack.h"

namespace mqinfer {

Map request_header(const Request& request);
Map reply_header(const Reply& reply);

/// Read the fields of a header; each tensor has its size, and no bytes yet.
Request read_request(const Value& header, const Limits& limits);
Reply read_reply(const Value& header, const Limits& limits);

/// Check a claimed shape; return the bytes that its array takes, of BYTES those of its empty strings.
/// Throws BadTensor, LimitExceeded. Sides of 0 are left out of the product, as in every implementation.
std::size_t check_shape(const Tensor& tensor, const Limits& limits);

}  // namespace mqinfer

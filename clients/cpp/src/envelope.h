/// The frame of a message: magic, header, tensors at multiples of 64 bytes.
#pragma once

#include <memory>

#include "mqinfer/message.h"
#include "msgpack.h"

namespace mqinfer {

constexpr const char* content_type = "application/vnd.mqinfer.v1";

/// A request that is sent again: its tensors lie once in memory, and each attempt gets a header before them.
class Draft {
public:
    /// Copy the tensors: the one allocation for them, and the last use of the caller's arrays.
    /// Throws BadEnvelope, LimitExceeded.
    explicit Draft(Request request);

    /// Return the payload of an attempt, which holds until the next one's.
    std::pair<const std::uint8_t*, std::size_t> payload(std::int64_t timeout_us, std::int64_t attempt);

    const Request& request() const { return request_; }

private:
    Request request_;
    std::shared_ptr<std::uint8_t> bytes_;
    std::size_t start_;  ///< Where the tensors begin: before it there is room for the longest header of any attempt.
    std::size_t end_;
};

}  // namespace mqinfer

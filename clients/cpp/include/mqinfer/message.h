/// Requests and replies, and their bytes: `application/vnd.mqinfer.v1` (docs/reference/protocol.md, section 4).
#pragma once

#include <algorithm>
#include <limits>
#include <optional>

#include "mqinfer/tensor.h"

namespace mqinfer {

/// Where a frame came from.
struct Capture {
    std::string source;
    std::optional<std::int64_t> sequence;
    std::optional<std::int64_t> capture_time_ns;
    std::string frame_id;
};

struct RequestedOutput {
    std::string name;
    std::string encoding;             ///< Empty for the worker's choice.
    std::int64_t classification = 0;  ///< Above 0: so many largest elements, as text.
};

struct Request {
    std::string id;
    std::string model_name;
    std::string model_version;  ///< Empty for the default one.
    std::vector<Tensor> inputs;
    std::vector<RequestedOutput> outputs;  ///< Empty for all.
    std::optional<std::int64_t> timeout_us;
    std::int64_t priority = 0;
    std::int64_t attempt = 1;
    std::string response_topic;
    Capture capture;
    Parameters parameters;
};

enum class Outcome { ok, error, expired, superseded, rejected, cancelled };

std::string_view to_string(Outcome outcome);

/// Nanoseconds that the parts of a request took.
struct Timings {
    std::int64_t client_queue = 0, transmission = 0, server_queue = 0, decode = 0, preprocess = 0, inference = 0,
                 postprocess = 0, encode = 0;

    /// Return the sum of the worker's parts, at most 2^63 - 1: they are what a worker states.
    std::int64_t server() const {
        std::int64_t left = std::numeric_limits<std::int64_t>::max();
        for (const std::int64_t each : {server_queue, decode, preprocess, inference, postprocess, encode}) left -= std::min(each, left);
        return std::numeric_limits<std::int64_t>::max() - left;
    }
};

/// How busy a worker is.
struct Load {
    std::int64_t depth = 0, service_time_us = 0, window = 0;
};

struct Reply {
    std::string id;
    std::string model_name;
    std::string model_version;
    Outcome outcome = Outcome::ok;
    std::optional<Failure> error;
    std::vector<Tensor> outputs;  ///< As they travelled: views of the payload.
    std::string model_hash;
    std::string worker;
    std::string stage = "worker";
    Timings timings;
    Load load;
    std::int64_t attempt = 1;
    Capture capture;
    Parameters parameters;
};

/// A message; its tensors begin at multiples of 64 bytes.
struct Payload {
    std::shared_ptr<const std::uint8_t> bytes;
    std::size_t size = 0;
};

/// Return a copy of bytes at an address that tensors can be read at.
Payload copied(const void* bytes, std::size_t size);

Payload encode_request(const Request& request);
Payload encode_reply(const Reply& reply);

/// Throws BadEnvelope, BadTensor, LimitExceeded. The tensors are views of the payload, which they keep.
Request decode_request(const Payload& payload, const Limits& limits = {});
Reply decode_reply(const Payload& payload, const Limits& limits = {});

/// Return the checksum of a payload: XXH3-64 as 16 hexadecimal digits.
std::string checksum(const void* bytes, std::size_t size);

}  // namespace mqinfer

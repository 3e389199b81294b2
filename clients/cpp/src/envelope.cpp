#include "envelope.h"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "fields.h"
#include "header.h"

namespace mqinfer {
namespace {

constexpr std::uint8_t magic[] = {'M', 'Q', 'I', '1'};
constexpr std::size_t head_bytes = 8;
constexpr std::size_t alignment = 64;

std::size_t padded(std::size_t length) { return (length + alignment - 1) / alignment * alignment; }

std::shared_ptr<std::uint8_t> aligned_bytes(std::size_t size) {
    void* bytes = std::aligned_alloc(alignment, padded(size ? size : 1));
    if (bytes == nullptr) throw std::bad_alloc();
    return {static_cast<std::uint8_t*>(bytes), [](std::uint8_t* each) { std::free(each); }};
}

std::vector<std::uint8_t> packed(const Map& header) {
    std::vector<std::uint8_t> found;
    write_msgpack(found, header);
    const Limits limits;
    if (found.size() > limits.header_bytes)
        throw LimitExceeded("header of " + std::to_string(found.size()) + " bytes; at most " +
                            std::to_string(limits.header_bytes) + " are accepted");
    return found;
}

/// Write magic, length, header and padding: `padded(head_bytes + header)` bytes.
void write_head(std::uint8_t* to, const std::vector<std::uint8_t>& header) {
    std::memcpy(to, magic, sizeof magic);
    for (int place = 0; place < 4; ++place) to[4 + place] = static_cast<std::uint8_t>(header.size() >> (8 * place));
    std::memcpy(to + head_bytes, header.data(), header.size());
    const std::size_t end = head_bytes + header.size();
    std::memset(to + end, 0, padded(end) - end);
}

void write_tensors(std::uint8_t* to, const std::vector<Tensor>& tensors) {
    for (const Tensor& tensor : tensors) {
        if (tensor.size > 0) std::memcpy(to, tensor.bytes, tensor.size);
        std::memset(to + tensor.size, 0, padded(tensor.size) - tensor.size);
        to += padded(tensor.size);
    }
}

std::size_t size_of(const std::vector<Tensor>& tensors) {
    std::size_t size = 0;
    for (const Tensor& tensor : tensors) size += padded(tensor.size);
    return size;
}

Payload framed(const Map& map, const std::vector<Tensor>& tensors) {
    const auto header = packed(map);
    const std::size_t start = padded(head_bytes + header.size());
    const std::size_t size = start + size_of(tensors);
    auto bytes = aligned_bytes(size);
    write_head(bytes.get(), header);
    write_tensors(bytes.get() + start, tensors);
    return {bytes, size};
}

/// Return the header of a payload, and where its tensors begin.
std::pair<Value, std::size_t> opened(const Payload& payload, const Limits& limits) {
    const auto* bytes = payload.bytes.get();
    if (payload.size > limits.payload_bytes)
        throw LimitExceeded("payload of " + std::to_string(payload.size) + " bytes; at most " +
                            std::to_string(limits.payload_bytes) + " are accepted");
    if (payload.size < head_bytes || std::memcmp(bytes, magic, sizeof magic) != 0)
        throw BadEnvelope("payload of " + std::to_string(payload.size) + " bytes does not begin with MQI1");
    std::size_t length = 0;
    for (int place = 3; place >= 0; --place) length = length << 8 | bytes[4 + place];
    if (length > payload.size - head_bytes)
        throw BadEnvelope("header of " + std::to_string(length) + " bytes does not fit into its payload");
    if (length > limits.header_bytes)
        throw LimitExceeded("header of " + std::to_string(length) + " bytes; at most " +
                            std::to_string(limits.header_bytes) + " are accepted");
    return {read_msgpack(bytes + head_bytes, length, limits.string_bytes), padded(head_bytes + length)};
}

void place(std::vector<Tensor>& tensors, const Payload& payload, std::size_t at) {
    for (Tensor& tensor : tensors) {
        if (at > payload.size || tensor.size > payload.size - at)
            throw BadTensor("tensor " + shown(tensor.name) + ": its bytes don't fit into the payload");
        tensor.bytes = payload.bytes.get() + at;
        tensor.owner = payload.bytes;
        at = padded(at + tensor.size);
    }
    if (at != payload.size) throw BadEnvelope("header and tensors take " + std::to_string(at) + " bytes of the payload's " +
                                              std::to_string(payload.size));
}

}  // namespace

Draft::Draft(Request request) : request_(std::move(request)) {
    request_.timeout_us = request_.attempt = std::numeric_limits<std::int64_t>::max();
    start_ = padded(head_bytes + packed(request_header(request_)).size());
    end_ = start_ + size_of(request_.inputs);
    bytes_ = aligned_bytes(end_);
    write_tensors(bytes_.get() + start_, request_.inputs);
    for (Tensor& tensor : request_.inputs) {
        tensor.bytes = nullptr;
        tensor.owner.reset();
    }
}

std::pair<const std::uint8_t*, std::size_t> Draft::payload(std::int64_t timeout_us, std::int64_t attempt) {
    request_.timeout_us = timeout_us;
    request_.attempt = attempt;
    const auto header = packed(request_header(request_));
    const std::size_t begin = start_ - padded(head_bytes + header.size());
    write_head(bytes_.get() + begin, header);
    return {bytes_.get() + begin, end_ - begin};
}

Payload copied(const void* bytes, std::size_t size) {
    auto copy = aligned_bytes(size);
    if (size > 0) std::memcpy(copy.get(), bytes, size);
    return {copy, size};
}

Payload encode_request(const Request& request) { return framed(request_header(request), request.inputs); }

Payload encode_reply(const Reply& reply) { return framed(reply_header(reply), reply.outputs); }

Request decode_request(const Payload& payload, const Limits& limits) {
    const auto [header, start] = opened(payload, limits);
    Request found = read_request(header, limits);
    place(found.inputs, payload, start);
    return found;
}

Reply decode_reply(const Payload& payload, const Limits& limits) {
    const auto [header, start] = opened(payload, limits);
    Reply found = read_reply(header, limits);
    place(found.outputs, payload, start);
    return found;
}

std::string checksum(const void* bytes, std::size_t size) {
    static constexpr char digits[] = "0123456789abcdef";
    const std::uint64_t hash = XXH3_64bits(bytes, size);
    std::string found(16, '0');
    for (int place = 0; place < 16; ++place) found[15 - place] = digits[hash >> (4 * place) & 15];
    return found;
}

}  // namespace mqinfer

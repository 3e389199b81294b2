/// Arrays to tensors and back: `raw`, `lz4`, `shuffle-lz4`.
#include <lz4.h>

#include <algorithm>
#include <cstring>

#include "codecs.h"
#include "fields.h"
#include "header.h"

namespace mqinfer {
namespace {

constexpr std::size_t length_bytes = 4;
/// A byte of an LZ4 block makes at most so many.
constexpr std::size_t most_lz4_ratio = 255;

std::uint32_t length_at(const std::uint8_t* at) {
    return at[0] | at[1] << 8 | at[2] << 16 | static_cast<std::uint32_t>(at[3]) << 24;
}

std::size_t count_of(const std::vector<std::int64_t>& shape) {
    std::size_t count = 1;
    for (const std::int64_t side : shape) count *= static_cast<std::size_t>(side);
    return count;
}

void check_strings(const Tensor& raw) {
    std::size_t at = 0;
    for (std::size_t place = raw.elements(); place > 0; --place) {
        if (raw.size - at < length_bytes || raw.size - at - length_bytes < length_at(raw.bytes + at))
            throw BadTensor("tensor " + shown(raw.name) + ": a string goes beyond its bytes");
        at += length_bytes + length_at(raw.bytes + at);
    }
    if (at != raw.size) throw BadTensor("tensor " + shown(raw.name) + ": bytes are left behind its strings");
}

/// Check that raw bytes are those of the declared array.
void check_raw(const Tensor& raw) {
    const std::size_t item = item_bytes(raw.datatype);
    if (item == 0) return check_strings(raw);
    if (raw.size != raw.elements() * item)
        throw BadTensor("tensor " + shown(raw.name) + ": its shape takes " + std::to_string(raw.elements() * item) +
                        " bytes; got " + std::to_string(raw.size));
    const auto is_wrong = [](std::uint8_t byte) { return byte > 1; };
    if (raw.datatype == Datatype::BOOL && std::any_of(raw.bytes, raw.bytes + raw.size, is_wrong))
        throw BadTensor("tensor " + shown(raw.name) + ": a BOOL must be a byte of 0 or 1");
}

std::size_t raw_size(const Tensor& tensor, const Limits& limits) {
    if (tensor.datatype != Datatype::BYTES) return tensor.elements() * item_bytes(tensor.datatype);
    const Parameter* stated = find(tensor.parameters, "raw_size");
    const auto* size = stated ? std::get_if<std::int64_t>(stated) : nullptr;
    if (size == nullptr || *size < 0)
        throw BadEncoding("tensor " + shown(tensor.name) + ": LZ4 of BYTES needs the parameter raw_size, in bytes");
    if (static_cast<std::size_t>(*size) > limits.tensor_bytes)
        throw LimitExceeded("tensor " + shown(tensor.name) + ": raw_size is " + std::to_string(*size));
    return static_cast<std::size_t>(*size);
}

/// Move byte `plane` of every element behind the same byte of the others, or back.
Bytes transposed(const std::uint8_t* from, std::size_t size, std::size_t item, bool back) {
    Bytes to = new_bytes(size);
    const std::size_t count = size / item;
    for (std::size_t plane = 0; plane < item; ++plane)
        for (std::size_t place = 0; place < count; ++place) {
            const std::size_t apart = place * item + plane, together = plane * count + place;
            to.get()[back ? apart : together] = from[back ? together : apart];
        }
    return to;
}

Tensor with_bytes(Tensor tensor, std::string encoding, const Bytes& bytes, std::size_t size) {
    tensor.encoding = std::move(encoding);
    tensor.bytes = bytes.get();
    tensor.size = size;
    tensor.owner = bytes;
    return tensor;
}

Tensor decoded_lz4(const Tensor& tensor, const Limits& limits) {
    const std::size_t size = raw_size(tensor, limits);
    Bytes raw = decompressed(tensor.name, tensor.bytes, tensor.size, size);
    const std::size_t item = item_bytes(tensor.datatype);
    if (tensor.encoding == "shuffle-lz4" && item > 1) raw = transposed(raw.get(), size, item, true);
    Tensor found = with_bytes(tensor, "raw", raw, size);
    check_raw(found);
    return found;
}

}  // namespace

Bytes new_bytes(std::size_t size) {
    return Bytes(new std::uint8_t[size ? size : 1], std::default_delete<std::uint8_t[]>());
}

Bytes decompressed(const std::string& name, const std::uint8_t* block, std::size_t size, std::size_t expected) {
    const bool is_possible = expected == 0 ? size == 0 : expected / most_lz4_ratio <= size;
    if (!is_possible || expected > LZ4_MAX_INPUT_SIZE)
        throw BadEncoding("tensor " + shown(name) + ": " + std::to_string(size) + " bytes of LZ4 can't make " +
                          std::to_string(expected));
    Bytes found = new_bytes(expected);
    if (expected == 0) return found;
    const int made = LZ4_decompress_safe(reinterpret_cast<const char*>(block), reinterpret_cast<char*>(found.get()),
                                         static_cast<int>(size), static_cast<int>(expected));
    if (made < 0 || static_cast<std::size_t>(made) != expected)
        throw BadEncoding("tensor " + shown(name) + ": the LZ4 block is corrupt, or of another size");
    return found;
}

std::pair<Bytes, std::size_t> compressed(const std::uint8_t* content, std::size_t size, std::size_t head) {
    if (size > LZ4_MAX_INPUT_SIZE) throw LimitExceeded("LZ4 takes no more than 2 GB");
    const int bound = LZ4_compressBound(static_cast<int>(size));
    Bytes found = new_bytes(head + static_cast<std::size_t>(bound));
    const int made = LZ4_compress_default(reinterpret_cast<const char*>(content),
                                          reinterpret_cast<char*>(found.get() + head), static_cast<int>(size), bound);
    return {found, head + static_cast<std::size_t>(made)};
}

std::size_t item_bytes(Datatype datatype) {
    static constexpr std::size_t sizes[] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 0};
    return sizes[static_cast<std::size_t>(datatype)];
}

const Parameter* find(const Parameters& parameters, std::string_view name) {
    const auto found = std::find_if(parameters.begin(), parameters.end(), [&](auto& each) { return each.first == name; });
    return found == parameters.end() ? nullptr : &found->second;
}

std::size_t Tensor::elements() const { return count_of(shape); }

std::vector<std::string_view> Tensor::strings() const {
    if (datatype != Datatype::BYTES || encoding != "raw") throw BadTensor("tensor " + shown(name) + " has no strings");
    check_strings(*this);
    std::vector<std::string_view> found;
    found.reserve(elements());
    for (const std::uint8_t* at = bytes; at < bytes + size; at += length_bytes + length_at(at))
        found.emplace_back(reinterpret_cast<const char*>(at + length_bytes), length_at(at));
    return found;
}

void Tensor::check_elements(std::size_t size_of, std::size_t align_of) const {
    if (encoding != "raw") throw BadTensor("tensor " + shown(name) + " is encoded as " + encoding);
    if (size_of != item_bytes(datatype) || reinterpret_cast<std::uintptr_t>(bytes) % align_of != 0)
        throw BadTensor("tensor " + shown(name) + " holds " + std::string(to_string(datatype)) +
                        ", not elements of " + std::to_string(size_of) + " bytes");
}

Tensor tensor(std::string name, Datatype datatype, const void* elements, std::vector<std::int64_t> shape) {
    if (datatype == Datatype::BYTES) throw BadTensor("tensor " + shown(name) + ": make BYTES with strings()");
    Tensor found;
    found.name = std::move(name);
    found.datatype = datatype;
    found.shape = std::move(shape);
    check_shape(found, {});
    found.bytes = static_cast<const std::uint8_t*>(elements);
    found.size = found.elements() * item_bytes(datatype);
    return found;
}

Tensor strings(std::string name, const std::vector<std::string>& elements, std::vector<std::int64_t> shape) {
    std::size_t size = 0;
    for (const std::string& each : elements) size += length_bytes + each.size();
    const Bytes bytes = new_bytes(size);
    std::uint8_t* at = bytes.get();
    for (const std::string& each : elements) {
        for (std::size_t place = 0; place < length_bytes; ++place) *at++ = static_cast<std::uint8_t>(each.size() >> (8 * place));
        at = std::copy(each.begin(), each.end(), at);
    }
    Tensor found;
    found.name = std::move(name);
    found.datatype = Datatype::BYTES;
    found.shape = shape.empty() ? std::vector<std::int64_t>{static_cast<std::int64_t>(elements.size())} : std::move(shape);
    check_shape(found, {});
    if (found.elements() != elements.size()) throw BadTensor("tensor " + shown(found.name) + ": its shape has another size");
    return with_bytes(std::move(found), "raw", bytes, size);
}

Tensor encode(const Tensor& raw, const std::string& encoding) {
    if (raw.encoding != "raw") throw BadEncoding("tensor " + shown(raw.name) + " is encoded already");
    check_raw(raw);
    if (encoding == "raw") return raw;
    if (encoding == "mask") return encoded_mask(raw);
    const bool is_shuffled = encoding == "shuffle-lz4";
    if (encoding != "lz4" && !is_shuffled)
        throw BadEncoding("tensor " + shown(raw.name) + ": there is no encoding " + shown(encoding) +
                          " here; there are raw, lz4, shuffle-lz4 and mask");
    Tensor found = raw;
    if (raw.datatype == Datatype::BYTES) found.parameters.emplace_back("raw_size", static_cast<std::int64_t>(raw.size));
    if (raw.size == 0) return with_bytes(std::move(found), encoding, new_bytes(0), 0);
    const std::size_t item = item_bytes(raw.datatype);
    const Bytes planes = is_shuffled && item > 1 ? transposed(raw.bytes, raw.size, item, false) : nullptr;
    const auto [bytes, size] = compressed(planes ? planes.get() : raw.bytes, raw.size, 0);
    return with_bytes(std::move(found), encoding, bytes, size);
}

Tensor decode(const Tensor& encoded, const Limits& limits) {
    check_shape(encoded, limits);
    if (encoded.encoding == "lz4" || encoded.encoding == "shuffle-lz4") return decoded_lz4(encoded, limits);
    if (encoded.encoding == "mask") return decoded_mask(encoded);
    if (encoded.encoding != "raw")
        throw BadEncoding("tensor " + shown(encoded.name) + ": encoding " + shown(encoded.encoding) +
                          " is not decoded here; raw, lz4, shuffle-lz4 and mask are");
    check_raw(encoded);
    return encoded;
}

}  // namespace mqinfer

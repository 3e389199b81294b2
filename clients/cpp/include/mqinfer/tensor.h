/// Arrays as they travel: a tensor is a view of its bytes, which may keep what they lie in alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "mqinfer/errors.h"

namespace mqinfer {

enum class Datatype { BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, FP32, FP64, BYTES };

std::string_view to_string(Datatype datatype);

/// Bytes of one element; 0 for BYTES.
std::size_t item_bytes(Datatype datatype);

/// A value of a parameter; an unsigned integer only above 2^63 - 1.
using Parameter = std::variant<bool, std::int64_t, std::uint64_t, double, std::string>;

/// In the order in which they travel.
using Parameters = std::vector<std::pair<std::string, Parameter>>;

/// Return a parameter, or a null pointer.
const Parameter* find(const Parameters& parameters, std::string_view name);

/// What a receiver takes; each is checked before memory is taken for it (docs/reference/protocol.md, section 11).
struct Limits {
    std::size_t payload_bytes = 64u << 20;
    std::size_t header_bytes = 64u << 10;
    std::size_t tensors = 64;
    std::size_t dimensions = 16;
    std::size_t tensor_bytes = 256u << 20;
    std::size_t image_pixels = 64u << 20;
    std::size_t string_bytes = 4096;
};

template <class T>
constexpr Datatype datatype_of() {
    static_assert(std::is_arithmetic_v<T>, "state the datatype of other elements");
    if constexpr (std::is_same_v<T, bool>) return Datatype::BOOL;
    else if constexpr (std::is_floating_point_v<T>) return sizeof(T) == 4 ? Datatype::FP32 : Datatype::FP64;
    else if constexpr (std::is_signed_v<T>)
        return sizeof(T) == 1 ? Datatype::INT8 : sizeof(T) == 2 ? Datatype::INT16 : sizeof(T) == 4 ? Datatype::INT32
                                                                                                   : Datatype::INT64;
    else
        return sizeof(T) == 1 ? Datatype::UINT8 : sizeof(T) == 2 ? Datatype::UINT16 : sizeof(T) == 4 ? Datatype::UINT32
                                                                                                     : Datatype::UINT64;
}

struct Tensor {
    std::string name;
    Datatype datatype = Datatype::FP32;
    std::vector<std::int64_t> shape;  ///< Of the decoded array; the batch axis comes first.
    std::string encoding = "raw";
    Parameters parameters;
    const std::uint8_t* bytes = nullptr;
    std::size_t size = 0;
    std::shared_ptr<const void> owner;  ///< What the bytes lie in; empty for a caller's array.

    /// Return the elements in row-major order. Throws BadTensor where they are of another size, or are encoded.
    template <class T>
    const T* data() const {
        check_elements(sizeof(T), alignof(T));
        return reinterpret_cast<const T*>(bytes);
    }

    std::size_t elements() const;

    /// Return the strings of a BYTES tensor: views of its bytes.
    std::vector<std::string_view> strings() const;

private:
    void check_elements(std::size_t size_of, std::size_t align_of) const;
};

/// Return a view of an array, in no encoding. It has to live until the tensor is sent or encoded.
Tensor tensor(std::string name, Datatype datatype, const void* elements, std::vector<std::int64_t> shape);

template <class T>
Tensor tensor(std::string name, const T* elements, std::vector<std::int64_t> shape) {
    return tensor(std::move(name), datatype_of<T>(), static_cast<const void*>(elements), std::move(shape));
}

/// Return a view of a vector, of one axis unless a shape is given. Throws BadTensor for a shape of another size.
template <class T>
Tensor tensor(std::string name, const std::vector<T>& elements, std::vector<std::int64_t> shape = {}) {
    static_assert(!std::is_same_v<T, bool>, "a vector of bool has no array");
    if (shape.empty()) shape = {static_cast<std::int64_t>(elements.size())};
    Tensor found = tensor(std::move(name), datatype_of<T>(), static_cast<const void*>(elements.data()), std::move(shape));
    if (found.elements() != elements.size()) throw BadTensor("tensor '" + found.name + "': its shape has another size");
    return found;
}

/// A vector that ends with the call would leave nothing to view: keep it in a variable.
template <class T>
Tensor tensor(std::string name, std::vector<T>&& elements, std::vector<std::int64_t> shape = {}) = delete;

/// Return strings as a BYTES tensor of one axis, or of a shape. They are copied.
Tensor strings(std::string name, const std::vector<std::string>& elements, std::vector<std::int64_t> shape = {});

/// Return a JPEG or PNG file as a tensor, without decoding it; a view of its bytes.
/// Throws BadEncoding: it is neither, or of a kind that receivers refuse (alpha, CMYK, 12 bits).
Tensor picture(std::string name, const std::uint8_t* file, std::size_t size);

/// Return a Bayer mosaic of 8 or 16 bits as the camera gave it, one sample a pixel; the worker demosaics it.
/// `image_encoding` is its ROS name, such as `bayer_rggb8`; `demosaic` is `bilinear`, `edge-aware` or `vng`.
template <class T>
Tensor mosaic(std::string name, const T* samples, std::int64_t height, std::int64_t width, std::string image_encoding,
              std::string demosaic = "bilinear", std::int64_t bit_depth = 8 * sizeof(T)) {
    static_assert(std::is_same_v<T, std::uint8_t> || std::is_same_v<T, std::uint16_t>);
    Tensor found = tensor(std::move(name), samples, {1, height, width});
    found.parameters = {{"image_encoding", std::move(image_encoding)}, {"demosaic", std::move(demosaic)}};
    if (sizeof(T) == 2) found.parameters.emplace_back("bit_depth", bit_depth);
    return found;
}

/// Encode a raw tensor as `lz4`, `shuffle-lz4` or `mask`. Throws BadEncoding: it can't carry the array.
Tensor encode(const Tensor& raw, const std::string& encoding);

/// Decode a tensor, whose declared size is checked before memory is taken for it; a raw one stays where it lies.
/// Throws BadEncoding (no codec of this function: `jpeg` and `png` stay as they are), BadTensor, LimitExceeded.
Tensor decode(const Tensor& encoded, const Limits& limits = {});

/// Check a tensor of `jpeg` or `png`: its header is that of its shape and datatype, and it is whole.
/// Throws BadEncoding, LimitExceeded.
void check_picture(const Tensor& encoded, const Limits& limits = {});

}  // namespace mqinfer

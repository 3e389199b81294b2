/// MessagePack as headers use it: maps with string keys, arrays, strings, integers, floats, booleans.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace mqinfer {

constexpr int most_nested = 100;  ///< Maps and arrays within each other, in states too.

struct Value;
struct Field;
using Array = std::vector<Value>;
using Map = std::vector<Field>;

/// What a header may not hold, binary or an extension type: read over, and refused by whoever wants a value.
struct Foreign {};

struct Value : std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Array, Map, Foreign> {
    using variant::variant;
    template <class T>
    const T* get() const {
        return std::get_if<T>(static_cast<const variant*>(this));
    }
};

struct Field {
    std::string key;
    Value value;
};

/// Append a value: each integer in its shortest form, as Python's encoder has it.
void write_msgpack(std::vector<std::uint8_t>& to, const Value& value);
void write_msgpack(std::vector<std::uint8_t>& to, const Map& map);

/// Read exactly one value. Throws BadEnvelope; unsigned integers are those above 2^63 - 1.
Value read_msgpack(const std::uint8_t* bytes, std::size_t size, std::size_t string_bytes);

}  // namespace mqinfer

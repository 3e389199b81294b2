#include "msgpack.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "mqinfer/errors.h"

namespace mqinfer {
namespace {

/// Return whether text is UTF-8: no overlong form, no half of a surrogate pair, nothing above U+10FFFF.
bool is_utf8(const std::uint8_t* at, const std::uint8_t* end) {
    while (at < end) {
        const int first = *at++;
        if (first < 0x80) continue;
        const int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
        if (first < 0xc2 || first > 0xf4 || end - at < more) return false;
        const int second = *at;
        if (first == 0xe0 && second < 0xa0) return false;
        if (first == 0xed && second > 0x9f) return false;
        if (first == 0xf0 && second < 0x90) return false;
        if (first == 0xf4 && second > 0x8f) return false;
        for (int place = 0; place < more; ++place)
            if ((*at++ & 0xc0) != 0x80) return false;
    }
    return true;
}

class Writer {
public:
    explicit Writer(std::vector<std::uint8_t>& to) : to_(to) {}

    void write(const Value& value) {
        if (auto* flag = value.get<bool>()) byte(*flag ? 0xc3 : 0xc2);
        else if (auto* integer = value.get<std::int64_t>()) write_integer(*integer);
        else if (auto* large = value.get<std::uint64_t>()) write_unsigned(*large);
        else if (auto* number = value.get<double>()) write_double(*number);
        else if (auto* text = value.get<std::string>()) write_text(*text);
        else if (auto* array = value.get<Array>()) write_array(*array);
        else if (auto* map = value.get<Map>()) write_map(*map);
        else throw BadEnvelope("a header holds neither nil nor binary");
    }

    void write_map(const Map& map) {
        head(map.size(), 0x80, 15, 0, 0xde);
        for (const Field& field : map) {
            write_text(field.key);
            write(field.value);
        }
    }

private:
    void byte(int value) { to_.push_back(static_cast<std::uint8_t>(value)); }

    void big_endian(std::uint64_t value, int bytes) {
        for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) byte(static_cast<int>(value >> shift & 0xff));
    }

    /// A length: within the first byte up to `most`, else behind `one` (where there is such a form), `two` or `two + 1`.
    void head(std::size_t length, int fixed, std::size_t most, int one, int two) {
        if (length <= most) byte(fixed | static_cast<int>(length));
        else if (one != 0 && length <= 0xff) byte(one), big_endian(length, 1);
        else if (length <= 0xffff) byte(two), big_endian(length, 2);
        else byte(two + 1), big_endian(length, 4);
    }

    void write_text(const std::string& text) {
        const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
        if (!is_utf8(bytes, bytes + text.size())) throw BadEnvelope("a string of the request is not UTF-8");
        head(text.size(), 0xa0, 31, 0xd9, 0xda);
        to_.insert(to_.end(), text.begin(), text.end());
    }

    void write_array(const Array& array) {
        head(array.size(), 0x90, 15, 0, 0xdc);
        for (const Value& value : array) write(value);
    }

    void write_integer(std::int64_t value) {
        if (value >= 0) write_unsigned(static_cast<std::uint64_t>(value));
        else if (value >= -32) byte(static_cast<int>(value & 0xff));
        else if (value >= -0x80) byte(0xd0), big_endian(static_cast<std::uint64_t>(value), 1);
        else if (value >= -0x8000) byte(0xd1), big_endian(static_cast<std::uint64_t>(value), 2);
        else if (value >= -0x80000000LL) byte(0xd2), big_endian(static_cast<std::uint64_t>(value), 4);
        else byte(0xd3), big_endian(static_cast<std::uint64_t>(value), 8);
    }

    void write_unsigned(std::uint64_t value) {
        if (value < 0x80) byte(static_cast<int>(value));
        else if (value <= 0xff) byte(0xcc), big_endian(value, 1);
        else if (value <= 0xffff) byte(0xcd), big_endian(value, 2);
        else if (value <= 0xffffffff) byte(0xce), big_endian(value, 4);
        else byte(0xcf), big_endian(value, 8);
    }

    void write_double(double number) {
        std::uint64_t bits;
        std::memcpy(&bits, &number, sizeof bits);
        byte(0xcb);
        big_endian(bits, 8);
    }

    std::vector<std::uint8_t>& to_;
};

class Reader {
public:
    Reader(const std::uint8_t* bytes, std::size_t size, std::size_t string_bytes)
        : at_(bytes), end_(bytes + size), string_bytes_(string_bytes) {}

    Value read(int depth) {
        const int first = *take(1);
        if (first < 0x80) return std::int64_t{first};
        if (first >= 0xe0) return std::int64_t{first - 0x100};
        if (first < 0x90) return read_map(first & 0x0f, depth);
        if (first < 0xa0) return read_array(first & 0x0f, depth);
        if (first < 0xc0) return read_text(first & 0x1f);
        return read_long(first, depth);
    }

    bool at_end() const { return at_ == end_; }

private:
    const std::uint8_t* take(std::size_t count) {
        if (static_cast<std::size_t>(end_ - at_) < count) throw BadEnvelope("the header ends within a value");
        at_ += count;
        return at_ - count;
    }

    std::uint64_t big_endian(int bytes) {
        std::uint64_t value = 0;
        for (const std::uint8_t *at = take(static_cast<std::size_t>(bytes)), *end = at + bytes; at < end; ++at)
            value = value << 8 | *at;
        return value;
    }

    Value read_long(int first, int depth) {
        switch (first) {
            case 0xc0: return {};
            case 0xc2: return false;
            case 0xc3: return true;
            case 0xc4: case 0xc5: case 0xc6: return foreign(big_endian(1 << (first - 0xc4)));
            case 0xc7: case 0xc8: case 0xc9: return foreign(big_endian(1 << (first - 0xc7)) + 1);
            case 0xca: return read_float();
            case 0xcb: return read_double();
            case 0xcc: case 0xcd: case 0xce: case 0xcf: return from_unsigned(big_endian(1 << (first - 0xcc)));
            case 0xd0: return std::int64_t{static_cast<std::int8_t>(big_endian(1))};
            case 0xd1: return std::int64_t{static_cast<std::int16_t>(big_endian(2))};
            case 0xd2: return std::int64_t{static_cast<std::int32_t>(big_endian(4))};
            case 0xd3: return static_cast<std::int64_t>(big_endian(8));
            case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: return foreign((std::size_t{1} << (first - 0xd4)) + 1);
            case 0xd9: case 0xda: case 0xdb: return read_text(big_endian(1 << (first - 0xd9)));
            case 0xdc: case 0xdd: return read_array(big_endian(2 << (first - 0xdc)), depth);
            case 0xde: case 0xdf: return read_map(big_endian(2 << (first - 0xde)), depth);
            default: throw BadEnvelope("the header has the byte 0xc1, which MessagePack does not use");
        }
    }

    static Value from_unsigned(std::uint64_t value) {
        if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return value;
        return static_cast<std::int64_t>(value);
    }

    Value read_float() {
        const auto bits = static_cast<std::uint32_t>(big_endian(4));
        float number;
        std::memcpy(&number, &bits, sizeof number);
        return static_cast<double>(number);
    }

    Value read_double() {
        const std::uint64_t bits = big_endian(8);
        double number;
        std::memcpy(&number, &bits, sizeof number);
        return number;
    }

    Value foreign(std::size_t bytes) {
        take(bytes);
        return Foreign{};
    }

    std::string read_text(std::size_t length) {
        const std::uint8_t* text = take(length);
        if (length > string_bytes_) throw BadEnvelope("a string of " + std::to_string(length) + " bytes in the header");
        if (!is_utf8(text, text + length)) throw BadEnvelope("a string in the header is not UTF-8");
        return {reinterpret_cast<const char*>(text), length};
    }

    /// Every entry takes a byte at least, so a claimed length costs nothing that did not come.
    Value read_array(std::size_t length, int depth) {
        check(depth);
        Array array;
        for (std::size_t place = 0; place < length; ++place) array.push_back(read(depth + 1));
        return array;
    }

    Value read_map(std::size_t length, int depth) {
        check(depth);
        Map map;
        for (std::size_t place = 0; place < length; ++place) {
            const Value key = read(depth + 1);
            const std::string* text = key.get<std::string>();
            if (text == nullptr) throw BadEnvelope("a key in the header is not a string");
            map.push_back({*text, read(depth + 1)});
        }
        std::vector<std::string_view> keys;
        for (const Field& field : map) keys.push_back(field.key);
        std::sort(keys.begin(), keys.end());
        const auto twice = std::adjacent_find(keys.begin(), keys.end());
        if (twice != keys.end()) throw BadEnvelope("the key '" + std::string(*twice) + "' comes twice in the header");
        return map;
    }

    static void check(int depth) {
        if (depth >= most_nested) throw BadEnvelope("more than 100 maps and arrays within each other in the header");
    }

    const std::uint8_t* at_;
    const std::uint8_t* end_;
    std::size_t string_bytes_;
};

}  // namespace

void write_msgpack(std::vector<std::uint8_t>& to, const Value& value) { Writer(to).write(value); }

void write_msgpack(std::vector<std::uint8_t>& to, const Map& map) { Writer(to).write_map(map); }

Value read_msgpack(const std::uint8_t* bytes, std::size_t size, std::size_t string_bytes) {
    Reader reader(bytes, size, string_bytes);
    Value found = reader.read(0);
    if (!reader.at_end()) throw BadEnvelope("bytes are left behind the map of the header");
    return found;
}

}  // namespace mqinfer

/// Files, and base64.
#pragma once

#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

inline std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("can't read " + path);
    return {std::istreambuf_iterator<char>(file), {}};
}

constexpr std::string_view base64_digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

inline std::string to_base64(std::string_view bytes) {
    std::string found;
    for (std::size_t at = 0; at < bytes.size(); at += 3) {
        unsigned group = 0;
        for (std::size_t place = 0; place < 3; ++place)
            group = group << 8 | (at + place < bytes.size() ? static_cast<unsigned char>(bytes[at + place]) : 0u);
        for (std::size_t place = 0; place < 4; ++place)
            found += at + place > bytes.size() ? '=' : base64_digits[group >> (18 - 6 * place) & 63];
    }
    return found;
}

inline std::string from_base64(std::string_view text) {
    std::string found;
    unsigned group = 0, bits = 0;
    for (const char each : text) {
        const std::size_t digit = base64_digits.find(each);
        if (digit == std::string_view::npos) break;
        group = (group << 6 | static_cast<unsigned>(digit)) & 0xffffff;
        if ((bits += 6) >= 8) found += static_cast<char>(group >> (bits -= 8) & 0xff);
    }
    return found;
}

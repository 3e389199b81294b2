/// SHA-256 (FIPS 180-4), to compare with golden.json.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

inline std::string sha256(const std::uint8_t* bytes, std::size_t size) {
    // The constants are the first 32 bits of the fractions of square and cube roots of the first primes.
    std::array<std::uint32_t, 64> k{};
    std::array<std::uint32_t, 8> h{};
    for (unsigned number = 2, count = 0; count < 64; ++number) {
        bool is_prime = true;
        for (unsigned by = 2; by * by <= number; ++by) is_prime &= number % by != 0;
        if (!is_prime) continue;
        const auto fraction = [](long double root) { return static_cast<std::uint32_t>((root - std::floor(root)) * 4294967296.0L); };
        if (count < 8) h[count] = fraction(std::sqrt(static_cast<long double>(number)));
        k[count++] = fraction(std::cbrt(static_cast<long double>(number)));
    }
    std::vector<std::uint8_t> text(bytes, bytes + size);
    text.push_back(0x80);
    while (text.size() % 64 != 56) text.push_back(0);
    for (int shift = 56; shift >= 0; shift -= 8) text.push_back(static_cast<std::uint8_t>(8 * static_cast<std::uint64_t>(size) >> shift));
    const auto turn = [](std::uint32_t x, int by) { return x >> by | x << (32 - by); };
    for (std::size_t block = 0; block < text.size(); block += 64) {
        std::array<std::uint32_t, 64> w{};
        for (std::size_t t = 0; t < 64; ++t)
            w[t] = t < 16 ? static_cast<std::uint32_t>(text[block + 4 * t] << 24 | text[block + 4 * t + 1] << 16 | text[block + 4 * t + 2] << 8 | text[block + 4 * t + 3])
                          : (turn(w[t - 2], 17) ^ turn(w[t - 2], 19) ^ w[t - 2] >> 10) + w[t - 7] + (turn(w[t - 15], 7) ^ turn(w[t - 15], 18) ^ w[t - 15] >> 3) + w[t - 16];
        auto s = h;
        for (std::size_t t = 0; t < 64; ++t) {
            const std::uint32_t one = s[7] + (turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[t] + w[t];
            const std::uint32_t two = (turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
            s = {one + two, s[0], s[1], s[2], s[3] + one, s[4], s[5], s[6]};
        }
        for (std::size_t t = 0; t < 8; ++t) h[t] += s[t];
    }
    std::string found;
    for (const std::uint32_t word : h)
        for (int shift = 28; shift >= 0; shift -= 4) found += "0123456789abcdef"[word >> shift & 15];
    return found;
}

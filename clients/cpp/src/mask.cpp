/// `mask`: class masks as run lengths or packed pixels, in one LZ4 block (docs/reference/protocol.md, section 6).
#include <algorithm>
#include <cstring>

#include "codecs.h"
#include "fields.h"

namespace mqinfer {
namespace {

constexpr std::size_t mask_head_bytes = 8;
constexpr std::size_t longest = 65535;
constexpr std::size_t pixels_per_run = 8;
constexpr std::size_t bytes_per_run = 3;

[[noreturn]] void corrupt(const Tensor& mask, const char* why) {
    throw BadEncoding("tensor " + shown(mask.name) + ": the mask is corrupt: " + why);
}

void check_datatype(const Tensor& mask) {
    if (mask.datatype != Datatype::UINT8 && mask.datatype != Datatype::BOOL)
        throw BadEncoding("tensor " + shown(mask.name) + ": mask holds UINT8 or BOOL, not " +
                          std::string(to_string(mask.datatype)));
}

/// Return the planes of runs (class numbers, low and high bytes of lengths); nothing where runs are too short.
std::vector<std::uint8_t> long_runs(const std::uint8_t* pixels, std::size_t size) {
    const std::size_t most = size / pixels_per_run;
    std::vector<std::pair<std::uint8_t, std::size_t>> runs;
    for (std::size_t begin = 0, at = 1; at <= size; ++at) {
        if (at < size && pixels[at] == pixels[begin]) continue;
        for (; begin < at; begin = std::min(at, begin + longest)) {
            if (runs.size() == most) return {};
            runs.emplace_back(pixels[begin], std::min(at - begin, longest));
        }
    }
    std::vector<std::uint8_t> planes(bytes_per_run * runs.size());
    for (std::size_t run = 0; run < runs.size(); ++run) {
        planes[run] = runs[run].first;
        planes[runs.size() + run] = static_cast<std::uint8_t>(runs[run].second & 0xff);
        planes[2 * runs.size() + run] = static_cast<std::uint8_t>(runs[run].second >> 8);
    }
    return planes;
}

unsigned bits_for(std::uint8_t largest) { return largest < 2 ? 1 : largest < 4 ? 2 : largest < 16 ? 4 : 8; }

std::vector<std::uint8_t> packed(const std::uint8_t* pixels, std::size_t size, unsigned bits) {
    std::vector<std::uint8_t> found((size * bits + 7) / 8);
    for (std::size_t place = 0; place < size; ++place)
        found[place * bits / 8] |= static_cast<std::uint8_t>(pixels[place] << (place * bits % 8));
    return found;
}

Bytes expanded(const Tensor& mask, const std::uint8_t* planes, std::size_t runs) {
    const std::size_t size = mask.elements();
    const auto length = [&](std::size_t run) { return std::size_t{planes[runs + run]} | std::size_t{planes[2 * runs + run]} << 8; };
    std::size_t total = 0;
    for (std::size_t run = 0; run < runs; ++run) total += length(run);
    if (total != size) corrupt(mask, "its runs have another number of pixels");
    Bytes pixels = new_bytes(size);
    std::uint8_t* at = pixels.get();
    for (std::size_t run = 0; run < runs; ++run) at = std::fill_n(at, length(run), planes[run]);
    return pixels;
}

Bytes unpacked(const std::uint8_t* content, std::size_t size, unsigned bits) {
    Bytes pixels = new_bytes(size);
    const unsigned largest = (1u << bits) - 1;
    for (std::size_t place = 0; place < size; ++place)
        pixels.get()[place] = static_cast<std::uint8_t>(content[place * bits / 8] >> (place * bits % 8) & largest);
    return pixels;
}

Bytes pixels_of(const Tensor& mask) {
    const std::size_t size = mask.elements();
    if (size == 0 && mask.size == 0) return new_bytes(0);
    if (size == 0 || mask.size < mask_head_bytes) corrupt(mask, "its size is not that of its shape");
    std::uint32_t bits, runs;
    std::memcpy(&bits, mask.bytes, 4);
    std::memcpy(&runs, mask.bytes + 4, 4);
    const std::uint8_t* block = mask.bytes + mask_head_bytes;
    const std::size_t block_size = mask.size - mask_head_bytes;
    if (bits == 0 && runs > 0 && runs <= size / pixels_per_run)
        return expanded(mask, decompressed(mask.name, block, block_size, bytes_per_run * runs).get(), runs);
    if (runs == 0 && (bits == 1 || bits == 2 || bits == 4 || bits == 8))
        return unpacked(decompressed(mask.name, block, block_size, (size * bits + 7) / 8).get(), size, bits);
    corrupt(mask, "it has neither runs nor packed pixels of its shape");
}

}  // namespace

Tensor encoded_mask(const Tensor& raw) {
    check_datatype(raw);
    Tensor found = raw;
    found.encoding = "mask";
    if (raw.size == 0) return found;
    std::vector<std::uint8_t> content = long_runs(raw.bytes, raw.size);
    const auto runs = static_cast<std::uint32_t>(content.size() / bytes_per_run);
    const std::uint32_t bits = runs ? 0 : bits_for(*std::max_element(raw.bytes, raw.bytes + raw.size));
    if (runs == 0) content = packed(raw.bytes, raw.size, bits);
    const auto [bytes, size] = compressed(content.data(), content.size(), mask_head_bytes);
    std::memcpy(bytes.get(), &bits, 4);
    std::memcpy(bytes.get() + 4, &runs, 4);
    found.bytes = bytes.get();
    found.size = size;
    found.owner = bytes;
    return found;
}

Tensor decoded_mask(const Tensor& encoded) {
    check_datatype(encoded);
    const Bytes pixels = pixels_of(encoded);
    const std::size_t size = encoded.elements();
    if (encoded.datatype == Datatype::BOOL && std::any_of(pixels.get(), pixels.get() + size, [](auto each) { return each > 1; }))
        corrupt(encoded, "a BOOL must be 0 or 1");
    Tensor found = encoded;
    found.encoding = "raw";
    found.bytes = pixels.get();
    found.size = size;
    found.owner = pixels;
    return found;
}

}  // namespace mqinfer

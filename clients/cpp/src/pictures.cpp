/// `jpeg` and `png`: what a file's header states, and whether it is whole. Nothing is decoded; every loop is bounded.
#include <algorithm>
#include <array>
#include <cstring>

#include "fields.h"
#include "header.h"

namespace mqinfer {
namespace {

struct Picture {
    std::string format;
    std::size_t height, width;
    int channels;  ///< 1 grey, 2 grey with alpha, 3 colour (a palette too), 4 colour with alpha or CMYK.
    int bits;
    bool is_progressive;
};

struct File {
    const std::uint8_t* bytes;
    std::size_t size;

    std::size_t number(std::size_t at, int count) const {
        if (at + static_cast<std::size_t>(count) > size) throw BadEncoding("the picture ends within its header");
        std::size_t found = 0;
        for (int place = 0; place < count; ++place) found = found << 8 | bytes[at + static_cast<std::size_t>(place)];
        return found;
    }
};

// JPEG (ITU-T T.81, annex B).

constexpr std::size_t most_segments = 1024;
constexpr std::size_t most_scans = 32;
/// The first scan spends at least one bit on each block of 8x8 pixels.
constexpr std::size_t pixels_per_byte = 512;

struct Segment {
    std::size_t marker, content, end;
};

/// Call `visit` with each segment up to the first scan, until it returns true.
template <class Visit>
void each_segment(const File& file, Visit visit) {
    std::size_t at = 2;
    for (std::size_t count = 0; count < most_segments; ++count) {
        file.number(at, 4);
        const std::size_t marker = file.bytes[at + 1];
        if (file.bytes[at] != 0xff || marker == 0) throw BadEncoding("JPEG: no marker at byte " + std::to_string(at));
        if (marker == 0xff || marker == 1 || (marker >= 0xd0 && marker <= 0xd8)) {
            at += marker == 0xff ? 1 : 2;
            continue;
        }
        const std::size_t end = at + 2 + file.number(at + 2, 2);
        if (visit(Segment{marker, at + 4, end}) || marker == 0xda || marker == 0xd9 || end < at + 4) return;
        at = end;
    }
}

Picture jpeg_header(const File& file) {
    Picture found{"jpeg", 0, 0, 0, 0, false};
    each_segment(file, [&](const Segment& segment) {
        const std::size_t marker = segment.marker;
        if (marker >= 0xc0 && marker <= 0xc2) {
            found.bits = static_cast<int>(file.number(segment.content, 1));
            found.height = file.number(segment.content + 1, 2);
            found.width = file.number(segment.content + 3, 2);
            found.channels = static_cast<int>(file.number(segment.content + 5, 1));
            found.is_progressive = marker == 0xc2;
            return true;
        }
        if (marker > 0xc2 && marker < 0xd0 && marker != 0xc4 && marker != 0xc8 && marker != 0xcc)
            throw BadEncoding("JPEG: lossless and arithmetic coding are not supported");
        return false;
    });
    if (found.height == 0 || found.width == 0 || found.channels == 0) throw BadEncoding("JPEG: no frame, or one of no size");
    return found;
}

std::size_t count_markers(const File& file, std::size_t from, std::uint8_t marker) {
    std::size_t found = 0;
    for (std::size_t at = from; at + 1 < file.size; ++at) found += file.bytes[at] == 0xff && file.bytes[at + 1] == marker;
    return found;
}

void check_jpeg(const File& file, const Picture& picture) {
    if (picture.height * picture.width > file.size * pixels_per_byte) throw BadEncoding("JPEG that can't hold its pixels: a bomb");
    each_segment(file, [&](const Segment& segment) {
        if (segment.marker != 0xda) return false;
        if (count_markers(file, segment.content, 0xd9) == 0) throw BadEncoding("JPEG has no end-of-image marker: truncated");
        const bool is_one = file.number(segment.content, 1) == static_cast<std::size_t>(picture.channels);
        if (is_one && !picture.is_progressive) return true;
        if (1 + count_markers(file, segment.content, 0xda) > most_scans) throw BadEncoding("JPEG has more than 32 scans");
        return true;
    });
}

// PNG (https://www.w3.org/TR/png-3/).

constexpr std::uint8_t png_signature[] = {0x89, 'P', 'N', 'G', 0x0d, 0x0a, 0x1a, 0x0a};
constexpr std::size_t png_header_bytes = 33;
constexpr std::size_t most_chunks = 65536;
constexpr std::size_t most_side = 0x7fffffff;
/// A byte of deflate inflates to at most so many.
constexpr std::size_t most_deflate_ratio = 1032;

std::uint32_t crc32(const std::uint8_t* bytes, std::size_t size) {
    static const auto table = [] {
        std::array<std::uint32_t, 256> made{};
        for (std::uint32_t each = 0; each < 256; ++each) {
            std::uint32_t value = each;
            for (int bit = 0; bit < 8; ++bit) value = value & 1 ? value >> 1 ^ 0xedb88320u : value >> 1;
            made[each] = value;
        }
        return made;
    }();
    std::uint32_t found = 0xffffffffu;
    for (std::size_t at = 0; at < size; ++at) found = table[(found ^ bytes[at]) & 0xff] ^ found >> 8;
    return ~found;
}

Picture png_header(const File& file) {
    if (file.size < png_header_bytes) throw BadEncoding("PNG ends within its header");
    const std::size_t width = file.number(16, 4), height = file.number(20, 4), bits = file.bytes[24];
    if (std::memcmp(file.bytes + 12, "IHDR", 4) != 0 || width == 0 || height == 0 || width > most_side || height > most_side)
        throw BadEncoding("PNG: IHDR with a size above 0 must be the first chunk");
    static constexpr int channels_of[] = {1, 0, 3, 3, 2, 0, 4};
    const int channels = file.bytes[25] < 7 ? channels_of[file.bytes[25]] : 0;
    if (channels == 0 || (bits != 1 && bits != 2 && bits != 4 && bits != 8 && bits != 16))
        throw BadEncoding("PNG: there is no such colour type, or no such number of bits");
    return {"png", height, width, channels, bits == 16 ? 16 : 8, file.bytes[28] != 0};
}

void check_png(const File& file, const Picture& picture) {
    std::size_t begin = sizeof png_signature, pixels = 0;
    for (std::size_t count = 0;; ++count) {
        if (count == most_chunks) throw BadEncoding("PNG has more than 65536 chunks");
        if (begin + 12 > file.size || file.number(begin, 4) > file.size - begin - 12) throw BadEncoding("PNG is truncated");
        const std::size_t length = file.number(begin, 4), end = begin + 12 + length;
        if (crc32(file.bytes + begin + 4, length + 4) != file.number(end - 4, 4)) throw BadEncoding("PNG: a checksum is wrong");
        const std::string_view kind(reinterpret_cast<const char*>(file.bytes + begin + 4), 4);
        if (kind == "acTL") throw BadEncoding("PNG: animations are not supported; send one picture");
        if (kind == "IDAT") pixels += length;
        if (kind == "IEND") break;
        begin = end;
    }
    if (picture.height * (1 + (picture.width + 7) / 8) > pixels * most_deflate_ratio)
        throw BadEncoding("PNG that can't hold its pixels: a bomb");
}

Picture header_of(const std::string& name, const File& file) {
    const bool is_jpeg = file.size > 2 && file.bytes[0] == 0xff && file.bytes[1] == 0xd8;
    const bool is_png = file.size >= 8 && std::memcmp(file.bytes, png_signature, 8) == 0;
    if (!is_jpeg && !is_png) throw BadEncoding("tensor " + shown(name) + ": its bytes are neither JPEG nor PNG");
    const Picture found = is_jpeg ? jpeg_header(file) : png_header(file);
    if ((found.channels != 1 && found.channels != 3) || (found.bits != 8 && found.bits != 16))
        throw BadEncoding("tensor " + shown(name) + ": save the " + found.format + " as 8-bit grey or RGB, without alpha");
    return found;
}

bool is_shape_of(std::vector<std::int64_t> shape, const Picture& picture) {
    const std::vector<std::int64_t> sides = {static_cast<std::int64_t>(picture.height), static_cast<std::int64_t>(picture.width)};
    std::vector<std::int64_t> with_channels = sides;
    with_channels.push_back(picture.channels);
    const auto is_frame = [&] { return shape == with_channels || (picture.channels == 1 && shape == sides); };
    if (is_frame()) return true;
    if (shape.empty() || shape.front() != 1) return false;
    shape.erase(shape.begin());
    return is_frame();
}

}  // namespace

Tensor picture(std::string name, const std::uint8_t* file, std::size_t size) {
    const Picture found = header_of(name, {file, size});
    Tensor made;
    made.name = std::move(name);
    made.datatype = found.bits == 16 ? Datatype::UINT16 : Datatype::UINT8;
    made.shape = {1, static_cast<std::int64_t>(found.height), static_cast<std::int64_t>(found.width)};
    if (found.channels == 3) made.shape.push_back(3);
    made.encoding = found.format;
    made.bytes = file;
    made.size = size;
    return made;
}

void check_picture(const Tensor& encoded, const Limits& limits) {
    check_shape(encoded, limits);
    const File file{encoded.bytes, encoded.size};
    const Picture found = header_of(encoded.name, file);
    const Datatype expected = found.bits == 16 ? Datatype::UINT16 : Datatype::UINT8;
    if (found.format != encoded.encoding || encoded.datatype != expected || !is_shape_of(encoded.shape, found))
        throw BadEncoding("tensor " + shown(encoded.name) + ": its file is a picture of another kind or size than it declares");
    if (found.height * found.width > limits.image_pixels)
        throw LimitExceeded("tensor " + shown(encoded.name) + ": too many pixels");
    if (found.format == "jpeg") check_jpeg(file, found);
    else check_png(file, found);
}

}  // namespace mqinfer

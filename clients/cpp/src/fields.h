/// The fields of a map from a stranger: each is checked where it is read, others are ignored.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mqinfer/tensor.h"
#include "msgpack.h"

namespace mqinfer {

class Fields {
public:
    /// `path` is where it stands, such as `request: inputs[0]`; for messages. Throws BadEnvelope where it is no map.
    Fields(const Value& value, std::string path);

    /// Return whether a field is there, and is not nil.
    bool has(std::string_view key) const;
    const Value* find(std::string_view key) const;

    /// Read a field; without `otherwise` it has to be there.
    std::string text(std::string_view key, std::optional<std::string> otherwise = {}) const;
    std::int64_t integer(std::string_view key, std::optional<std::int64_t> otherwise = {},
                         std::int64_t least = INT64_MIN) const;
    std::int64_t count(std::string_view key, std::optional<std::int64_t> otherwise = {}, std::int64_t least = 0) const;

    /// Return a map, or the maps of an array; nothing where the field is absent or nil.
    std::optional<Fields> map(std::string_view key) const;
    std::vector<Fields> maps(std::string_view key) const;

    /// Return the parameters but the known ones; each has to be a boolean, a number or a string.
    Parameters scalars(const std::function<bool(std::string_view)>& is_known) const;

    std::string at(std::string_view key) const { return path_ + ": " + std::string(key); }

private:
    const Map* map_;
    std::string path_;
};

/// Return a text from a stranger as it stands in a message: quoted, not too long, and without control characters.
std::string shown(std::string_view text);

}  // namespace mqinfer

#include "fields.h"

#include <algorithm>

namespace mqinfer {
namespace {

constexpr std::size_t most_parameters = 128;

std::optional<Parameter> as_scalar(const Value& value) {
    if (auto* flag = value.get<bool>()) return *flag;
    if (auto* integer = value.get<std::int64_t>()) return *integer;
    if (auto* large = value.get<std::uint64_t>()) return *large;
    if (auto* number = value.get<double>()) return *number;
    if (auto* text = value.get<std::string>()) return *text;
    return {};
}

}  // namespace

Fields::Fields(const Value& value, std::string path) : map_(value.get<Map>()), path_(std::move(path)) {
    if (map_ == nullptr) throw BadEnvelope(path_ + " must be a map");
}

const Value* Fields::find(std::string_view key) const {
    const auto found = std::find_if(map_->begin(), map_->end(), [&](const Field& field) { return field.key == key; });
    return found == map_->end() ? nullptr : &found->value;
}

bool Fields::has(std::string_view key) const {
    const Value* value = find(key);
    return value != nullptr && value->get<std::monostate>() == nullptr;
}

std::string Fields::text(std::string_view key, std::optional<std::string> otherwise) const {
    const Value* value = find(key);
    if (value == nullptr && otherwise) return *std::move(otherwise);
    if (value == nullptr) throw BadEnvelope(at(key) + " is missing");
    if (auto* text = value->get<std::string>()) return *text;
    throw BadEnvelope(at(key) + " must be a string");
}

std::int64_t Fields::integer(std::string_view key, std::optional<std::int64_t> otherwise, std::int64_t least) const {
    const Value* value = find(key);
    if (value == nullptr && otherwise) return *otherwise;
    if (value == nullptr) throw BadEnvelope(at(key) + " is missing");
    if (auto* integer = value->get<std::int64_t>(); integer != nullptr && *integer >= least) return *integer;
    throw BadEnvelope(at(key) + " must be an integer from " + std::to_string(least) + " to 2**63 - 1");
}

std::int64_t Fields::count(std::string_view key, std::optional<std::int64_t> otherwise, std::int64_t least) const {
    return integer(key, otherwise, least);
}

std::optional<Fields> Fields::map(std::string_view key) const {
    if (!has(key)) return {};
    return Fields(*find(key), at(key));
}

std::vector<Fields> Fields::maps(std::string_view key) const {
    std::vector<Fields> found;
    if (!has(key)) return found;
    const Array* array = find(key)->get<Array>();
    if (array == nullptr) throw BadEnvelope(at(key) + " must be an array");
    for (const Value& value : *array) found.emplace_back(value, at(key) + "[" + std::to_string(found.size()) + "]");
    return found;
}

Parameters Fields::scalars(const std::function<bool(std::string_view)>& is_known) const {
    if (map_->size() > most_parameters) throw BadEnvelope(path_ + ": more than 128 parameters");
    Parameters found;
    for (const auto& [key, value] : *map_) {
        if (is_known(key)) continue;
        auto scalar = as_scalar(value);
        if (!scalar) throw BadEnvelope(at(key) + " must be a boolean, a number or a string");
        found.emplace_back(key, *std::move(scalar));
    }
    return found;
}

std::string shown(std::string_view text) {
    std::string found(text.substr(0, 80));
    std::replace_if(found.begin(), found.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
    return "'" + found + "'";
}

}  // namespace mqinfer

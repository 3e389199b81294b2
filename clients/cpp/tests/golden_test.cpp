/// The golden and the broken messages of the repository: tests/golden/README.md says what is in them.
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "files.h"
#include "header.h"
#include "lanes.h"
#include "mqinfer/message.h"
#include "sha256.h"

using nlohmann::json;
using namespace mqinfer;

namespace {

std::string folder;
int failures = 0;

void check(bool holds, const std::string& what) {
    if (holds) return;
    ++failures;
    std::cerr << "wrong: " << what << '\n';
}

Payload golden(const std::string& name) {
    const std::string file = read_file(folder + "/" + name);
    return copied(file.data(), file.size());
}

// Messages in the neutral words of golden.json.

json stated(json fields) {
    for (auto field = fields.begin(); field != fields.end();) {
        const bool is_empty = field->is_null() || field->empty() || (field->is_string() && field->get_ref<std::string&>().empty());
        field = is_empty && !field->is_number() && !field->is_boolean() ? fields.erase(field) : std::next(field);
    }
    return fields;
}

template <class T>
json optional(const std::optional<T>& value) {
    return value ? json(*value) : json();
}

json parameters(const Parameters& from) {
    json found = json::object();
    for (const auto& [key, value] : from) found[key] = std::visit([](const auto& each) { return json(each); }, value);
    return found;
}

json capture(const Capture& from) {
    json stamp = from.capture_time_ns ? json(std::to_string(*from.capture_time_ns)) : json();
    return stated({{"source", from.source}, {"sequence", optional(from.sequence)}, {"capture_time_ns", stamp}, {"frame_id", from.frame_id}});
}

json fields(const Request& from) {
    json outputs = json::array();
    for (const auto& each : from.outputs)
        outputs.push_back(stated({{"name", each.name}, {"encoding", each.encoding}, {"classification", each.classification}}));
    return stated({{"id", from.id}, {"model_name", from.model_name}, {"model_version", from.model_version}, {"outputs", outputs},
                   {"timeout", optional(from.timeout_us)}, {"priority", from.priority}, {"attempt", from.attempt},
                   {"response_topic", from.response_topic}, {"capture", capture(from.capture)}, {"parameters", parameters(from.parameters)}});
}

json without_zeros(json numbers) {
    for (auto each = numbers.begin(); each != numbers.end();) each = *each == 0 ? numbers.erase(each) : std::next(each);
    return numbers;
}

json fields(const Reply& from) {
    const Timings& t = from.timings;
    json timings = without_zeros({{"client_queue", t.client_queue}, {"transmission", t.transmission}, {"server_queue", t.server_queue},
                                  {"decode", t.decode}, {"preprocess", t.preprocess}, {"inference", t.inference},
                                  {"postprocess", t.postprocess}, {"encode", t.encode}});
    json load = without_zeros({{"depth", from.load.depth}, {"service_time_us", from.load.service_time_us}, {"window", from.load.window}});
    json error = from.error ? json{{"code", from.error->code}, {"message", from.error->message}} : json();
    return stated({{"id", from.id}, {"model_name", from.model_name}, {"model_version", from.model_version},
                   {"outcome", std::string(to_string(from.outcome))}, {"error", error}, {"model_hash", from.model_hash},
                   {"worker", from.worker}, {"stage", from.stage}, {"timings", timings}, {"load", load}, {"attempt", from.attempt},
                   {"capture", capture(from.capture)}, {"parameters", parameters(from.parameters)}});
}

json described(const Tensor& tensor) {
    return {{"name", tensor.name}, {"datatype", std::string(to_string(tensor.datatype))}, {"shape", tensor.shape},
            {"encoding", tensor.encoding}, {"parameters", parameters(tensor.parameters)}};
}

json real(double value) {
    if (std::isfinite(value)) return value;
    return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

double half(std::uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                        : exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
    return bits >> 15 ? -size : size;
}

template <class T, class Neutral>
json list(const Tensor& tensor, Neutral neutral) {
    json found = json::array();
    for (std::size_t place = 0; place < tensor.elements(); ++place) found.push_back(neutral(tensor.data<T>()[place]));
    return found;
}

template <class T>
json numbers(const Tensor& tensor) {
    return list<T>(tensor, [](T value) { return json(value); });
}

json values(const Tensor& tensor) {
    switch (tensor.datatype) {
        case Datatype::BOOL: return list<std::uint8_t>(tensor, [](auto value) { return json(value == 1); });
        case Datatype::UINT8: return numbers<std::uint8_t>(tensor);
        case Datatype::UINT16: return numbers<std::uint16_t>(tensor);
        case Datatype::UINT32: return numbers<std::uint32_t>(tensor);
        case Datatype::UINT64: return list<std::uint64_t>(tensor, [](auto value) { return json(std::to_string(value)); });
        case Datatype::INT8: return numbers<std::int8_t>(tensor);
        case Datatype::INT16: return numbers<std::int16_t>(tensor);
        case Datatype::INT32: return numbers<std::int32_t>(tensor);
        case Datatype::INT64: return list<std::int64_t>(tensor, [](auto value) { return json(std::to_string(value)); });
        case Datatype::FP16: return list<std::uint16_t>(tensor, [](auto value) { return real(half(value)); });
        case Datatype::FP32: return list<float>(tensor, [](auto value) { return real(value); });
        case Datatype::FP64: return list<double>(tensor, [](auto value) { return real(value); });
        case Datatype::BYTES: break;
    }
    json found = json::array();
    for (const auto& each : tensor.strings()) found.push_back(to_base64(each));
    return found;
}

json run_lengths(const json& all) {
    json found = json::array();
    for (const json& value : all) {
        if (found.empty() || found.back()[0] != value) found.push_back({value, 0});
        found.back()[1] = found.back()[1].get<int>() + 1;
    }
    return found;
}

void check_values(const json& entry, const Tensor& tensor, const std::string& what) {
    const json all = values(tensor);
    if (entry.contains("values")) check(all == entry["values"], what + ": values");
    else if (entry.contains("run_lengths")) check(run_lengths(all) == entry["run_lengths"], what + ": run lengths");
    else {
        check(std::equal(entry["first"].begin(), entry["first"].end(), all.begin()), what + ": first values");
        check(sha256(tensor.bytes, tensor.size) == entry["sha256"], what + ": SHA-256");
    }
}

bool is_picture(const Tensor& tensor) { return tensor.encoding == "jpeg" || tensor.encoding == "png"; }

/// The array of a tensor, encoded again: to the same bytes for raw, to others that hold the same where it is compressed.
void check_encoded_again(const Tensor& tensor, const Tensor& array, const std::string& what) {
    Tensor plain = array;
    plain.parameters.clear();
    for (const auto& each : tensor.parameters)
        if (each.first != "raw_size") plain.parameters.push_back(each);
    const Tensor again = encode(plain, tensor.encoding);
    check(described(again) == described(tensor), what + ": encoded again");
    const Tensor same = tensor.encoding == "raw" ? again : decode(again);
    check(same.size == array.size && std::memcmp(same.bytes, array.bytes, same.size) == 0, what + ": bytes when encoded again");
}

template <class Message>
void check_message(const json& entry, const Payload& payload, const Message& message, const std::vector<Tensor>& tensors, const Payload& again) {
    const std::string file = entry["file"];
    check(checksum(payload.bytes.get(), payload.size) == entry["xxh3"], file + ": checksum");
    check(fields(message) == entry["fields"], file + ": fields " + fields(message).dump());
    check(again.size == payload.size && std::memcmp(again.bytes.get(), payload.bytes.get(), again.size) == 0, file + ": written again");
    const json none = json::array(), &described_ones = entry.contains("tensors") ? entry["tensors"] : none;
    check(tensors.size() == described_ones.size(), file + ": number of tensors");
    for (std::size_t place = 0; place < tensors.size(); ++place) {
        const json& wanted = described_ones[place];
        const std::string what = file + " " + tensors[place].name;
        const json own = described(tensors[place]);
        for (const auto& [key, value] : own.items()) check(wanted[key] == value, what + ": " + key);
        if (is_picture(tensors[place])) {
            check_picture(tensors[place]);
            continue;
        }
        const Tensor array = decode(tensors[place]);
        check_values(wanted, array, what);
        check_encoded_again(tensors[place], array, what);
    }
}

void check_golden(const json& entry) {
    const Payload payload = golden(entry["file"]);
    if (entry["kind"] == "request") {
        const Request message = decode_request(payload);
        check_message(entry, payload, message, message.inputs, encode_request(message));
    } else {
        const Reply message = decode_reply(payload);
        check_message(entry, payload, message, message.outputs, encode_reply(message));
    }
}

Payload broken(const json& entry) {
    if (entry.contains("payload")) {
        const std::string bytes = from_base64(entry["payload"].get<std::string>());
        return copied(bytes.data(), bytes.size());
    }
    std::string bytes = read_file(folder + "/" + entry["base"].get<std::string>());
    for (const json& edit : entry["edits"]) {
        const std::string hex = edit[1];
        for (std::size_t place = 0; 2 * place < hex.size(); ++place)
            bytes[edit[0].get<std::size_t>() + place] = static_cast<char>(std::stoi(hex.substr(2 * place, 2), nullptr, 16));
    }
    bytes.resize(entry["length"]);
    return copied(bytes.data(), bytes.size());
}

std::string code_of(const json& entry) {
    try {
        const Payload payload = broken(entry);
        const auto tensors = entry["kind"] == "request" ? decode_request(payload).inputs : decode_reply(payload).outputs;
        for (const Tensor& tensor : tensors) {
            if (is_picture(tensor)) check_picture(tensor);
            else decode(tensor);
        }
    } catch (const Error& error) {
        return error.code();
    }
    return "ok";
}

/// Sums of what a worker states stay within their type, which the sanitizers of this test watch.
void check_largest_numbers() {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    Reply reply;
    reply.id = reply.model_name = "x";
    reply.timings.decode = reply.timings.inference = reply.load.depth = reply.load.service_time_us = reply.load.window = most;
    const Reply found = decode_reply(encode_reply(reply));
    check(found.timings.server() == most, "the sum of the largest times");
    Lane lane;
    lane.update_load(found.load, 1);
    lane.measure(1, found.timings);
    lane.in_flight.push_back({"x", 1, 1});
    check(lane.expected() > 1e30 && lane.transit == 0, "the expected time of the busiest worker");
}

/// What a peer states of a frame as nil is not stated.
void check_nil() {
    const Map parameters{{"sequence", Value()}, {"capture_time_ns", Value()}};
    const Reply found = read_reply(Map{{"id", std::string("x")}, {"parameters", parameters}}, {});
    check(!found.capture.sequence && !found.capture.capture_time_ns, "a capture of nil");
}

}  // namespace

int main(int, char** arguments) {
    folder = arguments[1];
    int messages = 0, refused = 0;
    for (const json& entry : json::parse(read_file(folder + "/golden.json"))) {
        if (entry["content_type"] != "application/vnd.mqinfer.v1") continue;
        check_golden(entry);
        ++messages;
    }
    for (const json& entry : json::parse(read_file(folder + "/broken.json"))) {
        const std::string code = code_of(entry);
        check(code == entry["code"], entry["name"].get<std::string>() + ": " + code + " for " + entry["code"].get<std::string>());
        ++refused;
    }
    check_largest_numbers();
    check_nil();
    std::cout << messages << " golden messages, " << refused << " broken ones\n";
    return failures == 0 && messages > 0 && refused > 0 ? 0 : 1;
}

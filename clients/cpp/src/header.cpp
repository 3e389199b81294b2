#include "header.h"

#include <algorithm>
#include <array>

#include "fields.h"

namespace mqinfer {
namespace {

/// What an empty string takes in a receiver.
constexpr std::size_t string_bytes = 48;
constexpr std::size_t most_message_bytes = 4000;
constexpr std::array<std::string_view, 6> outcomes = {"ok", "error", "expired", "superseded", "rejected", "cancelled"};
constexpr std::array<std::string_view, 13> datatypes = {"BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16",
                                                        "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"};

bool is_capture(std::string_view key) {
    return key == "source" || key == "sequence" || key == "capture_time_ns" || key == "frame_id";
}

bool is_of_request(std::string_view key) {
    return is_capture(key) || key == "timeout" || key == "priority" || key == "attempt" || key == "response_topic";
}

bool is_of_reply(std::string_view key) {
    return is_capture(key) || key == "attempt" || key == "outcome" || key == "model_hash" || key == "worker" ||
           key == "stage" || key == "timings" || key == "load" || key == "error_code";
}

bool is_of_tensor(std::string_view key) { return key == "encoding" || key == "binary_data_size"; }

// Writing: fields in mqinfer's order, those at their default left out.

void add(Map& map, std::string key, const std::string& text) {
    if (!text.empty()) map.push_back({std::move(key), text});
}

void add(Map& map, std::string key, std::int64_t number, std::int64_t usual) {
    if (number != usual) map.push_back({std::move(key), number});
}

void add(Map& map, std::string key, const std::optional<std::int64_t>& number) {
    if (number) map.push_back({std::move(key), *number});
}

void add(Map& map, std::string key, Map&& below) {
    if (!below.empty()) map.push_back({std::move(key), std::move(below)});
}

void add(Map& map, const Parameters& parameters, bool (*is_field)(std::string_view)) {
    for (const auto& [key, value] : parameters) {
        if (is_field(key)) throw BadEnvelope("parameter " + shown(key) + " is a field; set the field instead");
        map.push_back({key, std::visit([](const auto& each) { return Value(each); }, value)});
    }
}

void add(Map& map, const Capture& capture) {
    add(map, "source", capture.source);
    add(map, "sequence", capture.sequence);
    add(map, "capture_time_ns", capture.capture_time_ns);
    add(map, "frame_id", capture.frame_id);
}

Array tensor_entries(const std::vector<Tensor>& tensors) {
    Array found;
    for (const Tensor& tensor : tensors) {
        Map parameters{{"binary_data_size", static_cast<std::int64_t>(tensor.size)}};
        if (tensor.encoding != "raw") add(parameters, "encoding", tensor.encoding);
        add(parameters, tensor.parameters, is_of_tensor);
        found.push_back(Map{{"name", tensor.name},
                            {"datatype", std::string(to_string(tensor.datatype))},
                            {"shape", Array(tensor.shape.begin(), tensor.shape.end())},
                            {"parameters", std::move(parameters)}});
    }
    return found;
}

Array output_entries(const std::vector<RequestedOutput>& outputs) {
    Array found;
    for (const RequestedOutput& output : outputs) {
        Map entry{{"name", output.name}}, parameters;
        add(parameters, "encoding", output.encoding);
        add(parameters, "classification", output.classification, 0);
        add(entry, "parameters", std::move(parameters));
        found.push_back(std::move(entry));
    }
    return found;
}

Map timing_entries(const Timings& timings) {
    if (timings.server() == 0 && timings.client_queue == 0 && timings.transmission == 0) return {};
    Map found{{"server_queue", timings.server_queue}, {"decode", timings.decode},
              {"preprocess", timings.preprocess},     {"inference", timings.inference},
              {"postprocess", timings.postprocess},   {"encode", timings.encode}};
    add(found, "client_queue", timings.client_queue, 0);
    add(found, "transmission", timings.transmission, 0);
    return found;
}

Map load_entries(const Load& load) {
    if (load.depth == 0 && load.service_time_us == 0 && load.window == 0) return {};
    Map found{{"depth", load.depth}, {"service_time_us", load.service_time_us}};
    add(found, "window", load.window, 0);
    return found;
}

/// Return a message that every receiver takes, cut between two characters.
std::string shortened(const std::string& message) {
    if (message.size() <= most_message_bytes) return message;
    std::size_t end = most_message_bytes;
    while (end > 0 && (message[end] & 0xc0) == 0x80) --end;
    return message.substr(0, end);
}

// Reading.

Capture read_capture(const Fields& parameters) {
    Capture found;
    found.source = parameters.text("source", "");
    if (parameters.has("sequence")) found.sequence = parameters.count("sequence");
    if (parameters.has("capture_time_ns")) found.capture_time_ns = parameters.integer("capture_time_ns");
    found.frame_id = parameters.text("frame_id", "");
    return found;
}

Datatype read_datatype(const Fields& entry, const std::string& name) {
    const Value* value = entry.find("datatype");
    const std::string* text = value ? value->get<std::string>() : nullptr;
    const auto found = text ? std::find(datatypes.begin(), datatypes.end(), *text) : datatypes.end();
    if (found != datatypes.end()) return static_cast<Datatype>(found - datatypes.begin());
    throw BadTensor("tensor " + shown(name) + ": its datatype is missing or unknown");
}

std::vector<std::int64_t> read_shape(const Fields& entry, const std::string& name) {
    const Value* value = entry.find("shape");
    const Array* sides = value ? value->get<Array>() : nullptr;
    if (sides == nullptr) throw BadTensor("tensor " + shown(name) + ": 'shape' must be an array");
    std::vector<std::int64_t> found;
    for (const Value& side : *sides) {
        const std::int64_t* length = side.get<std::int64_t>();
        if (length == nullptr || *length < 0)
            throw BadTensor("tensor " + shown(name) + ": every entry of a shape must be an integer from 0 to 2**63 - 1");
        found.push_back(*length);
    }
    return found;
}

Tensor read_tensor(const Fields& entry, const Limits& limits) {
    Tensor found;
    found.name = entry.text("name");
    found.datatype = read_datatype(entry, found.name);
    found.shape = read_shape(entry, found.name);
    check_shape(found, limits);
    const auto parameters = entry.map("parameters");
    if (!parameters) throw BadEnvelope("tensor " + shown(found.name) + ": 'binary_data_size' is missing");
    found.size = static_cast<std::size_t>(parameters->count("binary_data_size"));
    found.encoding = parameters->text("encoding", "raw");
    found.parameters = parameters->scalars(is_of_tensor);
    return found;
}

std::vector<Tensor> read_tensors(const Fields& header, const char* key, const Limits& limits) {
    const auto entries = header.maps(key);
    if (entries.size() > limits.tensors) throw LimitExceeded(std::to_string(entries.size()) + " " + key + " are too many");
    std::vector<Tensor> found;
    for (const Fields& entry : entries) {
        found.push_back(read_tensor(entry, limits));
        const auto is_same = [&](const Tensor& each) { return each.name == found.back().name; };
        if (std::find_if(found.begin(), found.end(), is_same) != found.end() - 1)
            throw BadTensor("two " + std::string(key) + " have the same name; send each once");
    }
    return found;
}

RequestedOutput read_output(const Fields& entry) {
    RequestedOutput found{entry.text("name"), "", 0};
    if (const auto parameters = entry.map("parameters")) {
        found.encoding = parameters->text("encoding", "");
        found.classification = parameters->count("classification", 0);
    }
    return found;
}

Outcome read_outcome(const Fields& header) {
    const std::string text = header.text("outcome", "ok");
    const auto found = std::find(outcomes.begin(), outcomes.end(), text);
    if (found == outcomes.end()) throw BadEnvelope("reply: outcome is " + shown(text) + "; there is none of that name");
    return static_cast<Outcome>(found - outcomes.begin());
}

Timings read_timings(const Fields& timings) {
    Timings found;
    found.client_queue = timings.count("client_queue", 0);
    found.transmission = timings.count("transmission", 0);
    found.server_queue = timings.count("server_queue", 0);
    found.decode = timings.count("decode", 0);
    found.preprocess = timings.count("preprocess", 0);
    found.inference = timings.count("inference", 0);
    found.postprocess = timings.count("postprocess", 0);
    found.encode = timings.count("encode", 0);
    return found;
}

}  // namespace

std::string_view to_string(Datatype datatype) { return datatypes[static_cast<std::size_t>(datatype)]; }

std::string_view to_string(Outcome outcome) { return outcomes[static_cast<std::size_t>(outcome)]; }

std::size_t check_shape(const Tensor& tensor, const Limits& limits) {
    if (tensor.shape.size() > limits.dimensions)
        throw LimitExceeded("tensor " + shown(tensor.name) + ": " + std::to_string(tensor.shape.size()) + " axes are too many");
    const std::size_t item = item_bytes(tensor.datatype);
    std::size_t size = item ? item : string_bytes;
    bool is_empty = false;
    for (const std::int64_t side : tensor.shape) {
        if (side < 0) throw BadTensor("tensor " + shown(tensor.name) + ": a side of its shape is negative");
        is_empty |= side == 0;
        const std::size_t factor = side == 0 ? 1 : static_cast<std::size_t>(side);
        if (factor > limits.tensor_bytes / size)
            throw LimitExceeded("tensor " + shown(tensor.name) + ": its shape takes more than " +
                                std::to_string(limits.tensor_bytes) + " bytes");
        size *= factor;
    }
    return is_empty ? 0 : size;
}

Map request_header(const Request& request) {
    Map header{{"id", request.id}, {"model_name", request.model_name}}, parameters;
    add(header, "model_version", request.model_version);
    add(parameters, request.parameters, is_of_request);
    add(parameters, "timeout", request.timeout_us);
    add(parameters, "priority", request.priority, 0);
    add(parameters, "attempt", request.attempt, 1);
    add(parameters, "response_topic", request.response_topic);
    add(parameters, request.capture);
    add(header, "parameters", std::move(parameters));
    if (!request.outputs.empty()) header.push_back({"outputs", output_entries(request.outputs)});
    header.push_back({"inputs", tensor_entries(request.inputs)});
    return header;
}

Map reply_header(const Reply& reply) {
    Map header{{"id", reply.id}, {"model_name", reply.model_name}}, parameters;
    add(header, "model_version", reply.model_version);
    if (reply.outcome != Outcome::ok) add(header, "outcome", std::string(to_string(reply.outcome)));
    add(header, "model_hash", reply.model_hash);
    add(header, "worker", reply.worker);
    if (reply.stage != "worker") add(header, "stage", reply.stage);
    add(header, "timings", timing_entries(reply.timings));
    add(header, "load", load_entries(reply.load));
    if (reply.error)
        header.push_back({"error", Map{{"code", reply.error->code}, {"message", shortened(reply.error->message)}}});
    add(parameters, reply.parameters, is_of_reply);
    add(parameters, "attempt", reply.attempt, 1);
    add(parameters, reply.capture);
    add(header, "parameters", std::move(parameters));
    header.push_back({"outputs", tensor_entries(reply.outputs)});
    return header;
}

Request read_request(const Value& value, const Limits& limits) {
    const Fields header(value, "request");
    Request found;
    found.id = header.text("id");
    found.model_name = header.text("model_name");
    if (header.has("model_version")) found.model_version = header.text("model_version");
    for (const Fields& entry : header.maps("outputs")) found.outputs.push_back(read_output(entry));
    if (const auto parameters = header.map("parameters")) {
        if (parameters->has("timeout")) found.timeout_us = parameters->count("timeout");
        found.priority = parameters->count("priority", 0);
        found.attempt = parameters->count("attempt", 1, 1);
        found.response_topic = parameters->text("response_topic", "");
        found.capture = read_capture(*parameters);
        found.parameters = parameters->scalars(is_of_request);
    }
    found.inputs = read_tensors(header, "inputs", limits);
    return found;
}

Reply read_reply(const Value& value, const Limits& limits) {
    const Fields header(value, "reply");
    Reply found;
    found.id = header.text("id");
    found.model_name = header.text("model_name", "");
    found.model_version = header.text("model_version", "");
    found.outcome = read_outcome(header);
    if (const auto error = header.map("error")) found.error = Failure{error->text("code"), error->text("message", "")};
    found.model_hash = header.text("model_hash", "");
    found.worker = header.text("worker", "");
    const std::string stage = header.text("stage", "worker");
    if (stage == "edge" || stage == "edge-reuse") found.stage = stage;
    if (const auto timings = header.map("timings")) found.timings = read_timings(*timings);
    if (const auto load = header.map("load"))
        found.load = {load->count("depth", 0), load->count("service_time_us", 0), load->count("window", 0)};
    if (const auto parameters = header.map("parameters")) {
        found.attempt = parameters->count("attempt", 1, 1);
        found.capture = read_capture(*parameters);
        found.parameters = parameters->scalars(is_of_reply);
    }
    found.outputs = read_tensors(header, "outputs", limits);
    return found;
}

}  // namespace mqinfer

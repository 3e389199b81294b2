#include "states.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "fields.h"
#include "msgpack.h"
#include "topics.h"

namespace mqinfer {
namespace {

using nlohmann::json;

constexpr std::size_t most_state_bytes = 64u << 10;
constexpr std::array<const char*, 5> statuses = {"ready", "draining", "stopped", "lost", "crashed"};

std::int64_t count(const json& from, const char* key) {
    const auto found = from.find(key);
    if (found == from.end()) return 0;
    if (!found->is_number_integer() || *found < 0 || *found > INT64_MAX)
        throw BadEnvelope(std::string("state: ") + key + " must be an integer from 0 on");
    return found->get<std::int64_t>();
}

ServedModel served(const json& from) {
    ServedModel found{from.at("name").get<std::string>(), from.value("version", ""), from.value("default", true), count(from, "share")};
    check_name(NameKind::model, found.name);
    if (found.share > 100) throw BadEnvelope("state: share must be an integer from 0 to 100");
    return found;
}

WorkerState state_of(const json& from) {
    WorkerState found;
    found.worker = from.at("worker").get<std::string>();
    const auto status = std::find(statuses.begin(), statuses.end(), from.at("status").get<std::string>());
    if (status == statuses.end()) throw BadEnvelope("state: there is no such status");
    found.status = static_cast<WorkerStatus>(status - statuses.begin());
    found.boot = count(from, "boot");
    for (const json& model : from.value("models", json::array())) found.models.push_back(served(model));
    found.service_time_us = count(from, "service_time_us");
    for (const json& id : from.value("running", json::array())) found.running.push_back(id.get<std::string>());
    return found;
}

}  // namespace

WorkerState read_worker_state(const std::string& worker, const void* bytes, std::size_t size) {
    if (size > most_state_bytes) throw BadEnvelope("state of " + std::to_string(size) + " bytes");
    const auto* text = static_cast<const char*>(bytes);
    const auto is_flat = [](int depth, json::parse_event_t, json&) {
        if (depth > most_nested) throw BadEnvelope("state: more than 100 maps and arrays within each other");
        return true;
    };
    try {
        WorkerState found = state_of(json::parse(text, text + size, is_flat));
        if (found.worker != worker) throw BadEnvelope("the state of " + shown(found.worker) + " stands on the topic of " + shown(worker));
        return found;
    } catch (const json::exception& error) {
        throw BadEnvelope(std::string("state: ") + error.what());
    }
}

}  // namespace mqinfer

/// The states of workers: retained messages in JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mqinfer {

struct ServedModel {
    std::string name, version;
    bool is_default = false;
    std::int64_t share = 0;  ///< As a canary: per cent of the requests without a version that go to it.

    bool operator==(const ServedModel& other) const {
        return name == other.name && version == other.version && is_default == other.is_default && share == other.share;
    }
};

enum class WorkerStatus { ready, draining, stopped, lost, crashed };

struct WorkerState {
    std::string worker;
    WorkerStatus status = WorkerStatus::ready;
    std::int64_t boot = 0;  ///< Start of the process, microseconds since 1970.
    std::vector<ServedModel> models;
    std::int64_t service_time_us = 0;
    std::vector<std::string> running;  ///< Of one that crashed: the requests that it worked on.
};

/// Throws BadEnvelope: it is no state, or names another worker than its topic.
WorkerState read_worker_state(const std::string& worker, const void* bytes, std::size_t size);

}  // namespace mqinfer

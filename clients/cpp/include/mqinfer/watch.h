/// The results of others, in a bounded buffer.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "mqinfer/message.h"

namespace mqinfer {

/// A reply to some client. Its tensors are encoded: `decode` expands those that the program wants.
struct Watched {
    std::string client;   ///< Who asked, by the topic.
    std::string request;  ///< The request's id, by the topic.
    Reply reply;
};

struct WatchCounters {
    std::uint64_t received = 0;
    std::uint64_t dropped = 0;    ///< The oldest ones, since the buffer was full.
    std::uint64_t malformed = 0;  ///< They can't be read, were damaged, or are not what their topic says.
    std::uint64_t retained = 0;   ///< The broker had kept them: they are of an earlier time.
};

class WatchBuffer;

/// Ends with its destruction.
class Watch {
public:
    explicit Watch(std::shared_ptr<WatchBuffer> results) : results_(std::move(results)) {}

    /// Return the oldest reply that waits; none where none came in time, or the client was closed.
    std::optional<Watched> next(std::chrono::milliseconds timeout);
    WatchCounters counters() const;

private:
    std::shared_ptr<WatchBuffer> results_;
};

}  // namespace mqinfer

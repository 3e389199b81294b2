/// What a watch reads from: filled by the client's thread, emptied by the program's.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>

#include "connection.h"
#include "mqinfer/watch.h"
#include "topics.h"

namespace mqinfer {

class WatchBuffer {
public:
    /// `on_end` is called with the destruction.
    WatchBuffer(std::size_t most, Limits limits, std::function<void()> on_end);
    ~WatchBuffer();

    void receive(const ResultAddress& address, const Incoming& message);
    std::optional<Watched> next(std::chrono::milliseconds timeout);
    WatchCounters counters() const;
    void close();

private:
    const std::size_t most_;
    const Limits limits_;
    const std::function<void()> on_end_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Watched> waiting_;
    std::size_t bytes_ = 0;
    bool is_closed_ = false;
    WatchCounters counters_;
};

}  // namespace mqinfer

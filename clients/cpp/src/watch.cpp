#include "watching.h"

namespace mqinfer {
namespace {

constexpr std::size_t most_waiting_bytes = 64u << 20;

std::size_t size_of(const Watched& watched) {
    std::size_t size = 0;
    for (const Tensor& tensor : watched.reply.outputs) size += tensor.size;
    return size;
}

Watched read(const ResultAddress& address, const Incoming& message, const Limits& limits) {
    if (!message.checksum.empty() && message.checksum != checksum(message.bytes, message.size))
        throw Corrupted("the payload differs from its checksum");
    Reply reply = decode_reply(copied(message.bytes, message.size), limits);
    if (reply.model_name != address.model || reply.id != address.request) throw Error("the reply is not what its topic says");
    return {address.client, address.request, std::move(reply)};
}

}  // namespace

WatchBuffer::WatchBuffer(std::size_t most, Limits limits, std::function<void()> on_end)
    : most_(most), limits_(limits), on_end_(std::move(on_end)) {
    if (most == 0) throw ConfigError("a buffer of 0 results is not possible; expected 1 or more");
}

WatchBuffer::~WatchBuffer() { on_end_(); }

void WatchBuffer::receive(const ResultAddress& address, const Incoming& message) {
    std::optional<Watched> watched;
    try {
        if (!message.retained) watched = read(address, message, limits_);
    } catch (const Error&) {
        // counted below
    }
    const std::lock_guard lock(mutex_);
    ++counters_.received;
    counters_.retained += message.retained;
    counters_.malformed += !message.retained && !watched;
    if (!watched || is_closed_) return;
    bytes_ += size_of(*watched);
    waiting_.push_back(*std::move(watched));
    while (waiting_.size() > most_ || (bytes_ > most_waiting_bytes && waiting_.size() > 1)) {
        bytes_ -= size_of(waiting_.front());
        waiting_.pop_front();
        ++counters_.dropped;
    }
    changed_.notify_one();
}

std::optional<Watched> WatchBuffer::next(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [&] { return !waiting_.empty() || is_closed_; });
    if (waiting_.empty()) return {};
    Watched first = std::move(waiting_.front());
    waiting_.pop_front();
    bytes_ -= size_of(first);
    return first;
}

WatchCounters WatchBuffer::counters() const {
    const std::lock_guard lock(mutex_);
    return counters_;
}

void WatchBuffer::close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    changed_.notify_all();
}

std::optional<Watched> Watch::next(std::chrono::milliseconds timeout) { return results_->next(timeout); }

WatchCounters Watch::counters() const { return results_->counters(); }

}  // namespace mqinfer

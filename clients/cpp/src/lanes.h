/// The workers that a client knows, and which of them gets the next request: the one expected to finish it first.
///
/// The rules, and the reasons for each number, are those of Python's dispatcher (mqinfer/client/dispatch). Pure: the owner
/// passes the clock's reading, in seconds, and holds a lock.
#pragma once

#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "mqinfer/message.h"
#include "states.h"

namespace mqinfer {

constexpr double never = std::numeric_limits<double>::infinity();
constexpr double longest_pause = 1.0;
/// Stands for a version where a request names none and goes to the canary.
constexpr const char* canary = "canary";

/// Return `min(first * 2^times, most)`.
double doubled(double first, int times, double most);

/// When a worker's silence means something, in seconds and as multiples of the expected time of a reply.
namespace silence {
constexpr double doubt = 0.05, doubt_factor = 3;        ///< Then a worker gets nothing more.
constexpr double attempt = 1, attempt_factor = 3;       ///< Then a request is sent to another one.
constexpr double attempt_shared = 3;                    ///< Where no worker is known to have it.
constexpr double attempt_unknown = 10;                  ///< Where nobody has said how long a request takes.
constexpr double quarantine = 1, quarantine_most = 30;  ///< It gets none for so long; doubled each time.
}  // namespace silence

/// Model and version asked for; the version is empty for the default one.
using Channel = std::pair<std::string, std::string>;

struct Lane {
    struct Sent {
        std::string id;
        double at, expected;
    };

    std::string worker;
    std::int64_t boot = 0;
    std::vector<ServedModel> models;
    bool open = false;
    std::int64_t limit = 0;  ///< Requests of this client that may be in flight there; 0 until it has stated that.
    double service = 0, run = 0, transit = 0;  ///< Smoothed time of a request; of the last batch; on the network.
    std::int64_t others = 0;                   ///< Depth that other clients caused, when it last replied.
    double closed_until = 0;
    double replied_at = -never;
    std::int64_t turn = 0;  ///< Requests that this client had sent, to any worker, when this one last got one.
    std::vector<Sent> in_flight;
    std::deque<std::string> unanswered;  ///< The newest requests that left without its reply, which may still come.
    int strikes = 0;                     ///< Quarantines since its last reply.
    double quarantined_until = 0;

    double opens_at() const { return std::max(closed_until, quarantined_until); }
    bool serves(const Channel& channel) const;
    double expected() const { return (static_cast<double>(in_flight.size()) + static_cast<double>(others) + 1) * service; }
    double finish(double now) const { return now + 1.25 * expected() + transit; }
    bool is_usable(double now) const;
    bool has_room() const;
    bool has_just_replied(double now) const { return now - replied_at < silence::attempt / 2; }

    /// Remove a request from those in flight without this worker's reply.
    void land(const std::string& id);
    /// Take a request's reply; return whether the worker had it.
    bool answered(const std::string& id);
    void measure(double elapsed, const Timings& timings);
    void update_load(const Load& load, double now);
    void pause(double now, double seconds);
    void quarantine(double now);
};

using LanePtr = std::shared_ptr<Lane>;

/// The models' own channels, which a request takes where no worker is known; closed while nobody subscribes.
class SharedChannels {
public:
    bool is_closed(const Channel& channel, double now) const;
    /// Record a request that is being sent; return when it counts as unanswered.
    double sent(const Channel& channel, double now);
    void replied(const std::string& model, double seconds);
    /// Hold back everything for a channel; one request tries again later. Return since when it has no subscribers.
    double close(const Channel& channel, double now, double pause);
    void reopen(const Channel& channel, double at);
    void open_for(const Lane& lane);
    double next_opening(double since) const;
    void clear() { unserved_.clear(); }

private:
    struct Unserved {
        double since, closed_until, pause;
    };
    std::map<Channel, Unserved> unserved_;
    std::map<std::string, double> times_;
};

/// Where a request goes: to a lane, over the shared channel (no lane), or nowhere yet.
struct Destination {
    LanePtr lane;
    bool wait = false;
};

class Fleet {
public:
    SharedChannels channels;

    LanePtr lane(const std::string& worker) const;
    /// Handle a state; return the lane whose requests will not be answered: its worker is lost, ended, or started anew.
    LanePtr update(const WorkerState& state);
    LanePtr remove(const std::string& worker);
    void close(const LanePtr& lane) { lane->open = false; }
    Destination choose(const Channel& channel, double now, std::size_t queued, const std::set<LanePtr>& avoid, double deadline) const;
    /// Record a request that is being sent to a worker; return when it counts as unanswered.
    double sent(const std::string& id, const LanePtr& lane, double now);
    double next_opening(double since) const;
    void clear();
    /// Return the per cent of a model's requests without a version that go to its canary.
    std::int64_t share(const std::string& model) const;
    /// Return whether a canary's requests go to the default version instead of waiting.
    bool falls_back(const Channel& channel, double now, std::size_t queued) const;
    /// Return the names of the models that are served, for messages.
    std::set<std::string> models() const;

private:
    std::vector<LanePtr> serving(const Channel& channel) const;
    double expected(const Lane& lane, double now, double deadline) const;

    std::map<std::string, LanePtr> lanes_;
    std::int64_t turn_ = 0;
};

}  // namespace mqinfer

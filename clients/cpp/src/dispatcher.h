/// What happens to a request until its outcome: a pure state machine without a thread, a lock or a connection.
///
/// Its owner reports each event with the clock's reading, in seconds, and then calls `take` until that returns nothing to
/// send. The rules are those of Python's dispatcher (mqinfer/client/dispatch): the window, patience with missing and busy
/// workers, back-off, time-outs, the budget of retries, poison. A request leaves the table once.
#pragma once

#include <list>
#include <unordered_map>

#include "lanes.h"

namespace mqinfer {

constexpr int not_authorized = 0x87;  ///< A reason code of MQTT.

/// How a client sends; docs in `mqinfer/client.h`.
struct Sending {
    std::size_t window = 16;
    std::size_t max_pending = 1024;
    double patience = 2, settling = 6, backoff = 0.02;
};

using Start = std::pair<std::string, std::int64_t>;  ///< A worker and its boot.

struct Entry {
    enum class Place { queued, in_flight, backing_off, ended };

    std::string id, model, version, response_topic;
    Channel channel;
    double submitted = 0, deadline = 0, sent = 0;
    double due_at = never;  ///< When it counts as unanswered, or is queued again.
    Place place = Place::queued;
    std::int64_t attempts = 0;
    LanePtr lane;           ///< Where it was sent; none for the model's channel.
    std::int64_t order = 0; ///< In its queue, or among those in flight.
    bool withheld = false;  ///< Overdue, and held back by the budget: it takes no place in the window.

    // What is known of its attempts.
    std::int64_t acknowledged = 0;       ///< The last attempt that the broker took.
    std::set<std::string> earlier;       ///< Workers of the attempts before; "" for the model's channel.
    double refused_since = never;        ///< When it was turned away first on this connection.
    std::set<Start> lost_on, crashed_on; ///< Workers that were lost with it, and those whose processes have crashed.
    std::map<LanePtr, double> silent;    ///< Workers that let an attempt time out, and when.
};

using EntryPtr = std::shared_ptr<Entry>;

struct Ended {
    EntryPtr entry;
    Failure why;
};

struct Step {
    EntryPtr send;  ///< The request to publish now, as its attempt `attempts`.
    std::vector<Ended> ended;
};

struct Counts {
    std::uint64_t submitted = 0, pending = 0, in_flight = 0;
    std::uint64_t outcomes[6] = {};  ///< By `Outcome`.
    std::uint64_t retries = 0, withheld = 0, late = 0, mismatched = 0;
};

Outcome outcome_of(const std::string& code);

class Dispatcher {
public:
    explicit Dispatcher(Sending sending) : sending_(sending) {}

    /// Accept a request; return false where as many are pending as may be. It counts as submitted all the same.
    bool submit(const EntryPtr& entry);
    Step take(double now, bool connected);
    void acked(const EntryPtr& entry, std::int64_t attempt, int code, double now);
    void unsent(const EntryPtr& entry, std::int64_t attempt, const Failure& why, double now);
    /// Return the request whose outcome a reply is; none where it is late, not of the request, or turned it away.
    EntryPtr replied(const Reply& reply, const std::string& topic, double now);
    /// Take a request out with its outcome; none where it has one.
    EntryPtr settle(const std::string& id, Outcome outcome);
    void corrupted(const std::string& id);
    void update(const WorkerState& state, double now);
    void remove_worker(const std::string& worker);
    void connection(bool is_up, double now);
    std::vector<Ended> drain(const Failure& why);

    /// When `take` has something to do, though no event came.
    double wake_at() const { return wake_at_; }
    Counts counts() const;

private:
    using Queue = std::map<std::int64_t, EntryPtr>;
    using Alarm = std::pair<double, Entry*>;

    // The table.
    EntryPtr find(const std::string& id) const;
    Queue& queue_of(const Channel& channel);
    void enqueue(const EntryPtr& entry, bool first);
    bool withdraw(const EntryPtr& entry);
    bool requeue(const EntryPtr& entry);
    bool back_off(const EntryPtr& entry, double until);
    void postpone(const EntryPtr& entry, double until);
    void remove(const EntryPtr& entry);
    std::vector<EntryPtr> recall(const LanePtr& lane);

    // What follows.
    void wake(double now);
    void retry_overdue(double now);
    EntryPtr launch_next(double now);
    void launch(const EntryPtr& entry, const LanePtr& lane, double now);
    Destination destination(const Entry& entry, std::size_t queued, double now) const;
    void unserved(const EntryPtr& entry, double now);
    void rejected(const EntryPtr& entry, const Reply& reply, double now);
    void refused(const EntryPtr& entry, const std::string& why, double now, double pause);
    void update_load(const Reply& reply, const EntryPtr& entry, double now);
    bool retry(const EntryPtr& entry);
    bool is_only_slow(const Entry& entry, double now) const;
    void end(const EntryPtr& entry, const Failure& why);

    // Whom to blame for the end of workers.
    void lost(const LanePtr& lane, const std::vector<EntryPtr>& recalled, double now);
    void is_back(const Start& start);
    void crashed(const WorkerState& state, double now);
    void exculpate(const Start& start, const EntryPtr& entry);
    bool holds(Entry& entry) const;
    std::set<Start> silent_on(Entry& entry) const;

    Sending sending_;
    Fleet fleet_;
    std::unordered_map<std::string, EntryPtr> entries_;
    std::map<std::int64_t, EntryPtr> in_flight_;
    std::list<std::pair<Channel, Queue>> queues_;  ///< Models take turns.
    std::set<Alarm> deadlines_, resting_;
    std::size_t queued_ = 0, withheld_now_ = 0;
    std::int64_t first_ = 0, last_ = 0;
    double tokens_ = 16;
    double check_at_ = never, wake_at_ = never, settled_by_ = -never;
    bool was_lost_ = false;
    std::vector<Ended> ended_;
    Counts counts_;
};

}  // namespace mqinfer

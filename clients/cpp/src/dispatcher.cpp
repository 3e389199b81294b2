#include "dispatcher.h"

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "fields.h"

namespace mqinfer {
namespace {

using Place = Entry::Place;

constexpr int no_subscribers = 0x10;
/// Pause before a request that the budget held back is tried again.
constexpr double no_budget = 0.1;
/// Retries for silence and damage: a share of all requests, and so many at once.
constexpr double retry_share = 0.1, retry_burst = 16;
constexpr std::size_t most_crashes = 2;
/// So long a request is set aside that two workers were lost with: their servers report, or they are back.
constexpr double return_seconds = 2;

bool belongs(const Entry& entry, const Reply& reply, const std::string& topic) {
    if (reply.model_name != entry.model || topic != entry.response_topic || reply.attempt > entry.attempts) return false;
    if (!entry.version.empty() && reply.model_version != entry.version && reply.outcome == Outcome::ok) return false;
    if (!entry.lane || entry.earlier.count("") > 0) return true;
    return reply.worker.empty() || reply.worker == entry.lane->worker || entry.earlier.count(reply.worker) > 0;
}

std::string seconds_of(const Entry& entry) {
    std::string text = std::to_string(entry.deadline - entry.submitted);
    return text.substr(0, text.find('.') + 4) + " s";
}

Failure expiry(const Entry& entry) {
    if (entry.attempts == 0)
        return {"expired", "expired after " + seconds_of(entry) + " before it could be sent (window full, or not connected)"};
    const char* turned_away = entry.refused_since == never ? "" : ", some of them turned away (no worker, or busy ones)";
    return {"expired", "no reply within " + seconds_of(entry) + " and " + std::to_string(entry.attempts) + " attempt(s)" + turned_away};
}

double stated_pause(const Reply& reply) {
    const Parameter* stated = find(reply.parameters, "retry_after");
    if (stated == nullptr) return 0;
    if (const auto* integer = std::get_if<std::int64_t>(stated)) return static_cast<double>(*integer) / 1e6;
    const auto* number = std::get_if<double>(stated);
    return number ? *number / 1e6 : 0;
}

/// Return which request of a queue goes where its first one would; none where none does.
EntryPtr first_for(const Destination& to, const std::map<std::int64_t, EntryPtr>& queue, double now) {
    const EntryPtr& first = queue.begin()->second;
    if (to.wait) return nullptr;
    const double finish = to.lane && !to.lane->in_flight.empty() ? to.lane->finish(now) : -never;
    if (!first->lost_on.empty() && to.lane) return first;
    if (first->lost_on.empty() && first->deadline >= finish) return first;
    // A model's channel gets no request that a worker was lost with: the crash would be nobody's. A busy worker gets the
    // first that it would answer in time.
    for (const auto& [order, each] : queue)
        if (each->lost_on.empty() && each->deadline >= finish) return each;
    return nullptr;
}

}  // namespace

Outcome outcome_of(const std::string& code) {
    if (code == "expired") return Outcome::expired;
    if (code == "rejected") return Outcome::rejected;
    if (code == "cancelled") return Outcome::cancelled;
    return code == "superseded" ? Outcome::superseded : Outcome::error;
}

bool Dispatcher::submit(const EntryPtr& entry) {
    ++counts_.submitted;
    if (entries_.size() >= sending_.max_pending) {
        ++counts_.outcomes[static_cast<std::size_t>(Outcome::rejected)];
        return false;
    }
    entry->channel = {entry->model, entry->version};
    const std::int64_t share = entry->version.empty() ? fleet_.share(entry->model) : 0;
    if (share > 0 && XXH3_64bits(entry->id.data(), entry->id.size()) % 100 < static_cast<std::uint64_t>(share))
        entry->channel.second = canary;
    entries_[entry->id] = entry;
    enqueue(entry, false);
    deadlines_.emplace(entry->deadline, entry.get());
    wake_at_ = std::min(wake_at_, entry->deadline);
    return true;
}

Step Dispatcher::take(double now, bool connected) {
    wake(now);
    if (check_at_ <= now) retry_overdue(now);
    const bool has_room = connected && queued_ > 0 && in_flight_.size() - withheld_now_ < sending_.window;
    EntryPtr entry = has_room ? launch_next(now) : nullptr;
    wake_at_ = check_at_;
    if (!deadlines_.empty()) wake_at_ = std::min(wake_at_, deadlines_.begin()->first);
    if (!resting_.empty()) wake_at_ = std::min(wake_at_, resting_.begin()->first);
    if (!entry && has_room) wake_at_ = std::min(wake_at_, fleet_.next_opening(now));
    return {std::move(entry), std::exchange(ended_, {})};
}

void Dispatcher::acked(const EntryPtr& entry, std::int64_t attempt, int code, double now) {
    if (code == 0) {  // no promise of a reply
        entry->acknowledged = attempt;
        return;
    }
    if (entry->place != Place::in_flight || entry->attempts != attempt) return;  // it was sent again since
    if ((code == no_subscribers || code == not_authorized) && entry->lane) {
        fleet_.close(entry->lane);
        requeue(entry);
    } else if (code == not_authorized) {
        end(entry, {"not_authorized", "the broker does not allow this client to ask for it; where access rules apply, the "
                                      "client's name must be that of its login"});
    } else if (code == no_subscribers) {
        unserved(entry, now);
    } else {
        refused(entry, "the broker turned it away with reason code " + std::to_string(code), now, 0);
    }
}

void Dispatcher::unsent(const EntryPtr& entry, std::int64_t attempt, const Failure& why, double now) {
    if (entry->place == Place::ended || entry->attempts != attempt) return;
    if (why.code != "not_connected") end(entry, why);
    else if (entry->place == Place::in_flight) back_off(entry, now + sending_.backoff);
}

EntryPtr Dispatcher::replied(const Reply& reply, const std::string& topic, double now) {
    const EntryPtr entry = find(reply.id);
    if (entry && !belongs(*entry, reply, topic)) {
        ++counts_.mismatched;
        return nullptr;
    }
    if (!entry) {
        ++counts_.late;
    } else if (reply.outcome == Outcome::rejected) {
        rejected(entry, reply, now);
        return nullptr;
    } else if (entry->place == Place::in_flight) {
        if (!entry->lane) fleet_.channels.replied(reply.model_name, now - entry->sent);
        else if (entry->lane->worker == reply.worker) entry->lane->measure(now - entry->sent, reply.timings);
    }
    update_load(reply, entry, now);
    return entry;
}

EntryPtr Dispatcher::settle(const std::string& id, Outcome outcome) {
    EntryPtr entry = find(id);
    if (!entry) return nullptr;
    remove(entry);
    ++counts_.outcomes[static_cast<std::size_t>(outcome)];
    return entry;
}

void Dispatcher::corrupted(const std::string& id) {
    const EntryPtr entry = find(id);  // the id may be damaged as well; at worst another request is sent twice
    if (entry && entry->place == Place::in_flight) retry(entry);
}

void Dispatcher::update(const WorkerState& state, double now) {
    if (state.status == WorkerStatus::ready) is_back({state.worker, state.boot});
    if (const LanePtr lane = fleet_.update(state)) {
        const auto recalled = recall(lane);
        if (state.status != WorkerStatus::stopped) lost(lane, recalled, now);
    }
    if (state.status == WorkerStatus::crashed) crashed(state, now);
}

void Dispatcher::remove_worker(const std::string& worker) {
    if (const LanePtr lane = fleet_.remove(worker)) recall(lane);
}

void Dispatcher::connection(bool is_up, double now) {
    if (is_up) {
        if (was_lost_) settled_by_ = now + sending_.settling;  // workers need time to reconnect, too
        return;
    }
    was_lost_ = true;
    fleet_.clear();
    recall(nullptr);
    for (const auto& [id, entry] : entries_) {
        entry->refused_since = never;
        entry->lost_on = entry->crashed_on;  // wills of that connection are void, the servers' reports are not
    }
}

std::vector<Ended> Dispatcher::drain(const Failure& why) {
    while (!entries_.empty()) end(entries_.begin()->second, why);
    check_at_ = wake_at_ = never;
    return std::exchange(ended_, {});
}

Counts Dispatcher::counts() const {
    Counts found = counts_;
    found.pending = entries_.size();
    found.in_flight = in_flight_.size();
    return found;
}

// The table.

EntryPtr Dispatcher::find(const std::string& id) const {
    const auto found = entries_.find(id);
    return found == entries_.end() ? nullptr : found->second;
}

Dispatcher::Queue& Dispatcher::queue_of(const Channel& channel) {
    for (auto& [each, queue] : queues_)
        if (each == channel) return queue;
    return queues_.emplace_back(channel, Queue{}).second;
}

void Dispatcher::enqueue(const EntryPtr& entry, bool first) {
    entry->order = first ? --first_ : ++last_;
    queue_of(entry->channel)[entry->order] = entry;
    entry->place = Place::queued;
    ++queued_;
}

/// Remove a request from wherever it waits.
bool Dispatcher::withdraw(const EntryPtr& entry) {
    switch (entry->place) {
        case Place::in_flight:
            in_flight_.erase(entry->order);
            withheld_now_ -= entry->withheld;
            entry->withheld = false;
            if (entry->lane) entry->lane->land(entry->id);
            return true;
        case Place::queued: {
            Queue& queue = queue_of(entry->channel);
            queue.erase(entry->order);
            --queued_;
            if (queue.empty()) queues_.remove_if([&](const auto& each) { return each.first == entry->channel; });
            return true;
        }
        case Place::backing_off: resting_.erase({entry->due_at, entry.get()}); return true;
        case Place::ended: break;
    }
    return false;
}

bool Dispatcher::requeue(const EntryPtr& entry) {
    if (entry->place == Place::queued || !withdraw(entry)) return false;
    enqueue(entry, true);
    return true;
}

bool Dispatcher::back_off(const EntryPtr& entry, double until) {
    if (entry->place == Place::backing_off || !withdraw(entry)) return false;
    entry->place = Place::backing_off;
    entry->due_at = until;
    resting_.emplace(until, entry.get());
    return true;
}

/// Wait until then at least for what a request waits for: its reply, or to be queued again.
void Dispatcher::postpone(const EntryPtr& entry, double until) {
    if (until <= entry->due_at) return;
    const bool rests = entry->place == Place::backing_off && resting_.erase({entry->due_at, entry.get()}) > 0;
    entry->due_at = until;
    if (rests) resting_.emplace(until, entry.get());
}

void Dispatcher::remove(const EntryPtr& entry) {
    const EntryPtr kept = entry;  // the argument may lie in what it is removed from
    withdraw(kept);
    kept->place = Place::ended;
    deadlines_.erase({kept->deadline, kept.get()});
    entries_.erase(kept->id);
}

/// Queue again what is in flight, the oldest first: all of it, or what a worker had.
std::vector<EntryPtr> Dispatcher::recall(const LanePtr& lane) {
    std::vector<EntryPtr> recalled;
    for (const auto& [order, entry] : in_flight_)
        if (!lane || entry->lane == lane) recalled.push_back(entry);
    for (auto entry = recalled.rbegin(); entry != recalled.rend(); ++entry) requeue(*entry);
    return recalled;
}

// What follows from the events and the time.

void Dispatcher::wake(double now) {
    while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
        const EntryPtr entry = find(deadlines_.begin()->second->id);
        end(entry, expiry(*entry));
    }
    while (!resting_.empty() && resting_.begin()->first <= now) {
        const EntryPtr entry = find(resting_.begin()->second->id);
        if (holds(*entry)) postpone(entry, now + silence::attempt);
        else {
            withdraw(entry);
            enqueue(entry, false);
        }
    }
}

EntryPtr Dispatcher::launch_next(double now) {
    for (auto each = queues_.begin(); each != queues_.end(); ++each) {
        const Destination to = destination(*each->second.begin()->second, each->second.size(), now);
        const EntryPtr entry = first_for(to, each->second, now);
        if (!entry) continue;
        queues_.splice(queues_.end(), queues_, each);
        launch(entry, to.lane, now);
        return entry;
    }
    return nullptr;
}

void Dispatcher::launch(const EntryPtr& entry, const LanePtr& lane, double now) {
    withdraw(entry);
    if (entry->attempts > 0) entry->earlier.insert(entry->lane ? entry->lane->worker : "");
    if (++entry->attempts == 1) tokens_ = std::min(retry_burst, tokens_ + retry_share);
    else ++counts_.retries;
    entry->sent = now;
    entry->lane = lane;
    entry->place = Place::in_flight;
    entry->order = ++last_;
    in_flight_[entry->order] = entry;
    entry->due_at = lane ? fleet_.sent(entry->id, lane, now) : fleet_.channels.sent(entry->channel, now);
    check_at_ = std::min(check_at_, entry->due_at);
}

/// A request that a worker was lost with does not go where another such request is: one would be blamed for the other.
Destination Dispatcher::destination(const Entry& entry, std::size_t queued, double now) const {
    std::set<LanePtr> avoid;
    if (!entry.lost_on.empty())
        for (const auto& [order, each] : in_flight_)
            if (each->lane && !each->lost_on.empty()) avoid.insert(each->lane);
    Destination to = fleet_.choose(entry.channel, now, queued, avoid, entry.deadline);
    if (entry.channel.second == canary && !to.lane && fleet_.falls_back(entry.channel, now, queued))
        to = fleet_.choose({entry.model, ""}, now, 1, avoid, entry.deadline);
    return to;
}

/// Hold back all who ask for the model while there is patience, else end with `no_worker`.
void Dispatcher::unserved(const EntryPtr& entry, double now) {
    const double since = fleet_.channels.close(entry->channel, now, sending_.backoff);
    const double patient_until = std::max(std::max(since, entry->submitted) + sending_.patience, settled_by_);
    fleet_.channels.reopen(entry->channel, patient_until);
    if (now < patient_until) {
        entry->refused_since = since;
        requeue(entry);
        return;
    }
    std::string served;
    for (const std::string& each : fleet_.models()) served += (served.empty() ? " (models that workers serve here: " : ", ") + each;
    end(entry, {"no_worker", "no worker serves it; start one, or check the model's name and version" + served + (served.empty() ? "" : ")")});
}

void Dispatcher::rejected(const EntryPtr& entry, const Reply& reply, double now) {
    if (reply.error && reply.error->code == "corrupted") corrupted(entry->id);
    else if (entry->place == Place::in_flight)
        refused(entry, reply.error ? reply.error->message : "busy", now, stated_pause(reply));
}

/// Send a request again later while there is patience, else end it as `rejected`.
void Dispatcher::refused(const EntryPtr& entry, const std::string& why, double now, double pause) {
    entry->refused_since = std::min(entry->refused_since, now);
    const double patient_until = std::max(entry->refused_since + sending_.patience, settled_by_);
    if (now >= patient_until) {
        end(entry, {"rejected", why});
    } else if (entry->lane) {
        entry->lane->pause(now, pause);
        requeue(entry);
    } else {
        const double pause_here = doubled(sending_.backoff, static_cast<int>(std::min<std::int64_t>(entry->attempts - 1, 30)), longest_pause);
        back_off(entry, std::min(now + pause_here, patient_until));
    }
}

/// Store what a reply reports of the worker that it names, unless another one had the request.
void Dispatcher::update_load(const Reply& reply, const EntryPtr& entry, double now) {
    const LanePtr asked = entry ? entry->lane : nullptr;
    const LanePtr lane = asked && asked->worker == reply.worker ? asked : fleet_.lane(reply.worker);
    if (lane && (lane->answered(reply.id) || (entry && !asked))) lane->update_load(reply.load, now);
}

/// Send again what got no reply in time, and nothing more to the workers that were silent.
void Dispatcher::retry_overdue(double now) {
    std::vector<EntryPtr> overdue;
    for (const auto& [order, entry] : in_flight_) {
        if (entry->due_at > now) continue;
        if (is_only_slow(*entry, now)) entry->due_at = now + silence::attempt;
        else overdue.push_back(entry);
    }
    std::set<LanePtr> silent;
    for (const EntryPtr& entry : overdue)
        if (entry->lane && !entry->withheld) silent.insert(entry->lane);
    for (const LanePtr& lane : silent) lane->quarantine(now);
    for (const EntryPtr& entry : overdue) {
        if (entry->lane) {
            const auto since = entry->silent.find(entry->lane);
            if (since == entry->silent.end() || since->second < entry->sent) entry->silent[entry->lane] = now;
        }
        if (holds(*entry)) entry->due_at = now + silence::attempt;
        else if (!retry(entry)) entry->due_at = now + no_budget;
    }
    check_at_ = never;
    for (const auto& [order, entry] : in_flight_) check_at_ = std::min(check_at_, entry->due_at);
}

/// Send a request again at once if the budget allows it; else free its place, though the reply may come.
bool Dispatcher::retry(const EntryPtr& entry) {
    if (tokens_ >= 1) {
        tokens_ -= 1;
        return requeue(entry);
    }
    if (!entry->withheld) {
        ++counts_.withheld;
        if (entry->lane) {
            entry->withheld = true;
            ++withheld_now_;
            entry->lane->land(entry->id);
        }
    }
    return false;
}

/// Return whether its worker answers others: on a slow link all come late.
bool Dispatcher::is_only_slow(const Entry& entry, double now) const {
    return entry.lane && entry.lane->has_just_replied(now) && now - entry.sent < silence::attempt_unknown;
}

void Dispatcher::end(const EntryPtr& entry, const Failure& why) {
    const EntryPtr kept = entry;
    remove(kept);
    ++counts_.outcomes[static_cast<std::size_t>(outcome_of(why.code))];
    ended_.push_back({kept, {why.code, "model " + shown(kept->model) + ": " + why.message}});
}

// Whom to blame for the end of workers: two crashes are enough.

/// Record that a worker is lost: each request that it had may have been its end. One that the broker has not acknowledged
/// never reached it.
void Dispatcher::lost(const LanePtr& lane, const std::vector<EntryPtr>& recalled, double now) {
    for (const EntryPtr& entry : recalled) {
        if (entry->acknowledged != entry->attempts) continue;
        entry->lost_on.insert({lane->worker, lane->boot});
        std::set<Start> all = silent_on(*entry);
        all.insert(entry->lost_on.begin(), entry->lost_on.end());
        if (all.size() >= most_crashes) back_off(entry, now + return_seconds);
    }
    for (const auto& [id, entry] : entries_)
        if (entry->silent.count(lane) > 0) postpone(entry, now + return_seconds);  // a crash has its time to be reported
}

/// Send on what was set aside because of a worker that is back in the same process: it did not crash.
void Dispatcher::is_back(const Start& start) {
    for (const auto& [id, entry] : entries_)
        if (entry->lost_on.count(start) > 0 && entry->crashed_on.count(start) == 0) exculpate(start, entry);
}

/// Count a crash for the requests that the process worked on; where its server names none, for all that it was lost with.
void Dispatcher::crashed(const WorkerState& state, double now) {
    const Start start{state.worker, state.boot};
    const std::set<std::string> running(state.running.begin(), state.running.end());
    std::vector<EntryPtr> culprits;
    for (const auto& [id, entry] : entries_) {
        const bool was_lost = entry->lost_on.count(start) > 0;
        if (running.empty() ? was_lost : running.count(id) > 0) culprits.push_back(entry);
        else if (was_lost) exculpate(start, entry);
    }
    for (const EntryPtr& entry : culprits) {
        entry->lost_on.insert(start);
        entry->crashed_on.insert(start);
        if (entry->place == Place::queued && holds(*entry)) back_off(entry, now + return_seconds);
        if (entry->crashed_on.size() < most_crashes) continue;
        std::string workers;
        for (const Start& each : entry->crashed_on) workers += (workers.empty() ? "" : ", ") + each.first;
        end(entry, {"poison", "the workers " + workers + " crashed while they had it"});
    }
}

void Dispatcher::exculpate(const Start& start, const EntryPtr& entry) {
    entry->lost_on.erase(start);
    entry->crashed_on.erase(start);
    if (entry->lost_on.size() < most_crashes && entry->place == Place::backing_off) requeue(entry);
}

/// Return whether no other worker gets a request: two have crashed on it, or do not reply since they have it.
bool Dispatcher::holds(Entry& entry) const {
    std::set<Start> all = silent_on(entry);
    all.insert(entry.crashed_on.begin(), entry.crashed_on.end());
    return all.size() >= most_crashes;
}

/// Return which workers that let an attempt time out are there and have replied to nothing since.
std::set<Start> Dispatcher::silent_on(Entry& entry) const {
    std::set<Start> found;
    for (auto each = entry.silent.begin(); each != entry.silent.end();) {
        const auto& [lane, since] = *each;
        if (lane->replied_at >= since || fleet_.lane(lane->worker) != lane) {
            each = entry.silent.erase(each);
            continue;
        }
        found.insert({lane->worker, lane->boot});
        ++each;
    }
    return found;
}

}  // namespace mqinfer

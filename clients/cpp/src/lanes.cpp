#include "lanes.h"

#include <algorithm>
#include <cmath>

namespace mqinfer {
namespace {

constexpr double weight = 0.2;
constexpr std::size_t first_limit = 1;
constexpr std::size_t most_unanswered = 64;
constexpr std::size_t starting_limit = 2;
constexpr double alike_factor = 1.3, alike_seconds = 0.005;
constexpr double stale_requests = 40, stale_seconds = 2;
constexpr std::size_t most_workers = 1024, most_models = 1024;

bool awaits_first_reply(const Lane& lane) { return !lane.in_flight.empty() && lane.replied_at == -never && lane.service > 0; }

}  // namespace

double doubled(double first, int times, double most) { return std::min(std::ldexp(first, std::min(times, 30)), most); }

bool Lane::serves(const Channel& channel) const {
    const auto& [model, version] = channel;
    return std::any_of(models.begin(), models.end(), [&, &model = model, &version = version](const ServedModel& each) {
        return each.name == model && (version.empty() ? each.is_default : version == canary ? each.share > 0 : each.version == version);
    });
}

bool Lane::is_usable(double now) const {
    if (!open || now < closed_until || now < quarantined_until) return false;
    if (in_flight.empty()) return true;
    const double allowed = std::max(silence::doubt, silence::doubt_factor * in_flight.front().expected);
    return now - std::max(in_flight.front().at, replied_at) <= (service > 0 ? allowed : silence::attempt_unknown);
}

bool Lane::has_room() const {
    if (strikes > 0) return in_flight.empty();  // one at a time until it replies
    const auto most = limit > 0 ? static_cast<std::size_t>(limit) : first_limit;
    return in_flight.size() < most;
}

bool Lane::answered(const std::string& id) {
    const auto sent = std::find_if(in_flight.begin(), in_flight.end(), [&](const Sent& each) { return each.id == id; });
    if (sent != in_flight.end()) {
        in_flight.erase(sent);
        return true;
    }
    const auto late = std::find(unanswered.begin(), unanswered.end(), id);
    if (late == unanswered.end()) return false;
    unanswered.erase(late);
    return true;
}

void Lane::land(const std::string& id) {
    const auto sent = std::find_if(in_flight.begin(), in_flight.end(), [&](const Sent& each) { return each.id == id; });
    if (sent == in_flight.end()) return;
    in_flight.erase(sent);
    unanswered.push_back(id);
    if (unanswered.size() > most_unanswered) unanswered.pop_front();
}

void Lane::measure(double elapsed, const Timings& timings) {
    run = static_cast<double>(timings.inference) / 1e9;
    double seconds = std::max(0.0, elapsed - static_cast<double>(timings.server()) / 1e9);
    if (transit > 0) seconds = std::min(seconds, std::max(3 * transit, silence::attempt / 2));  // a halted one is not far away
    transit += (seconds - transit) * (transit > 0 ? weight : 1.0);
}

void Lane::update_load(const Load& load, double now) {
    replied_at = now;
    strikes = 0;
    quarantined_until = 0;
    others = std::max<std::int64_t>(0, load.depth - 1 - static_cast<std::int64_t>(in_flight.size()));
    if (load.service_time_us > 0) service = static_cast<double>(load.service_time_us) / 1e6;
    if (load.window > 0) limit = load.window;
}

void Lane::pause(double now, double seconds) {
    closed_until = std::max(closed_until, now + std::max({service, std::min(seconds, longest_pause), 0.001}));
}

void Lane::quarantine(double now) { quarantined_until = now + doubled(silence::quarantine, strikes++, silence::quarantine_most); }

bool SharedChannels::is_closed(const Channel& channel, double now) const {
    const auto found = unserved_.find(channel);
    return found != unserved_.end() && now < found->second.closed_until;
}

double SharedChannels::sent(const Channel& channel, double now) {
    if (const auto found = unserved_.find(channel); found != unserved_.end())
        found->second.closed_until = now + found->second.pause;  // one at a time while nobody is known to subscribe
    const auto usual = times_.find(channel.first);
    if (usual == times_.end()) return now + silence::attempt_unknown;
    return now + std::max(silence::attempt_shared, silence::attempt_factor * usual->second);
}

void SharedChannels::replied(const std::string& model, double seconds) {
    for (auto each = unserved_.begin(); each != unserved_.end();) each = each->first.first == model ? unserved_.erase(each) : std::next(each);
    if (times_.size() >= most_models && times_.count(model) == 0) times_.erase(times_.begin());
    double& usual = times_.try_emplace(model, seconds).first->second;
    usual += weight * (seconds - usual);
}

double SharedChannels::close(const Channel& channel, double now, double pause) {
    Unserved& state = unserved_.try_emplace(channel, Unserved{now, now, pause}).first->second;
    state.closed_until = now + state.pause;
    state.pause = std::min(2 * state.pause, longest_pause);
    return state.since;
}

void SharedChannels::reopen(const Channel& channel, double at) {
    const auto found = unserved_.find(channel);
    if (found != unserved_.end()) found->second.closed_until = std::min(found->second.closed_until, at);
}

void SharedChannels::open_for(const Lane& lane) {
    if (!lane.open) return;
    for (auto each = unserved_.begin(); each != unserved_.end();) each = lane.serves(each->first) ? unserved_.erase(each) : std::next(each);
}

double SharedChannels::next_opening(double since) const {
    double found = never;
    for (const auto& [channel, state] : unserved_)
        if (state.closed_until > since) found = std::min(found, state.closed_until);
    return found;
}

LanePtr Fleet::lane(const std::string& worker) const {
    const auto found = lanes_.find(worker);
    return found == lanes_.end() ? nullptr : found->second;
}

LanePtr Fleet::update(const WorkerState& state) {
    LanePtr known = lane(state.worker);
    const bool is_foreign = known && known->boot != state.boot;
    // The will or the last state of a twin or a predecessor is not about the known worker.
    if (is_foreign && state.status != WorkerStatus::ready) return nullptr;
    if (state.status != WorkerStatus::ready && state.status != WorkerStatus::draining) return remove(state.worker);
    if (!known && lanes_.size() >= most_workers) return nullptr;
    if (!known || is_foreign) {
        lanes_[state.worker] = std::make_shared<Lane>();
        lanes_[state.worker]->worker = state.worker;
    }
    Lane& own = *lanes_[state.worker];
    own.boot = state.boot;
    own.models = state.models;
    own.open = state.status == WorkerStatus::ready;
    if (state.service_time_us > 0) own.service = static_cast<double>(state.service_time_us) / 1e6;
    channels.open_for(own);
    return is_foreign ? known : nullptr;
}

LanePtr Fleet::remove(const std::string& worker) {
    LanePtr found = lane(worker);
    lanes_.erase(worker);
    return found;
}

std::vector<LanePtr> Fleet::serving(const Channel& channel) const {
    std::vector<LanePtr> found;
    for (const auto& [worker, each] : lanes_)
        if (each->open && each->serves(channel)) found.push_back(each);
    return found;
}

Destination Fleet::choose(const Channel& channel, double now, std::size_t queued, const std::set<LanePtr>& avoid, double deadline) const {
    const auto serving_it = serving(channel);
    if (serving_it.empty()) return {nullptr, channels.is_closed(channel, now)};
    std::vector<std::pair<double, LanePtr>> usable;
    double rate = 0;
    for (const LanePtr& each : serving_it) {
        if (!each->is_usable(now) || avoid.count(each) > 0) continue;
        usable.emplace_back(expected(*each, now, deadline), each);
        rate += 1 / std::max(each->service, 1e-6);
    }
    if (usable.empty()) return {nullptr, true};
    if (usable.size() == 1) return usable[0].second->has_room() ? Destination{usable[0].second} : Destination{nullptr, true};

    const auto sooner = [](const auto& one, const auto& other) { return one.first < other.first; };
    const auto& [best, first] = *std::min_element(usable.begin(), usable.end(), sooner);
    const double bound = alike_factor * best + std::max(alike_seconds, first->run - first->service);
    const bool is_start = std::any_of(usable.begin(), usable.end(), [](const auto& each) { return awaits_first_reply(*each.second); });
    std::vector<std::pair<double, LanePtr>> spare, alike;
    for (const auto& each : usable)
        if (each.second->has_room() && (!is_start || each.second->in_flight.size() < starting_limit)) spare.push_back(each);
    for (const auto& each : spare)
        if (each.first <= bound) alike.push_back(each);
    if (!alike.empty()) {
        const auto less = [](const auto& one, const auto& other) {
            return std::pair(one.second->in_flight.size(), one.second->turn) < std::pair(other.second->in_flight.size(), other.second->turn);
        };
        return {std::min_element(alike.begin(), alike.end(), less)->second};
    }
    if (spare.empty()) return {nullptr, true};
    // Those that finish first are full. Waiting for them is better than a slower one that has room, unless so much is
    // queued that the last of it would finish later still.
    const auto earlier = [](const auto& one, const auto& other) {
        return std::pair(one.first, one.second->turn) < std::pair(other.first, other.second->turn);
    };
    const auto& [then, second] = *std::min_element(spare.begin(), spare.end(), earlier);
    return then <= best + static_cast<double>(queued) / rate ? Destination{second} : Destination{nullptr, true};
}

double Fleet::sent(const std::string& id, const LanePtr& lane, double now) {
    lane->turn = ++turn_;
    const double expected = lane->expected() + lane->transit;
    lane->in_flight.push_back({id, now, expected});
    return now + (lane->service > 0 ? std::max(silence::attempt, silence::attempt_factor * expected) : silence::attempt_unknown);
}

double Fleet::next_opening(double since) const {
    double found = channels.next_opening(since);
    for (const auto& [worker, each] : lanes_)
        if (each->open && each->opens_at() > since) found = std::min(found, each->opens_at());
    return found;
}

void Fleet::clear() {
    lanes_.clear();
    channels.clear();
}

std::int64_t Fleet::share(const std::string& model) const {
    std::int64_t found = 0;
    for (const auto& [worker, lane] : lanes_)
        for (const ServedModel& each : lane->models)
            if (lane->open && each.name == model) found = std::max(found, each.share);
    return found;
}

bool Fleet::falls_back(const Channel& channel, double now, std::size_t queued) const {
    std::size_t room = 0;
    for (const LanePtr& each : serving(channel))
        if (each->is_usable(now)) room += static_cast<std::size_t>(std::max<std::int64_t>(1, each->limit));
    return queued > room;
}

std::set<std::string> Fleet::models() const {
    std::set<std::string> found;
    for (const auto& [worker, lane] : lanes_)
        for (const ServedModel& each : lane->models) found.insert(each.name);
    return found;
}

/// How long a request would take; less where that is old, so that it is found out anew.
double Fleet::expected(const Lane& lane, double now, double deadline) const {
    const double found = lane.expected();
    if (!lane.in_flight.empty()) return found;
    const double age = std::min(static_cast<double>(turn_ - lane.turn) / stale_requests, (now - lane.replied_at) / stale_seconds);
    return age > 1 && lane.finish(now) <= deadline ? found / age : found;
}

}  // namespace mqinfer

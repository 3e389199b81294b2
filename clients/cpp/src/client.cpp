#include "mqinfer/client.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <iostream>
#include <mutex>
#include <random>
#include <thread>

#include "connection.h"
#include "dispatcher.h"
#include "envelope.h"
#include "fields.h"
#include "watching.h"

namespace mqinfer {
namespace {

constexpr double longest_timeout = 1e6;
constexpr double least_pause = 0.25, most_pause = 5;
/// A connection that stood so long is lost to something new: pauses begin anew.
constexpr double good_seconds = 10;
/// libmosquitto keeps a connection alive when it is asked to once a second.
constexpr double longest_sleep = 1;
constexpr std::size_t property_bytes = 65536;
constexpr int bad_login = 0x86, first_refusal = 0x80;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double checked_timeout(double timeout) {
    if (timeout > 0 && timeout <= longest_timeout) return timeout;
    throw ConfigError("a timeout of " + std::to_string(timeout) + " s is not possible; expected more than 0 and at most 1,000,000 s");
}

bool is_id(const std::string& id) {
    return id.size() == 32 && id.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string name_of(const Options& options, const Login& login) {
    if (!options.name.empty()) return options.name;
    return is_name(NameKind::client, login.user) ? login.user : "cpp-" + new_id().substr(0, 12);
}

Options checked(Options options) {
    checked_timeout(options.timeout);
    checked_timeout(options.connect_timeout);
    if (options.window < 1 || options.max_pending < 1) throw ConfigError("window and max_pending must be 1 or more");
    if (!(options.patience >= 0) || !(options.settling >= 0) || !(options.backoff >= 0))
        throw ConfigError("patience, settling and backoff must be 0 or more");
    return options;
}

}  // namespace

struct Client::Impl {
    /// A subscription, which each connection makes anew.
    struct Subscription {
        std::string filter;
        int qos;
        int number = 0;   ///< Of the message that asked for it on this connection; 0 for none yet.
        int answer = -1;  ///< The broker's; -1 for none yet.
    };

    /// Who waits for a request, and what is sent again.
    struct Waiting {
        std::shared_ptr<Draft> draft;
        Callback callback;
    };

    struct Cancellation {
        std::string model, id;
    };

    Impl(const std::string& url, Options given)
        : options(checked(std::move(given))), login{options.user, options.password, options.ca_file, options.cert_file, options.key_file},
          addresses(addresses_of(url, login)), name(check_name(NameKind::client, name_of(options, login))),
          client_id(name + "~" + new_id().substr(0, 16)), topics(options.root),
          dispatcher({options.window, options.max_pending, options.patience, options.settling, options.backoff}),
          wake_up(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
        if (options.lanes) subscriptions.push_back({topics.worker_states(), 1});  // first: the states come before the next answer
        subscriptions.push_back({topics.results_of_client(name), 1});
    }

    ~Impl() { ::close(wake_up); }

    /// Return whether this process is a fork, which has neither the thread nor a connection of its own.
    bool is_fork() const { return ::getpid() != process; }

    const Options options;
    Login login;
    const std::vector<Address> addresses;
    const std::string name, client_id;
    const Topics topics;
    const pid_t process = ::getpid();

    mutable std::mutex mutex;  // of all from here on
    std::condition_variable changed;
    Dispatcher dispatcher;
    std::unordered_map<std::string, Waiting> waiting;
    std::vector<Cancellation> cancellations;
    std::vector<Subscription> subscriptions;
    std::vector<std::string> left;  // filters to unsubscribe from
    std::vector<std::pair<std::string, std::weak_ptr<WatchBuffer>>> watches;  // by model
    std::optional<Failure> failure;
    std::string reason;  // why there is no connection, as far as it is known
    bool is_up = false, is_closing = false, is_awake = false;
    std::uint64_t malformed = 0, retained = 0, bad_states = 0;
    const int wake_up;

    // Of the client's own thread alone.
    std::unique_ptr<Connection> connection;
    std::unordered_map<int, std::pair<EntryPtr, std::int64_t>> unacknowledged;  // by message: request and attempt
    std::size_t place = 0;  // of the address in use
    double connect_at = 0, up_since = never, pause = least_pause;
    std::mt19937 random{std::random_device{}()};
    std::thread thread;

    // From any thread.
    void check_process() const;
    void check_thread() const;
    std::string submit(const std::string& model, const std::vector<Tensor>& inputs, const RequestOptions& given, Callback callback);
    bool cancel(const std::string& id);
    std::shared_ptr<WatchBuffer> watch(const std::shared_ptr<Impl>& self, const std::string& model, std::size_t buffer);
    void leave(const std::string& model);
    void wake();
    void end(const EntryPtr& entry, const Failure& why, Callback callback);
    Callback take(const std::string& id);

    // In the client's own thread.
    void run();
    void sleep();
    void connect();
    void subscribe();
    void on_connack(int code);
    void on_suback(int number, int code);
    void on_puback(int number, int code);
    void on_message(const Incoming& message);
    void on_reply(const Incoming& message);
    void on_state(const std::string& worker, const Incoming& message);
    void on_down();
    void refuse(const Failure& why);
    void pump();
    void publish(const EntryPtr& entry, Draft& draft);
    Result result_of(Reply&& reply, const Entry& entry, double received) const;
};

namespace {

thread_local const void* own_client = nullptr;  ///< Whose thread this is, if a client's.

/// Run the program's code: what it throws ends nothing here.
void call(const Callback& callback, Result&& result) {
    if (!callback) return;
    try {
        callback(std::move(result));
    } catch (const std::exception& error) {
        std::cerr << "mqinfer: the callback of a request threw: " << error.what() << '\n';
    } catch (...) {
        std::cerr << "mqinfer: the callback of a request threw\n";
    }
}

}  // namespace

// From any thread.

/// Before any lock is taken: a fork has them as they were, with nobody to release them.
void Client::Impl::check_process() const {
    if (is_fork())
        throw ConfigError("the client was made in process " + std::to_string(process) + " and can't be used in process " +
                          std::to_string(::getpid()) + ", a fork of it; make a new one in this process");
}

void Client::Impl::check_thread() const {
    check_process();
    if (own_client == this) throw ConfigError("a callback must not wait; submit the request, or watch, elsewhere");
}

std::string Client::Impl::submit(const std::string& model, const std::vector<Tensor>& inputs, const RequestOptions& given, Callback callback) {
    check_process();
    Request request;
    request.id = given.id.empty() ? new_id() : given.id;
    if (!is_id(request.id)) throw ConfigError("the id of a request is what new_id() returns, not " + shown(request.id));
    request.model_name = model;
    request.model_version = given.version;
    request.response_topic = topics.result(model, name, request.id);
    topics.infer(model, given.version, name);
    request.inputs = inputs;
    request.outputs = given.outputs;
    request.priority = given.priority;
    request.capture = given.capture;
    request.parameters = given.parameters;
    if (!given.output_encoding.empty()) request.parameters.emplace_back("output_encoding", given.output_encoding);
    const double timeout = given.timeout == 0 ? options.timeout : checked_timeout(given.timeout);

    auto entry = std::make_shared<Entry>();
    entry->id = request.id;
    entry->model = model;
    entry->version = given.version;
    entry->response_topic = request.response_topic;
    auto draft = std::make_shared<Draft>(std::move(request));

    std::optional<Failure> refused;
    {
        const std::lock_guard lock(mutex);
        entry->submitted = now();
        entry->deadline = entry->submitted + timeout;
        if (failure) refused = failure;
        else if (waiting.count(entry->id) > 0) throw ConfigError("a request with this id is pending");
        else if (!dispatcher.submit(entry))
            refused = {"rejected", std::to_string(options.max_pending) + " requests are pending; wait for a result before you send more"};
        else waiting[entry->id] = {std::move(draft), std::move(callback)};
    }
    if (refused) end(entry, *refused, std::move(callback));
    else wake();
    return entry->id;
}

bool Client::Impl::cancel(const std::string& id) {
    check_process();
    EntryPtr entry;
    Callback callback;
    {
        const std::lock_guard lock(mutex);
        entry = dispatcher.settle(id, Outcome::cancelled);
        if (!entry) return false;
        callback = take(id);
        if (entry->attempts > 0) cancellations.push_back({entry->model, id});
    }
    wake();
    end(entry, {"cancelled", "cancelled by the caller"}, std::move(callback));
    return true;
}

std::shared_ptr<WatchBuffer> Client::Impl::watch(const std::shared_ptr<Impl>& self, const std::string& model, std::size_t buffer) {
    check_thread();
    const std::string filter = topics.results_of_model(model);
    const std::weak_ptr<Impl> owner = self;
    auto made = std::make_shared<WatchBuffer>(buffer, options.limits, [owner, model] {
        if (const auto client = owner.lock()) client->leave(model);
    });
    std::unique_lock lock(mutex);
    watches.emplace_back(model, made);
    const auto own = [&] {
        return std::find_if(subscriptions.begin(), subscriptions.end(), [&](const auto& each) { return each.filter == filter; });
    };
    if (own() == subscriptions.end()) subscriptions.push_back({filter, 0});
    lock.unlock();
    wake();
    lock.lock();
    const auto limit = std::chrono::duration<double>(options.connect_timeout);
    changed.wait_for(lock, limit, [&] { return failure || own() == subscriptions.end() || own()->answer >= 0; });
    const int answer = own() == subscriptions.end() ? -1 : own()->answer;
    const std::string why = failure ? failure->message : reason;
    lock.unlock();  // what is thrown destroys the buffer, which takes the lock
    if (answer >= first_refusal) throw NotAuthorized("the broker does not allow this client to watch the results of " + shown(model));
    if (answer < 0) throw NotConnected("no subscription to the results of " + shown(model) + ": " + why);
    return made;
}

void Client::Impl::leave(const std::string& model) {
    {
        const std::lock_guard lock(mutex);
        const auto is_over = [](const auto& each) { return each.second.expired(); };
        watches.erase(std::remove_if(watches.begin(), watches.end(), is_over), watches.end());
        const auto is_same = [&](const auto& each) { return each.first == model; };
        if (std::any_of(watches.begin(), watches.end(), is_same)) return;
        const std::string filter = topics.results_of_model(model);
        const auto is_own = [&](const auto& each) { return each.filter == filter; };
        subscriptions.erase(std::remove_if(subscriptions.begin(), subscriptions.end(), is_own), subscriptions.end());
        left.push_back(filter);
    }
    wake();
}

/// Wake the client's thread, which may sleep.
void Client::Impl::wake() {
    {
        const std::lock_guard lock(mutex);
        if (is_awake) return;
        is_awake = true;
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_up, &one, sizeof one);
}

void Client::Impl::end(const EntryPtr& entry, const Failure& why, Callback callback) {
    Result result;
    result.id = entry->id;
    result.model_name = entry->model;
    result.outcome = outcome_of(why.code);
    result.error = why;
    result.attempts = entry->attempts;
    call(callback, std::move(result));
}

/// Return who waits for a request that has left the table; the lock is held.
Callback Client::Impl::take(const std::string& id) {
    const auto found = waiting.find(id);
    if (found == waiting.end()) return nullptr;
    Callback callback = std::move(found->second.callback);
    waiting.erase(found);
    return callback;
}

// In the client's own thread.

void Client::Impl::run() {
    own_client = this;
    pthread_setname_np(pthread_self(), "mqinfer");
    sigset_t broken_pipe;  // what is written to a connection that has just ended must not end the program
    sigemptyset(&broken_pipe);
    sigaddset(&broken_pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
    for (;;) {
        {
            const std::lock_guard lock(mutex);
            if (is_closing) break;
        }
        if (!connection && now() >= connect_at) connect();
        if (connection) subscribe();
        pump();
        sleep();
    }
    if (connection) connection->disconnect();
    connection.reset();
}

/// Wait for the broker, a caller, or the next thing that is due.
void Client::Impl::sleep() {
    double until = now() + longest_sleep;
    {
        const std::lock_guard lock(mutex);
        until = is_closing || is_awake ? 0 : std::min(until, dispatcher.wake_at());
        if (!connection && !failure) until = std::min(until, connect_at);
    }
    pollfd watched[2] = {{wake_up, POLLIN, 0}, {connection ? connection->socket() : -1, POLLIN, 0}};
    if (connection && connection->wants_write()) watched[1].events |= POLLOUT;
    const double left_ms = std::ceil(std::max(0.0, until - now()) * 1e3);
    ::poll(watched, 2, static_cast<int>(left_ms));
    {
        const std::lock_guard lock(mutex);
        is_awake = false;
    }
    std::uint64_t count;
    if (watched[0].revents != 0) [[maybe_unused]] const auto ignored = ::read(wake_up, &count, sizeof count);
    if (connection && !connection->service(watched[1].revents != 0)) on_down();
}

void Client::Impl::connect() {
    Events events;
    events.on_connack = [this](int code) { on_connack(code); };
    events.on_suback = [this](int number, int code) { on_suback(number, code); };
    events.on_puback = [this](int number, int code) { on_puback(number, code); };
    events.on_message = [this](const Incoming& message) { on_message(message); };
    const auto largest = static_cast<std::uint32_t>(options.limits.payload_bytes + property_bytes);
    try {
        connection = std::make_unique<Connection>(addresses[place], login, client_id, largest, std::move(events));
    } catch (const Error& error) {
        connect_at = never;
        refuse({error.code(), error.what()});
    }
}

/// Ask for the subscriptions that this connection does not have yet. Without the lock: libmosquitto has its own.
void Client::Impl::subscribe() {
    if (up_since == never) return;
    std::vector<Subscription> asked;
    std::vector<std::string> over;
    {
        const std::lock_guard lock(mutex);
        for (const Subscription& each : subscriptions)
            if (each.number == 0) asked.push_back(each);
        over.swap(left);
    }
    for (const std::string& filter : over) connection->unsubscribe(filter);
    for (Subscription& each : asked) each.number = connection->subscribe(each.filter, each.qos);
    const std::lock_guard lock(mutex);
    for (const Subscription& each : asked)
        for (Subscription& own : subscriptions)
            if (own.filter == each.filter) own.number = each.number;
}

void Client::Impl::on_connack(int code) {
    if (code == 0) {
        up_since = now();
        return;
    }
    const bool is_login = code == bad_login || code == not_authorized;
    const std::string check = !is_login ? "" : login.user.empty() ? "; it wants a user and a password" : "; check user and password";
    if (place == 0 && is_login) refuse({"not_authorized", "the broker refused the login" + check});
    const std::lock_guard lock(mutex);
    reason = "the broker refused the connection with reason code " + std::to_string(code) + check;
}

void Client::Impl::on_suback(int number, int code) {
    const std::string results = topics.results_of_client(name);
    bool is_refused = false;
    {
        const std::lock_guard lock(mutex);
        bool all = true;
        for (Subscription& each : subscriptions) {
            if (each.number == number) each.answer = code;
            is_refused |= each.filter == results && each.answer >= first_refusal;
            all &= each.answer >= 0;
        }
        if (all && !is_refused && !is_up) {
            is_up = true;
            reason.clear();
            dispatcher.connection(true, now());
        }
        changed.notify_all();
    }
    if (is_refused)
        refuse({"not_authorized", "the broker does not allow this client to receive its results; where access rules apply, its name must be "
                                  "that of its login"});
}

void Client::Impl::on_puback(int number, int code) {
    const auto found = unacknowledged.find(number);
    if (found == unacknowledged.end()) return;
    const auto [entry, attempt] = found->second;
    unacknowledged.erase(found);
    const std::lock_guard lock(mutex);
    dispatcher.acked(entry, attempt, code, now());
}

/// Nothing may be thrown through libmosquitto, whatever a stranger sent.
void Client::Impl::on_message(const Incoming& message) {
    try {
        if (const auto worker = topics.worker_of(message.topic)) return on_state(*worker, message);
        const auto address = topics.result_of(message.topic);
        if (!address) return;
        std::vector<std::shared_ptr<WatchBuffer>> receivers;
        {
            const std::lock_guard lock(mutex);
            for (const auto& [model, each] : watches)
                if (model == address->model)
                    if (auto receiver = each.lock()) receivers.push_back(std::move(receiver));
        }
        for (const auto& each : receivers) each->receive(*address, message);
        if (address->client == name) on_reply(message);
    } catch (const std::exception& error) {
        std::cerr << "mqinfer: a message on " << message.topic << " can't be handled: " << error.what() << '\n';
    }
}

void Client::Impl::on_state(const std::string& worker, const Incoming& message) {
    std::optional<WorkerState> state;
    bool is_bad = false;
    try {
        if (message.size > 0) state = read_worker_state(worker, message.bytes, message.size);
    } catch (const Error&) {
        is_bad = true;
    }
    const std::lock_guard lock(mutex);
    bad_states += is_bad;
    if (state) dispatcher.update(*state, now());
    else if (!is_bad) dispatcher.remove_worker(worker);
}

void Client::Impl::on_reply(const Incoming& message) {
    if (message.retained) {
        const std::lock_guard lock(mutex);
        ++retained;
        return;
    }
    if (!message.checksum.empty() && message.checksum != checksum(message.bytes, message.size)) {
        const std::lock_guard lock(mutex);
        ++malformed;
        dispatcher.corrupted(message.correlation);
        return;
    }
    std::optional<Reply> reply;
    try {
        reply = decode_reply(copied(message.bytes, message.size), options.limits);
    } catch (const Error&) {
        const std::lock_guard lock(mutex);
        ++malformed;
        return;
    }
    const double received = now();
    EntryPtr entry;
    {
        const std::lock_guard lock(mutex);
        entry = dispatcher.replied(*reply, std::string(message.topic), received);
    }
    if (!entry) return;
    Result result = result_of(*std::move(reply), *entry, received);
    Callback callback;
    {
        const std::lock_guard lock(mutex);
        if (!dispatcher.settle(entry->id, result.outcome)) return;  // cancelled meanwhile
        callback = take(entry->id);
    }
    call(callback, std::move(result));
}

Result Client::Impl::result_of(Reply&& reply, const Entry& entry, double received) const {
    Result found;
    found.id = reply.id;
    found.model_name = reply.model_name;
    found.model_version = reply.model_version;
    found.model_hash = reply.model_hash;
    found.outcome = reply.outcome;
    found.error = std::move(reply.error);
    found.worker = reply.worker;
    found.stage = reply.stage;
    found.timings = reply.timings;
    found.timings.client_queue = std::llround((entry.sent - entry.submitted) * 1e9);
    found.timings.transmission = std::max<std::int64_t>(0, std::llround((received - entry.sent) * 1e9) - reply.timings.server());
    found.capture = reply.capture;
    found.attempts = entry.attempts;
    found.parameters = std::move(reply.parameters);
    if (found.outcome != Outcome::ok) {
        if (!found.error) found.error = Failure{std::string(to_string(found.outcome)), "the request ended as " + std::string(to_string(found.outcome))};
        return found;
    }
    try {
        std::size_t together = 0;
        for (Tensor& tensor : reply.outputs) {
            const bool is_picture = tensor.encoding == "jpeg" || tensor.encoding == "png";
            if (is_picture) check_picture(tensor, options.limits);
            else tensor = decode(tensor, options.limits);
            together += tensor.size;
            if (together > options.limits.tensor_bytes) throw LimitExceeded("its outputs take too much memory together");
        }
        found.outputs = std::move(reply.outputs);
    } catch (const Error& error) {
        found.outcome = Outcome::error;
        found.error = Failure{"bad_encoding", std::string("the reply can't be decoded: ") + error.what()};
    }
    return found;
}

void Client::Impl::on_down() {
    const double lasted = up_since == never ? 0 : now() - up_since;
    const bool has_next = up_since == never && place + 1 < addresses.size();
    place = has_next ? place + 1 : 0;
    if (lasted >= good_seconds) pause = least_pause;
    connect_at = now() + (has_next ? 0 : pause * (1 - std::uniform_real_distribution<>(0, 0.5)(random)));
    if (!has_next) pause = std::min(2 * pause, most_pause);
    const std::string why = connection->reason();
    connection.reset();
    unacknowledged.clear();
    up_since = never;
    const std::lock_guard lock(mutex);
    if (failure) connect_at = never;
    for (Subscription& each : subscriptions) each.number = 0, each.answer = -1;
    left.clear();
    if (reason.empty() || is_up) reason = why;
    if (is_up) dispatcher.connection(false, now());
    is_up = false;
}

/// End all requests for good: the broker does not let this client in, or it closes.
void Client::Impl::refuse(const Failure& why) {
    std::vector<std::pair<Ended, Callback>> ended;
    std::vector<std::shared_ptr<WatchBuffer>> buffers;  // what ends one of them takes the lock
    {
        const std::lock_guard lock(mutex);
        if (!failure) failure = why;
        for (Ended& each : dispatcher.drain({"cancelled", why.message})) {
            Callback callback = take(each.entry->id);
            ended.emplace_back(std::move(each), std::move(callback));
        }
        for (const auto& [model, each] : watches)
            if (auto buffer = each.lock()) buffers.push_back(std::move(buffer));
        changed.notify_all();
    }
    for (const auto& buffer : buffers) buffer->close();
    for (auto& [each, callback] : ended) end(each.entry, each.why, std::move(callback));
}

/// Carry out what follows from the events and the time.
void Client::Impl::pump() {
    for (;;) {
        Step step;
        std::shared_ptr<Draft> draft;
        std::vector<Callback> callbacks;
        std::vector<Cancellation> cancelled;
        bool can_send;
        {
            const std::lock_guard lock(mutex);
            can_send = is_up && connection;
            step = dispatcher.take(now(), can_send);
            for (const Ended& each : step.ended) callbacks.push_back(take(each.entry->id));
            if (step.send) draft = waiting.at(step.send->id).draft;
            cancelled.swap(cancellations);
        }
        for (std::size_t at = 0; at < callbacks.size(); ++at) end(step.ended[at].entry, step.ended[at].why, std::move(callbacks[at]));
        for (const Cancellation& each : cancelled) {  // without a connection no worker answers it either
            const std::string body = R"({"ids": [")" + each.id + R"("], "outcome": "cancelled"})";
            int number = 0;
            if (can_send) connection->publish({topics.cancel(each.model, name), body.data(), body.size(), "", "", "", 0}, number);
        }
        if (!step.send) return;
        publish(step.send, *draft);
    }
}

void Client::Impl::publish(const EntryPtr& entry, Draft& draft) {
    const double left_seconds = std::max(0.0, entry->deadline - entry->sent);
    const std::int64_t attempt = entry->attempts;
    const auto fail = [&](const Failure& why) {
        const std::lock_guard lock(mutex);
        dispatcher.unsent(entry, attempt, why, now());
    };
    try {
        const auto [bytes, size] = draft.payload(static_cast<std::int64_t>(left_seconds * 1e6), attempt);
        const std::string topic = entry->lane ? topics.lane(entry->lane->worker, entry->model, name) : topics.infer(entry->model, entry->version, name);
        const auto expiry = static_cast<std::uint32_t>(std::max(1.0, std::ceil(left_seconds)));
        int number = 0;
        const int status = connection->publish({topic, bytes, size, entry->response_topic, entry->id, checksum(bytes, size), expiry}, number);
        if (status == 0) unacknowledged[number] = {entry, attempt};
        else if (Connection::is_too_large(status))
            fail({"message_too_large", "a message of " + std::to_string(size) + " bytes is more than the broker takes; encode it smaller, or raise "
                                       "max_packet_size in mosquitto.conf"});
        else fail({"not_connected", "the connection was lost"});
    } catch (const Error& error) {
        fail({error.code(), error.what()});
    }
}

// The client.

Client::Client(const std::string& url, Options options) : impl_(std::make_shared<Impl>(url, std::move(options))) {
    impl_->thread = std::thread([impl = impl_] { impl->run(); });  // which may be the last to hold it
    std::unique_lock lock(impl_->mutex);
    const auto limit = std::chrono::duration<double>(impl_->options.connect_timeout);
    impl_->changed.wait_for(lock, limit, [&] { return impl_->is_up || impl_->failure; });
    if (impl_->is_up && !impl_->failure) return;
    const Failure why = impl_->failure.value_or(Failure{"broker_unreachable", "no connection to " + impl_->addresses[0].host + ":" +
                                                std::to_string(impl_->addresses[0].port) + ": " + (impl_->reason.empty() ? "no answer" : impl_->reason)});
    lock.unlock();
    close();
    throw_failure(why);
}

Client::~Client() {
    if (impl_->is_fork()) new std::shared_ptr<Impl>(std::move(impl_));  // kept: the connection is the other process's
    else close();
}

void Client::close() {
    impl_->check_process();
    impl_->refuse({"cancelled", "the client was closed"});
    {
        const std::lock_guard lock(impl_->mutex);
        impl_->is_closing = true;
        impl_->is_awake = false;
    }
    impl_->wake();
    if (own_client == impl_.get()) impl_->thread.detach();  // a callback: it ends behind that
    else if (impl_->thread.joinable()) impl_->thread.join();
}

Result Client::infer(const std::string& model, const std::vector<Tensor>& inputs, const RequestOptions& options) {
    impl_->check_thread();
    Result found = submit(model, inputs, options).get();
    found.check();
    return found;
}

std::future<Result> Client::submit(const std::string& model, const std::vector<Tensor>& inputs, const RequestOptions& options) {
    auto promise = std::make_shared<std::promise<Result>>();
    auto found = promise->get_future();
    impl_->submit(model, inputs, options, [promise](Result result) { promise->set_value(std::move(result)); });
    return found;
}

std::string Client::submit(const std::string& model, const std::vector<Tensor>& inputs, const RequestOptions& options, Callback callback) {
    return impl_->submit(model, inputs, options, std::move(callback));
}

bool Client::cancel(const std::string& id) { return impl_->cancel(id); }

Watch Client::watch(const std::string& model, std::size_t buffer) { return Watch(impl_->watch(impl_, model, buffer)); }

const std::string& Client::name() const { return impl_->name; }

bool Client::connected() const {
    impl_->check_process();
    const std::lock_guard lock(impl_->mutex);
    return impl_->is_up;
}

Counters Client::counters() const {
    impl_->check_process();
    const std::lock_guard lock(impl_->mutex);
    const Counts counts = impl_->dispatcher.counts();
    const auto of = [&](Outcome outcome) { return counts.outcomes[static_cast<std::size_t>(outcome)]; };
    Counters found;
    found.submitted = counts.submitted;
    found.pending = counts.pending;
    found.in_flight = counts.in_flight;
    found.ok = of(Outcome::ok);
    found.error = of(Outcome::error);
    found.expired = of(Outcome::expired);
    found.superseded = of(Outcome::superseded);
    found.rejected = of(Outcome::rejected);
    found.cancelled = of(Outcome::cancelled);
    found.retries = counts.retries;
    found.withheld = counts.withheld;
    found.late = counts.late;
    found.mismatched = counts.mismatched;
    found.malformed = impl_->malformed;
    found.retained = impl_->retained;
    found.bad_states = impl_->bad_states;
    return found;
}

const Result& Result::check() const {
    if (!ok()) throw_failure(error.value_or(Failure{}));
    return *this;
}

const Tensor& Result::output(std::string_view output) const {
    check();
    const auto found = std::find_if(outputs.begin(), outputs.end(), [&](const Tensor& each) { return each.name == output; });
    if (found != outputs.end()) return *found;
    std::string names;
    for (const Tensor& each : outputs) names += (names.empty() ? "" : ", ") + each.name;
    throw BadTensor("there is no output " + shown(output) + "; there are: " + names);
}

std::string new_id() {
    static thread_local std::random_device device;
    std::string found;
    while (found.size() < 32) {
        const std::uint32_t word = device();
        for (int shift = 28; shift >= 0; shift -= 4) found += "0123456789abcdef"[word >> shift & 15];
    }
    return found;
}

}  // namespace mqinfer

/// Requests to models, and the results of others.
#pragma once

#include <functional>
#include <future>
#include <memory>

#include "mqinfer/message.h"
#include "mqinfer/watch.h"

namespace mqinfer {

/// How a client connects and sends. Times in seconds.
struct Options {
    std::string name;  ///< In its topics; the user, or made up, where it is empty.
    std::string root = "mqinfer/v1";
    std::string user, password;
    std::string ca_file, cert_file, key_file;  ///< For `mqtts://`; without `ca_file` the system's authorities count.
    double timeout = 10;                       ///< Of each request, unless its call states another one.
    double connect_timeout = 10;
    std::size_t window = 16;         ///< Requests in flight at a time; more are queued here.
    std::size_t max_pending = 1024;  ///< Requests without an outcome; one more ends as `rejected`.
    double patience = 2;             ///< How long a request that finds no worker, or only busy ones, is sent again.
    double settling = 6;             ///< The same after a reconnection: workers need time, too.
    double backoff = 0.02;           ///< Pause before it is sent again first; doubled each time, at most a second.
    bool lanes = true;               ///< Choose the worker of each request; else the broker deals them in turn.
    Limits limits;                   ///< Of replies.
};

/// Optional properties of a request.
struct RequestOptions {
    std::string id;       ///< From `new_id`, to cancel it by; made up where it is empty.
    double timeout = 0;   ///< In seconds; that of the client where it is 0.
    std::string version;  ///< A number; the default version where it is empty.
    std::vector<RequestedOutput> outputs;
    std::string output_encoding;  ///< Codec of the outputs, such as `lz4` or `mask`; else the worker's choice.
    std::int64_t priority = 0;    ///< 1 is the highest.
    Capture capture;
    Parameters parameters;
};

/// What became of a request.
struct Result {
    std::string id, model_name, model_version, model_hash;
    Outcome outcome = Outcome::ok;
    std::optional<Failure> error;  ///< Unless the outcome is `ok`.
    std::vector<Tensor> outputs;   ///< Decoded; `jpeg` and `png` stay as they came.
    std::string worker;
    std::string stage;
    Timings timings;
    Capture capture;
    std::int64_t attempts = 0;  ///< How often it was sent.
    Parameters parameters;

    bool ok() const { return outcome == Outcome::ok; }

    /// Return the result itself. Throws the class of its error, in the thread that calls.
    const Result& check() const;

    /// Return an output. Throws the result's error, or BadTensor: there is no such output.
    const Tensor& output(std::string_view name) const;
};

struct Counters {
    std::uint64_t submitted = 0, pending = 0, in_flight = 0;
    std::uint64_t ok = 0, error = 0, expired = 0, superseded = 0, rejected = 0, cancelled = 0;
    std::uint64_t retries = 0;     ///< Publications beyond each request's first.
    std::uint64_t withheld = 0;    ///< Retries that the budget delayed.
    std::uint64_t late = 0;        ///< Replies to requests that had an outcome, duplicates among them.
    std::uint64_t mismatched = 0;  ///< Replies that are not of the request whose id they have.
    std::uint64_t malformed = 0;   ///< Replies that can't be read, or were damaged on the way.
    std::uint64_t retained = 0;    ///< Replies that the broker had kept.
    std::uint64_t bad_states = 0;  ///< Workers' states that can't be read.
};

/// Called once, in the client's own thread (in that of `cancel` or `close` where these end the request). It must not wait
/// for a result; it may submit, and end the client. What it throws is printed, and ends nothing.
using Callback = std::function<void(Result)>;

/// Return 16 random bytes as hexadecimal digits: only who has received a request can reply to it.
std::string new_id();

/// A connection to a broker, for any number of models, from any thread. Make one for a process and keep it.
///
/// Until its deadline a request is sent again where a worker is lost, busy or silent, the connection was lost, or a message
/// was damaged: so a model may run it more than once, and there is one result.
///
/// A process that is forked off makes its own: whatever it asks of this one throws ConfigError. The first client of a process
/// lets malloc keep up to 128 MiB of freed memory for the next payloads (mallopt), unless the environment states its settings.
class Client {
public:
    /// Connect; the client then reconnects by itself. `url` is `mqtt://` or `mqtts://`, the hosts of standbys behind commas.
    /// Throws BrokerUnreachable, NotAuthorized, BadTopic (name or root), ConfigError (URL or an option).
    explicit Client(const std::string& url, Options options = {});

    /// As `close`.
    ~Client();

    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    /// Send arrays to a model, and return its result. Throws the class of its error.
    Result infer(const std::string& model, const std::vector<Tensor>& inputs, const RequestOptions& options = {});

    /// The same without waiting. The arrays are copied here: they may change when this returns. What the request itself
    /// can be refused for is thrown here (BadTopic, BadEnvelope, LimitExceeded, ConfigError); all else is in the result.
    std::future<Result> submit(const std::string& model, const std::vector<Tensor>& inputs, const RequestOptions& options = {});

    /// The same with a callback; return the request's id.
    std::string submit(const std::string& model, const std::vector<Tensor>& inputs, const RequestOptions& options, Callback callback);

    /// End a request, also at the worker that has it. Return whether it had no outcome yet.
    bool cancel(const std::string& id);

    /// Receive the results of others: what workers reply to any client of a model. At most `buffer` wait, and 64 MiB.
    /// Throws NotAuthorized, NotConnected.
    Watch watch(const std::string& model, std::size_t buffer = 256);

    const std::string& name() const;
    bool connected() const;
    Counters counters() const;

    /// End what is pending as `cancelled`, and disconnect.
    void close();

private:
    struct Impl;
    std::shared_ptr<Impl> impl_;
};

}  // namespace mqinfer

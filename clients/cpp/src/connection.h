/// One connection to a broker: a libmosquitto handle, used by one thread, which polls its socket.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct mosquitto;

namespace mqinfer {

struct Address {
    std::string host;
    int port = 1883;
    bool tls = false;
};

struct Login {
    std::string user, password, ca_file, cert_file, key_file;
};

/// Return the addresses of a URL, and put the login that it holds into `login` where there is none. Throws ConfigError.
std::vector<Address> addresses_of(const std::string& url, Login& login);

struct Incoming {
    std::string_view topic;
    const std::uint8_t* bytes;
    std::size_t size;
    bool retained;
    std::string correlation;  ///< As hexadecimal digits.
    std::string checksum;     ///< Empty where it was not stated.
};

struct Outgoing {
    std::string topic;
    const void* bytes = nullptr;
    std::size_t size = 0;
    // Of requests:
    std::string response_topic, id, checksum;
    std::uint32_t expiry = 0;
};

/// What happens on a connection; all in the thread that calls `service`.
struct Events {
    std::function<void(int code)> on_connack;
    std::function<void(int message, int code)> on_suback;
    std::function<void(int message, int code)> on_puback;
    std::function<void(const Incoming&)> on_message;
};

class Connection {
public:
    /// Begin to connect. `largest` is the Maximum Packet Size that is stated. Throws ConfigError for certificates that
    /// can't be read; all else is reported by `service`.
    Connection(const Address& address, const Login& login, const std::string& client_id, std::uint32_t largest, Events events);
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    int socket() const;
    bool wants_write() const;

    /// Read, write and keep alive; return whether the connection stands. `reason` says why it does not.
    bool service(bool is_readable);
    const std::string& reason() const { return reason_; }

    /// Return the number of the message, to which the answer refers; 0 where it can't be sent.
    int subscribe(const std::string& filter, int qos);
    void unsubscribe(const std::string& filter);

    /// Publish with QoS 1. Return a status of libmosquitto: 0, or what `is_too_large` knows.
    int publish(const Outgoing& message, int& number);
    static bool is_too_large(int status);
    void disconnect();

private:
    bool failed(int status);

    Events events_;
    mosquitto* handle_ = nullptr;
    std::string reason_;
    bool stands_ = true;
};

}  // namespace mqinfer

#include "connection.h"

#include <mosquitto.h>
#include <mqtt_protocol.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "envelope.h"
#include "fields.h"

namespace mqinfer {
namespace {

constexpr int keepalive_seconds = 10;
/// Packets read at a time, before what is due is done.
constexpr int most_packets = 64;
constexpr std::uint16_t send_maximum = 65535;
constexpr const char* checksum_property = "xxh3";

/// libmosquitto copies each payload twice, both ways. By default glibc returns the memory of large ones to the system and
/// takes it, page by page, for the next. Python's client has the same settings; those of the environment count more.
void keep_freed_memory() {
#ifdef __GLIBC__
    if (std::getenv("MALLOC_MMAP_THRESHOLD_") == nullptr) mallopt(M_MMAP_THRESHOLD, 32 << 20);
    if (std::getenv("MALLOC_TRIM_THRESHOLD_") == nullptr) mallopt(M_TRIM_THRESHOLD, 128 << 20);
#endif
}

void start_library() {
    static const int status = (keep_freed_memory(), mosquitto_lib_init());
    if (status != MOSQ_ERR_SUCCESS) throw Error("libmosquitto can't start");
}

std::string taken(char* text) {
    std::string found = text ? text : "";
    std::free(text);
    return found;
}

std::string hex(const void* bytes, std::size_t size) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string found;
    for (std::size_t at = 0; at < size; ++at) {
        const auto byte = static_cast<const std::uint8_t*>(bytes)[at];
        found += digits[byte >> 4];
        found += digits[byte & 15];
    }
    return found;
}

std::vector<std::uint8_t> bytes_of(const std::string& hex) {
    std::vector<std::uint8_t> found;
    for (std::size_t at = 0; at + 1 < hex.size(); at += 2) found.push_back(static_cast<std::uint8_t>(std::stoi(hex.substr(at, 2), nullptr, 16)));
    return found;
}

std::string decoded(const std::string& text) {
    std::string found;
    for (std::size_t at = 0; at < text.size(); ++at) {
        const bool is_escape = text[at] == '%' && at + 2 < text.size() && std::isxdigit(static_cast<unsigned char>(text[at + 1])) &&
                               std::isxdigit(static_cast<unsigned char>(text[at + 2]));
        found += is_escape ? static_cast<char>(std::stoi(text.substr(at + 1, 2), nullptr, 16)) : text[at];
        if (is_escape) at += 2;
    }
    return found;
}

std::string correlation_of(const mosquitto_property* properties) {
    void* bytes = nullptr;
    std::uint16_t size = 0;
    if (mosquitto_property_read_binary(properties, MQTT_PROP_CORRELATION_DATA, &bytes, &size, false) == nullptr) return "";
    std::string found = hex(bytes, size);
    std::free(bytes);
    return found;
}

std::string checksum_of(const mosquitto_property* properties) {
    char *name = nullptr, *value = nullptr;
    bool skips = false;
    while ((properties = mosquitto_property_read_string_pair(properties, MQTT_PROP_USER_PROPERTY, &name, &value, skips)) != nullptr) {
        const std::string key = taken(name), text = taken(value);
        if (key == checksum_property) return text;
        skips = true;
    }
    return "";
}

Incoming incoming_of(const mosquitto_message& message, const mosquitto_property* properties) {
    const auto* bytes = static_cast<const std::uint8_t*>(message.payload);
    return {message.topic, bytes, static_cast<std::size_t>(message.payloadlen), message.retain, correlation_of(properties), checksum_of(properties)};
}

Address address_of(const std::string& text, bool tls) {
    Address found{text, tls ? 8883 : 1883, tls};
    const std::size_t bracket = text.find(']'), colon = text.find(':', bracket == std::string::npos ? 0 : bracket);
    if (colon != std::string::npos) {
        const std::string port = text.substr(colon + 1);
        const bool is_number = !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos;
        if (!is_number || (found.port = std::stoi(port)) > 65535 || found.port == 0) throw ConfigError(shown(text) + " has no port from 1 to 65535");
        found.host = text.substr(0, colon);
    }
    if (found.host.size() > 2 && found.host.front() == '[') found.host = found.host.substr(1, found.host.size() - 2);
    if (found.host.empty()) throw ConfigError("the URL of the broker names no host; expected one such as mqtt://127.0.0.1:1883");
    return found;
}

}  // namespace

std::vector<Address> addresses_of(const std::string& url, Login& login) {
    const bool tls = url.rfind("mqtts://", 0) == 0;
    if (!tls && url.rfind("mqtt://", 0) != 0)
        throw ConfigError(shown(url.substr(0, url.find("://"))) + " is no scheme of a broker; expected mqtt://host:1883 or mqtts://host:8883");
    std::string rest = url.substr(tls ? 8 : 7);
    rest = rest.substr(0, rest.find('/'));
    if (const std::size_t at = rest.rfind('@'); at != std::string::npos) {
        const std::string own = rest.substr(0, at);
        const std::size_t colon = own.find(':');
        if (login.user.empty()) login.user = decoded(own.substr(0, colon));
        if (login.password.empty() && colon != std::string::npos) login.password = decoded(own.substr(colon + 1));
        rest = rest.substr(at + 1);
    }
    if (login.user.empty() && !login.password.empty()) throw ConfigError("a password needs the user that it is of; state both");
    std::vector<Address> found;
    for (std::size_t at = 0; at <= rest.size();) {
        const std::size_t end = std::min(rest.find(',', at), rest.size());
        found.push_back(address_of(rest.substr(at, end - at), tls));
        at = end + 1;
    }
    return found;
}

Connection::Connection(const Address& address, const Login& login, const std::string& client_id, std::uint32_t largest, Events events)
    : events_(std::move(events)) {
    start_library();
    handle_ = mosquitto_new(client_id.c_str(), true, this);
    if (handle_ == nullptr) throw std::bad_alloc();
    mosquitto_int_option(handle_, MOSQ_OPT_PROTOCOL_VERSION, MQTT_PROTOCOL_V5);
    mosquitto_int_option(handle_, MOSQ_OPT_TCP_NODELAY, 1);
    mosquitto_int_option(handle_, MOSQ_OPT_SEND_MAXIMUM, send_maximum);
    const auto text = [](const std::string& each) { return each.empty() ? nullptr : each.c_str(); };
    if (!login.user.empty()) mosquitto_username_pw_set(handle_, login.user.c_str(), text(login.password));
    if (address.tls) {
        const char* folder = login.ca_file.empty() ? "/etc/ssl/certs" : nullptr;
        const int status = mosquitto_tls_set(handle_, text(login.ca_file), folder, text(login.cert_file), text(login.key_file), nullptr);
        if (status != MOSQ_ERR_SUCCESS) {
            mosquitto_destroy(handle_);
            throw ConfigError("ca_file, cert_file or key_file can't be read, or one of the last two is missing");
        }
    }
    mosquitto_connect_v5_callback_set(handle_, [](mosquitto*, void* self, int code, int, const mosquitto_property*) {
        static_cast<Connection*>(self)->events_.on_connack(code);
    });
    mosquitto_subscribe_v5_callback_set(handle_, [](mosquitto*, void* self, int number, int count, const int* granted, const mosquitto_property*) {
        static_cast<Connection*>(self)->events_.on_suback(number, count > 0 ? granted[0] : 0x80);
    });
    mosquitto_publish_v5_callback_set(handle_, [](mosquitto*, void* self, int number, int code, const mosquitto_property*) {
        static_cast<Connection*>(self)->events_.on_puback(number, code);
    });
    mosquitto_message_v5_callback_set(handle_, [](mosquitto*, void* self, const mosquitto_message* message, const mosquitto_property* properties) {
        static_cast<Connection*>(self)->events_.on_message(incoming_of(*message, properties));
    });
    mosquitto_disconnect_v5_callback_set(handle_, [](mosquitto*, void* self, int code, const mosquitto_property*) {
        auto& own = *static_cast<Connection*>(self);
        own.stands_ = false;
        if (own.reason_.empty()) own.reason_ = code < 0x80 ? mosquitto_strerror(code) : mosquitto_reason_string(code);
    });

    // The call that does not block takes no properties; the one that does stores them before it refuses the port.
    mosquitto_property* properties = nullptr;
    mosquitto_property_add_int32(&properties, MQTT_PROP_MAXIMUM_PACKET_SIZE, largest);
    mosquitto_connect_bind_v5(handle_, address.host.c_str(), -1, keepalive_seconds, nullptr, properties);
    mosquitto_property_free_all(&properties);
    failed(mosquitto_connect_async(handle_, address.host.c_str(), address.port, keepalive_seconds));
}

Connection::~Connection() { mosquitto_destroy(handle_); }

int Connection::socket() const { return mosquitto_socket(handle_); }

bool Connection::wants_write() const { return mosquitto_want_write(handle_); }

bool Connection::failed(int status) {
    if (status == MOSQ_ERR_SUCCESS || status == MOSQ_ERR_CONN_PENDING) return false;
    stands_ = false;
    if (reason_.empty()) reason_ = mosquitto_strerror(status);
    return true;
}

bool Connection::service(bool is_readable) {
    // One packet a call: until there is nothing more to read, since TLS may hold some that the socket does not show.
    for (int count = 0; is_readable && stands_ && count < most_packets; ++count) {
        errno = 0;
        if (failed(mosquitto_loop_read(handle_, 1)) || errno != 0) break;
    }
    if (stands_ && wants_write()) failed(mosquitto_loop_write(handle_, 1));
    if (stands_) failed(mosquitto_loop_misc(handle_));
    return stands_;
}

int Connection::subscribe(const std::string& filter, int qos) {
    int number = 0;
    failed(mosquitto_subscribe_v5(handle_, &number, filter.c_str(), qos, 0, nullptr));
    return number;
}

void Connection::unsubscribe(const std::string& filter) { mosquitto_unsubscribe(handle_, nullptr, filter.c_str()); }

int Connection::publish(const Outgoing& message, int& number) {
    if (message.size > MQTT_MAX_PAYLOAD) return MOSQ_ERR_PAYLOAD_SIZE;  // before it is an int
    mosquitto_property* properties = nullptr;
    if (!message.response_topic.empty()) {
        const auto id = bytes_of(message.id);
        mosquitto_property_add_string(&properties, MQTT_PROP_CONTENT_TYPE, content_type);
        mosquitto_property_add_string(&properties, MQTT_PROP_RESPONSE_TOPIC, message.response_topic.c_str());
        mosquitto_property_add_binary(&properties, MQTT_PROP_CORRELATION_DATA, id.data(), static_cast<std::uint16_t>(id.size()));
        mosquitto_property_add_int32(&properties, MQTT_PROP_MESSAGE_EXPIRY_INTERVAL, message.expiry);
        mosquitto_property_add_string_pair(&properties, MQTT_PROP_USER_PROPERTY, checksum_property, message.checksum.c_str());
    }
    const int status = mosquitto_publish_v5(handle_, &number, message.topic.c_str(), static_cast<int>(message.size), message.bytes, 1, false, properties);
    mosquitto_property_free_all(&properties);
    return status;
}

bool Connection::is_too_large(int status) { return status == MOSQ_ERR_OVERSIZE_PACKET || status == MOSQ_ERR_PAYLOAD_SIZE; }

void Connection::disconnect() { mosquitto_disconnect(handle_); }

}  // namespace mqinfer

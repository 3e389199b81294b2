/// The floor of the path: MQTT 3.1.1 with QoS 1 on a bare socket, without names, deadlines or checks. floor.py answers.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "driving.h"

namespace {

using load::Bytes;
using namespace std::string_literals;

std::string packet(char head, const std::string& body, std::size_t payload = 0) {
    std::string found(1, head);
    std::size_t left = body.size() + payload;
    for (; left > 127; left /= 128) found += static_cast<char>(left % 128 + 128);
    return found + static_cast<char>(left) + body;
}

std::string two_bytes(std::size_t number) { return {static_cast<char>(number / 256), static_cast<char>(number % 256)}; }

std::string text(const std::string& words) { return two_bytes(words.size()) + words; }

/// One connection, with a thread that reads.
class Connection {
public:
    Connection(int port, const Bytes& array) : array_(array), name_(std::to_string(getpid()) + "-" + std::to_string(port)) {
        const int on = 1;
        sockaddr_in address{AF_INET, htons(static_cast<std::uint16_t>(port)), {htonl(INADDR_LOOPBACK)}, {}};
        if (connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address)) throw std::runtime_error("no broker on port " + std::to_string(port));
        setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        write(packet(0x10, text("MQTT") + "\4\2\0\0"s + text(name_)) + packet('\x82', "\0\1"s + text("floor/replies/" + name_) + "\1"), {});
        reader_ = std::thread([this] { run(); });
    }

    ~Connection() {
        shutdown(socket_, SHUT_RDWR);
        reader_.join();
        close(socket_);
    }

    void ask(load::Done done) {
        const std::lock_guard lock(mutex_);
        const std::string number = two_bytes(next_);
        pending_[next_] = std::move(done);
        next_ = next_ % 0xFFFF + 1;
        const std::string body = text("floor/requests/" + name_) + number + number;  // once for MQTT, and once for the payload
        write(std::exchange(acknowledged_, {}) + packet(0x32, body, array_.size()), array_);
    }

private:
    void write(std::string head, const Bytes& payload) {
        iovec parts[] = {{head.data(), head.size()}, {const_cast<std::uint8_t*>(payload.data()), payload.size()}};
        while (parts[0].iov_len + parts[1].iov_len) {
            ssize_t left = writev(socket_, parts, 2);
            if (left < 0) return;  // the reader ends, too
            for (iovec& part : parts) {
                const std::size_t taken = std::min(static_cast<std::size_t>(left), part.iov_len);
                part = {static_cast<char*>(part.iov_base) + taken, part.iov_len - taken};
                left -= static_cast<ssize_t>(taken);
            }
        }
    }

    void run() {
        Bytes buffer(1 << 20);
        std::size_t filled = 0;
        for (ssize_t read; (read = recv(socket_, buffer.data() + filled, buffer.size() - filled, 0)) > 0;) {
            filled += static_cast<std::size_t>(read);
            std::size_t taken = 0;
            while (const std::size_t size = take(buffer.data() + taken, filled - taken)) taken += size;
            filled -= taken;
            if (taken) std::memmove(buffer.data(), buffer.data() + taken, filled);
            if (filled == buffer.size()) buffer.resize(2 * filled);
            const std::lock_guard lock(mutex_);
            write(std::exchange(acknowledged_, {}), {});
        }
    }

    /// Take a packet from the front, and return its size; 0 where it isn't whole.
    std::size_t take(const std::uint8_t* packet, std::size_t filled) {
        std::size_t at = 1, size = 0;
        for (int shift = 0;; shift += 7, ++at) {
            if (at >= filled) return 0;
            size |= std::size_t{packet[at] & 127u} << shift;
            if (packet[at] < 128) break;
        }
        const std::size_t end = ++at + size;
        if (end > filled) return 0;
        if (packet[0] >> 4 == 3) {
            at += 2u + packet[at] * 256u + packet[at + 1];
            load::Done done;
            {
                const std::lock_guard lock(mutex_);
                acknowledged_ += "\x40\2"s + static_cast<char>(packet[at]) + static_cast<char>(packet[at + 1]);
                done = std::move(pending_.at(packet[at + 2] * 256u + packet[at + 3]));
            }
            done(packet + at + 4, end - at - 4);
        }
        return end;
    }

    const Bytes& array_;
    const std::string name_;
    const int socket_ = socket(AF_INET, SOCK_STREAM, 0);
    std::mutex mutex_;
    std::map<std::size_t, load::Done> pending_;
    std::size_t next_ = 1;
    std::string acknowledged_;  // PUBACKs that go with the next request
    std::thread reader_;
};

load::Ask connect_floor(const load::Workload& workload, int port) {
    const auto connection = std::make_shared<Connection>(port, workload.array);
    return [connection](load::Done done) { connection->ask(std::move(done)); };
}

}  // namespace

int main(int count, char** arguments) {
    signal(SIGPIPE, SIG_IGN);  // an acknowledgement to a connection that was just left
    return load::serve(count, arguments, connect_floor);
}

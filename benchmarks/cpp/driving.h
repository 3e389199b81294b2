/// What each load program does for `mqinfer.bench.contestants.clients`: a line of JSON for each job, of one vehicle.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <fstream>
#include <functional>
#include <future>
#include <iostream>
#include <iterator>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace load {

using nlohmann::json;
using Bytes = std::vector<std::uint8_t>;
using Done = std::function<void(const std::uint8_t* bytes, std::size_t size)>;  ///< With the output; a null pointer: it failed.
using Ask = std::function<void(Done)>;  ///< Sends the array; from any thread.

/// What is asked: `MODEL INPUT DATATYPE SHAPE OUTPUT`, and the files of the array and of the output.
struct Workload {
    std::string model, input, datatype;
    std::vector<std::int64_t> shape;
    std::string output;
    Bytes array, expected;
};

using Connect = std::function<Ask(const Workload&, int port)>;

inline Bytes read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

/// Callers in closed loops.
class Driver {
public:
    explicit Driver(std::size_t expected) : expected_(expected) {}

    /// Take a turn: `driving.Load` to `driving.DrivenTurn`.
    json drive(const Ask& ask, const json& load) {
        std::unique_lock lock(mutex_);
        times_.clear();
        failed_ = 0;
        active_ = load["callers"];
        begin_ = Clock::now();
        end_ = begin_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(load["seconds"].get<double>()));
        lock.unlock();
        for (int caller = load["callers"]; caller > 0; --caller) next(ask);
        lock.lock();
        ended_.wait(lock, [&] { return active_ == 0; });
        const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
        json found = {{"seconds", seconds}, {"vehicles", {times_.size()}}, {"failures", json::object()}, {"times", json::array()}};
        if (failed_) found["failures"]["failed"] = failed_;
        const std::size_t step = times_.size() / 10'000 + 1;
        for (std::size_t place = 0; place < times_.size(); place += step) found["times"].push_back(times_[place]);
        return found;
    }

private:
    using Clock = std::chrono::steady_clock;

    void next(const Ask& ask) {
        const auto sent = Clock::now();
        if (sent >= end_) return ended();
        ask([this, &ask, sent](const std::uint8_t*, std::size_t size) {
            if (size != expected_) return ended(true);
            {
                const std::lock_guard lock(mutex_);
                times_.push_back(std::chrono::duration<double>(Clock::now() - sent).count());
            }
            next(ask);
        });
    }

    void ended(bool is_failure = false) {
        const std::lock_guard lock(mutex_);
        failed_ += is_failure;
        if (--active_ == 0) ended_.notify_all();
    }

    const std::size_t expected_;
    std::mutex mutex_;
    std::condition_variable ended_;
    Clock::time_point begin_, end_;
    std::vector<double> times_;
    std::size_t failed_ = 0;
    int active_ = 0;
};

/// Ask once. Throws where the output is another than the model's.
inline void check(const Ask& ask, const Workload& workload) {
    const auto same = std::make_shared<std::promise<bool>>();  // which lives until the callback has set it
    ask([same, &workload](const std::uint8_t* bytes, std::size_t size) {
        same->set_value(size == workload.expected.size() && std::equal(bytes, bytes + size, workload.expected.begin()));
    });
    if (!same->get_future().get()) throw std::runtime_error("it returned another output than the model does in process");
}

/// `PROGRAM MODEL INPUT DATATYPE SHAPE OUTPUT TARGET FOLDER VEHICLES`: connect, write a line, and do what each line asks for.
inline int serve(int count, char** arguments, const Connect& connect) {
    const auto say = [](const auto& line) { std::cout << line << std::endl; };
    try {
        if (count < 9) throw std::runtime_error("expected MODEL INPUT DATATYPE SHAPE OUTPUT TARGET FOLDER VEHICLES");
        const std::string folder = arguments[7];
        Workload workload{arguments[1], arguments[2], arguments[3], {}, arguments[5], read(folder + "/array"), read(folder + "/expected")};
        std::istringstream sizes(arguments[4]);
        for (std::int64_t size; sizes >> size; sizes.ignore()) workload.shape.push_back(size);
        const Ask ask = connect(workload, json::parse(arguments[6])["port"]);
        check(ask, workload);
        Driver driver(workload.expected.size());
        say("ready");
        for (std::string line; std::getline(std::cin, line);) {
            const json job = json::parse(line);
            if (job.contains("load")) {
                say(driver.drive(ask, job["load"]));
            } else {
                const Ask over_link = connect(workload, job["port"]);
                for (int number = job["requests"]; number > 0; --number) check(over_link, workload);
                say("sent");
            }
        }
        return 0;
    } catch (const std::exception& error) {
        say(std::string("error: ") + error.what());
        return 1;
    }
}

}  // namespace load

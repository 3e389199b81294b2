/// What tests ask of real workers: `live COMMAND URL ROOT …`; each command prints lines that tests/clients/test_cpp_client.py reads.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <thread>

#include "mqinfer/mqinfer.h"

using namespace mqinfer;

namespace {

using Arguments = std::vector<std::string>;

Options patient(const Arguments& arguments, const std::string& name) {
    Options options;
    options.name = name;
    options.root = arguments[1];
    options.patience = 120;
    options.timeout = 240;
    return options;
}

template <class T>
std::string listed(const T* values, std::size_t count) {
    std::string found;
    for (std::size_t place = 0; place < count; ++place) found += (place ? "," : "") + std::to_string(values[place]);
    return found;
}

std::string values(const Tensor& tensor) {
    std::string found;
    switch (tensor.datatype) {
        case Datatype::FP32: return listed(tensor.data<float>(), tensor.elements());
        case Datatype::INT64: return listed(tensor.data<std::int64_t>(), tensor.elements());
        case Datatype::UINT8: return listed(tensor.data<std::uint8_t>(), tensor.elements());
        case Datatype::BYTES:
            for (const auto each : tensor.strings()) found += "<" + std::string(each.substr(0, 8)) + ":" + std::to_string(each.size()) + ">";
            return found;
        default: return std::string(to_string(tensor.datatype));
    }
}

std::string answer(const Result& result) {
    if (!result.ok()) return result.error->code;
    std::string found;
    for (const Tensor& each : result.outputs) found += (found.empty() ? "" : " ") + each.name + "=" + values(each);
    return found;
}

/// Print what came of a request.
void ask(Client& client, const std::string& what, const std::string& model, const std::vector<Tensor>& inputs, RequestOptions options = {}) {
    try {
        const std::string found = answer(client.submit(model, inputs, options).get());
        std::cout << what << ": " << found << std::endl;
    } catch (const Error& error) {
        std::cout << what << ": thrown " << error.code() << std::endl;
    }
}

void print(const Counters& c) {
    std::cout << "submitted=" << c.submitted << " pending=" << c.pending << " in_flight=" << c.in_flight << " ok=" << c.ok << " error=" << c.error
              << " expired=" << c.expired << " superseded=" << c.superseded << " rejected=" << c.rejected << " cancelled=" << c.cancelled
              << " malformed=" << c.malformed << " mismatched=" << c.mismatched << " bad_states=" << c.bad_states << " late=" << c.late
              << " retries=" << c.retries << std::endl;
}

/// All kinds of tensors, and each fault.
int answers(const Arguments& arguments) {
    const std::vector<float> three = {1, 2, 5}, four(4), twos(8, 2), many(17'000'000);
    const std::vector<std::int64_t> big = {INT64_MIN, (std::int64_t{1} << 53) + 1};
    const std::vector<std::int32_t> a = {1, 2};
    const std::vector<std::uint8_t> b = {7, 8};
    std::vector<std::uint8_t> mask(64 * 48);
    for (std::size_t place = 0; place < mask.size(); ++place) mask[place] = place % 64 < 20 ? 3 : place % 5 == 0 ? 1 : 0;
    {
        Client client(arguments[0], patient(arguments, "asker"));
        ask(client, "half_plus_two", "half_plus_two", {tensor("x", three)});
        RequestOptions versioned;
        versioned.version = "123";
        ask(client, "version", "half_plus_two", {tensor("x", three)}, versioned);
        ask(client, "words", "words", {strings("words", {"grün", "", std::string(5000, 'a')})});
        ask(client, "int64", "integers", {tensor("big", big)});
        RequestOptions chosen;
        chosen.outputs = {{"b", "", 0}};
        ask(client, "outputs", "two", {tensor("a", a), tensor("b", b)}, chosen);
        ask(client, "lz4", "echo", {encode(tensor("x", twos, {2, 4}), "lz4")});
        ask(client, "shuffle", "echo", {encode(tensor("x", twos, {2, 4}), "shuffle-lz4")});
        RequestOptions masked;
        masked.output_encoding = "mask";
        masked.capture.source = "camera";
        masked.capture.sequence = 4;
        masked.priority = 1;
        masked.parameters = {{"run", std::string("one")}};
        const Result same = client.submit("mask", {encode(tensor("mask", mask, {1, 48, 64}), "mask")}, masked).get();
        const bool is_same = same.ok() && std::equal(mask.begin(), mask.end(), same.output("mask").data<std::uint8_t>());
        std::cout << "mask: " << (is_same ? "same" : answer(same)) << " " << same.capture.source << std::endl;
        ask(client, "wrong_tensor", "half_plus_two", {tensor("z", three)});
        ask(client, "wrong_name", "no/model", {tensor("x", three)});
        ask(client, "wrong_version", "echo", {tensor("x", four, {1, 4})}, [] { RequestOptions wrong; wrong.version = "new"; return wrong; }());
        ask(client, "too_large", "echo", {tensor("x", many, {4'250'000, 4})});
        ask(client, "slow", "slow", {tensor("x", four, {1, 4})});
        RequestOptions hasty;
        hasty.timeout = 0.2;
        ask(client, "expired", "slow", {tensor("x", four, {1, 4})}, hasty);
        RequestOptions mine;
        mine.id = new_id();
        auto future = client.submit("slow", {tensor("x", four, {1, 4})}, mine);
        std::cout << "cancel: " << client.cancel(mine.id) << client.cancel(mine.id) << " " << answer(future.get()) << std::endl;
        try {
            client.infer("half_plus_two", {tensor("z", three)});
        } catch (const BadTensor& error) {
            std::cout << "typed: " << error.code() << std::endl;
        }
        print(client.counters());
        client.close();
        ask(client, "closed", "half_plus_two", {tensor("x", three)});
    }
    Options hasty = patient(arguments, "hasty");
    hasty.patience = 0.1;
    hasty.max_pending = 2;
    Client client(arguments[0], hasty);
    ask(client, "unknown", "half_plus_tow", {tensor("x", three)});
    RequestOptions brief;
    brief.timeout = 0.2;
    std::vector<std::future<Result>> crowd;
    for (int place = 0; place < 3; ++place) crowd.push_back(client.submit("slow", {tensor("x", four, {1, 4})}, brief));
    std::cout << "crowded:";
    for (auto& each : crowd) std::cout << " " << answer(each.get());
    std::cout << std::endl;
    return 0;
}

/// So many requests, 64 at a time, by callbacks; each has to get its own result, once.
int many(const Arguments& arguments) {
    const int count = std::stoi(arguments[2]);
    Options options = patient(arguments, "many");
    options.window = 64;
    std::mutex mutex;
    std::condition_variable changed;
    std::map<int, int> answered;
    int next = 0, wrong = 0, done = 0;
    std::function<void()> ask;
    Client client(arguments[0], options);  // the last to be made: callbacks run until it has ended
    ask = [&] {
        int number;
        {
            const std::lock_guard lock(mutex);
            if (next == count) return;
            number = next++;
        }
        const std::vector<float> x(4, static_cast<float>(number));
        client.submit("echo", {tensor("x", x, {1, 4})}, {}, [&, number](const Result& result) {
            const bool is_own = result.ok() && result.output("x").elements() == 4 && result.output("x").data<float>()[3] == static_cast<float>(number);
            {
                const std::lock_guard lock(mutex);
                ++answered[number];
                wrong += !is_own;
                if (++done % 100 == 0) std::cout << done << std::endl;
                changed.notify_all();
            }
            ask();
        });
    };
    for (int place = 0; place < 64; ++place) ask();
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done >= count; });
    lock.unlock();
    int twice = 0;
    for (const auto& [number, times] : answered) twice += times != 1;
    std::cout << "answered=" << answered.size() << " wrong=" << wrong << " twice=" << twice << std::endl;
    print(client.counters());
    return wrong + twice == 0 ? 0 : 1;
}

/// `paced URL ROOT`: what `python -m benchmarks soak --program` asks for in a line, `RATE COUNT`: so many requests at a rate a
/// second; a late one is sent late. Prints what became of them.
int paced(const Arguments& arguments) {
    using Clock = std::chrono::steady_clock;
    double rate = 0;
    std::size_t count = 0, done = 0, wrong = 0;
    std::cin >> rate >> count;
    Options options;
    options.root = arguments[1];
    options.timeout = 60;
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::string, std::size_t> outcomes;
    std::vector<std::uint8_t> answered(count);  // all memory of the run, before it begins
    std::vector<double> times(count);
    Client client(arguments[0], options);  // the last to be made: callbacks run until it has ended
    const auto begin = Clock::now();
    for (std::size_t number = 0; number < count; ++number) {
        std::this_thread::sleep_until(begin + std::chrono::duration<double>(static_cast<double>(number) / rate));
        const std::vector<std::int64_t> x(2, static_cast<std::int64_t>(number));
        client.submit("echo", {tensor("x", x, {1, 2})}, {}, [&, number, sent = Clock::now()](const Result& result) {
            const std::lock_guard lock(mutex);
            const Tensor* output = result.ok() ? &result.output("x") : nullptr;
            wrong += output && (output->elements() != 2 || output->data<std::int64_t>()[1] != static_cast<std::int64_t>(number));
            ++answered[number];
            ++outcomes[result.ok() ? "ok" : result.error->code];
            times.at(done++) = std::chrono::duration<double>(Clock::now() - sent).count();
            changed.notify_all();
        });
    }
    std::unique_lock lock(mutex);
    if (!changed.wait_for(lock, std::chrono::seconds(90), [&] { return done >= count; })) std::cerr << done << " outcomes of " << count << std::endl;
    std::sort(times.begin(), times.end());
    const auto once = std::count(answered.begin(), answered.end(), 1);
    const Counters c = client.counters();
    std::cout << "{\"asked\":" << count << ",\"once\":" << once << ",\"wrong\":" << wrong << ",\"retries\":" << c.retries << ",\"late\":" << c.late
              << ",\"times\":[";
    for (const double share : {0.5, 0.99, 0.9999}) std::cout << (share > 0.5 ? "," : "") << times[static_cast<std::size_t>(share * static_cast<double>(count))];
    std::cout << "],\"outcomes\":{";
    for (const auto& [name, times_of] : outcomes) std::cout << (name == outcomes.begin()->first ? "\"" : ",\"") << name << "\":" << times_of;
    std::cout << "}}" << std::endl;
    return 0;
}

/// One request, whose reply the test forges.
int one(const Arguments& arguments) {
    Options options = patient(arguments, arguments[2]);
    Client client(arguments[0], options);
    const std::vector<float> x(4, 13);
    std::cout << "connected" << std::endl;
    const Result result = client.submit(arguments[3], {tensor("x", x, {1, 4})}).get();
    std::cout << (result.ok() ? "ok" : result.error->code + ": " + result.error->message) << std::endl;
    print(client.counters());
    return 0;
}

/// A callback that waits, one that ends its client, and a fork: each is told, nothing hangs, and the client goes on.
int misuse(const Arguments& arguments) {
    const std::vector<float> x(4);
    const std::vector<Tensor> inputs = {tensor("x", x)};
    RequestOptions brief;
    brief.timeout = 0.05;
    const auto thrown = [](const auto& use) -> std::string {
        try {
            use();
        } catch (const Error& error) {
            return " " + error.code();
        }
        return " nothing";
    };
    const auto try_all = [&](Client& client) {
        return thrown([&] { client.infer("nobody", inputs, brief); }) + thrown([&] { client.watch("nobody"); });
    };

    auto client = std::make_unique<Client>(arguments[0], patient(arguments, "misuser"));
    std::promise<std::string> tried;
    client->submit("nobody", inputs, brief, [&](const Result&) { tried.set_value(try_all(*client)); });
    std::cout << "waiting:" << tried.get_future().get() << std::endl;

    std::promise<void> sent, ended;
    client->submit("nobody", inputs, brief, [&](const Result&) {
        sent.get_future().wait();
        client.reset();
        ended.set_value();
    });
    sent.set_value();
    ended.get_future().wait();

    client = std::make_unique<Client>(arguments[0], patient(arguments, "parent"));
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(60);
        std::cout << "fork:" << try_all(*client) << thrown([&] { client->close(); }) << std::endl;
        client.reset();
        ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    std::cout << "child: " << status << std::endl;
    ask(*client, "parent", "nobody", inputs, brief);
    ask(*client, "name", "nobody", {tensor("\xff", x)});
    return 0;
}

int watching(const Arguments& arguments) {
    Options options = patient(arguments, "watcher");
    Client client(arguments[0], options);
    Watch first = client.watch(arguments[2]);
    const Watch second = client.watch(arguments[2], 2);
    std::cout << "watching" << std::endl;
    for (int left = std::stoi(arguments[3]); left > 0; --left) {
        const auto watched = first.next(std::chrono::minutes(2));
        if (!watched) return 1;
        const Tensor output = decode(watched->reply.outputs.at(0));
        std::cout << watched->client << " " << watched->request << " " << to_string(watched->reply.outcome) << " " << watched->reply.worker << " "
                  << output.name << "=" << values(output) << std::endl;
    }
    while (second.counters().received < first.counters().received) std::this_thread::yield();  // the same message, a moment later
    for (const WatchCounters& each : {first.counters(), second.counters()})
        std::cout << "received=" << each.received << " dropped=" << each.dropped << " malformed=" << each.malformed << " retained=" << each.retained << std::endl;
    return 0;
}

/// `login URL ROOT USER PASSWORD CA`: what comes of a right and of wrong logins.
int login(const Arguments& arguments) {
    const auto attempt = [&](const std::string& what, const std::string& user, const std::string& password, const std::string& ca, const std::string& name) {
        Options options;
        options.root = arguments[1];
        options.user = user;
        options.password = password;
        options.ca_file = ca;
        options.name = name;
        options.patience = 60;
        options.timeout = 120;
        if (ca.empty()) options.connect_timeout = 1;
        try {
            Client client(arguments[0], options);
            const std::vector<float> x(4);
            const std::string worker = client.infer("echo", {tensor("x", x, {1, 4})}).worker;
            std::cout << what << ": " << client.name() << " " << worker << std::endl;
        } catch (const Error& error) {
            std::cout << what << ": " << error.code() << " " << error.what() << std::endl;
        }
    };
    attempt("right", arguments[2], arguments[3], arguments[4], "");
    attempt("wrong", arguments[2], "another", arguments[4], "");
    attempt("without", "", "", arguments[4], "cpp");
    attempt("stranger", arguments[2], arguments[3], "", "");
    attempt("another's name", arguments[2], arguments[3], arguments[4], "car-2");
    return 0;
}

}  // namespace

int main(int count, char** all) {
    const std::map<std::string, int (*)(const Arguments&)> commands = {
        {"answers", answers}, {"many", many}, {"paced", paced}, {"one", one}, {"misuse", misuse}, {"watching", watching}, {"login", login}};
    const Arguments arguments(all + std::min(count, 2), all + count);
    const auto command = commands.find(count > 1 ? all[1] : "");
    if (command == commands.end()) return 2;
    try {
        return command->second(arguments);
    } catch (const std::exception& error) {
        std::cerr << error.what() << std::endl;
        return 1;
    }
}

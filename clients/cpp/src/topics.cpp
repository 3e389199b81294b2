#include "topics.h"

#include <algorithm>
#include <vector>

#include "fields.h"

namespace mqinfer {
namespace {

constexpr std::size_t most_letters = 64;
constexpr std::size_t most_digits = 19;
constexpr std::size_t most_root = 256;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_small(char c) { return (c >= 'a' && c <= 'z') || is_digit(c); }
bool is_letter(char c) { return is_small(c) || (c >= 'A' && c <= 'Z'); }
bool is_mark(char c) { return c == '_' || c == '.' || c == '-'; }

template <class Is>
bool all(std::string_view text, Is is) {
    return std::all_of(text.begin(), text.end(), is);
}

std::vector<std::string> levels_of(std::string_view topic) {
    std::vector<std::string> found;
    for (std::size_t at = 0; at <= topic.size();) {
        const std::size_t end = std::min(topic.find('/', at), topic.size());
        found.emplace_back(topic.substr(at, end - at));
        at = end + 1;
    }
    return found;
}

}  // namespace

bool is_name(NameKind kind, std::string_view name) {
    if (name.empty() || name.size() > most_letters) return false;
    const char first = name.front();
    switch (kind) {
        case NameKind::client:
        case NameKind::worker: return is_small(first) && all(name, [](char c) { return is_small(c) || is_mark(c); });
        case NameKind::model:
            return (is_letter(first) || first == '_') && name != "control" && all(name, [](char c) { return is_letter(c) || is_mark(c); });
        case NameKind::version: return name.size() <= most_digits && all(name, is_digit) && (first != '0' || name.size() == 1);
        case NameKind::request: break;
    }
    return all(name, [](char c) { return is_letter(c) || is_mark(c); });
}

const std::string& check_name(NameKind kind, const std::string& name) {
    static constexpr const char* kinds[] = {"client", "worker", "model", "version", "request"};
    static constexpr const char* own = "1 to 64 lower-case letters, digits, '_', '.' or '-', beginning with a letter or digit";
    static constexpr const char* rules[] = {
        own, own, "1 to 64 letters, digits, '_', '.' or '-', beginning with a letter, a digit or '_', and not 'control'",
        "a decimal integer of at most 19 digits, such as 3", "1 to 64 letters, digits, '_', '.' or '-'"};
    if (is_name(kind, name)) return name;
    const auto place = static_cast<std::size_t>(kind);
    throw BadTopic(std::string(kinds[place]) + " " + shown(name) + " can't be used in a topic; expected " + rules[place]);
}

Topics::Topics(std::string root) : root_(std::move(root)) {
    const auto levels = levels_of(root_);
    const auto is_empty = [](const std::string& level) { return level.empty(); };
    const auto is_wrong = [](char c) { return c == '+' || c == '#' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
    if (root_.size() > most_root || root_[0] == '$' || std::any_of(levels.begin(), levels.end(), is_empty) ||
        std::any_of(root_.begin(), root_.end(), is_wrong))
        throw BadTopic("topic root " + shown(root_) + " is wrong; expected levels joined by '/', such as mqinfer/v1");
}

std::string Topics::infer(const std::string& model, const std::string& version, const std::string& client) const {
    const std::string versions = version.empty() ? "" : "/versions/" + check_name(NameKind::version, version);
    return root_ + "/models/" + check_name(NameKind::model, model) + versions + "/infer/" + client;
}

std::string Topics::lane(const std::string& worker, const std::string& model, const std::string& client) const {
    return root_ + "/workers/" + check_name(NameKind::worker, worker) + "/infer/" + model + "/" + client;
}

std::string Topics::cancel(const std::string& model, const std::string& client) const {
    return root_ + "/models/" + model + "/cancel/" + client;
}

std::string Topics::result(const std::string& model, const std::string& client, const std::string& request) const {
    return root_ + "/results/" + check_name(NameKind::model, model) + "/" + client + "/" + check_name(NameKind::request, request);
}

std::string Topics::results_of_client(const std::string& client) const { return root_ + "/results/+/" + client + "/+"; }

std::string Topics::results_of_model(const std::string& model) const {
    return root_ + "/results/" + check_name(NameKind::model, model) + "/+/+";
}

std::optional<ResultAddress> Topics::result_of(std::string_view topic) const {
    const std::string begin = root_ + "/results/";
    if (topic.substr(0, begin.size()) != begin) return {};
    const auto levels = levels_of(topic.substr(begin.size()));
    if (levels.size() != 3 || !is_name(NameKind::model, levels[0]) || !is_name(NameKind::client, levels[1]) ||
        !is_name(NameKind::request, levels[2]))
        return {};
    return ResultAddress{levels[0], levels[1], levels[2]};
}

std::optional<std::string> Topics::worker_of(std::string_view topic) const {
    const std::string begin = root_ + "/workers/";
    if (topic.substr(0, begin.size()) != begin) return {};
    const auto levels = levels_of(topic.substr(begin.size()));
    if (levels.size() != 2 || levels[1] != "state" || !is_name(NameKind::worker, levels[0])) return {};
    return levels[0];
}

}  // namespace mqinfer

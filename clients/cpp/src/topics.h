/// Names, and topics built from names: none with a wildcard, a slash or a NUL gets through.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mqinfer {

enum class NameKind { client, worker, model, version, request };

bool is_name(NameKind kind, std::string_view name);

/// Return a name that follows the rule of its kind. Throws BadTopic.
const std::string& check_name(NameKind kind, const std::string& name);

/// Where a reply came.
struct ResultAddress {
    std::string model, client, request;
};

class Topics {
public:
    /// Throws BadTopic for a root with an empty level, a wildcard or a control character.
    explicit Topics(std::string root);

    /// Return the channel of a model, or of a version of it.
    std::string infer(const std::string& model, const std::string& version, const std::string& client) const;
    std::string lane(const std::string& worker, const std::string& model, const std::string& client) const;
    std::string cancel(const std::string& model, const std::string& client) const;
    std::string result(const std::string& model, const std::string& client, const std::string& request) const;
    std::string results_of_client(const std::string& client) const;
    std::string results_of_model(const std::string& model) const;
    std::string worker_states() const { return root_ + "/workers/+/state"; }

    std::optional<ResultAddress> result_of(std::string_view topic) const;
    /// Return the worker whose state stands on a topic.
    std::optional<std::string> worker_of(std::string_view topic) const;

private:
    std::string root_;
};

}  // namespace mqinfer

/// The errors: one class for each code of docs/reference/protocol.md, section 7, in the tree of mqinfer's own.
#pragma once

#include <stdexcept>
#include <string>

namespace mqinfer {

/// Root of the tree. On its own it means a defect of this library or of the machine.
class Error : public std::runtime_error {
public:
    explicit Error(const std::string& message, std::string code = "internal")
        : std::runtime_error(message), code_(std::move(code)) {}

    /// The code on the wire; what to compare.
    const std::string& code() const noexcept { return code_; }

private:
    std::string code_;
};

#define MQINFER_ERROR(Name, Base, wire_code)                                                                           \
    class Name : public Base {                                                                                         \
    public:                                                                                                            \
        explicit Name(const std::string& message, std::string code = wire_code) : Base(message, std::move(code)) {}    \
    };

MQINFER_ERROR(InvalidRequest, Error, "invalid_request")       ///< Sending it again does not help; nor for the next five.
MQINFER_ERROR(BadEnvelope, InvalidRequest, "bad_envelope")    ///< No message of this protocol.
MQINFER_ERROR(BadTensor, InvalidRequest, "bad_tensor")        ///< A tensor's name, datatype, shape or size.
MQINFER_ERROR(BadEncoding, InvalidRequest, "bad_encoding")    ///< An unknown codec, or bytes of another array.
MQINFER_ERROR(BadTopic, InvalidRequest, "bad_topic")          ///< A name outside the rules.
MQINFER_ERROR(LimitExceeded, InvalidRequest, "limit_exceeded")
MQINFER_ERROR(ModelNotFound, Error, "model_not_found")
MQINFER_ERROR(ModelFailed, Error, "model_failed")             ///< The model raised while it ran.
MQINFER_ERROR(Poison, ModelFailed, "poison")                  ///< Two workers crashed while they had the request.
MQINFER_ERROR(ModelNotLoadable, Error, "model_not_loadable")
MQINFER_ERROR(Unanswered, Error, "unanswered")                ///< The request is not to blame: another may succeed.
MQINFER_ERROR(Expired, Unanswered, "expired")
MQINFER_ERROR(Rejected, Unanswered, "rejected")               ///< No room at the workers, or in this client.
MQINFER_ERROR(Corrupted, Unanswered, "corrupted")             ///< A payload differs from its checksum.
MQINFER_ERROR(Cancelled, Unanswered, "cancelled")
MQINFER_ERROR(Superseded, Unanswered, "superseded")
MQINFER_ERROR(NoWorker, Unanswered, "no_worker")              ///< Nobody subscribes to the model's topic.
MQINFER_ERROR(ReferenceLost, Unanswered, "reference_lost")
MQINFER_ERROR(LinkError, Error, "link_error")
MQINFER_ERROR(BrokerUnreachable, LinkError, "broker_unreachable")
MQINFER_ERROR(NotConnected, LinkError, "not_connected")
MQINFER_ERROR(NotAuthorized, LinkError, "not_authorized")
MQINFER_ERROR(NameTaken, LinkError, "name_taken")
MQINFER_ERROR(MessageTooLarge, LinkError, "message_too_large")
MQINFER_ERROR(SourceError, Error, "source_error")
MQINFER_ERROR(BadImage, SourceError, "bad_image")
MQINFER_ERROR(ConfigError, Error, "config_error")
MQINFER_ERROR(MissingExtra, Error, "missing_extra")
#undef MQINFER_ERROR

/// An error as a value: what crosses threads.
struct Failure {
    std::string code;
    std::string message;
};

/// Throw the class of a code; an unknown one, of a newer peer, is an Error.
[[noreturn]] void throw_failure(const Failure& failure);

}  // namespace mqinfer

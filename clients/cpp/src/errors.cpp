#include "mqinfer/errors.h"

namespace mqinfer {
namespace {

template <class Kind>
void throw_if(const Failure& failure) {
    static const std::string code = Kind("").code();
    if (failure.code == code) throw Kind(failure.message);
}

template <class... Kinds>
void throw_one(const Failure& failure) {
    (throw_if<Kinds>(failure), ...);
}

}  // namespace

void throw_failure(const Failure& failure) {
    throw_one<InvalidRequest, BadEnvelope, BadTensor, BadEncoding, BadTopic, LimitExceeded, ModelNotFound, ModelFailed,
              Poison, ModelNotLoadable, Unanswered, Expired, Rejected, Corrupted, Cancelled, Superseded, NoWorker,
              ReferenceLost, LinkError, BrokerUnreachable, NotConnected, NotAuthorized, NameTaken, MessageTooLarge,
              SourceError, BadImage, ConfigError, MissingExtra>(failure);
    throw Error(failure.message, failure.code);
}

}  // namespace mqinfer

using System;
using System.Collections.Generic;

namespace Mqinfer
{
    // One class for each code of docs/reference/protocol.md, section 7, in the tree of mqinfer's own errors.

    /// <summary>Root of the tree. On its own it means a defect of this package or of the machine.</summary>
    public class MqinferException : Exception
    {
        private static readonly Dictionary<string, Func<string, MqinferException>> ByCode =
            new Dictionary<string, Func<string, MqinferException>>
            {
                ["invalid_request"] = message => new InvalidRequestException(message),
                ["bad_envelope"] = message => new BadEnvelopeException(message),
                ["bad_tensor"] = message => new BadTensorException(message),
                ["bad_encoding"] = message => new BadEncodingException(message),
                ["bad_topic"] = message => new BadTopicException(message),
                ["limit_exceeded"] = message => new LimitExceededException(message),
                ["model_not_found"] = message => new ModelNotFoundException(message),
                ["model_failed"] = message => new ModelFailedException(message),
                ["poison"] = message => new PoisonException(message),
                ["model_not_loadable"] = message => new ModelNotLoadableException(message),
                ["unanswered"] = message => new UnansweredException(message),
                ["expired"] = message => new ExpiredException(message),
                ["rejected"] = message => new RejectedException(message),
                ["corrupted"] = message => new CorruptedException(message),
                ["cancelled"] = message => new CancelledException(message),
                ["superseded"] = message => new SupersededException(message),
                ["no_worker"] = message => new NoWorkerException(message),
                ["reference_lost"] = message => new ReferenceLostException(message),
                ["link_error"] = message => new LinkException(message),
                ["broker_unreachable"] = message => new BrokerUnreachableException(message),
                ["not_connected"] = message => new NotConnectedException(message),
                ["not_authorized"] = message => new NotAuthorizedException(message),
                ["name_taken"] = message => new NameTakenException(message),
                ["message_too_large"] = message => new MessageTooLargeException(message),
                ["source_error"] = message => new SourceErrorException(message),
                ["bad_image"] = message => new BadImageException(message),
                ["config_error"] = message => new ConfigException(message),
                ["missing_extra"] = message => new MissingExtraException(message),
            };

        internal MqinferException(string message, Exception cause = null) : this("internal", message, cause) { }

        internal MqinferException(string code, string message, Exception cause = null) : base(message, cause) =>
            Code = code;

        /// <summary>The code of the class, as in a reply.</summary>
        public string Code { get; }

        /// <summary>Return the error of a code; an unknown one, of a newer peer, makes the root class.</summary>
        internal static MqinferException Of(string code, string message) =>
            ByCode.TryGetValue(code, out var make) ? make(message) : new MqinferException(message);
    }

    /// <summary>The message can't be used as it is; sending it again does not help.</summary>
    public class InvalidRequestException : MqinferException
    {
        internal InvalidRequestException(string message) : base("invalid_request", message) { }

        internal InvalidRequestException(string code, string message) : base(code, message) { }
    }

    /// <summary>The payload is not a message of this protocol: magic, header length, MessagePack or JSON.</summary>
    public sealed class BadEnvelopeException : InvalidRequestException
    {
        internal BadEnvelopeException(string message) : base("bad_envelope", message) { }
    }

    /// <summary>A tensor's name, datatype, shape or size is wrong.</summary>
    public sealed class BadTensorException : InvalidRequestException
    {
        internal BadTensorException(string message) : base("bad_tensor", message) { }
    }

    /// <summary>A codec is unknown, can't carry the array, or its bytes are not those of the declared array.</summary>
    public sealed class BadEncodingException : InvalidRequestException
    {
        internal BadEncodingException(string message) : base("bad_encoding", message) { }
    }

    /// <summary>A name or a topic breaks the naming rules.</summary>
    public sealed class BadTopicException : InvalidRequestException
    {
        internal BadTopicException(string message) : base("bad_topic", message) { }
    }

    /// <summary>Something is larger than a stated limit; noticed before memory is taken for it.</summary>
    public sealed class LimitExceededException : InvalidRequestException
    {
        internal LimitExceededException(string message) : base("limit_exceeded", message) { }
    }

    /// <summary>There is no such model or version.</summary>
    public sealed class ModelNotFoundException : MqinferException
    {
        internal ModelNotFoundException(string message) : base("model_not_found", message) { }
    }

    /// <summary>The model raised while it ran.</summary>
    public class ModelFailedException : MqinferException
    {
        internal ModelFailedException(string message) : base("model_failed", message) { }

        internal ModelFailedException(string code, string message) : base(code, message) { }
    }

    /// <summary>Two workers crashed while they had the request.</summary>
    public sealed class PoisonException : ModelFailedException
    {
        internal PoisonException(string message) : base("poison", message) { }
    }

    /// <summary>A model file is missing, truncated or of an unknown format.</summary>
    public sealed class ModelNotLoadableException : MqinferException
    {
        internal ModelNotLoadableException(string message) : base("model_not_loadable", message) { }
    }

    /// <summary>There is no result, and the request is not to blame: another one may succeed.</summary>
    public class UnansweredException : MqinferException
    {
        internal UnansweredException(string message) : base("unanswered", message) { }

        internal UnansweredException(string code, string message) : base(code, message) { }
    }

    /// <summary>The deadline passed before there was a result.</summary>
    public sealed class ExpiredException : UnansweredException
    {
        internal ExpiredException(string message) : base("expired", message) { }
    }

    /// <summary>A worker, or this client, had no room for the request.</summary>
    public sealed class RejectedException : UnansweredException
    {
        internal RejectedException(string message) : base("rejected", message) { }
    }

    /// <summary>A payload differs from its checksum: bits flipped on the way.</summary>
    public sealed class CorruptedException : UnansweredException
    {
        internal CorruptedException(string message) : base("corrupted", message) { }
    }

    /// <summary>The client was closed before there was a result.</summary>
    public sealed class CancelledException : UnansweredException
    {
        internal CancelledException(string message) : base("cancelled", message) { }
    }

    /// <summary>A newer frame of the same stream took this one's place.</summary>
    public sealed class SupersededException : UnansweredException
    {
        internal SupersededException(string message) : base("superseded", message) { }
    }

    /// <summary>Nobody subscribes to the model's topic.</summary>
    public sealed class NoWorkerException : UnansweredException
    {
        internal NoWorkerException(string message) : base("no_worker", message) { }
    }

    /// <summary>The worker does not have the frames that a picture is encoded against.</summary>
    public sealed class ReferenceLostException : UnansweredException
    {
        internal ReferenceLostException(string message) : base("reference_lost", message) { }
    }

    /// <summary>The link to the broker failed.</summary>
    public class LinkException : MqinferException
    {
        internal LinkException(string message) : base("link_error", message) { }

        internal LinkException(string code, string message) : base(code, message) { }
    }

    /// <summary>No broker answers at the address.</summary>
    public sealed class BrokerUnreachableException : LinkException
    {
        internal BrokerUnreachableException(string message) : base("broker_unreachable", message) { }
    }

    /// <summary>The link is down at the moment; nothing was sent.</summary>
    public sealed class NotConnectedException : LinkException
    {
        internal NotConnectedException(string message) : base("not_connected", message) { }
    }

    /// <summary>The broker refused the name, the password or the topic.</summary>
    public sealed class NotAuthorizedException : LinkException
    {
        internal NotAuthorizedException(string message) : base("not_authorized", message) { }
    }

    /// <summary>Another process has the name.</summary>
    public sealed class NameTakenException : LinkException
    {
        internal NameTakenException(string message) : base("name_taken", message) { }
    }

    /// <summary>The message is above the broker's Maximum Packet Size; nothing was sent.</summary>
    public sealed class MessageTooLargeException : LinkException
    {
        internal MessageTooLargeException(string message) : base("message_too_large", message) { }
    }

    /// <summary>A bag, video, folder or camera can't be read.</summary>
    public class SourceErrorException : MqinferException
    {
        internal SourceErrorException(string message) : base("source_error", message) { }

        internal SourceErrorException(string code, string message) : base(code, message) { }
    }

    /// <summary>One frame can't be decoded.</summary>
    public sealed class BadImageException : SourceErrorException
    {
        internal BadImageException(string message) : base("bad_image", message) { }
    }

    /// <summary>An option or a URL is wrong.</summary>
    public sealed class ConfigException : MqinferException
    {
        internal ConfigException(string message) : base("config_error", message) { }
    }

    /// <summary>Something that the call needs is not installed where it ran.</summary>
    public sealed class MissingExtraException : MqinferException
    {
        internal MissingExtraException(string message) : base("missing_extra", message) { }
    }
}

/** The errors of this package: one class for each code of docs/reference/protocol.md, section 7, in the tree of mqinfer's own. */

/** Root of the tree. On its own it means a defect of this package or of the machine. */
export class MqinferError extends Error {
  /** Wire code of the class; `error.code` of a reply. */
  static readonly code: string = "internal";

  /** The code of the class: what to compare, since classes may be renamed when a page is built. */
  readonly code: string;

  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.code = (this.constructor as typeof MqinferError).code;
    this.name = `MqinferError [${this.code}]`;
  }
}

/** The message can't be used as it is; sending it again does not help. */
export class InvalidRequest extends MqinferError {
  static override readonly code: string = "invalid_request";
}

/** The payload is not a message of this protocol: magic, header length, MessagePack or JSON. */
export class BadEnvelope extends InvalidRequest {
  static override readonly code = "bad_envelope";
}

/** A tensor's name, datatype, shape or size is wrong. */
export class BadTensor extends InvalidRequest {
  static override readonly code = "bad_tensor";
}

/** A codec is unknown, can't carry the array, or its bytes are not those of the declared array. */
export class BadEncoding extends InvalidRequest {
  static override readonly code = "bad_encoding";
}

/** A name or a topic breaks the naming rules. */
export class BadTopic extends InvalidRequest {
  static override readonly code = "bad_topic";
}

/** Something is larger than a stated limit; noticed before memory is taken for it. */
export class LimitExceeded extends InvalidRequest {
  static override readonly code = "limit_exceeded";
}

/** There is no such model or version. */
export class ModelNotFound extends MqinferError {
  static override readonly code = "model_not_found";
}

/** The model raised while it ran. */
export class ModelFailed extends MqinferError {
  static override readonly code: string = "model_failed";
}

/** Two workers crashed while they had the request. */
export class Poison extends ModelFailed {
  static override readonly code = "poison";
}

/** A model file is missing, truncated or of an unknown format. */
export class ModelNotLoadable extends MqinferError {
  static override readonly code = "model_not_loadable";
}

/** There is no result, and the request is not to blame: another one may succeed. */
export class Unanswered extends MqinferError {
  static override readonly code: string = "unanswered";
}

/** The deadline passed before there was a result. */
export class Expired extends Unanswered {
  static override readonly code = "expired";
}

/** A worker, or this client, had no room for the request. */
export class Rejected extends Unanswered {
  static override readonly code = "rejected";
}

/** A payload differs from its checksum: bits flipped on the way. */
export class Corrupted extends Unanswered {
  static override readonly code = "corrupted";
}

/** The caller cancelled the request, or closed the client. */
export class Cancelled extends Unanswered {
  static override readonly code = "cancelled";
}

/** A newer frame of the same stream took this one's place. */
export class Superseded extends Unanswered {
  static override readonly code = "superseded";
}

/** Nobody subscribes to the model's topic. */
export class NoWorker extends Unanswered {
  static override readonly code = "no_worker";
}

/** The worker does not have the frames that a picture is encoded against. */
export class ReferenceLost extends Unanswered {
  static override readonly code = "reference_lost";
}

/** The link to the broker failed. */
export class LinkError extends MqinferError {
  static override readonly code: string = "link_error";
}

/** No broker answers at the address. */
export class BrokerUnreachable extends LinkError {
  static override readonly code = "broker_unreachable";
}

/** The link is down at the moment; nothing was sent. */
export class NotConnected extends LinkError {
  static override readonly code = "not_connected";
}

/** The broker refused the name, the password or the topic. */
export class NotAuthorized extends LinkError {
  static override readonly code = "not_authorized";
}

/** Another process has the name. */
export class NameTaken extends LinkError {
  static override readonly code = "name_taken";
}

/** The message is above the broker's Maximum Packet Size; nothing was sent. */
export class MessageTooLarge extends LinkError {
  static override readonly code = "message_too_large";
}

/** A bag, video, folder or camera can't be read. */
export class SourceError extends MqinferError {
  static override readonly code: string = "source_error";
}

/** One frame can't be decoded. */
export class BadImage extends SourceError {
  static override readonly code = "bad_image";
}

/** An option or a URL is wrong. */
export class ConfigError extends MqinferError {
  static override readonly code = "config_error";
}

/** Something that the call needs is not there, such as a decoder of pictures in node. */
export class MissingExtra extends MqinferError {
  static override readonly code = "missing_extra";
}

const CLASSES: ReadonlyMap<string, typeof MqinferError> = new Map(
  [
    MqinferError,
    InvalidRequest,
    BadEnvelope,
    BadTensor,
    BadEncoding,
    BadTopic,
    LimitExceeded,
    ModelNotFound,
    ModelFailed,
    Poison,
    ModelNotLoadable,
    Unanswered,
    Expired,
    Rejected,
    Corrupted,
    Cancelled,
    Superseded,
    NoWorker,
    ReferenceLost,
    LinkError,
    BrokerUnreachable,
    NotConnected,
    NotAuthorized,
    NameTaken,
    MessageTooLarge,
    SourceError,
    BadImage,
    ConfigError,
    MissingExtra,
  ].map((kind) => [kind.code, kind]),
);

/**
 * Return the error for the `error` of a reply.
 *
 * @param code - Wire code; an unknown one, of a newer peer, makes the root class.
 * @param message - The peer's message: text of a stranger.
 */
export function errorFromCode(code: string, message: string): MqinferError {
  const kind = CLASSES.get(code) ?? MqinferError;
  return new kind(message);
}

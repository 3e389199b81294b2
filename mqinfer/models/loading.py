"""Load a model version from disk into a back end, and make the card that describes it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from msgspec import structs

from mqinfer.logs import log_once
from mqinfer.models.adapters import reshaped, with_filled_batches
from mqinfer.models.backend import Backend, SignatureBackend
from mqinfer.models.backends.onnx_file import check_external_data
from mqinfer.models.card import image_contract, make_card, max_batch_size
from mqinfer.models.engines import choose_loader, platform_of
from mqinfer.models.ensemble.ensemble import compose
from mqinfer.models.load_options import LoadOptions, RequestedDevice, TensorOptions, default_threads, parse_device
from mqinfer.models.postprocess.stage import check_labels, with_postprocessing
from mqinfer.models.repository import ModelVersion
from mqinfer.models.repository.config import InstanceKind, ModelConfig, TensorConfig, WarmUp
from mqinfer.models.repository.config_files import CONFIG_FILE, CONFIG_FILES
from mqinfer.models.repository.files import check_model_files
from mqinfer.models.row_trial import why_rows_stay_alone
from mqinfer.protocol.card import ModelCard, Signature, with_parameters
from mqinfer.protocol.datatypes import array_bytes
from mqinfer.protocol.errors import ConfigError, LimitExceeded, ModelNotLoadable, MqinferError
from mqinfer.protocol.limits import DEFAULT_LIMITS

log = logging.getLogger("mqinfer.models")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory with its card and its configuration.

    Attributes:
        backend: Runs it.
        card: Describes it.
        config: Its configuration.
        signatures: Its further signatures by name, each with a back end and a card of its own.
    """

    backend: Backend
    card: ModelCard
    config: ModelConfig
    signatures: Mapping[str, LoadedModel] = field(default_factory=dict)


FindRemote = Callable[[str, int | None, Collection[str]], LoadedModel]
"""Returns a model that other workers serve, by name and version, for a step of an ensemble of these local models."""


def load_model(
    model: ModelVersion,
    *,
    device: str = "auto",
    versions: Sequence[int] = (),
    find_remote: FindRemote | None = None,
) -> LoadedModel:
    """Load one version of a model.

    Args:
        model: From `Repository.models()`.
        device: `cpu`, `cuda`, `cuda:N`, or `auto`: the device of `instance_group`, by default a GPU if the engine has
            one. Where a requested GPU is missing, that is logged and the CPU is used; the card has the real device.
        versions: All versions of the model that are served, for the card.
        find_remote: Returns the models of an ensemble that other workers run; None where none can be asked.

    Raises:
        ModelNotLoadable: The message has the path, what was found, and what to do.
        ConfigError: `model.toml` or `device` is wrong.
        MissingExtra: The engine is not installed.
    """
    try:
        loaded = _load(model, device, versions, find_remote)
    except ConfigError as error:
        raise ConfigError(f"model {model.name} version {model.version}: {error}") from error
    except OSError as error:  # a file was removed meanwhile, say
        raise ModelNotLoadable(f"{model.path}: can't be read: {error}; copy the model again") from error
    if unservable := _unservable(loaded.card):
        loaded.backend.close()
        raise ModelNotLoadable(f"{model.path}: {unservable}")
    return loaded


def _unservable(card: ModelCard) -> str:
    """Return why no request can succeed, with more in one row of an input than a request may have; empty otherwise."""
    limits = DEFAULT_LIMITS
    for spec in card.inputs:
        row = [1 if size == -1 else size for size in spec.shape]
        try:
            array_bytes(spec.name, spec.datatype, row, limits)
        except LimitExceeded:
            return (
                f"input {spec.name!r} has the shape {list(spec.shape)} of {spec.datatype}, and no request may have "
                f"more than {limits.dimensions} axes or {limits.tensor_bytes} bytes; if the model should have another "
                "shape, the file is damaged: copy or export it again"
            )
    return ""


def _load(model: ModelVersion, device: str, versions: Sequence[int], find_remote: FindRemote | None) -> LoadedModel:
    """Load a version; what is wrong in its configuration is said of the file that it has."""
    try:
        return _load_parts(model, device, versions, find_remote)
    except ConfigError as error:
        words = str(error)
        if not words.startswith(CONFIG_FILE):
            raise
        raise ConfigError(f"{_configured_in(model)}{words.removeprefix(CONFIG_FILE)}") from error


def _configured_in(model: ModelVersion) -> str:
    """Return the configuration files that a version has, or the one that it may have."""
    own = model.folder / CONFIG_FILE
    files = [name for name in CONFIG_FILES if (model.folder.parent / name).exists()]
    files += [f"{model.folder.name}/{own.name}"] if own.exists() else []
    return ", ".join(files) or CONFIG_FILE


def _load_parts(
    model: ModelVersion, device: str, versions: Sequence[int], find_remote: FindRemote | None
) -> LoadedModel:
    if model.config.ensemble_scheduling:
        return _load_ensemble(model, device, versions, find_remote)
    check_model_files(model.path)
    if platform_of(model.path, model.config.backend) == "onnx_onnxv1" and model.path.suffix.lower() != ".ort":
        check_external_data(model.path)
    load = choose_loader(model.path, model.config.backend)
    try:
        backend = load(model.path, load_options(model.config, device))
    except MqinferError:
        raise
    except Exception as error:  # an engine may raise anything on a file that it wasn't made for
        raise ModelNotLoadable(f"{model.path}: can't be loaded: {type(error).__name__}: {error}") from error
    _warn_of_accelerators(model, backend.engine)
    with ExitStack() as unless_complete:
        unless_complete.callback(backend.close)
        network = reshaped(with_filled_batches(backend, model.config.max_batch_size), model.config)
        finished = _finished(network, model.config)
        card = _with_tried_rows(network, make_card(model, finished, versions), model.config)
        signatures = _further_signatures(backend, card, model.config)
        card = with_parameters(card, signatures=_all_signatures(backend, card, signatures))
        loaded = LoadedModel(finished, card, model.config, signatures)
        unless_complete.pop_all()
    return loaded


def _further_signatures(backend: Backend, card: ModelCard, config: ModelConfig) -> dict[str, LoadedModel]:
    """Return the signatures that requests may ask for beside the one that the model serves by default."""
    found: dict[str, LoadedModel] = {}
    for other in backend.others if isinstance(backend, SignatureBackend) else ():
        if other.signature is not None:
            rows = min(card.max_batch_size, max_batch_size(other.inputs, other.outputs))
            most = card.max_batch_size if rows > 1 else rows
            signature = structs.replace(other.signature, max_batch_size=most)
            own = with_parameters(
                structs.replace(card, inputs=other.inputs, outputs=other.outputs),
                max_batch_size=most,
                image=None,
                classes=(),
            )
            own = _with_tried_rows(other, own, config)
            signature = structs.replace(signature, max_batch_size=own.max_batch_size)
            found[signature.name] = LoadedModel(other, with_parameters(own, signatures=(signature,)), config)
    return found


def _with_tried_rows(network: Backend, card: ModelCard, config: ModelConfig) -> ModelCard:
    """Return the card without a batch axis, if it was discovered and its rows have not proven to be independent."""
    if config.max_batch_size is not None or card.max_batch_size < 2:
        return card
    reason = why_rows_stay_alone(network, card, may_run=config.model_warmup != WarmUp(0))
    if not reason:
        return card
    log_once(
        log,
        logging.WARNING,
        "model %s version %s: requests do not share runs: %s; if its rows are independent, set max_batch_size in "
        "model.toml",
        card.name,
        card.version,
        reason,
    )
    return with_parameters(card, max_batch_size=0)


def _all_signatures(backend: Backend, card: ModelCard, further: Mapping[str, LoadedModel]) -> tuple[Signature, ...]:
    if not isinstance(backend, SignatureBackend) or backend.signature is None:
        return ()
    own = structs.replace(backend.signature, max_batch_size=card.max_batch_size)
    return (own, *(signature for model in further.values() for signature in model.card.parameters.signatures))


def _warn_of_accelerators(model: ModelVersion, engine: str) -> None:
    """Log requested accelerators of an engine that has none; the ONNX Runtime back end logs those that it lacks."""
    names = model.config.optimization.names
    if names and not engine.startswith("onnxruntime"):
        log_once(
            log,
            logging.WARNING,
            "model %s: %s has no execution accelerators; left out: %s",
            model.name,
            engine,
            ", ".join(names),
        )


def _load_ensemble(
    model: ModelVersion, device: str, versions: Sequence[int], find_remote: FindRemote | None
) -> LoadedModel:
    members: dict[tuple[str, int], LoadedModel] = {}
    with ExitStack() as unless_complete:
        for part in model.parts:
            key = part.name, part.version
            if key in members:
                continue
            if not part.is_remote:
                members[key] = _load(part, device, (), find_remote)
            elif find_remote is not None:
                members[key] = find_remote(part.name, part.version or None, model.local_names)
            else:
                raise ModelNotLoadable(f"{model.name}: only a worker can ask others to run its step {part.name!r}")
            unless_complete.callback(members[key].backend.close)
        steps = [members[part.name, part.version] for part in model.parts]
        backend, config = compose(model.config, steps, load_options(model.config, device))
        finished = _finished(backend, config)
        card = make_card(replace(model, config=config), finished, versions)
        asked = model.remote_parts.union(*(step.card.parameters.remote_steps for step in steps))
        loaded = LoadedModel(finished, with_parameters(card, remote_steps=tuple(sorted(asked))), config)
        unless_complete.pop_all()
    return loaded


def _finished(network: Backend, config: ModelConfig) -> Backend:
    """Check the labels against the network's outputs, and put the configured post-processing behind it."""
    check_labels(network.outputs, config)
    return with_postprocessing(network, config, image_contract(network.inputs, config.pictures.image))


def load_options(config: ModelConfig, device: str = "auto") -> LoadOptions:
    """Return the options to load a model with, from its configuration.

    Raises:
        ConfigError: `device`, `parameters.signature` or `parameters.intra_op_thread_count` is wrong.
    """
    threads = config.parameters.get("intra_op_thread_count", 0)
    if not str(threads).isdecimal():  # Triton's parameters are strings
        raise ConfigError(f"model.toml: parameters.intra_op_thread_count = {threads!r}: expected a whole number")
    signature = config.parameters.get("signature")
    batched = bool(config.max_batch_size)
    return LoadOptions(
        device=_requested_device(config, device),
        threads=int(threads) or default_threads(),
        signature=None if signature is None else str(signature),
        inputs=_configured(config.input, batched=batched),
        outputs=_configured(config.output, batched=batched),
        parameters=config.parameters,
        accelerators=config.optimization,
    )


def _requested_device(config: ModelConfig, device: str) -> RequestedDevice:
    target = config.parameters.get("TARGET_DEVICE")  # of Triton's OpenVINO back end, which allows KIND_CPU beside it
    if device == "auto" and target is not None:
        return parse_device(str(target))
    group = config.instance_group[0]
    if device != "auto" or group.kind not in {InstanceKind.CPU, InstanceKind.GPU}:
        return parse_device(device)
    return RequestedDevice(gpu=group.kind is InstanceKind.GPU, index=group.gpus[0] if group.gpus else 0)


def _configured(tensors: Sequence[TensorConfig], *, batched: bool) -> dict[str, TensorOptions]:
    batch_axis = (-1,) if batched else ()
    return {
        tensor.name: TensorOptions(None if (dims := tensor.model_dims) is None else batch_axis + dims, tensor.data_type)
        for tensor in tensors
    }

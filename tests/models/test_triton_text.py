"""`config.pbtxt`: read as it is, by the same checks as `model.toml`, with one warning of the keys without effect."""

import contextlib
import logging
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqinfer.errors import ConfigError, MissingExtra
from mqinfer.models.repository.config import (
    Accelerator,
    Accelerators,
    DynamicBatching,
    EnsembleStep,
    InstanceGroup,
    InstanceKind,
    ModelConfig,
    PictureConfig,
    QueuePolicy,
    TensorConfig,
    TimeoutAction,
    VersionPolicy,
    WarmUp,
    WarmUpInput,
    WarmUpSample,
)
from mqinfer.models.repository.config_files import combine, read_layer
from mqinfer.models.repository.tables import Place
from mqinfer.models.repository.triton_text import read_triton_text
from mqinfer.protocol.card import ColourOrder, ImageContract, Layout
from mqinfer.protocol.datatypes import Datatype

EVERYTHING = """
# A comment, as Triton's own files begin with one.
name: "road"
platform: "onnxruntime_onnx"
max_batch_size : 8
input [
  { name: "x" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, -1, 224 ] reshape { shape: [ 1, 3, -1, 224 ] } },
  { name: "hint" data_type: TYPE_STRING dims: 1 reshape: { shape: [] } }
]
output { name: "y", data_type: TYPE_FP32, dims: [ 1000 ], label_filename: "labels.txt" }
output < name: 'z' dims: [ ] >
version_policy: { specific { versions: [ 3, 5 ] } }
instance_group [ { name: "a" count: 2 kind: KIND_GPU gpus: [ 0, 1 ] }, { kind: KIND_CPU } ]
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 0x64
  preserve_ordering: true
  priority_levels: 2
  default_priority_level: 2
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5000 }
  priority_queue_policy { key: 1 value { max_queue_size: 16 } }
  priority_queue_policy: [ { key: 2 value: { timeout_action: REJECT } } ]
}
optimization {
  execution_accelerators {
    gpu_execution_accelerator : [ {
      name : "tensorrt"
      parameters { key: "precision_mode" value: "FP16" }
      parameters { key: "max_workspace_size_bytes" value: "1073741824" } } ]
    cpu_execution_accelerator { name: "openvino" }
  }
}
parameters { key: "intra_op_thread_count" value: { string_value: "2" } }
parameters: { key: "empty" value { string_value: "" } }
parameters [ { key: "split" value { string_value: "a" 'b' } } ]
model_warmup [ {
  name: "zeros"
  batch_size: 4
  inputs { key: "x" value: { data_type: TYPE_FP32 dims: [ 3, 224, 224 ] zero_data: true } }
  inputs { key: "hint" value: { data_type: TYPE_STRING dims: 1 input_data_file: "hint" } }
} ]
default_model_filename: "net.onnx"
"""


def read(tmp_path: Path, text: str) -> ModelConfig:
    """Write and read a `config.pbtxt`."""
    path = tmp_path / "config.pbtxt"
    path.write_text(text)
    return combine([read_layer(path)])


def test_every_key_arrives(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each key ends in its field, converted, in every way to write it; there is no warning."""
    batching = DynamicBatching(
        (4, 8),
        100,
        preserve_ordering=True,
        priority_levels=2,
        default_priority_level=2,
        default_queue_policy=QueuePolicy(TimeoutAction.DELAY, 5000),
        priority_queue_policy={1: QueuePolicy(max_queue_size=16), 2: QueuePolicy()},
    )
    tensorrt = Accelerator("tensorrt", {"precision_mode": "FP16", "max_workspace_size_bytes": "1073741824"})
    warm_up = {
        "x": WarmUpInput(Datatype.FP32, (3, 224, 224)),
        "hint": WarmUpInput(Datatype.BYTES, (1,), input_data_file=Path("hint")),
    }
    assert read(tmp_path, EVERYTHING) == ModelConfig(
        name="road",
        backend="onnxruntime_onnx",
        max_batch_size=8,
        dynamic_batching=batching,
        instance_group=(InstanceGroup(2, InstanceKind.GPU, (0, 1)), InstanceGroup(1, InstanceKind.CPU)),
        version_policy=VersionPolicy(specific=(3, 5)),
        model_warmup=WarmUp(0, (WarmUpSample(warm_up, 4, name="zeros"),)),
        default_model_filename="net.onnx",
        parameters={"intra_op_thread_count": "2", "empty": "", "split": "ab"},
        input=(
            TensorConfig("x", (3, -1, 224), Datatype.FP32, (1, 3, -1, 224), Layout.NCHW),
            TensorConfig("hint", (1,), Datatype.BYTES, ()),
        ),
        output=(TensorConfig("y", (1000,), Datatype.FP32, label_filename="labels.txt"), TensorConfig("z", None)),
        optimization=Accelerators((tensorrt,), (Accelerator("openvino"),)),
        pictures=PictureConfig(ImageContract("x", None, None, ColourOrder.RGB, Layout.NCHW)),
    )
    assert caplog.records == []


def test_an_ensemble_as_triton_users_write_it(tmp_path: Path) -> None:
    """Steps with entries of their maps one by one, commas or none."""
    text = """
    platform: "ensemble"
    ensemble_scheduling {
      step [
        {
          model_name: "detect"
          model_version: -1
          input_map { key: "in:0" value: "image" }
          output_map { key: "a/Sigmoid:0" value: "scores" },
          output_map { key: "a/concat_3:0" value: "boxes" }
        },
        {
          model_name: "crop", model_version: 2,
          input_map { key: "i" value: "boxes" }, output_map { key: "o" value: "c" }
        }
      ]
    }
    """
    config = read(tmp_path, text)
    assert config.backend == "ensemble"
    assert config.ensemble_scheduling == (
        EnsembleStep("detect", -1, {"in:0": "image"}, {"a/Sigmoid:0": "scores", "a/concat_3:0": "boxes"}),
        EnsembleStep("crop", 2, {"i": "boxes"}, {"o": "c"}),
    )


def test_what_has_no_effect_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Skipped at any depth and of any form, and named in one line with a near miss."""
    text = """
    sequence_batching { control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START } ] } ] }
    max_batchsize: 3  # a slip of the pen
    instance_group [ { count: 2 rate_limiter { resources [ { name: "R" count: 1 } ] } }, { passive: true count: 3 } ]
    model_transaction_policy { decoupled: false }
    optimization { cuda { graphs: true } priority: PRIORITY_MAX }
    batch_input [ { kind: BATCH_ELEMENT_COUNT target_name: [ "a", "b" ] } ]
    input { name: "x" optional: true }
    response_cache { enable: true }
    name: "m" metric_tags [ { key: "a" value: "b" } ]
    """
    with caplog.at_level(logging.WARNING, "mqinfer.models"):
        config = read(tmp_path, text)
    inputs = (TensorConfig("x"),)
    assert config == ModelConfig(name="m", input=inputs, instance_group=(InstanceGroup(2), InstanceGroup(3)))
    (record,) = caplog.records
    assert sorted(record.getMessage().split("without effect here: ")[1].split(", ")) == [
        "batch_input",
        "input.optional",
        "instance_group.passive",
        "instance_group.rate_limiter",
        "max_batchsize (did you mean max_batch_size?)",
        "metric_tags",
        "model_transaction_policy",
        "optimization.cuda",
        "optimization.priority",
        "response_cache",
        "sequence_batching",
    ]


def test_zero_is_not_the_same_as_absent(tmp_path: Path) -> None:
    """`max_batch_size: 0` means no batch axis; without the key it is discovered."""
    assert read(tmp_path, "max_batch_size: 0").max_batch_size == 0
    assert read(tmp_path, 'name: "m"').max_batch_size is None


def test_without_tritonclient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package and the command that installs it."""
    monkeypatch.setitem(sys.modules, "tritonclient.grpc", None)
    with pytest.raises(MissingExtra, match=r"tritonclient\[grpc\] is not installed; run: .*pip install .*\[worker\]"):
        read(tmp_path, 'name: "m"')


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("max_batch_size: 'a'", ["1:17", "max_batch_size"]),
        ('name: "m"\nfoo { }\nmax_batch_size: 1.5', ["3:17"]),
        ('name: "a" name: "b"', ["should not have multiple", "name"]),
        ('input [ { name: "x" data_type: TYPE_FP33 } ]', ["TYPE_FP33"]),
        ('input [ { name: "x" data_type: TYPE_BF16 } ]', ["input[0].data_type", "BYTES"]),
        ("max_batch_size: 1\nfoo [ { a: 1 } ]", ["2:5", "not in the text format"]),
        ("input { name { } }", ["not in the text format"]),
        ('input [ { name: "x" }', ["not in the text format"]),
        ('} name: "m"', ["not in the text format"]),
        ('name: "m', ["not in the text format"]),
        ("max_batch_size: -1", ["max_batch_size = -1", "at least 0"]),
        ("version_policy { }", ["exactly one of"]),
        ("a" * (1 << 20) + "bc", ["more than 262144 bytes"]),
    ],
)
def test_errors_name_file_and_place(tmp_path: Path, text: str, parts: list[str]) -> None:
    """Protobuf's own place in the file is kept, also behind what was skipped."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    for part in [str(tmp_path / "config.pbtxt"), *parts]:
        assert part in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """A binary file in the place of the configuration is named; so is nesting without end."""
    path = tmp_path / "config.pbtxt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="can't be read"):
        read_layer(path)
    path.write_text("input { " * 5000)
    with pytest.raises(ConfigError, match="not in the text format"):
        read_layer(path)


TOKENS = ["name", "input", "foo", "dims", *"{}<>[]:,#\n", "3", "-1", '"a"', "TYPE_FP32"]


@settings(deadline=None)
@given(tokens=st.lists(st.sampled_from(TOKENS), max_size=30), tail=st.text(st.characters(codec="utf-8"), max_size=20))
def test_no_text_breaks_it(tmp_path_factory: pytest.TempPathFactory, tokens: list[str], tail: str) -> None:
    """Anything is either read or refused with a ConfigError."""
    path = tmp_path_factory.getbasetemp() / "any.pbtxt"
    path.write_text(" ".join(tokens) + tail)
    with contextlib.suppress(ConfigError):
        assert isinstance(read_triton_text(Place(path)), dict)

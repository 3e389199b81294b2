"""`model.toml`: Triton's names, and errors that explain what to write instead."""

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.errors import ConfigError
from mqinfer.models.repository.config import (
    DynamicBatching,
    InstanceGroup,
    InstanceKind,
    ModelConfig,
    PictureConfig,
    TensorConfig,
    VersionPolicy,
    WarmUp,
)
from mqinfer.models.repository.config_files import combine, read_layer
from mqinfer.protocol.card import ClassInfo, ColourOrder, ImageContract, Layout, NotFinite, PointsContract
from mqinfer.protocol.datatypes import Datatype

EVERYTHING = """
name = "road"
platform = "onnx_onnxv1"
max_batch_size = 4
default_model_filename = "net.onnx"

[dynamic_batching]
preferred_batch_size = [2, 4]
max_queue_delay_microseconds = 2000

[[instance_group]]
count = 2
kind = "KIND_GPU"
gpus = [0, 1]

[version_policy]
specific = { versions = [3, 5] }

[[model_warmup]]
count = 3

[parameters]
signature = "predict"

[[input]]
name = "x"
dims = [-1, 3]
data_type = "TYPE_STRING"

[image]
input = "x"
width = 968
height = 608
colour = "bgr"
layout = "NCHW"
scale = 0.00392156862745098
mean = [0.1, 0.2, 0.3]
std = 0.5

[[points]]
input = "p"
fields = ["x", "intensity"]
count = 2000
padding = -1
mask = "m"
not_finite = "pad"
fields_first = true

[[classes]]
name = "road"
colour = [128, 64, 128]
"""


def read(tmp_path: Path, text: str) -> ModelConfig:
    """Write and read a `model.toml`."""
    path = tmp_path / "model.toml"
    path.write_text(text)
    return combine([read_layer(path)])


def test_every_key_arrives(tmp_path: Path) -> None:
    """Each key ends in its field, converted."""
    assert read(tmp_path, EVERYTHING) == ModelConfig(
        name="road",
        backend="onnx_onnxv1",
        max_batch_size=4,
        default_model_filename="net.onnx",
        dynamic_batching=DynamicBatching((2, 4), 2000),
        instance_group=(InstanceGroup(2, InstanceKind.GPU, (0, 1)),),
        version_policy=VersionPolicy(specific=(3, 5)),
        model_warmup=WarmUp(3),
        parameters={"signature": "predict"},
        input=(TensorConfig("x", (-1, 3), Datatype.BYTES),),
        pictures=PictureConfig(
            image=ImageContract("x", 968, 608, ColourOrder.BGR, Layout.NCHW, 1 / 255, (0.1, 0.2, 0.3), (0.5,)),
            points=(PointsContract("p", ("x", "intensity"), 2000, -1.0, "m", NotFinite.PAD, fields_first=True),),
            classes=(ClassInfo("road", (128, 64, 128)),),
        ),
    )


def test_no_file_means_read_it_from_the_model(tmp_path: Path) -> None:
    """Without a file, and with an empty one, every field keeps its default."""
    assert combine([read_layer(tmp_path / "model.toml")]) == ModelConfig() == read(tmp_path, "")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("max_batchsize = 3", ["max_batchsize", "did you mean 'max_batch_size'?"]),
        ("colour = 1\nfoo = 2", ["'colour'", "'foo'", "keys here"]),
        ("max_batch_size = -1", ["max_batch_size = -1", "at least 0"]),
        ("max_batch_size = true", ["max_batch_size = True", "whole number"]),
        ('max_batch_size = "8"', ["max_batch_size = '8'"]),
        ("[dynamic_batching]\npreferred_batch_size = [2, 0]", ["dynamic_batching.preferred_batch_size[1] = 0"]),
        ("dynamic_batching = 3", ["dynamic_batching = 3", "a table with the keys preferred_batch_size"]),
        ("[[instance_group]]\nkind = 'KIND_TPU'", ["kind = 'KIND_TPU'", "KIND_CPU, KIND_GPU, KIND_AUTO, KIND_MODEL"]),
        ("instance_group = []", ["instance_group = []", "a table, or a list of them"]),
        ("[version_policy]\nlatest={}\nall={}", ["version_policy", "exactly one of"]),
        ("[version_policy]", ["exactly one of"]),
        ("[version_policy]\nlatest={num_versions=0}", ["version_policy.latest.num_versions = 0"]),
        ("[image]\ncolor = 'rgb'", ["'color', did you mean 'colour'?"]),
        ("[image]\nlayout = 'NWHC'", ["image.layout = 'NWHC'", "NHWC, NCHW"]),
        ("[image]\nmean = [1, 2]", ["image.mean", "one number or 3"]),
        ("[image]\nstd = 0", ["image.std", "divided"]),
        ("[[image]]\ninput = 'l'\n[[image]]\ninput = 'r'\nstd = 0", ["image.std", "divided"]),
        ("[[image]]\nscale = 'x'", ["image[0].scale", "a finite number"]),
        ("image = []", ["image = []", "a table, or a list of them"]),
        ("[image]\nfill = 0", ["image.fill = 0", 'resize = "letterbox"']),
        ('[image]\nresize = "letterboks"', ["image.resize", "one of stretch, letterbox, crop"]),
        ("[image]\nmean = []", ["image.mean = []"]),
        ("[points]\ninput = 'p'", ["points", "'fields' is missing"]),
        ("[points]\ninput = 'p'\nfields = 'x'", ["points.fields = 'x'", "a list"]),
        ("[[points]]\ninput = 'p'\nfields = ['x']\ncount = 0", ["points[0].count = 0", "at least 1"]),
        ("[points]\ninput = 'p'\nfields = ['x']\nnot_finite = 'nan'", ["points.not_finite", "one of drop, pad, keep"]),
        ("[[classes]]\nname = 'a'\ncolour = [1, 2]", ["classes[0].colour = [1, 2]", "three numbers"]),
        ("[[classes]]\ncolour = [1, 2, 3]", ["classes[0]", "'name' is missing"]),
        ("dynamic_batching = {preserve_ordering = 1}", ["preserve_ordering = 1", "true or false"]),
        ("[dynamic_batching.priority_queue_policy.high]", ["priority_queue_policy = 'high'", "at least 1"]),
        ("[[ensemble_scheduling.step]]\nmodel_name = 'a'", ["step[0]", "'input_map' is missing"]),
        ("[parameters]\na = [1]", ["parameters.a = [1]"]),
        ("parameters = 1", ["parameters = 1", "table"]),
        ("max_batch_size = ", ["not valid TOML"]),
        ("max_batch_size = " + "1" * 5000, ["not valid TOML"]),
        ("parameters.a = " + "[" * 5000, ["not valid TOML"]),
        ("name." + "a." * 3000 + "a = 1", ["tables are nested more than 100 deep"]),
        ("[image]\nscale = " + "1" * 400, ["image.scale", "a finite number"]),
        ("[image]\nstd = [nan, 1, inf]", ["image.std = nan", "a finite number"]),
        (f"[dynamic_batching.priority_queue_policy.{'1' * 5000}]", ["priority_queue_policy", "at least 1"]),
    ],
)
def test_errors_name_file_key_value_and_what_is_allowed(tmp_path: Path, text: str, parts: list[str]) -> None:
    """A reader of the message knows what to change, and where."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    for part in [str(tmp_path / "model.toml"), *parts]:
        assert part in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """A binary file in the place of the configuration is named."""
    (tmp_path / "model.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="can't be read"):
        read_layer(tmp_path / "model.toml")


def test_triton_keys_without_effect_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A configuration that Triton accepts loads; the log has the keys without effect."""
    with caplog.at_level(logging.WARNING, "mqinfer.models"):
        read(
            tmp_path,
            "[sequence_batching]\n[dynamic_batching.default_queue_policy]\nallow_timeout_override = true\n"
            "[optimization.cuda]",
        )
    queued = "dynamic_batching.default_queue_policy.allow_timeout_override"
    assert f"without effect here: sequence_batching, {queued}, optimization.cuda" in caplog.text


@given(st.sets(st.integers(0, 50), min_size=1), st.integers(1, 60))
def test_latest_keeps_the_highest_numbers(versions: set[int], latest: int) -> None:
    """The policy `latest` selects the n highest, ascending."""
    selected = VersionPolicy(latest=latest).select(tuple(versions))
    assert list(selected) == sorted(versions)[-latest:]


def test_all_and_specific() -> None:
    """`all` selects everything, `specific` the existing ones of those listed."""
    assert VersionPolicy(all=True).select((3, 1)) == (1, 3)
    assert VersionPolicy(specific=(3, 9)).select((1, 3)) == (3,)

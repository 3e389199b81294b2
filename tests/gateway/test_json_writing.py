"""JSON of replies: in parts it is what it is in one piece, and without memory for it there is an error and no crash."""

from __future__ import annotations

import subprocess
import sys

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mqinfer.gateway import http

NUMBERS = arrays.arrays(
    st.sampled_from(["f4", "f8", "u1", "i8", "?"]), arrays.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)
)
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
CONTENT = st.recursive(
    PLAIN | NUMBERS, lambda each: st.lists(each, max_size=6) | st.dictionaries(st.text(), each, max_size=4)
)
STARVED = """
import resource
import numpy as np
from mqinfer.gateway.http import dump_json
large = np.zeros(64 << 20, np.uint8)
resource.setrlimit(resource.RLIMIT_DATA, (300 << 20,) * 2)
try:
    dump_json({"data": large})
except MemoryError:
    print("no memory")
"""


@given(content=CONTENT)
def test_parts_make_the_whole(content: object) -> None:
    """However small the parts are, strings, numbers and arrays of any shape come out the same."""
    whole = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http, "_PART_BYTES", 8)
        patch.setattr(http, "_PART_ITEMS", 4)
        assert http.dump_json(content) == whole


def test_without_memory_it_is_an_error() -> None:
    """A reply that memory has no room for ends with an error; the process goes on."""
    run = subprocess.run([sys.executable, "-c", STARVED], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "no memory\n"), run.stderr

"""files: a checkpoint that is damaged anywhere, in any way, is a FileError or a checkpoint; never anything else."""

import json
import zipfile

import numpy as np
import pytest
import torch_files as made
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_files import npy, zipped

from headwise.files import FileError, open_checkpoint, write_safetensors


def safetensors(folder):
    path = folder / "made.safetensors"
    arrays = {"w": np.arange(6, dtype="f4").reshape(2, 3), "flag": np.array([True])}
    write_safetensors(path, arrays, metadata={"a": "b"}, force=True)
    return path.read_bytes()


STATE = made.state(made.tensor(), made.tensor((3, 2), (1, 3)))
FORMATS = {
    "safetensors": safetensors,
    "pt": lambda _: made.zipped(STATE),
    "bin": lambda _: made.legacy(STATE),
    "npz": lambda _: zipped(("w.npy", npy()), ("flag.npy", npy(np.array([True])))),
    "deflated.npz": lambda _: zipped(("w.npy", npy()), method=zipfile.ZIP_DEFLATED),
    "index.json": lambda _: json.dumps(
        {"metadata": {"n": [1.5, None]}, "weight_map": {"w": "part.safetensors"}}
    ).encode(),
}
CHANGES = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from(["flip", "cut", "insert", "end"]), st.binary(min_size=1, max_size=9)),
    min_size=1,
    max_size=4,
)


def damaged(data, changes):
    for place, how, new in changes:
        at = int(place * len(data))
        rest = {"flip": data[at + len(new) :], "cut": data[at + len(new) :], "insert": data[at:], "end": b""}[how]
        data = data[:at] + (b"" if how in ("cut", "end") else new) + rest
    return data


@pytest.mark.parametrize("kind", FORMATS)
def test_any_damage_is_a_file_error_or_a_checkpoint(tmp_path, kind):
    data = FORMATS[kind](tmp_path)
    (tmp_path / "part.safetensors").write_bytes(safetensors(tmp_path))
    path = tmp_path / f"a.{kind}"
    path.write_bytes(data)
    whole = {name: array.tolist() for name, array in open_checkpoint(path).items()}
    assert whole
    outcomes = set()

    @settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(CHANGES)
    def damage(changes):
        path.unlink()  # a new file each time: what was mapped before stays whole
        path.write_bytes(damaged(data, changes))
        try:
            read = open_checkpoint(path)
            for name in read:
                assert read.tensor(name)[:2] == (read[name].shape, read[name].dtype)
                read[name].tobytes()
            outcomes.add("read")
        except FileError as error:
            outcomes.add("refused" if str(error).isprintable() else str(error))

    damage()
    assert outcomes <= {"read", "refused"}
    assert "refused" in outcomes


EXTREME = st.sampled_from(
    [0, 1, 2, 3, 5, 6, (1 << 31) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 126, -1]
)
AXES = st.lists(st.tuples(EXTREME, EXTREME), max_size=4)


@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(AXES, EXTREME, st.sampled_from([made.zipped, made.legacy]))
def test_a_tensor_of_any_numbers_is_refused_when_it_is_listed_or_can_be_read(tmp_path_factory, axes, offset, contain):
    shape, strides = [tuple(numbers) for numbers in zip(*axes, strict=True)] or [(), ()]
    path = tmp_path_factory.getbasetemp() / "any.pt"
    path.unlink(missing_ok=True)
    path.write_bytes(contain(made.state(made.tensor(shape, strides, offset))))
    try:
        read = open_checkpoint(path)
    except FileError as error:
        assert str(error).isprintable()  # noqa: PT017 - whatever is wrong with it
        return
    assert read["w0"].shape == read.tensor("w0").shape == shape
    read["w0"].tobytes()

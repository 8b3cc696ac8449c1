"""files: what is written can be read again, and what could not is refused before a byte is."""

import json
import os
import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from test_files import header, raw_npy
from test_files import zipped as npz

from headwise.files import (
    FileError,
    array_names,
    check_folder,
    check_target,
    errors,
    open_checkpoint,
    read_array,
    read_arrays,
    read_bytes,
    read_text,
    write_arrays,
    write_bytes,
    write_safetensors,
    write_text,
)
from headwise.files import safetensors as ours

Q = {"q": np.ones(2)}
WRITERS = {"a.safetensors": write_safetensors, "a.npz": write_arrays}
DEEP = np.zeros((1,) * 33) if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else None
SEVEN = np.array([7], np.uint8).view(bool)

# ------------------------------------------------------------------------------------------- safetensors
MANY = {f"w{n}": np.zeros(0) for n in range(20_000)}
REFUSED = {
    "33 axes": ({"w": DEEP}, {}, r"a\.safetensors: w: expected at most 32 axes, got 33; join some by reshape$"),
    "a bool of 7": ({"w": SEVEN}, {}, r"w: expected bool values of 0 or 1, got 7"),
    "a long name": ({"w" * (1 << 20) + "w": np.ones(1)}, {}, r"strings of at most 1048576 bytes, got 1048577; save it"),
    "a name that is long as JSON": ({"\n" * 600_000: np.ones(1)}, {}, r"strings of at most 1048576 bytes, got 1200000"),
    "a long text": (Q, {"a": "b" * (1 << 20) + "b"}, r"__metadata__: expected strings of at most 1048576 bytes, got"),
    "a long key": (Q, {"b" * (1 << 20) + "b": ""}, r"strings of at most 1048576 bytes, got 1048577"),
    "a text for a larger file": (Q, {"a": "b" * 500_000}, r"objects of at most \d+ bytes, got more; save fewer or lar"),
    "many arrays of nothing": (
        MANY,
        {},
        r"a\.safetensors: expected objects of at most \d+ bytes, got more; save fewer",
    ),
    "many texts": (Q, {f"{n}": "" for n in range(20_000)}, r"expected objects of at most \d+ bytes, got more"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_safetensors_file_that_could_not_be_read_is_not_written(tmp_path, name):
    arrays, metadata, says = REFUSED[name]
    if any(array is None for array in arrays.values()):
        pytest.skip("this NumPy has no such array")
    with pytest.raises(FileError, match=says) as caught:
        write_safetensors(tmp_path / "a.safetensors", arrays, metadata=metadata)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    assert os.listdir(tmp_path) == []


def test_a_header_longer_than_any_is_read_with(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    write_safetensors(path, Q)
    length = int.from_bytes(path.read_bytes()[:8], "little")
    monkeypatch.setattr(ours, "LONGEST_HEADER", length)
    write_safetensors(path, Q, force=True)
    assert list(open_checkpoint(path)) == ["q"]
    monkeypatch.setattr(ours, "LONGEST_HEADER", length - 1)
    with pytest.raises(FileError, match=rf"expected a header of at most {length - 1} bytes, got {length}; save fewer"):
        write_safetensors(path, Q, force=True)


EXTRAS = [name for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4") if hasattr(ml_dtypes, name)]
DEEP_SHAPES = [(1,) * 32, (2,) + (1,) * 31, (0,) * 32, *((1,) * n for n in (33, 64) if DEEP is not None)]
SHAPES = arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3) | st.sampled_from(DEEP_SHAPES)
KINDS = st.one_of(
    arrays_of.floating_dtypes(endianness="?"),
    arrays_of.integer_dtypes(endianness="?"),
    arrays_of.unsigned_integer_dtypes(endianness="?"),
    arrays_of.complex_number_dtypes(),
    arrays_of.datetime64_dtypes(),
    st.sampled_from([np.dtype(getattr(ml_dtypes, name)) for name in EXTRAS]),
    st.sampled_from([np.dtype(bool), np.dtype("S2"), np.dtype([("a", "i1"), ("b", ">f4")])]),
)


def array(shape, dtype, turned, seed):
    size = int(np.prod(shape, dtype=int))
    if (dtype.kind == "V" and dtype.names is None) or dtype.name == "float8_e5m2":
        x = np.arange(size).astype(np.float32).astype(dtype).reshape(shape)
    else:
        raw = np.random.default_rng(seed).integers(0, 3, size * dtype.itemsize, np.uint8)  # bool values of 2, too
        x = raw.view(dtype).reshape(shape)
    return x.T if turned else x


TEXTS = st.tuples(st.text(max_size=5), st.sampled_from([1, 1, 1, 20_000, 300_000]))
ARRAYS = st.lists(
    st.tuples(TEXTS, st.builds(array, SHAPES, KINDS, st.booleans(), st.integers(0, 9))), min_size=1, max_size=4
)
any_of = settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def long(text):
    """A text many times over: it is made here, since a failing example is printed."""
    return text[0] * text[1]


def outcome(write, read, arrays):
    """What becomes of arrays that are written: refused in one line, or read back equal."""
    try:
        write()
    except FileError as error:
        return "refused" if str(error).isprintable() else str(error)
    return "read" if all(same(of(), arrays) for of in read) else "other arrays"


def test_whatever_is_accepted_as_safetensors_is_read_back_equal(tmp_path):
    path, outcomes = tmp_path / "a.safetensors", []

    @any_of
    @given(ARRAYS, st.lists(st.tuples(TEXTS, TEXTS), max_size=3))
    def tried(named, texts):
        arrays = {long(name): array for name, array in named}
        metadata = {long(key): long(value) for key, value in texts}

        def write():
            write_safetensors(path, arrays, metadata=metadata, force=True)

        outcomes.append(outcome(write, [lambda: open_checkpoint(path)], arrays))
        assert outcomes[-1] == "refused" or open_checkpoint(path).metadata == metadata

    tried()
    assert set(outcomes) == {"read", "refused"}
    assert min(outcomes.count("read"), outcomes.count("refused")) > 5  # both happen


def test_whatever_is_accepted_as_npz_is_read_back_equal(tmp_path):
    path, outcomes = tmp_path / "a.npz", []

    @any_of
    @given(ARRAYS)
    def tried(named):
        arrays = {long(name): array for name, array in named}
        readers = [lambda: read_arrays(path), lambda: open_checkpoint(path)]
        outcomes.append(outcome(lambda: write_arrays(path, arrays, force=True), readers, arrays))
        assert outcomes[-1] in ("read", "refused")

    tried()
    assert min(outcomes.count("read"), outcomes.count("refused")) > 5  # both happen


def same(read, arrays):
    """Whether names, shapes, types and bytes are equal, in whatever order the bytes of a number are."""
    facts = [{name: (x.shape, native(x).dtype, native(x).tobytes()) for name, x in of.items()} for of in (read, arrays)]
    return facts[0] == facts[1]


def native(x):
    return x.astype(x.dtype.newbyteorder("="))


# ------------------------------------------------------------------------------------------- npz
@pytest.mark.parametrize("name", EXTRAS)
def test_types_that_npz_files_do_not_keep_are_refused_by_name(tmp_path, name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    for array in (np.ones(2, dtype), np.zeros(2, [("a", "f4"), ("b", dtype)])):
        with pytest.raises(
            FileError, match=rf"a\.npz: w: expected a type that .npz files keep, got dtype .*{name}.*"
        ) as e:
            write_arrays(tmp_path / "a.npz", {"w": array})
        assert "write_safetensors keeps bfloat16, float8_e4m3fn and float8_e5m2; or save it as float32" in str(e.value)
    assert os.listdir(tmp_path) == []


LONG = np.zeros(1, [(f"field{n}", "f8") for n in range(200)])
NOT_NPZ = {
    "33 axes": ({"w": DEEP}, r"w: expected at most 32 axes, got 33; join some by reshape"),
    "a bool of 7": ({"w": SEVEN}, r"w: expected bool values of 0 or 1, got 7"),
    "a long type": ({"w": LONG}, r"w: expected a type described in 2048 bytes, got a longer one"),
    "fields beyond Latin-1": ({"w": np.zeros(1, [("注", "f8")])}, r"w: expected a type described in 2048 bytes"),
    "records of nothing": ({"w": np.zeros(2, [])}, r"w: expected a type that .npz files keep, got dtype \[\]"),
    "a long name": ({"w" * 65_532: np.ones(1)}, r"expected a name of at most 65531 bytes, got 65532"),
    "half a character": ({"\ud800": np.ones(1)}, r"\\ud800: expected a name that UTF-8 can hold"),
    "a number": ({3: np.ones(1)}, r"3: expected a plain name"),
}


@pytest.mark.parametrize("name", NOT_NPZ)
def test_an_npz_file_that_could_not_be_read_is_not_written(tmp_path, name):
    arrays, says = NOT_NPZ[name]
    if any(array is None for array in arrays.values()):
        pytest.skip("this NumPy has no such array")
    with pytest.raises(FileError, match=rf"a\.npz: .*{says}"):
        write_arrays(tmp_path / "a.npz", arrays)
    assert os.listdir(tmp_path) == []


def test_the_longest_name_of_an_npz_file(tmp_path):
    write_arrays(tmp_path / "a.npz", {"w" * 65_531: np.ones(1)})
    assert [len(name) for name in open_checkpoint(tmp_path / "a.npz")] == [65_531]


# ------------------------------------------------------------------------------------------- arguments
@pytest.mark.parametrize("file", WRITERS)
def test_what_is_no_array_is_a_type_error(tmp_path, file):
    write = WRITERS[file]
    rows = [
        ([np.ones(2)], r"{}: arrays: expected a mapping of names to arrays, got list \[.*; give a dict$"),
        (None, r"{}: arrays: expected a mapping of names to arrays, got NoneType None; give a dict$"),
        (
            {"w": [1.0, 2.0]},
            r"{}: arrays\['w'\]: expected an array, got list \[1\.0, 2\.0\]; make it one by np\.asarray$",
        ),
        ({"\x1b[2J": 3}, r"{}: arrays\['\\x1b\[2J'\]: expected an array, got int 3"),
        (
            {"w": np.ma.masked_array([1.0], [True])},
            r"{}: arrays\['w'\]: expected an array without a mask, got a masked",
        ),
        ({"a": 1, "b": "c"}, r"{}: 2 arguments do not fit\n  arrays\['a'\]: .*\n  arrays\['b'\]: expected an array"),
    ]
    for arrays, says in rows:
        with pytest.raises(TypeError, match="^" + says.format(write.__name__)):
            write(tmp_path / file, arrays)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("metadata", [["a"], "a", 3, 0, ()])
def test_metadata_that_is_no_mapping_is_a_type_error(tmp_path, metadata):
    with pytest.raises(
        TypeError, match=r"^write_safetensors: metadata: expected a mapping of str to str, got \w+ .*; gi"
    ):
        write_safetensors(tmp_path / "a.safetensors", Q, metadata=metadata)
    assert os.listdir(tmp_path) == []


def test_texts_and_bytes_are_told_apart(tmp_path):
    with pytest.raises(TypeError, match=r"^write_bytes: data: expected bytes, got str 'a'; encode it$"):
        write_bytes(tmp_path / "a.png", "a", ending=".png")
    with pytest.raises(TypeError, match=r"^write_text: text: expected str, got bytes b'a'; decode it$"):
        write_text(tmp_path / "a.md", b"a")
    with pytest.raises(FileError, match=r"a\.md: expected a text that UTF-8 can hold, got one with lone surrogates"):
        write_text(tmp_path / "a.md", "\ud800")
    assert os.listdir(tmp_path) == []


class Named:
    """What says of itself that it is a path, of bytes."""

    def __fspath__(self):
        return b"a.npz"


OF_PATHS = {
    open_checkpoint: {},
    read_arrays: {},
    array_names: {},
    read_array: {},
    read_bytes: {"most": 3},
    read_text: {},
    check_target: {},
    check_folder: {},
    write_arrays: {"arrays": Q},
    write_safetensors: {"arrays": Q},
    write_bytes: {"data": b"", "ending": ".npz"},
    write_text: {"text": ""},
}


@pytest.mark.parametrize("function", OF_PATHS)
def test_what_is_no_path(tmp_path, monkeypatch, function):
    monkeypatch.chdir(tmp_path)
    rest = OF_PATHS[function]
    for path in (None, 0, 1.5, b"a.npz", Named(), [], object):
        with pytest.raises(
            TypeError, match=rf"^{function.__name__}: path: expected a str or path-like, got .*; name a f"
        ):
            function(path, **rest)
    for path in ("a\0", "a\0.npz", "a\0.npy", "\0.safetensors"):
        with pytest.raises(FileError, match=r"\\x00.*: expected a path, got one with an embedded null character"):
            function(path, **rest)
    with pytest.raises(FileError, match=r"^\\ud800\.npz: expected a path that the system can encode, got another"):
        function("\ud800.npz", **rest)
    assert os.listdir(tmp_path) == []


# ------------------------------------------------------------------------------------------- names of others
HARMFUL = {"escape": "\x1b[2J", "bidi": "\u202e", "control": "\x07\r\n\x00\x7f\x9b", "long": "n" * 70_000}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_name_out_of_a_file_is_never_said_as_it_is(tmp_path, name):
    text, said = HARMFUL[name], []
    entry = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    headers = [
        {text: {}},
        {text: {**entry, "shape": [text]}},
        {text: {**entry, "dtype": text}},
        {text: {**entry, text: 1}},
        {text: {**entry, "shape": [2]}},
        {text: {**entry, "data_offsets": [1, 2]}},
        {"__metadata__": {text: 1}},
        {"__metadata__": {"a": text}, "w": 1},
    ]
    for said_of in headers:
        words = json.dumps(said_of).encode()
        (tmp_path / "a.safetensors").write_bytes(len(words).to_bytes(8, "little") + words + b"0")
        said.append(refusal(tmp_path / "a.safetensors"))
    for index in ({"w": text}, {text: "none.bin"}, {text: text + ".bin"}, {text: 1}, {"w": "b.safetensors"}):
        write_safetensors(tmp_path / "b.safetensors", {text.replace("\x00", "0"): np.ones(1)}, force=True)
        (tmp_path / "a.index.json").write_text(json.dumps({"weight_map": index}))
        said.append(refusal(tmp_path / "a.index.json"))
    for words in said:
        assert words.isprintable()
        assert len(words) < 1000 + 2 * len(str(tmp_path))


def test_sizes_of_thousands_of_digits_are_cut(tmp_path):
    sizes = "({},)".format(", ".join(["9" * 600] * 3))
    (tmp_path / "a.npz").write_bytes(npz(("w.npy", raw_npy(header(sizes)))))
    for read in (open_checkpoint, read_arrays):
        words = refusal(tmp_path / "a.npz", read)
        assert re.search(r"w: expected the [0-9]{20,}", words)
        assert len(words) < 1000 + len(str(tmp_path))


def test_every_error_of_a_file_is_one_line_that_no_terminal_acts_upon():
    words = str(errors.file_error("a\n" * 5000, "b\x1b[2J\u202e" * 5000, "c\x07" * 5000, "say it again"))
    assert words.isprintable()
    assert words.startswith(r"a\na\n")
    assert r"...: expected b\x1b[2J\u202eb\x1b" in words
    assert r"..., got c\x07c\x07" in words
    assert words.endswith("...; say it again")
    assert len(words) < 2000


def refusal(path, read=open_checkpoint):
    with pytest.raises(FileError, match=r": expected ") as caught:
        read(path)
    return str(caught.value)

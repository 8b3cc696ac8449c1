"""files/torch_pickle, pickles: files of PyTorch itself, read without it; what is no tensor is refused by its name."""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch_files as made
from bits import bits

from headwise.files import FileError, open_checkpoint, torch_pickle

DATA = Path(__file__).parent / "data" / "torch"  # made by tools/make_torch_files.py
TYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
NEW_TYPES = ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64")


def dtype(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


@pytest.mark.parametrize("name", ["zip.pt", "protocol4.pt", "legacy.bin"])
def test_files_of_pytorch(name):
    read = open_checkpoint(DATA / name)
    whole = np.arange(35, dtype=np.float32).reshape(5, 7)
    expected = {name: np.arange(6).reshape(2, 3).astype(dtype(name)) for name in TYPES}
    expected |= {"whole": whole, "turned": whole.T, "part": whole[1:4, 2::2]}
    expected |= {"nothing": np.empty((0, 3), "f4"), "one": np.float32(7.5), "parameter": np.arange(3, dtype="f4")}
    assert list(read) == list(expected)
    for key, array in expected.items():
        assert read.tensor(key) == (array.shape, array.dtype, str(DATA / name))
        assert bits(read[key]) == bits(np.asarray(array)), key
        assert read[key].flags.aligned
        assert not read[key].flags.writeable


def test_types_that_came_later():
    read = open_checkpoint(DATA / "new_types.pth")
    assert {key: (array.dtype, array.astype(float).tolist()) for key, array in read.items()} == {
        name: (dtype(name), [0, 1, 2, 3, 4, 5]) for name in NEW_TYPES
    }


@pytest.mark.parametrize("name", ["zip.pt", "legacy.bin", "new_types.pth"])
def test_without_ml_dtypes_its_types_are_told_and_the_others_read(name, monkeypatch):
    known = open_checkpoint(DATA / name)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    read = open_checkpoint(DATA / name)
    assert [read.tensor(key).type for key in read] == [known.tensor(key).type for key in known]
    lacking = {"bfloat16", "float8_e4m3fn", "float8_e5m2"} & {known.tensor(key).type for key in known}
    assert lacking
    for key in read:
        if (kind := known.tensor(key).type) in lacking:
            with pytest.raises(FileError, match=rf"{key}: expected the package ml_dtypes, for {kind}, got none; pip"):
                read[key]
        else:
            assert bits(read[key]) == bits(known[key])


def test_the_one_dictionary_of_tensors_is_found():
    read = open_checkpoint(DATA / "nested.pt")
    assert list(read) == ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]
    np.testing.assert_array_equal(read["in_proj_weight"], np.arange(48.0).reshape(12, 4))


def test_a_module_is_refused_by_its_name():
    with pytest.raises(
        FileError, match=r"module\.pt: expected tensors, got the global '[\w.]+\.MultiheadAttention'; it"
    ):
        open_checkpoint(DATA / "module.pt")


def test_arrays_of_a_zip_are_views_of_the_file():
    read = open_checkpoint(DATA / "zip.pt")
    assert not read["whole"].flags.owndata
    assert np.shares_memory(read["whole"], read["part"])


@pytest.mark.parametrize("contain", [made.zipped, made.legacy])
@pytest.mark.parametrize(
    ("tensor", "values"),
    [
        (made.tensor(), [[0, 1, 2], [3, 4, 5]]),
        (made.tensor((3, 2), (1, 3)), [[0, 3], [1, 4], [2, 5]]),
        (made.tensor((2, 2), (1, 1), 3), [[3, 4], [4, 5]]),  # overlaps, inside
        (made.tensor((2, 3), (0, 2), 1), [[1, 3, 5], [1, 3, 5]]),
        (made.tensor((), (), 5), 5),
        (made.tensor((0, 3), (3, 1), 6), []),
        (made.tensor((1, 2), (1 << 126, 1)), [[0, 1]]),  # a stride that is never taken
        (made.tensor((0, 3), (1 << 126, 1 << 126)), []),
    ],
)
def test_views_inside_their_storage(tmp_path, contain, tensor, values):
    six = {"values": np.arange(6, dtype="<f4").tobytes()} if contain is made.legacy else {}
    six = six or {"0": np.arange(6, dtype="<f4").tobytes()}
    (tmp_path / "a.pt").write_bytes(contain(made.state(tensor), **six))
    assert open_checkpoint(tmp_path / "a.pt")["w0"].tolist() == values


def test_texts_of_python_2_and_states_are_read(tmp_path):
    program = b"\x80\x02ccollections\nOrderedDict\n)R(U\x01w" + made.tensor() + b"u}(U\x09_metadata}ub."
    (tmp_path / "a.pt").write_bytes(made.zipped(program))
    assert list(open_checkpoint(tmp_path / "a.pt")) == ["w"]


def test_a_size_an_append_and_a_memo_that_is_written_again(tmp_path):
    size = made.tensor().replace(made.numbers((2, 3)), b"ctorch\nSize\n" + made.numbers((2, 3)) + b"\x85R")
    program = b"\x80\x02}" + made.text("w") + b"q\x00" + size + b"s" + b"]K\x01aq\x000."
    with pytest.raises(FileError, match=r"got the opcode POP"):
        write(tmp_path, program)
    program = b"\x80\x02]K\x01aq\x00}q\x00(" + made.text("w") + size + b"uh\x00."
    assert list(write(tmp_path, program)) == ["w"]


def write(folder, program):
    (folder / "a.pt").write_bytes(made.zipped(program))
    return open_checkpoint(folder / "a.pt")


def test_what_is_there_is_named_where_it_is_not_one_dictionary_of_tensors(tmp_path):
    two = b"\x80\x02}(" + made.text("ema") + made.state(made.tensor())[2:-1]
    two += made.text("model") + made.state(made.tensor())[2:-1] + b"u."
    for program, got in [
        (two, "ema, model"),
        (b"\x80\x02}(X\x05\0\0\0epochK\x03u.", "epoch"),
        (b"\x80\x02}.", "nothing"),
    ]:
        (tmp_path / "a.pt").write_bytes(made.zipped(program))
        with pytest.raises(
            FileError, match=rf"expected one dictionary of tensors among what it holds, got {got}; save"
        ):
            open_checkpoint(tmp_path / "a.pt")


@pytest.mark.parametrize("contain", [made.zipped, made.legacy])
def test_tensors_beside_the_one_dictionary_are_not_dropped(tmp_path, contain):
    inner = made.text("model") + made.state(made.tensor())[2:-1]
    loss = made.text("best_loss") + made.tensor((), ())
    for beside, refused in (
        (made.text("bias") + made.tensor(), True),
        (loss, False),
        (made.text("epoch") + b"K\x03", False),
    ):
        (tmp_path / "a.pt").write_bytes(contain(b"\x80\x02}(" + beside + inner + b"u."))
        if refused:
            with pytest.raises(FileError, match="among what it holds, and none beside it, got bias, model; save"):
                open_checkpoint(tmp_path / "a.pt")
        else:
            assert list(open_checkpoint(tmp_path / "a.pt")) == ["w0"]


@pytest.mark.parametrize("flag", ["neg", "conj"])
@pytest.mark.parametrize("contain", [made.zipped, made.legacy])
def test_numbers_that_are_still_to_be_negated_are_refused(tmp_path, contain, flag):
    """PyTorch negates and conjugates lazily, and says so in a last argument."""
    plain = made.tensor()
    late = plain[:-2] + b"}" + made.text(flag) + b"\x88stR"
    (tmp_path / "a.pt").write_bytes(contain(made.state(plain[:-2] + b"}tR")))
    assert list(open_checkpoint(tmp_path / "a.pt")) == ["w0"]
    (tmp_path / "a.pt").write_bytes(contain(made.state(late)))
    with pytest.raises(FileError, match=r"w0: expected numbers as they are, .*; save its \.resolve_neg\(\)"):
        open_checkpoint(tmp_path / "a.pt")


def test_items_in_the_call_of_a_dictionary_are_not_dropped(tmp_path):
    pairs = b"](" + made.text("w") + made.tensor() + b"\x86e"
    with pytest.raises(FileError, match=r"expected the arguments of 'collections\.OrderedDict', got others"):
        write(tmp_path, b"\x80\x02ccollections\nOrderedDict\n" + pairs + b"\x85R.")


def test_a_tensor_of_a_wider_type_than_its_storage_stays_inside_it(tmp_path):
    """Six numbers of four bytes are three of eight: more would be whatever stands behind them in the file."""
    for count, fits in ((3, True), (4, False), (6, False)):
        wide = made.tensor((count,), (1,)).replace(b"_tensor_v2", b"_tensor_v3")[:-2] + b"ctorch\nfloat64\ntR"
        program = made.state(wide)
        for contain in (made.zipped, made.legacy):
            (tmp_path / "a.pt").write_bytes(contain(program))
            if fits:
                assert open_checkpoint(tmp_path / "a.pt")["w0"].nbytes == 24
                continue
            with pytest.raises(FileError, match="w0: expected a view of the 3 numbers of its storage"):
                open_checkpoint(tmp_path / "a.pt")


def test_what_holds_itself_many_times_is_not_written_out(tmp_path):
    many = b")q\x00" + b"h\x00\x86q\x00" * 60  # a pair of pairs, doubled sixty times
    plain, keys = made.legacy(made.state(made.tensor())), b"\x80\x02](" + made.text("0") + b"e."
    assert plain.count(keys) == 1
    (tmp_path / "a.pt").write_bytes(plain.replace(keys, b"\x80\x02]" + many + b"a."))
    with pytest.raises(FileError, match=r"expected the keys of its storages, each once, got 'a tuple'"):
        open_checkpoint(tmp_path / "a.pt")


def test_one_dictionary_under_many_names_is_looked_at_once(tmp_path, monkeypatch):
    looked = []
    is_state = torch_pickle._is_state
    monkeypatch.setattr(torch_pickle, "_is_state", lambda value: looked.append(1) or is_state(value))
    inner = made.state(made.tensor())[2:-1]
    names = made.number(0) + inner + b"q\x00" + b"".join(made.number(i) + b"h\x00" for i in range(1, 200))
    with pytest.raises(FileError, match="one dictionary of tensors among what it holds, got a number, a number"):
        write(tmp_path, b"\x80\x02}(" + names + b"u.")
    assert len(looked) == 2

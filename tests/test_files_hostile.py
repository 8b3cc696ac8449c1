"""files: hostile checkpoints get one line, and no memory beyond their own size."""

import json
import os
import pickle
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch_files as made
from test_files import npy, seconds_at_most
from test_files import zipped as npz

from headwise.files import FileError, open_checkpoint

ALLOWED = 2 << 20  # bytes besides the file's own size


# ------------------------------------------------------------------------------------------- safetensors
def safe(header=None, values=b"", length=None, **entry):
    """A safetensors file of one array w, with whatever is wrong in its entry."""
    entry = {"dtype": "F32", "shape": [3], "data_offsets": [0, 12], **entry}
    text = json.dumps({"w": entry}).encode() if header is None else header
    return (len(text) if length is None else length).to_bytes(8, "little") + text + (values or bytes(12))


def two(first, second, size):
    header = {
        name: {"dtype": "U8", "shape": [b - a], "data_offsets": [a, b]}
        for name, (a, b) in (("a", first), ("b", second))
    }
    return safe(json.dumps(header).encode(), bytes(size))


GOOD = safe()
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%b\nsize 12\n" % (b"0" * 64)
PAGE = b"<!DOCTYPE html>\n<html><title>404</title>\n" * 9
ENTRY = '{"dtype":"F32","shape":[3],"data_offsets":[0,12]}'
SAFETENSORS = {
    "empty": (b"", r"expected a file that holds arrays, got an empty one"),
    "cut in the length": (GOOD[:5], r"header of at most 0 bytes, got a file of 5"),
    "cut after the length": (GOOD[:8], r"header of at most 0 bytes, got a promise of \d+"),
    "cut in the header": (GOOD[:40], r"header of at most 32 bytes, got a promise of \d+"),
    "cut in the values": (GOOD[:-1], r"expected the 12 bytes of values that its header promises, got 11; it is cut"),
    "values go on": (
        GOOD + b"0",
        r"expected the 12 bytes of values that its header promises, got 13; it holds 1 more than its header",
    ),
    "a pointer": (
        POINTER,
        r"expected a safetensors file, got a Git LFS pointer; fetch the file itself, by git lfs pull",
    ),
    "a page": (PAGE, r"expected a safetensors file, got text that begins '<!DOCTYPE html>'; download the file itself"),
    "a page of an escape": (
        b"<html><title>not found\x1b[2J",
        r"got text that begins '<html><title>not found\\x1b\[2J'",
    ),
    "a page with a mark": (b"\xef\xbb\xbf" + PAGE, r"got text that begins '<!DOCTYPE html>'"),
    "a few letters": (b"none\n", r"expected a safetensors file, got text that begins 'none'"),
    "a zip": (
        made.zipped(made.state(made.tensor())),
        r"expected a safetensors file, got a zip file, .*; name it by its",
    ),
    "a pickle": (
        made.legacy(made.state(made.tensor())),
        r"expected a safetensors file, got a pickle, .*; name it by its",
    ),
    "one npy": (npy(), r"expected a safetensors file, got one \.npy array; name it by its format"),
    "spaces": (b" " * 40, r"header of at most 32 bytes, got a promise of"),
    "length 2**63": (safe(length=1 << 63), r"got a promise of 9223372036854775808"),
    "length 2**64 - 1": (safe(length=(1 << 64) - 1), r"got a promise of 18446744073709551615"),
    "length of all": (safe(length=len(GOOD) - 8), r"expected JSON with nothing more, got '"),
    "no json": (safe(b"\x93NUMPY\x01\x00"), r"expected JSON with an object"),
    "no object": (safe(b"[]      "), r"expected JSON with an object, got '\[\]      ' at byte 8"),
    "deep": (safe(b"[" * 100_000), r"expected JSON with an object, got '\[{20}'"),
    "deep in an entry": (safe(b'{"w":{"shape":' + b"[" * 100_000), r"w: expected JSON with an integer"),
    "deep in objects": (safe(b'{"w":' * 100_000), r"w: expected dtype, shape and data_offsets, got 'w'"),
    "10000 of nothing": (
        safe(
            json.dumps({f"{n}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for n in range(10_000)}).encode()
        ),
        r"expected objects of at most \d+ bytes, got more; save fewer or larger arrays in a file",
    ),
    "20000 texts": (
        safe(json.dumps({"__metadata__": {f"{n}": "" for n in range(20_000)}}).encode()),
        r"expected objects of at most \d+ bytes, got more",
    ),
    "a text that grows": (
        safe(b'{"' + b"a" * 1_000_000 + b'\\ud83d\\ude00":1}'),
        r"objects of at most \d+ bytes, got more",
    ),
    "NaN": (safe(b'{"w":{"shape":[NaN]}}'), r"an integer of at most 20 digits, got 'NaN\]"),
    "fraction": (safe(b'{"w":{"shape":[1.5]}}'), r"an integer of at most 20 digits, got '1\.5"),
    "true": (safe(shape=[True]), r"an integer of at most 20 digits, got 'true"),
    "huge integer": (safe(b'{"w":{"shape":[' + b"9" * 1_000_000 + b"]}}"), r"an integer of at most 20 digits"),
    "many integers": (safe(b'{"w":{"shape":[' + b"1," * 500_000 + b"1]}}"), r"a list of at most 32 integers, got more"),
    "name twice": (safe(f'{{"w":{ENTRY},"w":{ENTRY}}}'.encode()), r"expected each name once, got 'w' twice"),
    "name twice by escape": (safe(f'{{"w":{ENTRY},"\\u0077":{ENTRY}}}'.encode()), r"each name once, got 'w' twice"),
    "key twice": (safe(b'{"w":{"shape":[3],"shape":[3]}}'), r"w: expected each name once, got 'shape' twice"),
    "bad utf-8": (safe(b'{"\xff\xfe":' + ENTRY.encode() + b"}"), r"expected an undamaged file, got ''utf-8' codec"),
    "bad escape": (safe(b'{"\\x":1}'), r"expected an undamaged file, got 'Invalid \\escape"),
    "lone surrogate": (safe(('{"\\ud800":' + ENTRY[:-3] + "0]}}").encode()), r"\\ud800: expected the 12 bytes"),
    "name with escapes": (safe(b'{"\\n\\u001b[2J":{}}'), r"\\n\\x1b\[2J: expected a dtype, a shape"),
    "long string": (
        safe(b'{"' + b"a" * 3_000_000 + b'":1}'),
        r"expected strings of at most 1048576 bytes, got 3000000",
    ),
    "quote without end": (safe(b'{"' + b"\\n" * 200_000), r"expected JSON with a string in double quotes"),
    "metadata of numbers": (safe(b'{"__metadata__":{"a":1}}'), r"__metadata__: expected JSON with a string"),
    "metadata twice": (safe(b'{"__metadata__":{},"__metadata__":{}}'), r"each name once, got '__metadata__' twice"),
    "dtype": (safe(dtype="F128"), r"w: expected one of .*, got dtype 'F128'"),
    "dtype of code": (safe(dtype="O\n"), r"w: expected one of .*, got dtype 'O\\n'"),
    "missing": (safe(b'{"w":{"dtype":"F32"}}'), r"expected a dtype, a shape and two data_offsets, got less"),
    "one offset": (safe(data_offsets=[0]), r"two data_offsets, got less"),
    "negative size": (safe(shape=[-3]), r"expected a shape of sizes >= 0, got \(-3,\)"),
    "2**62 x 4": (safe(shape=[1 << 62, 4]), r"expected a shape that an array can have, got \(4611686018427387904, 4\)"),
    "0 x 2**62 x 4": (safe(shape=[0, 1 << 62, 4], data_offsets=[0, 0]), r"expected a shape that an array can have"),
    "product 0 mod 2**64": (safe(shape=[1 << 32, 1 << 32], data_offsets=[0, 0]), r"a shape that an array can have"),
    "offsets backwards": (
        safe(data_offsets=[12, 0]),
        r"expected the 12 bytes of float32 \(3,\), got data_offsets 12 to 0",
    ),
    "negative offsets": (safe(data_offsets=[-12, 0]), r"expected values that begin at 0, got data_offsets -12 to 0"),
    "offsets beyond": (safe(data_offsets=[12, 24]), r"expected values that begin at 0, got data_offsets 12 to 24"),
    "offsets 2**63": (
        safe(data_offsets=[1 << 63, (1 << 63) + 12]),
        r"begin at 0, got data_offsets 9223372036854775808",
    ),
    "size beyond": (safe(shape=[1 << 40], data_offsets=[0, 1 << 42]), r"expected the 4398046511104 bytes of values"),
    "overlap": (two((0, 8), (4, 12), 12), r"b: expected values that begin at 8, .* which overlap the array before"),
    "one inside another": (two((0, 12), (4, 8), 12), r"b: expected values that begin at 12, .* overlap"),
    "hole": (
        two((0, 4), (8, 12), 12),
        r"b: expected values that begin at 4, got data_offsets 8 to 12, which leave a hole",
    ),
}


# ------------------------------------------------------------------------------------------- PyTorch
class Evil:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def one(tensor, **parts):
    return made.zipped(made.state(tensor), **parts)


def calls(*opcodes, end=b"."):
    return made.zipped(b"\x80\x02" + b"".join(opcodes) + end)


NPZ = npz(("w.npy", npy()))
TWICE = npz(("a/data.pkl", b""), ("a/data/0", b""), ("a/data/1", b"")).replace(b"a/data/1", b"a/data/0")
BIG = npz(("a/data.pkl", made.state(made.tensor())), ("a/data/0", made.VALUES), ("a/byteorder", b"big"))
PATH = made.text("ran")
OS = r"expected tensors, got the global '{}\.mkdir'; it is not loaded; save the tensors alone"
TORCH = {
    "GLOBAL": (made.zipped(pickle.dumps(Evil(), 2)), OS.format("posix")),
    "STACK_GLOBAL": (made.zipped(pickle.dumps(Evil(), 4)), OS.format("posix")),
    "protocol 0": (made.zipped(pickle.dumps(Evil(), 0)), OS.format("posix")),
    "in a legacy file": (made.legacy(pickle.dumps(Evil(), 2)), OS.format("posix")),
    "before a legacy file": (pickle.dumps(Evil(), 2), OS.format("posix")),
    "INST": (calls(b"(", PATH, b"ios\nmkdir\n"), OS.format("os")),
    "OBJ": (calls(b"(cos\nmkdir\n", PATH, b"o"), OS.format("os")),
    "OBJ of a known": (calls(b"(ccollections\nOrderedDict\no"), r"a pickle of tensors, got the opcode OBJ"),
    "INST of a known": (calls(b"(icollections\nOrderedDict\n"), r"the opcode INST of 'collections\.OrderedDict'"),
    "NEWOBJ": (calls(b"ccollections\nOrderedDict\n)\x81"), r"got the opcode NEWOBJ"),
    "NEWOBJ_EX": (calls(b"ccollections\nOrderedDict\n)}\x92"), r"got the opcode NEWOBJ_EX"),
    "EXT1": (calls(b"\x82\x01"), r"got the extension code 1, which is not loaded"),
    "EXT2": (calls(b"\x83\x01\x02"), r"got the extension code 513"),
    "EXT4": (calls(b"\x84\x01\x00\x00\x00"), r"got the extension code 1,"),
    "PERSID": (calls(b"Pstorage\n"), r"got the opcode PERSID"),
    "builtins": (calls(b"cbuiltins\neval\n", PATH, b"\x85R"), r"got the global 'builtins\.eval'"),
    "dotted": (calls(made.text("torch"), made.text("os.system"), b"\x93"), r"got the global 'torch\.os\.system'"),
    "escapes in a name": (calls(b"cos\x1b[2J\nsystem\r\n"), r"got the global 'os\\x1b\[2J\.system\\r'"),
    "a long name": (calls(b"c" + b"o" * 1000 + b"\nsystem\n"), r"expected a name of at most 300 bytes"),
    "call of a storage": (calls(b"ctorch\nFloatStorage\n)R"), r"got a call of 'torch\.FloatStorage'"),
    "call of a text": (calls(PATH, b")R"), r"got a call of 'str'"),
    "call with a text": (
        calls(b"ccollections\nOrderedDict\n", PATH, b"R"),
        r"got a call of 'collections\.OrderedDict'",
    ),
    "wrong arguments": (calls(b"ctorch._utils\n_rebuild_tensor_v2\n)R"), r"the arguments of 'torch\._utils\._rebuild"),
    "BUILD of a global": (calls(b"ctorch\nFloatStorage\n}b"), r"got another object where its opcodes take a dict"),
    "stack underflow": (calls(b"R"), r"got fewer objects than its opcodes take"),
    "no mark": (calls(b"t"), r"got no mark where an opcode takes one"),
    "odd items": (calls(b"}(K\x01u"), r"got a name without a value"),
    "a list as a name": (calls(b"}(]]u"), r"got a list as a name"),
    "append to a dictionary": (calls(b"}]a"), r"got another object where its opcodes take a list"),
    "unknown opcode": (calls(b"\xff"), r"got the opcode b'\\xff'"),
    "no stop": (calls(b"}", end=b""), r"a pickle of at least 1 bytes more, got 0"),
    "memo without value": (calls(b"h\x07"), r"expected one of 0 memos, got 7"),
    "memo 2**32 - 1": (calls(b"}r\xff\xff\xff\xff"), r"expected memo 0 next, got 4294967295"),
    "text of 4 GB": (calls(b"X\xff\xff\xff\xff"), r"strings of at most 65536 bytes, got 4294967295"),
    "text of 2**64": (calls(b"\x8d" + b"\xff" * 8), r"strings of at most 65536 bytes, got 18446744073709551615"),
    "integer of 2 GB": (calls(b"\x8b\xff\xff\xff\x7f"), r"integers of at most 16 bytes, got 2147483647"),
    "bytes": (calls(b"B\xff\xff\xff\xff"), r"got the opcode BINBYTES"),
    "bytearray": (calls(b"\x96" + b"\xff" * 8), r"got the opcode BYTEARRAY8"),
    "200000 lists": (calls(b"]" * 200_000), r"objects of at most \d+ bytes, got more; save the tensors alone"),
    "200000 tuples deep": (calls(b")", b"\x85" * 200_000), r"objects of at most \d+ bytes, got more"),
    "200000 memos": (calls(b"}", b"\x94" * 200_000), r"objects of at most \d+ bytes, got more"),
    "400000 marks": (calls(b"(" * 400_000), r"objects of at most \d+ bytes, got more"),
    "many texts": (calls((b"X\xff\xff\0\0" + b"a" * 65535) * 100), r"expected a dictionary of tensors, got a str"),
    "itself": (calls(b"}\x94(X\x01\0\0\0ah\x00u"), r"expected one dictionary of tensors among what it holds, got a;"),
    "a list": (calls(b"]"), r"expected a dictionary of tensors, got a list"),
    "no storage": (one(made.tensor(of=b"K\x01")), r"w0: expected a storage, its type, and a stride"),
    "storage that is not there": (one(made.tensor(), **{"1": made.VALUES}), r"expected storage '0', got none"),
    "storage too small": (one(made.tensor(), **{"0": bytes(23)}), r"expected 24 bytes in storage '0', got 23"),
    "storage of 2**62": (one(made.tensor(of=made.storage(size=1 << 62))), r"bytes in storage '0', got 24"),
    "storage of -1": (one(made.tensor(of=made.storage(size=-1))), r"expected storages by class, key and size"),
    "storage of code": (one(made.tensor(of=made.storage(kind="os\nsystem"))), r"got the global 'os\.system'"),
    "storage of a function": (
        one(made.tensor(of=made.storage(kind="collections\nOrderedDict"))),
        r"expected storages by",
    ),
    "view of a storage": (
        calls(made.storage()[:-2] + b"(" + made.text("1") + b"K\x00K\x03ttQ"),
        r"expected whole storages, got a view of one",
    ),
    "a global of numbers": (calls(b"K\x01K\x02\x93"), r"got a global without a name"),
    "another id": (calls(b"K\x01Q"), r"expected storages by class, key and size, got another persistent id"),
    "two of one key": (calls(made.storage(), made.storage(size=5)), r"expected one storage '0', got two that differ"),
    "shape beyond": (
        one(made.tensor((2, 4), (3, 1))),
        r"w0: expected a view of the 6 numbers of its storage, got \(2, 4\)",
    ),
    "offset beyond": (one(made.tensor(offset=1)), r"w0: expected a view of the 6 numbers of its storage"),
    "nothing beyond": (one(made.tensor((0,), (1,), 7)), r"w0: expected a view of the 6 numbers of its storage"),
    "negative offset": (one(made.tensor(offset=-1)), r"w0: expected an offset of integers >= 0"),
    "negative stride": (one(made.tensor(strides=(-3, 1), offset=3)), r"w0: expected strides of integers >= 0"),
    "negative size of a tensor": (one(made.tensor((-2, 3))), r"w0: expected a shape of integers >= 0"),
    "stride 2**126": (one(made.tensor(strides=(1 << 126, 1))), r"w0: expected a view of the 6 numbers"),
    "size 2**126": (one(made.tensor((1 << 126, 3), (0, 1))), r"w0: expected a shape that an array can have"),
    "offset 2**126": (one(made.tensor(offset=1 << 126)), r"w0: expected a view of the 6 numbers"),
    "nothing at 2**126": (one(made.tensor((0,), (1,), 1 << 126)), r"w0: expected a view of the 6 numbers"),
    "stride 2**62": (one(made.tensor(strides=(1 << 62, 1))), r"w0: expected a view of the 6 numbers"),
    "shape 2**62 x 4 by stride 0": (
        one(made.tensor((1 << 62, 4), (0, 0))),
        r"w0: expected a shape that an array can have",
    ),
    "2**40 by stride 0": (one(made.tensor((1 << 40,), (0,))), r"w0: expected a view of the 6 numbers"),
    "100 axes": (one(made.tensor((1,) * 100, (1,) * 100)), r"w0: expected at most 32 axes, got 100"),
    "fewer strides": (one(made.tensor((2, 3), (3,))), r"w0: expected a storage, its type, and a stride for each axis"),
    "shape of texts": (
        one(made.tensor().replace(made.numbers((2, 3)), b"(" + PATH + b"t")),
        r"a shape of integers >= 0",
    ),
    "deflated": (made.zipped(made.state(made.tensor()), zipfile.ZIP_DEFLATED), r"a member stored as it is"),
    "zip bomb": (made.zipped(made.state(made.tensor()) + bytes(5_000_000), zipfile.ZIP_DEFLATED), r"stored as it is"),
    "an npz": (NPZ, r"expected one data\.pkl, as torch\.save writes it"),
    "a safetensors": (GOOD, r"expected a file of torch\.save, got bytes that begin"),
    "another pickle": (b"\x80\x02K\x01.", r"expected a file of torch\.save, got another pickle"),
    "another version": (made.legacy(b"", version=1002), r"expected a file of torch\.save, got another pickle"),
    "big-endian": (made.legacy(made.state(made.tensor()), little=b"\x89"), r"numbers in little-endian order"),
    "keys twice": (
        made.legacy(made.state(made.tensor()), keys=("0", "0")),
        r"the keys of its storages, each once, got '0'",
    ),
    "key of none": (
        made.legacy(made.state(made.tensor()), keys=("1",)),
        r"the keys of its storages, each once, got '1'",
    ),
    "no keys": (made.legacy(made.state(made.tensor()), keys=()), r"expected storage '0', got none"),
    "count 2**62": (
        made.legacy(made.state(made.tensor()), count=1 << 62),
        r"storage '0' of 4611686018427387904 numbers",
    ),
    "count -1": (made.legacy(made.state(made.tensor()), count=-1), r"expected storage '0' of -1 numbers, got"),
    "count 5": (made.legacy(made.state(made.tensor()), count=5), r"expected 24 bytes in storage '0', got 20"),
    "legacy cut": (made.legacy(made.state(made.tensor()))[:-1], r"expected storage '0' of 6 numbers, got 31 bytes"),
    "legacy cut in a pickle": (
        made.legacy(made.state(made.tensor()))[:60],
        r"a name of at most 300 bytes, got a longer one",
    ),
    "zip cut": (
        made.zipped(made.state(made.tensor()))[:-1],
        r"expected a zip file with its directory at the end, got no end of a zip; it is cut: copy or save it again",
    ),
    "zip cut in half": (made.zipped(made.state(made.tensor()))[:300], r"got no end of a zip; it is cut"),
    "a pointer": (POINTER, r"expected a file of torch\.save, got a Git LFS pointer; fetch the file itself"),
    "a page": (PAGE, r"expected a file of torch\.save, got text that begins '<!DOCTYPE html>'; download the file"),
}


def lying(data, record, at, form, value):
    place = data.index(record) + at
    new = struct.pack(form, value)
    return data[:place] + new + data[place + len(new) :]


ZIP = made.zipped(made.state(made.tensor()))
TORCH |= {
    "member beyond": (lying(ZIP, b"PK\x01\x02", 42, "<I", 1 << 31), r"data\.pkl: expected a member at byte 2147483648"),
    "member of 2 GB": (
        lying(lying(ZIP, b"PK\x01\x02", 20, "<I", 1 << 31), b"PK\x01\x02", 24, "<I", 1 << 31),
        r"data\.pkl: expected 2147483648 bytes, got \d+",
    ),
    "said to be deflated": (lying(ZIP, b"PK\x01\x02", 10, "<H", 8), r"got a compressed or encrypted one"),
    "encrypted": (lying(ZIP, b"PK\x01\x02", 8, "<H", 1), r"got a compressed or encrypted one"),
    "a directory of 20000": (
        made.zipped(b"", **{str(n): b"" for n in range(20_000)}),
        r"a directory of at most \d+ bytes",
    ),
    "whole big-endian": (
        BIG,
        r"expected numbers in little-endian order, got big-endian ones",
    ),
    "two of one name": (TWICE, r"expected each member once, got some name twice"),
}

# ------------------------------------------------------------------------------------------- others
INDEX = {
    "itself": (
        b'{"weight_map":{"w":"a.index.json"}}',
        r"names of files beside it that end in .*, got 'a\.index\.json'",
    ),
    "above": (b'{"weight_map":{"w":"../a.safetensors"}}', r"got '\.\./a\.safetensors'"),
    "absolute": (b'{"weight_map":{"w":"/etc/a.safetensors"}}', r"got '/etc/a\.safetensors'"),
    "of Windows": (b'{"weight_map":{"w":"C:\\\\a.safetensors"}}', r"names of files beside it"),
    "no text": (b'{"weight_map":{"w":1}}', r"expected JSON with a string in double quotes, got '1"),
    "no map": (b'{"metadata":{}}', r"expected a weight_map that names files, got none"),
    "name twice": (b'{"weight_map":{"w":"a.bin","w":"b.bin"}}', r"expected each name once, got 'w' twice"),
    "missing": (b'{"weight_map":{"w":"none.bin"}}', r"missing files: none\.bin"),
    "deep": (b'{"a":' + b"[" * 100_000, r"expected JSON at most 64 deep, got more"),
    "unclosed": (b'{"a":[}', r"expected JSON with a value, got '}'"),
    "20000 names": (
        json.dumps({"weight_map": {f"{n}": "a.bin" for n in range(20_000)}}).encode(),
        r"expected objects of at most \d+ bytes, got more",
    ),
    "50000 names besides": (
        json.dumps({f"{n}": 0 for n in range(50_000)}).encode(),
        r"expected a weight_map that names files, got none",
    ),
    "a map twice": (
        b'{"weight_map":{"w":"a.bin"},"a":1,"weight_map":{}}',
        r"expected each name once, got 'weight_map' twice",
    ),
    "NaN": (b'{"a":NaN}', r"expected JSON with a value, got 'NaN}'"),
    "many lists": (b'{"a":[' + b"[]," * 60_000 + b"[]]}", r"expected other parts of at most 65536 bytes, got more"),
    "cut": (b'{"weight_map":{"w":"a.bin"', r"expected JSON with ',' or '}', got the end at byte 26"),
    "escapes": (b'{"weight_map":{"w":"\\u001b[2J.exe"}}', r"got '\\x1b\[2J\.exe'"),
    "empty": (b"", r"expected a file that holds arrays, got an empty one"),
}
ARCHIVES = {
    "no zip": (b"hello, world", r"expected a zip file, got text that begins 'hello, world'; download"),
    "one npy": (npy(), r"expected a zip file, got one \.npy array; name it by its format"),
    "noise": (b"\xff" * 40, r"expected a zip file, got bytes that begin b'.*'; name it by its format"),
    "cut": (NPZ[:-30], r"expected a zip file with its directory at the end, got no end of a zip; it is cut"),
    "cut to its head": (b"PK\x03\x04", r"got no end of a zip; it is cut"),
    "a pointer": (POINTER, r"expected a zip file, got a Git LFS pointer"),
}

ROWS = [
    pytest.param(f"a{ending}", *row, id=f"{ending[1:]}: {name}")
    for ending, table in ((".safetensors", SAFETENSORS), (".pt", TORCH), (".index.json", INDEX), (".npz", ARCHIVES))
    for name, row in table.items()
]
PEAKS = {}


@pytest.mark.parametrize(("name", "data", "says"), ROWS)
def test_a_hostile_file_gets_one_line_and_no_memory(request, tmp_path, monkeypatch, name, data, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(FileError, match=rf"^a\.[\w.]+: .*{says}") as caught:
            open_checkpoint(name)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    assert peak <= len(data) + ALLOWED
    assert os.listdir(tmp_path) == [name], "something ran"
    PEAKS[request.node.callspec.id] = peak - len(data), peak, len(data)


def test_the_largest_of_their_peaks_is_printed():
    """Seen with `pytest -s`; a peak counts beyond the size of its file."""
    beyond, name = max((beyond, name) for name, (beyond, *_) in PEAKS.items()) if PEAKS else (0, "none ran")
    print(f"\n{len(PEAKS)} hostile files; the largest peak of memory beyond a file's size: {beyond} bytes ({name})")
    assert len({row.values[1] for row in ROWS}) > 120
    assert beyond <= ALLOWED


# ------------------------------------------------------------------------------------------- no files
KINDS = ["a.safetensors", "a.pt", "a.npz", "a.index.json"]


def refused(path, says):
    with seconds_at_most(5), pytest.raises(FileError, match=says) as caught:
        open_checkpoint(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", KINDS)
def test_what_is_no_file(tmp_path, name):
    path = tmp_path / name
    refused(path, r"expected a file that can be read, got 'No such file or directory'")
    os.mkfifo(path)
    refused(path, r"expected a file, got a named pipe")
    path.unlink()
    path.symlink_to(name)
    refused(path, r"expected a file that can be read, got 'Too many levels of symbolic links'")
    path.unlink()
    path.symlink_to("/dev/zero")
    refused(path, r"expected a file, got a device")
    path.unlink()
    path.mkdir()
    refused(path, r"expected a folder of \.npy files or of a model, got neither")
    (path / "w.npy").mkdir()
    refused(path, r"w: expected a file, got a folder")


def test_parts_that_are_no_files(tmp_path):
    index = tmp_path / "a.index.json"
    index.write_text('{"weight_map": {"w": "a.safetensors"}}')
    os.mkfifo(tmp_path / "a.safetensors")
    refused(index, r"a\.safetensors: expected a file, got a named pipe")
    (tmp_path / "a.safetensors").unlink()
    (tmp_path / "a.safetensors").symlink_to("a.safetensors")
    refused(index, r"missing files: a\.safetensors|Too many levels of symbolic links")


@pytest.mark.parametrize("name", ["a.txt", "a", "a.json", "a.npy", "a.safetensors.zip"])
def test_other_endings(tmp_path, name):
    (tmp_path / name).write_bytes(GOOD)
    refused(tmp_path / name, r"expected a folder, or a name that ends in \.safetensors, .*, got another")


def test_a_folder_in_which_a_model_is_a_loop(tmp_path):
    (tmp_path / "model.safetensors").symlink_to("model.safetensors")
    refused(tmp_path, r"model\.safetensors: expected a file that can be read, got 'Too many levels")


def test_what_an_npz_promises_is_refused_before_anything_is_read(tmp_path):
    from test_files import header, raw_npy

    rows = [
        (
            raw_npy(header("(1000000000000,)"), bytes(16)),
            r"w: expected the 8000000000000 bytes that its header promises",
        ),
        (raw_npy(header("(0, 4611686018427387904, 4)")), r"w: expected a shape that an array can have"),
        (npy(np.array([None]), allow_pickle=True), r"w: expected numbers, got dtype object"),
    ]
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        for data, says in rows:
            (tmp_path / "a.npz").write_bytes(npz(("w.npy", data), method=method))
            refused(tmp_path / "a.npz", says)

"""Files of `torch.save`, put together opcode by opcode, so that each may be wrong in any way."""

import io
import zipfile

MAGIC, VERSION = 0x1950A86A20F9469CFC6C, 1001
VALUES = bytes(range(24))


def number(n: int) -> bytes:
    raw = n.to_bytes(n.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def text(words: str) -> bytes:
    raw = words.encode()
    return b"X" + len(raw).to_bytes(4, "little") + raw


def numbers(values) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def storage(key="0", kind="torch\nFloatStorage", size=6) -> bytes:
    return b"(" + text("storage") + b"c" + kind.encode() + b"\n" + text(key) + text("cpu") + number(size) + b"tQ"


def tensor(shape=(2, 3), strides=(3, 1), offset=0, of=None) -> bytes:
    hooks = b"ccollections\nOrderedDict\n)R"
    arguments = (of or storage()) + number(offset) + numbers(shape) + numbers(strides) + b"\x89" + hooks
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"tR"


def state(*tensors: bytes) -> bytes:
    """A pickle of a dictionary: w0, w1, ... to each."""
    return b"\x80\x02}(" + b"".join(text(f"w{n}") + made for n, made in enumerate(tensors)) + b"u."


def zipped(program: bytes, method=zipfile.ZIP_STORED, **storages: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("a/data.pkl", program)
        for key, values in (storages or {"0": VALUES}).items():
            archive.writestr(f"a/data/{key}", values)
    return file.getvalue()


def legacy(program: bytes, magic=MAGIC, version=VERSION, little=b"\x88", keys=("0",), count=6, values=VALUES) -> bytes:
    start = b"".join(b"\x80\x02" + number(n) + b"." for n in (magic, version))
    system = b"\x80\x02}(" + text("little_endian") + little + b"u."
    listed = b"\x80\x02](" + b"".join(map(text, keys)) + b"e."
    return start + system + program + listed + count.to_bytes(8, "little", signed=True) + values

"""What a file is that is not of the format its name says, told by its first bytes."""

import mmap

from headwise.files.errors import file_error

_POINTER = b"version https://git-lfs"
_MAGICS = {
    b"PK\x03\x04": "a zip file, as .npz and PyTorch's .pt and .bin are",
    b"\x93NUMPY": "one .npy array",
    **{bytes([0x80, protocol]): "a pickle, as PyTorch's older .pt and .bin are" for protocol in range(2, 6)},
}
_UTF_8 = b"\xef\xbb\xbf"  # which some programs write before text
_PRINTABLE = frozenset(b"\t\n\r" + bytes(range(0x20, 0x7F)))
_LEAST, _MOST = 16, 40  # bytes that must be text, and that are shown


def check_beginning(data: mmap.mmap, expected: str, where: str) -> None:
    """Refuse what begins as another kind of file does, by the name of that kind; say nothing where no kind is known."""
    start = data[:_MOST].removeprefix(_UTF_8)
    if start.startswith(_POINTER):
        raise file_error(where, expected, "a Git LFS pointer", "fetch the file itself, by git lfs pull")
    for magic, kind in _MAGICS.items():
        if start.startswith(magic):
            raise file_error(where, expected, kind, "name it by its format")
    if text := _first_line(start):
        raise file_error(where, expected, f"text that begins '{text}'", "download the file itself")


def _first_line(start: bytes) -> str:
    """Return the first line of text, or nothing where bytes are no text."""
    if not _PRINTABLE.issuperset(start[:_LEAST]):
        return ""
    lines = start.decode("utf-8", "ignore").strip().splitlines()
    return lines[0] if lines else ""

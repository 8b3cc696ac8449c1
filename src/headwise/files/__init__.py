"""Arrays out of files and into them, safely: .npy, .npz, safetensors, PyTorch's; the only file reader."""

from headwise.files.checkpoint import Checkpoint, open_checkpoint
from headwise.files.errors import FileError, PathLike, listed, shown
from headwise.files.npy import array_names, read_array, read_arrays
from headwise.files.npz_writing import npz_keeps, write_arrays
from headwise.files.opening import physical_memory, read_bytes, read_text
from headwise.files.safetensors import write_safetensors
from headwise.files.tensors import Tensor
from headwise.files.writing import check_folder, check_target, write_bytes, write_text

__all__ = [
    "Checkpoint",
    "FileError",
    "PathLike",
    "Tensor",
    "array_names",
    "check_folder",
    "check_target",
    "listed",
    "npz_keeps",
    "open_checkpoint",
    "physical_memory",
    "read_array",
    "read_arrays",
    "read_bytes",
    "read_text",
    "shown",
    "write_arrays",
    "write_bytes",
    "write_safetensors",
    "write_text",
]

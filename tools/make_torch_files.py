"""Write the small files in tests/data/torch, as PyTorch itself saves them; the tests know what is in them.

    python -m venv torch-env
    torch-env/bin/pip install numpy==2.4.6 torch==2.14.1
    torch-env/bin/python tools/make_torch_files.py

Values count up from 0, so that a test can tell each by its place.
"""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "torch"
TYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
NEW_TYPES = ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64")  # saved since PyTorch 2.3 or so


def tensors() -> "OrderedDict[str, Any]":
    """One tensor of each type, and views: turned, in part, of nothing, of one number, as a parameter."""
    state = OrderedDict((name, torch.arange(6).reshape(2, 3).to(getattr(torch, name))) for name in TYPES)
    whole = torch.arange(35, dtype=torch.float32).reshape(5, 7)
    state["whole"], state["turned"], state["part"] = whole, whole.T, whole[1:4, 2::2]
    state["nothing"], state["one"] = torch.empty(0, 3), torch.tensor(7.5)
    state["parameter"] = torch.nn.Parameter(torch.arange(3.0))
    return state


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    state = tensors()
    torch.save(state, FOLDER / "zip.pt")
    torch.save(state, FOLDER / "protocol4.pt", pickle_protocol=4)
    torch.save(state, FOLDER / "legacy.bin", _use_new_zipfile_serialization=False)
    torch.save({name: torch.arange(6).to(getattr(torch, name)) for name in NEW_TYPES}, FOLDER / "new_types.pth")
    layer = torch.nn.MultiheadAttention(4, 2)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape))
    torch.save({"epoch": 3, "state_dict": layer.state_dict(), "loss": 0.5}, FOLDER / "nested.pt")
    torch.save(layer, FOLDER / "module.pt")


if __name__ == "__main__":
    main()

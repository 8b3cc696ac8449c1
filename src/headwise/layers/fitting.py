"""Whether the arrays of a checkpoint make a layer: everything missing, extra or misshaped, said at once.

Knows names and shapes; computes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import product
from typing import NamedTuple, NoReturn

from headwise.core.shapes import Array, Faults, Shape, words
from headwise.layers.configs import Settings
from headwise.layers.describing import description_remedy
from headwise.layers.found import Place, full_name, layout_of
from headwise.layers.patterns import OWN, SEPARATE, Pattern, listed, printed

_TRANSPOSED = 0.4  # of a shape that fits in no way: all four weights transposed count less than two that do not fit


class Widths(NamedTuple):
    """The widths of a layer's arrays."""

    d_model: int
    d_q: int
    d_kv: int
    d_key: int
    d_value: int

    def shapes(self, d_head: int | None) -> dict[str, Shape]:
        """Of each array, weights as (in, out); norms where the width of a head is known."""
        whole = self.d_q + 2 * self.d_kv
        weights = {
            "w_q": (self.d_model, self.d_q),
            "w_k": (self.d_key, self.d_kv),
            "w_v": (self.d_value, self.d_kv),
            "w_qkv": (self.d_model, whole),
            "w_o": (self.d_q, self.d_model),
        }
        learned = dict.fromkeys(("bias_k", "bias_v"), (1, 1, self.d_kv))
        biases = {"b_q": self.d_q, "b_k": self.d_kv, "b_v": self.d_kv, "b_qkv": whole, "b_o": self.d_model}
        norms = {} if d_head is None else {"q_norm": d_head, "k_norm": d_head}
        return weights | learned | {name: (width,) for name, width in (biases | norms).items()}


class Fitting:
    """The arrays of one place, held to its pattern and to the numbers that are known."""

    def __init__(
        self,
        faults: Faults,
        place: Place,
        arrays: Mapping[str, Array],
        settings: Settings,
        sources: Mapping[str, str] | None = None,  # of the settings: the key of the configuration that says each
    ) -> None:
        self.faults, self.place, self.arrays, self.settings = faults, place, arrays, settings
        self.sources = sources or {}
        shapes = {role: x.shape for role, x in arrays.items()}
        self.layout = layout_of(place.pattern, shapes)
        self.shapes = {role: self.turned(role, shape) for role, shape in shapes.items()}
        self.widths = self._widths()

    def turned(self, role: str, shape: Shape) -> Shape:
        """A stored shape as (in, out), or back."""
        return shape[::-1] if role.startswith("w_") and self.layout != "conv1d" else shape

    def _widths(self) -> Widths | None:
        """The widths that most arrays speak for; a transpose counts less than a shape that fits in no way."""
        candidates = list(dict.fromkeys(self._candidates()))
        said = [widths for widths in candidates if self._said(widths) and self._only_transposed(widths)]
        return min(said or candidates, key=self._misfit, default=None)

    def _said(self, widths: Widths) -> bool:
        """Whether these are the widths of the configuration, where it says them."""
        heads, _, d_head, d_model = self.settings
        if not heads or not d_model:
            return False
        return widths.d_model == d_model and widths.d_q == heads * (d_head or d_model // heads)

    def _only_transposed(self, widths: Widths) -> bool:
        return not any(misfit == 1 for misfit in self._misfits(widths).values())

    def _misfits(self, widths: Widths) -> dict[str, float]:
        """Of each weight and bias: 0 where it fits, less than 1 where its transpose does, else 1."""
        expected = widths.shapes(self.settings.d_head)
        held = {role: shape for role, shape in self.shapes.items() if role in expected}
        return {
            role: 0 if shape == expected[role] else _TRANSPOSED if _is_transpose(shape, expected[role]) else 1
            for role, shape in held.items()
        }

    def _misfit(self, widths: Widths) -> float:
        return sum(self._misfits(widths).values())

    def _candidates(self) -> Iterator[Widths]:
        """Every reading of the shapes: what stands on one side of a weight, or on the other."""
        heads, groups, d_head, hidden = self.settings
        d_models = [*self._sides(("w_q", 0), ("w_qkv", 0), ("w_o", 1), ("w_q", 1), ("w_qkv", 1), ("w_o", 0)), hidden]
        d_qs = [heads and d_head and heads * d_head]
        d_qs += self._sides(("w_q", 1), ("w_o", 0), ("w_q", 0), ("w_o", 1))
        d_kvs = [groups and d_head and groups * d_head]
        d_kvs += self._sides(("w_k", 1), ("w_v", 1), ("w_k", 0), ("w_v", 0))
        for d_model, d_q in product(d_models, d_qs):
            if not d_model or not d_q:
                continue
            others = [(side - d_q) // 2 for side in self._sides(("w_qkv", 1), ("w_qkv", 0)) if side > d_q]
            keys, values = ([d_model], [d_model])
            if self.place.pattern.other_tokens and "w_qkv" not in self.shapes:
                keys += self._sides(("w_k", 0), ("w_k", 1))
                values += self._sides(("w_v", 0), ("w_v", 1))
            for d_kv, d_key, d_value in product([*d_kvs, *others, d_q], keys, values):
                if d_kv:
                    yield Widths(d_model, d_q, d_kv, d_key, d_value)

    def _sides(self, *wanted: tuple[str, int]) -> list[int]:
        shapes = self.shapes
        return list(dict.fromkeys(shapes[role][axis] for role, axis in wanted if len(shapes.get(role, ())) == 2))

    def _d_head(self, widths: Widths) -> int | None:
        """The width of a head, where anything says it."""
        heads, _, known, _ = self.settings
        return widths.d_q // heads if known is None and heads and not widths.d_q % heads else known

    # ------------------------------------------------------------------------------------------ what is wrong
    def check(self, names: Collection[str]) -> None:
        """Note every missing, extra and misshaped name."""
        expected = self.widths.shapes(self._d_head(self.widths)) if self.widths else {}
        lost = missing(self.place.pattern, self.place.held)
        way_out = self._without(lost)
        for role in lost:
            free = role in ("w_k", "w_v") and self.place.pattern.other_tokens
            shape = None if free else expected.get(role)
            said = "an array" if shape is None else f"an array {words(self.turned(role, shape))}"
            remedy = way_out if role.startswith("b_") else ""
            self.faults.value(self._name(role), said, "none of that name", remedy)
            way_out = "" if remedy else way_out
        others = extra(self.place, names)
        for i, name in enumerate(others):
            self.faults.value(printed(name), "no array of that name", "one", "" if i else self._with(others, lost))
        advice = self._other_layout(expected)
        for role, shape in self.shapes.items():
            if role in expected and shape != expected[role]:
                self._misshaped(role, shape, expected[role], advice)
            elif role not in expected and role.startswith("w_") and (len(shape) != 2 or 0 in shape):
                self.faults.value(self._name(role), "a weight of two axes, none of length 0", words(shape))
        width = self.settings.d_model
        if self.widths and width not in (None, self.widths.d_model):
            self.faults.value("config", f"a width of tokens of {self.widths.d_model}, as weights have it", str(width))

    def _without(self, lost: Collection[str]) -> str:
        """The remedy for biases that a model does not have."""
        biases = tuple(role for role in lost if role.startswith("b_"))
        if self.place.name == OWN:
            return f"a model without it: leave {' and '.join(map(repr, biases))} out of the pattern"
        groups = [tuple(role for role in group if role not in biases) for group in self.place.pattern.optional]
        optional = f"optional={(*filter(None, groups), biases)}"
        return f"a model without it: pattern=PATTERNS['{self.place.name}']._replace({optional})"

    def _with(self, others: Collection[str], lost: Collection[str]) -> str:
        """The remedy for names that are not the layer's, once for all of them."""
        if any("lora" in name.lower() for name in others):
            way_out = "merge LoRA's weights into the model's first (peft: merge_and_unload)"
        elif self.place.name != OWN and any(role.startswith("w_") for role in lost):
            way_out = description_remedy(dict.fromkeys([*others, *self.place.held.values()]), self.place.prefix)
        else:
            own = f"beside= of PATTERNS['{self.place.name}']"
            own = "'beside' of your pattern" if self.place.name == OWN else own
            way_out = f"leave it out of the state if the layer computes nothing with it, or name it in {own}"
        return f"{way_out}; pattern '{self.place.name}' has {listed(self.place.pattern.names.values(), 16)}"

    def heads(self) -> tuple[int, int, int]:
        """Number of heads, of key heads, and their width; zeros with what does not fit noted."""
        if self.widths is None:
            return 0, 0, 0
        heads, groups, known, _ = self.settings
        d_q, d_kv = self.widths.d_q, self.widths.d_kv
        if heads is None and known is None:
            self.faults.value(
                "n_heads", "the number of heads, which no shape says", "None", "or pass a config= that does"
            )
            return 0, 0, 0
        heads = heads or max(d_q // (known or 1), 1)
        d_head = d_q // heads
        if d_q % heads or known not in (None, d_head):
            whole = f"a number that divides d_q = {d_q}, the width of all heads"
            expected = whole if known is None else f"d_q / d_head = {d_q} / {known}{self._said_by('d_head', 'd_head')}"
            got = f"{heads}{self._said_by('n_heads')}"
            self.faults.value("n_heads", expected, got, self._exchanged(heads, groups))
            return 0, 0, 0
        own = d_kv // d_head
        if groups is None and (d_kv % d_head or not own or heads % own):
            expected = f"heads whose width divides d_kv = {d_kv}, the width of all key heads"
            got = f"{heads} heads of {d_head}{self._said_by('n_heads')}"
            self.faults.value("n_heads", expected, got, "n_kv_heads is d_kv / d_head")
        elif groups is not None and (groups * d_head != d_kv or heads % groups):
            fits = not d_kv % d_head and own and not heads % own
            expected = f"d_kv / d_head = {own}" if fits else f"one that n_heads = {heads} and d_kv = {d_kv} fit"
            got = f"{groups}{self._said_by('n_kv_heads')}"
            self.faults.value("n_kv_heads", expected, got, self._exchanged(heads, groups))
        elif self.place.pattern.fused == "heads" and "w_qkv" in self.shapes and own != heads:
            expected = f"{heads} = n_heads, where q, k and v of each head lie beside each other"
            self.faults.value("n_kv_heads", expected, str(own), "'fused': 'groups', or 'blocks' where they do not")
        return heads, own, d_head

    def _said_by(self, field: str, name: str = "") -> str:
        """Where a number came from, if not from an argument."""
        source = self.sources.get(field, "")
        return f", {name} as {source} says".replace("  ", " ") if source else ""

    def _exchanged(self, heads: int, groups: int | None) -> str:
        """The remedy where the two numbers of heads stand for each other."""
        assert self.widths is not None  # who counts heads knows the widths
        d_q, d_kv = self.widths.d_q, self.widths.d_kv
        fit = groups and heads < groups and not groups % heads and not d_q % groups and heads * (d_q // groups) == d_kv
        return f"exchanged they fit: n_heads={groups}, n_kv_heads={heads}" if fit else ""

    def _name(self, role: str) -> str:
        return printed(full_name(self.place.prefix, self.place.pattern.names[role]))

    def _other_layout(self, expected: Mapping[str, Shape]) -> str:
        """Advice to pass the other layout, where every weight fits transposed; a square one does not tell."""
        weights = {role: shape for role, shape in self.shapes.items() if role.startswith("w_")}
        if len(weights) < 2 or not all(_is_transpose(shape, expected.get(role, ())) for role, shape in weights.items()):
            return ""
        layout = f"layout='{'linear' if self.layout == 'conv1d' else 'conv1d'}'"
        own = f"pattern=PATTERNS['{self.place.name}']._replace({layout})"
        change = f"pass {f'your pattern with {layout}' if self.place.name == OWN else own}"
        if any(shape == shape[::-1] for shape in weights.values()):
            return (
                "transposed it fits: put its .T in its place; or, where all weights are stored so, "
                f"{change} (square ones are then read transposed too: compare one output)"
            )
        return f"transposed it fits, as do all: {change}"

    def _misshaped(self, role: str, shape: Shape, expected: Shape, all_turned: str) -> None:
        letters, remedy = "", ""
        if role.startswith("w_"):
            letters = "(in, out) = " if self.layout == "conv1d" else "(out, in) = "
            remedy = "transposed it fits: put its .T in its place" if _is_transpose(shape, expected) else ""
        remedy = all_turned if remedy and all_turned else remedy
        stored, wanted = (words(self.turned(role, x)) for x in (shape, expected))
        self.faults.value(self._name(role), f"{letters}{wanted}", stored, remedy)

    def raise_any(self) -> None:
        """One error of everything that was noted."""
        if self.faults.found:
            raise_all(self.faults, f"pattern '{self.place.name}' at '{printed(self.place.prefix)}'")


def raise_all(faults: Faults, where: str) -> NoReturn:
    """Raise every fault, however many: a state's owner mends all of them at once."""
    error = TypeError if any(fault.error is TypeError for fault in faults.found) else ValueError
    lines = "".join(f"\n  {fault}" for fault in faults.found)
    count = "1 thing does" if len(faults.found) == 1 else f"{len(faults.found)} things do"
    raise error(f"{faults.function}: {where}: {count} not fit{lines}")


def missing(pattern: Pattern, held: Collection[str]) -> list[str]:
    """The pattern's keys that should be held as well."""
    lacked = [role for role in pattern.asked if role not in held]
    if "w_qkv" in pattern.names and "w_q" in pattern.names:
        parts = [role for role in SEPARATE if role not in held]
        lacked += [] if "w_qkv" in held else ["w_qkv"] if len(parts) == 3 else parts
    for group in pattern.optional:
        if any(role in held for role in group):
            lacked += [role for role in group if role not in held]
    return lacked


def fits_well(place: Place) -> bool:
    """Whether more of a pattern's names are there than are missing: fewer may be there by chance."""
    return len(place.held) > len(missing(place.pattern, place.held))


def extra(place: Place, names: Collection[str]) -> list[str]:
    """Names where the layer's are that are neither the layer's nor known to stand beside it."""
    within = full_name(place.prefix, _folder(place.pattern)).rstrip(".")
    known = {full_name(place.prefix, name) for name in place.pattern.beside} | set(place.held.values())
    both = [role for role in SEPARATE if role in place.held and "w_qkv" in place.held]
    known -= {place.held[role] for role in both}
    return [name for name in names if (not within or name.startswith(f"{within}.")) and name not in known]


def _folder(pattern: Pattern) -> str:
    """What all names of a pattern begin with."""
    folders = [name.split(".")[:-1] for name in pattern.names.values()]
    common = []
    for parts in zip(*folders, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)


def _is_transpose(shape: Shape, expected: Shape) -> bool:
    return len(shape) == len(expected) == 2 and shape == expected[::-1]

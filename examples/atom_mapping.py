"""Which atom of the product was which atom before the reaction? One head of attention of a chemical model knows.

    pip install --no-deps rxnmapper==0.4.3    # 3 MB: the weights; nothing of its Python is imported
    python examples/atom_mapping.py
    python examples/atom_mapping.py --picture mapping.png    # pip install '.[plot]' for the picture
    python examples/atom_mapping.py "CCI.Oc1ccccc1>>CCOc1ccccc1"

RXNMapper [1] is ALBERT, trained to fill in hidden tokens of 1.3 million chemical reactions. Nobody told it what becomes
of an atom, but head 5 of layer 10 (from 0) found out: each product atom attends to the reactant atom that it was. So
here the weights of attention are the result, and what comes after them is not computed. The model is thirty lines:
embeddings, `hw.MultiHeadAttention` by the names in its file, a feed-forward network, the same weights in every layer.

From weights to a mapping, as the package does it [2]: those from product to reactant and those back are added, pairs of
different elements are left out, each row is divided by its sum. The largest share of all is taken first; shares of the
neighbours of its two atoms count 90 times more from then on; both atoms are out. The confidence is the product of the
shares that were taken.

The package has RDKit write molecules canonically and sort them first. Here a reaction is taken as it is written, in
SMILES (`smiles.py`); another way to write it gives slightly other weights. Atoms are numbered in the product's order.

Licences: code and weights of rxnmapper are MIT (IBM).

[1] Schwaller, Hoover, Reymond, Strobelt, Laino, "Extraction of organic chemistry grammar from unsupervised learning of
    chemical reactions", Science Advances 7 (15), eabe4166, 2021; the two reactions below are those of its README.
[2] `rxnmapper/attention.py`, version 0.4.3.
"""

import argparse
import importlib.util
import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import smiles
from encoder import State, gelu, layer_norm, linear

import headwise as hw
from headwise import console
from headwise.core.shapes import Array
from headwise.files import FileError, check_target, open_checkpoint, read_text, shown, write_bytes
from headwise.view.heatmap import check_picture

REACTIONS = (
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "C1COCCO1.CC(C)(C)OC(=O)CONC(=O)NCc1cccc2ccccc12.Cl>>O=C(O)CONC(=O)NCc1cccc2ccccc12",
)
PACKAGE = "rxnmapper"
INSTALL = "pip install --no-deps rxnmapper==0.4.3"
FOLDER = Path("models/transformers/albert_heads_8_uspto_all_1310k")
N_HEADS, LAYER, HEAD, MOST_TOKENS = 8, 10, 5, 512
NEIGHBOURS = 90.0  # by so much shares of neighbours of mapped atoms count more
NOWHERE = -1


# ---------------------------------------------------------------------------------------------------------- the model
def head_weights(state: State, ids: Sequence[int]) -> Array:
    """Weights of attention (n, n) of the head that maps atoms, for the n tokens of a reaction."""
    at, shared = "albert.embeddings", "albert.encoder.albert_layer_groups.0.albert_layers.0"
    x = state[f"{at}.word_embeddings.weight"][ids] + state[f"{at}.position_embeddings.weight"][: len(ids)]
    x = layer_norm(x + state[f"{at}.token_type_embeddings.weight"][0], state, f"{at}.LayerNorm")  # (n, 128)
    x = linear(x, state, "albert.encoder.embedding_hidden_mapping_in")  # (n, 256)
    attention = hw.weights.from_state_dict(state, f"{shared}.attention", n_heads=N_HEADS)  # all twelve layers share it
    for _ in range(LAYER):
        x = layer_norm(x + attention(x), state, f"{shared}.attention.LayerNorm")
        wide = gelu(linear(x, state, f"{shared}.ffn"))  # (n, 512)
        x = layer_norm(x + linear(wide, state, f"{shared}.ffn_output"), state, f"{shared}.full_layer_layer_norm")
    _, weights = attention(x, return_weights=True)  # (H, n, n)
    return np.asarray(weights[HEAD])


# ---------------------------------------------------------------------------------------------------------- the mapping
class Mapped(NamedTuple):
    """A reaction mapped.

    Attributes
    ----------
    reaction, mapped : str
        As it was given, and with numbers.
    confidence : float
    origins : list of int
        For each atom of the product that of the reactants, -1 where there is none.
    weights : ndarray, shape (product atoms, reactant atoms)
        What the head gives.
    product, reactants : list of str
        The atoms.
    """

    reaction: str
    mapped: str
    confidence: float
    origins: list[int]
    weights: Array
    product: list[str]
    reactants: list[str]


def assign(attention: Array, product: smiles.Molecules, reactants: smiles.Molecules) -> tuple[list[int], float]:
    """Take shares of attention (product atoms, reactant atoms) one after the other, the largest first."""
    same = np.array(product.elements)[:, None] == np.array(reactants.elements)
    attention, factors = attention * same.astype(float), np.ones(attention.shape)
    origins, confidence = [NOWHERE] * len(attention), 1.0
    for _ in attention:
        shares = attention * factors
        sums = shares.sum(axis=1, keepdims=True)
        shares = np.divide(shares, sums, out=np.zeros_like(shares), where=sums != 0)
        i, j = (int(at) for at in np.unravel_index(shares.argmax(), shares.shape))
        if np.isclose(shares[i, j], 0):
            break
        origins[i], confidence = j, confidence * float(shares[i, j])
        factors[np.ix_(product.bonded(i), reactants.bonded(j))] *= NEIGHBOURS
        factors[i], factors[:, j] = 0, 0
    return origins, confidence


def parts(reaction: str) -> tuple[smiles.Molecules, smiles.Molecules]:
    """Reactants and product of a reaction; ValueError if it is none, or too long."""
    sides = reaction.split(">>")
    if len(sides) != 2 or re.search(r":[0-9]+\]", reaction):
        raise ValueError(f"expected reactants>>product, atoms without numbers, got '{reaction}'")
    reactants, product = (smiles.read(side) for side in sides)
    if (n := len(reactants.tokens) + len(product.tokens) + 3) > MOST_TOKENS:
        raise ValueError(f"expected a reaction of at most {MOST_TOKENS} tokens, got {n}")
    return reactants, product


class Mapper:
    """The model, read from the files of the package."""

    def __init__(self) -> None:
        found = importlib.util.find_spec(PACKAGE)  # where it is; nothing is imported
        if found is None or not found.submodule_search_locations:
            raise ModuleNotFoundError(f"expected the weights of rxnmapper, got no such package; {INSTALL}")
        folder = Path(found.submodule_search_locations[0]) / FOLDER
        self.state = open_checkpoint(folder / "pytorch_model.bin")
        self.ids = {token: i for i, token in enumerate(read_text(folder / "vocab.txt").splitlines())}

    def __call__(self, reaction: str) -> Mapped:
        """Map a reaction; ValueError if it is none."""
        reactants, product = parts(reaction)
        tokens = ["[CLS]", *reactants.tokens, ">>", *product.tokens, "[SEP]"]
        weights = head_weights(self.state, [self.ids.get(token, self.ids["[UNK]"]) for token in tokens])
        before = np.array(reactants.atoms) + 1
        after = np.array(product.atoms) + 2 + len(reactants.tokens)
        there, back = weights[np.ix_(after, before)], weights[np.ix_(before, after)].T
        origins, confidence = assign(there + back, product, reactants)
        numbers = {j: i + 1 for i, j in enumerate(origins) if j != NOWHERE}
        mapped = smiles.numbered(product, {i: i + 1 for i, j in enumerate(origins) if j != NOWHERE})
        mapped = f"{smiles.numbered(reactants, numbers)}>>{mapped}"
        return Mapped(reaction, mapped, confidence, origins, there, product.labels, reactants.labels)


# ---------------------------------------------------------------------------------------------- picture and terminal
def draw(mapped: Mapped, path: str, force: bool) -> None:
    """Draw what the head gives, product x reactants; a ring marks where each atom came from."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.6), dpi=100, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(mapped.weights, vmin=0, vmax=1, cmap="magma", interpolation="nearest")
    rows = [i for i, j in enumerate(mapped.origins) if j != NOWHERE]
    axes.scatter(
        [mapped.origins[i] for i in rows], rows, s=90, facecolors="none", edgecolors="tab:cyan", linewidths=1.5
    )
    axes.set_xticks(range(len(mapped.reactants)), mapped.reactants)
    axes.set_yticks(range(len(mapped.product)), mapped.product)
    for label in axes.get_xticklabels():
        label.set_rotation(90 if max(map(len, mapped.reactants)) > 2 else 0)
    axes.set(xlabel="atoms of the reactants", ylabel="atoms of the product")
    axes.set_title(f"Layer {LAYER}, head {HEAD}: weights of attention; rings: the mapping")
    figure.colorbar(image, ax=axes, label="weight", shrink=0.8)
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    write_bytes(path, file.getvalue(), ending=".png", force=force)


def report(mapped: Mapped, look: console.Look, picture: bool) -> str:
    """What was found, in words, and the weights as a picture of signs unless they are drawn elsewhere."""
    pairs = [("reaction", mapped.reaction), ("mapped", mapped.mapped), ("confidence", f"{mapped.confidence:.6f}")]
    text = console.facts(pairs, look)  # not folded: it is to be copied
    return text if picture else f"{text}\n{console.heatmap(mapped.weights, mapped.product, mapped.reactants, look)}"


def run(options: argparse.Namespace) -> None:
    if options.picture is not None:
        check_target(options.picture, force=options.force, ending=".png")
    mapper = Mapper()
    found = [mapper(reaction) for reaction in options.reaction or REACTIONS]
    look = console.look(sys.stdout)
    console.emit("\n\n".join(report(each, look, options.picture is not None) for each in found), sys.stdout)
    if options.picture is not None:  # last: where matplotlib is missing, the mapping is told all the same
        check_picture(options.picture, force=options.force)
        draw(found[0], options.picture, options.force)
        console.emit(f"\nwrote {shown(options.picture, 1000)}", sys.stdout)


def main(arguments: Sequence[str] | None = None) -> int:
    """Map and report; return the exit status: 2 for what is no reaction, a file or a package that is missing."""
    parser = argparse.ArgumentParser(prog="atom_mapping", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("reaction", nargs="*", help="reactants>>product, in SMILES (default: two)")
    parser.add_argument("--picture", metavar="OUT.png", help="draw the head for the first reaction, by matplotlib")
    parser.add_argument("--force", action="store_true", help="replace a picture that exists")
    try:
        run(parser.parse_args(arguments))
    except (FileError, ModuleNotFoundError, ValueError) as error:
        console.emit(f"atom_mapping: {shown(error, 2000)}", sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

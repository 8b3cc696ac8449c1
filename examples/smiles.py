"""Molecules from the notation SMILES: tokens, atoms, bonds, and the same text again with numbers for its atoms.

What `atom_mapping.py` needs, not all of SMILES: the tokens are those of its model, and nothing is made canonical.

Source: www.opensmiles.org; hydrogens that are not written by its section 3.1.5.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from headwise.core.shapes import Array

TOKEN = re.compile(r"\[[^\]]+\]|Br?|Cl?|[NOSPFIbcnosp]|>>?|%[0-9]{2}|[-.=#+\\/:~@?*$()0-9]")
ORDERS = {"-": 1, "/": 1, "\\": 1, ":": 1, "~": 0, "=": 2, "#": 3, "$": 4}  # aromatic bonds count 1
VALENCES = {"B": (3,), "C": (4,), "N": (3, 5), "O": (2,), "P": (3, 5), "S": (2, 4, 6), "*": (0,)}  # halogens: (1,)
NONE = -1


class Molecules(NamedTuple):
    """One or more molecules.

    Attributes
    ----------
    tokens : list of str
    atoms : list of int
        Which of the tokens are atoms.
    orders : ndarray, shape (atoms, atoms)
        Orders of the bonds, `NONE` where there is none.
    """

    tokens: list[str]
    atoms: list[int]
    orders: Array

    @property
    def labels(self) -> list[str]:
        """The tokens of the atoms."""
        return [self.tokens[place] for place in self.atoms]

    @property
    def elements(self) -> list[str]:
        """The element of each atom: `C` of `c` and of `[13CH3]`."""
        found = (re.match(r"\[?[0-9]*([A-Z][a-z]?|[a-z]{1,2}|\*)", label) for label in self.labels)
        return [match[1].capitalize() if match else "?" for match in found]

    def bonded(self, atom: int) -> Array:
        """Which atoms an atom is bonded to, a bool for each."""
        return np.asarray(self.orders[atom] != NONE)


def read(text: str) -> Molecules:
    """Read molecules; ValueError where they are not written as SMILES are."""
    tokens = _tokens(text)
    atoms = [place for place, token in enumerate(tokens) if token[0].isalpha() or token[0] in "[*"]
    orders = np.full((len(atoms), len(atoms)), NONE)
    for (one, other), order in _bonds(tokens, text).items():
        orders[one, other] = orders[other, one] = order
    return Molecules(tokens, atoms, orders)


def _tokens(text: str) -> list[str]:
    if not text:
        raise ValueError("expected molecules in SMILES, got nothing")
    tokens, place = [], 0
    while place < len(text):
        found = TOKEN.match(text, place)
        if found is None:
            raise ValueError(f"expected molecules in SMILES, got '{text}', in which '{text[place]}' is no atom or bond")
        tokens.append(found[0])
        place = found.end()
    return tokens


def _bonds(tokens: list[str], text: str) -> dict[tuple[int, int], int]:
    """Orders of bonds between atoms, which are numbered as they come."""
    bonds: dict[tuple[int, int], int] = {}
    branches: list[int] = []
    rings: dict[str, tuple[int, int]] = {}
    last, order, count = NONE, 1, 0
    for token in tokens:
        if token in ORDERS:
            order = ORDERS[token]
            continue
        if token[0].isalpha() or token[0] in "[*":
            if last != NONE:
                bonds[last, count] = order
            last, count = count, count + 1
        elif token == "(":
            branches.append(last)
        elif token == ")" and branches:
            last = branches.pop()
        elif token == ".":
            last = NONE
        elif token[-1].isdigit() and last != NONE:
            if token in rings:
                first, opened = rings.pop(token)
                bonds[first, last] = max(order, opened)
            else:
                rings[token] = last, order
        else:
            raise ValueError(f"expected molecules in SMILES, got '{text}', in which '{token}' has no place")
        order = 1
    if branches or rings:
        raise ValueError(f"expected branches and rings that close, got '{text}'")
    return bonds


def numbered(molecules: Molecules, numbers: Mapping[int, int]) -> str:
    """Write molecules as they were, some atoms with a number.

    >>> print(numbered(read("CC(=O)Oc1ccccc1"), {0: 1, 3: 2, 4: 3, 5: 4}))
    [CH3:1]C(=O)[O:2][c:3]1[cH:4]cccc1
    """
    tokens = list(molecules.tokens)
    for atom, number in numbers.items():
        place = molecules.atoms[atom]
        tokens[place] = f"{_bracketed(molecules, atom)[:-1]}:{number}]"
    return "".join(tokens)


def _bracketed(molecules: Molecules, atom: int) -> str:
    """An atom in brackets, where its hydrogens must be written."""
    token = molecules.labels[atom]
    if token[0] == "[":
        return token
    aromatic = token.islower()
    valences = VALENCES.get(token.upper(), (1,))[: 1 if aromatic else None]
    bonds = int(molecules.orders[atom][molecules.bonded(atom)].sum()) + aromatic
    hydrogens = next((valence - bonds for valence in valences if valence >= bonds), 0)
    return f"[{token}{'' if hydrogens == 0 else 'H' if hydrogens == 1 else f'H{hydrogens}'}]"

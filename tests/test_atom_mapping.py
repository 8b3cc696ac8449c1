"""The example that maps atoms: the published confidences and maps of a real model, its molecules, its mistakes.

Needs the weights of rxnmapper, which `make test` installs: pip install --no-deps rxnmapper==0.4.3.
"""

import doctest
import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaded import example

README = Path(__file__).parents[1] / "README.md"
HAS_WEIGHTS = importlib.util.find_spec("rxnmapper") is not None
WITH_WEIGHTS = pytest.mark.skipif(not HAS_WEIGHTS, reason="pip install --no-deps rxnmapper==0.4.3")
# From the README of rxnmapper 0.4.3: mapped reactions, confidences.
PUBLISHED = (
    "CN(C)C=O.F[c:5]1[n:6][cH:7][cH:8][cH:9][c:10]1[F:11].O=C([O-])[O-].[CH3:1][CH:2]([CH3:3])[SH:4].[K+].[K+]"
    ">>[CH3:1][CH:2]([CH3:3])[S:4][c:5]1[n:6][cH:7][cH:8][cH:9][c:10]1[F:11] 0.9565619900376546\n"
    "C1COCCO1.CC(C)(C)[O:3][C:2](=[O:1])[CH2:4][O:5][NH:6][C:7](=[O:8])[NH:9][CH2:10][c:11]1[cH:12][cH:13][cH:14]"
    "[c:15]2[cH:16][cH:17][cH:18][cH:19][c:20]12.Cl>>[O:1]=[C:2]([OH:3])[CH2:4][O:5][NH:6][C:7](=[O:8])[NH:9]"
    "[CH2:10][c:11]1[cH:12][cH:13][cH:14][c:15]2[cH:16][cH:17][cH:18][cH:19][c:20]12 0.9704424331552834"
)
MAPPED, CONFIDENCES = zip(*(line.split() for line in PUBLISHED.splitlines()), strict=True)
Capture = pytest.CaptureFixture[str]
atom_mapping = example("atom_mapping")
smiles = atom_mapping.smiles


@pytest.fixture(scope="module")
def mapper() -> Any:
    return atom_mapping.Mapper()


def drawing(side: str) -> tuple[Counter[Any], Counter[Any]]:
    """Atoms and bonds with elements, hydrogens, charges and numbers: the same however the molecules are written."""
    molecules = smiles.read(side)
    atoms = [re.sub(r"^\[([A-Za-z]+)\]$", r"\1", label) for label in molecules.labels]
    bonds = np.argwhere(np.triu(molecules.orders) >= 0)
    return Counter(atoms), Counter(
        (*sorted((atoms[i], atoms[j])), int(molecules.orders[i, j])) for i, j in bonds.tolist() if i != j
    )


@WITH_WEIGHTS
@pytest.mark.parametrize("i", range(2))
def test_confidence_and_map_are_the_published_ones(mapper: Any, i: int, record_property: Any) -> None:
    published, confidence = MAPPED[i], float(CONFIDENCES[i])
    found = mapper(atom_mapping.REACTIONS[i])
    record_property(f"RXNMapper reaction {i + 1}: confidence", f"{found.confidence:.8f}, published {confidence:.8f}")
    assert found.confidence == pytest.approx(confidence, rel=0, abs=1e-6)
    ours, theirs = found.mapped.split(">>"), published.split(">>")
    assert ours[1] == theirs[1]
    assert drawing(ours[0]) == drawing(theirs[0])
    assert len(set(found.origins)) == len(found.origins) == len(found.product)


def test_drawings_tell_maps_apart() -> None:
    """Else equal drawings would say nothing."""
    reactants = MAPPED[0].split(">>")[0]
    assert drawing("OC(C)=O") == drawing("CC(O)=O")
    for one, other in (("10", "6"), ("11", "5"), ("1", "4")):
        swapped = re.sub(rf":({one}|{other})\]", lambda m, a=one, b=other: f":{b if m[1] == a else a}]", reactants)
        assert drawing(swapped) != drawing(reactants)


@WITH_WEIGHTS
def test_it_is_this_head_of_this_layer(mapper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    best = mapper(atom_mapping.REACTIONS[0]).confidence
    for name, wrong in (("HEAD", 4), ("HEAD", 6), ("LAYER", 9), ("LAYER", 11), ("NEIGHBOURS", 1.0)):
        with monkeypatch.context() as patch:
            patch.setattr(atom_mapping, name, wrong)
            assert mapper(atom_mapping.REACTIONS[0]).confidence < best - 1e-3, (name, wrong)


@WITH_WEIGHTS
def test_the_readme_shows_what_it_prints(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mapping.png"
    assert atom_mapping.main(["--picture", "mapping.png"]) == 0
    assert f"```\n{capsys.readouterr().out}```\n" in README.read_text()
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size < 100_000
    path.write_bytes(b"old")
    assert atom_mapping.main(["--picture", "mapping.png"]) == 2
    remedy = "name another, or replace it: force=True, --force"
    says = f"atom_mapping: mapping.png: expected a new name, got one that exists; {remedy}\n"
    assert capsys.readouterr() == ("", says)
    assert path.read_bytes() == b"old"


@WITH_WEIGHTS
def test_without_matplotlib_the_mapping_comes_first(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    assert atom_mapping.main(["--picture", str(tmp_path / "mapping.png")]) == 2
    out, errors = capsys.readouterr()
    assert re.findall(r"^confidence  (\S+)$", out, re.MULTILINE) == ["0.956562", "0.970442"]
    assert "wrote" not in out
    assert re.fullmatch(r"atom_mapping: .*expected matplotlib, got .*; pip install \"headwise\[plot\]\"\n", errors)
    assert list(tmp_path.iterdir()) == []


@WITH_WEIGHTS
def test_without_a_picture_the_weights_are_drawn_in_signs(capsys: Capture) -> None:
    assert atom_mapping.main(["CCI.Oc1ccccc1>>CCOc1ccccc1"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^confidence  0\.9\d{5}$", out, re.MULTILINE)
    assert "\nmapped      " in out
    assert len(re.findall(r"^. \|.{20}\|$", out, re.MULTILINE)) == 9


@WITH_WEIGHTS
def test_an_atom_from_nowhere_has_no_number(mapper: Any) -> None:
    found = mapper("CCO>>CCBr")
    assert found.origins[2] == atom_mapping.NOWHERE
    assert found.mapped == "[CH3:1][CH2:2]O>>[CH3:1][CH2:2]Br"


MISTAKES = {
    "CCO": "reactants>>product",
    "CCO>>CC>>C": "reactants>>product",
    ">>CCO": "expected molecules",
    "[CH3:1]C>>CC": "atoms without numbers",
    "CC O>>CC": "expected molecules",
    "C1CC>>CC": "branches and rings that close",
    "C(C>>CC": "branches and rings that close",
    "CC)>>CC": "')' has no place",
    "1CC>>CC": "'1' has no place",
    "C>C>>CC": "'>' has no place",
    f"{'C' * 512}>>C": "at most 512 tokens, got 516",
}


@pytest.mark.skipif(not HAS_WEIGHTS, reason="pip install --no-deps rxnmapper==0.4.3")
@pytest.mark.parametrize("reaction", ["C\x1b[31m>>C", "CC>>C\x9b2J", "C\u202eC>>C>>", "C\nC>>C"])
def test_no_terminal_acts_upon_what_is_no_reaction(reaction: str, capsys: Capture) -> None:
    assert atom_mapping.main([reaction]) == 2
    out, errors = capsys.readouterr()
    assert (out, errors.count("\n")) == ("", 1)
    assert errors[:-1].isprintable()


@pytest.mark.parametrize("reaction", MISTAKES)
def test_what_is_no_reaction_is_one_line(reaction: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=re.escape(MISTAKES[reaction])):
        atom_mapping.parts(reaction)
    if HAS_WEIGHTS:
        assert atom_mapping.main([reaction]) == 2
        out, errors = capsys.readouterr()
        assert (out, errors.count("\n"), errors[:14]) == ("", 1, "atom_mapping: ")


def test_where_the_weights_are_missing_it_says_how_to_get_them(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atom_mapping, "PACKAGE", "no_such_package")
    assert atom_mapping.main([]) == 2
    assert capsys.readouterr().err.endswith("pip install --no-deps rxnmapper==0.4.3\n")


# ---------------------------------------------------------------------------------------------------------- molecules
def test_the_example_of_molecules() -> None:
    assert tuple(doctest.testmod(smiles)) == (0, 1)  # failed, attempted


HYDROGENS = {
    "C": "[CH4:1]",
    "C=C": "[CH2:1]=[CH2:2]",
    "C#N": "[CH:1]#[N:2]",
    "CS(=O)(=O)O": "[CH3:1][S:2](=[O:3])(=[O:4])[OH:5]",
    "CS(C)=O": "[CH3:1][S:2]([CH3:3])=[O:4]",
    "ON(=O)=O": "[OH:1][N:2](=[O:3])=[O:4]",
    "OB(O)c1cc[nH]c1": "[OH:1][B:2]([OH:3])[c:4]1[cH:5][cH:6][nH:7][cH:8]1",
    "Cn1cccc1": "[CH3:1][n:2]1[cH:3][cH:4][cH:5][cH:6]1",
    "O=c1cco[nH]1": "[O:1]=[c:2]1[cH:3][cH:4][o:5][nH:6]1",
    "c1ccsc1": "[cH:1]1[cH:2][cH:3][s:4][cH:5]1",
    "[13CH3]Cl.[Na+].Br": "[13CH3:1][Cl:2].[Na+:3].[BrH:4]",
    "C/C=C\\F": "[CH3:1]/[CH:2]=[CH:3]\\[F:4]",
    "C%10CC%10": "[CH2:1]%10[CH2:2][CH2:3]%10",
    "C=1CCC1": "[CH:1]=1[CH2:2][CH2:3][CH:4]1",
}


@pytest.mark.parametrize("text", HYDROGENS)
def test_hydrogens(text: str) -> None:
    """Counted by hand."""
    molecules = smiles.read(text)
    assert smiles.numbered(molecules, {i: i + 1 for i in range(len(molecules.atoms))}) == HYDROGENS[text]


def test_bonds_and_elements() -> None:
    molecules = smiles.read("C1=C(Cl)C1.[nH]C")
    assert molecules.elements == ["C", "C", "Cl", "C", "N", "C"]
    found = {(i, j): int(molecules.orders[i, j]) for i, j in np.argwhere(np.triu(molecules.orders) > 0).tolist()}
    assert found == {(0, 1): 2, (1, 2): 1, (1, 3): 1, (0, 3): 1, (4, 5): 1}
    assert (molecules.orders == molecules.orders.T).all()

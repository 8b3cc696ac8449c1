"""The arrows of DESIGN.md: a module imports what stands to its left, and NumPy; extras only where they are used."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headwise

PACKAGE = Path(headwise.__file__).parent
DESIGN = Path(__file__).parents[1] / "DESIGN.md"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py"))
DRAWN = ("files", "layers")  # folders whose own order is given
AT_RUN_TIME = {"numpy", "threadpoolctl"}


def order():
    """The names in the order of DESIGN.md's drawing: layers and other folders stand for all of their modules."""
    drawing = re.search(r"```\n(shapes -> .*?)\n```", DESIGN.read_text(), re.S)
    assert drawing, "DESIGN.md has no drawing of the order"
    names = re.findall(r"\w+", drawing[1].partition("   (")[0])
    for folder in DRAWN:
        inside = re.search(rf"Inside {folder}: ([\w ->]+)", DESIGN.read_text())
        assert inside, f"DESIGN.md does not give the order inside {folder}"
        at = names.index(folder)
        names[at : at + 1] = [
            name if folder == "layers" else f"{folder}.{name}" for name in re.findall(r"\w+", inside[1])
        ]
    return names


def place(module):
    """The name under which a module stands in the drawing: its own, or its folder's."""
    parts = module.relative_to(PACKAGE).with_suffix("").parts
    if parts[0] == "files":
        return "files.checkpoint" if parts[-1] == "__init__" else ".".join(parts)  # it hands on what all of them have
    return parts[-1] if parts[0] in ("core", "layers") or len(parts) == 1 else parts[0]


def imports(tree, everywhere):
    """Names of the modules that a tree imports: anywhere, or on top level alone."""
    nodes = ast.walk(tree) if everywhere else tree.body
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own(name):
    """The path of a module of ours that an imported name stands for, or None."""
    parts = name.split(".")
    for n in range(len(parts), 1, -1):
        for path in (PACKAGE.joinpath(*parts[1:n]).with_suffix(".py"), PACKAGE.joinpath(*parts[1:n], "__init__.py")):
            if path.exists():
                return path
    return None


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_stands_to_its_left(module):
    names, tree = order(), ast.parse(module.read_text())
    assert place(module) in names, f"{module.name} does not stand in the drawing of DESIGN.md"
    for name in imports(tree, everywhere=True):
        if name.split(".")[0] == "headwise" and (other := own(name)) is not None:
            inside_a_folder = place(other) == place(module) and other != module
            assert inside_a_folder or names.index(place(other)) < names.index(place(module)), f"{module.name} <- {name}"


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_extras_are_imported_where_they_are_used(module):
    for name in imports(ast.parse(module.read_text()), everywhere=False):
        root = name.split(".")[0]
        assert root in sys.stdlib_module_names | {"headwise"} | AT_RUN_TIME, f"{module.name} imports {root} at its top"


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_core_knows_numpy_only(module):
    parts = module.relative_to(PACKAGE).parts
    if parts[0] != "core" or parts[-1] == "workers.py":
        return
    roots = {name.split(".")[0] for name in imports(ast.parse(module.read_text()), everywhere=True)}
    assert roots <= sys.stdlib_module_names | {"headwise", "numpy"}


def test_every_module_begins_by_saying_what_it_knows():
    for module in PACKAGE.rglob("*.py"):
        doc = ast.get_docstring(ast.parse(module.read_text()))
        assert doc, module
        assert re.match(r"[^\n]+[.:]$", doc.split("\n\n")[0].replace("\n", " ")), module


def test_folders_define_nothing():
    for path in PACKAGE.rglob("__init__.py"):
        if path.parent != PACKAGE:
            _, *body = ast.parse(path.read_text()).body or [None]
            hands_on = [ast.unparse(node) for node in body]
            handing = [text for text in hands_on if text.startswith(("from headwise.", "__all__ = ["))]
            assert hands_on == handing, f"{path} defines something"
            assert not hands_on or path.parent.name in ("check", "files"), f"{path} hands on names"


def test_importing_headwise_loads_numpy_threadpoolctl_and_the_standard_library_only():
    code = (
        "import json, sys, numpy.random, threadpoolctl; before = set(sys.modules); import headwise; "
        "print(json.dumps(sorted({name.split('.')[0] for name in set(sys.modules) - before})))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    roots = set(json.loads(ran.stdout))
    assert "headwise" in roots
    assert roots <= set(sys.stdlib_module_names) | {"headwise", "numpy"}


def test_one_softmax():
    """exp is called in core/softmax.py alone: no second softmax anywhere."""
    for module in MODULES:
        called = re.findall(r"\bnp\.exp\(", module.read_text())
        wrong_by_design = module.name in (
            "missteps.py",
            "missteps_tiles.py",
        )  # softmaxes that solutions are compared with
        assert not called or place(module) == "softmax" or wrong_by_design, module

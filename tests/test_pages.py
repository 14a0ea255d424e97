"""The generated pages say what their programs write, and every public name is documented."""

import ast
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import accuracy_page, reference_page

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("name", "program"), [("accuracy", accuracy_page), ("reference", reference_page)])
def test_a_page_is_what_its_program_writes(name: str, program: ModuleType) -> None:
    assert (ROOT / "docs" / f"{name}.md").read_text() == program.page()


def test_the_readme_repeats_the_summary() -> None:
    assert accuracy_page.summary() in (ROOT / "README.md").read_text()


def test_every_table_is_on_the_page() -> None:
    tables = sorted(accuracy_page.TABLES.glob("*.csv"))
    page = accuracy_page.page()
    assert [path.name for path in tables if f"accuracy/{path.name}" not in page] == []


def test_every_public_function_and_class_is_documented() -> None:
    bare = [
        f"{name}.{public}"
        for name in reference_page.modules()
        for public in getattr(import_module(name), "__all__", ())
        if callable(getattr(import_module(name), public)) and not getattr(import_module(name), public).__doc__
    ]
    assert bare == []


def test_documented_parameters_are_those_of_the_function() -> None:
    wrong = []
    for path in sorted(
        file for package in ("profilers", "replay", "seqpoint") for file in (ROOT / package).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef) or not (text := parameter_section(ast.get_docstring(node) or "")):
                continue
            taken = node.args
            names = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs, taken.vararg, taken.kwarg]
            there = {name.arg for name in names if name is not None} - {"self", "cls"}
            heads = [line.split(" : ")[0] for line in text.split("\n") if line and not line.startswith(" ")]
            documented = [name.strip(" *") for head in heads for name in head.split(",")]
            if len(set(documented)) < len(documented) or set(documented) - there:
                wrong.append(f"{path.name}: {node.name} documents {documented}")
            elif not node.name.startswith("_") and set(documented) != there:
                wrong.append(f"{path.name}: {node.name} leaves out {sorted(there - set(documented))}")
    assert wrong == []


def parameter_section(docstring: str) -> str:
    """Return the section Parameters of a docstring, empty if it has none."""
    found = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[\w ]*\n-{3,}|\Z)", docstring, re.DOTALL | re.MULTILINE)
    return found.group(1) if found else ""

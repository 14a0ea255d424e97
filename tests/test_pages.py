"""The generated pages say what their programs write, and every public name is documented."""

import ast
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from benchmarks import accuracy_page

ROOT = Path(__file__).parents[1]


#: Modules whose public names the reference has.
REFERENCE = re.findall(
    r"^::: (.+)", "".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md")), re.MULTILINE
)


def modules() -> Iterator[str]:
    """Yield the name of every module but those of the command line, whose reference is `--help`."""
    for package in ("profilers", "replay", "seqpoint"):
        for found in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
            if not found.name.startswith("seqpoint.cli"):
                yield found.name


def test_the_page_of_accuracy_is_what_its_program_writes() -> None:
    assert (ROOT / "docs/accuracy.md").read_text() == accuracy_page.page()


def test_the_reference_has_every_public_name() -> None:
    names = {name: set(getattr(import_module(name), "__all__", ())) for name in [*modules(), "seqpoint"]}
    shown = set().union(*(names[name] for name in REFERENCE))
    assert {name: left for name, public in names.items() if (left := public - shown)} == {}


def test_the_readme_repeats_the_summary() -> None:
    assert accuracy_page.summary() in (ROOT / "README.md").read_text()


def test_every_table_is_on_the_page() -> None:
    tables = sorted(accuracy_page.TABLES.glob("*.csv"))
    page = accuracy_page.page()
    assert [path.name for path in tables if f"accuracy/{path.name}" not in page] == []


def test_every_public_function_and_class_is_documented() -> None:
    bare = [
        f"{name}.{public}"
        for name in modules()
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

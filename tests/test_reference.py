"""The reference page lists what is public, and nothing else.

`python tests/test_reference.py > docs/reference.md` writes it anew.
"""

import ast
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference.md"
HEAD = """# Reference

What is public, by module: every name in a module's `__all__`, with the first line of its documentation. The whole
of it is in the docstrings (`help(name)`). Written by `python tests/test_reference.py > docs/reference.md`.
"""


def modules() -> Iterator[str]:
    """Yield the name of every module that has a public name; those of the command line are its commands."""
    for package in ("profilers", "replay", "seqpoint"):
        for found in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
            if not found.name.startswith("seqpoint.cli"):
                yield found.name


def page() -> str:
    """Return the page as it should be."""
    parts = [HEAD]
    for name in sorted(modules()):
        module = import_module(name)
        rows = [f"- `{public}`{summary(getattr(module, public))}" for public in sorted(getattr(module, "__all__", ()))]
        if rows:
            parts.append(f"## {name}\n\n{(module.__doc__ or '').strip().splitlines()[0]}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def summary(value: object) -> str:
    """Return the first line of a class's or function's documentation."""
    documented = callable(value) and value.__doc__
    return f": {value.__doc__.strip().splitlines()[0]}" if documented else ""


def test_the_page_lists_what_is_public() -> None:
    assert PAGE.read_text() == page()


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


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201

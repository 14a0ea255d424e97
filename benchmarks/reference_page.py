"""Write the reference page: what is public, by module.

`python benchmarks/reference_page.py > docs/reference.md` writes it anew.
"""

import pkgutil
from collections.abc import Iterator
from importlib import import_module

HEAD = """# Reference

What is public, by module: every name in a module's `__all__`, with the first line of its documentation. The whole
of it is in the docstrings (`help(name)`). Written by `python benchmarks/reference_page.py > docs/reference.md`.
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


if __name__ == "__main__":
    print(page(), end="")

"""Compile functions with numba, keeping the machine code on disk where there is a place for it."""

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import config


def compiled(function: Callable[..., Any]) -> Any:
    """Return `function` compiled at its first call.

    The code is kept beside the module, or in the user's cache directory where the module's is read-only
    (``NUMBA_CACHE_DIR`` names another), in a folder that changes with the sources: numba itself looks only at
    the file of the function, not at what is inlined into it. Where nothing can be written, it is compiled in
    every process.

    Examples
    --------
    >>> exec("def twice(x):\\n    return 2 * x")  # no file, so nowhere to cache
    >>> compiled(twice)(21)
    42
    """
    return _compiled(function, {})


def bare(function: Callable[..., Any]) -> Any:
    """Return `function` compiled without counting references to the arrays it is given; it must make none.

    Counting, at every use of an array in a tuple, made the scanner ten times slower.
    """
    return _compiled(function, {"_nrt": False})


def inlined(function: Callable[..., Any]) -> Any:
    """Return `function` compiled into each of its callers, which are `compiled` themselves."""
    return _compiled(function, {"_nrt": False, "forceinline": True})


def _compiled(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    options = {"nogil": True, "error_model": "numpy", **options}
    try:
        with _cache_folder(Path(function.__code__.co_filename)):
            return numba.njit(cache=True, **options)(function)
    except RuntimeError:
        return numba.njit(**options)(function)


@contextmanager
def without_blas() -> Iterator[None]:
    """Let numba start without looking for a BLAS, for a process that needs none.

    The first compiled call of a process makes numba load SciPy's linear algebra, only to learn whether
    ``np.dot`` can be compiled; that is a tenth of the time to ingest 500 MB. Within this context SciPy seems to
    be absent; a process that has started so cannot compile ``np.dot``.
    """
    name = "scipy.linalg"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


@contextmanager
def _cache_folder(source: Path) -> Iterator[None]:
    """Let numba keep what it compiles now in the folder of these sources."""
    before = config.CACHE_DIR
    config.CACHE_DIR = str(_folder(source.parent, before)) if source.is_file() else before
    try:
        yield
    finally:
        config.CACHE_DIR = before


@cache
def _folder(package: Path, named: str) -> Path:
    """Return where the code of a package is kept: one folder for each state of its sources."""
    facts = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in sorted(package.glob("*.py"))]
    facts.append((str(Path(__file__)), Path(__file__).stat().st_size, Path(__file__).stat().st_mtime_ns))
    name = f"numba-{hashlib.sha256(repr(facts).encode()).hexdigest()[:12]}"
    beside = package / "__pycache__"
    if not named and os.access(package, os.W_OK):
        return beside / name
    return Path(named or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seqpoint" / name

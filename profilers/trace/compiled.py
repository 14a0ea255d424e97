"""Compile functions with numba at their first call, and keep the machine code on disk.

numba itself loads with the first call of a compiled function, and writes a line to `LOGGER` before it compiles.
"""

import hashlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, update_wrapper
from importlib import import_module
from pathlib import Path
from typing import Any

#: Takes a line of level INFO before each compilation; a function that is loaded from disk has none.
LOGGER = logging.getLogger(__name__)


def compiled(function: Callable[..., Any]) -> Any:
    """Return `function` compiled at its first call.

    The code is kept beside the module, or in the user's cache directory if the module's is read-only
    (``NUMBA_CACHE_DIR`` names another). Its folder changes with the sources of the package, since numba looks only at
    the file of the function, not at functions inlined into it. If no folder can be written, each process compiles.

    Parameters
    ----------
    function : callable
        Python code that numba can compile.

    Examples
    --------
    >>> exec("def twice(x):\\n    return 2 * x")  # no file, so nowhere to cache
    >>> compiled(twice)(21)
    42
    """
    return _Compiled(function, {})


def bare(function: Callable[..., Any]) -> Any:
    """Return `function` compiled without counting references to its arrays; it must not make arrays.

    Counting, at every use of an array in a tuple, made the scanner ten times slower.
    """
    return _Compiled(function, {"_nrt": False})


def inlined(function: Callable[..., Any]) -> Any:
    """Return `function` compiled into each of its callers, which are `compiled` themselves.

    It has no entry from Python: compiling one for each inlined function took half of the time to compile the engine.
    """
    return _Inlined(function, {"_nrt": False, "forceinline": True, "no_cpython_wrapper": True})


class _Compiled:
    """A function that numba compiles at its first call.

    Numba, which takes 0.3 s to load, loads with the first function of a process that is called.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self._function = function
        self._made: Any = None
        self._options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, **options}

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self._dispatcher(*arguments)
        except SystemError as error:
            # An interrupt while numba loads a function reaches its caller as a fault of the interpreter.
            if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise

    def __reduce__(self) -> str:
        return self._function.__qualname__

    @property
    def _numba_type_(self) -> Any:
        """The type of the function for numba, when another compiled function calls it."""
        return self._dispatcher._numba_type_

    @property
    def _dispatcher(self) -> Any:
        # No `cached_property`: in Python 3.11 it locks, and a thread that compiles would wait for one that wants to.
        if self._made is None:
            with _numba().core.compiler_lock.global_compiler_lock:
                self._made = self._make() if self._made is None else self._made
        return self._made

    def _make(self) -> Any:
        numba = _numba()
        try:
            with _cache_folder(Path(self._function.__code__.co_filename)):
                return numba.njit(cache=True, **self._options)(self._function)
        except RuntimeError:
            return numba.njit(**self._options)(self._function)


class _Inlined(_Compiled):
    """A function that only compiled functions call."""

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError(f"{self._function.__name__} is inlined: only compiled functions call it")


@cache
def _numba() -> Any:
    """Load numba, and log what it compiles of ours from now on."""
    numba, events = import_module("numba"), import_module("numba.core.event")
    with _without_blas():
        import_module("numba.np.arraymath")
    events.Listener.register(_Log)
    events.register("numba:compile", _Log())
    return numba


class _Log:
    """A listener that logs each outermost compilation, not those of inlined functions within."""

    def __init__(self) -> None:
        self._depth = 0

    def notify(self, event: Any) -> None:
        """Take note of an event of numba: a compilation starts or ends."""
        if event.is_start and not self._depth:
            LOGGER.info("compiling %s", event.data["dispatcher"].__name__)
        self._depth += 1 if event.is_start else -1


@contextmanager
def _without_blas() -> Iterator[None]:
    """Let SciPy's linear algebra seem to be absent.

    Numba loads it, for 0.15 s, only to choose how ``np.convolve`` is compiled.
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
    """Let numba keep the code that it compiles meanwhile in the folder of these sources."""
    config = _numba().core.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(_folder(source.parent, before)) if source.is_file() else before
    try:
        yield
    finally:
        config.CACHE_DIR = before


@cache
def _folder(package: Path, named: str) -> Path:
    """Return the folder for the code of a package, one for each state of its sources."""
    facts = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in sorted(package.glob("*.py"))]
    facts.append((str(Path(__file__)), Path(__file__).stat().st_size, Path(__file__).stat().st_mtime_ns))
    name = f"numba-{hashlib.sha256(repr(facts).encode()).hexdigest()[:12]}"
    beside = package / "__pycache__"
    if not named and os.access(package, os.W_OK):
        return beside / name
    return Path(named or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seqpoint" / name

"""Compile functions with numba at their first call, and keep the machine code on disk.

numba itself loads with the first call of a compiled function, and writes a line to `LOGGER` before it compiles.

A file of machine code is found by what it was compiled from: the bytecode of the function and of all that it calls, the
constants that they read, the types of the arguments, the processor, and the versions of numba, llvmlite and NumPy.
So a fresh checkout starts with the code of the one before it, a comment costs nothing, and no edit is run stale.

A wheel carries the code of what most commands call, for a generic processor (`hatch_build.py`). It is looked for first.
"""

import hashlib
import inspect
import logging
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from functools import cache, update_wrapper
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

#: Takes a line of level INFO before each compilation; a function that is loaded from disk has none.
LOGGER = logging.getLogger(__name__)

#: The folder of machine code holds no more; the files that were used least recently go. The tests compile 60 MB.
MAX_FOLDER_BYTES = 512 * 1024 * 1024

#: Machine code that an installed wheel carries: read, never written, and absent in a checkout.
SHIPPED_FOLDER = Path(__file__).parents[2] / "seqpoint" / "machine_code"
#: File in that folder with the versions of the libraries, as `compiled_with` returns them.
MADE_WITH = "made_with.json"
#: Libraries whose versions machine code depends on.
LIBRARIES = ("numba", "llvmlite", "numpy")

#: Name and features of the processor that shipped code is compiled for: any of the same architecture runs it.
_ANY_PROCESSOR = ("generic", "")
_DIGEST_BYTES = 32


def compiled(function: Callable[..., Any]) -> Any:
    """Return `function` compiled at its first call.

    The code is kept in the user's cache directory (``NUMBA_CACHE_DIR`` names another). If that cannot be written, each
    process compiles.

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
        dispatcher = numba.njit(**self._options)(self._function)
        if Path(self._function.__code__.co_filename).is_file():
            dispatcher._cache = _CodeFiles(_folder(numba.config.CACHE_DIR), self._function, repr(self._options))
        return dispatcher


class _Inlined(_Compiled):
    """A function that only compiled functions call."""

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError(f"{self._function.__name__} is inlined: only compiled functions call it")


@cache
def _numba() -> Any:
    """Load numba, and log what it compiles of ours from now on."""
    numba, events = import_module("numba"), import_module("numba.core.event")
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


def _folder(named: str) -> Path | None:
    """Return the folder of machine code: below `named` or the user's cache directory, or None without a home."""
    with suppress(RuntimeError):
        return Path(named or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seqpoint" / "compiled"
    return None


def user_folder() -> Path | None:
    """Return the folder where the machine code of this user is kept; None without a home."""
    return _folder(os.environ.get("NUMBA_CACHE_DIR", ""))


@cache
def compiled_with() -> dict[str, str]:
    """Return the versions of the libraries that machine code depends on, by name."""
    return {library: import_module(library).__version__ for library in LIBRARIES}


class _CodeFiles:
    """The files of a function's machine code: one for the types of its arguments. Takes the place of numba's cache.

    Files lie in `SHIPPED_FOLDER`, and in `folder`, which alone is written. Without it nothing is kept.

    Several processes may share the folder: a file is written beside and renamed, and never changes. It begins with the
    SHA-256 of what follows, so a damaged file is compiled again.
    """

    def __init__(self, folder: Path | None, function: Any, options: str) -> None:
        self._folder = folder
        self._name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        self._facts = (options, source_key(function), sys.version_info[:2], tuple(compiled_with().values()))

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return what was compiled for these types of arguments, or None.

        Machine code needs numba's runtime alone. What a compiler needs loads in 0.2 s, so it loads before one runs.
        """
        import_module("numba.core.runtime").rtsys.initialize(context)
        with _without_blas():
            kept = self._kept(signature, context)
            if kept is None:
                import_module("numba.np.arraymath")
        return kept

    def _kept(self, signature: Any, context: Any) -> Any:
        """Return what a folder holds for these types of arguments, or None. A damaged file counts as absent."""
        shipped, kept = self._paths(signature, context)
        content = _content(shipped)
        if content is None and kept is not None and (content := _content(kept)) is not None:
            with suppress(OSError):
                os.utime(kept)
        if content is None:
            return None
        kept_for, result = pickle.loads(content)
        return _numba().core.compiler.CompileResult._rebuild(context, *result) if kept_for == signature else None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep what was compiled for these types of arguments, unless it holds addresses of this process."""
        if result.lifted or result.library.has_dynamic_globals:
            return
        _, path = self._paths(signature, result.target_context)
        if path is None:
            return
        content = _numba().core.serialize.dumps((signature, result._reduce()))
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, hashlib.sha256(content).digest() + content)
            _forget_oldest(path.parent, MAX_FOLDER_BYTES)

    def _paths(self, signature: Any, context: Any) -> tuple[Path, Path | None]:
        """Return where the code for these types of arguments is if it was shipped, and where it is kept."""
        target, *processor = context.codegen().magic_tuple()
        shipped, kept = (self._name_of(signature, (target, *each)) for each in (_ANY_PROCESSOR, processor))
        return SHIPPED_FOLDER / shipped, self._folder and self._folder / kept

    def _name_of(self, signature: Any, machine: tuple[str, ...]) -> str:
        facts = (*self._facts, machine, signature)
        return f"{self._name}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}.code"


def _content(path: Path) -> bytes | None:
    """Return what follows the digest in a file of machine code; None if it is absent or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return (
        content[_DIGEST_BYTES:] if hashlib.sha256(content[_DIGEST_BYTES:]).digest() == content[:_DIGEST_BYTES] else None
    )


def _write(path: Path, content: bytes) -> None:
    """Write a file beside `path`, and rename it."""
    with NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(content)
            file.close()
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _forget_oldest(folder: Path, max_bytes: int) -> None:
    """Remove the files that were used least recently, until at most `max_bytes` are left. Other processes may too."""
    files = []
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):
            files.append((entry.stat().st_mtime_ns, entry.path, entry.stat().st_size))
    excess = sum(size for _, _, size in files) - max_bytes
    for _, path, size in sorted(files):
        if excess <= 0:
            break
        Path(path).unlink(missing_ok=True)
        excess -= size


def source_key(function: Callable[..., Any]) -> str:
    """Return a digest of what a compiled function is made from.

    That is the bytecode of the function and of all that it calls, and the constants that they read; not comments,
    docstrings, or where the source lies.
    """
    facts: dict[Any, str] = {}
    waiting = [inspect.unwrap(function)]
    while waiting:
        callee = waiting.pop()
        if callee not in facts:
            facts[callee], callees = _facts(callee)
            waiting += callees
    first, *others = facts.values()
    return hashlib.sha256("\n".join((first, *sorted(others))).encode()).hexdigest()


@cache
def _facts(function: FunctionType) -> tuple[str, list[FunctionType]]:
    """Return one function's part of a `source_key`, and the functions that it may call.

    A global counts if an attribute shares its name, too: to tell them apart takes 60 times as long.
    """
    callees: list[FunctionType] = []
    code = function.__code__
    reads = {"defaults": function.__defaults__, **inspect.getclosurevars(function).nonlocals}
    reads |= {name: function.__globals__[name] for name in _names(code) if name in function.__globals__}
    for module in [value for value in reads.values() if isinstance(value, ModuleType) and _is_ours(value)]:
        reads |= {f"{module.__name__}.{n}": vars(module)[n] for n in _names(code) if n in vars(module)}
    values = [(name, _value(value, callees)) for name, value in sorted(reads.items())]
    return repr((function.__module__, function.__qualname__, _bytecode(code, function.__doc__), values)), callees


def _is_ours(module: ModuleType) -> bool:
    return module.__name__.partition(".")[0] in ("profilers", "replay", "seqpoint")


def _names(code: CodeType) -> set[str]:
    """Return the names of globals and attributes in `code` and in the functions within it."""
    return set(code.co_names).union(*(_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _bytecode(code: CodeType, docstring: str | None) -> tuple[Any, ...]:
    """Return the parts of `code` that numba reads."""
    constants = [
        _bytecode(constant, None)
        if isinstance(constant, CodeType)
        else sorted(map(repr, constant))
        if isinstance(constant, frozenset)
        else constant
        for constant in code.co_consts
        if constant is None or constant is not docstring
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return code.co_code, constants, names, counts


def _value(value: Any, callees: list[FunctionType]) -> str:
    """Describe the value of a name that a function reads, and add it to `callees` if it is a function."""
    function = getattr(value, "__wrapped__", value)
    if isinstance(function, FunctionType):
        callees.append(function)
        return f"{function.__module__}.{function.__qualname__} {getattr(value, '_options', '')}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype.descr} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, tuple):
        return f"{type(value).__name__}({', '.join(_value(item, callees) for item in value)})"
    if isinstance(value, type):
        members = list(value) if issubclass(value, Enum) else getattr(value, "_fields", ())
        return f"{value.__module__}.{value.__qualname__} {members!r}"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic | np.dtype | Enum):
        return f"{type(value).__name__} {value!r}"
    return type(value).__name__  # numba compiles no other value into code: it has the name of an attribute

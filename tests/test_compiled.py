"""Machine code on disk: what shares a file, and what is compiled again."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import distributions
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

from profilers.trace import compiled as machine_code
from profilers.trace.compiled import source_key

ROOT = Path(__file__).parents[1]
SOURCE = '''
from typing import NamedTuple

import numpy as np
from profilers.trace.compiled import compiled, inlined

STEP = 3
TABLE = np.array([1.0, 2.0])

class Pair(NamedTuple):
    left: int
    right: int

@inlined
def _inner(x):
    return x + STEP

@compiled
def _middle(x):
    return _inner(x) + TABLE[0]

@compiled
def outer(x):
    """Add."""
    return Pair(_middle(x), 1).left  # a comment

@compiled
def alone(x):
    return {-1: x, 2: -x}[2] if x in {"a", "b"} else x
'''


def module(folder: Path, source: str = SOURCE, name: str = "source") -> ModuleType:
    """Return a module that is written to a folder, and run."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(source)
    made = ModuleType(name)
    exec(compile(source, str(path), "exec"), vars(made))
    return made


def key(folder: Path, function: str, before: str = "", after: str = "") -> str:
    assert before in SOURCE
    return source_key(getattr(module(folder, SOURCE.replace(before, after)), function))


@pytest.mark.parametrize(
    ("before", "after"),
    [("", ""), ("# a comment", "# another"), ('"""Add."""', '"""Add one."""'), ("\n@compiled", "@compiled")],
    ids=["folder", "comment", "docstring", "line"],
)  # fmt: skip
def test_what_numba_does_not_read_is_no_part_of_the_key(tmp_path: Path, before: str, after: str) -> None:
    assert key(tmp_path / "one", "outer") == key(tmp_path / "two", "outer", before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("_middle(x), 1", "_middle(x), 2"),
        ("x + STEP", "x - STEP"),
        ("STEP = 3", "STEP = 3.0"),
        ("STEP = 3", "STEP = True"),
        ("[1.0, 2.0]", "[1.0, 2.5]"),
        ("left: int\n    right: int", "right: int\n    left: int"),
        ("@inlined", "@compiled"),
    ],
)
def test_the_key_changes_with_a_function_and_all_that_it_reads(tmp_path: Path, before: str, after: str) -> None:
    assert key(tmp_path, "outer") != key(tmp_path, "outer", before, after)
    assert key(tmp_path, "alone") == key(tmp_path, "alone", before, after)


def test_functions_in_functions_and_defaults_are_part_of_the_key(tmp_path: Path) -> None:
    def made(step: float, default: float = 1.0) -> Callable[..., Any]:
        def function(x: float, y: float = default) -> float:
            return x + (lambda: step)() + y

        return function

    assert source_key(made(1.0)) == source_key(made(1.0))
    assert len({source_key(made(1.0)), source_key(made(2.0)), source_key(made(1.0, 2.0))}) == 3


def test_the_keys_of_what_ships_are_the_same_in_every_process() -> None:
    code = (
        "from profilers.readers.kineto import scanner\n"
        "from profilers.trace.compiled import _Compiled, source_key\n"
        "from replay.memory import lookup\n"
        "for module in (scanner, lookup):\n"
        "    for name, value in vars(module).items():\n"
        "        if isinstance(value, _Compiled): print(name, source_key(value))\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout for seed in "12"
    ]  # fmt: skip
    assert runs[0] == runs[1]
    assert len(runs[0].splitlines()) >= 50


class Compilations(logging.Handler):
    """The functions that were compiled since the handler was asked last."""

    def __init__(self) -> None:
        super().__init__()
        self._names: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._names.append(record.getMessage().removeprefix("compiling "))

    def take(self) -> list[str]:
        names, self._names = self._names, []
        return names


@pytest.fixture
def compilations(compile_log: logging.Logger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A folder of machine code of its own, and what is compiled."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    handler = Compilations()
    compile_log.disabled = False
    compile_log.addHandler(handler)
    level = compile_log.level
    compile_log.setLevel(logging.INFO)
    yield handler
    compile_log.setLevel(level)
    compile_log.removeHandler(handler)


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "seqpoint" / "compiled").iterdir())


#: A module that can be imported, as loading from disk needs, and that is loaded in its place.
NAME = "profilers.trace.quality"
SHORT = "from profilers.trace.compiled import compiled\n@compiled\ndef twice(x):\n    return 2 * x\n"


def test_a_second_checkout_compiles_nothing(tmp_path: Path, compilations: Compilations) -> None:
    for folder, compiled in (("one", ["twice"]), ("two", [])):
        assert module(tmp_path / folder, SHORT, NAME).twice(21) == 42
        assert compilations.take() == compiled
    assert module(tmp_path / "two", SHORT.replace("2", "3"), NAME).twice(21) == 63
    assert module(tmp_path / "one", SHORT, NAME).twice(1.5) == 3.0
    assert compilations.take() == ["twice", "twice"]
    assert [path.name.partition("-")[0] for path in files(tmp_path)] == ["quality.twice"] * 3


@pytest.mark.parametrize("damage", [lambda b: b[:-100], lambda b: b[:500] + b"?" + b[501:], lambda b: b""])
def test_a_damaged_file_is_compiled_again(
    tmp_path: Path, compilations: Compilations, damage: Callable[[bytes], bytes]
) -> None:
    assert module(tmp_path / "one", SHORT, NAME).twice(21) == 42
    (path,) = files(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    for _ in range(2):
        assert module(tmp_path / "one", SHORT, NAME).twice(21) == 42
    assert compilations.take() == ["twice", "twice"]


def test_the_file_that_was_used_least_recently_goes(
    tmp_path: Path, compilations: Compilations, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (1, 1.5):
        module(tmp_path / "one", SHORT, NAME).twice(value)
    older, newer = sorted(files(tmp_path), key=lambda path: path.stat().st_mtime_ns)
    module(tmp_path / "one", SHORT, NAME).twice(1)
    assert older.stat().st_mtime_ns > newer.stat().st_mtime_ns
    monkeypatch.setattr(machine_code, "MAX_FOLDER_BYTES", older.stat().st_size + 3 * newer.stat().st_size // 2)
    module(tmp_path / "one", SHORT, NAME).twice(np.float32(1.5))
    assert older in files(tmp_path)
    assert newer not in files(tmp_path)
    assert len(files(tmp_path)) == 2
    assert compilations.take() == ["twice"] * 3


def test_where_nothing_can_be_written_each_process_compiles(
    tmp_path: Path, compilations: Compilations, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "file"))
    for _ in range(2):
        assert module(tmp_path / "one", SHORT, NAME).twice(21) == 42
    assert compilations.take() == ["twice", "twice"]


@pytest.fixture
def shipped(tmp_path: Path, compilations: Compilations, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one file of a shipped folder, compiled as a wheel is: in a process that takes the processor for generic."""
    folder = tmp_path / "built" / "seqpoint" / "compiled"
    path = tmp_path / "one" / "source.py"
    module(path.parent, SHORT)
    code = (
        f"import types; made = types.ModuleType({NAME!r}); path = {str(path)!r}\n"
        "exec(compile(open(path).read(), path, 'exec'), vars(made)); print(made.twice(21))"
    )
    environment = {"NUMBA_CPU_NAME": "generic", "NUMBA_CACHE_DIR": str(tmp_path / "built")}
    subprocess.run([sys.executable, "-c", code], env={**environment, "PYTHONPATH": ":".join(sys.path)}, check=True)
    monkeypatch.setattr(machine_code, "SHIPPED_FOLDER", folder)
    (file,) = folder.iterdir()
    return file


def test_shipped_code_serves_any_processor_and_nothing_is_written(
    tmp_path: Path, compilations: Compilations, shipped: Path
) -> None:
    before = shipped.stat().st_mtime_ns
    assert module(tmp_path / "two", SHORT, NAME).twice(21) == 42
    assert compilations.take() == []
    assert not (tmp_path / "cache").exists()
    assert shipped.stat().st_mtime_ns == before
    # The user's own file is of the processor, so it has another name.
    shipped.unlink()
    assert module(tmp_path / "two", SHORT, NAME).twice(21) == 42
    assert compilations.take() == ["twice"]
    assert [path.name for path in files(tmp_path)] != [shipped.name]


def test_a_damaged_shipped_file_is_compiled_into_the_users_folder(
    tmp_path: Path, compilations: Compilations, shipped: Path
) -> None:
    damaged = shipped.read_bytes()[:-100]
    shipped.write_bytes(damaged)
    for compiled in (["twice"], []):
        assert module(tmp_path / "two", SHORT, NAME).twice(21) == 42
        assert compilations.take() == compiled
    assert len(files(tmp_path)) == 1
    assert shipped.read_bytes() == damaged
    assert list(shipped.parent.iterdir()) == [shipped]


def test_a_user_without_a_home_has_shipped_code(
    tmp_path: Path, compilations: Compilations, shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home(*_: object) -> Path:
        raise RuntimeError

    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert module(tmp_path / "two", SHORT, NAME).twice(21) == 42
    assert compilations.take() == []
    assert module(tmp_path / "two", SHORT, NAME).twice(1.5) == 3.0
    assert compilations.take() == ["twice"]


def test_jobs_of_the_build_hook_find_the_build_environment_and_the_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    hook = module_from_spec(spec)
    spec.loader.exec_module(hook)
    started: list[dict[str, str]] = []

    def start(command: list[str], env: dict[str, str]) -> SimpleNamespace:
        started.append(env)
        return SimpleNamespace(args=command, wait=lambda: 0)

    monkeypatch.setattr(hook.subprocess, "Popen", start)
    monkeypatch.setenv("PYTHONPATH", "of pip")
    hook._run(["read", "answer"], str(tmp_path))
    assert [env["PYTHONPATH"].split(os.pathsep) for env in started] == [[str(ROOT), str(tmp_path), "of pip"]] * 2
    metadata = ProjectMetadata(str(ROOT), PluginManager())
    hook.MachineCodeHook._write_metadata(SimpleNamespace(metadata=metadata), tmp_path)
    (told,) = distributions(path=[str(tmp_path)])
    assert told.name == "seqpoint" and {"kineto", "nsys"} <= {
        point.name for point in told.entry_points.select(group="seqpoint.readers")
    }

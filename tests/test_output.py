"""What commands tell on stderr while they work: progress where it is a terminal, compilation wherever it goes."""

import io
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from profilers.trace.compiled import compiled
from seqpoint.cli import cli
from seqpoint.cli.output import print_table, working
from seqpoint.units import duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_long_work_says_what_it_is_and_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    with pytest.raises(ZeroDivisionError), working("fitting 3 tables\x1b[2J"):
        time.sleep(1.3)
        raise ZeroDivisionError
    assert shown.getvalue() == "\r\x1b[Kfitting 3 tables?[2J 1 s\r\x1b[K"


def test_where_no_terminal_is_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    with working("fitting"):
        time.sleep(1.1)
    assert shown.getvalue() == ""


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["terminal", "file"])
def test_a_command_says_once_that_it_compiles(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, compile_log: logging.Logger
) -> None:
    compile_log.disabled = False
    monkeypatch.setattr(sys, "stderr", stream)
    inner = compiled(unkept("x + 1"))
    with click.Context(cli) as context:
        group = cli.get_command(context, "simulate")
        assert isinstance(group, click.Group)
        with click.Context(group, parent=context) as within:
            assert group.get_command(within, "kernel") is not None
        assert stream.getvalue() == ""
        for _ in range(2):
            assert compiled(unkept("inner(x)", inner=inner))(1) == 2
    assert compiled(unkept("x"))(1) == 1
    assert stream.getvalue() == "compiling, once after an installation: up to a minute\n"


def test_what_loads_from_disk_is_no_compilation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    code = (
        "from profilers.trace.columns import by_lane; import numpy as np; by_lane(lambda: iter([np.array([0, 1, 0])]))"
    )
    told = f"import logging; logging.basicConfig(level=logging.INFO); {code}"
    runs = [subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True) for _ in range(2)]
    assert [run.stderr.count("compiling") for run in runs] == [1, 0]


def unkept(expression: str, **names: Any) -> Callable[..., Any]:
    """Return a function that numba cannot keep on disk, since no file holds it."""
    exec(f"def function(x):\n    return {expression}", names)
    function: Callable[..., Any] = names["function"]
    return function


def test_residue_of_rounding_is_no_time() -> None:
    assert [duration(ns) for ns in (5.52e-09, -4.9e-4, 0.0, 0.0005, -0.25)] == ["0 ns"] * 3 + ["0.0005 ns", "-0.25 ns"]


COLUMNS = ("what-if~", "speed-up", "low", "high", "projected", "kept %", "modelled %", "assumed %")


def printed(monkeypatch: pytest.MonkeyPatch, width: str, *what_ifs: str) -> list[str]:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setenv("COLUMNS", width)
    row = ("1.234", "1.001", "1.500", "123.4 ms", "100", "100", "100")
    print_table("What-ifs", COLUMNS, [(what_if, *row) for what_if in what_ifs])
    return shown.getvalue().splitlines()


def test_a_table_of_80_columns_breaks_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, "80", "overlap:ideal+fuse:elementwise", "communication_free + x", "a" * 50)
    assert max(map(len, lines)) <= 80
    words = {word for line in lines for word in line.translate(str.maketrans("┃│", "  ")).split()}
    assert {"speed-up", "projected", "kept", "modelled", "assumed", "1.234", "123.4"} <= words
    assert {"overlap:ideal+fuse:", "elementwise", "communication_free"} <= words


def test_a_table_is_as_wide_as_it_has_to_be_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    (head,) = (line for line in printed(monkeypatch, "200", "overlap:ideal+fuse:elementwise") if "low" in line)
    assert head.split("┃")[1:-1] == [
        " what-if                        ",
        *(f" {name} " if name != "low" and name != "high" else f" {name:>5} " for name in COLUMNS[1:]),
    ]
    assert max(map(len, printed(monkeypatch, "x", "overlap:ideal+" * 20))) <= 140


def test_numbers_are_whole_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any("│1.234│" in line.replace(" ", "") for line in printed(monkeypatch, "20", "overlap:ideal"))

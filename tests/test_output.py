"""What commands tell on stderr while they work: progress where it is a terminal, compilation wherever it goes."""

import io
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from profilers.trace.compiled import compiled
from seqpoint.cli import cli
from seqpoint.cli.options import output_options
from seqpoint.cli.output import print_result, print_table, working
from seqpoint.notebook import TOP, Result, Table, by_rank, names_within
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
    words = {word for line in lines for word in line.split()}
    assert {"speed-up", "projected", "kept", "modelled", "assumed", "1.234", "123.4"} <= words
    assert {"overlap:ideal+fuse:", "elementwise", "communication_free"} <= words


def test_a_table_is_as_wide_as_it_has_to_be_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    _, head, rule, row = printed(monkeypatch, "200", "overlap:ideal+fuse:elementwise")
    assert (
        head.split("  ")[0] == "what-if" and rule.split("  ")[0] == "─" * 30 and row.startswith("overlap:ideal+fuse:e")
    )
    assert max(map(len, printed(monkeypatch, "x", "overlap:ideal+" * 20))) <= 140


def test_numbers_are_whole_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any("1.234" in line for line in printed(monkeypatch, "20", "overlap:ideal"))


@dataclass(frozen=True, repr=False)
class Shown(Result):
    """Tables of so many rows, and so many notes."""

    sizes: tuple[int, ...]
    count: int = 0
    name: str = "kernel"

    def summary(self) -> list[str]:
        return ["the verdict"]

    def notes(self) -> list[str]:
        return [f"note {i}" for i in range(self.count)]

    def tables(self) -> list[Table | str]:
        tables = [
            Table(f"Table {i}", ("class~", "share %"), [(self.name, n) for n in range(size)])
            for i, size in enumerate(self.sizes)
        ]
        return [*tables, "below the last"]

    def to_dict(self) -> dict[str, Any]:
        return {"rows": [{"n": n} for n in range(self.sizes[0])], "notes": ["a", "b"]}


def shown(result: Result, *options: str) -> list[str]:
    """Return the lines that a command prints of a result."""

    @click.command()
    @output_options
    def command(json_: bool) -> None:
        print_result(result, json_)

    done = CliRunner().invoke(command, options, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout.splitlines()


@pytest.mark.parametrize("sizes", [(), (1,), (50,), (3, 50, 2), (5,) * 30, (200,) * 30])
@pytest.mark.parametrize("notes", [0, 3, 40])
def test_a_result_fits_a_screen_and_says_what_is_left_out(sizes: tuple[int, ...], notes: int) -> None:
    result = Shown(sizes, notes)
    lines = shown(result)
    assert len(lines) <= result.screen and lines[0] == "the verdict"
    printed_rows = sum(line.startswith("kernel") for line in lines)
    left = sum(int(line.split()[1]) for line in lines if line.startswith("and "))
    named = [line for line in lines if line.startswith("more with --all: Table")]
    assert printed_rows + left == sum(sizes) or named
    assert len(lines) == result.screen or not named or printed_rows >= 4 * (len(sizes) > 0)
    assert ("35 more notes: --notes" in lines) == (notes == 40)
    whole = shown(result, "--all")
    assert sum(line.startswith("kernel") for line in whole) == sum(sizes) and "more" not in " ".join(whole)


def test_a_screen_is_filled_from_the_first_table_on() -> None:
    lines = shown(Shown((50, 50, 50, 50)))
    rows = [sum(line.startswith("kernel") for line in part) for part in split(lines, "Table")]
    assert rows == [10, 4, 4, 4] and len(lines) == 40


def split(lines: list[str], word: str) -> list[list[str]]:
    starts = [i for i, line in enumerate(lines) if line.startswith(word)]
    return [lines[a:b] for a, b in zip(starts, [*starts[1:], len(lines)], strict=True)]


def test_a_number_of_rows_lifts_the_screen_and_cuts_the_json() -> None:
    result = Shown((50, 50, 50))
    assert [
        sum(line.startswith("kernel") for line in part) for part in split(shown(result, "--top", "30"), "Table")
    ] == [30] * 3
    assert json.loads("".join(shown(result, "--json", "--top", "2"))) == {
        "rows": [{"n": 0}, {"n": 1}],
        "notes": ["a", "b"],
    }


def test_ranks_are_shown_in_brief_where_all_do_not_fit() -> None:
    ranks = [(rank, 100 - rank) for rank in range(64)]
    table = by_rank(Table("Ranks", ("rank", "wait"), [*ranks, ("all", 1)]), [float(wait) for _, wait in ranks])
    assert [row[0] for row in table.most(TOP)] == [0, 1, 2, "median: 32", "least: 63", "all"]
    few = by_rank(Table("Ranks", ("rank", "wait"), ranks[:5]), [5.0, 1.0, 4.0, 2.0, 3.0])
    assert few.most(TOP) == few.rows and [row[0] for row in few.most(4)] == [0, 2, 4, "least: 1"]


@pytest.mark.parametrize("length", [12, 20, 40])
def test_names_that_differ_stay_different_when_they_are_short(length: int) -> None:
    tiles = [f"ampere_bf16_s16816gemm_bf16_{m}x{n}_ldg8_f2f_stages_64x3_{end}" for m in (64, 128) for n in (64, 256)
             for end in ("nn", "tn")]  # fmt: skip
    short = names_within(tiles, length)
    assert max(map(len, short)) <= length and len(set(short)) == len(tiles)
    assert names_within(["a", "a"], length) == ["a", "a"]

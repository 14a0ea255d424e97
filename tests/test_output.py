"""What commands tell on stderr while they work: something where it is a terminal, nothing where it is none."""

import io
import sys
import time

import pytest

from seqpoint.cli.output import duration, working


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


def test_residue_of_rounding_is_no_time() -> None:
    assert [duration(ns) for ns in (5.52e-09, -4.9e-4, 0.0, 0.0005, -0.25)] == ["0 ns"] * 3 + ["0.0005 ns", "-0.25 ns"]

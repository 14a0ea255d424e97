"""How a trace shows itself: one screen of text, and a small table in a notebook."""

from pathlib import Path

import pytest

import seqpoint as sp
from profilers.trace.quality import Quality
from profilers.trace.schema import make_table
from profilers.trace.trace import DeviceProperties, Trace, TraceMeta
from tests.traces import write_trace

SCRIPT = "<script>alert(1)</script>.json"


def test_a_trace_is_a_screen_of_text(tmp_path: Path) -> None:
    trace = sp.open(write_trace(tmp_path / "job.json", 4))
    assert repr(trace).splitlines() == [
        "Trace: kineto schema 1",
        "  files: job.json",
        "  ranks: 0",
        "  devices: 1 x NVIDIA A100-SXM4-80GB",
        "  iterations: 4, 1 to 4",
        "  rows: 4 ops, 24 launches, 16 kernels, 4 collectives, 4 ranges",
    ]
    assert str(Trace(TraceMeta("synthetic"))) == "Trace: synthetic\n  iterations: none"


@pytest.mark.parametrize("name", ["a" * 5000, "rank\n\x1b[31m0", "b" * 55])
def test_a_line_is_short_whatever_the_files_are_called(name: str) -> None:
    devices = tuple(DeviceProperties(rank, 0, f"{name}{rank}") for rank in range(64))
    sources = tuple(f"{name}{rank}.json" for rank in range(44))
    counts = {"events": 9, "kept": 2, "dropped_broken": 7, "truncated_files": 3}
    meta = TraceMeta("kineto" * 50, name, sources, tuple(range(64)), 128, devices=devices, quality=Quality(counts))
    lines = repr(Trace(meta, {"ops": make_table("ops", {"id": range(3)})})).splitlines()
    assert len(lines) <= 12 and max(map(len, lines)) <= 100 and all(line.isprintable() for line in lines)
    shown = {line.split(":")[0].strip(): line for line in lines}
    assert "more" in shown["files"] and shown["ranks"].endswith("0, 1, 2, 3, 4 and 59 more of 128")
    assert "truncated_files (3)" in shown["warnings"] and shown["rows"].endswith("3 ops")


def test_a_notebook_shows_kinds_and_rows_and_no_markup_of_the_files(tmp_path: Path) -> None:
    shown = sp.open(write_trace(tmp_path / "job.json", 4))._repr_html_()
    assert "<td>kernels</td><td>16</td>" in shown and "<p>devices: 1 x NVIDIA A100-SXM4-80GB</p>" in shown
    bad = TraceMeta("kineto", "<b>", (SCRIPT,), (0,), devices=(DeviceProperties(0, 0, "<i>x</i>"),))
    shown = Trace(bad, {"ops": make_table("ops", {"id": range(3)})})._repr_html_()
    assert "<script>" not in shown and "<b>" not in shown and "<i>" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;.json" in shown
    damaged = Trace(TraceMeta("kineto", quality=Quality({"events": 4, "kept": 1, "truncated_files": 1})))
    assert "<p>warning: truncated_files (1): " in damaged._repr_html_()


def test_a_file_called_as_markup_is_read_and_shown_as_text(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "job.json", 2).rename(tmp_path / SCRIPT.replace("/", "_"))
    assert "<script>" not in sp.open(path)._repr_html_() and "<script>" in repr(sp.open(path))

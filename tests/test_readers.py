"""Readers from other packages: the example in docs/extending, and readers that are broken."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from profilers.readers.common.reader import readers
from seqpoint.cli import main

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "extending"


def install(folder: Path, distribution: str, points: dict[str, str], group: str = "seqpoint.readers") -> None:
    """Put beside a module what an installer writes, which is all that entry points are found by."""
    info = folder / f"{distribution.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.1.0\n")
    lines = "".join(f"{name} = {target}\n" for name, target in points.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")


def run(folder: Path, code: str) -> str:
    path = os.pathsep.join([str(folder), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def listed(folder: Path) -> dict[str, dict[str, Any]]:
    out = run(folder, "from seqpoint.cli import main; main(['readers', '--json'])")
    return {row["name"]: row for row in json.loads(out)}


def install_example(folder: Path, example: str, group: str) -> Path:
    """Put an example of docs/extending into `folder` as an installer does."""
    project = tomllib.loads((EXAMPLES / example / "pyproject.toml").read_text())["project"]
    install(folder, project["name"], project["entry-points"][group], group)
    (module,) = (EXAMPLES / example).glob("*.py")
    shutil.copy(module, folder)
    return folder


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    return install_example(tmp_path / "site", "reader", "seqpoint.readers")


def test_the_example_is_listed_with_its_distribution(plugin: Path) -> None:
    assert listed(plugin)["ticklog"] == {
        "name": "ticklog",
        "formats": "Tick logs: CSV files of kernels and copies, with times in milliseconds.",
        "distribution": "seqpoint-ticklog",
        "error": None,
    }


def test_the_example_reads_its_file(plugin: Path, tmp_path: Path) -> None:
    log = tmp_path / "run.csv"
    log.write_text(
        "what,name,begin_ms,took_ms,queue,bytes\n"
        "kernel,gemm a,0.00001,0.000005,3,\nnonsense\ncopy,to device,0.00002,0.000007,3,64\nkernel,add,soon,1,3,\n"
    )
    out = run(
        plugin,
        "from profilers.ingest.pipeline import collect\n"
        f"trace = collect([{str(log)!r}])\n"
        "print(trace.meta.format, trace.meta.quality['dropped_broken'], trace.meta.quality['events'])\n"
        "print(trace.kernels.select(['rank', 'name', 'start_ns', 'dur_ns', 'stream']).to_pylist())\n"
        "print(trace.copies.select(['name', 'start_ns', 'dur_ns', 'bytes']).to_pylist())",
    )
    first, kernels, copies = out.splitlines()
    assert first == "ticklog 2 4"
    assert kernels == str([{"rank": 0, "name": "gemm a", "start_ns": 10, "dur_ns": 5, "stream": 3}])
    assert copies == str([{"name": "to device", "start_ns": 20, "dur_ns": 7, "bytes": 64}])


BROKEN = """
from profilers.trace import TraceMeta

class Reader:
    name = "broken"
    def sniff(self, head):
        return head.start.startswith(b"BROKEN")
    def read(self, files, sink):
        sink.write("kernels", {"name": ["a"], "begin": [1]})

class Sniff(Reader):
    def sniff(self, head):
        return head.start[10**6] == 0

class Nothing(Reader):
    def sniff(self, head):
        return head.start.startswith(b"NOTHING")
    def read(self, files, sink):
        return None

class Special(Reader):
    '''Special files.'''
    def sniff(self, head):
        return head.columns == ("name", "start_us", "dur_us", "special")
    def read(self, files, sink):
        sink.write("kernels", {"name": ["special"], "start_ns": [1], "dur_ns": [1]})
        return TraceMeta("special")
"""


def test_one_that_fails_is_named_and_one_of_a_special_format_comes_before_plain_csv(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    points = {"fails": "broken_reader:Reader", "sniffs": "broken_reader:Sniff", "none": "broken_reader:Nothing"}
    install(folder, "seqpoint-broken", {**points, "z_special": "broken_reader:Special", "csv": "broken_reader:Sniff"})
    (folder / "broken_reader.py").write_text(BROKEN)
    rows = json.loads(run(folder, "from seqpoint.cli import main; main(['readers', '--json'])"))
    assert [(r["distribution"], r["error"]) for r in rows if r["name"] == "csv"] == [
        ("seqpoint-broken", "the name csv is taken by seqpoint itself"),
        ("seqpoint", None),
    ]
    files = {"fails": "BROKEN", "none": "NOTHING", "no": "?", "special": "name,start_us,dur_us,special\n"}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    found = run(
        folder,
        "from profilers.errors import SeqPointError\n"
        "from profilers.ingest.pipeline import collect\n"
        f"for name in {list(files)!r}:\n"
        "    try:\n"
        f"        print(collect([{str(tmp_path)!r} + '/' + name]).meta.format)\n"
        "    except SeqPointError as error:\n"
        "        print(type(error).__name__, error)\n",
    ).splitlines()
    assert found[0].endswith(
        "fails: the reader broken_reader.Reader failed: KeyError: \"no column ['begin'] in kernels\""
    )
    assert found[1].endswith(
        "none: the reader broken_reader.Nothing failed: TypeError: read returned a NoneType, "
        "not a profilers.trace.TraceMeta"
    )
    assert found[2].startswith("UnknownFormatError") and "; sniffs of seqpoint-broken failed: IndexError" in found[2]
    assert found[3] == "special"


def test_one_that_cannot_be_loaded_says_why_and_hinders_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    install(
        folder,
        "seqpoint-broken",
        {"broken": "broken_reader:Reader", "absent": "os:NoSuchReader", "other": "fractions:Fraction"},
    )
    (folder / "broken_reader.py").write_text("import a_library_that_is_not_there\n")
    rows = listed(folder)
    assert rows["broken"]["distribution"] == "seqpoint-broken" and rows["broken"]["formats"] is None
    assert "a_library_that_is_not_there" in rows["broken"]["error"]
    assert "NoSuchReader" in rows["absent"]["error"]
    assert rows["other"]["error"] == "fractions:Fraction is no reader: a reader has name, sniff and read"
    assert rows["kineto"]["error"] is None


def test_every_reader_of_ours_says_what_it_reads(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["readers", "--json"])
    assert stop.value.code == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == [plugin.name for plugin in readers()]
    assert {"chakra", "csv", "kineto", "ncu", "nsys", "rocprof_compute"} <= set(rows)
    for row in rows.values():
        assert row["distribution"] == "seqpoint"
        assert row["error"] or (row["formats"].endswith(".") and "`" not in row["formats"])


def test_the_table_names_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["readers"])
    assert "ncu" in capsys.readouterr().out

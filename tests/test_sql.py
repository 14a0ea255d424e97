"""SQL over a trace gives the toolkit's own figures, reads nothing else, and ends within its limits."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commands import Run
from traces import transformer, write_trace

import seqpoint as sp
from profilers.trace import Trace, TraceMeta, make_table, save_trace
from profilers.trace.schema import SCHEMAS
from profilers.writers.slicing import SliceOptions, slice_trace
from seqpoint.breakdown import operators_by_name
from seqpoint.queries import QueryResult, ViewList

pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def trace() -> Trace:
    return transformer(128, 256, tensor=2)


@pytest.fixture(scope="module")
def folder(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_trace(trace, tmp_path_factory.mktemp("sql") / "job's.trace")


def rows(trace: Trace | Path, query: str, **limits: float) -> list[tuple[object, ...]]:
    result = sp.sql(trace, query, **limits)
    assert isinstance(result, QueryResult)
    return list(result.rows)


def test_kernels_have_the_figures_of_characterize(trace: Trace, folder: Path) -> None:
    every = ("operator", "class", "phase")
    result = sp.characterize(trace)
    wanted = sorted((by, row.name, row.kernels, row.time_ns) for by in every for row in result.rows(by))
    query = " union all ".join(f"select '{by}', {by}, count(*), sum(dur_ns) from kernels group by {by}" for by in every)
    assert sorted(rows(folder, query)) == sorted(rows(trace, query)) == wanted


def test_waits_steps_and_self_times_are_those_of_other_results(trace: Trace) -> None:
    columns = {"id": [90, 91, 92], "rank": [0, 1, 0], "start_ns": [5, 25, 50], "dur_ns": [40, 20, 9]}
    columns |= {"name": ["all_reduce"] * 3, "match_id": [7, 7, None], "group_size": [2, 2, 2]}
    matched = Trace(TraceMeta("plain"), {"collectives": make_table("collectives", columns)})
    waited = rows(matched, "select rank, waiting_ns, arrived_ns from collectives order by id")
    assert waited == [(0, 20, 25), (1, 0, 25), (0, None, None)]
    steps = sp.iterations(trace)
    found = rows(trace, "select rank, iteration, step_ns, kernel_ns from iterations order by rank, start_ns")
    names = ("duration", "kernel_time")
    assert found == list(zip(steps.rank, steps.iteration, *(steps.statistics[n] for n in names), strict=True))
    host = {row.name: row.host_ns for row in operators_by_name(trace) if row.name}
    assert dict(rows(trace, "select name, sum(self_ns) from ops group by name")) == host


def test_a_raw_file_and_its_folder_answer_alike(tmp_path: Path) -> None:
    raw = write_trace(tmp_path / "raw.json")
    folder = save_trace(sp.open(raw), tmp_path / "job[1].trace")  # a pattern, if DuckDB read it in place
    plain = save_trace(sp.open(raw), tmp_path / "job.trace")
    views = (*SCHEMAS, *(f"raw_{kind}" for kind in SCHEMAS))
    query = " union all ".join(f"select '{view}', count(*), bit_xor(hash(t)) from {view} t" for view in views)
    answers = [rows(each, query) for each in (raw, folder, plain)]
    assert answers[0] == answers[1] == answers[2] and len(answers[0]) == len(views)


def test_the_list_of_views_names_every_column(folder: Path) -> None:
    listed = sp.sql(folder)
    assert isinstance(listed, ViewList)
    content = listed.to_dict()
    assert set(content["views"]) == set(SCHEMAS)
    described = " union all ".join(f"select '{view}', column_name from (describe {view})" for view in SCHEMAS)
    assert sorted(rows(folder, described)) == sorted((row["view"], row["column"]) for row in content["rows"])
    assert all(row["meaning"].endswith((".", "...")) for row in content["rows"])


def test_context_of_a_slice_is_in_the_raw_tables_alone(trace: Trace) -> None:
    last = int(np.max(trace.iterations["iteration"].to_numpy()))
    part = slice_trace(trace, SliceOptions(iterations=frozenset([last])))
    assert part.meta.context
    assert rows(part, "select distinct iteration from kernels") == [(last,)]
    assert len(rows(part, "select distinct iteration from raw_kernels")) > 1


#: Statements that must not run, and a part of the line that says why.
HOSTILE = {
    "attach 'x.db'": "ATTACH",
    "copy (select 1) to 'TRACE/x.csv'": "COPY",
    "copy kernels to 'TRACE/kernels/rank=0.parquet'": "COPY",
    "export database 'TRACE/y'": "EXPORT",
    "insert into kernels values (1)": "INSERT",
    "with x as (delete from raw_kernels returning *) select * from x": "",
    "set enable_external_access = true": "SET",
    "install httpfs": "",
    "select 1; select 2": "2 statements",
    "/* nothing */": "0 statements",
    "select * from read_csv('/etc/passwd')": "disabled by configuration",
    "select * from read_text('/proc/self/environ')": "disabled by configuration",
    "select * from glob('TRACE/*')": "disabled by configuration",
    "select * from '/etc/passwd'": "does not exist",
    "select * from trace": "views: kernels",
    "selec 1": "syntax error",
    "select " + "(" * 3000 + "1" + ")" * 3000: "depth",
    "select len(range(300000000))": "memory",
    "with recursive t(n) as (select 1 union all select n + 1 from t) select max(n) from t": "stopped after 0.7 s",
    "select count(*) from range(10000000000) a, range(1000) b": "stopped after 0.7 s",
}


@pytest.mark.parametrize("query", HOSTILE, ids=lambda query: query[:40])
def test_a_hostile_statement_ends_in_one_line(run: Run, folder: Path, query: str) -> None:
    before = sorted(folder.rglob("*")), [path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))]
    started = time.monotonic()
    text = query.replace("TRACE", str(folder).replace("'", "''"))
    done = run("sql", str(folder), text, "--seconds", "0.7" if "stopped" in HOSTILE[query] else "20")
    assert time.monotonic() - started < 10
    assert (done.code, done.out) == (1, "")
    assert done.err.count("\n") == 1 and HOSTILE[query] in done.err
    assert before == (sorted(folder.rglob("*")), [path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))])


def test_rows_are_bounded_and_told(run: Run, folder: Path) -> None:
    endless = "with recursive t(n) as (select 1 union all select n + 1 from t) select n from t"
    done = run("sql", str(folder), endless, "--limit", "5", "--json")
    content = json.loads(done.out)
    assert [row["n"] for row in content["rows"]] == [1, 2, 3, 4, 5] and content["more"]
    done = run("sql", str(folder), "select range as x from range(40)", "--top", "3", "--limit", "20")
    assert "Rows of the statement: 20 or more" in done.out and "and 17 more" in done.out
    assert "more than these 20 rows" in done.out


def test_any_value_becomes_json(folder: Path) -> None:
    query = """select 1.5::decimal(4, 2) as x, date '2026-01-02' as x, {'a': [1, null]} as s, map {1: 'b'} as m,
      'nan'::double as n, '\\x00a'::blob as b, interval 1 day as i, 170141183460469231731687303715884105727 as h,
      chr(27) as c, true as t"""
    result = sp.sql(folder, query)
    assert isinstance(result, QueryResult)
    assert result.columns[:2] == ("x", "x_2")
    (row,) = result.rows
    assert row[:4] == (1.5, "2026-01-02", {"a": [1, None]}, {"1": "b"}) and row[7] == 2**127 - 1
    assert len(result.table()) == 1 and json.dumps(result.to_dict()["rows"])


def test_an_interrupt_ends_the_command_and_its_process(folder: Path) -> None:
    slow = "select count(*) from range(10000000000) a, range(1000) b"
    command = [sys.executable, "-c", "from seqpoint.cli import main; main()", "sql", str(folder), slow]
    # A shell that starts the tests in the background ignores interrupts, and so would the command.
    listens = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listens
    ) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + 20
        while not (child := children.read_text().split()) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        while process.poll() is None and time.monotonic() < deadline + 20:  # again, as a person would on a slow machine
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=3)
        out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err.strip()) == (130, "", "seqpoint: interrupted")
    assert not any(os.path.exists(f"/proc/{each}") for each in child)  # noqa: PTH110


def test_without_duckdb_the_line_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "duckdb.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(sp.SeqPointError, match=r"seqpoint\[sql\]"):
        sp.sql(folder, "select 1")


def test_a_damaged_folder_is_named(trace: Trace, tmp_path: Path) -> None:
    broken = save_trace(trace, tmp_path / "broken.trace")
    (broken / "kernels" / "rank=0.parquet").write_bytes(b"PAR1")
    with pytest.raises(sp.SeqPointError, match=r"rank=0\.parquet"):
        sp.sql(broken, "from raw_kernels")

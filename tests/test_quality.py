"""What follows from each count of a reader: a rule for every count, and a severity by its share."""

import json
from pathlib import Path

import pytest
from commands import Run
from traces import kernel, kineto, write_trace

import seqpoint as sp
from profilers.trace.quality import (
    FINE,
    NOTE,
    NOTHING,
    SEVERITIES,
    WARNING,
    Quality,
    QualityNote,
    count_rules,
    quality_notes,
)
from profilers.trace.schema import SCHEMAS

ROWS = {"kernels": 900, "copies": 100, "launches": 1000}


def note(name: str, rows: dict[str, int] | None = None, **counts: int) -> QualityNote:
    return {row.count: row for row in quality_notes(Quality(counts), rows or ROWS)}[name]


@pytest.mark.parametrize("name", count_rules())
def test_every_count_has_a_meaning_a_consequence_and_advice(name: str) -> None:
    rule = count_rules()[name]
    assert rule.meaning and rule.consequence and rule.advice
    assert rule.severity in SEVERITIES
    assert rule.severity == FINE or rule.advice != NOTHING
    assert rule.of in {"", "device work", *SCHEMAS, *count_rules()}
    assert rule.limit < 0 or rule.of
    assert not rule.less or rule.less in count_rules()


@pytest.mark.parametrize("name", count_rules())
def test_every_count_gives_a_note(name: str) -> None:
    row = note(name, **{name: 1})
    assert (row.count, row.n, row.meaning) == (name, 1, count_rules()[name].meaning.replace("{}", ""))
    assert row.consequence and row.advice


def test_a_small_share_is_fine_and_a_large_one_is_not() -> None:
    few, many = note("orphan_device", orphan_device=10), note("orphan_device", orphan_device=11)
    assert (few.severity, few.share, few.advice) == (FINE, 0.01, NOTHING)
    assert (many.severity, many.share) == (NOTE, 0.011)
    assert "profiler before the first step" in many.advice
    assert note("dropped_broken", dropped_broken=1, events=100_000).severity == FINE
    assert note("dropped_broken", dropped_broken=11, events=100_000).severity == WARNING


def test_wrong_external_ids_alarm_nobody() -> None:
    row = note("external_id_wrong", external_id_wrong=2116, external_id_checked=2116)
    assert (row.severity, row.consequence) == (FINE, "links were taken from correlation ids instead")
    assert row.advice == "nothing to do"


def test_collectives_are_judged_by_those_that_are_not_matched() -> None:
    assert note("collectives", collectives=8, collectives_matched=8).severity == FINE
    assert note("collectives", collectives=637, collectives_matched=608).severity == FINE
    row = note("collectives", collectives=8, collectives_matched=6)
    assert (row.severity, row.share) == (WARNING, 0.25)


def test_the_most_severe_notes_come_first() -> None:
    counts = {"events": 10, "kept": 9, "truncated_files": 1, "no_iteration": 500}
    assert [row.severity for row in quality_notes(Quality(counts), ROWS)] == [WARNING, NOTE, FINE, FINE]


def test_describe_and_ingest_say_what_follows(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "lost.json"
    events = json.loads(write_trace(tmp_path / "job.json").read_text())["traceEvents"]
    path.write_text(json.dumps(kineto([*events, kernel("late", 5_000, 10, 99)])))
    for command in (("describe", path), ("ingest", path, "-o", "job.trace")):
        shown = run(*command)
        assert shown.code == 0
        text = " ".join(shown.out.split())
        assert "launch is not in the trace: 1; " in text or "orphan_device" in text
        assert "before the first step" in text or command[0] == "describe"
    rows = json.loads(run("describe", path, "--json").out)["quality_notes"]
    (orphan,) = [row for row in rows if row["count"] == "orphan_device"]
    assert set(orphan) == {"count", "n", "severity", "share", "meaning", "consequence", "advice"}
    assert (orphan["n"], orphan["severity"]) == (1, "note")


def test_the_report_says_what_follows(tmp_path: Path) -> None:
    page = sp.report(write_trace(tmp_path / "job.json"), tmp_path / "a.html", ["overlap:ideal"]).read_text()
    assert count_rules()["kept"].consequence in page

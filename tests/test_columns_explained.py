"""Every column of every printed table has a sentence, which --explain prints.

A fixture of all tests (`explained_columns`) fails on a printed column without a sentence. The tests here print the
tables of the main commands, so that none is left to chance.
"""

import re
from pathlib import Path

import pytest
from commands import Run
from traces import write_trace

import seqpoint as sp
from profilers.synthetic import TransformerJob
from profilers.trace import save_trace
from seqpoint.columns import SHARED, TABLES, sentences


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Return a job of two ranks with collectives and several lengths."""
    made = sp.synthesize(TransformerJob(layers=1, tensor_parallel=2, sequence_lengths=(128, 256, 128)), "MI300X")
    return save_trace(made, tmp_path / "job.trace")


@pytest.mark.parametrize(
    "command",
    [
        "describe JOB",
        "describe JOB --by kernel --by operator",
        "iterations JOB",
        "select JOB --max-points 2",
        "replay JOB -i 1",
        "analyze JOB",
        "analyze JOB -w overlap:ideal",
        "project JOB -i 1 -w overlap:ideal -w scale_device:MI355X --draws 8",
        "ingest JOB -o copy.trace",
        "what-ifs",
        "what-ifs change_stream",
        "devices",
        "devices MI300X",
        "readers",
        "selectors",
        "synthesize",
    ],
)
def test_each_column_is_explained(run: Run, job: Path, tmp_path: Path, command: str) -> None:
    trace = write_trace(tmp_path / "raw.json") if command.startswith("ingest") else job
    result = run(*command.replace("JOB", str(trace)).split(), "--explain")
    assert result.code == 0, result.err
    assert len(re.findall(r"^  [^ ].*: .+[.]$", result.out, re.MULTILINE)) >= 2


def test_a_column_is_explained_once_and_only_when_asked(run: Run, job: Path) -> None:
    lines = run("describe", job, "--explain").out.splitlines()
    assert lines.count(f"  rank: {SHARED['rank']}") == 1
    assert SHARED["rank"] not in run("describe", job).out


def test_json_has_no_tables_to_explain(run: Run, job: Path) -> None:
    for options in (("--json", "--explain"), ("--explain", "--json")):
        result = run("describe", job, *options)
        assert (result.code, result.out) == (2, "")
        assert "--json prints none" in result.err


def test_the_fixture_fails_on_a_column_without_a_sentence() -> None:
    from seqpoint.cli.output import print_table

    with pytest.raises(AssertionError, match=r"write a sentence on \['flavour'\] in seqpoint/columns.py"):
        print_table("Events", ("kind~", "flavour"), [])


def test_a_table_comes_before_what_tables_share() -> None:
    assert sentences("Devices", ["name"]) != sentences("Devices in the steps", ["name"])
    assert sentences("Points", ["latency", "loss"])["loss"] == TABLES["Points*"]["*"]


@pytest.mark.parametrize("columns", [SHARED, *TABLES.values()])
def test_sentences_are_sentences(columns: dict[str, str]) -> None:
    wrong = [text for text in columns.values() if not re.fullmatch(r"\w.*[.]", text) or len(text.split()) > 30]
    assert wrong == []


def test_a_report_explains_each_column_too(job: Path, tmp_path: Path) -> None:
    page = sp.report(job, tmp_path / "a.html", ["overlap:ideal"]).read_text()
    headings = re.findall(r'<th class="\w+" title="([^"]*)">([^<]*)</th>', page)
    assert len(headings) == page.count("<th ") > 20
    assert [name for sentence, name in headings if not sentence] == []

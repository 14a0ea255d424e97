"""An option that cannot have an effect is an error of one line."""

from pathlib import Path

import pytest
from commands import Run
from traces import write_trace

import seqpoint as sp
from profilers.trace import save_trace


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with a log, a log with ranks, a selection on it, raw files, and a .trace of them."""
    rows = [(10 + i % 5, 100 + i % 7) for i in range(30)]
    (tmp_path / "log.csv").write_text("sequence_length,duration\n" + "".join(f"{n},{time}\n" for n, time in rows))
    ranked = "".join(f"{i % 2},{n},{time}\n" for i, (n, time) in enumerate(rows))
    (tmp_path / "ranks.csv").write_text("rank,sequence_length,duration\n" + ranked)
    raw = write_trace(tmp_path / "raw.json", steps=3)
    save_trace(sp.open(raw, length="aten::mm:0:0"), tmp_path / "job.trace")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("select log.csv --iterations whole", "--iterations: no effect on a log"),
        ("select log.csv --iterations auto", "--iterations: no effect on a log"),
        ("select log.csv --length aten::mm:0:0", "--length: no effect on a log"),
        ("select log.csv --rank 0", "--rank: no effect on a log without a column rank"),
        ("select log.csv --selector random --tolerance 0.1", "--tolerance: no effect on the selector random"),
        ("select log.csv --selector stratified --tolerance 0.1", "--tolerance: no effect on the selector stratified"),
        ("select log.csv --selector median --max-points 4", "--max-points: no effect on the selector median"),
        ("select log.csv --selector median --max-iterations 4", "--max-iterations: no effect on the selector median"),
        ("estimate points.json log.csv --from log.csv --length x.csv", "--length: no effect on a log"),
        ("project job.trace -i 2 --max-points 3", "--max-points: no effect beside --iteration"),
        ("synthesize --steps 3", "--steps: no effect without --output"),
        ("synthesize --models mine.toml", "--models: no effect on the model gpt"),
        ("what-ifs dma_collectives --explain", "--explain: no effect on dma_collectives"),
        ("merge job.trace --as-ranks -o out.trace", "name two or more traces"),
        ("slice job.trace -o out.trace", "say what to keep"),
        ("advise job.trace --markdown --wide", "--wide: no effect beside --markdown"),
        ("describe job.trace --json --all", "--all is on tables"),
        ("describe job.trace --json --explain", "--json prints none"),
    ],
)
def test_it_is_wrong_usage_if_the_command_line_shows_it(run: Run, files: Path, command: str, problem: str) -> None:
    (files / "points.json").write_text("{}")
    result = run(*command.split())
    assert result.code == 2
    assert problem in result.err
    assert result.out == ""


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("describe job.trace --iterations whole", "were chosen when it was ingested"),
        ("project job.trace --length aten::mm:0:0", "were chosen when it was ingested"),
        ("validate replay job.trace --iterations whole", "were chosen when it was ingested"),
        ("ingest raw.json --length aten::bogus:0:0 -o out.trace", "no operator 'aten::bogus'"),
        ("ingest raw.json --iterations nothing -o out.trace", "no annotation with a duration matches"),
        ("select log.csv --feature duration", "reads the length alone"),
        ("slice job.trace --from 3ms --to 1ms -o out.trace", "--to 1ms is not after --from 3ms"),
        ("slice job.trace --rank 7 -o out.trace", "no rank [7]"),
        ("slice job.trace --iteration 7 -o out.trace", "no iteration [7]"),
        ("export job.trace -o out.json -w overlap:ideal", "add --graph"),
        ("describe raw.json --by kernel --length aten::mm:5:0", "no 'aten::mm' has such a dimension"),
    ],
)
def test_it_is_an_error_if_the_input_shows_it(run: Run, files: Path, command: str, problem: str) -> None:
    assert (files / "job.trace").is_dir()
    result = run(*command.split())
    assert (result.code, len(result.err.splitlines())) == (1, 1)
    assert problem in result.err


@pytest.mark.parametrize(
    "command",
    [
        "select ranks.csv --rank 1",
        "select log.csv --selector stratified --max-iterations 6",
        "select log.csv --tolerance 0.1",
        "select log.csv --selector median",
        "describe raw.json --iterations whole",
        "slice job.trace --from 1ms --to 3ms -o out.trace",
        "what-ifs change_stream --explain",
    ],
)
def test_options_with_an_effect_are_none(run: Run, files: Path, command: str) -> None:
    assert (files / "job.trace").is_dir()
    result = run(*command.split())
    assert result.code == 0, result.err

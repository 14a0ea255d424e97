"""Regenerate tests/accuracy/contention.csv: predicted against measured times of works side by side.

    python benchmarks/contention/accuracy_of_contention.py > tests/accuracy/contention.csv

of every recording in datasets/measured (folders with a together.parquet; a folder of others may be given). `shipped` is
with the parameters of datasets/parameters.toml, which have seen none of it; `left out` with a fit to those scenarios
that have other works, a quarter predicted at a time. In per cent, but for the counts; `takes` is how far takes of the
same scenario differ, below which no error says anything. Without a recording there is only the head.
"""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from profilers.errors import NotFoundError
from profilers.files import dataset_path
from replay.contention import ContentionRecording, read_contention
from seqpoint.validation.contention import score_by_mechanism, score_order
from seqpoint.validation.contention_cases import ContentionCase, predict_contention, refit_contention

COLUMNS = (
    "recording", "device", "how", "mechanism", "scenarios", "median", "p90", "ends", "slowdown", "serial", "free",
    "covered", "takes", "takes_p90", "order_compared", "order_right",
)  # fmt: skip
#: Columns that may not get worse: errors, in per cent.
ERRORS = ("median", "p90", "ends", "slowdown")


def shipped_recordings(folder: Path | None = None) -> list[ContentionRecording]:
    """Return the recordings of a folder, by default those that the project ships; none where there is none."""
    try:
        return read_contention(folder or dataset_path("measured"))
    except NotFoundError:
        return []


def rows(recording: ContentionRecording, how: str) -> list[dict[str, str]]:
    """Return the rows of a recording, a mechanism each and all."""
    cases = predict_contention([recording]) if how == "shipped" else refit_contention([recording])
    return [_row((recording, how, one.mechanism), cases) for one in score_by_mechanism(cases)]


def _row(what: tuple[ContentionRecording, str, str], cases: Sequence[ContentionCase]) -> dict[str, str]:
    recording, how, mechanism = what
    mine = [case for case in cases if mechanism in (case.mechanism, "all")]
    score, order = score_by_mechanism(mine)[-1], score_order(mine)
    shares = {
        "median": score.median, "p90": score.p90, "ends": score.ends, "slowdown": score.slowdown,
        "serial": score.serial, "free": score.free, "covered": score.covered, "takes": score.spread,
        "takes_p90": score.spread_p90,
    }  # fmt: skip
    return {
        "recording": recording.source,
        "device": recording.device.name,
        "how": how,
        "mechanism": mechanism,
        "scenarios": str(score.cases),
        **{name: f"{100 * value:.2f}" for name, value in shares.items()},
        "order_compared": str(order.compared),
        "order_right": str(order.right),
    }


if __name__ == "__main__":
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for one in shipped_recordings(Path(sys.argv[1]) if len(sys.argv) > 1 else None):
        for how in ("shipped", "left out"):
            writer.writerows(rows(one, how))

"""Regenerate the tables of predicted against measured durations of operators in tests/accuracy.

    python benchmarks/durations/accuracy_of_durations.py ../shared/data/kernels > tests/accuracy/kernel_durations.csv
    python benchmarks/durations/accuracy_of_durations.py ../shared/data/operators \
        > tests/accuracy/framework_operators.csv

Every device is predicted with its own fit, and carried over from the others as if it had never been measured.
`fit_kernels.py` makes the shipped fits.

FP16 is scored on what was not fitted: a profile by fits of the other files of its device, and every FP16 table by
halves, of which one is fitted and the other scored.
"""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from replay.costs.kernels import MeasuredOperators, calibrate, load_calibration, read_measurements
from seqpoint.validation.kernels import KernelScore, kernel_rows, score_halves, score_kernels

COLUMNS = ("case", "rows", "error", "median", "bias", "covered", "limit")
#: Framework whose operators were fitted, and fewest operators of a table that is scored.
LIBRARY, LEAST_ROWS = "trtllm", 10
#: Frameworks whose attention was fitted.
ATTENTION_OF = ("trtllm", "vllm", "sglang")
#: Kinds of quantization, which are fitted for each framework.
QUANTIZATIONS = ("quantization", "quantization_scale")
#: Of the mean over the operators of an FP16 table of an A100.
FP16_LIMIT = "12"


def table(folder: Path) -> list[dict[str, str]]:
    """Return the rows of the table."""
    measured = read_measurements(folder)
    scores = [one for one in score_kernels(measured) if not (one.seen and one.basis == "fitted")]
    test_files = {(s.kind, s.device) for s in scores if "_test" in s.source}
    kept = [s for s in scores if "_test" in s.source or (s.kind, s.device) not in test_files]
    summaries = [row for row in kernel_rows(kept) if row.limit is not None]
    # The sweeps time what the host waits for, the profiles kernels: fits of the one do not say the start of the other.
    return [
        *(_score(one) for one in kept if "llmcompass" not in one.source),
        *({"case": r.case, "error": f"{100 * r.error:.2f}", "limit": f"{100 * (r.limit or 0):g}"} for r in summaries),
        *halves([one for one in measured if one.dtype == "fp16"]),
    ]


def frameworks(
    folder: Path, attention_of: Sequence[str] = ATTENTION_OF, halves_of: Sequence[str] | None = None
) -> list[dict[str, str]]:
    """Return the rows of operators inside frameworks: by halves, carried over, and of libraries without fits.

    `halves_of` are the kinds that are scored by halves, each of which is fitted; None for all.
    """
    measured = [one for one in read_measurements(folder) if len(one) >= LEAST_ROWS]
    attention = [one for one in measured if "attention" in one.kind and one.library in attention_of]
    rest = [one for one in measured if "attention" not in one.kind]
    fitted = {(kind, library) for kind, _, _, library in load_calibration().fits}
    own = [one for one in rest if (one.kind, one.library) in fitted]
    others = [one for one in rest if (one.kind, one.library) not in fitted and "quantization" not in one.kind]
    scores = [
        *score_halves(
            [
                o
                for o in own
                if (o.library == LIBRARY or o.kind in QUANTIZATIONS) and (halves_of is None or o.kind in halves_of)
            ]
        ),
        *(score for score in score_kernels(own) if score.basis == "carried"),
        *(score for score in score_kernels(others) if score.basis == "fitted"),
        *score_halves([o for o in attention if halves_of is None or o.kind in halves_of]),
        *(score for score in score_kernels(attention) if score.basis == "carried"),
    ]
    return [{**_score(s), "case": f"{s.kind} {s.device} {s.dtype} {s.library} {s.basis}"} for s in scores]


def halves(measured: Sequence[MeasuredOperators]) -> list[dict[str, str]]:
    """Return FP16's rows: profiles by the other files of their device, and all tables by halves."""
    rows = []
    for source in sorted({one.source for one in measured}):
        mine = [one for one in measured if one.source == source]
        rows += [{**_score(s), "case": f"{s.kind} {s.device} {s.dtype} halves of {source}"} for s in score_halves(mine)]
        others = [o for o in measured if o.source != source and o.device == mine[0].device and "vidur" in o.source]
        if "vidur" in source and others:
            scores = [s for s in score_kernels(mine, calibrate(others)) if s.basis == "fitted"]
            rows += [{**_score(s), "case": f"{s.kind} {s.device} {s.dtype} other files, {source}"} for s in scores]
            error = sum(s.error for s in scores) / len(scores)
            rows.append(
                {"case": f"mean over operators of {source}", "error": f"{100 * error:.2f}", "limit": FP16_LIMIT}
            )
    return rows


def _score(one: KernelScore) -> dict[str, str]:
    return {
        "case": f"{one.kind} {one.device} {one.dtype} {one.basis}"
        + (f" {one.source}" if "vidur" in one.source else ""),
        "rows": str(one.rows),
        "error": f"{100 * one.error:.2f}",
        "median": f"{100 * one.median:.2f}",
        "bias": f"{one.bias:.3f}",
        "covered": f"{100 * one.covered:.1f}",
    }


if __name__ == "__main__":
    writer = csv.DictWriter(sys.stdout, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    data = Path(sys.argv[1])
    writer.writerows((table if data.name == "kernels" else frameworks)(data))

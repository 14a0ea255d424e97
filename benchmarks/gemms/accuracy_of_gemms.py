"""Regenerate tests/accuracy/gemms.csv: candidate kernels of GEMMs that a fit did not see.

    python benchmarks/gemms/accuracy_of_gemms.py ../shared/data/gemm_variants tests/accuracy

The rows are those of `seqpoint validate gemms` on the tables of MI100 and Vega 20, in per cent. A row "noise" compares
kernels that are the same: with `stagger_u` of 0, `stagger_u_stride` has no effect. `best` is the median difference of
two measurements, `regret` what choosing the best by one measurement costs in the other. The last row has the share of
winners for each compute unit that rank in the top tenth, under `ranks`.
"""

import csv
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from replay.gemms import read_candidates
from seqpoint.validation.gemms import candidate_rows, read_winners, winner_ranks

TABLES = ("tensile_candidates_mi100_f32.parquet", "tensile_candidates_vega20_f16.parquet")
WINNERS = "rocblas_mi100_cu_efficiency.parquet"
COLUMNS = (
    "table", "protocol", "gemms", "error", "error_p90", "regret", "regret_p90", "promise_error", "spearman", "small",
    "measured", "named", "false_alarms", "chosen",
)  # fmt: skip
_PER_CENT = ("error", "error_p90", "regret", "regret_p90", "promise_error")
_SHAPE = ("m", "n", "k", "batch", "transpose_a", "transpose_b")
_TIME = "gflops"


def noise(file: Path) -> dict[str, object]:
    """Return the row of kernels that differ in a parameter without effect."""
    frame = pq.read_table(file).to_pandas()
    frame = frame[frame.stagger_u == 0]
    other = ("stagger_u_stride", "kernel_name", "candidate_id", "archive", "benchmark_file", _TIME)
    key = [name for name in frame.columns if name not in other]
    pairs = frame.pivot_table(index=key, columns="stagger_u_stride", values=_TIME, observed=True).dropna()
    logs = np.log(pairs.to_numpy())
    shapes = np.unique(pairs.index.to_frame()[list(_SHAPE)].astype(int).to_numpy(), axis=0, return_inverse=True)[
        1
    ].ravel()
    regrets = [
        1 - np.exp(of_shape[of_shape[:, i].argmax(), 1 - i] - of_shape[:, 1 - i].max())
        for number in np.unique(shapes)
        for of_shape in [logs[shapes == number]]
        for i in (0, 1)
    ]
    differences = np.abs(logs[:, 0] - logs[:, 1])
    return {
        "table": "MI100 fp32", "protocol": "noise", "gemms": len(np.unique(shapes)),
        "error": float(np.median(differences)), "error_p90": float(np.quantile(differences, 0.9)),
        "regret": float(np.median(regrets)), "regret_p90": float(np.quantile(regrets, 0.9)),
    }  # fmt: skip


def fast_rows(data: Path) -> list[dict[str, str]]:
    """Return the rows that no fit takes part in, which take seconds: the noise, and the ranks of winners."""
    ranks = winner_ranks(read_winners(data / WINNERS))
    share = float(np.mean(ranks < 0.1))
    winners = {"table": "MI100 fp16", "protocol": "winners for each unit", "gemms": len(ranks), "spearman": share}
    return [_texts(row) for row in (noise(data / TABLES[0]), winners)]


def table_of_scores(data: Path) -> list[dict[str, str]]:
    """Return the rows of gemms.csv."""
    fitted = [row for name in TABLES for row in candidate_rows(read_candidates(data / name))[1]]
    return [*map(_texts, fitted), *fast_rows(data)]


def _texts(row: dict[str, object]) -> dict[str, str]:
    return {name: _text(name, row.get(name)) for name in COLUMNS}


def _text(name: str, value: object) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{100 * value:.2f}" if name in _PER_CENT else f"{value:.3f}"


if __name__ == "__main__":
    with (Path(sys.argv[2]) / "gemms.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table_of_scores(Path(sys.argv[1])))

"""Score times of candidate kernels on GEMMs that a fit did not see, from tables in PATH.

A table (Parquet or CSV) has a row for each kernel on each GEMM: m, n, k, macro_tile_m, macro_tile_n, and gflops or
time_us. It may have batch, transpose_a, transpose_b, depth_u, global_split_u, local_split_u, workgroup_size_threads,
matrix_instruction, lds_bytes and kernel_name; -1 means that a value is not known. Other columns that are constant for a
kernel describe it. A fit of four fifths of the GEMMs predicts the others, first each GEMM alone, then together with
those alike. Regret is the time of the kernel that the fit chooses over the best time.

A table of winners has the columns cu_macro_tile_m, cu_macro_tile_n and cu_workgroups: the kernel with the most
throughput for each compute unit in use. They are ranked among the kernels of the library.

\b
seqpoint validate gemms tensile_candidates_mi100_f32.parquet
seqpoint validate gemms measured.csv --device H100-SXM5-80GB --dtype bf16 --gate --json
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from scipy.stats import spearmanr

from profilers.devices.catalogue import Device, device_of_file, find_device
from profilers.trace.arrays import Floats
from replay.calibration.tables import MeasuredTable
from replay.gemms.candidates import (
    NEEDS,
    MeasuredCandidates,
    dtype_of_file,
    holds_candidates,
    known_columns,
    read_candidates,
    recorded_columns,
)
from replay.gemms.fitting import fit_variants, folds_of, held_out_times, measured_times
from replay.gemms.gemm import Gemm, Variants
from replay.gemms.variant_model import library_of
from seqpoint.notebook import Table, table_of
from seqpoint.validation.suites import SuiteOptions, SuiteResult, TablePart, ValidationRow, suite_of_parts, summary_row

_WINNERS: Final = ("m", "n", "k", "cu_macro_tile_m", "cu_macro_tile_n", "cu_workgroups")
#: Columns of a kernel's name: a table of winners alone has none.
_NAMES: Final = {"kernel_name", "kernel", "candidate_id"}
#: Limits: median error of the time of the best, median regret, share of winners that rank high.
_ERROR, _REGRET, _RANKED = 0.15, 0.10, 0.8
#: A winner ranks high in this share of the candidates.
_TOP: Final = 0.1
#: A small grid has at most this many workgroups for each compute unit; a kernel is near the best with this share of
#: its throughput.
_SMALL, _NEAR = 4, 0.9
#: Ways to leave GEMMs out, and whether alike GEMMs go together.
PROTOCOLS: Final = {"GEMMs left out": False, "alike GEMMs left out together": True}


@dataclass(frozen=True)
class CandidateScore:
    """Score of a GEMM whose candidates were predicted.

    Parameters
    ----------
    gemm : Gemm
        The GEMM.
    best_ns, expected_ns : float
        Measured time of the best candidate, and the time that the model expects of it.
    chosen_ns, promised_ns : float
        Measured time of the candidate that the model chooses, and the time that it expects of it.
    spearman : float
        Rank correlation of expected and measured times over the candidates.
    """

    gemm: Gemm
    best_ns: float
    expected_ns: float
    chosen_ns: float
    promised_ns: float
    spearman: float

    @property
    def error(self) -> float:
        """Error of the time of the best candidate."""
        return abs(self.expected_ns / self.best_ns - 1)

    @property
    def regret(self) -> float:
        """Time of the chosen candidate over the best time, less 1."""
        return self.chosen_ns / self.best_ns - 1

    @property
    def promise_error(self) -> float:
        """Error of the time of the chosen candidate."""
        return abs(self.promised_ns / self.chosen_ns - 1)


def candidate_scores(candidates: MeasuredCandidates, expected_ns: Floats) -> list[CandidateScore]:
    """Return the score of each GEMM.

    Parameters
    ----------
    candidates : MeasuredCandidates
        Table.
    expected_ns : array of float64, shape (r,)
        Time that a model expects of each row.
    """
    scores = []
    for number in np.unique(candidates.gemm_of):  # one pass over the rows of each GEMM
        rows = np.flatnonzero(candidates.gemm_of == number)
        measured, expected = candidates.time_ns[rows], expected_ns[rows]
        best, chosen = measured.argmin(), expected.argmin()
        spearman = float(spearmanr(expected, measured).statistic) if len(rows) > 1 and np.ptp(measured) > 0 else np.nan
        times = [float(t) for t in (measured[best], expected[best], measured[chosen], expected[chosen])]
        scores.append(CandidateScore(candidates.gemms[number], times[0], times[1], times[2], times[3], spearman))
    return scores


def summarize(scores: Sequence[CandidateScore]) -> dict[str, float]:
    """Return medians and 90th percentiles over GEMMs: error of the best, regret, promise and rank correlation."""
    summary: dict[str, float] = {"gemms": len(scores)}
    for name in ("error", "regret", "promise_error"):
        values = [getattr(score, name) for score in scores]
        summary |= {name: float(np.median(values)), f"{name}_p90": float(np.quantile(values, 0.9))}
    return summary | {"spearman": float(np.nanmedian([score.spearman for score in scores]))}


@dataclass(frozen=True)
class SmallGrids:
    """Kernels with half the workgroups of the best, on GEMMs whose best kernel has a small grid.

    Parameters
    ----------
    small : int
        GEMMs with a small grid: at most four workgroups of the best kernel for each compute unit.
    measured : int
        GEMMs of these with a kernel of 90 % of the best throughput, or more, at half the workgroups.
    named : int
        GEMMs of the latter on which the model expects so.
    false_alarms : int
        GEMMs of the first without such a kernel, on which the model expects it.
    chosen : int
        GEMMs of the second on which the kernel that the model chooses, at half the workgroups, has 90 % or more.
    """

    small: int
    measured: int
    named: int
    false_alarms: int
    chosen: int


def small_grids(candidates: MeasuredCandidates, expected_ns: Floats) -> SmallGrids:
    """Count the small grids of a table, and those that a model finds.

    Parameters
    ----------
    candidates : MeasuredCandidates
        Table.
    expected_ns : array of float64, shape (r,)
        Time that a model expects of each row.
    """
    counts = np.zeros(5, dtype=np.int64)
    for number in np.unique(candidates.gemm_of):  # one pass over the rows of each GEMM
        rows = np.flatnonzero(candidates.gemm_of == number)
        measured, expected = candidates.time_ns[rows], expected_ns[rows]
        workgroups = candidates.variants.select(candidates.variant_of[rows]).workgroups(candidates.gemms[number])
        best = measured.argmin()
        if workgroups[best] > _SMALL * candidates.device.compute_units:
            continue
        half = np.flatnonzero(workgroups <= workgroups[best] / 2)
        enough = measured[best] / _NEAR * (1 + 1e-9)
        there = bool((measured[half] <= enough).any())
        named = bool((expected[half] <= expected.min() / _NEAR).any())
        chosen = there and bool(measured[half[expected[half].argmin()]] <= enough)
        counts += (True, there, there and named, named and not there, chosen)
    return SmallGrids(*counts.tolist())


@dataclass(frozen=True)
class UnitWinners:
    """Kernels with the most throughput for each compute unit in use, by GEMM.

    Parameters
    ----------
    source : str
        Name of the file.
    device : Device
        Device that was measured.
    gemms : tuple of Gemm
        GEMMs, n of them.
    variants : Variants
        Winner of each GEMM.
    """

    source: str
    device: Device
    gemms: tuple[Gemm, ...]
    variants: Variants


def read_winners(file: Path, device: str | None = None, dtype: str | None = None) -> UnitWinners:
    """Read a table of winners for each compute unit.

    Parameters
    ----------
    file : Path
        Parquet or CSV file.
    device, dtype : str, optional
        Device and type, if neither a column ``dtype_in`` nor the file's name says it.

    Raises
    ------
    InvalidInputError
        A column is missing or a value cannot be; the message names file and row.
    """
    table = MeasuredTable.open(file, _WINNERS)
    sizes = [table.numbers(name, whole=True).astype(int).tolist() for name in ("m", "n", "k")]
    count = len(sizes[0])
    batch = table.numbers("batch", whole=True).astype(int).tolist() if "batch" in table.columns else [1] * count
    if dtype is None and "dtype_in" in table.columns:
        types = [dtype_of_file(file, text) for text in table.texts("dtype_in")]
    else:
        types = [dtype_of_file(file, dtype)] * count
    gemms = tuple(Gemm(*shape) for shape in zip(*sizes, batch, types, strict=True))
    columns = known_columns(recorded_columns(table, "cu_"), np.arange(count))
    measured = find_device(device) if device else device_of_file(file, None)
    return UnitWinners(file.name, measured, gemms, Variants.of(**columns))


def winner_ranks(winners: UnitWinners) -> Floats:
    """Return the share of the candidates that rank before each winner, by throughput for each compute unit in use.

    The candidates are the kernels of the library of the device, and the winners of all GEMMs.

    Parameters
    ----------
    winners : UnitWinners
        Winners of some GEMMs.
    """
    names = [name for name in Variants.__dataclass_fields__ if name not in ("candidate", "lds_bytes")]
    shares = np.zeros(len(winners.gemms))
    for number, gemm in enumerate(winners.gemms):  # some hundred GEMMs, about 1 ms each
        library, model = library_of(winners.device, gemm.dtype)
        pool = {
            name: np.concatenate([getattr(library, name), getattr(winners.variants, name)])
            for name in Variants.__dataclass_fields__
        }
        table = np.column_stack([pool[name] for name in names])
        distinct, first, kernel = np.unique(table, axis=0, return_index=True, return_inverse=True)
        variants = Variants(**pool).select(first)
        costs = model.costs(gemm, variants, winners.device)
        spent = costs.time_ns * np.minimum(costs.workgroups, winners.device.compute_units)
        winner = kernel.ravel()[len(library) + number]
        shares[number] = (spent < spent[winner] * (1 - 1e-9)).sum() / len(distinct)
    return shares


def candidate_rows(candidates: MeasuredCandidates) -> tuple[list[ValidationRow], list[dict[str, object]]]:
    """Return the rows of a table, and the summary of each protocol.

    Parameters
    ----------
    candidates : MeasuredCandidates
        Table.
    """
    label = f"{candidates.device.name} {candidates.gemms[0].dtype}"
    rows: list[ValidationRow] = []
    summaries: list[dict[str, object]] = []
    for protocol, families in PROTOCOLS.items():
        expected = held_out_times(candidates, folds_of(candidates.gemms, families=families))
        scores, grids = candidate_scores(candidates, expected), small_grids(candidates, expected)
        summary = summarize(scores)
        case = f"{label}, {protocol}"
        if families:
            rows[:0] = [
                ValidationRow(
                    f"{label} {_shape(score.gemm)}: best candidate, ns", score.best_ns, score.expected_ns, score.error,
                    source=candidates.source,
                )
                for score in scores
            ]  # fmt: skip
        rows.append(summary_row(f"{case}: median error of the best candidate", summary["error"], _ERROR))
        rows.append(summary_row(f"{case}: median regret of the choice", summary["regret"], _REGRET))
        if grids.measured:
            rows += _grid_rows(case, grids, candidates.source)
        summaries.append({"table": label, "protocol": protocol, **summary, **vars(grids)})
    expected = measured_times(fit_variants(candidates), candidates, np.unique(candidates.gemm_of))
    grids = small_grids(candidates, expected)
    if grids.measured:
        rows += [replace(row, fitted=True) for row in _grid_rows(f"{label}, fitted", grids, candidates.source)]
    summary = summarize(candidate_scores(candidates, expected))
    summaries.append({"table": label, "protocol": "fitted", **summary, **vars(grids)})
    return rows, summaries


def _shape(gemm: Gemm) -> str:
    """Return the shape and the layout of a GEMM, such as ``49x256x512 NT``."""
    return f"{str(gemm).split()[0]} {'NT'[gemm.transpose_a]}{'NT'[gemm.transpose_b]}"


def _grid_rows(case: str, grids: SmallGrids, source: str) -> list[ValidationRow]:
    """Return the rows of small grids with a fast kernel at half the workgroups."""
    return [
        ValidationRow(
            f"{case}: small grids, {what}", grids.measured, found, abs(found / grids.measured - 1), source=source
        )
        for what, found in (
            ("half the workgroups named as enough", grids.named),
            ("kernel chosen at half the workgroups is fast", grids.chosen),
        )
    ]


def _score_winners(tables: Sequence[UnitWinners], options: SuiteOptions) -> SuiteResult:
    """Score the ranks of winners."""
    rows = []
    for table in tables:
        ranks = winner_ranks(table)
        case = f"{table.device.name}: winners for each compute unit in the top {_TOP:.0%} of candidates"
        source = f"{table.source}, {len(ranks)} GEMMs"
        rows.append(summary_row(case, float(np.mean(ranks < _TOP)), _RANKED, least=True, source=source))
    return SuiteResult(rows, {"scores": []}, [])


def _score_candidates(tables: Sequence[MeasuredCandidates], options: SuiteOptions) -> SuiteResult:
    """Score the predicted times of candidates."""
    rows: list[ValidationRow] = []
    summaries: list[dict[str, object]] = []
    for table in tables:
        of_table, of_protocols = candidate_rows(table)
        rows += of_table
        summaries += of_protocols
    notes = [
        f"{table.source}: {table.failed} rows without a time, {table.repeated} repeated rows"
        for table in tables
        if table.failed or table.repeated
    ]
    return SuiteResult(rows, {"scores": summaries}, _tables(summaries), summaries, notes)


def _tables(summaries: Sequence[dict[str, object]]) -> list[Table]:
    """Return the tables of errors and of small grids."""
    columns = {
        "table~": "{table}", "fit~": "{protocol}", "GEMMs": "{gemms}", "best %": "{error:.1%}",
        "90th %": "{error_p90:.1%}", "regret %": "{regret:.1%}", "regret, 90th %": "{regret_p90:.1%}",
        "chosen %": "{promise_error:.1%}", "ranks": "{spearman:.2f}",
    }  # fmt: skip
    grids = {
        "table~": "{table}", "fit~": "{protocol}", "small grids": "{small}", "half is enough": "{measured}",
        "named": "{named}", "false alarms": "{false_alarms}", "chosen": "{chosen}",
    }  # fmt: skip
    return [
        table_of("Candidates of GEMMs", columns, summaries),
        table_of("Small grids", grids, summaries),
    ]


SUITE = suite_of_parts(
    "gemms",
    __doc__,
    NEEDS,
    {
        "winners": TablePart(
            frozenset(_WINNERS).issubset,
            lambda file, options: [read_winners(file, options.device, options.dtype)],
            _score_winners,
        ),
        "candidates": TablePart(
            lambda columns: holds_candidates(list(columns)) and not _NAMES.isdisjoint(columns),
            lambda file, options: [read_candidates(file, options.device, options.dtype)],
            _score_candidates,
        ),
    },
    options=("device", "dtype"),
)

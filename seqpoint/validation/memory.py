"""Compare the simulation of caches and DRAM with the references in PATH.

A table of DRAM (CSV or Parquet) has the columns mapping, pattern, window, requests, cycles, read_row_hits and
write_row_hits: the cycles that another simulator needs for a pattern of requests to one stack of HBM2. Bandwidth and
row hits of each row are compared; agreement says that the timing rules are right, not that a device behaves so.

\b
seqpoint validate memory ../shared/data/dram/hbm2_reference.csv --verbose
seqpoint validate memory ../shared/data/dram --gate --json
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr

from profilers.errors import SeqPointError
from profilers.trace.arrays import Ints
from replay.calibration.tables import MeasuredTable
from replay.memory.dram import DramSimulator, Traffic, find_dram
from seqpoint.notebook import table_of
from seqpoint.validation.memory_hardware import (
    COUNTER_COLUMNS,
    TIME_COLUMNS,
    read_counters,
    read_times,
    score_counters,
    score_times,
)
from seqpoint.validation.suites import (
    PREDICTING,
    SuiteOptions,
    SuiteResult,
    TablePart,
    ValidationRow,
    followed,
    suite_of_parts,
    summary_row,
)

#: Standard of the DRAM that the reference simulates.
REFERENCE_DRAM = "HBM2_8Gb_x128"
#: Limits: median and 90th percentile of the errors of bandwidth, median difference of row-hit rates, rank correlation.
_MEDIAN, _P90, _HITS, _ORDER = 0.10, 0.25, 0.05, 0.95
_MOST = 10**9
DRAM_COLUMNS = ("mapping", "pattern", "window", "cycles", "read_row_hits", "write_row_hits")
#: Requests of a pattern, where it divides them evenly, and bytes of a request.
REQUESTS, REQUEST_BYTES = 120_000, 64
#: Random patterns are drawn from one generator, in a fixed order, so each pattern depends on those before it.
_SEED = 7
_MIB, _GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class DramCase:
    """A pattern of requests that the reference served.

    Parameters
    ----------
    mapping, pattern : str
        Order of address bits, and name of the pattern (`dram_patterns`).
    window : int
        Most requests outstanding.
    cycles : float
        Cycles that the reference needed.
    row_hit_rate : float
        Row hits over requests.
    source : str
        File and row.
    """

    mapping: str
    pattern: str
    window: int
    cycles: float
    row_hit_rate: float
    source: str

    @property
    def name(self) -> str:
        """Mapping, pattern and window."""
        return f"{self.pattern}, {self.mapping}, window {self.window}"


@dataclass(frozen=True)
class DramScore:
    """A pattern with its simulated figures.

    Parameters
    ----------
    case : DramCase
        The pattern.
    bandwidth_gbps, reference_gbps : float
        Simulated bandwidth, and that of the reference.
    row_hit_rate : float
        Simulated row hits over requests.
    """

    case: DramCase
    bandwidth_gbps: float
    reference_gbps: float
    row_hit_rate: float

    @property
    def error(self) -> float:
        """``|bandwidth - reference| / reference``."""
        return abs(self.bandwidth_gbps / self.reference_gbps - 1)

    @property
    def hit_difference(self) -> float:
        """Absolute difference of the row-hit rates."""
        return abs(self.row_hit_rate - self.case.row_hit_rate)

    def row(self) -> ValidationRow:
        """Return the row of the validation: bandwidth, GB/s."""
        case = f"DRAM bandwidth: {self.case.name}"
        return ValidationRow(case, self.reference_gbps, self.bandwidth_gbps, self.error, source=self.case.source)

    def content(self) -> dict[str, object]:
        """Return the score as JSON with stable keys."""
        return {
            "mapping": self.case.mapping,
            "pattern": self.case.pattern,
            "window": self.case.window,
            "reference_gbps": self.reference_gbps,
            "bandwidth_gbps": self.bandwidth_gbps,
            "error": self.error,
            "reference_row_hit_rate": self.case.row_hit_rate,
            "row_hit_rate": self.row_hit_rate,
        }


def dram_patterns() -> Mapping[str, Traffic]:
    """Return the patterns by name.

    ``stream_*`` read and write in order; ``copy_blockB`` reads B lines and writes them 1 GiB further on;
    ``streamsK_aligned`` reads K streams in turn, 64 MiB apart; ``strideS`` reads every S bytes; ``random_F`` reads at
    random in F; ``random_blocksS`` reads S bytes in order at random multiples of S.
    """
    rng = np.random.default_rng(_SEED)
    lines = np.arange(REQUESTS) * REQUEST_BYTES
    patterns = {"stream_read": _reads(lines), "stream_write": _traffic(lines, np.ones(REQUESTS))}
    for percent in (25, 50, 75):
        patterns[f"stream_mixed_write{percent}"] = _traffic(lines, rng.random(REQUESTS) < percent / 100)
    for block in (1, 4, 16, 64, 256):
        patterns[f"copy_block{block}"] = _copy(block)
    for streams in (2, 3, 4, 8, 16, 32):
        steps = np.arange(REQUESTS // streams)[:, None] * REQUEST_BYTES
        patterns[f"streams{streams}_aligned"] = _reads((steps + np.arange(streams) * 64 * _MIB).ravel())
    for stride in (1 << power for power in range(7, 18)):
        patterns[f"stride{stride}"] = _reads(np.arange(REQUESTS) * stride % (4 * _GIB))
    for footprint in (1, 16, 256, 4096):
        patterns[f"random_{footprint}MiB"] = _reads(_random(rng, footprint * _MIB // REQUEST_BYTES, REQUESTS))
    everywhere = _random(rng, 4 * _GIB // REQUEST_BYTES, REQUESTS)
    patterns["random_4096MiB_write50"] = _traffic(everywhere, rng.random(REQUESTS) < 0.5)
    for block in (2, 4, 8, 16, 32, 64):
        starts = _random(rng, 4 * _GIB // (REQUEST_BYTES * block), REQUESTS // block)[:, None] * block
        addresses = (starts + np.arange(block) * REQUEST_BYTES).ravel()
        patterns[f"random_blocks{block * REQUEST_BYTES}B"] = _reads(addresses)
    return patterns


def _traffic(address: Ints, is_write: object) -> Traffic:
    return Traffic(address.astype(np.int64), np.asarray(is_write).astype(np.uint8))


def _reads(address: Ints) -> Traffic:
    return _traffic(address, np.zeros(len(address)))


def _random(rng: np.random.Generator, places: int, count: int) -> Ints:
    """Return random multiples of a request's bytes."""
    return np.asarray(rng.integers(0, places, count) * REQUEST_BYTES)


def _copy(block: int) -> Traffic:
    """Return reads of blocks of lines, each followed by writes of the same lines 1 GiB further on."""
    blocks = REQUESTS // 2 // block
    source = (np.arange(blocks * block) * REQUEST_BYTES).reshape(blocks, block)
    written = np.repeat([[0] * block + [1] * block], blocks, axis=0)
    return _traffic(np.concatenate([source, source + _GIB], axis=1).ravel(), written.ravel())


_patterns = cache(dram_patterns)


def read_dram(table: MeasuredTable, name: str) -> list[DramCase]:
    """Return the patterns of a table of DRAM.

    Parameters
    ----------
    table : MeasuredTable
        Table with the columns `DRAM_COLUMNS`.
    name : str
        Name of the file.

    Raises
    ------
    InvalidInputError
        A pattern is unknown, or a value cannot be.
    """
    mappings, patterns = table.texts("mapping"), table.texts("pattern")
    windows, cycles = table.numbers("window", (1, _MOST), whole=True), table.numbers("cycles", (1, 1e15))
    hits = table.floats("read_row_hits") + table.floats("write_row_hits")
    table.refuse(_unknown_mappings(table, mappings))
    cases, wrong = [], list[tuple[int, object]]()
    for row, (mapping, pattern) in enumerate(zip(mappings, patterns, strict=True)):  # about 1 us a row
        if pattern not in _patterns():
            wrong.append((row, f"no pattern {pattern!r:.80}; known are {', '.join(_patterns())}"))
            continue
        rate = float(hits[row]) / len(_patterns()[pattern])
        if not 0 <= rate <= 1:
            wrong.append((row, f"{hits[row]:g} row hits of {len(_patterns()[pattern])} requests"))
        source = f"{name} row {table.number(row)}"
        cases.append(DramCase(str(mapping), pattern, int(windows[row]), float(cycles[row]), rate, source))
    table.refuse(wrong)
    return cases


def _unknown_mappings(table: MeasuredTable, mappings: npt.NDArray[np.object_]) -> Iterator[tuple[int, object]]:
    """Yield the rows whose mapping of addresses the DRAM does not know, with the reason."""
    dram = find_dram(REFERENCE_DRAM)
    for mapping in np.unique(mappings).tolist():
        try:
            dram.with_mapping(mapping)
        except SeqPointError as error:
            yield from ((row, error) for row in np.flatnonzero(mappings == mapping).tolist())


def score_dram(case: DramCase, traffic: Traffic) -> DramScore:
    """Simulate a pattern.

    Parameters
    ----------
    case : DramCase
        The pattern, with the figures of the reference.
    traffic : Traffic
        Its requests.
    """
    dram = find_dram(REFERENCE_DRAM).with_mapping(case.mapping)
    simulator = DramSimulator(dram, window=case.window)
    simulator.serve(traffic)
    counters = simulator.finish()
    moved = len(traffic) * dram.access_bytes * dram.clock_hz * 1e-9
    return DramScore(case, moved / counters.cycles, moved / case.cycles, counters.row_hit_rate)


def dram_rows(scores: Sequence[DramScore]) -> list[ValidationRow]:
    """Return a row for each pattern, then the summaries that have limits.

    Parameters
    ----------
    scores : sequence of DramScore
        Patterns with their simulated figures.
    """
    errors = [score.error for score in scores]
    hits = float(np.median([score.hit_difference for score in scores]))
    rows = [
        *(score.row() for score in scores),
        summary_row(f"DRAM bandwidth: median of {len(scores)} patterns", float(np.median(errors)), _MEDIAN),
        summary_row("DRAM bandwidth: 90th percentile", float(np.quantile(errors, 0.9)), _P90),
        summary_row("DRAM row-hit rate: median difference", hits, _HITS),
    ]
    if len(scores) > 2:
        order = spearmanr([score.bandwidth_gbps for score in scores], [score.reference_gbps for score in scores])
        rows.append(summary_row("DRAM bandwidth: rank correlation", float(order.statistic), _ORDER, least=True))
    return rows


def _score_dram(cases: Sequence[DramCase], options: SuiteOptions) -> SuiteResult:
    progress = options.progress(PREDICTING)
    scores = [score_dram(case, _patterns()[case.pattern]) for case in followed(cases, progress, lambda c: c.name)]
    columns = {
        "mapping~": "{mapping}", "pattern~": "{pattern}", "window": "{window}",
        "reference GB/s": "{reference_gbps:.1f}", "ours GB/s": "{bandwidth_gbps:.1f}", "error %": "{error:.1%}",
        "reference row hits %": "{reference_row_hit_rate:.1%}", "ours row hits %": "{row_hit_rate:.1%}",
    }  # fmt: skip
    contents = [score.content() for score in scores]
    table = table_of("DRAM against the reference, by pattern", columns, contents, verbose=True)
    return SuiteResult(dram_rows(scores), {"dram": contents}, [table], scores)


def _table_part(
    columns: Collection[str],
    read: Callable[[MeasuredTable, str], list[Any]],
    score: Callable[[Sequence[Any], SuiteOptions], SuiteResult],
) -> TablePart:
    """Return the part of tables with some columns; `read` takes the table and the name of its file."""
    known = frozenset(columns)
    return TablePart(known.issubset, lambda file, options: read(MeasuredTable.open(file), file.name), score)


SUITE = suite_of_parts(
    "memory",
    __doc__,
    f"reference of DRAM (columns {', '.join(DRAM_COLUMNS)})",
    {
        "dram": _table_part(DRAM_COLUMNS, read_dram, _score_dram),
        "counters": _table_part(COUNTER_COLUMNS, read_counters, score_counters),
        "times": _table_part(TIME_COLUMNS, read_times, score_times),
    },
)

"""The table of validation suites: the files that a suite knows, its reader, and the result of its scores.

A suite compares figures of the toolkit with figures that were measured or published. `SUITES` lists them in the order
of the scoreboard. `load_suite` imports the module of one suite, so that the others cost no time. `find_sources` picks
the files that a suite knows from files and folders of any depth. `validate` runs one suite or all. A `ValidationRow`
compares a reference with our figure; the helpers below it make the tables that several suites share.
"""

import csv
import stat
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from profilers.files import dataset_path
from replay.calibration.parameters import Parameters
from replay.calibration.tables import InvalidRowsError, SkippedRow, refuse_file, skipping_rows
from replay.costs.shipped import load_parameters
from seqpoint.notebook import DataFrame, Table, as_html, data_frame

#: Errors below this count as this: a single zero would make a geometric mean zero.
_LEAST_ERROR = 1e-6


@dataclass(frozen=True)
class ValidationRow:
    """Compare a reference with our figure, with the limit of their difference.

    Parameters
    ----------
    case : str
        Name of the case.
    reference : float, optional
        Measured or published figure; None for a summary of other cases.
    ours : float
        Our figure, in the same unit.
    error : float
        ``|ours - reference| / reference``; for a summary, `ours` itself.
    limit : float, optional
        Largest error, or with `least` the smallest value of `ours`; None if the case is not gated.
    least : bool
        Whether more is better.
    fitted : bool
        Whether any data of this case was used to fit the model that is scored.
    source : str
        File and row, paper, or the cases that a summary covers.
    low, high : float, optional
        Ends of the interval of `ours`; None if it has none.
    """

    case: str
    reference: float | None
    ours: float
    error: float
    limit: float | None = None
    least: bool = False
    fitted: bool = False
    source: str = ""
    low: float | None = None
    high: float | None = None

    @property
    def inside(self) -> bool | None:
        """Whether the interval holds the reference; None without an interval or a reference."""
        if self.reference is None or self.low is None or self.high is None:
            return None
        return self.low <= self.reference <= self.high

    @property
    def met(self) -> bool | None:
        """Whether the limit is kept; None without one."""
        if self.limit is None:
            return None
        return self.ours >= self.limit if self.least else self.error <= self.limit

    def content(self) -> dict[str, object]:
        """Return the row as JSON with stable keys."""
        keys = ("case", "reference", "ours", "error", "limit", "met", "fitted", "source")
        ends = () if self.low is None else ("low", "high", "inside")
        return {key: getattr(self, key) for key in (*keys, *ends)}


def all_met(rows: Iterable[ValidationRow]) -> bool:
    """Return whether no limit is missed."""
    return all(row.met is not False for row in rows)


def geometric_mean(errors: Sequence[float]) -> float:
    """Return the geometric mean; an error below a millionth counts as a millionth.

    Examples
    --------
    >>> round(geometric_mean([0.01, 0.0001]), 6)
    0.001
    """
    return float(np.exp(np.mean(np.log(np.maximum(errors, _LEAST_ERROR)))))


def summary_row(case: str, value: float, limit: float, *, least: bool = False, source: str = "") -> ValidationRow:
    """Return the row of a summary of other cases, which has a limit.

    Parameters
    ----------
    case : str
        Name of the summary.
    value : float
        The mean, share or count.
    limit : float
        Largest value; with `least`, the smallest one.
    least : bool
        Whether more is better.
    source : str
        Cases that it summarises; by default the cases above.
    """
    return ValidationRow(case, None, value, value, limit, least, source=source or "the cases above")


class MeasuredRun(Protocol):
    """A measured run: its time, and the file and row that it was read from."""

    @property
    def seconds(self) -> float:
        """Measured time."""

    @property
    def source(self) -> str:
        """File and row."""


R = TypeVar("R", bound=MeasuredRun)


@dataclass(frozen=True)
class TimedScore(Generic[R]):
    """A measured run with its predicted time.

    Parameters
    ----------
    case : str
        Name of the run.
    measured : MeasuredRun
        The run, with its time.
    basis : str
        ``"fitted"`` if fits of its device were used; ``"carried"`` if they were left out.
    seconds, low, high : float
        Predicted time, and its 90 % interval.
    fitted : bool
        Whether the prediction was fitted to this run.
    """

    case: str
    measured: R
    basis: str
    seconds: float
    low: float
    high: float
    fitted: bool = False

    @property
    def ratio(self) -> float:
        """Predicted over measured time."""
        return self.seconds / self.measured.seconds

    @property
    def error(self) -> float:
        """``|predicted - measured| / measured``."""
        return abs(self.ratio - 1)

    @property
    def covered(self) -> bool:
        """Whether the interval holds the measured time."""
        return self.low <= self.measured.seconds <= self.high

    def row(self, case: str = "") -> ValidationRow:
        """Return the row of the validation, under the name of the run or another name."""
        measured = self.measured
        return ValidationRow(
            case or self.case, measured.seconds, self.seconds, self.error, fitted=self.fitted, source=measured.source
        )

    def content(self) -> dict[str, object]:
        """Return the score as JSON with stable keys."""
        keys = ("case", "basis", "error", "covered")
        times = {
            "measured_s": self.measured.seconds,
            "predicted_s": self.seconds,
            "low_s": self.low,
            "high_s": self.high,
        }
        return {key: getattr(self, key) for key in keys} | times


def short_devices(names: Iterable[str]) -> dict[str, str]:
    """Return the shortest prefix of each name, in whole parts, that no other name has.

    Examples
    --------
    >>> short_devices(["A100-PCIE-40GB", "A100-SXM4-80GB", "V100-PCIE-32GB", "T4"])
    {'A100-PCIE-40GB': 'A100-PCIE', 'A100-SXM4-80GB': 'A100-SXM4', 'V100-PCIE-32GB': 'V100', 'T4': 'T4'}
    """
    distinct = list(dict.fromkeys(names))
    return {name: _short(name, [rival for rival in distinct if rival != name]) for name in distinct}


def _short(name: str, rivals: Sequence[str]) -> str:
    """Return the shortest prefix of `name`, in whole parts, that none of the rivals has."""
    parts = name.split("-")
    for count in range(1, len(parts)):
        if not any(rival.split("-")[:count] == parts[:count] for rival in rivals):
            return "-".join(parts[:count])
    return name


#: Called with (steps done, steps in all, what).
Progress = Callable[[int, int, str], None]
#: Phases that a single suite reports first. They have no count of steps.
LOOKING, READING, PREDICTING = PHASES = ("looking for files", "reading", "predicting")
#: Number of missed cases that a line of the scoreboard names, and of reasons for skipped rows that notes name.
_NAMED = 5
#: Most times that a suite reads its files again without the rows that it refused.
_MOST_READINGS = 100
#: Characters that are read of the header line of a CSV file.
_HEADER = 2**16

#: Every suite and its line in the help. Each is the constant SUITE of the module of that name in this package.
SUITES: Mapping[str, str] = MappingProxyType(
    {
        "kernels": "Durations of operators.",
        "collectives": "Times of collectives.",
        "models": "Times of whole transformers.",
        "training": "Times of training steps.",
        "job_memory": "Memory of training jobs.",
        "bert": "Shares of operators and ratios of throughput of BERT-Large.",
        "stragglers": "Slow-downs of training jobs by rank, stage and operation.",
        "selection": "Selectors, on configurations that they did not see.",
        "replay": "Step times of replayed traces.",
        "contention": "Kernels that ran side by side on a device.",
        "occupancy": "Passes of kernels by the workgroups on a compute unit.",
        "gemms": "Candidate kernels of GEMMs that a fit did not see.",
        "memory": "Caches and DRAM, against another simulator.",
        "detailed": "Kernels in PTX, executed and timed, against counters.",
        "published": "What papers report, against our models of their set-ups.",
        "pairs": "Gains of what-ifs, on jobs that ran before and after a change.",
        "audit": "Figures of traces, against sums from their tables.",
    }
)


T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def followed(items: Collection[T], progress: Progress | None, name: Callable[[T], str]) -> Iterator[T]:
    """Yield items one after another, each reported before its turn.

    Parameters
    ----------
    items : collection
        Steps of a suite.
    progress : callable, optional
        Called with (steps done, steps in all, what).
    name : callable
        Name of an item.
    """
    for number, item in enumerate(items):
        if progress:
            progress(number, len(items), name(item))
        yield item


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return items by a key, in the order in which they come.

    Examples
    --------
    >>> grouped(["ab", "c", "de"], len)
    {2: ['ab', 'de'], 1: ['c']}
    """
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


@dataclass(frozen=True)
class SuiteOptions:
    """Options of the suites. Each suite names the options that it reads.

    Parameters
    ----------
    calibration : str, optional
        File of fitted costs to score in place of the shipped ones.
    device : str, optional
        Name of the device that was measured, if neither a column nor the name of the file says it.
    dtype : str, optional
        Type of the operands, if neither a column nor the name of the file says it.
    fabric : str, optional
        Connection of the devices of a node, one of `replay.costs.collectives.FABRICS`.
    node_devices : int
        Number of devices of a node.
    models : str, optional
        TOML file of transformers to use in place of the shipped ones.
    library : str, optional
        Framework whose operators are scored, of tables that name several.
    halves : bool
        Whether one half of each table is also fitted, and the other half scored.
    refit : bool
        Whether costs are fitted to a share of the measurements first.
    max_points : int
        Most lengths that a selection chooses.
    max_iterations : int, optional
        Most iterations of all points together.
    iterations : str
        Rule by which a trace is cut into iterations, as `profilers.ingest.pipeline.IngestOptions` takes it.
    progress : callable
        Called with the name of each phase. It returns a function that reports steps, or None if nobody watches.
    parameters : Parameters
        Parameters that predictions take; by default the shipped ones.
    """

    calibration: str | None = None
    device: str | None = None
    dtype: str | None = None
    fabric: str | None = None
    node_devices: int = 8
    models: str | None = None
    library: str | None = None
    halves: bool = False
    refit: bool = False
    max_points: int = 12
    max_iterations: int | None = None
    iterations: str = "auto"
    progress: Callable[[str], Progress | None] = lambda what: None
    parameters: Parameters = field(default_factory=load_parameters)


@dataclass(frozen=True)
class SuiteResult:
    """Scores of a suite.

    Parameters
    ----------
    rows : sequence of ValidationRow
        Every case, then the summaries that have limits.
    details : mapping of str to object
        Keys of the JSON beside the rows.
    tables : sequence of Table or str
        Tables and single lines that are printed above the limits.
    scores : sequence of object
        Scores that charts show.
    notes : sequence of str
        Remarks on the measurements.
    skipped : sequence of SkippedRow
        Rows and files that are left out, in the order in which they were found.
    """

    rows: Sequence[ValidationRow]
    details: Mapping[str, object]
    tables: Sequence[Table | str]
    scores: Sequence[Any] = ()
    notes: Sequence[str] = ()
    skipped: Sequence[SkippedRow] = ()


@dataclass(frozen=True)
class Suite:
    """A validation: it reads measurements, predicts them, and scores the predictions.

    Parameters
    ----------
    name : str
        A key of `SUITES`.
    description : str
        Text of the help: the docstring of the suite's module, which says what is compared and what PATH holds.
    needs : str
        Description of a file that the suite reads, for the message that no file was found.
    source : callable
        Return the path to read for a file: itself, or the folder that it belongs to; None for an unknown file.
    read : callable
        Return the measurements of sources. It raises `SeqPointError` for a source that it cannot read.
    score : callable
        Predict the measurements and return the `SuiteResult`.
    options : tuple of str
        Fields of `SuiteOptions` that the suite reads.
    shipped : str
        Folder below ``datasets/`` that is read by default; empty if the project ships no measurements.
    exclusive : tuple of str
        Two options that contradict each other, and the reason; or nothing.
    charts : bool
        Whether its scores can be drawn (option ``--plot``).
    """

    name: str
    description: str
    needs: str
    source: Callable[[Path], Path | None]
    read: Callable[[Sequence[Path], SuiteOptions], Any]
    score: Callable[[Any, SuiteOptions], SuiteResult]
    options: tuple[str, ...] = ()
    shipped: str = ""
    exclusive: tuple[str, ...] = ()
    charts: bool = False


@dataclass(frozen=True)
class TablePart:
    """Tables of one layout, in a suite that reads several.

    Parameters
    ----------
    knows : callable
        Whether columns are those of the layout.
    read : callable
        Return the measurements of a file.
    score : callable
        Predict the measurements of all files and return the `SuiteResult`.
    """

    knows: Callable[[Collection[str]], bool]
    read: Callable[[Path, SuiteOptions], list[Any]]
    score: Callable[[Sequence[Any], SuiteOptions], SuiteResult]


def suite_of_parts(
    name: str, description: str, needs: str, parts: Mapping[str, TablePart], *, options: tuple[str, ...] = ()
) -> Suite:
    """Return a suite whose result joins those of its parts, in their order.

    Parameters
    ----------
    name, description, needs : str
        As in `Suite`.
    parts : mapping of str to TablePart
        Parts by name. The first one that knows the columns of a file reads it.
    options : tuple of str
        As in `Suite`.
    """

    def part_of(file: Path) -> str:
        columns = table_columns(file)
        return next((part for part in parts if parts[part].knows(columns)), "")

    def read(sources: Sequence[Path], options: SuiteOptions) -> dict[str, list[Any]]:
        cases: dict[str, list[Any]] = {}
        for file in sources:
            if not (part := part_of(file)):
                raise InvalidInputError(f"{file}: no {needs}")
            cases.setdefault(part, []).extend(parts[part].read(file, options))
        return cases

    def score(cases: Mapping[str, Sequence[Any]], options: SuiteOptions) -> SuiteResult:
        results = [parts[part].score(cases[part], options) for part in parts if part in cases]
        return SuiteResult(
            [row for result in results for row in result.rows],
            {key: value for result in results for key, value in result.details.items()},
            [table for result in results for table in result.tables],
            [each for result in results for each in result.scores],
            [note for result in results for note in result.notes],
        )

    return Suite(name, description, needs, lambda file: file if part_of(file) else None, read, score, options)


@dataclass(frozen=True)
class Validation:
    """Scores of one suite, or of every suite.

    Parameters
    ----------
    suite : str
        Name of the suite; empty for every suite.
    results : mapping of str to SuiteResult
        Scores by suite, in the order of `SUITES`. A suite without anything to read is missing.
    lines : sequence of mapping of str to object
        Lines of the scoreboard: suite, cases, limits, limits that are met, and a note.
    unused : sequence of Path
        Files below the folders that no suite reads.
    """

    suite: str
    results: Mapping[str, SuiteResult]
    lines: Sequence[Mapping[str, object]]
    unused: Sequence[Path] = ()

    @property
    def rows(self) -> list[ValidationRow]:
        """The rows of all suites."""
        return [row for result in self.results.values() for row in result.rows]

    def table(self) -> DataFrame:
        """Return the scoreboard with a row for each suite, or a row for each case of a single suite."""
        return data_frame([row.content() for row in self.rows] if self.suite else self.lines)

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint validate --json` prints."""
        if self.suite:
            result = self.results[self.suite]
            skipped = [row.content() for row in result.skipped]
            return {"rows": [row.content() for row in result.rows], **result.details, "skipped_rows": skipped}
        rows = [{"suite": name, **row.content()} for name, result in self.results.items() for row in result.rows]
        skipped = [{"suite": name, **row.content()} for name, result in self.results.items() for row in result.skipped]
        return {"suites": [dict(line) for line in self.lines], "rows": rows, "skipped_rows": skipped}

    def summary(self) -> list[str]:
        """Return the number of limits that are met, and the sentences of a suite on its cases."""
        met = [row.met for row in self.rows if row.limit is not None]
        sentences = [f"{len(self.rows)} cases; {sum(map(bool, met))} of {len(met)} limits are met"]
        if self.suite:
            result = self.results[self.suite]
            sentences += [table for table in result.tables if isinstance(table, str)]
            sentences += [f"note: {note}" for note in result.notes]
        return sentences

    def _repr_html_(self) -> str:
        if not self.suite:
            return as_html("Validation", self.summary(), {"Suites": self.table()})
        shown = [table for table in self.results[self.suite].tables if isinstance(table, Table) and not table.verbose]
        return as_html(f"Validation: {self.suite}", self.summary(), {table.title: table.frame() for table in shown})


def load_suite(name: str) -> Suite:
    """Import and return a suite.

    Raises
    ------
    NotFoundError
        There is no suite of that name.

    Examples
    --------
    >>> load_suite("training").options
    ('calibration', 'device', 'node_devices')
    """
    if name not in SUITES:
        raise NotFoundError(f"no suite is called {name[:40]!r}; there are {', '.join(SUITES)}")
    suite = import_module(f"seqpoint.validation.{name}").SUITE
    assert isinstance(suite, Suite)
    return suite


def find_sources(suite: Suite, paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the paths that a suite reads among files and folders, and the files in folders that it does not know.

    A path that is no folder is always read, so that the reader of the suite reports its fault. Without a path, the
    measurements that the project ships are read. Both lists may be empty.

    Parameters
    ----------
    suite : Suite
        The suite that reads.
    paths : sequence of Path
        Files and folders of any depth.
    """
    roots = list(paths) or _shipped(suite)
    sources: dict[Path, None] = {}
    unused: list[Path] = []
    for root in roots:
        if not root.is_dir():
            sources[root] = None
            continue
        for file in sorted(path for path in root.rglob("*") if not path.is_dir()):  # about 0.1 ms a file
            if source := suite.source(file):
                sources[source] = None
            else:
                unused.append(file)
    return list(sources), unused if paths else []


def _shipped(suite: Suite) -> list[Path]:
    """Return the folder of the measurements that the project ships for a suite, or nothing if it is not there."""
    try:
        return [dataset_path(suite.shipped)] if suite.shipped else []
    except NotFoundError:  # recordings stay in the repository: an installed wheel lacks them
        return []


def _lacking(suite: Suite, paths: Sequence[Path]) -> str:
    """Return the sentence that a suite has nothing to read, and where its measurements are."""
    if not paths and suite.shipped and not _shipped(suite):
        folder = f"datasets/{suite.shipped}"
        command = f"seqpoint validate {suite.name} {folder}"
        return f"{folder} is not installed; clone the repository and name the folder: {command}"
    return f"{', '.join(map(str, paths))}: holds no {suite.needs}" if paths else f"the project ships no {suite.needs}"


def validate(
    suite: str,
    paths: Sequence[Path],
    values: Mapping[str, Any],
    progress: Callable[[str], Progress | None] | None = None,
) -> Validation:
    """Score the files that one suite, or every suite, knows in some paths.

    Parameters
    ----------
    suite : str
        A key of `SUITES`; empty for every suite.
    paths : sequence of Path
        Files and folders of any depth. Without a path, the measurements that the project ships are read.
    values : mapping of str to object
        Options of the suite by name. A run of every suite takes none.
    progress : callable, optional
        As in `SuiteOptions`.

    Raises
    ------
    SeqPointError
        There is no such suite, it has no such option, two options contradict each other, it reads none of the paths, or
        a file is damaged.
    """
    loaded = load_suite(suite) if suite else None
    names = loaded.options if loaded else ()
    if unknown := next((name for name in values if name not in names), None):
        raise InvalidInputError(
            f"{suite or 'the scoreboard'}: no option {unknown!r:.60}; options are {', '.join(names) or 'none'}"
        )
    if loaded and loaded.exclusive and all(values.get(name) for name in loaded.exclusive[:2]):
        raise InvalidInputError(f"{suite}: {loaded.exclusive[2]}")
    options = SuiteOptions(**values, progress=progress or (lambda phase: None))
    return _validate_one(loaded, paths, options) if loaded else _validate_all(paths, options)


def _validate_one(suite: Suite, paths: Sequence[Path], options: SuiteOptions) -> Validation:
    """Score the files that a suite knows in some paths."""
    options.progress(LOOKING)
    sources, unused = find_sources(suite, paths)
    if sources:
        result = _scored(suite, sources, paths, options)
    else:
        result = SuiteResult((), {}, (), notes=(_lacking(suite, paths),))
        if not paths or not _known_to_others(suite, paths):
            raise NotFoundError(result.notes[0])
    return Validation(suite.name, {suite.name: result}, [_line(suite.name, result)], unused)


def _scored(suite: Suite, sources: Sequence[Path], paths: Sequence[Path], options: SuiteOptions) -> SuiteResult:
    """Return the result of a suite on sources, without the rows and the files of folders that it refuses."""
    with skipping_rows() as skipped:
        kept = list(sources)
        for _ in range(_MOST_READINGS):
            try:
                options.progress(READING)
                measured = suite.read(kept, options)
                options.progress(PREDICTING)
                result = suite.score(measured, options)
                break
            except InvalidRowsError as error:
                new = {(row.file, row.row): row for row in error.rows if (row.file, row.row) not in skipped}
                if not new:
                    raise
                skipped |= new
            except (SeqPointError, ValueError, IndexError) as error:  # the last two: a summary of no row
                refused = [source for source in kept if source not in paths and _is_about(error, source)]
                kept = [source for source in kept if source not in refused]
                if not (refused and kept and isinstance(error, SeqPointError)):
                    raise _first(skipped.values(), error) from error
                for source in refused:
                    refuse_file(source, error)
        else:
            raise InvalidInputError(f"{_first(skipped.values())}; and so many more rows that this may be another table")
    if not result.rows and sum(row.error is not None for row in skipped.values()) >= len(sources):
        raise _first(skipped.values())
    notes = [*result.notes, *_skipped_notes(skipped.values(), result.notes)]
    return replace(result, notes=notes, skipped=tuple(skipped.values()))


def _is_about(error: Exception, source: Path) -> bool:
    """Return whether the message of an error begins with a source, its folder or a file in it."""
    return str(error).startswith((f"{source}:", f"{source}/", f"{source.parent}:"))


def _first(skipped: Collection[SkippedRow], error: Exception | None = None) -> Exception:
    """Return the error of the first skipped row, or `error` if there is none."""
    row = next(iter(skipped), None)
    if row is None:
        return error or InvalidInputError("there is nothing to score")
    return row.error or InvalidRowsError([row])


def _skipped_notes(skipped: Collection[SkippedRow], notes: Sequence[str]) -> Iterator[str]:
    """Yield the number of skipped rows and the first of each reason, if no note of the suite says the reason."""
    untold = (row for row in skipped if not any(row.reason in note for note in notes))
    by_reason = grouped(untold, lambda row: row.reason)
    if by_reason:
        count = sum(map(len, by_reason.values()))
        yield f"{count} {'row is' if count == 1 else 'rows are'} skipped; --json lists {'it' if count == 1 else 'all'}"
    for rows in list(by_reason.values())[:_NAMED]:
        yield f"skipped: {rows[0]}" + (f" (and {len(rows) - 1} more)" if len(rows) > 1 else "")
    if len(by_reason) > _NAMED:
        yield f"skipped: rows for {len(by_reason) - _NAMED} more reasons"


def _known_to_others(suite: Suite, paths: Sequence[Path]) -> bool:
    """Return whether the paths are folders that hold measurements for another suite.

    Such a folder has no rows for this suite. Anything else that the suite does not know is refused.
    """
    if not all(path.is_dir() for path in paths):
        return False
    return any(find_sources(load_suite(name), paths)[0] for name in SUITES if name != suite.name)


def _validate_all(paths: Sequence[Path], options: SuiteOptions) -> Validation:
    """Score the files that every suite knows in some paths."""
    if missing := next((path for path in paths if not path.exists()), None):
        raise NotFoundError(f"{missing}: no such file, folder or suite; suites are {', '.join(SUITES)}")
    defaults = SuiteOptions()
    results, lines, unused = {}, [], []
    for name in followed(SUITES, options.progress("validating"), str):
        suite = load_suite(name)
        sources, others = _known_sources(suite, paths)
        unused.append(others)
        if not sources:
            lines.append(_empty_line(suite, paths))
            continue
        results[name] = _scored(suite, sources, paths, defaults)
        lines.append(_line(name, results[name]))
    return Validation("", results, lines, [file for file in unused[0] if all(file in others for others in unused)])


def _known_sources(suite: Suite, paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the paths that a suite reads, which may be none, and the files that it does not know."""
    readable = [path for path in paths if path.is_dir() or suite.source(path)]
    sources, unused = find_sources(suite, readable) if readable or not paths else ([], [])
    return sources, [path for path in paths if path not in readable] + unused


def _empty_line(suite: Suite, paths: Sequence[Path]) -> dict[str, object]:
    """Return the line of a suite that has nothing to read."""
    note = f"no {suite.needs}" if paths else _lacking(suite, paths)
    return {"suite": suite.name, "cases": 0, "limits": 0, "met": 0, "note": note.partition(" (")[0]}


def _line(name: str, result: SuiteResult) -> dict[str, object]:
    """Return the line of a suite on the scoreboard."""
    limits = [row for row in result.rows if row.limit is not None]
    missed = [row.case for row in limits if not row.met]
    more = f" and {len(missed) - _NAMED} more" if len(missed) > _NAMED else ""
    note = f"missed: {'; '.join(missed[:_NAMED])}{more}" if missed else "; ".join(result.notes)
    met = len(limits) - len(missed)
    return {"suite": name, "cases": len(result.rows), "limits": len(limits), "met": met, "note": note}


def table_columns(file: Path) -> list[str]:
    """Return the columns of a Parquet or CSV file; nothing if it is neither.

    Raises
    ------
    InvalidInputError
        It is a link that leads nowhere, or nobody may read it.
    """
    if file.suffix not in (".csv", ".parquet"):
        return []
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return []
        if file.suffix == ".parquet":
            return _parquet_columns(file)
        with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            return next(csv.reader([stream.readline(_HEADER)]), [])
    except csv.Error:
        return []
    except OSError as error:
        raise InvalidInputError(f"{file}: cannot be read ({error.strerror or error})") from error


def _parquet_columns(file: Path) -> list[str]:
    """Return the columns of a Parquet file; nothing if it is damaged."""
    try:
        return list(pq.read_schema(file).names)
    except (pa.ArrowException, OSError):
        return []


def layout_of(columns: Iterable[str], layouts: Mapping[str, Collection[str]]) -> str:
    """Return the name of the first layout whose columns a table has; "" without such a layout.

    Parameters
    ----------
    columns : iterable of str
        Columns of the table.
    layouts : mapping of str to collection of str
        Columns that each layout needs.

    Examples
    --------
    >>> layout_of(["m", "n", "k", "us"], {"runs": ["run"], "products": ["m", "n", "k"]})
    'products'
    """
    known = set(columns)
    return next((name for name, needed in layouts.items() if known.issuperset(needed)), "")

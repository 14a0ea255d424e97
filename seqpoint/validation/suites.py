"""The table of validation suites: which files a suite knows, how it reads them, and what its scores yield.

A suite compares figures of the toolkit with figures that were measured or published. `SUITES` lists them in the order
of the scoreboard. `load_suite` imports the module of one suite, so that the others cost no time. `find_sources` picks
the files that a suite knows from files and folders of any depth.
"""

import csv
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import dataset_path
from seqpoint.validation.rows import Table, ValidationRow

#: Called with (steps done, steps in all, what).
Progress = Callable[[int, int, str], None]
#: Characters of a header line that are read to tell what a CSV file holds.
_HEADER = 2**16

#: Every suite and its line in the help. Each is the constant SUITE of the module of that name in this package.
SUITES: Mapping[str, str] = MappingProxyType(
    {
        "kernels": "Durations of operators.",
        "collectives": "Times of collectives.",
        "models": "Times of whole transformers.",
        "training": "Times of training steps.",
        "selection": "Selectors, on configurations that they did not see.",
        "replay": "Step times of replayed traces.",
        "contention": "Kernels that ran side by side on a device.",
        "published": "What papers report, against our models of their set-ups.",
    }
)


@dataclass(frozen=True)
class SuiteOptions:
    """What a caller may set. Each suite names the options that it reads.

    Parameters
    ----------
    calibration : str, optional
        File of fitted costs to score in place of the shipped ones.
    device : str, optional
        Name of the device that was measured, if neither a column nor the name of the file says it.
    fabric : str, optional
        How the devices of a node are joined, one of `replay.costs.collectives.FABRICS`.
    node_devices : int
        Devices of a node.
    models : str, optional
        TOML file of transformers to use in place of the shipped ones.
    halves : bool
        Whether one half of each table is also fitted and the other scored.
    refit : bool
        Whether costs are fitted to a share of the measurements first.
    max_points : int
        Most lengths that a selection chooses.
    max_iterations : int, optional
        Most iterations of all points together.
    iterations : str
        How a trace is cut into iterations, as `profilers.ingest.pipeline.CollectOptions` takes it.
    progress : callable
        Called with what is being done. It returns what reports the steps of it, or None if nobody watches.
    """

    calibration: str | None = None
    device: str | None = None
    fabric: str | None = None
    node_devices: int = 8
    models: str | None = None
    halves: bool = False
    refit: bool = False
    max_points: int = 12
    max_iterations: int | None = None
    iterations: str = "auto"
    progress: Callable[[str], Progress | None] = lambda what: None


@dataclass(frozen=True)
class SuiteResult:
    """Scores of a suite.

    Parameters
    ----------
    rows : sequence of ValidationRow
        Every case, then the summaries that have limits.
    details : mapping of str to object
        What JSON holds beside the rows.
    tables : sequence of Table or str
        What people read above the limits: tables, and single lines.
    scores : sequence of object
        What charts are drawn of.
    notes : sequence of str
        Remarks on the measurements.
    """

    rows: Sequence[ValidationRow]
    details: Mapping[str, object]
    tables: Sequence[Table | str]
    scores: Sequence[Any] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Suite:
    """One way to validate: read measurements, predict them, score the predictions.

    Parameters
    ----------
    name : str
        A key of `SUITES`.
    description : str
        Text of the help, which is the docstring of the suite's module: what is compared, and what PATH holds.
    needs : str
        What a file that the suite knows holds, for the message that there is none.
    source : callable
        Return what to read for a file, itself or the folder that it is a part of; None if the suite does not know it.
    read : callable
        Return the measurements of sources. It raises `SeqPointError` for a source that it cannot read.
    score : callable
        Predict the measurements and return the `SuiteResult`.
    options : tuple of str
        Fields of `SuiteOptions` that the suite reads.
    shipped : str
        Folder below ``datasets/`` that is read if nobody gives a path; empty if the project ships no measurements.
    exclusive : tuple of str
        Two options that contradict each other, and why; or nothing.
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
    """Return what a suite reads among files and below folders, and the files below folders that it does not know.

    A path that is no folder is always read, so that the reader of the suite says what is wrong with it. Without a
    path, the measurements that the project ships are read. Both lists may be empty.

    Parameters
    ----------
    suite : Suite
        The suite that reads.
    paths : sequence of Path
        Files and folders of any depth.
    """
    roots = list(paths) or ([dataset_path(suite.shipped)] if suite.shipped else [])
    sources: dict[Path, None] = {}
    unused: list[Path] = []
    for root in roots:
        if not root.is_dir():
            sources[root] = None
            continue
        for file in sorted(root.rglob("*")):  # a Python loop over files, about 0.1 ms each
            if file.is_dir():
                continue
            source = suite.source(file)
            if source is None:
                unused.append(file)
            else:
                sources[source] = None
    return list(sources), unused if paths else []


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

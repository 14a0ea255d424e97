"""Jobs that ran before and after one change: `JobPair`, and how pairs are found among traces and recordings.

`read_pairs` finds pairs in three ways. A recording (`python -m benchmarks.gpu --parts h`) names them in pairs.parquet.
Traces whose names differ in one word are a pair (`job_of`). Folders whose names do are a pair too, if each of their
files is an iteration. Tables of the same recording tell how long steps take without a profiler.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from profilers.devices.catalogue import load_devices
from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import is_folder
from profilers.trace.arrays import Floats
from replay.calibration.tables import refuse_row
from seqpoint.iteration_table import read_log
from seqpoint.validation.suites import layout_of, table_columns

#: Name of the what-if of a pair that is a run without a profiler, and its trace.
RECORDING = "recording"
#: Tables of a recording: the columns that are read, with their types. Those behind the first three may be null.
_TEXT, _WHOLE = pa.string(), pa.int64()
_TABLES: Mapping[str, Mapping[str, pa.DataType]] = {
    "pairs": {"group": _TEXT, "before": _TEXT, "after": _TEXT, "what_if": _TEXT},
    "runs": {"run": _TEXT, "measure": _TEXT, "duration_ns": _WHOLE, "group": _TEXT},
    "steps": {
        **{"model": _TEXT, "configuration": _TEXT, "duration_ns": _WHOLE},
        **{"dtype": _TEXT, "sequence_length": _WHOLE, "batch": _WHOLE},
    },
}
_REQUIRED = 3
#: Most pairs of a recording, and most characters of a text in its tables.
_MOST_PAIRS, _LONGEST = 10_000, 200
#: Columns of the log of an epoch.
_EPOCH = {"model", "configuration", "iteration", "sequence_length", "duration_ns"}
#: Ends of the names of traces.
_SUFFIX = re.compile(r"(\.pt)?(\.trace)?(\.json)?(\.gz)?$")
#: Words of names that mean a change, by its kind; devices are words, too (`_is_device`).
_WORDS = {
    "data type": re.compile(r"fp32|tf32|fp16|bf16|fp8|base|mixed"),
    "batch": re.compile(r"(?:b|bs|batch)(\d+)"),
    "length": re.compile(r"(?:n|seq|length)(\d+)"),
}
#: Words for data types, from those of the most bytes; `base` is FP32, and `mixed` of 16 bits.
_BY_BYTES = ("fp32", "base", "tf32", "fp16", "bf16", "mixed", "fp8")
#: What-ifs of the kinds whose words hold the new number.
_NUMBERED = {"batch": "micro_batch", "length": "sequence_length"}
#: A word and its number that a separator parts, as in batch_32.
_PARTED = re.compile(r"\b(batch|seq|length)[_-](\d+)")


@dataclass(frozen=True)
class JobRun:
    """A run of a job: the files of its trace, and the times of its steps without a profiler.

    Parameters
    ----------
    name : str
        Name of the run.
    files : tuple of Path
        Files of one trace; several are an iteration each. Empty without a trace.
    step_ns : mapping of (int or None) to float
        Median time of a step without a profiler, by sequence length; None for a run of one length. Empty if unknown.
    """

    name: str
    files: tuple[Path, ...]
    step_ns: Mapping[int | None, float] = field(default_factory=dict)


@dataclass(frozen=True)
class JobPair:
    """A job before and after a change.

    Parameters
    ----------
    change : str
        Kind of the change.
    before, after : JobRun
        The two runs.
    what_if : str
        What-if that has to predict the gain; empty if traces say it: `scale_device` or `change_dtype`.
    epochs : tuple of (lengths, times before, times after), optional
        Times of a whole epoch without a profiler, ns.
    """

    change: str
    before: JobRun
    after: JobRun
    what_if: str = ""
    epochs: tuple[Floats, Floats, Floats] | None = None

    @property
    def case(self) -> str:
        """Names of the runs."""
        return " -> ".join(dict.fromkeys((self.before.name, self.after.name)))

    @property
    def files(self) -> tuple[Path, ...]:
        """Files of the traces of both runs."""
        return self.before.files + self.after.files


def table_of_recording(file: Path) -> str:
    """Return which table of a recording a file is: pairs, runs, steps, or epochs; empty for another file.

    Files called pairs.parquet and runs.parquet are, whatever they hold.
    """
    columns = set(table_columns(file))
    if columns >= _EPOCH:
        return "epochs"
    named = file.stem if file.suffix == ".parquet" and file.stem in ("pairs", "runs") else ""
    return layout_of(columns, _TABLES) or named


def read_pairs(files: Sequence[Path]) -> tuple[list[JobPair], list[str]]:
    """Return the pairs among files, and the names of traces without a partner.

    Parameters
    ----------
    files : sequence of Path
        Traces, and tables of recordings.

    Raises
    ------
    NotFoundError, InvalidInputError
        A file is missing, or a table of a recording is damaged; the message names file and row.
    """
    tables, traces = defaultdict[str, list[Path]](list), list[Path]()
    for file in files:
        if not file.exists():
            raise NotFoundError(f"{file}: no such file or folder")
        name = "" if is_folder(file) else table_of_recording(file)
        (tables[name] if name else traces).append(file)
    pairs = [pair for file in tables["pairs"] for pair in _recorded_pairs(file, tables["runs"])]
    steps = {file.parent: _step_times(file) for file in tables["steps"]}
    runs = [_run_of(file, steps) for file in _unused(traces, pairs)]
    pairs += named_pairs(runs)
    folders = defaultdict[Path, list[Path]](list)
    for file in _unused(traces, pairs):
        folders[file.parent].append(file)
    pairs += named_pairs(JobRun(folder.name, tuple(each)) for folder, each in folders.items() if len(each) > 1)
    alone = [_trace_name(file) for file in _unused(traces, pairs)]
    pairs += [JobPair(RECORDING, run, run, RECORDING) for run in runs if run.step_ns]
    return [*pairs, *_epoch_pairs(tables["epochs"], pairs)], alone


def _unused(traces: Iterable[Path], pairs: Iterable[JobPair]) -> list[Path]:
    used = {file for pair in pairs for file in pair.files}
    return [file for file in traces if file not in used]


def _run_of(file: Path, steps: Mapping[Path, Mapping[str, Mapping[int | None, float]]]) -> JobRun:
    """Return the run of a trace, with the times of its steps if steps.parquet beside its folder tells them."""
    times = steps.get(file.parent.parent, {}).get(_SUFFIX.sub("", file.name), {})
    return JobRun(_trace_name(file), (file,), times)


def _trace_name(file: Path) -> str:
    """Return the name of a trace with its folder, or with that of its recording."""
    folder = file.parent.parent if file.parent.name == "traces" else file.parent
    return _SUFFIX.sub("", f"{folder.name}/{file.name}")


def named_pairs(runs: Iterable[JobRun]) -> list[JobPair]:
    """Return the pairs of runs whose names differ in one change.

    A change of device is a pair both ways. A data type changes to one of fewer bytes, a batch or a length to a larger
    one.

    Parameters
    ----------
    runs : iterable of JobRun
        Runs. The name of the file tells the job, or that of the folder of several files.
    """
    jobs: dict[str, list[tuple[dict[str, str], JobRun]]] = defaultdict(list)
    for run in runs:
        job, words = job_of(run.files[0] if len(run.files) == 1 else run.files[0].parent)
        jobs[job].append((words, run))
    pairs = []
    for (old, before), (new, after) in (two for job in jobs.values() for two in permutations(job, 2)):
        kinds = [kind for kind in old if old[kind] != new.get(kind)]
        if old.keys() == new.keys() and len(kinds) == 1 and _is_forward(kinds[0], old[kinds[0]], new[kinds[0]]):
            (kind,) = kinds
            what_if = f"{_NUMBERED[kind]}:{_number(new[kind])}" if kind in _NUMBERED else ""
            pairs.append(JobPair(kind, before, after, what_if))
    return pairs


def job_of(file: Path) -> tuple[str, dict[str, str]]:
    """Return the name of a file's job without the words that mean a change, and those words by kind.

    Examples
    --------
    >>> job_of(Path("traces/h100/bert_n128_b4_fp32.json.gz"))
    ('traces/bert.json.gz', {'device': 'h100', 'length': 'n128', 'batch': 'b4', 'data type': 'fp32'})
    >>> job_of(Path("x/batch_8/rank0.json"))
    ('x/rank0.json', {'batch': 'batch8'})
    """
    kept, words = [], dict[str, str]()
    for part in file.parts[-3:]:
        texts = []
        for text in re.split(r"([_\-.])", _PARTED.sub(r"\1\2", part)):
            kind = _kind_of(text.lower())
            texts.append("" if kind else text)
            words |= {kind: text.lower()} if kind else {}
        kept.append(re.sub(r"[_\-.]+(?=[_\-.])|^[_\-.]+|[_\-]+$", "", "".join(texts)))
    return "/".join(part for part in kept if part), words


def _kind_of(word: str) -> str:
    """Return the kind of change that a word of a file name means; empty for another word."""
    if _is_device(word):
        return "device"
    return next((kind for kind, pattern in _WORDS.items() if pattern.fullmatch(word)), "")


def _is_device(word: str) -> bool:
    """Return whether a word is the beginning of the name of a device, such as mi300; b200 is one, and b32 a batch."""
    if not re.fullmatch(r"[a-z]+\d+[a-z]*", word):
        return False
    if _WORDS["batch"].fullmatch(word):
        return word in _device_words()
    return any(name.startswith(word) for name in _device_words())


@cache
def _device_words() -> frozenset[str]:
    return frozenset(re.split(r"[ -]", name)[0].lower() for name in load_devices())


def _is_forward(kind: str, old: str, new: str) -> bool:
    """Return whether a change is scored: of any device, to fewer bytes, to a larger batch or length."""
    if kind == "device":
        return True
    if kind == "data type":
        return _BY_BYTES.index(old) < _BY_BYTES.index(new)
    return _number(old) < _number(new)


def _number(word: str) -> int:
    return int(re.sub(r"\D", "", word))


def _recorded_pairs(file: Path, runs: Sequence[Path]) -> Iterator[JobPair]:
    """Yield the pairs that a recording names, with the times of its runs."""
    times: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in (row for each in runs if each.parent == file.parent for row in _rows(each, "runs")):
        if row["measure"] == "step":
            times[row["group"], row["run"]].append(row["duration_ns"])
    named = _rows(file, "pairs")
    if len(named) > _MOST_PAIRS:
        raise InvalidInputError(f"{file}: {len(named):,} pairs; {_MOST_PAIRS:,} at most")
    pairs = {}
    for number, row in enumerate(named, 1):
        if wrong := next((name for name in (row["before"], row["after"]) if not _is_run(name)), None):
            refuse_row(file, number, f"{wrong[:80]!r} is no name of a run")
        elif row["before"] == row["after"]:
            refuse_row(file, number, f"{row['before']!r} is both before and after")
        else:
            pairs[tuple(row.values())] = row
    for row in pairs.values():
        before, after = (_recorded_run(file.parent, row["group"], row[side], times) for side in ("before", "after"))
        yield JobPair(row["group"], before, after, row["what_if"])


def _is_run(name: str) -> bool:
    """Return whether a name can be that of a run, and so of a file."""
    return name.isprintable() and Path(name).name == name != ".." and len(name) <= _LONGEST


def _recorded_run(folder: Path, group: str, name: str, times: Mapping[tuple[str, str], Sequence[int]]) -> JobRun:
    """Return a run of a recording, with its times in the group, or in another if the group has none."""
    known = times.get((group, name)) or next((of_run for (_, run), of_run in times.items() if run == name), ())
    trace = folder / "traces" / f"pair_{name}.pt.trace.json.gz"
    return JobRun(name, (trace,) if trace.is_file() else (), {None: float(np.median(known))} if known else {})


def _step_times(file: Path) -> dict[str, dict[int | None, float]]:
    """Return the median times of steps by the name that a trace of the same steps has, and by length.

    Times from the process that was traced just after are left out: it was slowed by the traces before.
    """
    times: dict[str, dict[int | None, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in _rows(file, "steps"):
        if row["configuration"].endswith("-before-trace"):
            continue
        sizes = "".join(f"_{text}{size}" for text in "nb" if (size := row[_SIZES[text]]) is not None)
        for name in (f"{row['model']}{sizes}_{row['dtype']}", f"{row['model']}_{row['configuration']}"):
            times[name][row["sequence_length"]].append(row["duration_ns"])
    return {name: {key: float(np.median(each)) for key, each in of_name.items()} for name, of_name in times.items()}


#: Columns of `steps` by the letter for them in the names of traces.
_SIZES = {"n": "sequence_length", "b": "batch"}


def _rows(file: Path, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table of a recording, some thousand at 5 us each.

    Raises
    ------
    InvalidInputError
        The file cannot be read, a column is of another type, or a required value is missing or below 1 ns.
    """
    columns = _TABLES[table]
    try:
        rows: list[dict[str, Any]] = (
            pq.read_table(file, columns=list(columns)).cast(pa.schema(columns.items())).to_pylist()
        )
    except (pa.ArrowException, OSError) as error:
        raise InvalidInputError(f"{file}: no table of {table} of a recording ({error})") from error
    required = list(columns)[:_REQUIRED] if table != "pairs" else list(columns)
    kept = []
    for number, row in enumerate(rows, 1):
        if problem := _row_problem(row, required):
            refuse_row(file, number, problem)
        else:
            kept.append(row)
    return kept


def _row_problem(row: Mapping[str, Any], required: Sequence[str]) -> str:
    """Return what is wrong with a row of a recording; "" if nothing is."""
    if missing := next((name for name in required if row[name] in (None, "")), None):
        return f"{missing} is missing"
    if long := next((name for name in row if len(str(row[name])) > _LONGEST), None):
        return f"{long} has more than {_LONGEST} characters"
    return f"duration_ns is {row['duration_ns']}, below 1" if row.get("duration_ns", 1) < 1 else ""


def _epoch_pairs(logs: Sequence[Path], pairs: Sequence[JobPair]) -> Iterator[JobPair]:
    """Yield the epochs of pairs whose runs have a log each, epochs/MODEL/CONFIGURATION-shuffled.parquet."""
    by_name = {
        (log.parents[2], f"{log.parent.name}_{log.stem.removesuffix('-shuffled')}"): log
        for log in logs
        if log.stem.endswith("-shuffled") and log.parents[1].name == "epochs"
    }
    for pair in pairs:
        keys = [
            (run.files[0].parents[1], run.name.rpartition("/")[2]) for run in (pair.before, pair.after) if run.files
        ]
        if pair.change == "data type" and len(keys) == 2 and by_name.keys() >= set(keys):
            before, after = (read_log(by_name[key]) for key in keys)
            if np.array_equal(before.sequence_length, after.sequence_length):
                times = (before.sequence_length, before.statistic("duration"), after.statistic("duration"))
                yield replace(pair, change=f"{pair.change}, epoch", epochs=times)

"""A run is logged cheaply, and only what was chosen is profiled, under its own numbers."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import profilers.record.log as lightning_module
import profilers.record.profiling as window_module
from profilers.errors import DependencyError, InvalidInputError, NotFoundError
from profilers.ingest.pipeline import collect, ingest
from profilers.record import IterationLog, LightningHooks, lightning_callback, profile_at
from profilers.record.profiling import read_points
from profilers.trace.store import load_trace
from profilers.trace.trace import Trace
from seqpoint.iteration_table import read_log

SUFFIXES = ["csv", "parquet"]


def clock(*times: int) -> Any:
    ticks: Iterator[int] = iter(times)
    return lambda: next(ticks)


def logged(path: Path) -> list[tuple[int, float, float]]:
    """Return (iteration, length, duration) as `read_log` reads them."""
    table = read_log(path)
    return list(
        zip(
            table.iteration.tolist(),
            table.sequence_length.tolist(),
            table.statistic("duration").tolist(),
            strict=True,
        )
    )


def test_importing_it_loads_neither_torch_nor_pandas_nor_arrow() -> None:
    code = "import sys, profilers.record; print([m for m in ('torch', 'pandas', 'pyarrow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# The log


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("flush_every", [1, 2, 200])
def test_a_row_an_iteration(tmp_path: Path, suffix: str, flush_every: int) -> None:
    path = tmp_path / f"log.{suffix}"
    ticks = clock(100, 350, 400, 1_000, 2_000, 2_001)
    with IterationLog(path, clock=ticks, flush_every=flush_every) as log:
        for length in (37, 12, 5):
            with log.iteration(sequence_length=length, batch=16) as it:
                it.add("tokens", 2 * length)
    assert logged(path) == [(0, 37, 250), (1, 12, 600), (2, 5, 1)]
    assert read_log(path).statistic("batch").tolist() == [16, 16, 16]
    assert read_log(path).statistic("tokens").tolist() == [74, 24, 10]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_the_text_of_the_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    with IterationLog(path) as log:
        log.record(sequence_length=3, batch=2, duration_ns=7, statistics={"b": 1, "a": 0.1})
        log.record(sequence_length=np.int64(4), batch=2, duration_ns=0, statistics={"a": np.float32(0.5), "b": 1e300})
    assert path.read_text() == "iteration,sequence_length,batch,duration_ns,b,a\n0,3,2,7,1.0,0.1\n1,4,2,0,1e+300,0.5\n"


@pytest.mark.parametrize("flush_every", [1, 3, 200])
def test_rows_without_statistics(tmp_path: Path, flush_every: int) -> None:
    path = tmp_path / "log.csv"
    with IterationLog(path, clock=clock(0, 5, 10, 20, 30, 45, 50, 60), flush_every=flush_every) as log:
        for length in (3, np.int64(4), 5):
            with log.iteration(sequence_length=length, batch=2):
                pass
        with pytest.raises(InvalidInputError, match="sequence_length is 0"), log.iteration(sequence_length=0, batch=2):
            pass
    assert path.read_text() == "iteration,sequence_length,batch,duration_ns\n0,3,2,5\n1,4,2,10\n2,5,2,15\n"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_batches_may_be_left_out_of_all_rows(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"log.{suffix}"
    with IterationLog(path) as log:
        log.record(sequence_length=3, duration_ns=7)
    assert logged(path) == [(0, 3, 7)]
    assert set(read_log(path).statistics) == {"duration"}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_was_logged_before_an_error_is_written(tmp_path: Path, suffix: str, error: type[BaseException]) -> None:
    path = tmp_path / f"log.{suffix}"
    with pytest.raises(error), IterationLog(path, clock=clock(0, 5, 10)) as log:
        with log.iteration(sequence_length=8):
            pass
        with log.iteration(sequence_length=9):
            raise error
    assert logged(path) == [(0, 8, 5)]


def test_an_iteration_that_raised_keeps_its_number(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    with IterationLog(path, clock=clock(0, 10, 11)) as log:
        with suppress(MemoryError), log.iteration(sequence_length=9):
            raise MemoryError
        with log.iteration(sequence_length=8):
            pass
    assert logged(path) == [(1, 8, 1)]


@pytest.mark.parametrize(("rows", "kept"), [(25, 20), (9, 0)])
def test_a_killed_run_leaves_a_log_that_can_be_read(tmp_path: Path, rows: int, kept: int) -> None:
    code = f"""
import os
from profilers.record import IterationLog
with IterationLog({str(tmp_path / "log.csv")!r}, flush_every=10) as log:
    for length in range({rows}):
        log.record(sequence_length=length + 1, duration_ns=length)
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert [p.name for p in tmp_path.iterdir()] == (["log.csv"] if kept else [])
    if kept:
        assert logged(tmp_path / "log.csv") == [(i, i + 1, i) for i in range(kept)]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_interrupted_write_is_repeated_in_the_same_place(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"log.{suffix}"
    log = IterationLog(path, flush_every=1)
    log.record(sequence_length=1, duration_ns=10)
    write = log._file.write

    def interrupted(*args: Any) -> int:
        write(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(log._file, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.record(sequence_length=2, duration_ns=20)
    monkeypatch.undo()
    log.record(sequence_length=3, duration_ns=30)
    log.close()
    assert logged(path) == [(0, 1, 10), (1, 2, 20), (2, 3, 30)]


def test_an_old_log_stays_until_there_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("old")
    log = IterationLog(path, flush_every=2)
    log.record(sequence_length=1, duration_ns=1)
    assert path.read_text() == "old"
    log.record(sequence_length=1, duration_ns=1)
    assert logged(path) == [(0, 1, 1), (1, 1, 1)]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_empty_run_leaves_an_empty_log(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"log.{suffix}"
    path.write_text("old")
    with IterationLog(path):
        pass
    with pytest.raises(InvalidInputError, match="has 0 rows; columns: iteration, sequence_length"):
        read_log(path)


def test_a_log_that_vanished_is_an_error(tmp_path: Path) -> None:
    log = IterationLog(tmp_path / "log.csv", flush_every=1)
    log.record(sequence_length=1, duration_ns=1)
    (tmp_path / "log.csv").unlink()
    with pytest.raises(InvalidInputError, match=r"log\.csv: cannot be written \(No such file"):
        log.record(sequence_length=1, duration_ns=1)


def test_the_device_is_waited_for_before_each_reading(tmp_path: Path) -> None:
    seen: list[str] = []

    def tick() -> int:
        seen.append("clock")
        return len(seen)

    with IterationLog(tmp_path / "log.csv", synchronize=lambda: seen.append("wait"), clock=tick) as log:
        with log.iteration(sequence_length=1):
            seen.append("work")
        with suppress(ValueError), log.iteration(sequence_length=1):
            raise ValueError
    assert seen == ["wait", "clock", "work", "wait", "clock", "wait", "clock"]


def test_a_device_that_fails_does_not_leave_the_iteration_open(tmp_path: Path) -> None:
    answers = iter([RuntimeError("CUDA error"), None, None])

    def synchronize() -> None:
        if error := next(answers):
            raise error

    with IterationLog(tmp_path / "log.csv", synchronize=synchronize, clock=clock(5, 9)) as log:
        with pytest.raises(RuntimeError, match="CUDA"), log.iteration(sequence_length=1):
            pass
        with log.iteration(sequence_length=2):
            pass
    assert logged(tmp_path / "log.csv") == [(1, 2, 4)]


def test_iterations_do_not_nest(tmp_path: Path) -> None:
    with IterationLog(tmp_path / "log.csv") as log, log.iteration(sequence_length=1):
        with pytest.raises(InvalidInputError, match="an iteration is open"), log.iteration(sequence_length=2):
            pass
        with pytest.raises(InvalidInputError, match="an iteration is open"):
            log.record(sequence_length=2, duration_ns=1)
    assert [row[:2] for row in logged(tmp_path / "log.csv")] == [(0, 1)]


def test_two_logs_nest(tmp_path: Path) -> None:
    one, other = IterationLog(tmp_path / "a.csv"), IterationLog(tmp_path / "b.csv")
    with one, other, one.iteration(sequence_length=1), other.iteration(sequence_length=2):
        pass
    assert [logged(tmp_path / f"{name}.csv")[0][:2] for name in "ab"] == [(0, 1), (0, 2)]


def test_a_closed_log_takes_nothing(tmp_path: Path) -> None:
    with IterationLog(tmp_path / "log.csv") as log:
        log.record(sequence_length=1, duration_ns=1)
    log.close()
    with pytest.raises(InvalidInputError, match="the log is closed"):
        log.record(sequence_length=1, duration_ns=1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"sequence_length": 0, "duration_ns": 1}, "sequence_length is 0; it must be from 1"),
        ({"sequence_length": 1.5, "duration_ns": 1}, r"sequence_length is 1\.5 \(float\); it must be a whole number"),
        ({"sequence_length": True, "duration_ns": 1}, "must be a whole number"),
        ({"sequence_length": 1, "duration_ns": -1}, "duration_ns is -1; it must be from 0"),
        ({"sequence_length": 1, "duration_ns": float("nan")}, "duration_ns is nan"),
        ({"sequence_length": 1, "duration_ns": 1 << 60}, "duration_ns is 1152921504606846976"),
        ({"sequence_length": 1, "duration_ns": 1, "batch": -1}, "batch is -1"),
    ],
)
def test_a_value_that_cannot_be(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with IterationLog(tmp_path / "log.csv") as log:
        with pytest.raises(InvalidInputError, match=message):
            log.record(**row)
        log.record(sequence_length=1, duration_ns=2)
    assert logged(tmp_path / "log.csv") == [(1, 1, 2)]


def test_a_clock_that_runs_backwards(tmp_path: Path) -> None:
    log = IterationLog(tmp_path / "log.csv", clock=clock(10, 9))
    with log, pytest.raises(InvalidInputError, match="duration_ns is -1"), log.iteration(sequence_length=1):
        pass


@pytest.mark.parametrize(
    "name",
    [
        *("iteration", "rank", "start_ns", "sequence_length", "batch", "duration", "duration_ns"),
        *("a b", "a,b", "1a", "", 3, "=cmd", "ä", "a" * 101, "a\n"),
    ],
)
def test_a_name_that_cannot_be_a_column(tmp_path: Path, name: Any) -> None:
    with IterationLog(tmp_path / "log.csv") as log, pytest.raises(InvalidInputError, match="statistic"):
        log.record(sequence_length=1, duration_ns=1, statistics={name: 1.0})


def test_two_names_that_are_read_as_one(tmp_path: Path) -> None:
    with IterationLog(tmp_path / "log.csv") as log, pytest.raises(InvalidInputError, match="'load_ns'"):
        log.record(sequence_length=1, duration_ns=1, statistics={"load": 1.0, "load_ns": 2.0})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1", None, True, [1.0]])
def test_a_statistic_that_is_no_finite_number(tmp_path: Path, value: Any) -> None:
    with IterationLog(tmp_path / "log.csv") as log, pytest.raises(InvalidInputError, match="statistic loss"):
        log.record(sequence_length=1, duration_ns=1, statistics={"loss": value})


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"batch": 4}, "iteration 1 differs in loss from"),
        ({"batch": 4, "statistics": {"loss": 1.0, "more": 1.0}}, "differs in more"),
        ({"statistics": {"loss": 1.0}}, "differs in batch"),
        ({"statistics": {"other": 1.0}}, "differs in batch, loss, other"),
    ],
)
def test_every_row_has_the_same_columns(tmp_path: Path, second: dict[str, Any], message: str) -> None:
    with IterationLog(tmp_path / "log.csv") as log:
        log.record(sequence_length=1, duration_ns=1, batch=4, statistics={"loss": 0.5})
        with pytest.raises(InvalidInputError, match=message):
            log.record(sequence_length=1, duration_ns=1, **second)
    assert logged(tmp_path / "log.csv") == [(0, 1, 1)]


def test_a_tensor_is_no_statistic(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with IterationLog(tmp_path / "log.csv") as log, pytest.raises(InvalidInputError, match=r"tensor\.item\(\)"):
        log.record(sequence_length=1, duration_ns=1, statistics={"loss": torch.tensor(1.0)})


def test_a_file_that_cannot_be_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"\.csv or a \.parquet"):
        IterationLog(tmp_path / "log.txt")
    with pytest.raises(NotFoundError, match="its folder does not exist"):
        IterationLog(tmp_path / "no" / "log.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InvalidInputError, match="cannot be written"):
        IterationLog(tmp_path / "folder.csv")
    with pytest.raises(InvalidInputError, match="flush_every"):
        IterationLog(tmp_path / "log.csv", flush_every=0)


# Lightning


class Trainer:
    """Calls hooks as Lightning's does."""

    def fit(self, hooks: Any, batches: list[Any], broken: int | None = None, skipped: int | None = None) -> None:
        for index, batch in enumerate(batches):
            hooks.on_train_batch_start(self, None, batch, index)
            if index == broken:
                error = ValueError("broken")
                hooks.on_exception(self, None, error)
                raise error
            if index != skipped:
                hooks.on_train_batch_end(self, None, {}, batch, index)
        hooks.on_train_epoch_end(self, None)


def test_hooks_log_each_batch_and_write_at_the_end_of_the_epoch(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    with IterationLog(path, clock=clock(0, 5, 10, 20, 30, 45)) as log:
        hooks = LightningHooks(log, length_of=len, batch_of=lambda batch: batch[0])
        Trainer().fit(hooks, [[1, 2], [3], [4, 5, 6]])
        assert logged(path) == [(0, 2, 5), (1, 1, 10), (2, 3, 15)]
        assert read_log(path).statistic("batch").tolist() == [1, 3, 4]


@pytest.mark.parametrize(("skipped", "kept"), [(0, [1, 2]), (1, [0, 2]), (2, [0, 1])])
def test_a_batch_that_was_skipped_is_counted_but_not_logged(tmp_path: Path, skipped: int, kept: list[int]) -> None:
    with IterationLog(tmp_path / "log.csv") as log:
        Trainer().fit(LightningHooks(log, length_of=len), [[1], [1], [1]], skipped=skipped)
    assert read_log(tmp_path / "log.csv").iteration.tolist() == kept


def test_a_batch_that_raised_is_not_logged(tmp_path: Path) -> None:
    with IterationLog(tmp_path / "log.csv") as log:
        with pytest.raises(ValueError, match="broken"):
            Trainer().fit(LightningHooks(log, length_of=len), [[1], [1]], broken=1)
        log.record(sequence_length=5, duration_ns=0)
    assert read_log(tmp_path / "log.csv").iteration.tolist() == [0, 2]


def test_the_callback_is_one_of_lightnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Callback:
        def on_fit_end(self, trainer: Any, module: Any) -> str:
            return "its own"

    class Package:
        pass

    Package.Callback = Callback  # type: ignore[attr-defined]
    monkeypatch.setattr(lightning_module, "import_module", lambda name: Package)
    with IterationLog(tmp_path / "log.csv") as log:
        callback = lightning_callback(log, len)
        Trainer().fit(callback, [[1], [1, 1]])
    assert isinstance(callback, Callback)
    assert callback.on_fit_end(None, None) == "its own"
    assert [row[:2] for row in logged(tmp_path / "log.csv")] == [(0, 1), (1, 2)]


def test_without_lightning_the_callback_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    with IterationLog(tmp_path / "log.csv") as log, pytest.raises(DependencyError, match="pip install lightning"):
        lightning_callback(log, len)


# The points


def test_points_are_sorted_and_taken_once() -> None:
    assert read_points([8, 3, np.int64(7), 3]) == {3: None, 7: None, 8: None}
    assert list(read_points(np.array([8, 3]))) == [3, 8]


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "no iteration is chosen"),
        ([-1], "iteration is -1"),
        ([1.0], "whole number"),
        ([True], "whole number"),
        (["3"], "whole number"),
        ([10**9], "at most 999999999"),
        (7, "not a int"),
        (b"points", "not a bytes"),
    ],
)
def test_points_that_cannot_be(points: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_points(points)


def test_points_of_a_selection(tmp_path: Path) -> None:
    file = tmp_path / "points.json"
    file.write_text('{"points": [{"iteration": 8, "sequence_length": 20, "weight": 2.0}, {"iteration": 3}]}')
    assert read_points(file) == read_points(str(file)) == {3: None, 8: 20}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not the output of"),
        ("\ud800", "not the output of"),
        ("[" * 100_000, "not the output of|no list of points"),
        ("[]", "no list of points"),
        ('{"points": {}}', "no list of points"),
        ('{"points": []}', "no iteration is chosen"),
        ('{"points": [3]}', r"points\[0\]: has no iteration"),
        ('{"points": [{"iteration": 3.0}]}', r"points\[0\]: iteration is 3\.0"),
        ('{"points": [{"iteration": -3}]}', "iteration is -3"),
        ('{"points": [{"iteration": 1' + "0" * 5000 + "}]}", "not the output of"),
        ('{"points": [{"iteration": 3, "sequence_length": "x"}]}', "sequence_length is 'x'"),
        (
            '{"points": [{"iteration": 3, "sequence_length": 5}, {"iteration": 3, "sequence_length": 6}]}',
            "second length, 6",
        ),
    ],
)
def test_a_selection_that_cannot_be_read(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "points.json"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(InvalidInputError, match=message):
        read_points(file)


def test_a_selection_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="seqpoint select LOG --json"):
        read_points(tmp_path / "points.json")


# The profiler


def test_without_torch_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(DependencyError, match=r"pip install 'seqpoint\[torch\]'"), profile_at([1], tmp_path):
        pass
    assert not list(tmp_path.iterdir())


@pytest.fixture
def train() -> Any:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 8)

    def step(length: int) -> None:
        model(torch.ones(4, length, 8)).sum().backward()

    return step


def length_of(number: int) -> int:
    return 10 + number


def run(train: Any, profiler: Any, iterations: int = 12, broken: int | None = None) -> None:
    for number in range(iterations):
        with profiler.iteration(sequence_length=length_of(number), batch=4):
            train(length_of(number))
            if number == broken:
                raise ValueError("broken")


def iterations_of(trace: Trace) -> list[tuple[int, int, int, str]]:
    """Return (iteration, length, batch, how it was found)."""
    names = ("iteration", "sequence_length", "batch", "found_by")
    return [tuple(row[name] for name in names) for row in trace.iterations.to_pylist()]  # type: ignore[misc]


def recorded(folder: Path) -> list[tuple[int, int, int, str]]:
    return iterations_of(collect([folder]))


def expected(*numbers: int) -> list[tuple[int, int, int, str]]:
    return [(number, length_of(number), 4, "ProfilerStep") for number in numbers]


def files(folder: Path) -> list[str]:
    return sorted(file.name.removesuffix(".pt.trace.json.gz") for file in folder.iterdir())


def test_exactly_the_chosen_iterations_are_in_the_trace(tmp_path: Path, train: Any) -> None:
    with profile_at([3, 7, 8], tmp_path / "traces") as profiler:
        run(train, profiler)
    ingest([tmp_path / "traces"], tmp_path / "run.trace")
    assert iterations_of(load_trace(tmp_path / "run.trace")) == expected(3, 7, 8)
    assert files(tmp_path / "traces") == ["iteration3", "iterations7-8"]
    assert profiler.recorded == (3, 7, 8) and profiler.reached == 12 and profiler.done
    assert [file.parent for file in profiler.files] == [tmp_path / "traces"] * 2


def test_each_operator_is_in_its_iteration_and_shapes_are_there(tmp_path: Path, train: Any) -> None:
    with profile_at([3, 7, 8], tmp_path / "traces") as profiler:
        run(train, profiler)
    ops = collect([tmp_path / "traces"]).ops.to_pylist()
    sizes = [(op["iteration"], json.loads(op["shapes"])[0][1]) for op in ops if op["name"] == "aten::linear"]
    assert sorted(sizes) == [(number, length_of(number)) for number in (3, 7, 8)]


@pytest.mark.parametrize(
    ("points", "warmup"),
    [([0], 1), ([0, 1], 2), ([11], 50), ([5, 7], 1), ([5, 7], 2), ([4, 2, 7, 4], 0), ([0, 5, 6, 7, 11], 3)],
)
def test_any_points_with_any_warmup(tmp_path: Path, train: Any, points: list[int], warmup: int) -> None:
    with profile_at(points, tmp_path / "traces", warmup=warmup) as profiler:
        run(train, profiler)
    assert recorded(tmp_path / "traces") == expected(*sorted(set(points)))


def test_a_run_may_end_when_all_is_recorded(tmp_path: Path, train: Any) -> None:
    with profile_at([2, 4], tmp_path / "traces") as profiler:
        for number in range(100):
            with profiler.iteration(sequence_length=length_of(number), batch=4):
                train(length_of(number))
            if profiler.done:
                break
    assert profiler.reached == 5
    assert recorded(tmp_path / "traces") == expected(2, 4)


@pytest.mark.parametrize("points", [[3, 12], [3, 20, 21]])
def test_points_beyond_the_end_are_named_when_the_others_are_written(
    tmp_path: Path, train: Any, points: list[int]
) -> None:
    refused = pytest.raises(InvalidInputError, match=rf"chosen iterations \{points[1:]}: the run had 12")
    with refused, profile_at(points, tmp_path / "traces") as profiler:
        run(train, profiler)
    assert recorded(tmp_path / "traces") == expected(3)


def test_adjacent_points_that_the_run_reaches_only_in_part(tmp_path: Path, train: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"\[12\]"), profile_at([11, 12], tmp_path / "traces") as profiler:
        run(train, profiler)
    assert recorded(tmp_path / "traces") == expected(11)


@pytest.mark.parametrize(("broken", "kept"), [(5, [3]), (8, [3]), (6, [3])])
def test_an_iteration_that_raises_is_not_recorded(tmp_path: Path, train: Any, broken: int, kept: list[int]) -> None:
    with pytest.raises(ValueError, match="broken"), profile_at([3, 7, 8], tmp_path / "traces") as profiler:
        run(train, profiler, broken=broken)
    assert recorded(tmp_path / "traces") == expected(*kept)
    with profile_at([1], tmp_path / "again") as profiler:  # nothing of the first is still running
        run(train, profiler)
    assert recorded(tmp_path / "again") == expected(1)


def test_an_iteration_whose_error_is_caught_was_not_reached(tmp_path: Path, train: Any) -> None:
    refused = pytest.raises(InvalidInputError, match=r"\[1\]: the run had 4")
    with refused, profile_at([1, 3], tmp_path / "traces") as profiler:
        for number in range(4):
            with suppress(MemoryError), profiler.iteration(sequence_length=length_of(number), batch=4):
                train(length_of(number))
                if number == 1:
                    raise MemoryError
    assert recorded(tmp_path / "traces") == expected(3)


def test_an_error_between_adjacent_iterations_keeps_the_first(tmp_path: Path, train: Any) -> None:
    with pytest.raises(KeyboardInterrupt), profile_at([3, 4], tmp_path / "traces") as profiler:
        run(train, profiler, iterations=4)
        raise KeyboardInterrupt
    assert recorded(tmp_path / "traces") == expected(3)


def test_a_selection_is_followed_and_its_lengths_are_checked(tmp_path: Path, train: Any) -> None:
    log, chosen = tmp_path / "log.csv", tmp_path / "points.json"
    chosen.write_text(
        json.dumps({"points": [{"iteration": n, "sequence_length": length_of(n), "weight": 1} for n in (8, 2)]})
    )
    with IterationLog(log) as steps:
        run(train, steps)
    with profile_at(chosen, tmp_path / "traces") as profiler:
        run(train, profiler)
    assert recorded(tmp_path / "traces") == expected(2, 8)
    assert [row[1] for row in logged(log) if row[0] in (2, 8)] == [length_of(2), length_of(8)]
    refused = pytest.raises(InvalidInputError, match="iteration 2 has the length 99, but 12 when it was selected")
    with refused, profile_at(chosen, tmp_path / "other") as profiler:
        for _ in range(12):
            with profiler.iteration(sequence_length=99):
                train(99)


def test_a_length_may_be_left_to_the_shapes(tmp_path: Path, train: Any) -> None:
    with profile_at([2], tmp_path / "traces") as profiler:
        for number in range(3):
            with profiler.iteration():
                train(length_of(number))
    (row,) = collect([tmp_path / "traces"]).iterations.to_pylist()
    assert (row["iteration"], row["sequence_length"]) == (2, None)


def test_it_fits_the_hooks_of_lightning(tmp_path: Path, train: Any) -> None:
    with profile_at([1], tmp_path / "traces") as profiler:
        Trainer().fit(
            LightningHooks(profiler, length_of=len, batch_of=lambda _: 4), [[0] * length_of(n) for n in range(3)]
        )
    assert recorded(tmp_path / "traces") == expected(1)


def test_recordings_of_another_run_are_not_mixed_in(tmp_path: Path, train: Any) -> None:
    with profile_at([1], tmp_path) as profiler:
        run(train, profiler)
    with pytest.raises(InvalidInputError, match=r"holds iteration1\.pt.* already"), profile_at([2], tmp_path):
        pass


def test_iterations_of_the_profiler_do_not_nest(tmp_path: Path, train: Any) -> None:
    with profile_at([1], tmp_path / "traces") as profiler:
        with profiler.iteration(), pytest.raises(InvalidInputError, match="is open"), profiler.iteration():
            pass
        with profiler.iteration(sequence_length=length_of(1), batch=4):
            train(length_of(1))
    assert recorded(tmp_path / "traces") == expected(1)


def test_another_profiler_is_in_the_way(tmp_path: Path, train: Any) -> None:
    torch = pytest.importorskip("torch")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        train(5)
        refused = pytest.raises(InvalidInputError, match="another torch profiler is recording")
        with refused, profile_at([1], tmp_path / "traces") as profiler:
            run(train, profiler)
        assert torch.autograd._profiler_enabled()


@pytest.mark.parametrize(("how", "message"), [({"warmup": -1}, "warmup is -1"), ({"activities": []}, "activities")])
def test_options_that_cannot_be(tmp_path: Path, how: dict[str, Any], message: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(InvalidInputError, match=message), profile_at([1], tmp_path / "traces", **how):
        pass


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "traces").write_text("")
    with pytest.raises(InvalidInputError, match="cannot be written"), profile_at([1], tmp_path / "traces"):
        pass


def test_a_job_of_several_processes_names_its_ranks(tmp_path: Path, train: Any) -> None:
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        with profile_at([1], tmp_path / "traces") as profiler:
            run(train, profiler)
    finally:
        torch.distributed.destroy_process_group()
    assert files(tmp_path / "traces") == ["rank0_iteration1"]
    assert recorded(tmp_path / "traces") == expected(1)


def test_torch_is_loaded_by_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "import_module", lambda name: name)
    assert window_module.load_torch() == "torch"

"""What all tests share: Hypothesis without deadlines, the command line as a fixture, and no notice of compilation."""

import os

# A library with threads of its own would take the core of the other worker: small products take 4 times as much time
# of processors on 2 threads as on one. Workers and commands inherit this, and libraries read it when they are loaded.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

import logging
import multiprocessing
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from commands import Result, Run
from hypothesis import HealthCheck, settings

import seqpoint as sp
from seqpoint.notebook import sentences

#: From this number of tests on, the two workers share the compilation.
MANY_TESTS = 1000
SAMPLE = Path(__file__).parents[1] / "datasets" / "samples" / "cpu_epoch" / "epoch_threads1.pt.trace.json.zst"

# Every run of the suite draws the same examples. Look for new ones with `pytest --hypothesis-profile thorough`.
settings.register_profile(
    "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, max_examples=32
)
settings.register_profile("thorough", settings.get_profile("suite"), derandomize=False, max_examples=1000)
settings.load_profile("suite")


#: Tests of half a minute and more. They come first, so that no worker ends with one while the other has nothing left.
LONG = (
    "test_the_wheel_holds_code_and_data_and_the_demo_needs_what_it_declares",
    "test_no_figure_is_another_than_the_table_says",
    "test_a_notebook_runs_and_draws_its_charts",
    "test_the_tools_find_nothing",
    "test_the_output_in_the_documentation_is_what_the_command_prints",
    "test_selectors_do_on_real_traces_what_the_table_says",
)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import all tests in the second worker from the last to the first.

    The first worker collects them from the first to the last. Each module is rewritten and compiled by the worker that
    comes first; the other reads the bytecode.
    """
    folder = Path(__file__).parent
    named = {Path(argument).absolute() for argument in session.config.args}
    if os.environ.get("PYTEST_XDIST_WORKER") != "gw1" or folder not in named:
        return
    for path in sorted(folder.glob("test_*.py"), reverse=True):
        # Whatever hinders an import is reported by the collection.
        with suppress(Exception, pytest.skip.Exception):
            import_module(path.stem)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for doctests in the packages alone: tests have none, and looking takes a second."""
    return [collector for collector in (yield) if type(collector) is pytest.Module]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long tests first, in their own order."""
    items.sort(key=lambda item: item.name.partition("[")[0] not in LONG)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile the simulation of memory in one worker, and the reader and the engine in the other.

    Otherwise both, and the processes that tests start, compile the same functions at the same time.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if len(session.items) < MANY_TESTS:
        return
    if worker == "gw0":
        sp.simulate_memory("gemm", (64, 64, 64), "MI100", options=sp.MemoryOptions(max_accesses=1000))
    elif worker == "gw1":
        sp.open(SAMPLE)
        model = sp.Transformer("gpt", "megatron", 1, 1024, 16, 4096, 8192)
        sp.replay(sp.synthesize(sp.TrainingJob(model, 256, 4, 2, sp.Layout(2)), "MI300X"))


@pytest.fixture(autouse=True)
def compile_log() -> Iterator[logging.Logger]:
    """Silence the log of compilations, whose notice would depend on which test of a process comes first."""
    logger = logging.getLogger("profilers.trace.compiled")
    logger.disabled = True
    yield logger
    logger.disabled = False


@pytest.fixture(autouse=True)
def explained_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail on a printed table that has a column without a sentence."""

    def explained(title: str, names: Sequence[str]) -> dict[str, str]:
        found = sentences(title, names)
        missing = [name for name in names if name not in found]
        assert not missing, f"table {title!r}: write a sentence on {missing} in datasets/columns.toml, for --explain"
        return found

    monkeypatch.setattr("seqpoint.cli.output.sentences", explained)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Return a function that calls the command line in an empty folder."""
    from seqpoint.cli import main

    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Result:
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return Result(int(stop.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture
def cluster_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a client of a Dask cluster of two processes, which ends with the test."""
    distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed (extra cluster)")
    import dask

    # Workers are forked from a process that has imported once.
    monkeypatch.setattr("distributed.utils._forkserver_preload_set", True)
    multiprocessing.set_forkserver_preload(["distributed", "seqpoint.sweeps"])
    # Without an address of its own the scheduler's HTTP server takes port 8787, even where no dashboard is wanted.
    # Two tests, or a user's own cluster, then meet there, and a warning of this is an error here.
    any_port = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, scheduler_kwargs=any_port) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client

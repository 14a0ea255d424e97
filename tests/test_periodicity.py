"""Iterations of a trace without markers, from the order of its kernels alone."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilers.ingest.iterations import Period, find_period
from profilers.ingest.pipeline import IngestOptions, collect
from profilers.trace.arrays import strings
from seqpoint.iteration_table import iteration_table

TRACES = Path(__file__).parents[2] / "shared" / "data" / "traces"
REAL, KINETO = TRACES / "rocm" / "rocprofv3_mi350x_50steps.json.gz", TRACES / "kineto"
STEP = [0, *[1, 2, 3, 4] * 6, 5, *[6, 7, 6, 8] * 6, 9, 9, 10]  # layers forward, layers backward, an optimiser


def found(names: list[int]) -> Period | None:
    return find_period(np.array(names, np.int64))


@given(
    step=st.lists(st.integers(1, 19), min_size=2, max_size=19, unique=True),
    times=st.integers(3, 20),
    before=st.lists(st.integers(20, 25), max_size=3),
)
def test_what_repeats_after_a_kernel_of_its_own_is_found(step: list[int], times: int, before: list[int]) -> None:
    period = found([*before, *[0, *step] * times])
    if len(before) <= 0.2 * times * (len(step) + 1):
        assert period is not None
        assert period.first.tolist() == [len(before) + i * (len(step) + 1) for i in range(times)]
        assert period.alike == 1.0


def test_layers_that_repeat_inside_are_no_iterations() -> None:
    period = found(STEP * 12)
    assert period is not None and len(period.first) == 12 and period.confidence == 1.0


def test_layers_of_a_single_pass_that_are_not_most_of_it_are_none() -> None:
    assert found([*range(20, 40), *[1, 2, 3, 4] * 8, *range(40, 60)]) is None


def test_a_first_iteration_that_tunes_is_still_one() -> None:
    tuning = [1, 1, 1, 12, 12, 13]
    period = found([STEP[0], *tuning, *STEP[1:], *STEP * 9])
    assert period is not None
    assert len(period.first) == 10 and period.end[0] == len(STEP) + len(tuning)
    assert 0.98 < period.alike < 1


def test_a_piece_that_broke_off_is_no_iteration() -> None:
    period = found([*STEP * 10, *STEP[:20]])
    assert period is not None and len(period.first) == 10


def test_some_kernels_more_or_less_do_not_matter() -> None:
    rng = np.random.default_rng(3)
    names = []
    for _ in range(40):
        kept = [name for name in STEP[1:] if rng.random() > 0.02]
        names += [0, *kept[:20], *[11] * int(rng.integers(3)), *kept[20:]]
    period = found(names)
    assert period is not None and len(period.first) == 40 and 0.93 < period.confidence < 0.99


def test_a_sequence_in_which_every_kernel_comes_twice() -> None:
    period = found([1, 1, 2, 3, 4, 2, 3, 5, 4, 5] * 8)
    assert period is not None and len(period.first) == 8
    assert set(np.diff(period.first).tolist()) == {10}


@pytest.mark.parametrize("names", [[], [1], [1] * 100, list(range(100)), [1, 2, 1, 2]])
def test_without_a_period_there_is_none(names: list[int]) -> None:
    assert found(names) is None


def test_random_kernels_have_no_period() -> None:
    assert found(np.random.default_rng(0).integers(0, 30, 5000).tolist()) is None


@given(st.integers(1, 1 << 40))
def test_the_numbers_of_names_are_only_names(factor: int) -> None:
    period = found([name * factor for name in STEP * 5])
    assert period is not None and len(period.first) == 5


def test_what_is_longer_than_the_window_is_cut_alike() -> None:
    period = found(STEP * 8000)
    assert period is not None and len(STEP) * 8000 > 1 << 18
    assert len(period.first) == 8000 and set(np.diff(period.first).tolist()) == {len(STEP)}


@pytest.mark.skipif(not REAL.exists(), reason="../shared/data is not there")
def test_fifty_steps_of_a_real_trace() -> None:
    table = iteration_table(collect([REAL]))
    assert len(table) == 50
    assert set(table.found_by) == {"kernel sequence (94 %)"}
    kernels = table.statistic("kernels")
    assert np.median(kernels) == 822 and (np.abs(kernels / 822 - 1) < 0.02).sum() >= 49
    whole = iteration_table(collect([REAL], IngestOptions(iterations="whole")))
    assert len(whole) == 1 and whole.statistic("kernels")[0] == 43915


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("multistream_a100_rank0.json.gz", 5),
        ("nccl_a100_rank0.json.gz", 3),
        ("trace_diff_a100.json.gz", 6),
        ("trace_diff_v100.json.gz", 6),
        ("resnet50_v100_2021_schema.json.gz", 6),
    ],
)
def test_real_steps_are_found_without_their_marks(name: str, steps: int) -> None:
    path = next(KINETO.rglob(name), None)
    if path is None:
        pytest.skip("../shared/data is not there")
    trace = collect([path])
    assert trace.iterations.num_rows == steps and trace.iterations["found_by"][0].as_py() == "ProfilerStep"
    codes = {text: code for code, text in enumerate(sorted(set(strings(trace.kernels, "name").tolist())))}
    launch = dict(zip(trace.launches["id"].to_pylist(), trace.launches["start_ns"].to_pylist(), strict=True))
    kernels = trace.kernels.select(["launch_id", "start_ns", "name"]).to_pylist()
    kernels.sort(key=lambda row: launch.get(row["launch_id"], row["start_ns"]))
    period = found([codes[row["name"]] for row in kernels])
    assert period is not None and len(period.first) == steps

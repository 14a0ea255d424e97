"""Kinds of steps: found by kernels, compared with their like, and weighed where iterations stand for a run."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from traces import event, kernel, kineto, launch

import seqpoint as sp
from profilers.trace.arrays import Floats, integers
from seqpoint.choosing import choose_iterations
from seqpoint.kinds import StepKernels, find_kinds, step_kinds
from seqpoint.matching import matched_kinds
from seqpoint.noise import changes_of
from seqpoint.outliers import find_outliers
from seqpoint.step_sample import step_sample

NANOGPT = Path(__file__).parents[2] / "shared" / "new" / "traces" / "kineto" / "nanogpt1" / "h100_gpu_bound.json.gz"
GEMM, ADD, ADAM = "ampere_sgemm_128x64_nn", "vectorized_elementwise_kernel<4, Add>", "multi_tensor_apply_kernel<Adam>"


def run_of(*steps: dict[str, int]) -> StepKernels:
    """Return steps with some kernels of each name, of 10 ns each."""
    names = sorted({name for step in steps for name in step})
    rows = [(i, names.index(name), count) for i, step in enumerate(steps) for name, count in step.items()]
    step, name, count = (np.array(column) for column in zip(*rows, strict=True))
    return StepKernels(len(steps), step, name, count.astype(np.float64), 10.0 * count, tuple(names))


def job(path: Path, times: Sequence[float], updates: Sequence[int] = (), seed: int = 0, adam: str = ADAM) -> Path:
    """Write steps of some us: ten GEMMs and additions, and six updates of an optimizer in some of them."""
    random, events, t = np.random.default_rng(seed), [], 0.0
    for number, length in enumerate(times):
        events.append(event(f"ProfilerStep#{number}", "user_annotation", t, length))
        calls = [("aten::mm", GEMM), ("aten::add", ADD)] * 10 + [("aten::_foreach_add", adam)] * 6 * (number in updates)
        for i, (name, kernel_name) in enumerate(calls):
            at, correlation = t + 3 * i, 100 * number + i
            events.append(event(name, "cpu_op", at, 2, **{"Input Dims": [[64, 64]], "Input type": ["float"]}))
            events.append(launch(at + 0.5, correlation, dur=1))
            duration = 2 * (1 + 0.01 * random.standard_normal())
            events.append(kernel(kernel_name, at + 5, duration, correlation))
        t += length
    path.write_text(json.dumps(kineto(events)))
    return path


def alternating(steps: int, seed: int, factor: float = 1.0, scatter: float = 0.004) -> list[float]:
    random = np.random.default_rng(seed)
    return [factor * (300 + 30 * (i % 2)) * (1 + scatter * random.standard_normal()) for i in range(steps)]


def test_alternating_and_rare_steps_are_kinds() -> None:
    train, update = {"mm": 20, "add": 40}, {"mm": 20, "add": 40, "adam": 10}
    assert find_kinds([run_of(*[train, update] * 4)])[0].tolist() == [0, 1] * 4
    evaluation = {"mm": 7, "add": 12}
    rare = [evaluation if i % 5 == 4 else train for i in range(15)]
    assert find_kinds([run_of(*rare)])[0].tolist() == [0, 0, 0, 0, 1] * 3
    first, second = find_kinds([run_of(update, train, train), run_of(train, update, update, update)])
    assert (first.tolist(), second.tolist()) == ([0, 1, 1], [1, 0, 0, 0])


def test_a_few_kernels_more_or_less_are_one_kind() -> None:
    dynamic = [{"mm": 200, "add": 400, "fill": 5 + i % 4} for i in range(9)]
    assert not find_kinds([run_of(*dynamic)])[0].any()
    chain = [{"mm": 200, "add": 400 + 20 * i} for i in range(10)]  # the ends differ by 31 %, neighbours by 3 %
    assert not find_kinds([run_of(*chain)])[0].any()


def test_steps_whose_kernels_do_not_recur_are_one_kind() -> None:
    lengths = np.random.default_rng(0).permutation(30) + 1
    assert not find_kinds([run_of(*({"lstm": 10 * int(length), "add": 5} for length in lengths))])[0].any()
    assert not find_kinds([run_of({"mm": 20}, {"add": 20})])[0].any()
    assert find_kinds([run_of({"mm": 20})])[0].tolist() == [0]


def test_variants_that_a_library_chooses_are_one_kind(tmp_path: Path) -> None:
    path = job(tmp_path / "a.json", [300.0] * 8, range(1, 8, 2))
    text = path.read_text().split(GEMM)
    other = [GEMM if i % 3 else "ampere_sgemm_64x64_tn" for i in range(len(text) - 1)]
    path.write_text("".join(part + name for part, name in zip(text, [*other, ""], strict=True)))
    assert step_kinds(sp.open(path), np.arange(8)).tolist() == [0, 1] * 4


def test_operators_tell_kinds_of_a_trace_without_kernels(tmp_path: Path) -> None:
    path = job(tmp_path / "a.json", [300.0] * 6, (2, 5))
    content = json.loads(path.read_text())
    content["traceEvents"] = [e for e in content["traceEvents"] if e["cat"] in ("cpu_op", "user_annotation")]
    path.write_text(json.dumps(content))
    assert step_kinds(sp.open(path), np.arange(6)).tolist() == [0, 0, 1, 0, 0, 1]


def test_kinds_are_compared_with_their_like(tmp_path: Path) -> None:
    """Steps of the kinds differ by 10 %, and scatter by 0.4 %."""
    before = job(tmp_path / "a.json", alternating(8, 1), range(1, 8, 2))
    after = job(tmp_path / "b.json", alternating(8, 2, 1.02), range(1, 8, 2), seed=1)
    result, same = (
        sp.compare(before, after),
        sp.compare(before, job(tmp_path / "c.json", alternating(9, 3), (1, 3, 5, 7))),
    )
    assert result.verdict == "slower" and result.step.noise_ns is not None
    assert result.step.noise_ns < 0.015 * result.step.before_ns
    assert [(kind.before_steps, kind.after_steps) for kind in result.kinds] == [(4, 4), (3, 3)]
    assert {kind.after_kernels for kind in result.kinds} == {20.0, 26.0}
    assert result.tables()[0].title == "Kinds of steps by their kernels" and len(result.to_dict()["kinds"]) == 2
    assert sum(part.change_ns for part in result.parts) == pytest.approx(result.step.change_ns)
    assert same.verdict == "no difference beyond noise"


def test_kinds_whose_kernels_were_renamed_are_paired_by_their_operators(tmp_path: Path) -> None:
    before = job(tmp_path / "a.json", alternating(8, 1), range(1, 8, 2))
    after = job(tmp_path / "b.json", alternating(8, 2), range(1, 8, 2), adam="triton_poi_fused_adam")
    result = sp.compare(before, after)
    assert [(kind.before_kernels, kind.after_kernels) for kind in result.kinds] == [(26.0, 26.0), (20.0, 20.0)]


def test_rare_steps_of_one_side_are_left_out_and_told(tmp_path: Path) -> None:
    before = job(tmp_path / "a.json", [300 + i % 3 for i in range(12)])
    times = [900.0 if i in (4, 9) else 300 + i % 3 for i in range(12)]
    result = sp.compare(before, job(tmp_path / "b.json", times, (4, 9), seed=1))
    assert result.verdict == "no difference beyond noise" and result.after.unmatched == 2
    assert any(note.startswith("left out of the comparison: 2 steps") for note in result.notes())


def test_a_kind_that_is_half_of_one_side_alone_makes_all_steps_one_kind(tmp_path: Path) -> None:
    runs = [
        [step_sample(sp.open(job(tmp_path / f"{i}.json", [300.0] * 9, every)))]
        for i, every in enumerate(((), (1, 3, 5, 7)))
    ]
    assert not any(label.any() for side in matched_kinds(runs) for label in side)


def steps_of_kinds(random: np.random.Generator, n: int, kinds: int, shape: str) -> Floats:
    """Return step times of a run whose second kind takes 10 % longer."""
    noise = random.standard_normal(n)
    time = 100 * (np.exp(0.2 * noise) if shape == "lognormal" else 1 + 0.02 * noise)
    time[random.random(n) < (0.1 if shape == "stalls" else 0.0)] *= 1.4
    return np.asarray(time * (1 + 0.1 * (np.arange(n) % kinds)))


@pytest.mark.parametrize("shape", ["normal", "lognormal", "stalls"])
@pytest.mark.parametrize("kinds", [1, 2])
def test_runs_without_a_difference_give_few_false_alarms(shape: str, kinds: int) -> None:
    random, alarms, pairs = np.random.default_rng(5), 0, 150
    for n in (4, 6, 8, 12, 30):
        label = [[np.arange(n) % kinds]]
        for _ in range(pairs):
            before, after = ([steps_of_kinds(random, n, kinds, shape)[:, None]] for _ in range(2))
            alarms += int(changes_of(before, after, 0.99, kinds=[label[0], label[0]]).beyond(0.0)[0])
    assert alarms / (5 * pairs) <= 0.02


def test_a_change_is_found_beside_stalls() -> None:
    """A median that is 13 % longer, and one to three stalls a side that take twice to six times as long."""
    random, found, pairs = np.random.default_rng(3), 0, 60
    for n, stalls in ((10, 1), (12, 1), (16, 2), (24, 3), (30, 3)):
        for _ in range(pairs):
            before, after = 100 * (1 + 0.02 * random.standard_normal((2, n, 1)))
            for side in (before, after):
                side[random.choice(n, stalls, replace=False)] *= random.uniform(2, 6)
            kept = [side[find_outliers(side[:, 0]).others(n)] for side in (before, 1.13 * after)]
            changes = changes_of(kept[:1], kept[1:], 0.99)
            found += int(changes.beyond(0.005)[0]) * int(changes.shift[0] > 0)
    assert found / (5 * pairs) >= 0.97


def test_points_stand_for_their_kind(tmp_path: Path) -> None:
    times = [900.0 + i if i % 10 == 9 else 300.0 + i % 4 for i in range(40)]
    chosen = choose_iterations(sp.open(job(tmp_path / "a.json", times, range(9, 40, 10))), max_points=3)
    rare = sum(weight for number, weight in zip(chosen.numbers, chosen.weights, strict=True) if number % 10 == 9)
    assert rare == 4 and sum(chosen.weights) == 40 and not chosen.run.outliers
    assert chosen.run.error is not None and chosen.run.error < 0.005 and "groups of like steps" in chosen.how


def nanogpt() -> Path:
    if not NANOGPT.exists():
        pytest.skip(f"no {NANOGPT}")
    return NANOGPT


def lengthened(path: Path, target: Path, factor: float) -> Path:
    """Write a copy of a trace in which the matrix products take longer, and all that comes later is later."""
    trace, content = sp.open(path), json.loads(gzip.decompress(path.read_bytes()))
    op_of = {int(i): name for i, name in zip(trace.ops["id"].to_pylist(), trace.ops["name"].to_pylist(), strict=True)}
    is_mm = [op_of.get(i, "") == "aten::mm" for i in trace.kernels["op_id"].to_pylist()]
    starts = np.sort(integers(trace.kernels, "start_ns")[is_mm]) / 1000
    events = content["traceEvents"]
    origin = min(e["ts"] for e in events if e.get("cat") == "kernel") - integers(trace.kernels, "start_ns").min() / 1000
    starts += origin
    known = np.append(starts, np.inf)
    longer = [
        e.get("cat") == "kernel" and abs(float(known[np.searchsorted(starts, e["ts"] - 0.002)]) - e["ts"]) < 0.002
        for e in events
    ]
    assert sum(longer) == len(starts)
    added = sorted(
        (e["ts"] + e["dur"], (factor - 1) * e["dur"]) for e, more in zip(events, longer, strict=True) if more
    )
    ends, sums = np.array([end for end, _ in added]), np.cumsum([0.0] + [more for _, more in added])

    def later(time: float) -> float:
        return time + float(sums[np.searchsorted(ends, time + 1e-6, side="right")])

    for e, more in zip(events, longer, strict=True):
        if "ts" in e:
            end = later(e["ts"] + e.get("dur", 0.0))
            e["ts"] = later(e["ts"])
            if "dur" in e:
                e["dur"] = e["dur"] * factor if more else end - e["ts"]
    target.write_text(json.dumps(content))
    return target


def test_steps_of_nanogpt_are_of_two_kinds(tmp_path: Path) -> None:
    trace = sp.open(nanogpt())
    numbers = np.unique(integers(trace.iterations, "iteration"))
    assert step_kinds(trace, numbers).tolist() == [0, 1, 0, 1]
    sample = step_sample(trace)
    kinds = [step_kinds(trace, sample.iteration)]
    changes = changes_of([sample.step_ns[:, None]], [sample.step_ns[:, None]], 0.99, kinds=[kinds, kinds])
    assert len(sample) == 4 and changes.noise[0] < 0.005 * changes.before[0]


@pytest.mark.parametrize("factor", [1.01, 1.0287])
def test_one_per_cent_of_an_operator_of_nanogpt_is_found(tmp_path: Path, factor: float) -> None:
    """One per cent of the time in matrix products, and one per cent of the step."""
    result = sp.compare(nanogpt(), lengthened(nanogpt(), tmp_path / "b.json", factor))
    changed = [row for row in result.operators if row.beyond_noise]
    assert {row.name for row in changed} == {"aten::mm"} and result.operators[0].beyond_noise
    assert [row.ratio for row in changed] == pytest.approx([factor - 1] * len(changed), abs=0.001)
    assert result.verdict == ("slower" if factor > 1.02 else "no difference beyond noise")

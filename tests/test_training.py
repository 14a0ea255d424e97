"""Training steps: schedule, costs, and that the synthetic trace of a job takes as long as its closed form."""

from dataclasses import fields, replace

import numpy as np
import pytest

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError
from replay.costs.shipped import load_parameters
from replay.engine.timeline import replay
from replay.from_trace import build_graph
from replay.workloads import (
    Layout,
    Pass,
    TrainingJob,
    Transformer,
    backward,
    forward,
    load_training,
    predict_steps,
    training_trace,
)
from replay.workloads.training import BreakDown, Duration, job_loads, one_forward_one_backward, run_schedule, step_time
from replay.workloads.transformer import layer_block, padded_vocabulary

A100 = find_device("A100-SXM4-80GB")
ONE = Layout()
MODEL = Transformer("gpt", "megatron", 4, 1024, 16, 4096, 51200)


def job(batch: int = 8, micro: int = 2, layout: Layout = ONE, **changes: object) -> TrainingJob:
    return replace(TrainingJob(MODEL, 1024, batch, micro, layout), **changes)


def stage(forward_s: float, backward_s: float, host: float = 0.0) -> dict[str, Duration]:
    return {"forward": Duration(host, forward_s), "backward": Duration(host, backward_s)}


def test_two_stages_and_three_micro_batches_by_hand() -> None:
    """F0 F1 B0 F2 B1 B2 on the first stage, F0 B0 F1 B1 F2 B2 on the second; f 1 s, b 2 s.

    Second stage: F0 1-2, B0 2-4, F1 4-5, B1 5-7, F2 7-8 (its input is there at 7), B2 8-10.
    First stage: F0 0-1, F1 1-2, B0 4-6, F2 6-7, B1 7-9, B2 10-12.
    """
    assert one_forward_one_backward(0, 2, 3) == [
        ("forward", 0), ("forward", 1), ("backward", 0), ("forward", 2), ("backward", 1), ("backward", 2),
    ]  # fmt: skip
    assert run_schedule([stage(1, 2)] * 2, 3) == (12.0, 10.0)


@pytest.mark.parametrize(("stages", "count"), [(1, 1), (1, 5), (2, 2), (4, 8), (4, 2), (8, 3)])
def test_equal_stages_take_a_slot_for_each_micro_batch_and_each_stage_before_the_last(stages: int, count: int) -> None:
    assert max(run_schedule([stage(1, 2)] * stages, count)) == pytest.approx(3 * (count + stages - 1))


def test_every_exchange_on_the_way_through_the_stages_counts() -> None:
    # One micro-batch passes two boundaries forward and two backward.
    assert max(run_schedule([stage(1, 2)] * 3, 1, exchange_s=0.5)) == pytest.approx(9 + 4 * 0.5)


def test_the_slower_of_host_and_device_sets_the_pace() -> None:
    assert max(run_schedule([stage(1, 2, host=5)], 4)) == pytest.approx(4 * 10)
    # Calls of the backward pass hide behind the forward pass' kernels, but not beyond the micro-batch.
    assert max(run_schedule([{"forward": Duration(1, 4), "backward": Duration(3, 1)}], 2)) == pytest.approx(10)


def test_parts_compose_as_their_calls_and_kernels_do() -> None:
    """Against the two clocks kernel by kernel."""
    random = np.random.default_rng(3)
    for _ in range(200):
        each = random.uniform(0.1, 3, (int(random.integers(1, 8)), 2))
        whole, host, device = Duration(0, 0), 0.0, float(random.uniform(0, 5))
        free = device
        for calls, kernels in each:
            whole = whole.then(Duration(calls, kernels))
            started = max(device, host)
            host += calls
            device = max(started + kernels, host)
        assert host == pytest.approx(whole.host_s)
        assert device == pytest.approx(max(free + whole.device_s, whole.reach_s))
    one = Duration(2.0, 1.5)
    for several in (one.times(3), Duration(1.0, 2.5).times(3)):
        each_one = Duration(several.host_s / 3, several.device_s / 3)
        assert several.reach_s == pytest.approx(each_one.then(each_one).then(each_one).reach_s)


def test_a_layer_on_one_rank_has_no_collective_and_on_two_has_four() -> None:
    for ranks, count in ((1, 0), (2, 2)):
        block = layer_block(MODEL, Pass(2, 1024, size=2, ranks=ranks))
        found = [[s for s in way if s.collective] for way in (block.forward, block.backward)]
        assert [len(several) for several in found] == [count, count]
        assert all(s.operator.bytes_read == 2 * 1024 * 1024 * 2 for several in found for s in several)
    assert predict_steps([job()], A100, fit=load_training(), parameters=load_parameters())[0].parts.tensor_s == 0
    assert (
        predict_steps([job(layout=Layout(2))], A100, fit=load_training(), parameters=load_parameters())[
            0
        ].parts.tensor_s
        > 0
    )


def test_sequence_parallel_ranks_scatter_what_they_computed_and_gather_what_they_need() -> None:
    block = layer_block(MODEL, Pass(2, 1024, size=2, ranks=4, sequence_parallel=True))
    for way in (block.forward, block.backward):
        exchanges = [step for step in way if step.collective]
        assert [step.collective for step in exchanges] == ["all_gather", "reduce_scatter"] * 2
        assert {step.operator.bytes_read for step in exchanges} == {2 * 1024 * 1024 * 2}  # the whole buffer
        after = [way[i + 1].operator.kind for i, step in enumerate(way) if step.collective == "all_gather"]
        before = [way[i - 1].operator.kind for i, step in enumerate(way) if step.collective == "reduce_scatter"]
        assert after == before == ["matmul", "matmul"]
    norms = [step.operator.dims for step in block.forward if step.operator.kind == "normalization"]
    assert norms == [(512, 1024), (512, 1024)]  # a quarter of 2 x 1024 tokens


@pytest.mark.parametrize(("sequences", "length", "extra"), [(2, 1024, 0), (1, 1024, 4), (2, 4096, 4), (2, 1022, 4)])
def test_a_softmax_of_other_sizes_runs_one_by_one(sequences: int, length: int, extra: int) -> None:
    """Megatron-LM's kernel takes multiples of four heads and tokens, up to 2048: 16 heads on 8 ranks are 2."""
    fused = len(layer_block(MODEL, Pass(2, 1024, size=2, ranks=8)).forward)
    assert len(layer_block(MODEL, Pass(sequences, length, size=2, ranks=8)).forward) == fused + extra


def test_ranks_share_the_arithmetic_and_the_weights_of_a_layer() -> None:
    one, four = (layer_block(MODEL, Pass(2, 1024, size=2, ranks=n)) for n in (1, 4))

    def flops(block: object) -> float:
        return sum(s.operator.flops for s in block.forward if "matmul" in s.operator.kind)  # type: ignore[attr-defined]

    assert flops(one) == 4 * flops(four) == 2 * 2048 * 12 * 1024**2 + 4 * 2 * 1024**2 * 1024
    assert one.weights == pytest.approx(
        4 * four.weights, rel=0.002
    )  # biases after a sum, and normalisations, are on all
    assert one.weights == 12 * 1024**2 + 13 * 1024


def test_the_style_lists_a_whole_model() -> None:
    steps = forward(MODEL, Pass(2, 1024, training=True, size=2))
    per_layer = sum(s.operator.flops for s in layer_block(MODEL, Pass(2, 1024, size=2, ranks=1)).forward)
    logits = 2 * 2048 * 1024 * padded_vocabulary(MODEL, 1)
    assert sum(s.operator.flops for s in steps) == pytest.approx(4 * per_layer + logits, rel=0.01)
    assert sum(s.operator.flops for s in backward(steps)) == pytest.approx(8 * per_layer + 2 * logits, rel=0.05)


def test_more_micro_batches_shrink_the_share_of_the_bubble() -> None:
    shares = []
    for batch in (8, 16, 64, 256):
        parts = predict_steps(
            [job(batch, layout=Layout(1, 1, 4))], A100, fit=load_training(), parameters=load_parameters()
        )[0].parts
        shares.append(parts.bubble_s / parts.total_s)
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.2 > 0.05 > shares[-1] > 0


def test_recomputing_adds_a_forward_pass_of_the_layers() -> None:
    # Micro-batches so large that the device sets the pace.
    kept, again = (
        predict_steps([job(64, 32, recompute=r)], A100, fit=load_training(), parameters=load_parameters())[0].parts
        for r in (False, True)
    )
    (load,) = job_loads([job(64, 32)], A100, parameters=load_parameters())
    layers = load.stages[0].parts[1]
    assert again.compute_s - kept.compute_s == pytest.approx(2 * 4 * load_training().costs.kernel_s(layers.forward))
    two = [
        predict_steps([job(64, 32, Layout(2), recompute=r)], A100, fit=load_training(), parameters=load_parameters())[
            0
        ].parts.tensor_s
        for r in (False, True)
    ]
    assert two[0] < two[1] < 1.5 * two[0]  # two of four all-reduces of a layer once more, those of the head not


def test_the_parts_of_a_step_add_up() -> None:
    for layout in (Layout(), Layout(2, 2, 2), Layout(8, 1, 2)):
        parts = predict_steps([job(16, layout=layout)], A100, fit=load_training(), parameters=load_parameters())[
            0
        ].parts
        several = [getattr(parts, field.name) for field in fields(BreakDown) if field.name != "total_s"]
        assert sum(several) == pytest.approx(parts.total_s)
        assert min(several) >= 0


def test_replicas_and_stages_cost_what_they_exchange() -> None:
    alone, two = (
        predict_steps([job(8 * n, layout=Layout(1, n))], A100, fit=load_training(), parameters=load_parameters())[
            0
        ].parts
        for n in (1, 2)
    )
    assert alone.data_s == 0 < two.data_s
    assert alone.compute_s == pytest.approx(two.compute_s)
    nodes = [
        predict_steps([job(16, layout=Layout(1, 2, 1, node))], A100, fit=load_training(), parameters=load_parameters())[
            0
        ].parts.data_s
        for node in (8, 1)
    ]
    assert nodes[0] < nodes[1]  # over the network it takes longer


def test_a_device_that_was_not_measured_has_a_wider_interval() -> None:
    for device, basis in ((A100, "fitted"), (find_device("H100-SXM5-80GB"), "carried")):
        found = predict_steps([job()], device, fit=load_training(), parameters=load_parameters())[0]
        assert found.basis == basis and found.low_s < found.seconds < found.high_s
    assert found.high_s / found.low_s > 1.5
    far = predict_steps([job(64, layout=Layout(1, 32))], A100, fit=load_training(), parameters=load_parameters())[0]
    assert far.basis == "carried"


@pytest.mark.parametrize(
    ("layout", "micro", "recompute"),
    [
        (Layout(), 2, False),
        (Layout(2), 8, False),
        (Layout(2, 2, 2), 1, False),
        (Layout(1, 1, 4), 4, True),
        (Layout(2, 1, 4), 2, True),
        (Layout(4, sequence_parallel=True), 8, False),
    ],
)
def test_the_replayed_trace_takes_as_long_as_the_closed_form(layout: Layout, micro: int, recompute: bool) -> None:
    one = job(16, micro, layout, recompute=recompute)
    trace = training_trace(one, A100, fit=load_training(), parameters=load_parameters())
    timeline = replay(build_graph(trace, 0, parameters=load_parameters()))
    assert timeline.makespan_ns == pytest.approx(timeline.graph.measured_ns, rel=1e-6)
    # What the closed form leaves out: launches take 8 us after each wait, and parts err within a layer.
    assert timeline.makespan_ns / 1e9 == pytest.approx(
        predict_steps([one], A100, fit=load_training(), parameters=load_parameters())[0].seconds, rel=0.03
    )


def test_the_trace_has_every_stage_and_tensor_rank_and_all_that_they_exchange() -> None:
    one = job(16, 2, Layout(2, 2, 2))
    trace = training_trace(one, A100, lengths=[one.length] * 2, fit=load_training(), parameters=load_parameters())
    assert trace.meta.ranks == (0, 1, 2, 3) and trace.meta.world_size == 8 and trace.meta.synthetic
    assert trace.iterations.num_rows == 8
    rows = [r for r in trace.collectives.to_pylist() if r["iteration"] == 0]
    by_group: dict[str, list[dict[str, object]]] = {}
    for row in rows:
        by_group.setdefault(str(row["group_name"]), []).append(row)
    # Two stages, 4 micro-batches: each direction once a micro-batch and rank, seen by sender and receiver.
    assert len(by_group["pp0_0_1"]) == len(by_group["pp1_0_1"]) == 2 * 2 * 4
    # Of a tensor group: 2 layers of 4, and the embedding's or the head's, each for 4 micro-batches and 2 ranks.
    assert len(by_group["tp0"]) == 2 * 4 * (2 * 4 + 1)
    assert len(by_group["tp1"]) == 2 * 4 * (2 * 4 + 4)
    assert len([r for name, several in by_group.items() if name.startswith("dp") for r in several]) == 4
    assert all(r["match_id"] is None for r in rows if str(r["group_name"]).startswith("dp"))
    matched: dict[object, int] = {}
    for row in rows:
        if row["match_id"] is not None:
            matched[row["match_id"]] = matched.get(row["match_id"], 0) + 1
    assert set(matched.values()) == {2, 4}  # pairs, and the norm of all


def test_step_time_grows_with_each_cost() -> None:
    (load,) = job_loads([job(16, layout=Layout(2, 2, 2))], A100, parameters=load_parameters())
    costs = load_training().costs
    base = step_time(load, costs).total_s
    for field in fields(costs):
        more = replace(costs, **{field.name: 10 * getattr(costs, field.name)})
        assert step_time(load, more).total_s > base, field.name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"micro_batch": 3}, "1 replicas of micro-batches of 3 do not divide a batch of 8"),
        ({"layout": Layout(1, 8)}, "8 replicas of micro-batches of 2 do not divide"),
        ({"layout": Layout(1, 1, 3)}, "3 stages do not divide 4 layers"),
        ({"layout": Layout(3)}, "3 tensor-parallel ranks do not divide heads of 16"),
        ({"length": 2.5}, "length is 2.5; it must be a whole number"),
        ({"global_batch": 2**21, "micro_batch": 1}, "2097152 micro-batches through 1 stages; at most 1,048,576"),
        ({"length": 0}, "length is 0; it must be 1 or more"),
    ],
)
def test_a_job_that_cannot_be_says_why(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        job(**changes) if "length" not in changes else replace(job(), **changes)


def test_a_layout_that_cannot_be_says_why() -> None:
    with pytest.raises(InvalidInputError, match="pipeline is 0; it must be 1 or more"):
        Layout(pipeline=0)


def test_a_trace_without_steps_or_too_large_says_so() -> None:
    with pytest.raises(InvalidInputError, match="0 steps"):
        training_trace(job(), A100, lengths=(), fit=load_training(), parameters=load_parameters())
    with pytest.raises(InvalidInputError, match=r"a trace may have 2,000,000; take fewer layers"):
        training_trace(job(2**20), A100, fit=load_training(), parameters=load_parameters())

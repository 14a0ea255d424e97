"""Training steps: schedule, costs, and that the synthetic trace of a job takes as long as its closed form."""

from dataclasses import fields, replace

import numpy as np
import pytest

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError
from replay.costs.shipped import load_parameters
from replay.engine.timeline import replay
from replay.from_trace import build_graph
from replay.projection.projection import timeline_power
from replay.workloads import (
    DecoderPass,
    InferenceJob,
    Layout,
    TrainingJob,
    Transformer,
    backward,
    forward,
    inference_parts,
    inference_trace,
    job_memory,
    load_training,
    load_transformers,
    predict_steps,
    training_job,
    training_trace,
)
from replay.workloads.decoder import DecoderBlock, padded_vocabulary
from replay.workloads.schedules import Duration, run_schedule, schedule_order
from replay.workloads.training import BreakDown, job_loads, step_time
from replay.workloads.training_fits import step_power
from replay.workloads.transformer import embedding_block, head_block, layer_block

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
    order = [(each.way, each.micro_batch) for each in schedule_order("1f1b", 0, 2, 3)]
    assert order == [
        ("forward", 0), ("forward", 1), ("backward", 0), ("forward", 2), ("backward", 1), ("backward", 2),
    ]  # fmt: skip
    assert run_schedule([stage(1, 2)] * 2, 3) == (12.0, 10.0)


@pytest.mark.parametrize(("stages", "count"), [(1, 1), (1, 5), (2, 2), (4, 8), (4, 2), (8, 3)])
def test_equal_stages_take_a_slot_for_each_micro_batch_and_each_stage_before_the_last(stages: int, count: int) -> None:
    assert max(run_schedule([stage(1, 2)] * stages, count)) == pytest.approx(3 * (count + stages - 1))


@pytest.mark.parametrize(("stages", "count", "chunks"), [(2, 4, 2), (4, 8, 2), (4, 4, 3), (8, 16, 4)])
def test_chunks_divide_the_bubble(stages: int, count: int, chunks: int) -> None:
    """Megatron-LM's interleaved schedule, arXiv 2104.04473, section 2.2: (p - 1) / (v m) of the time of the work."""
    parts = [stage(1 / chunks, 2 / chunks)] * (stages * chunks)
    took = max(run_schedule(parts, count, schedule="interleaved", chunks=chunks))
    assert took == pytest.approx(3 * count * (1 + (stages - 1) / (chunks * count)))


@pytest.mark.parametrize(("stages", "count"), [(1, 3), (2, 4), (4, 8), (8, 8)])
@pytest.mark.parametrize(("ahead", "back", "late"), [(1, 1, 1), (1, 1.2, 0.8), (2, 1, 1), (1, 1, 0.5)])
def test_gradients_of_weights_fill_the_bubble(stages: int, count: int, ahead: float, back: float, late: float) -> None:
    """ZB-H1, arXiv 2401.10241, section 2: stages idle for (p - 1) (f + b - w)."""
    part = {**stage(ahead, back), "weights": Duration(0, late)}
    took = max(run_schedule([part] * stages, count, schedule="zero_bubble"))
    assert took == pytest.approx(count * (ahead + back + late) + (stages - 1) * (ahead + back - late))


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zero_bubble"])
def test_a_schedule_has_each_pass_once_and_gradients_after_what_they_need(schedule: str) -> None:
    chunks = 2 if schedule == "interleaved" else 1
    for i in range(4):
        order = schedule_order(schedule, i, 4, 8, chunks)
        ways = {way: {(x.micro_batch, x.chunk) for x in order if x.way == way} for way in ("forward", "backward")}
        assert ways["forward"] == ways["backward"] == {(n, c) for n in range(8) for c in range(chunks)}
        assert len(order) == 16 * chunks + 8 * (schedule == "zero_bubble")
        at = {each: number for number, each in enumerate(order)}
        for each in order:
            needs = {"backward": "forward", "weights": "backward"}.get(each.way)
            assert needs is None or at[replace(each, way=needs)] < at[each]


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
        block = layer_block(MODEL, DecoderPass(2, 1024, size=2, ranks=ranks))
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
    block = layer_block(MODEL, DecoderPass(2, 1024, size=2, ranks=4, sequence_parallel=True))
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
    fused = len(layer_block(MODEL, DecoderPass(2, 1024, size=2, ranks=8)).forward)
    assert len(layer_block(MODEL, DecoderPass(sequences, length, size=2, ranks=8)).forward) == fused + extra


def test_ranks_share_the_arithmetic_and_the_weights_of_a_layer() -> None:
    one, four = (layer_block(MODEL, DecoderPass(2, 1024, size=2, ranks=n)) for n in (1, 4))

    def flops(block: object) -> float:
        return sum(s.operator.flops for s in block.forward if "matmul" in s.operator.kind)  # type: ignore[attr-defined]

    assert flops(one) == 4 * flops(four) == 2 * 2048 * 12 * 1024**2 + 4 * 2 * 1024**2 * 1024
    assert one.weights == pytest.approx(
        4 * four.weights, rel=0.002
    )  # biases after a sum, and normalisations, are on all
    assert one.weights == 12 * 1024**2 + 13 * 1024


def test_the_style_lists_a_whole_model() -> None:
    steps = forward(MODEL, DecoderPass(2, 1024, training=True, size=2))
    per_layer = sum(s.operator.flops for s in layer_block(MODEL, DecoderPass(2, 1024, size=2, ranks=1)).forward)
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
    assert again.compute_s - kept.compute_s == pytest.approx(
        2 * 4 * load_training().costs_of(job(), A100).kernel_s(layers.forward)
    )
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
        several = [
            getattr(parts, field.name) for field in fields(BreakDown) if field.name not in ("total_s", "streams_s")
        ]
        assert 0 < parts.streams_s < parts.compute_s
        assert sum(several) == pytest.approx(parts.total_s)
        assert min(several) >= 0


def test_a_layer_over_nodes_takes_the_adapters_that_a_node_has() -> None:
    layouts = [
        Layout(16),
        Layout(16, node_adapters=8),
        Layout(16, node_adapters=4),
        Layout(8),
        Layout(8, node_adapters=1),
    ]
    steps = predict_steps(
        [job(8, 8, each) for each in layouts], A100, fit=load_training(), parameters=load_parameters()
    )
    usual, eight, four, inside, alone = (step.parts.tensor_s for step in steps)
    assert usual == eight < four and inside == alone  # eight are those of the catalogue
    with pytest.raises(InvalidInputError, match="node_adapters is -1"):
        Layout(node_adapters=-1)


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
    for device, basis in ((A100, "fitted"), (find_device("MI210"), "carried")):
        found = predict_steps([job()], device, fit=load_training(), parameters=load_parameters())[0]
        assert found.basis == basis and found.low_s < found.seconds < found.high_s
    assert found.high_s / found.low_s > 1.5
    most = load_training().devices
    far = predict_steps(
        [job(2 * most, 1, Layout(1, 2 * most))], A100, fit=load_training(), parameters=load_parameters()
    )
    assert far[0].basis == "carried"


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


#: Small jobs of what large models train with.
STYLES = {
    "flash": {"attention": "flash"},
    "context": {"attention": "flash", "context": 4},
    "gathered": {"context": 2},
    "first flash": {"attention": "flash1", "length": 4096, "global_batch": 2, "micro_batch": 1},
    "graphs": {"cuda_graphs": True},
    "offload": {"offload": True, "data": 2, "sharding": 1},
    "scores again": {"selective_recompute": True, "pipeline": 2},
    "fp8": {"attention": "flash", "precision": "fp8", "tensor": 2, "sequence_parallel": True},
    "experts": {"experts": 8, "experts_per_token": 2, "shared_experts": 1, "dense_layers": 1, "data": 4, "expert": 4},
    "latent": {"attention": "flash", "head_width": 64, "kv_heads": 0, "query_rank": 512, "key_rank": 256,
               "rotary_width": 32},
    "interleaved": {"pipeline": 2, "schedule": "interleaved", "chunks": 2, "layers": 6, "count_ends": True},
    "zero bubble": {"pipeline": 4, "schedule": "zero_bubble", "layers": 4},
    "optimizer shared": {"data": 2, "sharding": 1, "overlap_gradients": True, "pipeline": 2},
    "weights shared": {"data": 2, "sharding": 3},
    "weights gathered ahead": {"data": 2, "sharding": 3, "overlap_gradients": True},
}  # fmt: skip


def llama(**sizes: object) -> TrainingJob:
    small = {"style": "llama", "layers": 2, "hidden": 1024, "heads": 16, "kv_heads": 4, "vocabulary": 32000}
    return training_job(small | {"precision": "bf16", "global_batch": 8, "micro_batch": 2} | sizes)


@pytest.mark.parametrize("sizes", STYLES.values(), ids=STYLES)
def test_what_large_models_train_with_replays_to_its_predicted_time(sizes: dict[str, object]) -> None:
    one, device = llama(**sizes), find_device("H100-SXM5-80GB")
    trace = training_trace(one, device, fit=load_training(), parameters=load_parameters())
    timeline = replay(build_graph(trace, 0, parameters=load_parameters()))
    predicted = predict_steps([one], device, fit=load_training(), parameters=load_parameters())[0]
    assert timeline.makespan_ns / 1e9 == pytest.approx(predicted.seconds, rel=0.03)
    if one.layout.pipeline == 1:  # else stages that wait draw less than the slowest, whose time is that of the step
        assert timeline_power(timeline, load_parameters()) == pytest.approx(predicted.watts, rel=0.1)
    assert (predicted.parts.expert_s > 0) == (one.layout.expert > 1)
    assert (predicted.parts.context_s > 0) == (one.layout.context > 1)


def test_computing_scores_again_takes_less_time_and_memory_off_than_computing_all() -> None:
    sizes = {"length": 2048, "global_batch": 4, "micro_batch": 2, "hidden": 2048}
    jobs = [llama(**sizes), llama(**sizes, selective_recompute=True), llama(**sizes, recompute=True)]
    steps = [step.seconds for step in predict_steps(jobs, A100, fit=load_training(), parameters=load_parameters())]
    kept = [job_memory(each).activations for each in jobs]
    assert steps == sorted(steps) and steps[0] < steps[1] < (steps[0] + steps[2]) / 2
    assert kept == sorted(kept, reverse=True) and kept[1] < (kept[0] + kept[2]) / 2
    fused = [llama(**sizes, attention="flash", selective_recompute=each) for each in (False, True)]
    loads = job_loads(fused, A100, load_parameters())
    assert loads[0].stages == loads[1].stages and job_memory(fused[0]) == job_memory(fused[1])


def test_a_step_draws_the_power_of_what_it_does() -> None:
    parts = BreakDown(2.0, compute_s=1.0, tensor_s=0.3, host_s=0.2, bubble_s=0.2, data_s=0.1, optimizer_s=0.2,
                      streams_s=0.4)  # fmt: skip
    shares = {"compute_bound": 0.6, "memory_bound": 0.4 + 0.2, "collective": 0.3 + 0.1, "idle": 0.4}
    shipped = load_parameters()
    drawn = sum(shipped[f"power_share_{name}"] * seconds for name, seconds in shares.items()) / 2
    assert step_power(parts, A100, shipped) == pytest.approx(400 * drawn)
    assert step_power(parts, replace(A100, figures={}), shipped) is None
    step, waits = (
        predict_steps([job(64, 16, layout)], A100, fit=load_training(), parameters=shipped)[0]
        for layout in (Layout(), Layout(pipeline=4))
    )
    assert step.watts and waits.watts and waits.watts < step.watts < 400


def test_replicas_that_share_more_update_less_and_exchange_more() -> None:
    data = {
        (stage, overlaps): predict_steps(
            [llama(data=4, global_batch=32, sharding=stage, overlap_gradients=overlaps)],
            A100, fit=load_training(), parameters=load_parameters(),
        )[0].parts
        for stage in range(4)
        for overlaps in (False, True)
    }  # fmt: skip
    assert all(data[stage, True].data_s < data[stage, False].data_s for stage in range(4))
    assert data[0, False].data_s < data[2, False].data_s < data[3, False].data_s
    assert data[1, False].optimizer_s == data[3, False].optimizer_s < data[0, False].optimizer_s


def test_stages_with_an_end_have_a_layer_less() -> None:
    one = llama(layers=126, pipeline=16, schedule="interleaved", chunks=8, count_ends=True, global_batch=32)
    assert one.chunk_layers == (0, *[1] * 126, 0)
    loads = job_loads([llama(layers=6, pipeline=4, count_ends=True)], A100, load_parameters())
    assert [[part.count for part in stage.parts] for stage in loads[0].stages] == [[1, 1], [2], [2], [1, 1]]
    with pytest.raises(InvalidInputError, match="4 stages do not divide 7 layers with both ends; 1, 3 or 9 stages do"):
        llama(layers=7, pipeline=4, count_ends=True)


@pytest.mark.parametrize(
    ("phase", "sizes"),
    [("prefill", {}), ("decode", {"tensor": 2}), ("decode", STYLES["experts"]), ("decode", STYLES["latent"])],
    ids=["prefill", "decode", "experts", "latent"],
)
def test_a_step_of_inference_replays_to_its_predicted_time(phase: str, sizes: dict[str, object]) -> None:
    trained, device = llama(**sizes), find_device("H100-SXM5-80GB")
    one = InferenceJob(trained.model, phase, 8, 1000, 0 if phase == "prefill" else 23, trained.layout)
    parts = inference_parts(one, device, parameters=load_parameters())
    seconds = sum(count * sum(each for _, each in steps) for _, steps, count in parts)
    graph = build_graph(inference_trace(one, device, parameters=load_parameters()), 0, parameters=load_parameters())
    # A kernel starts 8 us after its call: the first, and one after the host waited for the embedding's all-reduce.
    launches = 1 + (trained.layout.tensor > 1)
    assert replay(graph).makespan_ns / 1e9 - launches * 8e-6 == pytest.approx(seconds, rel=0.02)


def test_a_decode_reads_all_weights_and_the_cache_and_gets_slower_as_it_grows() -> None:
    model, device = load_transformers()["llama31_8b"], find_device("H100-SXM5-80GB")

    def seconds(generated: int, sequences: int = 1) -> float:
        one = InferenceJob(model, "decode", sequences, 1024, generated)
        parts = inference_parts(one, device, parameters=load_parameters())
        return sum(count * sum(each for _, each in steps) for _, steps, count in parts)

    weights_s = 2 * 8.03e9 / 3.35e12
    assert weights_s < seconds(0) < 2 * weights_s
    cache_s = 2 * 32 * 8 * 128 * 2 * 64 * 30_000 / 3.35e12  # keys and values of 30,000 tokens more
    assert seconds(30_000, 64) - seconds(0, 64) > 0.8 * cache_s


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"phase": "encode"}, "inference has no phase 'encode'; there are prefill, decode"),
        ({"precision": "fp32"}, "inference has no precision 'fp32'; there are fp16, bf16, fp8"),
        ({"phase": "prefill"}, "a prefill comes before the first generated token"),
        ({"layout": Layout(1, 1, 2)}, "inference is split over tensor-parallel ranks"),
        ({"layout": Layout(3)}, "3 tensor-parallel ranks do not divide heads of 16"),
    ],
)
def test_inference_that_cannot_be_says_why(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        replace(InferenceJob(llama().model, "decode", 1, 100, 1), **changes)  # type: ignore[arg-type]


def test_flash_attention_moves_no_scores_and_computes_half_of_them() -> None:
    plain, flash = (layer_block(MODEL, DecoderPass(2, 1024, size=2, attention=each)) for each in ("plain", "flash"))
    attend = [step.operator for step in (*flash.forward, *flash.backward) if "flash" in step.name]
    scores = [s.operator.flops for s in plain.forward if s.operator.kind == "batched_matmul"]
    assert attend[0].flops == pytest.approx(sum(scores) / 2, rel=1e-3)
    assert attend[1].flops == 2.5 * attend[0].flops
    assert plain.weights == flash.weights


def test_context_parallel_ranks_share_tokens_and_pairs() -> None:
    model = llama().model
    one, four = (layer_block(model, DecoderPass(2, 4096 // n, size=2, attention="flash", context=n)) for n in (1, 4))

    def flops(block: DecoderBlock) -> float:
        return sum(s.operator.flops for s in (*block.forward, *block.backward) if not s.collective)

    assert flops(one) == pytest.approx(4 * flops(four), rel=0.01)
    assert one.weights == four.weights
    for way, each in ((four.forward, 1), (four.backward, 2)):
        at, ring = next((i, s) for i, s in enumerate(way) if s.collective)
        # Keys and values of three other ranks, and backward their gradients.
        assert ring.operator.bytes_read == each * 2 * (2 * 1024) * (4 * 64) * 3 * 2
        assert ring.overlapped and "flash" in way[at + 1].name


def test_ranks_that_share_experts_exchange_every_tokens_choices() -> None:
    model = llama(**STYLES["experts"]).model
    alone, four = (layer_block(model, DecoderPass(2, 1024, size=2, expert=n)) for n in (1, 4))
    assert alone.expert_weights == 4 * four.expert_weights == 8 * 3 * 1024 * 4096
    for way in (four.forward, four.backward):
        sent = [step.operator.bytes_read for step in way if step.group == "expert"]
        assert sent == [2 * 1024 * 2 * 1024 * 2] * 2  # tokens, choices, hidden, bytes; there and back
    dense = layer_block(model, DecoderPass(2, 1024, size=2, expert=4), dense=True)
    assert dense.expert_weights == 0 and all(step.group == "tensor" for step in dense.forward)


def test_products_in_8_bits_are_faster_and_quantized() -> None:
    loads = job_loads(
        [llama(layers=1, hidden=4096, length=4096, attention="flash", precision=each) for each in ("bf16", "fp8")],
        find_device("H100-SXM5-80GB"), load_parameters(),
    )  # fmt: skip
    layers = [load.stages[0].parts[1] for load in loads]
    assert layers[1].forward.products_s < 0.8 * layers[0].forward.products_s
    # The input of one product; kernels before the three others write in 8 bits.
    assert layers[1].forward.operators - layers[0].forward.operators == 1


@pytest.mark.parametrize(
    ("name", "billion"),
    [("llama31_8b", 8.03), ("llama2_70b", 68.98), ("llama31_405b", 405.9), ("deepseek_v3", 671.0),
     ("deepseek_v2", 235.7), ("gpt3_175b", 174.6)],
)  # fmt: skip
def test_shipped_models_have_the_parameters_that_their_authors_count(name: str, billion: float) -> None:
    model = load_transformers()[name]
    run = DecoderPass(1, 2048, size=2, attention="flash")
    blocks = [embedding_block(model, run), head_block(model, run, shared=True)]
    weights = sum(block.weights for block in blocks)
    for dense, count in ((True, model.dense_layers), (False, model.layers - model.dense_layers)):
        weights += count * layer_block(model, run, dense=dense).weights
    assert weights / 1e9 == pytest.approx(billion, rel=0.003)


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
        ({"attention": "flash", "precision": "fp32"}, "flash attention and experts run in 16 bits, not in fp32"),
    ],
)
def test_a_job_that_cannot_be_says_why(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        job(**changes) if "length" not in changes else replace(job(), **changes)


def test_a_device_without_8_bits_says_so() -> None:
    with pytest.raises(InvalidInputError, match=r"A100-SXM4-80GB does not compute in fp8: .* take bf16"):
        predict_steps([job(precision="fp8")], A100, fit=load_training(), parameters=load_parameters())


def test_a_layout_that_cannot_be_says_why() -> None:
    with pytest.raises(InvalidInputError, match="pipeline is 0; it must be 1 or more"):
        Layout(pipeline=0)


def test_a_trace_without_steps_or_too_large_says_so() -> None:
    with pytest.raises(InvalidInputError, match="0 steps"):
        training_trace(job(), A100, lengths=(), fit=load_training(), parameters=load_parameters())
    with pytest.raises(InvalidInputError, match=r"a trace may have 2,000,000; take fewer layers"):
        training_trace(job(2**20), A100, fit=load_training(), parameters=load_parameters())


def test_groups_over_nodes_have_the_adapters_of_the_usual_node_and_share_them() -> None:
    """A DGX A100 has eight adapters of 25 GB/s; eight groups side by side have one each."""
    found = [(each.nics, each.nic_gbps) for each in (
        Layout(16).topology("tensor", A100),
        Layout(4, 16).topology("data", A100),
        Layout(8, 1, 8).topology("pipeline", A100),
        Layout(8, 1, 8).topology("pipeline"),
    )]  # fmt: skip
    assert found == [(8, 25.0), (2, 25.0), (1, 25.0), (1, 0.0)]
    wide = job(layout=Layout(16))
    parts = predict_steps([wide], A100, fit=load_training(), parameters=load_parameters())[0].parts
    assert (
        parts.tensor_s
        < 3
        * predict_steps([job(layout=Layout(8))], A100, fit=load_training(), parameters=load_parameters())[
            0
        ].parts.tensor_s
    )

"""Copies of weights in a traced step: which layers read what, who makes the copies, and what that costs and saves."""

import json
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import seqpoint as sp
from profilers.devices import find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import dataset_path
from replay.costs.shipped import load_parameters
from replay.engine import replay
from replay.formats import FORMATS, find_format
from replay.from_trace import build_graph
from replay.graph.graph import KernelGraph, TaskKind
from replay.plug_ins.weight_copies import (
    OTHER,
    OUTPUT,
    LayerWeights,
    copy_bytes,
    find_layer_weights,
    saved_share,
    weight_memory,
)
from replay.studies.jitq import JitqModelTable, load_study, study, study_graph
from replay.what_ifs import parse_what_if, with_job
from replay.workloads import (
    InferenceJob,
    Layout,
    job_memory,
    load_training,
    load_transformers,
    read_job,
    training_job,
    training_trace,
)
from replay.workloads.job_memory import embedding_bytes
from replay.workloads.traced_job import find_job
from replay.workloads.training_trace import inference_trace
from seqpoint.projecting import ProjectOptions, parse_what_ifs, project_trace
from seqpoint.weight_copying import fewest_ranks, largest_micro_batch, memory_with_copies, weight_copies

SMALL = {"layers": 3, "hidden": 1024, "heads": 16, "length": 512, "micro_batch": 4, "global_batch": 8}
BERT = Path(__file__).parents[2] / "shared/data/traces/kineto/tracelens/h100/gaunernst_bert-small-uncased.json.gz"
#: Weights of a layer of hidden size H: 12 H^2.
LAYER = 12 * 1024**2
FORWARD, BACKWARD = 0, 1


@cache
def traced(device: str = "MI210", **sizes: Any) -> KernelGraph:
    """Return the graph of a synthetic step of a small job, with some sizes changed."""
    job = training_job({**({} if "model" in sizes else SMALL), **sizes})
    trace = training_trace(job, find_device(device), fit=load_training(), parameters=load_parameters())
    return build_graph(trace, 0, parameters=load_parameters())


def changed(text: str, graph: KernelGraph) -> KernelGraph:
    return parse_what_if(text)(graph, load_parameters())


def weights(graph: KernelGraph) -> list[LayerWeights]:
    return find_layer_weights(graph, find_job(graph))


def pim(graph: KernelGraph) -> np.ndarray:
    return graph.tasks.kind == TaskKind.PIM


def test_the_saved_share_is_the_closed_form() -> None:
    bits = {name: find_format(name).bits_per_value for name in ("mx9", "mx6")}
    for names in (["mx9"], ["mx9", "mx6"]):
        copies = sum(2 * bits[name] / 8 for name in names)
        ours = saved_share(copy_bytes(1, [find_format(name) for name in names], directions=2))
        assert Fraction(ours).limit_denominator(1000) == copies / (12 + copies)
    assert [copy_bytes(8, [FORMATS[name]], directions=2) for name in ("fp8_e4m3", "mxfp4", "bf16")] == [8, 8.5, 16]


def test_layers_are_found_in_the_order_of_passes_each_with_its_weights() -> None:
    found = weights(traced())
    one_pass = [(FORWARD, layer) for layer in (0, 1, 2, OUTPUT)] + [(BACKWARD, layer) for layer in (OUTPUT, 2, 1, 0)]
    assert [(each.way, each.layer) for each in found] == 2 * one_pass
    assert {each.elements for each in found if each.layer >= 0} == {LAYER}
    assert {each.elements for each in found if each.layer == OUTPUT} == {51200 * 1024}
    # Each may begin with the layer before; the first with the first kernel of the step.
    assert [each.trigger for each in found[1:]] == [each.products[0] for each in found[:-1]]
    assert 0 <= found[0].trigger < found[0].products[0] and {each.before for each in found} == {-1}


@pytest.mark.parametrize(
    "sizes",
    [
        {"length": 256},  # as many tokens as the hidden size: products have the sides of gradients of weights
        {"length": 1024},  # as many as the feed-forward size
        {"length": 768},  # as many as queries, keys and values
        {"style": "bert"},
        {"pipeline": 3, "global_batch": 16},
        {"pipeline": 3, "global_batch": 16, "length": 256, "recompute": True},  # passes in turn, then several in a row
    ],
)
def test_every_pass_reads_the_weights_of_each_layer_once(sizes: dict[str, Any]) -> None:
    found = weights(traced(**sizes))
    passes = [each for each in found if each.layer >= 0]
    assert {each.elements for each in passes} == {LAYER}
    # The first stage of a pipeline does not tell the vocabulary of the last.
    assert all(51200 in each.shapes[0] for each in found if each.layer in (OUTPUT, OTHER))
    counts = {way: sum(each.way == way for each in passes) for way in (FORWARD, BACKWARD)}
    assert counts[FORWARD] == counts[BACKWARD] == 3 * sizes.get("global_batch", 8) // 4


@pytest.mark.skipif(not BERT.exists(), reason=f"no trace at {BERT}")
def test_layers_of_a_recorded_step_are_told_from_the_products_of_its_head() -> None:
    graph = build_graph(sp.open(BERT), 6, parameters=load_parameters())
    found = weights(graph)
    assert [(each.layer, len(each.products)) for each in found] == [
        *((i, 6) for i in range(4)),
        (OTHER, 1),
        (OUTPUT, 1),
    ]
    assert {each.elements for each in found[:4]} == {12 * 512**2}
    assert (found[4].elements, found[5].elements) == (512**2, 512 * 30522)


def test_recomputed_layers_read_their_weights_again() -> None:
    graph = traced(recompute=True, global_batch=4)
    found = [each for each in weights(graph) if each.layer >= 0]
    assert {(each.way, each.elements, each.share_again) for each in found} == {
        (FORWARD, LAYER, 0),
        (BACKWARD, LAYER, 1),
    }
    assert [each.layer for each in found] == [0, 1, 2, 2, 1, 0]
    # A format with blocks needs copies of both directions, others one copy.
    for maker in ("jit_pim", "gpu"):
        for name, is_slower in (("mx9", True), ("fp8_e4m3", False)):
            changed_ = changed(f"quantize_weights:{name}:{maker}", graph)
            added = np.flatnonzero(changed_.tasks.event == -1)[-8:]
            times = dict(
                zip(
                    (changed_.names[i] for i in changed_.tasks.name[added]),
                    changed_.tasks.duration_ns[added],
                    strict=True,
                )
            )
            back, forth = (times[f"quantise to {name}: layer 1, {way}"] for way in ("backward", "forward"))
            assert bool(back > 1.3 * forth) == is_slower, (maker, name)


#: Sizes of Llama 3.1 8B: hidden 4096, a feed-forward layer of 14336, heads of 128.
LLAMA = {"model": "llama31_8b", "layers": 2, "tensor": 2, "micro_batch": 1, "global_batch": 1, "precision": "bf16"}
LLAMA_LAYER = (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) // 2


@pytest.mark.parametrize(
    ("sizes", "edit", "share"),
    [
        ({"length": 4096}, "micro_batch:2", 1),  # as many tokens as the hidden size, before the edit
        ({"length": 2048}, "micro_batch:2", 1),  # as many as queries of a rank, then as the hidden size
        ({"length": 4096}, "sequence_length:2048", 1),
        ({"length": 2048}, "tensor_parallel:4", 0.5),
        ({"length": 4096}, "tensor_parallel:1", 2),
        ({"length": 2048, "recompute": True}, "", 1),
        ({"length": 1536, "recompute": True}, "", 1),
        ({"length": 4096, "recompute": True}, "micro_batch:2", 1),
        ({"length": 4096, "recompute": True}, "tensor_parallel:1", 2),
    ],
)
def test_weights_are_told_from_gradients_where_tokens_are_as_many_as_a_size(
    sizes: dict[str, Any], edit: str, share: float
) -> None:
    graph = traced("H100", **(LLAMA | sizes))
    found = weights(changed(edit, graph) if edit else graph)
    found = [each for each in found if each.rank == found[0].rank]
    assert [(each.way, each.layer) for each in found] == [
        *((FORWARD, layer) for layer in (0, 1, OUTPUT)), *((BACKWARD, layer) for layer in (OUTPUT, 1, 0))
    ]  # fmt: skip
    assert {each.elements for each in found if each.layer >= 0} == {share * LLAMA_LAYER}
    again = 4 if sizes.get("recompute") else 0
    assert [len(each.products) for each in found] == [4, 4, 1, 1, 4 + again, 4 + again]


def test_pim_makes_copies_for_each_pass_just_in_time_and_once_a_step_if_they_are_kept() -> None:
    graph = traced()
    just_in_time, kept = (changed(f"quantize_weights:mx9{maker}", graph) for maker in ("", ":pim"))
    assert (pim(just_in_time).sum(), pim(kept).sum(), pim(graph).sum()) == (16, 4, 0)
    times = [each.tasks.duration_ns[pim(each)] for each in (just_in_time, kept)]
    assert 1.5 < times[1][0] / times[0][0] < 2  # two copies of one read
    line = replay(just_in_time)
    rows = np.flatnonzero(pim(just_in_time))
    for row, layer in zip(rows.tolist(), weights(graph), strict=True):
        assert line.start_ns[row] >= line.start_ns[layer.trigger]
        assert line.end_ns[row] <= line.start_ns[layer.products[0]]


def test_the_gpu_makes_copies_on_the_compute_stream_before_each_layer() -> None:
    graph = traced()
    by_gpu = changed("quantize_weights:mx9:gpu", graph)
    added = np.flatnonzero(by_gpu.tasks.event == -1)
    kernels = added[by_gpu.tasks.kind[added] == TaskKind.KERNEL]
    products = by_gpu.tasks.lane[kernels + 1]
    assert len(kernels) == 16 and (by_gpu.tasks.lane[kernels] == products).all()
    line = replay(by_gpu)
    assert (line.end_ns[kernels] <= line.start_ns[kernels + 1]).all()
    assert by_gpu.names[by_gpu.tasks.name[kernels[0]]] == "quantise to mx9: layer 0, forward"
    assert [parse_what_if("quantize_weights:mx9:gpu").layers is not None, pim(by_gpu).any()] == [True, False]


def test_products_run_at_the_rate_of_the_format_if_the_device_has_one() -> None:
    h100 = traced("H100")
    rows = [row for each in weights(h100) for row in each.products]
    for name, is_faster in (("mx9", False), ("mxfp8_e4m3", False), ("fp8_e5m2", True), ("mxfp6_e3m2", False)):
        new = changed(f"quantize_weights:{name}", h100)
        assert bool((new.tasks.duration_ns[rows] < h100.tasks.duration_ns[rows]).all()) == is_faster, name
        assert any("rate" in note for note in new.notes)
    notes = changed("quantize_weights:fp8_e4m3", traced()).notes
    assert any("MI210 has no rate for fp8_e4m3: products keep their time" in note for note in notes)


@pytest.mark.parametrize(
    ("edit", "share"), [("tensor_parallel:2", 0.5), ("micro_batch:8", 1.0), ("scale_device:MI300X", 1)]
)
def test_copies_follow_edits_of_the_job_and_the_device(edit: str, share: float) -> None:
    before, after = changed("quantize_weights:mx9", traced()), changed(f"{edit}+quantize_weights:mx9", traced())
    sizes = [each.elements for each in weights(changed(edit, traced())) if each.layer >= 0]
    assert sizes == [share * LAYER] * 12
    times = [each.tasks.duration_ns[pim(each)] for each in (before, after)]
    ratio = times[1] / times[0]
    assert (ratio < 0.4).all() if "device" in edit else ratio == pytest.approx(share, rel=0.02)


@pytest.mark.parametrize("sequences", [1, 4])
def test_a_replay_without_contention_follows_the_closed_form(sequences: int) -> None:
    model = JitqModelTable(hidden=2048, heads=16, length=64, sequences=sequences)
    outcome = study(model, load_study(), load_parameters())
    waits = [max(0.0, -each.slack_ns) for each in outcome.layers]
    assert outcome.follows_closed_form and sum(waits) > 0
    assert [each.exposed_ns for each in outcome.layers] == pytest.approx(waits, rel=0.01, abs=1.0)  # beside kernels
    assert outcome.lost > 0 and outcome.replayed_ns > outcome.step_ns


def test_memory_of_a_rank_with_kept_copies_and_with_those_of_two_layers() -> None:
    found = [each for each in weights(traced()) if each.layer >= 0]
    memory = weight_memory(found, [find_format("mx9")], 12.0)
    assert (memory.states_bytes, memory.copies_bytes, memory.live_bytes) == (36 * LAYER, 3 * 2.25 * LAYER, 2.25 * LAYER)
    assert memory.saved == pytest.approx((2 / 3) * 3 * 2.25 / (36 + 3 * 2.25))
    both_ways = weight_memory(weights(traced(layers=1)), [find_format("fp8_e4m3")], 12.0)
    assert both_ways.live_bytes == LAYER + 51200 * 1024  # one copy serves both passes of the output layer


def test_the_saved_memory_allows_larger_batches_and_fewer_ranks() -> None:
    job = training_job({"layers": 40, "hidden": 5120, "heads": 40, "length": 2048, "precision": "bf16", "sharding": 0})
    device, formats = find_device("MI300X"), [find_format("mx9"), find_format("mx6")]
    batches = [largest_micro_batch(job, device, formats, maker) for maker in ("pim", "jit_pim")]
    small = replace(job, layout=Layout(tensor=2))
    assert batches[0] < largest_micro_batch(small, device, formats, "pim") and batches[0] <= batches[1]
    ranks = [fewest_ranks(job, device, formats, maker) for maker in ("pim", "jit_pim")]
    assert 1 <= ranks[1] <= ranks[0] <= 8
    assert (
        fewest_ranks(
            training_job({"layers": 1000, "hidden": 65536, "heads": 2, "precision": "bf16"}), device, formats, "pim"
        )
        == 0
    )
    with pytest.raises(InvalidInputError, match="a job in fp32: the memory of copies is counted for jobs in bf16"):
        memory_with_copies(training_job({"precision": "fp32"}), formats, "pim")
    copies = weight_copies(job, ["mx9", "mx6"])
    assert [row.copies for row in copies.rows] == ["bf16", "kept", "just in time"]
    assert [row.memory.weights for row in copies.rows] == [
        job_memory(job).weights,
        *(memory_with_copies(job, formats, maker).weights for maker in ("pim", "jit_pim")),
    ]
    assert copies.to_dict()["rows"][2]["largest_micro_batch"] == batches[1]
    assert copies.plot().dimension_values("part", expanded=False).tolist()[0] == "weights"
    with pytest.raises(InvalidInputError, match="no format of copies is given"):
        weight_copies(job, [])


def test_why_has_a_row_for_each_pass_and_layer() -> None:
    job = training_job({**SMALL, "global_batch": 4})
    trace = training_trace(job, find_device("MI210"), fit=load_training(), parameters=load_parameters())
    names = ["quantize_weights:mx9", "micro_batch:2+quantize_weights:mx9"]
    result = project_trace(trace, parse_what_ifs(names), ProjectOptions(draws=8, jobs=1, why=True))
    tables = result.why()
    assert [table.title for table in tables] == [f"Weights quantised by {name}, rank 0" for name in names]
    assert [row[:2] for row in tables[0].rows] == [
        ("forward", "layer 0"), ("forward", "layer 1 to 2"), ("forward", "output layer"), ("backward", "output layer"),
        ("backward", "layer 2"), ("backward", "layer 1 to 0"),
    ]  # fmt: skip
    whole = json.loads(json.dumps(result.to_dict()))
    jsonschema.validate(whole, json.loads(dataset_path("schemas/project.schema.json").read_text()))
    content = whole["layers"]
    assert len(content) == 2 * 8 and [each["layer"] for each in content[:4]] == [0, 1, 2, None]
    assert all(each["slack_ns"] == each["compute_ns"] - each["quantize_ns"] for each in content)


def test_a_job_file_follows_the_maker(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text("[job]\nlayers = 3\nhidden = 1024\nheads = 16\nlength = 512\n")
    (named,) = with_job([parse_what_if("quantize_weights:mx9")], str(file))
    assert named.steps == parse_what_if(named.name).steps and "jit_pim" in named.name and "job.toml" in named.name
    assert pim(named(traced(), load_parameters())).sum() == 16


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("quantize_weights:mx8", NotFoundError, "no data format is called 'mx8'; nearest: "),
        ("quantize_weights:mx9:cpu", NotFoundError, "maker cannot be 'cpu'; "),
        ("quantize_weights:fp32", InvalidInputError, "fp32 has no fewer bits than weights"),
        ("quantize_weights:" + ",".join(["mx9"] * 9), InvalidInputError, "copies in 9 formats; 8 at most"),
        ("quantize_weights:mx9,mx6,mx9", InvalidInputError, "copies in mx9 twice; name each format once"),
        ("quantize_weights", InvalidInputError, "as in quantize_weights:mx9"),
    ],
)
def test_what_cannot_be_made_is_told(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parse_what_if(text)


def test_a_step_of_inference_and_a_device_without_stacked_memory_are_refused() -> None:
    job = InferenceJob(load_transformers()["llama31_8b"], "prefill", 1, 128)
    trace = inference_trace(job, find_device("H100"), parameters=load_parameters())
    with pytest.raises(InvalidInputError, match=r"In inference weights do not change.*Possible: change_dtype"):
        changed("quantize_weights:mx9", build_graph(trace, 0, parameters=load_parameters()))
    with pytest.raises(InvalidInputError, match=r"needs stacked memory \(HBM\)"):
        changed("quantize_weights:mx9", traced("RTX 4090"))


def test_copies_may_begin_when_the_kernel_before_the_step_ends() -> None:
    graph = study_graph(JitqModelTable(1024, 16, 64, 1), 2, find_device("MI210"), load_parameters())
    job = find_job(graph)
    first = find_layer_weights(graph, job)[0]
    rows = np.flatnonzero(graph.tasks.lane == graph.tasks.lane[first.products[0]])
    earlier = rows[rows < first.products[0]]
    # Kernels before the first product count as those of an optimizer: the pass begins with the product.
    moved = graph.with_tasks(phase=np.where(np.isin(np.arange(len(graph.tasks)), earlier), 2, graph.tasks.phase))
    first = find_layer_weights(moved, job)[0]
    assert (first.trigger, first.before) == (-1, int(earlier[-1]))


def test_block_scales_need_matrix_units_that_take_them() -> None:
    graph = traced("B200")
    rows = [row for each in weights(graph) for row in each.products]
    for name in ("mxfp8_e4m3", "nvfp4", "fp8_e4m3"):
        new = changed(f"quantize_weights:{name}", graph)
        assert (new.tasks.duration_ns[rows] < graph.tasks.duration_ns[rows]).all(), name
        assert any("Activations and gradients are not quantised, so the gain is an upper bound" in n for n in new.notes)
    for device in ("MI300X", "L40S"):
        notes = changed("quantize_weights:mxfp8_e4m3:gpu", traced(device)).notes
        assert any(
            "take no scales of blocks (Blackwell, Blackwell RTX, CDNA 4 do): products keep their time" in n
            for n in notes
        )


def test_gpu_kernels_that_are_kept_run_once_a_step_before_its_first_product() -> None:
    graph = traced()
    kept, each_pass = (changed(f"quantize_weights:mx9:{maker}", graph) for maker in ("gpu_kept", "gpu"))
    added = np.flatnonzero((kept.tasks.event == -1) & (kept.tasks.kind == TaskKind.KERNEL))
    assert [kept.names[name] for name in kept.tasks.name[added]] == ["quantise to mx9: all layers"]
    assert kept.tasks.lane[added[0] + 1] == kept.tasks.lane[added[0]]
    assert len(kept.tasks) == len(graph.tasks) + 1
    # Two micro-batches, whose copies are made once.
    by_pass = np.flatnonzero((each_pass.tasks.event == -1) & (each_pass.tasks.kind == TaskKind.KERNEL))
    assert 2 * kept.tasks.duration_ns[added].sum() == pytest.approx(
        each_pass.tasks.duration_ns[by_pass].sum(), rel=0.01
    )
    busy = study_graph(JitqModelTable(1024, 16, 512, 4), 3, find_device("MI210"), load_parameters())
    what_if = parse_what_if("quantize_weights:mx9:gpu_kept")
    assert what_if.layers is not None
    found = what_if.layers(busy, load_parameters())
    assert [each.layer for each in found] == [0, 1, 2, OUTPUT]
    longer = replay(what_if(busy, load_parameters())).makespan_ns - replay(busy).makespan_ns
    assert sum(each.exposed_ns for each in found) == pytest.approx(longer, rel=0.01)
    assert all(0 < each.exposed_ns <= each.quantize_ns for each in found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("quantize_weights:mx9+scale_device:V100", "scale_device after quantize_weights: .* Put quantize_weights last"),
        ("quantize_weights:mx9+scale_links:2+micro_batch:2", "micro_batch after quantize_weights"),
        ("quantize_weights:fp8_e4m3+change_dtype:bf16->fp8", "change_dtype after quantize_weights"),
        ("quantize_weights:mx9+quantize_weights:mx6", "quantize_weights twice; name all formats in one"),
    ],
)
def test_edits_after_the_copies_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        parse_what_if(text)
    assert parse_what_if("scale_device:V100+quantize_weights:mx9+scale_links:2").steps


@pytest.mark.parametrize(
    ("precision", "name", "message"),
    [
        ("fp8", "mx9", "products of weights run in fp8 in this step"),
        ("bf16", "bf16", "the step multiplies weights in bf16 already"),
    ],
)
def test_a_step_in_the_format_or_in_fewer_bits_is_refused(precision: str, name: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        changed(f"quantize_weights:{name}", traced("H100", precision=precision))


def test_notes_count_one_rank_and_one_set_of_copies() -> None:
    graph = traced("MI210", tensor=2)
    elements = (3 * LAYER + 51200 * 1024) / 2
    for maker, is_memory in (("jit_pim", True), ("pim", True), ("gpu", False), ("gpu_kept", False)):
        notes = changed(f"quantize_weights:mx9:{maker}", graph).notes
        (note,) = (each for each in notes if "weights that products read" in each)
        assert f"a rank has {elements / 1e6:.4g} M weights" in note and f"copies by {maker} (" in note
        assert ("No device on sale has such memory: hypothetical" in note) == is_memory
    (note,) = (
        each for each in changed("quantize_weights:fp8_e4m3,mx9", traced("H100")).notes if "run at the rate" in each
    )
    assert "at the rate of fp8, the rate of fp8_e4m3, the first format" in note


def test_the_note_and_the_command_count_the_same_copies(tmp_path: Path) -> None:
    sizes = {"layers": 3, "tensor": 2, "length": 1024, "micro_batch": 1, "global_batch": 2}
    file = tmp_path / "job.toml"
    lines = [f"{name} = {size}" for name, size in sizes.items()]
    file.write_text("\n".join(["[job]", "model = 'llama31_8b'", "precision = 'bf16'", *lines]))
    job = read_job(str(file))
    memory, embedding = job_memory(job), embedding_bytes(job)
    kept = memory_with_copies(job, [find_format("mx9")], "gpu_kept")
    assert kept == memory_with_copies(job, [find_format("mx9")], "pim")
    trace = training_trace(job, find_device("H100"), fit=load_training(), parameters=load_parameters())
    graph = build_graph(trace, 0, parameters=load_parameters())
    for text, counted in (
        (f"quantize_weights:mx9:pim:{file}", "all that the job file tells, with sharding 0"),
        (f"tensor_parallel:4+quantize_weights:mx9:pim:{file}", "layers and output layer alone"),
    ):
        (note,) = (each for each in changed(text, graph).notes if "Adam's states" in each)
        assert counted in note
    states, copies = memory.gradients + memory.optimizer + embedding, kept.weights - embedding
    (note,) = (each for each in changed(f"quantize_weights:mx9:pim:{file}", graph).notes if "Adam's states" in each)
    assert f"{states / 1e9:.3g} GB" in note and f"kept copies add {copies / 1e9:.3g} GB" in note
    rows = weight_copies(job, ["mx9"], device="H100").rows
    assert [row.memory.weights - row.copies_bytes for row in rows] == [embedding] * 3
    assert rows[1].copies_bytes == pytest.approx(rows[0].copies_bytes * 9 / 8, rel=1e-6)
    assert "GB of the embedding stay in bf16" in weight_copies(job, ["mx9"], device="H100").summary()[1]
    tied = training_job({"layers": 24, "precision": "bf16"})
    assert embedding_bytes(tied) == 0 < embedding_bytes(replace(tied, layout=Layout(pipeline=2)))
    shards = [replace(job, layout=Layout(data=2, tensor=2), sharding=sharding) for sharding in (0, 3)]
    assert embedding_bytes(shards[0]) == 2 * embedding_bytes(shards[1])
    with pytest.raises(NotFoundError, match="maker cannot be 'cpu'"):
        memory_with_copies(job, [find_format("mx9")], "cpu")

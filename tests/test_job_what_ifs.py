"""Job what-ifs: the traced transformer with another batch, length, size or split."""

import csv
import sys
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import make_graph

from profilers.devices import find_device
from profilers.errors import InvalidInputError
from profilers.trace.trace import TraceMeta
from replay.costs.shipped import load_parameters
from replay.engine import replay
from replay.from_trace import build_graph
from replay.graph.edit import next_left_on_lane, without_tasks
from replay.graph.graph import KernelGraph, Lane
from replay.projection import ProjectionOptions, StepWindow, project
from replay.what_ifs import parse_what_if, with_job
from replay.what_ifs.job_graph import repeats, with_copies
from replay.workloads import load_training, training_job, training_trace
from replay.workloads.traced_job import Shapes, find_job

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no measurements at {DATA}")
TABLE = list(csv.DictReader((ROOT / "tests" / "accuracy" / "job_edits.csv").read_text().splitlines()))
SMALL = {"layers": 3, "hidden": 1024, "heads": 16, "length": 512, "micro_batch": 4, "global_batch": 8}


@cache
def traced(**sizes: Any) -> KernelGraph:
    """Return the graph of a synthetic step of a small job, with some sizes changed."""
    job, device = training_job({**SMALL, **sizes}), find_device("A100-SXM4-80GB")
    trace = training_trace(job, device, fit=load_training(), parameters=load_parameters())
    return build_graph(trace, 0, parameters=load_parameters())


def edited(text: str, graph: KernelGraph) -> KernelGraph:
    return parse_what_if(text)(graph, load_parameters())


def kernel_ns(graph: KernelGraph) -> float:
    """Return the time of the first rank's kernels, collectives apart."""
    rows = graph.on_device() & ~graph.collectives() & (graph.ranks() == 0)
    return float(graph.tasks.duration_ns[rows].sum())


def test_sizes_are_found_in_a_synthetic_step() -> None:
    job = find_job(traced(tensor=2))
    assert dict(job.sizes) == {
        "batch": 4, "length": 512, "heads": 8, "kv_heads": 8, "width": 64, "hidden": 1024, "feedforward": 2048,
        "vocabulary": 25600,
    }  # fmt: skip
    assert (job.layers, job.micro_batches, job.tensor, job.training, job.missing) == (3, 2, 2, True, ())
    assert "attention" in job.how["batch"]


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("micro_batch:8", {"micro_batch": 8, "global_batch": 16}),
        ("sequence_length:1024", {"length": 1024}),
        ("hidden:2048", {"hidden": 2048, "heads": 32}),
        ("layers:2", {"layers": 2}),
        ("layers:5", {"layers": 5}),
        ("tensor_parallel:4", {"tensor": 4}),
        ("data_parallel:4", {"data": 4, "global_batch": 32}),
        ("hidden:2048+layers:5+micro_batch:8", {"hidden": 2048, "heads": 32, "layers": 5, "micro_batch": 8,
                                                "global_batch": 16}),
    ],
)  # fmt: skip
def test_an_edited_synthetic_step_has_the_kernel_time_of_the_edited_job(text: str, sizes: dict[str, int]) -> None:
    changed, expected = edited(text, traced()), traced(**sizes)
    # An edit scales streams by their bytes. Those of other sizes may come from the L2 cache, or no longer.
    assert kernel_ns(changed) == pytest.approx(kernel_ns(expected), rel=1e-3 if "layers" in text[:6] else 3e-2)
    if "parallel" not in text:
        assert replay(changed).makespan_ns == pytest.approx(replay(expected).makespan_ns, rel=3e-2)


def test_edits_of_the_job_are_compared_by_the_time_of_a_token() -> None:
    window = StepWindow.alone(traced())
    texts = ["micro_batch:8", "layers:5", "sequence_length:1024+micro_batch:8"]
    options = ProjectionOptions(draws=8, jobs=1)
    result = project(
        [window],
        [parse_what_if(text) for text in texts],
        meta=TraceMeta("test"),
        parameters=load_parameters(),
        options=options,
    )
    notes = [" ".join(row.notes) for row in result.rows]
    assert "slower than doing nothing" not in " ".join(notes)
    assert "sequences of a micro-batch 4 -> 8" in notes[0]
    for text, tokens in zip(notes, ("4,096 and 8,192", "4,096", "4,096 and 16,384"), strict=True):
        assert "time of a step over its tokens: " in text and f"({tokens} tokens in a replica's step)" in text


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_feed_forward_layer_as_wide_as_the_hidden_state_is_shared_too(ranks: int) -> None:
    changed = edited(f"tensor_parallel:{ranks}", traced(tensor=4))
    assert kernel_ns(changed) == pytest.approx(kernel_ns(traced(tensor=ranks)), rel=3e-2)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (1, 4), (2, 4), (4, 1)])
def test_a_step_with_other_tensor_parallel_ranks_takes_the_time_of_the_edited_job(before: int, after: int) -> None:
    changed = edited(f"tensor_parallel:{after}", traced(tensor=before))
    expected = traced(tensor=after)
    assert changed.collectives().any() == expected.collectives().any()
    assert replay(changed).makespan_ns == pytest.approx(replay(expected).makespan_ns, rel=3e-2)


@pytest.mark.parametrize(
    ("sizes", "before", "after"),
    [
        ({"tensor": 2}, 2, 8),  # of two nodes afterwards
        ({"tensor": 2, "sharding": 1}, 8, 2),
        ({"sharding": 2, "style": "bert", "tensor": 2, "length": 1024}, 2, 4),
        ({"sharding": 3}, 2, 4),
    ],
)
def test_replicas_are_found_and_placed_beside_ranks_that_share_layers(
    sizes: dict[str, Any], before: int, after: int
) -> None:
    graph, expected = (traced(**sizes, data=data, global_batch=4 * data) for data in (before, after))
    assert find_job(graph).data == before
    changed = edited(f"data_parallel:{after}", graph)
    times = [float(each.tasks.duration_ns[each.collectives()].sum()) for each in (graph, changed, expected)]
    assert times[1] == pytest.approx(times[2], rel=1e-2) and abs(times[1] / times[0] - 1) > 0.1
    assert replay(changed).makespan_ns == pytest.approx(replay(expected).makespan_ns, rel=1e-2)


def test_a_gated_layer_as_wide_as_the_hidden_state_and_fused_attention_are_shared() -> None:
    sizes = {"style": "llama", "attention": "flash", "global_batch": 4}
    for before, after in ((1, 4), (4, 1)):
        changed, expected = (
            edited(f"tensor_parallel:{after}", traced(**sizes, tensor=before)),
            traced(**sizes, tensor=after),
        )
        assert kernel_ns(changed) == pytest.approx(kernel_ns(expected), rel=3e-2)


def test_tokens_that_attention_does_not_tell_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"context-parallel ranks.*Possible: scale_kernels"):
        find_job(traced(context=2))
    changed = edited("micro_batch:8", traced(style="llama", attention="flash", experts=4, data=1))
    assert any("does not show feedforward" in note for note in changed.notes)


@pytest.mark.parametrize("attention", ["plain", "flash"])
@pytest.mark.parametrize("style", ["megatron", "llama", "bert"])
def test_sizes_are_found_in_jobs_of_all_styles(style: str, attention: str) -> None:
    device, parameters = find_device("A100-SXM4-80GB"), load_parameters()
    for hidden, tensor in product((1024, 2048, 4096), (1, 2, 4, 8)):
        job = training_job({"style": style, "attention": attention, "hidden": hidden, "tensor": tensor, "layers": 2,
                            "global_batch": 4})  # fmt: skip
        trace = training_trace(job, device, fit=load_training(), parameters=parameters, tensor_ranks=1)
        found = find_job(build_graph(trace, 0, parameters=parameters))
        sizes = {name: size for name, size in found.sizes.items() if name != "vocabulary"}
        assert sizes == {
            "batch": 4, "length": 1024, "heads": 16 // tensor, "kv_heads": 16 // tensor, "width": hidden // 16,
            "hidden": hidden, "feedforward": 4 * hidden // tensor,
        }  # fmt: skip
        assert (found.tensor, found.data, found.layers, found.micro_batches) == (tensor, 1, 2, 1)


def test_an_edit_to_the_present_size_changes_nothing() -> None:
    graph = traced()
    for text in ("micro_batch:4", "sequence_length:512", "hidden:1024", "layers:3", "tensor_parallel:1"):
        assert edited(text, graph).tasks.duration_ns.tolist() == graph.tasks.duration_ns.tolist(), text


def test_collectives_get_the_bytes_and_ranks_of_the_edited_job() -> None:
    graph = traced(tensor=2, data=2, global_batch=16)
    rows = graph.collectives()
    longer = edited("micro_batch:8", graph)
    state = rows & (graph.tasks.bytes == 4 * 512 * 1024 * 2)
    assert state.sum() > 0 and (longer.tasks.bytes[state] == 2 * graph.tasks.bytes[state]).all()
    gradients = rows & (graph.tasks.bytes == graph.tasks.bytes.max())
    assert (longer.tasks.bytes[gradients] == graph.tasks.bytes[gradients]).all()
    more = edited("data_parallel:8", graph)
    assert set(more.tasks.ranks[gradients].tolist()) == {8} and set(more.tasks.ranks[state].tolist()) == {2}
    assert (more.tasks.duration_ns[gradients] > graph.tasks.duration_ns[gradients]).all()


def test_added_collectives_wait_for_partial_sums_and_are_told() -> None:
    shared = edited("tensor_parallel:2", traced())
    added = shared.tasks.event == -1
    # Two a layer and direction, one of the embedding and one of the gradient of the last hidden state, and three of
    # the loss, in each of two micro-batches.
    assert (added & shared.collectives()).sum() == 2 * (3 * 4 + 2 + 3)
    assert set(shared.tasks.bytes[added & shared.collectives()].tolist()) == {4 * 512 * 1024 * 2, 4 * 512 * 4}
    assert any("28 all-reduces" in note and "6 of the loss" in note for note in shared.notes)
    whole = edited("data_parallel:4", traced())
    new = whole.collectives()
    pieces = whole.tasks.bytes[new]
    assert new.sum() == 3 + 1 and pieces.sum() > 2 * 3 * 12 * 1024**2
    # Gradients of a layer are exchanged while those of the layers before are computed.
    ends = replay(whole).end_ns
    assert ends[new].min() < ends[~new & whole.on_device() & (whole.tasks.phase == 1)].max()


def test_a_pipeline_leaves_a_share_of_the_layers_and_a_bubble() -> None:
    graph = traced()
    times = [replay(edited(f"pipeline_parallel:3{schedule}", graph)).makespan_ns for schedule in ("", ":zero_bubble")]
    assert times[1] < times[0]
    staged = edited("pipeline_parallel:3", graph)
    assert kernel_ns(staged) == pytest.approx(kernel_ns(traced(layers=1)), rel=1e-3)
    assert any("2 micro-batches through 3 stages" in note for note in staged.notes)


def test_context_parallel_ranks_share_queries_and_gather_keys() -> None:
    graph, shared = traced(), edited("context_parallel:2", traced())
    names = [shared.names[name] for name in shared.tasks.name[shared.collectives()].tolist()]
    assert names.count("all_gather (added)") == names.count("reduce_scatter (added)") == 6
    assert 0.45 < kernel_ns(shared) / kernel_ns(graph) < 0.75


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tensor_parallel:3", "3 tensor-parallel ranks do not divide heads of 16; 1, 2, 4, 8 or 16 ranks do"),
        ("pipeline_parallel:8", "8 stages are more than 3 layers; 1 or 3 stages do"),
        ("pipeline_parallel:2", "2 stages do not divide 3 layers; 1 or 3 stages do"),
        ("context_parallel:3", "do not divide sequences of 512 tokens"),
        ("hidden:1000", "heads of 16 for a hidden size of 1024 do not scale"),
        ("expert_parallel:2", "no all-to-all"),
        ("layers:1000000", "more than 4,000,000 tasks; take"),
    ],
)
def test_a_split_that_does_not_divide_says_what_does(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        edited(text, traced())


def test_a_step_without_attention_is_refused_with_what_is_possible() -> None:
    with pytest.raises(InvalidInputError, match=r"no shapes of operators.*Possible without: scale_kernels"):
        edited("micro_batch:8", make_graph([1, 2]))
    with pytest.raises(InvalidInputError, match="micro_batch is 0"):
        parse_what_if("micro_batch:0")


def test_a_job_file_gives_sizes_and_must_agree_with_the_trace(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text("[job]\nlayers = 3\nhidden = 1024\nheads = 16\nlength = 512\n")
    (named,) = with_job([parse_what_if("micro_batch:8")], str(file))
    assert parse_what_if(named.name).name == named.name and "job.toml" in named.name
    assert kernel_ns(named(traced(), load_parameters())) == kernel_ns(edited("micro_batch:8", traced()))
    file.write_text("[job]\nhidden = 2048\nheads = 16\n")
    with pytest.raises(InvalidInputError, match="gives hidden 2048, the trace shows 1024"):
        with_job([parse_what_if("layers:2")], str(file))[0](traced(), load_parameters())
    with pytest.raises(InvalidInputError, match="no what-if edits the job"):
        with_job([parse_what_if("scale_links:2")], str(file))


def test_tensors_are_written_in_sizes() -> None:
    sizes = {"batch": 8, "length": 128, "heads": 8, "kv_heads": 8, "width": 16, "hidden": 128, "feedforward": 512}
    shapes = Shapes(sizes, [(512, 128), (8, 64, 1), (8,)])
    shapes.learn([(128, 8, 512), (8, 128, 500), (64, 8, 100)])
    assert shapes.dimensions((128, 8, 512)) == ((1, ("length",)), (1, ("batch",)), (1, ("feedforward",)))
    assert all(not terms or terms == ("heads",) or "batch" not in terms for _, terms in shapes.dimensions((8, 64, 1)))
    assert shapes.dimensions((64, 128, 16))[0] == (1, ("batch", "heads"))
    assert shapes.product((1, 1024, 512, 128), backward=False) == (
        (1, ()), (1, ("batch", "length")), (1, ("feedforward",)), (1, ("hidden",)),
    )  # fmt: skip


def test_blocks_are_copied_and_cut_in_their_lane() -> None:
    found = repeats(np.array([7, 1, 2, 3, 1, 2, 3, 9]), 2)
    assert found is not None and (found.start, found.period) == (1, 3)
    assert repeats(np.array([1, 2, 3, 4, 5, 6]), 2) is None
    graph = make_graph([1, 2, 4, 8], edges=[(0, 1), (1, 2), (2, 3)])
    block = np.array([False, True, True, False])
    assert replay(with_copies(graph, [block], 2)).makespan_ns == 15 + 2 * 6
    assert replay(without_tasks(graph, block, heirs=next_left_on_lane(graph, block))).makespan_ns == 9


def test_copies_of_the_first_task_of_a_stream_follow_one_another() -> None:
    graph = make_graph([1, 4, 2], edges=[(0, 1), (0, 2)], lane=[0, 1, 0])
    graph = replace(graph, lanes=(Lane(0, 0, 7), Lane(0, 0, 9)))
    grown = with_copies(graph, [np.array([False, True, False])], 2)
    on_stream = np.flatnonzero(grown.tasks.lane == 1)
    assert sorted(replay(grown).end_ns[on_stream].tolist()) == [5, 9, 13]


@needs_data
def test_edits_of_a_traced_transformer_err_as_the_table_says() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks" / "jobs"))
    from accuracy_of_job_edits import table

    known = {(row["batch"], row["length"], row["edit"]): row for row in TABLE}
    found = table(DATA, slice(1, 2))
    assert len(found) == 6  # one trace a batch, all of the same length
    for row in found:
        assert row == known[row["batch"], row["length"], row["edit"]]


def test_every_edit_of_the_table_is_within_its_limit() -> None:
    assert len(TABLE) > 50
    assert max(abs(float(row["error"])) for row in TABLE) < 15

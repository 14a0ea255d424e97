"""Memory of training jobs: closed forms of the papers, schedules, sharding, and what fits a device."""

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError
from replay.costs.shipped import load_parameters
from replay.workloads import (
    DecoderPass,
    JobMemory,
    Layout,
    TrainingJob,
    Transformer,
    fits,
    fitting_changes,
    job_memory,
    kv_cache_bytes,
    load_training,
    memory_by_stage,
    memory_fit,
    memory_share,
    predict_steps,
    training_job,
    usable_bytes,
)
from replay.workloads.job_memory import RESERVED, parameter_bytes
from replay.workloads.training import job_loads
from replay.workloads.transformer import embedding_block, head_block, layer_block
from seqpoint.cli import cli
from seqpoint.validation.job_memory import (
    fit_reserved,
    memory_groups,
    memory_kind,
    memory_rows,
    read_memory,
    score_memory,
)

ROOT = Path(__file__).parents[1]
MEASURED = ROOT.parent / "shared" / "data" / "training"
#: Sizes of arXiv 2205.05198, table 3 (175B), in few layers.
HIDDEN, HEADS, LENGTH, VOCABULARY, LAYERS = 12288, 96, 2048, 51200, 8


def job(**sizes: object) -> TrainingJob:
    sizes = {"layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "vocabulary": VOCABULARY, "length": LENGTH} | sizes
    return training_job({"micro_batch": 1, "global_batch": 64, "precision": "bf16"} | sizes)


def of_layers(layers: float, tensor: int, scores: float) -> float:
    """Activations of arXiv 2205.05198, equation 4."""
    return layers * LENGTH * HIDDEN * (34 + scores * 5 * HEADS * LENGTH / HIDDEN) / tensor


@pytest.mark.parametrize("tensor", [1, 8])
def test_activations_are_those_of_the_paper(tensor: int) -> None:
    plain = job(tensor=tensor, sequence_parallel=tensor > 1)
    extra = LENGTH * HIDDEN / tensor + 4 * LENGTH * HIDDEN / tensor * (1 + VOCABULARY / HIDDEN)
    assert job_memory(plain).activations == of_layers(LAYERS, tensor, 1.0) + extra
    sums = LAYERS * 4 * HEADS * LENGTH / tensor
    assert job_memory(replace(plain, attention="flash")).activations == of_layers(LAYERS, tensor, 0.0) + extra + sums


def test_without_sequence_parallelism_ten_bytes_are_not_shared() -> None:
    paper = LENGTH * HIDDEN * (10 + 24 / 8 + 5 * HEADS * LENGTH / (HIDDEN * 8))
    stages = memory_by_stage(job(tensor=8, pipeline=4))
    assert stages[1].activations == 3 * LAYERS / 4 * paper  # three micro-batches in flight
    assert stages[2].activations == 2 * LAYERS / 4 * paper


def test_recomputation_keeps_inputs_and_one_layer() -> None:
    kept = memory_by_stage(job(recompute=True, pipeline=2))[0].activations
    masks = 2 * LENGTH * HIDDEN
    assert kept == 2 * LAYERS / 2 * 2 * LENGTH * HIDDEN + of_layers(1, 1, 1.0) + masks


def test_micro_batches_in_flight_by_schedule() -> None:
    """Interleaved: L (1 + (p - 1) / (p v)) layers (arXiv 2205.05198, 4.2.3). ZB-H1: one micro-batch's gradients wait.

    Of the last stage but one, whose activations are nothing but those of its layers.
    """
    layer = of_layers(1, 1, 1.0)
    first = memory_by_stage(job(pipeline=4, schedule="interleaved", chunks=2))[0].activations
    masks = (1 + 3 / 8) * 4 * LENGTH * HIDDEN
    assert first == LAYERS * (1 + 3 / 8) * layer + masks
    waiting = LENGTH * HIDDEN * 32  # of the weights' gradients, arXiv 2401.10241, table 1
    stages = memory_by_stage(job(pipeline=4, schedule="zero_bubble"))
    assert stages[2].activations == 2 * (2 * layer + 2 * waiting)
    short = memory_by_stage(job(pipeline=4, schedule="zero_bubble", global_batch=2))
    assert short[1].activations == 2 * 2 * layer  # two micro-batches, and both are in flight


@pytest.mark.parametrize(
    ("precision", "sharding", "bytes_"),
    [
        ("fp32", 0, 16), ("fp16", 0, 20), ("bf16", 0, 18), ("fp16", 1, 4 + 16 / 4), ("bf16", 1, 6 + 12 / 4),
        ("bf16", 2, 2 + 16 / 4), ("bf16", 3, 18 / 4), ("tf32", 1, 8 + 8 / 4),
    ],
)  # fmt: skip
def test_bytes_of_a_parameter(precision: str, sharding: int, bytes_: float) -> None:
    """Megatron-LM's table of its distributed optimizer; further stages as in arXiv 1910.02054."""
    sized = job(precision=precision, sharding=sharding, data=2, context=2)
    run = DecoderPass(1, LENGTH)
    blocks = [embedding_block(sized.model, run), head_block(sized.model, run, shared=True)]
    weights = LAYERS * layer_block(sized.model, run).weights + sum(block.weights for block in blocks)
    memory = job_memory(sized)
    assert memory.weights + memory.gradients + memory.optimizer == pytest.approx(bytes_ * weights, abs=3)


def test_more_ranks_never_need_more_memory() -> None:
    one = job_memory(job(context=1)).total
    for split in ({"tensor": 2}, {"pipeline": 2}, {"context": 2, "sharding": 1}, {"data": 2, "sharding": 1}):
        assert job_memory(job(**split)).total < one
    assert job_memory(job(precision="fp32")).activations > 1.5 * job_memory(job()).activations


def test_the_default_stage_needs_most() -> None:
    for sizes in ({"pipeline": 8}, {"pipeline": 4, "schedule": "interleaved", "chunks": 2}, {"pipeline": 2}):
        for vocabulary in (1024, 512000):  # of memory for the last stage, or for the first
            sized = job(vocabulary=vocabulary, **sizes)
            assert job_memory(sized) == max(memory_by_stage(sized), key=lambda each: each.total)
    with pytest.raises(InvalidInputError, match="no pipeline stage 2; the job has stages 0 to 1"):
        job_memory(job(pipeline=2), 2)


def test_a_job_fits_or_does_not() -> None:
    large, device = job(), find_device("H100-SXM5-80GB")
    assert not fits(large, device)
    assert fits(replace(large, layout=replace(large.layout, tensor=8, pipeline=8)), find_device("B200-SXM-192GB"))
    assert memory_share(job_memory(large), device) > 1
    with pytest.raises(InvalidInputError, match="memory_gb"):
        fits(large, find_device("T3-GPU"))


def test_ranks_that_share_heads_and_layers_share_the_cache() -> None:
    model = Transformer("m", "megatron", 80, 8192, 64, 28672, 32000, kv_heads=8)
    whole = kv_cache_bytes(model, 4096)
    assert whole == 2 * 80 * 8 * 128 * 4096 * 2
    assert kv_cache_bytes(model, 4096, Layout(16, 2, 2, context=2)) == whole / 32


def test_a_layer_in_llamas_style_keeps_what_its_operators_take() -> None:
    """Two inputs of norms and two of products, queries and result, keys and values of groups, the gated layer."""
    model = Transformer("m", "llama", 8, 1024, 16, 4096, 32000, kv_heads=4)
    sized = TrainingJob(model, 2048, 8, 1, Layout(pipeline=4), precision="bf16", attention="flash")
    of_token = 2 * (4 * 1024 + 2 * 1024 + 2 * 4 * 64 + 3 * 4096) + 4 * 16
    assert job_memory(sized, 1).activations == 3 * 2 * 2048 * of_token
    narrow = job_memory(replace(sized, precision="fp8"), 1).activations
    assert narrow == 3 * 2 * 2048 * (of_token - 2 * 1024 - 4096 + 1024)  # the result is kept in both


def test_experts_are_shared_by_their_own_ranks() -> None:
    model = Transformer("m", "llama", 4, 1024, 16, 4096, 32000, experts=8, experts_per_token=2, dense_layers=1)
    sized = TrainingJob(model, 1024, 8, 1, Layout(data=4, expert=4), precision="bf16", attention="flash", sharding=1)
    experts = 3 * 8 // 4 * 3 * 1024 * 4096
    memory = job_memory(sized)
    others = memory.weights // 2 - experts
    assert memory.optimizer == pytest.approx(12 * (others / 4 + experts), abs=8)
    staged = replace(sized, layout=replace(sized.layout, pipeline=2))
    first, second = memory_by_stage(staged)
    assert second.weights > first.weights  # two layers of experts, not one
    assert job_memory(staged) in (first, second)


def test_adapters_need_neither_gradients_nor_states_of_the_weights() -> None:
    model = Transformer("m", "llama", 8, 1024, 16, 4096, 32000)
    sized = TrainingJob(model, 2048, 8, 1, precision="bf16", attention="flash")
    adapted = job_memory(replace(sized, adapter_rank=16))
    assert adapted.gradients == 4 * 8 * 16 * 6 * 1024
    assert adapted.weights == job_memory(sized).weights + adapted.gradients // 2
    assert adapted.activations < job_memory(sized).activations


def test_stage_three_gathers_two_layers() -> None:
    whole, shared = (job_memory(job(data=8, attention="flash", sharding=stage)) for stage in (2, 3))
    layer = 2 * layer_block(job().model, DecoderPass(1, LENGTH)).weights
    assert shared.buffers - whole.buffers == 2 * layer
    assert shared.weights == pytest.approx(whole.weights / 8, abs=1)


@pytest.mark.parametrize(("device", "said"), [("A100-SXM4-80GB", "fits: "), ("GTX 1050", "does not fit: ")])
def test_synthesize_prints_the_memory_of_each_stage(device: str, said: str) -> None:
    options = ["synthesize", "--layers", "2", "--hidden", "1024", "--pp", "2", "--global-batch", "8", "--device"]
    shown = CliRunner().invoke(cli, [*options, device], env={"COLUMNS": "100"})
    assert shown.exit_code == 0 and shown.stdout.startswith(said) and "reserved" in shown.output
    content = json.loads(CliRunner().invoke(cli, [*options, device, "--json"]).output)
    sized = training_job({"layers": 2, "hidden": 1024, "pipeline": 2, "global_batch": 8})
    assert content["memory"] == [memory.content() for memory in memory_by_stage(sized)]
    assert content["fits"] is (said == "fits: ")
    assert content["memory_bytes"] == job_memory(sized).reserved
    assert f"a rank needs {content['memory_bytes'] / 1e9:.1f} GB" in shown.output
    assert f"usable memory of {content['device']}: {content['usable_bytes'] / 1e9:.1f} GB" in shown.output


def test_changes_that_make_a_job_fit_are_told_and_do_make_it_fit() -> None:
    device, sizes = find_device("A100-SXM4-80GB"), {"layers": 32, "hidden": 4096, "heads": 32, "data": 8}
    for key, value, memory in fitting_changes(training_job(sizes), device):
        assert fits(training_job({**sizes, key: value}), device)
        assert memory == job_memory(training_job({**sizes, key: value}))
    options = ["synthesize", "--layers", "32", "--hidden", "4096", "--heads", "32", "--dp", "8"]
    lines = CliRunner().invoke(cli, options).output.splitlines()
    assert lines[1].startswith("it fits with one of: --sharding 2 (") and "--tp 4 on 32 GPUs" in lines[1]
    assert lines[2].startswith("if it did fit, ")
    small = CliRunner().invoke(cli, [*options, "--device", "GTX 1050"]).output
    assert "none of --attention flash, --recompute, --sharding and --tp alone makes it fit" in small


SIMUMAX = {
    "model": "llama3-70b", "accelerator": "NVIDIA B200", "accelerators_count": 8, "layers_count": 12,
    "sequence_tokens": 4096, "micro_batch_sequences": 1, "micro_batches_per_step_count": 4, "tp_ranks": 1,
    "pp_ranks": 2, "cp_ranks": 1, "ep_ranks": 1, "dp_ranks": 4, "step_time_real_ms": 843.0, "case": "a",
    "memory_source_case": "a",
}  # fmt: skip


def written(folder: Path, **changes: object) -> Path:
    """Write a run of two stages of 66.6 and 62.7 GiB on four ranks each, and a run that repeats it."""
    memory = {f"memory_{name}_rank{i}_mib": 68149 if i < 4 else 64200 for i in range(8) for name in ("allocated",)}
    memory |= {f"memory_reserved_rank{i}_mib": 72000 for i in range(8)}
    row = SIMUMAX | memory | changes
    path = folder / "memory.csv"
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(row))
        writer.writeheader()
        writer.writerows([row, row | {"case": "b"}])
    return path


def test_measured_memory_is_scored_by_stage(tmp_path: Path) -> None:
    (run,) = read_memory([written(tmp_path)]).runs
    assert run.allocated_gib == (68149 / 1024, 64200 / 1024) and run.job.layout.pipeline == 2
    scores = score_memory([run])
    assert [score.case for score in scores] == ["a, stage 0", "a, stage 1", "a"]
    rows = memory_rows(scores)
    assert next(row.case for row in rows if row.limit) == "SimuMax, allocated: mean"
    assert all(row.met for row in rows if row.limit) and memory_groups(scores)[0]["n"] == 2
    shown = CliRunner().invoke(cli, ["validate", "job_memory", str(tmp_path), "--gate"])
    assert shown.exit_code == 0 and "SimuMax, allocated" in shown.output


def test_damaged_memory_is_refused_with_its_row(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"row 1: memory_allocated_rank3_mib is 'much'"):
        read_memory([written(tmp_path, memory_allocated_rank3_mib="much")])
    with pytest.raises(InvalidInputError, match="row 1: the layout is of 12 devices; memory is of 8"):
        read_memory([written(tmp_path, pp_ranks=3)])
    assert read_memory([written(tmp_path, model="unknown")]).skipped == {
        "model 'unknown' is none that is known here": 1
    }


@pytest.mark.skipif(not MEASURED.exists(), reason="measured memory is not in the project")
def test_the_table_of_accuracy_is_current() -> None:
    runs = read_memory([path for path in sorted(MEASURED.glob("*.csv")) if memory_kind(path)]).runs
    assert round(fit_reserved(runs), 3) == RESERVED
    rows = list(csv.DictReader((ROOT / "tests" / "accuracy" / "job_memory.csv").read_text().splitlines()))
    ours = memory_groups(score_memory(runs))
    assert [(row["case"], row["n"], row["mean"]) for row in rows] == [
        (group["name"], str(group["n"]), f"{100 * group['error']:.1f}") for group in ours
    ]


def test_layers_of_stages_are_those_of_the_job() -> None:
    """Stages with ends that count, chunks, and few layers without experts."""
    model = Transformer("m", "llama", 30, 1024, 16, 4096, 32000, experts=8, expert_feedforward=64, dense_layers=5)
    layout = Layout(pipeline=4, schedule="interleaved", chunks=2, count_ends=True)
    sized = TrainingJob(model, 1024, 8, 1, layout, precision="bf16", attention="flash")
    run = DecoderPass(1, 1024)
    dense, sparse = (layer_block(model, run, dense=each).weights for each in (True, False))
    ends = [embedding_block(model, run).weights, 0, 0, head_block(model, run, shared=False).weights]
    counts = [(3, 4), (2, 6), (0, 8), (0, 7)]
    held = [a * dense + b * sparse + end for (a, b), end in zip(counts, ends, strict=True)]
    assert sized.chunk_layers == (3, 4, 4, 4, 4, 4, 4, 3)
    assert [memory.weights for memory in memory_by_stage(sized)] == [2 * each for each in held]
    assert job_memory(sized) == max(memory_by_stage(sized), key=lambda each: each.total)


def test_memory_fits_is_tight_or_does_not_fit() -> None:
    device = find_device("A100-SXM4-80GB")
    usable = usable_bytes(device)
    verdicts = [memory_fit(JobMemory(round(usable * share), 0, 0, 0, 0), device) for share in (0.9, 0.93, 1.02, 1.04)]
    assert verdicts == ["fits", "tight", "tight", "does not fit"]


def test_published_runs_out_of_memory_do_not_fit() -> None:
    # T5 of 11 billion parameters without sharding on an A100 of 80 GB (arXiv 2304.11277, figure 6); 2.5 billion in
    # mixed precision without sharding on a V100 of 32 GB, where 1.4 billion run (arXiv 1910.02054, section 10).
    large = job(layers=35, hidden=5120, heads=40, length=512, global_batch=8, data=8)
    small = job(layers=54, hidden=1920, heads=16, length=1024, precision="fp16", global_batch=16, data=16)
    assert not fits(large, find_device("A100-SXM4-80GB"))
    assert not fits(small, find_device("V100-SXM2-32GB"))


#: Hidden size, heads and layers of the models of MosaicML's table of throughput.
MPT = {
    "125m": (768, 12, 12), "350m": (1024, 16, 24), "760m": (1536, 12, 24), "1b": (2048, 16, 24),
    "3b": (2560, 20, 32), "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 56, 48), "70b": (8192, 64, 80),
}  # fmt: skip
FSDP_RUNS = ROOT.parent / "shared" / "new" / "training" / "mpt_fsdp_a100.csv"


@pytest.mark.skipif(not FSDP_RUNS.is_file(), reason="published runs of sharded training are not beside the project")
def test_no_published_run_that_ran_is_refused() -> None:
    with FSDP_RUNS.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    verdicts = Counter[str]()
    for row in rows:
        hidden, heads, layers = MPT[row["model"]]
        ranks, micro = int(row["gpus_count"]), int(row["micro_batch_sequences"])
        sizes = {"hidden": hidden, "heads": heads, "layers": layers, "length": int(row["sequence_length_tokens"])}
        sizes |= {"data": ranks, "micro_batch": micro, "vocabulary": 50368, "precision": row["precision"]}
        sizes["global_batch"] = micro * int(row["gradient_accumulation_count"]) * ranks
        recompute = row["activation_checkpointing"] == "True"
        run = training_job(sizes | {"attention": "flash", "recompute": recompute, "sharding": 3})
        verdicts[memory_fit(job_memory(run), find_device(row["device"]))] += 1
    assert len(rows) == 139
    assert verdicts == {"fits": 110, "tight": 29}


def test_moments_in_8_bits_take_six_bytes_off_a_parameter_and_time_off_the_optimizer() -> None:
    jobs = [training_job({"precision": "bf16", "optimizer": name}) for name in ("adam", "adam8bit")]
    whole, small = map(job_memory, jobs)
    assert small.optimizer == whole.optimizer // 2 and small.gradients == whole.gradients
    assert "6 of optimizer" in parameter_bytes(jobs[1])
    moved = [each.read + each.written for job in jobs for each in job.optimizer_passes]
    assert moved == [62, 50]


def test_states_on_the_host_take_no_memory_and_more_time() -> None:
    here = training_job({"layers": 4, "precision": "bf16", "data": 8, "sharding": 2})
    there = replace(here, offload=True)
    assert job_memory(there).optimizer == 0 and job_memory(there).gradients == job_memory(here).gradients
    assert "0 of optimizer (on the host; optimizer and gradients shared by 8 ranks)" in parameter_bytes(there)
    shipped = load_parameters()
    near, far = predict_steps([here, there], find_device("A100"), fit=load_training(), parameters=shipped)
    assert far.seconds - far.parts.optimizer_s == pytest.approx(near.seconds - near.parts.optimizer_s)
    (load,) = job_loads([there], find_device("A100"), shipped)
    a_parameter = 2 * 2 / (1e9 * shipped["host_link_gbps"]) + 8e-9 * shipped["cpu_update_ns"]  # there and back; 8 ranks
    assert far.parts.optimizer_s == pytest.approx(load.stages[0].updated * a_parameter)
    assert far.parts.optimizer_s > 10 * near.parts.optimizer_s and far.watts and near.watts and far.watts < near.watts
    with pytest.raises(InvalidInputError, match="offload of optimizer 'lamb': CPUs update by adam alone"):
        replace(there, optimizer="lamb")

"""Tables of measured training steps: rows become jobs, what is not known is counted, ratios compare two steps."""

import csv
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError
from replay.costs.shipped import load_parameters
from replay.workloads import (
    ATTENTIONS,
    Layout,
    MeasuredStep,
    PredictedStep,
    TrainingFit,
    TrainingJob,
    calibrate_systems,
    find_transformer,
    job_sizes,
    load_training,
    load_transformers,
    predict_steps,
    read_training_fit,
    training_job,
    write_training_fit,
)
from replay.workloads.training_fits import DeviceFactors, is_fitted_system
from seqpoint.validation.suites import SuiteOptions, table_columns
from seqpoint.validation.training import SUITE, ratio_rows, run_groups, score_steps, training_rows
from seqpoint.validation.training_tables import (
    MeasuredSteps,
    StepScore,
    read_table,
    scale_ratios,
    table_kind,
    throughput_ratios,
)

MLPERF = {
    "round": "v5.0", "benchmark": "llama2_70b_lora", "submitter": "Someone", "system": "box", "accelerator":
    "NVIDIA H200-SXM5-141GB", "nodes_count": "1", "accelerators_count": "8", "tp_ranks": "2.0", "pp_ranks": "1.0",
    "cp_ranks": "1.0", "ep_ranks": "1.0", "dp_ranks": "4.0", "vpp_chunks": "", "micro_batch_sequences": "1.0",
    "global_batch_sequences": "8", "grad_accum_steps": "2.0", "sequence_tokens": "8192", "step_time_median_s": "3.2",
    "config_file": "config_1x8.sh",
}  # fmt: skip
NO_LAYOUT = dict.fromkeys(
    ("tp_ranks", "pp_ranks", "cp_ranks", "ep_ranks", "dp_ranks", "micro_batch_sequences", "config_file"), ""
)
SIMUMAX = {
    "model": "llama3-70b", "accelerator": "NVIDIA B200", "accelerators_count": "8", "layers_count": "12",
    "sequence_tokens": "32768", "micro_batch_sequences": "1", "micro_batches_per_step_count": "4", "tp_ranks": "2",
    "pp_ranks": "1", "cp_ranks": "4", "ep_ranks": "1", "dp_ranks": "1", "step_time_real_ms": "1758.0",
}  # fmt: skip
BERT = {
    "framework": "PyTorch", "gpu": "A100-80GB", "sequence_tokens": "512", "nodes_count": "2", "gpus_count": "16",
    "precision": "FP16-mixed", "micro_batch_sequences": "32", "grad_accum_steps": "64", "step_time_s": "9.9",
}  # fmt: skip

MPT = {
    "model": "7b", "sequence_length_tokens": "2048", "gpus_count": "16", "device": "A100-SXM4-40GB", "precision":
    "bf16", "activation_checkpointing": "True", "micro_batch_sequences": "4", "gradient_accumulation_count": "2",
    "tokens_per_second_per_gpu": "8192",
}  # fmt: skip


def read(folder: Path, *rows: Mapping[str, str]) -> MeasuredSteps:
    path = folder / "steps.csv"
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return read_table(path, table_kind(table_columns(path)))


def test_runs_of_one_configuration_are_one_step_with_the_median(tmp_path: Path) -> None:
    times = [{**MLPERF, "step_time_median_s": text} for text in ("3.1", "3.9", "3.2")]
    table = read(tmp_path, *times, {**MLPERF, "system": "other"})
    (first, second), job = table.steps, table.steps[0].job
    assert (table.kind, table.rows, table.skipped, first.seconds) == ("MLPerf", 4, {}, 3.2)
    assert (first.device, first.system, second.system) == ("H200-SXM-141GB", "Someone box", "Someone other")
    assert (job.model.name, job.adapter_rank, job.precision, job.attention) == ("llama2_70b", 16, "fp8", "flash")
    assert (job.layout.tensor, job.layout.sequence_parallel, job.micro_batches) == (2, True, 2)
    assert first.digest != second.digest


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"benchmark": "llama31_405b", "accelerators_count": "512", "nodes_count": "64", "tp_ranks": "8",
          "pp_ranks": "8", "cp_ranks": "2", "vpp_chunks": "8.0", "global_batch_sequences": "32",
          "grad_accum_steps": "8"},
         {"layout.count_ends": True, "layout.schedule": "interleaved", "layout.chunks": 8, "sharding": 1,
          "adapter_rank": 0, "layout.node_devices": 8}),
        ({"benchmark": "bert", "tp_ranks": "1", "dp_ranks": "8", "sequence_tokens": "512",
          "micro_batch_sequences": "48", "global_batch_sequences": "768", "grad_accum_steps": "1"},
         {"length": 256, "micro_batch": 96, "global_batch": 768, "optimizer": "lamb"}),
        ({**NO_LAYOUT, "grad_accum_steps": "1"}, {"layout.data": 8, "layout.tensor": 1, "micro_batch": 1}),
        ({"accelerator": "NVIDIA Blackwell GPU (GB200)", "nodes_count": "2", "config_file": "a_fp4.sh"},
         {"precision": "nvfp4", "layout.node_devices": 8}),
        ({"accelerator": "NVIDIA A100 - PCIe - 80 GB"}, {"precision": "fp16"}),
    ],
)  # fmt: skip
def test_a_row_of_mlperf_becomes_its_job(
    tmp_path: Path, change: Mapping[str, str], expected: Mapping[str, object]
) -> None:
    (step,) = read(tmp_path, {**MLPERF, **change}).steps
    for path, value in expected.items():
        found: object = step.job
        for name in path.split("."):
            found = getattr(found, name)
        assert found == value, path


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (NO_LAYOUT, "no layout, and more than one is possible"),
        ({**NO_LAYOUT, "grad_accum_steps": "1", "round": "v5.1", "accelerator": "NVIDIA B200"}, "FP8 or NVFP4"),
        ({"accelerator": "TPU-v5p"}, "no device 'TPU-v5p'"),
        ({"benchmark": "dlrm"}, "'dlrm' is no transformer"),
        ({"step_time_median_s": ""}, "no step time"),
        ({"grad_accum_steps": "1"}, "contradict the batch"),
    ],
)
def test_a_row_whose_job_is_not_known_is_counted(tmp_path: Path, change: Mapping[str, str], reason: str) -> None:
    table = read(tmp_path, MLPERF, {**MLPERF, **change})
    ((said, count),) = table.skipped.items()
    assert reason in said and (count, len(table.steps)) == (1, 1)
    noted = SUITE.score([table], SuiteOptions()).notes
    assert noted == [f"MLPerf: 1 of 2 rows skipped: {said}"]


@pytest.mark.parametrize(
    ("row", "change", "message"),
    [
        (MLPERF, {"tp_ranks": "4"}, "the layout is of 16 devices, not the 8 of accelerators_count"),
        (MLPERF, {"step_time_median_s": "-1"}, "step_time_median_s is '-1'; it must be a number above zero"),
        (MLPERF, {"micro_batch_sequences": "1.5"}, "micro_batch_sequences is '1.5'"),
        (SIMUMAX, {"tp_ranks": "3"}, "3 tensor-parallel ranks do not divide heads of 64"),
        (BERT, {"gpus_count": "x"}, "gpus_count is 'x'"),
    ],
)
def test_a_row_that_cannot_be_is_named(
    tmp_path: Path, row: Mapping[str, str], change: Mapping[str, str], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message) as error:
        read(tmp_path, row, {**row, **change})
    assert "steps.csv: row 2: " in str(error.value)


def test_rows_of_simumax_and_bert_become_their_jobs(tmp_path: Path) -> None:
    deepseek = {**SIMUMAX, "model": "deepseekv3", "tp_ranks": "1", "cp_ranks": "1", "dp_ranks": "8", "ep_ranks": "8",
                "layers_count": "4"}  # fmt: skip
    llama, experts = read(tmp_path, SIMUMAX, deepseek, {**SIMUMAX, "model": "other"}).steps
    assert (llama.job.model.layers, llama.job.layout.context, llama.seconds) == (12, 4, 1.758)
    assert (experts.job.model.layers, experts.job.model.dense_layers, experts.job.layout.expert) == (4, 1, 8)
    binned, padded, unknown = (BERT, {**BERT, "framework": "TensorFlow"}, {**BERT, "precision": "INT8"})
    table = read(tmp_path, binned, padded, unknown)
    assert [step.job.length for step in table.steps] == [288, 512]
    assert table.steps[0].job.layout.topology("data").nodes == 2
    assert table.skipped == {"precision 'INT8' is none that is known here": 1}
    table = read(tmp_path, MPT, {**MPT, "model": "8b"})
    (fsdp,), job = table.steps, table.steps[0].job
    assert (job.sharding, job.recompute, job.attention, job.global_batch, job.layout.data) == (
        3,
        True,
        "flash1",
        128,
        16,
    )
    assert (fsdp.seconds, table.skipped) == (2.0, {"model '8b' in 'bf16' is none that is known here": 1})
    assert table_kind(["system", "device"]) == ""


def _score(seconds: float, predicted: float, devices: int, **changes: object) -> StepScore:
    job = training_job({"data": devices, "global_batch": 8 * devices, "micro_batch": 8, "length": 128, **changes})
    step = MeasuredStep(job, seconds, "row", "A100-SXM4-80GB", "Owner system", "run")
    return StepScore(f"{devices} devices", step, "fitted", predicted, predicted / 2, predicted * 2)


def test_ratios_compare_speeds_of_steps_that_differ_in_one_thing() -> None:
    few, many = _score(2.0, 2.0, 2), _score(2.0, 2.5, 8)
    (ratio,) = scale_ratios([many, few])
    assert (ratio.measured, ratio.predicted) == (4.0, pytest.approx(3.2)) and ratio.error == pytest.approx(0.2)
    (row,) = ratio_rows([ratio], "MLPerf")
    assert row.error == pytest.approx(0.2) and row.met is False
    assert scale_ratios([few, replace(few)]) == [] and ratio_rows([replace(ratio, fitted=True)], "MLPerf") == []
    other, longer, both = _score(1.0, 1.0, 2, precision="bf16"), _score(3.0, 3.0, 8, length=512), _score(
        1.0, 1.0, 8, precision="bf16")  # fmt: skip
    assert [each.kind for each in throughput_ratios([few, many, other, longer, both])] == [
        "devices", "precision", "phase", "phase", "precision", "devices"]  # fmt: skip


def test_errors_of_fitted_steps_are_in_no_figure_that_has_a_limit() -> None:
    far, near = replace(_score(1.0, 2.0, 2), fitted=True), _score(1.0, 1.1, 4)
    *_, figure = training_rows([far, near], "MLPerf")
    assert figure.error == pytest.approx(0.1) and figure.met
    assert [row.limit for row in training_rows([far, near], "BERT")] == [None, None]
    assert set(run_groups([near])) == {"run", "A100-SXM4-80GB", "fp16"}


def _step(job: TrainingJob, device: str = "H100-SXM5-80GB") -> PredictedStep:
    return predict_steps([job], find_device(device), fit=load_training(), parameters=load_parameters())[0]


FLASH = training_job({"model": "llama31_8b", "layers": 4, "length": 4096, "global_batch": 1, "micro_batch": 1,
                      "attention": "flash", "precision": "bf16"})  # fmt: skip


def test_devices_differ_by_factors_and_others_take_those_of_the_nearest() -> None:
    fit, h100, pcie, mi210 = load_training(), *map(find_device, ("H100-SXM5-80GB", "H100-PCIE-80GB", "MI210"))
    own = fit.factors_of(h100)
    assert own == fit.factors["H100-SXM5-80GB"]
    # 0.6 TFLOP a joule are nearer to the 0.8 of an A100 than to the 1.4 of an H100 and the 2.3 of a B200.
    far = DeviceFactors(fit.factors["A100-SXM4-80GB"].products, fit.factors[""].links, fit.factors[""].narrow)
    assert fit.factors_of(mi210) == far != fit.factors[""]
    assert replace(fit, factors={}).factors_of(mi210) == DeviceFactors()
    assert fit.factors_of(replace(mi210, figures={})) == fit.factors[""]
    hopper = [fit.factors[name].products for name in ("H100-SXM5-80GB", "H200-SXM-141GB")]
    assert fit.factors_of(pcie).products == pytest.approx(np.sqrt(np.prod(hopper)))
    costs = {pr: fit.costs_of(replace(FLASH, precision=pr), h100) for pr in ("bf16", "fp8")}
    assert costs["bf16"].products == pytest.approx(fit.costs.products * own.products)
    assert costs["fp8"].products == pytest.approx(costs["bf16"].products * own.narrow)
    assert costs["fp8"].links == costs["bf16"].links == pytest.approx(fit.costs.links * own.links)
    step, far = _step(FLASH), _step(FLASH, "MI210")
    assert (step.basis, far.basis) == ("fitted", "carried") and far.high_s / far.low_s > step.high_s / step.low_s


@pytest.mark.parametrize("device", ["A100-SXM4-80GB", "H100-SXM5-80GB", "B200-SXM-192GB", "MI300X", "L40S"])
@pytest.mark.parametrize("layout", [{}, {"tensor": 4, "sequence_parallel": True}, {"tensor": 2, "context": 2}])
@pytest.mark.parametrize("recompute", [False, True])
def test_no_option_makes_a_step_slower_that_takes_work_away(
    device: str, layout: Mapping[str, int], recompute: bool
) -> None:
    sizes = job_sizes(replace(FLASH, recompute=recompute)) | layout
    attention = {name: _step(training_job(sizes | {"attention": name}), device).seconds for name in ATTENTIONS}
    assert attention["flash"] < attention["flash1"] and attention["flash"] < attention["plain"]
    known = ["fp32", "tf32", "bf16"] if device != "MI300X" else ["fp32", "bf16"]
    known += ["fp8"] if "fp8_tflops" in find_device(device).figures else []
    known += ["nvfp4"] if device.startswith("B200") else []
    by_precision = [
        _step(training_job(sizes | {"precision": name, "attention": "plain"}), device).seconds for name in known
    ]
    assert by_precision == sorted(by_precision, reverse=True), dict(zip(known, by_precision, strict=True))


def test_graphs_take_the_host_from_a_step_and_leave_its_kernels() -> None:
    small = training_job({"hidden": 512, "heads": 8, "length": 128, "global_batch": 4, "micro_batch": 1})
    called, held = _step(small).parts, _step(replace(small, cuda_graphs=True)).parts
    assert held.compute_s == called.compute_s and held.total_s < called.total_s
    assert held.host_s == pytest.approx(load_training().costs.step_s) and called.host_s > 5 * held.host_s


def test_adapters_take_the_gradients_of_weights_from_a_step() -> None:
    model = replace(find_transformer("llama2_70b", load_transformers()), layers=4)
    job = TrainingJob(model, 4096, 8, 1, Layout(data=8), attention="flash", precision="bf16")
    whole, frozen, larger = predict_steps(
        [job, replace(job, adapter_rank=16), replace(job, adapter_rank=64)],
        find_device("H100-SXM5-80GB"), fit=load_training(), parameters=load_parameters(),
    )  # fmt: skip
    # A forward product, and of two backward one that is left.
    assert 0.6 < frozen.parts.compute_s / whole.parts.compute_s < 0.75
    assert frozen.parts.data_s < larger.parts.data_s < whole.parts.data_s / 20


def _known(fit: TrainingFit) -> list[list[MeasuredStep]]:
    """Two tables of steps, whose times are what costs predict: of several systems, and of one device."""
    model = replace(find_transformer("llama31_8b", load_transformers()), layers=2)
    jobs = [
        TrainingJob(model, length, 8 * tensor, micro, Layout(tensor, sequence_parallel=tensor > 1), precision=precision,
                    attention="flash")
        for length in (2048, 4096) for tensor in (1, 4) for micro in (1, 4) for precision in ("bf16", "fp8")
    ]  # fmt: skip
    steps = {
        device: predict_steps(jobs, find_device(device), fit=fit, parameters=load_parameters())
        for device in ("H100-SXM5-80GB", "H200-SXM-141GB")
    }
    several = [
        MeasuredStep(step.job, step.seconds, "row", device, f"system {system}", "run")
        for system in range(3)
        for device, predicted in steps.items()
        for step in predicted
    ]
    return [
        several,
        [MeasuredStep(step.job, step.seconds, "row", "H100-SXM5-80GB") for step in steps["H100-SXM5-80GB"]],
    ]


def test_half_of_the_systems_give_the_costs_of_all(tmp_path: Path) -> None:
    factors = {"H100-SXM5-80GB": DeviceFactors(1.1, 0.9, 1.05), "H200-SXM-141GB": DeviceFactors(1.3, 1.0, 1.05)}
    known = replace(load_training(), factors=factors)
    tables = _known(known)
    fit = calibrate_systems(tables, parameters=load_parameters())
    assert len(fit.digests) == sum(is_fitted_system(step.system) for step in tables[0]) + len(tables[1]) == 80
    rest = [score for score in score_steps(tables[0], None, fit, load_parameters()) if not score.fitted]
    assert len(rest) == 32 and max(score.error for score in rest) < 0.03
    ratio = fit.factors["H200-SXM-141GB"].products / fit.factors["H100-SXM5-80GB"].products
    assert ratio == pytest.approx(1.3 / 1.1, rel=0.03) and (fit.device, fit.spreads) == ("H100-SXM5-80GB", {})
    path = tmp_path / "mine.json"
    write_training_fit(path, replace(fit, spreads={"H100-SXM5-80GB": 0.123456}))
    again = read_training_fit(path)
    assert again.others == ("H200-SXM-141GB",) and again.spreads == {"H100-SXM5-80GB": 0.1235}
    assert again.factors[""].narrow == pytest.approx(fit.factors[""].narrow, rel=1e-4)
    path.write_text(path.read_text().replace('"H200-SXM-141GB": {', '"Z80": {'))
    with pytest.raises(InvalidInputError, match=r"mine\.json: not what .*no device is called 'Z80'"):
        read_training_fit(path)
    with pytest.raises(InvalidInputError, match="half of the systems have 3 cases; at least 8 are needed"):
        calibrate_systems([tables[1][:3]], parameters=load_parameters())


ROOT = Path(__file__).parents[1]
DATA, NEW = (ROOT.parent / "shared" / name / "training" for name in ("data", "new"))
TABLE = {
    row["case"]: row for row in csv.DictReader((ROOT / "tests/accuracy/training_steps.csv").read_text().splitlines())
}
LIMITS = {
    "MLPerf: left out": ("median", 10), "MLPerf: ratio of scale": ("median", 8), "SimuMax: left out": ("mean", 3.5),
    "MPT: left out": ("median", 12), "MPT: MPT of 65536 tokens": ("median", 12),
    "BERT: ratio of precision": ("median", 15), "BERT: ratio of phase": ("median", 15),
    "BERT: ratio of devices": ("median", 15),
}  # fmt: skip
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no measured training steps at {DATA}")


@pytest.mark.parametrize("case", LIMITS)
def test_the_table_meets_its_limits(case: str) -> None:
    column, limit = LIMITS[case]
    assert float(TABLE[case][column]) <= limit


@needs_data
def test_a_part_of_the_table_is_current_and_the_costs_are_of_the_systems_that_a_hash_chooses() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks" / "jobs"))
    from accuracy_of_steps import FITTED, read_tables, table_of_scores

    subset = {"SimuMax": "deepseekv3", "MLPerf": "llama31_8b v5.1", "BERT": "PyTorch", "MPT": "MPT of 8192 tokens"}
    for table in (*read_tables(DATA), *read_tables(NEW)):
        name = subset[table.kind]
        scores = score_steps([step for step in table.steps if step.run == name], None, None, load_parameters())
        found = next(row for row in table_of_scores(table.kind, scores) if row["case"] == f"{table.kind}: {name}")
        for column, most in (("n", 0), ("median", 0.2), ("mean", 0.2), ("covered", 1)):
            assert float(found[column]) == pytest.approx(float(TABLE[found["case"]][column]), abs=most), (name, column)
        chosen = {step.digest for step in table.steps if is_fitted_system(step.system) and table.kind in FITTED}
        assert chosen == {step.digest for step in table.steps} & set(load_training().digests)


@needs_data
def test_the_shipped_costs_are_what_calibrating_gives_and_steps_left_out_change_none() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks" / "jobs"))
    from accuracy_of_steps import fitted_tables

    shipped, tables = load_training(), fitted_tables(DATA)
    spoiled = [
        [step if step.digest in shipped.digests else replace(step, seconds=2 * step.seconds) for step in table]
        for table in tables
    ]
    again = calibrate_systems(spoiled, parameters=load_parameters(), start=shipped, intervals=False)
    assert (again.digests, again.recompute, again.devices) == (shipped.digests, shipped.recompute, shipped.devices)
    assert again.factors.keys() == shipped.factors.keys()
    steps = [step for table in tables for step in table[::8] if step.digest in shipped.digests]
    ours, theirs = (
        np.array([one.seconds for one in score_steps(steps, None, fit, load_parameters())]) for fit in (again, shipped)
    )
    assert np.abs(ours / theirs - 1).max() < 0.01

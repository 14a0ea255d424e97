"""The command `scaling`: a job, or a trace, at other sizes, on more GPUs and with faster compute."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import seqpoint as sp
from profilers.devices import find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.trace import Trace
from profilers.trace.store import save_trace
from replay.studies.comp_vs_comm import TransformerLayer, evolved_share, layer_times_at, layers_trace
from replay.workloads import TrainingJob, job_memory, training_job
from seqpoint.cli import cli
from seqpoint.job_scaling import Scaling, ScenarioGrid, edited_job, scaling, scenario_text, what_if_of

_SIZES = {"layers": 1, "hidden": 256, "heads": 4, "vocabulary": 512, "length": 128, "global_batch": 4, "tensor": 2}


@pytest.fixture(scope="module")
def job() -> TrainingJob:
    return training_job({**_SIZES, "micro_batch": 2})


@pytest.fixture(scope="module")
def scaled(job: TrainingJob) -> Scaling:
    return scaling(job, {"hidden": [256, 1024], "gpus": [2, 4], "compute": [1, 4]})


@pytest.fixture(scope="module")
def layers() -> Trace:
    """Two layers whose products and all-reduces take constant rates."""
    return layers_trace(layer_times_at(TransformerLayer(1024, 512, 1, 4), 1e14, 5e10), find_device("MI210"), 2)


@pytest.fixture(scope="module")
def synthetic(job: TrainingJob) -> Trace:
    return sp.synthesize(job, "A100-SXM4-80GB")


def test_a_grid_has_all_combinations_and_refuses_what_is_no_scenario() -> None:
    grid = ScenarioGrid({"compute": [1, 2], "gpus": [8, 64], "hidden": [512]})
    assert grid.names == ("hidden", "gpus", "compute")
    assert [scenario_text(each) for each in grid.scenarios[:2]] == [
        "hidden 512, GPUs 8, compute 1x", "hidden 512, GPUs 8, compute 2x",
    ]  # fmt: skip
    for axes, message in [
        ({"colour": [1]}, "no axis 'colour'; there are hidden, layers,"),
        ({"hidden": [0.5]}, "hidden is 0.5; it must be a whole number"),
        ({"compute": [0]}, "compute 0 times as fast"),
        ({"hidden": []}, "axis hidden has no value"),
        ({"hidden": range(1, 1002)}, "1,001 scenarios; at most 1,000"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            ScenarioGrid(axes)


def test_a_scenario_edits_the_job_and_adds_gpus_as_replicas(job: TrainingJob) -> None:
    edited = edited_job(job, {"hidden": 512, "gpus": 8, "compute": 2})
    assert (edited.model.hidden, edited.layout.tensor, edited.layout.data) == (512, 2, 4)
    assert edited.micro_batches == job.micro_batches
    with pytest.raises(InvalidInputError, match="7 GPUs; a replica takes 2, so give a multiple"):
        edited_job(job, {"gpus": 7})


def test_faster_compute_leaves_communication_and_shrinks_the_rest(scaled: Scaling) -> None:
    rows = {tuple(row.scenario.values()): row for row in scaled.applied}
    slow, fast = rows[1024, 2, 1], rows[1024, 2, 4]
    assert fast.exposed_ns == pytest.approx(slow.exposed_ns, rel=1e-6)
    assert fast.compute_ns == pytest.approx(slow.compute_ns / 4, rel=1e-3)
    assert rows[1024, 4, 1].gpus == 4
    assert rows[1024, 4, 1].exposed_ns > slow.exposed_ns  # gradients of two replicas
    assert slow.share < fast.share < 1
    assert slow.fits
    assert slow.memory_bytes == fast.memory_bytes > rows[256, 2, 1].memory_bytes > 0
    assert slow.compute_ns + slow.exposed_ns + slow.idle_ns == pytest.approx(slow.step_ns)


def test_what_is_not_possible_is_a_row_with_its_reason_and_an_error_if_nothing_is(
    job: TrainingJob,
) -> None:
    mixed = scaling(job, {"tensor_parallel": [2, 3]})
    reason = "3 tensor-parallel ranks do not divide heads of 4; 1, 2 or 4 ranks do"
    assert [row.reason for row in mixed.rows] == ["", reason]
    assert mixed.rows[1].to_dict()["step_ns"] is None
    assert mixed.refused() == [("tensor parallel 3", reason)]
    with pytest.raises(InvalidInputError, match="3 tensor-parallel ranks"):
        scaling(job, {"tensor_parallel": [3]})


def test_a_trace_with_faster_compute_follows_the_closed_form(layers: Trace) -> None:
    one, four = scaling(layers, {"compute": [1, 4]}).rows
    busy = one.compute_ns + one.exposed_ns
    assert four.exposed_ns / (four.compute_ns + four.exposed_ns) > one.exposed_ns / busy
    serial = layer_times_at(TransformerLayer(1024, 512, 1, 4), 1e14, 5e10)
    serial = layers_trace(type(serial)(serial.forward, serial.backward, 0.0, serial.ranks), find_device("MI210"))
    shares = [row.exposed_ns / (row.compute_ns + row.exposed_ns) for row in scaling(serial, {"compute": [1, 4]}).rows]
    assert shares[1] == pytest.approx(evolved_share(shares[0], 4), rel=1e-4)


def test_a_trace_of_a_job_scales_as_the_job_does(job: TrainingJob, synthetic: Trace) -> None:
    """The trace of a predicted step, with another hidden size, takes as long as the prediction of that size."""
    axes = {"hidden": [256, 512], "gpus": [2]}
    for traced, predicted in zip(scaling(synthetic, axes).rows, scaling(job, axes).rows, strict=True):
        assert traced.step_ns == pytest.approx(predicted.step_ns, rel=0.02)
        assert traced.gpus == predicted.gpus == 2
        assert traced.tokens == predicted.tokens == 4 * 128
        assert traced.is_baseline == (traced.scenario["hidden"] == 256)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_the_batch_of_a_trace_does_not_grow_with_its_steps(job: TrainingJob, steps: int) -> None:
    scaled = scaling(sp.synthesize(job, "A100-SXM4-80GB", steps=steps), {"compute": [1]})
    assert scaled.rows[0].global_batch == _SIZES["global_batch"]


def test_a_wait_for_other_stages_is_the_bubble_and_no_communication() -> None:
    """With 1F1B, p alike stages wait (p - 1) (f + b): f + b is the time that one more micro-batch takes."""
    sizes = {"layers": 4, "heads": 32, "hidden": 4096, "vocabulary": 512, "micro_batch": 2, "pipeline": 4}
    few, many = (scaling(training_job({**sizes, "global_batch": n}), {"compute": [1]}).rows[0] for n in (8, 16))
    of_micro_batch = (many.step_ns - few.step_ns) / 4
    assert few.bubble_ns == pytest.approx(3 * of_micro_batch, rel=0.03)
    assert many.bubble_ns == pytest.approx(3 * of_micro_batch, rel=0.03)
    assert many.share < 0.01
    assert many.compute_ns + many.exposed_ns + many.bubble_ns + many.idle_ns == pytest.approx(many.step_ns)


def test_a_trace_has_its_baseline_its_sizes_and_the_gpus_of_each_split(synthetic: Trace) -> None:
    scaled = scaling(synthetic, {"tensor_parallel": [4], "gpus": [8], "pipeline_parallel": [1]})
    before, after = scaled.rows
    assert before.is_baseline
    assert dict(before.scenario) == {"tensor_parallel": 2, "pipeline_parallel": 1, "gpus": 2}
    assert (before.gpus, before.global_batch) == (2, 4)
    assert (after.gpus, after.global_batch, after.tokens) == (8, 8, 8 * 128)
    assert "before scaling: 1 layers of 256 on a rank, 128 tokens, global batch: 4, GPUs: 2" in scaled.remarks
    assert any("added beside the backward pass" in note for note in scaled.remarks)
    with pytest.raises(InvalidInputError, match="6 GPUs; a replica takes 4"):
        scaling(synthetic, {"tensor_parallel": [4], "gpus": [6]})


def test_a_stage_of_a_trace_waits_as_its_what_if_says() -> None:
    job = training_job({**_SIZES, "layers": 2, "tensor": 1, "micro_batch": 1, "hidden": 1024})
    one, two = scaling(sp.synthesize(job, "A100-SXM4-80GB"), {"pipeline_parallel": [1, 2]}).rows
    assert (one.gpus, two.gpus, one.bubble_ns) == (1, 2, 0)
    assert two.bubble_ns > 2 * two.exposed_ns > 0
    assert "bubble" in set(Scaling((one, two), ("pipeline_parallel",), "x", "").plot_times().dframe()["part"])
    assert two.compute_ns == pytest.approx(one.compute_ns / 2, rel=0.3)


def test_a_trace_that_names_its_device_takes_no_other(synthetic: Trace) -> None:
    assert scaling(synthetic, {"compute": [1]}, device="A100-SXM4-80GB").device == "A100-SXM4-80GB"
    with pytest.raises(InvalidInputError, match=r"recorded on A100-SXM4-80GB.*-w scale_device:H100-SXM5-80GB"):
        scaling(synthetic, {"compute": [1]}, device="H100-SXM5-80GB")


def test_scenarios_that_do_not_fit_are_counted_with_what_helps() -> None:
    job = training_job({"layers": 4, "hidden": 4096, "heads": 32, "micro_batch": 64, "global_batch": 64})
    scaled = scaling(job, {"micro_batch": [64]})
    assert scaled.rows[0].memory_bytes == job_memory(job).reserved
    summary = " ".join(scaled.summary())
    assert "none fits into the memory of A100-SXM4-80GB" in summary
    assert "usable memory of A100-SXM4-80GB: 84.6 GB" in summary
    assert "one of these makes it fit: recompute = true (68.4 GB), tensor = 2" in summary
    bars = scaled.plot_times().dframe()
    assert set(bars["scenario"]) == {"micro batch 64 (does not fit)"}


def test_an_interval_and_a_growing_batch_are_shown(scaled: Scaling) -> None:
    assert all(row.low_ns < row.step_ns < row.high_ns for row in scaled.rows)
    assert {row.gpus: row.global_batch for row in scaled.rows} == {2: 4, 4: 8}
    assert {"GPUs", "global batch", "low", "tokens/s per GPU", "memory GB"} <= set(scaled.tables()[0].names)
    assert "(weak scaling)" in " ".join(scaled.remarks)
    assert "after the backward pass: overlap_gradients is false" in " ".join(scaled.remarks)


def test_an_axis_on_a_trace_is_a_what_if() -> None:
    assert what_if_of({"compute": 1}) == "nothing"
    assert what_if_of({"hidden": 512, "compute": 4}) == "hidden:512+scale_kernels:kernels:0.25"
    assert what_if_of({"data_parallel": 16}) == "data_parallel:16"


def test_charts_have_a_line_for_each_combination_and_bars_that_add_up(scaled: Scaling, job: TrainingJob) -> None:
    chart = scaled.plot()
    labels = [each.label for each in chart if type(each).__name__ == "Curve"]
    assert labels == ["GPUs 2, compute 1x", "GPUs 2, compute 4x", "GPUs 4, compute 1x", "GPUs 4, compute 4x"]
    bars = scaled.plot_times().dframe()
    totals = bars.groupby("scenario")["share"].sum()
    assert totals.to_numpy() == pytest.approx(100)
    with pytest.raises(InvalidInputError, match="no axis has two possible values"):
        scaling(job, {"hidden": [256]}).plot()


def test_the_command_prints_a_table_and_stable_json(layers: Trace, tmp_path: Path) -> None:
    path = tmp_path / "layers.trace"
    save_trace(layers, path)
    run = CliRunner()
    printed = run.invoke(cli, ["scaling", str(path), "--compute", "1,2", "--json"], catch_exceptions=False)
    content = json.loads(printed.stdout)
    assert list(content) == ["of", "device", "axes", "notes", "rows"]
    assert list(content["rows"][0]) == [
        *("scenario", "baseline", "gpus", "global_batch", "applied", "reason", "step_ns", "low_ns", "high_ns"),
        *("compute_ns", "communication_ns", "exposed_ns", "hidden_ns", "bubble_ns", "idle_ns", "share"),
        *("tokens_per_gpu_s", "tokens_per_dollar", "basis", "memory_bytes", "fits", "fit"),
    ]
    assert [row["scenario"] for row in content["rows"]] == [{"compute": 1.0}, {"compute": 2.0}]
    sizes = [f"{key}={value}" for key, value in _SIZES.items()]
    arguments = [
        "scaling",
        "--tp",
        "2,3",
        *(word for size in sizes for word in ("--set", size)),
        "--set",
        "micro_batch=2",
    ]
    page = tmp_path / "scaling.html"
    shown = run.invoke(cli, [*arguments, "--plot", str(page)], catch_exceptions=False)
    assert "predicted step of gpt" in shown.stdout
    assert "3 tensor-parallel ranks do not divide" in " ".join(shown.stdout.split())
    assert page.stat().st_size > 100_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hidden", "a,b"], "'a,b' is no list of numbers such as 1,2,4"),
        (["--set", "heads"], "write KEY=VALUE"),
        (["--iteration", "1"], "no effect without TRACE"),
        (["x.trace", "--model", "gpt2"], "no effect beside TRACE"),
    ],
)
def test_options_that_cannot_have_an_effect_are_refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, ["scaling", *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_the_front_door_takes_a_job_and_paths(job: TrainingJob) -> None:
    assert sp.scaling(job, {"compute": [1]}).device == "A100-SXM4-80GB"
    with pytest.raises(NotFoundError, match=r"nowhere\.trace"):
        sp.scaling("nowhere.trace", {"compute": [1]})


def test_a_price_gives_tokens_per_dollar(job: TrainingJob) -> None:
    (plain,), (row,) = (sp.scaling(job, {"gpus": [4]}, **price).rows for price in ({}, {"price": 2.0}))
    assert plain.to_dict()["tokens_per_dollar"] is None and row.to_dict()["tokens_per_dollar"] > 0
    hours = row.step_ns / 1e9 / 3600 * row.gpus
    assert row.tokens_per_dollar == pytest.approx(row.tokens / (2.0 * hours))
    arguments = ["scaling", "--gpus", "2", *(word for name in ("layers", "hidden", "heads", "tensor", "global_batch")
                                             for word in ("--set", f"{name}={_SIZES[name]}"))]  # fmt: skip
    priced = [*arguments, "--price", "A100=2"]
    (found,) = json.loads(CliRunner().invoke(cli, [*priced, "--json"]).stdout)["rows"]
    assert f" {found['tokens_per_dollar']:,.0f} " in CliRunner().invoke(cli, priced, catch_exceptions=False).stdout
    for prices, message in ((["H100=2"], "the job is on A100-SXM4-80GB"), (["A100=2", "H100=2"], "the job is on one")):
        words = [word for price in prices for word in ("--price", price)]
        refused = CliRunner().invoke(cli, [*arguments, *words])
        assert refused.exit_code == 2 and message in " ".join(refused.stderr.split())

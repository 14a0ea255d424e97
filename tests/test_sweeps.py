"""Sweeps: every scenario has a row, a stopped sweep goes on, and one rank stands for those that do the same."""

import csv
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import Executor, Future
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from commands import Run
from traces import write_trace

import seqpoint as sp
from profilers.devices import find_device
from profilers.errors import SeqPointError
from profilers.ingest.pipeline import collect
from profilers.trace import save_trace
from replay.costs.shipped import load_parameters
from replay.projection.scenarios import fewer_micro_batches, predict_scenarios, read_plan, step_of_job
from replay.what_ifs import parse_what_if
from replay.workloads import TrainingJob, load_training, predict_steps, training_job, training_trace
from replay.workloads.training import JobTimer
from replay.workloads.training_fits import likely_faster, plan_order

A100 = find_device("A100-SXM4-80GB")
SHIPPED: dict[str, Any] = {"fit": load_training(), "parameters": load_parameters()}
TIMER = JobTimer(A100, load_parameters())
ROOT = Path(__file__).parents[1]
JOB = "[job]\nlayers = 2\nhidden = 512\nheads = 8\nvocabulary = 1024\nlength = 128\nglobal_batch = 16\n"
GRID = "[grid]\ngpus = [2, 4]\ntensor = [1, 2, 3]\nmicro_batch = [1, 2]\n"


def plan(folder: Path, text: str) -> Path:
    file = folder / "plan.toml"
    file.write_text(text)
    return file


def hidden(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if file.name.startswith("."))


@pytest.mark.parametrize(
    "what_if", ["overlap:ideal", "scale_device:H100-SXM5-80GB", "dma_collectives", "scale_kernels:gemm:0.7", "t3"]
)
def test_one_rank_for_those_that_do_the_same_takes_exactly_as_long(what_if: str) -> None:
    job = training_job({"layers": 2, "hidden": 1024, "tensor": 4, "pipeline": 2, "data": 2, "global_batch": 8,
                        "micro_batch": 1})  # fmt: skip
    change = partial(parse_what_if(what_if), parameters=load_parameters())
    one, all_ranks = (step_of_job(job, TIMER, fit=load_training(), tensor_ranks=ranks) for ranks in (1, 4))
    assert 3 * len(one.graph.tasks) < len(all_ranks.graph.tasks)
    assert one.total_ns(one.steady()) == all_ranks.total_ns(all_ranks.steady())
    assert one.total_ns(one.steady(change)) == all_ranks.total_ns(all_ranks.steady(change))


@pytest.mark.parametrize("what_if", ["nothing", "overlap:ideal", "scale_host:0.1", "scale_kernels:all:0.3"])
@pytest.mark.parametrize("pipeline", [1, 4])
def test_few_micro_batches_give_the_time_of_many(pipeline: int, what_if: str) -> None:
    job = training_job({"layers": 4, "hidden": 1024, "pipeline": pipeline, "global_batch": 12, "micro_batch": 1})
    change = partial(parse_what_if(what_if), parameters=load_parameters())

    def time_ns(of: TrainingJob) -> float:
        step = step_of_job(of, TIMER, fit=load_training())
        return step.total_ns(step.steady(change))

    few = fewer_micro_batches(job)
    assert max(each.micro_batches for each, _ in few) == pipeline + 1
    assert sum(weight * time_ns(each) for each, weight in few) == pytest.approx(time_ns(job), rel=1e-9)


@pytest.mark.parametrize(
    "layout",
    [
        {"pipeline": 2, "schedule": "interleaved", "chunks": 2},
        {"pipeline": 2, "schedule": "zero_bubble"},
        {"data": 2, "sharding": 3},
    ],
    ids=["interleaved", "zero_bubble", "sharding"],
)
def test_few_micro_batches_stand_for_many_of_each_schedule(layout: dict[str, Any]) -> None:
    sizes = {"layers": 4, "hidden": 512, "heads": 8, "length": 128, "micro_batch": 1, "global_batch": 16}
    job = training_job(sizes | layout)
    few = fewer_micro_batches(job)
    assert max(each.micro_batches for each, _ in few) < job.micro_batches
    texts = ("nothing", "overlap:ideal", "scale_links:4", "scale_kernels:gemm:0.3", "scale_host:0.1")
    changes = [partial(parse_what_if(text), parameters=load_parameters()) for text in texts]
    steps = [(step_of_job(each, TIMER, fit=load_training()), weight) for each, weight in (*few, (job, 1.0))]
    for change in changes:
        *parts, whole = [weight * step.total_ns(step.steady(change)) for step, weight in steps]
        assert sum(parts) == pytest.approx(whole, rel=1e-9)
    before, *after = predict_scenarios([(job, text) for text in texts], A100, **SHIPPED)
    assert not any(time.error for time in after)
    assert after[-1].step_s < before.step_s


def test_a_what_if_on_one_rank_replays_all_ranks() -> None:
    job = training_job({"layers": 2, "hidden": 1024, "tensor": 2, "global_batch": 4})
    texts = ["nothing", "scale_kernels:gemm,rank=1:3", "scale_kernels:gemm:3", "scale_kernels:name=none:2"]
    before, slow, all_slow, refused = predict_scenarios([(job, text) for text in texts], A100, **SHIPPED)
    assert before.step_s < slow.step_s == all_slow.step_s  # its peer waits for it
    assert before.step_s == predict_steps([job], A100, **SHIPPED)[0].seconds
    assert refused.step_s == before.step_s or refused.error


def test_rows_are_those_of_single_predictions(tmp_path: Path) -> None:
    file = plan(tmp_path, f'devices = ["MI300X", "A100-SXM4-80GB"]\n{JOB}{GRID}')
    found = sp.sweep(file).table()
    assert len(found) == 2 * 2 * 3 * 2
    row = found[(found.device == "MI300X") & (found.gpus == 4) & (found.tensor == 2) & (found.micro_batch == 2)].iloc[0]
    job = training_job({"layers": 2, "hidden": 512, "heads": 8, "vocabulary": 1024, "length": 128, "global_batch": 16,
                        "tensor": 2, "data": 2, "micro_batch": 2})  # fmt: skip
    alone = sp.predict_step(job, "MI300X")
    assert (row.step_s, row.low_s, row.high_s, row.basis) == (alone.seconds, alone.low_s, alone.high_s, alone.basis)
    assert row.tokens_per_gpu_s == pytest.approx(16 * 128 / alone.seconds / 4) and row.fits and row.memory_bytes > 0
    refused = found[found.tensor == 3]
    assert len(refused) == 8 and refused.step_s.isna().all()
    assert set(refused.error) == {f"{n} GPUs are no multiple of tensor 3 x pipeline 1 x context 1" for n in (2, 4)}
    assert list(found.what_if.unique()) == ["nothing"]


def test_hidden_sizes_keep_the_width_of_a_head(tmp_path: Path) -> None:
    made = read_plan(plan(tmp_path, f"{JOB}[grid]\nhidden = [512, 1024]\n"))
    jobs = [made.job_of(made.scenario(i)[0]) for i in range(2)]
    assert [(job.model.heads, job.model.feedforward, job.model.vocabulary) for job in jobs] == [
        (8, 2048, 1024),
        (16, 4096, 1024),
    ]


def test_several_grids_follow_each_other_and_what_ifs_change_fastest(tmp_path: Path) -> None:
    grids = "[[grid]]\ntensor = [1, 2]\n[[grid]]\ndata = [2]\nlength = [64, 32]\n"
    text = f'what_ifs = ["nothing", "overlap:ideal"]\n{JOB}{grids}'
    made = read_plan(plan(tmp_path, text))
    assert len(made) == 8
    assert [made.scenario(i) for i in (0, 1, 2, 5, 7)] == [
        ({"tensor": 1}, "A100-SXM4-80GB", "nothing"),
        ({"tensor": 1}, "A100-SXM4-80GB", "overlap:ideal"),
        ({"tensor": 2}, "A100-SXM4-80GB", "nothing"),
        ({"data": 2, "length": 64}, "A100-SXM4-80GB", "overlap:ideal"),
        ({"data": 2, "length": 32}, "A100-SXM4-80GB", "overlap:ideal"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "give a table [job] or trace"),
        (f'trace = "a.trace"\n{JOB}', "and not both"),
        (f"{JOB}hiden = 3", "job: no key is called 'hiden'; did you mean hidden"),
        (f"{JOB}[grid]\ntensors = [1]", "grid: no key is called 'tensors'; did you mean tensor"),
        (f"{JOB}[grid]\ntensor = []", "grid: tensor is a list of one value or more"),
        (f"{JOB}[grid]\ntensor = 2", "grid: tensor is a list of one value or more"),
        (f"{JOB}[grid]\ntensor = [[1]]", "grid: tensor holds a value that is no text"),
        (f"{JOB}[grid]\ntensor = [2, 2]", "grid: tensor holds a value twice"),
        (f"{JOB}[grid]\ngpus = [2]\ndata = [2]", "gpus sets the replicas"),
        (f"devices = []\n{JOB}", "devices is a list"),
        (f'devices = ["A101"]\n{JOB}', "devices: "),
        (f'what_ifs = ["overlap:never"]\n{JOB}', "what_ifs: "),
        (f"grids = 3\n{JOB}", "unknown key 'grids'"),
        (f'{JOB}[search]\nobjective = "money"', "search: objective is 'money'; it can be time or gpu_seconds"),
        (f"{JOB}[search]\nevals = 3", "search: unknown key 'evals'; the keys are objective, evaluations"),
        ("job = 3", "job: Expected `table`, got `int`"),
        (f"grid = 3\n{JOB}", "grid is a table of lists, [grid], or several tables, [[grid]]"),
        (f'{JOB}recompute = "yes"', "job: recompute is 'yes'; it is true or false"),
        (f'{JOB}[grid]\ntensor = [1, "two"]', "grid: tensor holds numbers and texts"),
        (f'{JOB}[[grid]]\ntensor = [1]\n[[grid]]\ntensor = ["a"]', "grid: tensor holds numbers and texts"),
        (f"{JOB}[grid]\ngpus = [{10**20}]", "grid: gpus holds a number above"),
        (f'devices = [""]\n{JOB}', "devices: no device is called ''"),
        (f"{JOB}[search]\n[[grid]]\ntensor = [1]\n[[grid]]\ndata = [1]", "search: it takes one table [grid]"),
        (f"{JOB}[grid]\nlayers = {list(range(1, 5001))}\nlength = {list(range(1, 5001))}", "25,000,000 scenarios"),
        ('trace = "none.trace"\n', "none.trace"),
    ],
)
def test_a_plan_that_cannot_be_names_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SeqPointError) as error:
        read_plan(plan(tmp_path, text))
    assert "plan.toml" in str(error.value) and message in str(error.value)


def test_a_sweep_in_which_all_fail_says_so_in_a_line(run: Run) -> None:
    made = plan(Path(), f"{JOB}[grid]\ntensor = [3, 5]\n")
    found = run("sweep", made, "-o", "r.parquet")
    assert found.code == 1 and found.err.count("\n") == 1
    assert "no scenario has a step time; most often: 3 tensor-parallel ranks do not divide heads" in found.err
    assert not Path("r.parquet").exists()


def test_the_command_writes_parquet_json_and_a_chart(run: Run) -> None:
    made = plan(Path(), f"{JOB}{GRID}")
    found = run("sweep", made, "-o", "r.parquet", "--html", "r.html", "--json")
    content = json.loads(found.out)
    assert content["scenarios"] == content["tried"] == 12 and content["failed"] == 4
    assert content["rows"] == pq.read_table("r.parquet").to_pylist()
    front = [(row["gpus"], row["step_s"]) for row in content["pareto"]]
    timed = [(row["gpus"], row["step_s"]) for row in content["rows"] if row["step_s"]]
    assert front == sorted(front) and all(a[1] > b[1] for a, b in pairwise(front))
    assert front[0] == min(timed) and content["best"]["step_s"] == min(step for _, step in timed)
    page = Path("r.html").read_text()
    assert "Step time against devices" in page and "(faint: each scenario; full: Pareto front)" in page
    assert hidden(Path()) == []
    shown = run("sweep", made)
    assert "12 scenarios: 8 have a step time" in shown.out and "Pareto front" in shown.out


def test_scenarios_of_a_trace_are_its_projections(tmp_path: Path) -> None:
    save_trace(collect([write_trace(tmp_path / "t.json")]), tmp_path / "t.trace")
    text = 'trace = "t.trace"\nwhat_ifs = ["nothing", "overlap:ideal"]\n[grid]\nscale_host = [0.5, 1]\n'
    found = sp.sweep(plan(tmp_path, text)).table()
    expected = sp.project(tmp_path / "t.trace", ["scale_host:0.5+overlap:ideal"], draws=8)
    row = found[(found.scale_host == 0.5) & (found.what_if == "overlap:ideal")].iloc[0]
    steps = sum(expected.chosen.weights)
    assert row.step_s == pytest.approx(expected.rows[0].projected_ns / steps / 1e9)
    assert row.low_s <= row.step_s <= row.high_s and row.basis == "projected"


def test_each_what_if_and_device_has_its_front(tmp_path: Path) -> None:
    head = 'devices = ["H100-SXM5-80GB", "A100-SXM4-80GB"]\nwhat_ifs = ["scale_kernels:all:0.5", "nothing"]\n'
    found = sp.sweep(plan(tmp_path, f"{head}{JOB}[grid]\ngpus = [1, 2]\nmicro_batch = [1, 2]\n"))
    rows, front = found.rows.to_pylist(), found.pareto()
    sides = [(row["what_if"], row["device"]) for row in front if row["gpus"] == 2]
    devices = ["H100-SXM5-80GB", "A100-SXM4-80GB"]
    assert sides == [(name, device) for name in ("nothing", "scale_kernels:all:0.5") for device in devices]
    for row in front:
        alike = [each for each in rows if all(each[name] == row[name] for name in ("what_if", "device"))]
        assert row["step_s"] == min(each["step_s"] for each in alike if each["gpus"] <= row["gpus"])
    best = found.best()
    assert best is not None and best["step_s"] == min(row["step_s"] for row in rows if row["what_if"] == "nothing")
    assert [table.title for table in found.tables()] == [
        "Pareto front of each device: fewest GPUs, shortest step",
        "Pareto front under scale_kernels:all:0.5",
    ]
    text = "\n".join(found.summary())
    assert all(f"usable memory of {device}: 84.6 GB; shortest step on {device}: " in text for device in devices)
    assert "keeps the global batch (strong scaling)" in text
    lines = [layer.label for layer in found.plot() if type(layer).__name__ == "Curve"]
    assert lines == [*devices, *(f"{device}, scale_kernels:all:0.5" for device in devices)]
    assert found.to_dict()["devices"][0]["usable_bytes"] == pytest.approx(84.6e9, rel=1e-3)


def test_a_what_if_that_changes_the_memory_has_none(tmp_path: Path) -> None:
    head = 'devices = ["MI300X"]\nwhat_ifs = ["nothing", "quantize_weights:mx9", "micro_batch:2", "scale_host:0.5"]\n'
    found = sp.sweep(plan(tmp_path, head + JOB))
    rows = {row["what_if"].split(":")[0]: row for row in found.rows.to_pylist()}
    assert [name for name, row in rows.items() if row["memory_bytes"] is None] == ["quantize_weights", "micro_batch"]
    assert [row["fits"] for row in rows.values()] == [True, None, None, True]
    assert all(row["step_s"] for row in rows.values()) and "quantize_weights" in str(found.tables()[1].title)


def test_a_sweep_in_which_nothing_fits_shows_what_is_nearest(run: Run) -> None:
    job = '[job]\nmodel = "gpt3_27"\nglobal_batch = 16\n[grid]\nmicro_batch = [1, 4]\n'
    made = plan(Path(), f'devices = ["V100-SXM2-32GB"]\n{job}')
    found = sp.sweep(made)
    near, large = found.nearest()
    assert not found.pareto() and found.best() is None
    assert 1 < near["memory_share"] == near["memory_bytes"] / near["usable_bytes"] < large["memory_share"]
    shown = run("sweep", made).out
    assert "2 scenarios do not fit into memory" in shown and "Nearest to fit: no scenario fits into memory" in shown
    smallest = f"no scenario fits: the smallest needs {near['memory_bytes'] / 1e9:.1f} GB"
    assert f"usable memory of V100-SXM2-32GB: 33.8 GB; {smallest}" in shown


def test_the_order_of_plans_is_as_sure_as_measured_plans_allow(tmp_path: Path) -> None:
    found = sp.sweep(plan(tmp_path, f"{JOB}[grid]\nmicro_batch = [1, 2, 4, 8]\n"))
    times = sorted(row["step_s"] for row in found.rows.to_pylist())
    order = found.order(found.devices[0])
    assert order == plan_order(times) and order and order.chance == likely_faster(*times[:2])
    assert f"{100 * order.chance:.0f} % sure to beat the next" in "\n".join(found.summary())
    assert found.to_dict()["devices"][0]["order"] == order._asdict()
    alone = sp.sweep(plan(tmp_path, f"{JOB}[grid]\nmicro_batch = [1]\n"))
    assert alone.order(alone.devices[0]) is None and "sure" not in "\n".join(alone.summary())
    with (ROOT / "tests" / "accuracy" / "plan_order.csv").open(encoding="utf-8") as lines:
        pairs = [row for row in csv.DictReader(lines) if row["predicted"]]
    assert len(pairs) == 6
    assert all(float(row["predicted"]) == pytest.approx(float(row["measured"]), abs=0.06) for row in pairs)


def test_prices_tell_the_plan_that_costs_least(run: Run) -> None:
    made = plan(Path(), f'devices = ["A100-SXM4-80GB", "H100-SXM5-80GB"]\n{JOB}[grid]\nmicro_batch = [2, 8]\n')
    prices = {"A100": 1.3, "H100-SXM5-80GB": 2.5}
    found = sp.sweep(made, prices=prices)
    hourly = {"A100-SXM4-80GB": 1.3, "H100-SXM5-80GB": 2.5}
    by_hand = [3600 * row["tokens_per_gpu_s"] / hourly[row["device"]] for row in found.rows.to_pylist()]
    cheapest = found.cheapest()
    assert cheapest and cheapest["tokens_per_dollar"] == pytest.approx(max(by_hand))
    assert all(row["tokens_per_dollar"] in [pytest.approx(each) for each in by_hand] for row in found.pareto())
    shown = run("sweep", made, *(f"--price={name}={price}" for name, price in prices.items())).out
    assert f"most tokens per $: {max(by_hand):,.0f} on 1 {cheapest['device']}" in shown and "tokens per $" in shown
    rows = [row for row in found.pareto() if row["tokens_per_gpu_s"]]
    assert rows and all(row["tokens_per_joule"] == row["tokens_per_gpu_s"] / row["watts"] for row in rows)
    front = found.cost_front()
    assert front and front[0]["tokens_per_dollar"] == cheapest["tokens_per_dollar"] and not sp.sweep(made).cost_front()
    # Every other plan that fits has fewer tokens/s than one of the front that is as cheap, or is one of it.
    cells = [
        row for row in found.rows.to_pylist() if row["tokens_per_s"] and row["what_if"] == "nothing" and row["fits"]
    ]
    for row in cells:
        per_dollar = 3600 * row["tokens_per_gpu_s"] / found.prices[row["device"]]
        assert any(
            each["tokens_per_dollar"] >= per_dollar * (1 - 1e-12) and each["tokens_per_s"] >= row["tokens_per_s"]
            for each in front
        )
    least = found.least_energy()
    assert least and least["tokens_per_joule"] >= max(row["tokens_per_joule"] for row in rows)
    assert sp.sweep(made).cheapest() is None and "tokens_per_dollar" not in sp.sweep(made).pareto()[0]
    refused = run("sweep", made, "--price", "H200=3")
    assert refused.code == 1 and "plan.toml: has no device H200-SXM-141GB, of which a price is given" in refused.err
    for wrong in ("H100", "H100=0", "H100=nan", "H100=1e9", "=2"):
        assert run("sweep", made, "--price", wrong).code == 2
    assert run("sweep", made, "--price", "H1000=2").code in (1, 2)


def test_a_predicted_step_has_a_price(run: Run) -> None:
    job = ("synthesize", "--layers", 2, "--tp", 2, "--dp", 2, "--device", "H100")
    priced = json.loads(run(*job, "--price", "H100=2.5", "--json").out)
    assert priced["step_dollars"] == pytest.approx(priced["iteration_s"] * 4 * 2.5 / 3600)
    tokens = priced["tokens_per_gpu_s"] * 4 * priced["iteration_s"]
    assert priced["tokens_per_dollar"] == pytest.approx(tokens / priced["step_dollars"])
    assert priced["tokens_per_joule"] == pytest.approx(tokens / priced["step_joules"])
    assert priced["step_joules"] == pytest.approx(priced["watts"] * priced["iteration_s"] * priced["devices"])
    assert f"{priced['tokens_per_dollar']:,.0f} tokens per $" in run(*job, "--price", "H100=2.5").out
    assert "step_dollars" not in json.loads(run(*job, "--json").out)
    assert run(*job, "--price", "A100=2.5").code == 2


def test_a_result_is_parquet_and_is_read_if_the_plan_is_the_same(run: Run) -> None:
    made = plan(Path(), f"{JOB}[grid]\ntensor = [1, 3]\n")
    refused = run("sweep", made, "-o", "r.csv")
    assert refused.code == 1 and refused.err.count("\n") == 1 and "a name that ends in .parquet" in refused.err
    first, again = (run("sweep", made, "-o", "r.parquet") for _ in range(2))
    assert first.out == again.out and "1 scenario has no step time: 3 tensor-parallel" in first.out
    assert "wrote r.parquet" in first.err and "r.parquet has the result of this plan already" in again.err


def test_progress_starts_before_the_first_scenario(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    sp.sweep(plan(tmp_path, f"{JOB}[grid]\ntensor = [1, 2]\n"), progress=lambda *args: told.append(args))
    assert told == [(done, 2, "scenarios") for done in (-1, 0, 1)]


def test_scenarios_of_a_traced_transformer_have_its_gpus_and_tokens(tmp_path: Path) -> None:
    job = training_job({"layers": 2, "hidden": 512, "heads": 8, "length": 128, "micro_batch": 2, "global_batch": 2})
    save_trace(training_trace(job, A100, **SHIPPED), tmp_path / "t.trace")
    grids = "[[grid]]\ntensor_parallel = [1, 2]\nmicro_batch = [2, 4]\n[[grid]]\ndata_parallel = [4]\n"
    found = sp.sweep(plan(tmp_path, f'trace = "t.trace"\n{grids}'))
    rows = found.rows.to_pylist()
    assert {row["device"] for row in rows} == {"A100-SXM4-80GB"} and not any(row["error"] for row in rows)
    assert [row["gpus"] for row in rows] == [1, 1, 2, 2, 4]
    assert [row["basis"] for row in rows] == ["measured", *["projected"] * 4]
    tokens = [row["tokens_per_s"] * row["step_s"] / 128 for row in rows]
    assert tokens == pytest.approx([2, 4, 2, 4, 8])
    assert [row["gpus"] for row in found.pareto()] == [1, 2, 4] and "most tokens/s" in found.tables()[0].title


def test_a_search_finds_the_best_of_a_grid_with_a_part_of_its_scenarios(tmp_path: Path) -> None:
    grid = "[grid]\ntensor = [1, 2, 4]\ndata = [1, 2, 4]\nmicro_batch = [1, 2, 4]\nrecompute = [false, true]\n"
    whole = sp.sweep(plan(tmp_path, f"{JOB}{grid}"))
    search = '[search]\nobjective = "gpu_seconds"\nmax_gpus = 4\nevaluations = 40\nseed = 1\n'
    made = plan(tmp_path, f"{JOB}{grid}{search}")
    found = sp.sweep(made)
    allowed = [row["gpus"] * row["step_s"] for row in whole.rows.to_pylist() if row["step_s"] and row["gpus"] <= 4]
    best = found.best()
    assert best is not None and best["gpus"] * best["step_s"] == min(allowed)
    assert len(found) == 40 < len(whole) == 54


class StoppedError(Exception):
    """Stands for a kill."""


class Counting(Executor):
    """Times chunks in this process, and is killed after some."""

    def __init__(self, most: int) -> None:
        self.most, self.done = most, 0

    def submit(self, function: Any, /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self.done == self.most:
            future.set_exception(StoppedError())
            return future
        self.done += 1
        future.set_result(function(*args, **options))
        return future


def test_a_stopped_sweep_goes_on_and_another_plan_starts_anew(tmp_path: Path) -> None:
    made, output = plan(tmp_path, f"{JOB}{GRID}"), tmp_path / "r.parquet"
    undisturbed = sp.sweep(made).rows
    with pytest.raises(StoppedError):
        sp.sweep(made, output, executor=Counting(5))
    assert hidden(tmp_path) == [".r.parquet.work"] and not output.exists()
    rest = Counting(100)
    found = sp.sweep(made, output, executor=rest)
    assert (found.resumed, rest.done) == (5, 7)
    assert pq.read_table(output).equals(undisturbed) and hidden(tmp_path) == []
    again = sp.sweep(made, output, executor=Counting(0))
    assert again.finished and again.rows.equals(undisturbed)
    output.unlink()
    with pytest.raises(StoppedError):
        sp.sweep(made, output, executor=Counting(5))
    other = sp.sweep(plan(tmp_path, f"{JOB}{GRID}".replace("[1, 2, 3]", "[1, 2]")), output)
    assert other.resumed == 0 and pq.read_table(output).num_rows == 8 and hidden(tmp_path) == []


KILLED = """
import os, signal, sys
from seqpoint.sweeps import sweep
if __name__ == "__main__":
    die = lambda done, total, what: done + 1 >= 5 and os.kill(os.getpid(), signal.SIGKILL)
    sweep(sys.argv[1], sys.argv[2], jobs=1, progress=die)
"""


def test_a_killed_sweep_gives_the_same_bytes_as_one_that_was_not(tmp_path: Path) -> None:
    made = plan(tmp_path, f"{JOB}{GRID}")
    sp.sweep(made, tmp_path / "whole.parquet")
    done = subprocess.run([sys.executable, "-c", KILLED, made, tmp_path / "r.parquet"], check=False, env={**os.environ})
    assert done.returncode == -signal.SIGKILL and not (tmp_path / "r.parquet").exists()
    assert sp.sweep(made, tmp_path / "r.parquet").resumed == 5
    assert (tmp_path / "r.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_a_cluster_that_loses_a_worker_gives_the_same_bytes(tmp_path: Path, cluster_client: Any) -> None:
    made = plan(tmp_path, f"{JOB}{GRID}")
    sp.sweep(made, tmp_path / "whole.parquet")
    killed: list[int] = []

    def kill_one(done: int, _total: int, _what: str) -> None:
        if not killed and done >= 0:
            killed.append(next(iter(cluster_client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)

    sp.sweep(made, tmp_path / "r.parquet", executor=cluster_client.get_executor(pure=False), progress=kill_one)
    assert killed
    assert (tmp_path / "r.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()

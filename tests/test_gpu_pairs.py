"""Part h of the recording on a GPU: runs before and after a change; on the CPU, tiny."""

import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

torch = pytest.importorskip("torch")

from benchmarks.gpu.__main__ import main  # noqa: E402
from benchmarks.gpu.budget import KEPT_SECONDS  # noqa: E402
from benchmarks.gpu.layout import checked  # noqa: E402
from benchmarks.gpu.pairs import steps  # noqa: E402
from benchmarks.gpu.pairs.groups import Change, Group, Run, groups  # noqa: E402
from benchmarks.gpu.pairs.loops import Images, Setting, apply, loading, prefetching, training  # noqa: E402
from benchmarks.gpu.pairs.measuring import group_steps  # noqa: E402
from benchmarks.gpu.pairs.networks import Experts, Generator, ResNet  # noqa: E402
from benchmarks.gpu.step import CUDA_FEATURES  # noqa: E402
from replay.what_ifs import parse_what_if  # noqa: E402
from seqpoint.validation.suites import validate  # noqa: E402

FACTS = {"name": "CPU", "memory_bytes": 8 << 30}
SIZES = ("tiny", "cpu", "full")


class Cpu:
    """What a step reads of a machine."""

    device = "cpu"
    features = frozenset({"profiler"})


@pytest.mark.parametrize("size", SIZES)
def test_each_change_is_between_runs_of_its_group_and_has_a_what_if(size: str) -> None:
    for group in groups(size):
        names = [run.name for run in group.runs]
        assert len(set(names)) == len(names)
        for change in group.changes:
            assert {change.before, change.after} <= set(names) and change.before != change.after
            text = change.what_if.format(host=1.5, part=0.5)
            assert text.startswith(("bound:", "predict:")) or parse_what_if(text).name


@pytest.mark.parametrize("size", SIZES)
def test_the_runs_of_a_group_fit_together_into_the_memory_of_an_h100(size: str) -> None:
    for group in groups(size):
        assert sum(run.need_bytes for run in group.runs) < 0.9 * 85.0e9, group.name


def test_a_run_of_several_groups_is_the_same_in_each() -> None:
    seen: dict[str, tuple[Any, ...]] = {}
    for group in groups("full"):
        for run in group.runs:
            facts = (run.setting, run.batch, run.sequence_length, run.need_bytes, run.needs)
            assert seen.setdefault(run.name, facts) == facts
    assert len(seen) > 40


def test_the_full_part_takes_six_minutes_at_most_and_times_nothing_behind_a_profiler() -> None:
    plan = steps(FACTS, "full")
    assert len({step.key for step in plan}) == len(plan) and {step.part for step in plan} == {"h"}
    assert sum(step.seconds for step in plan) <= 360 - KEPT_SECONDS
    profiled = ["profiler" in step.needs for step in plan if step.key != "h/memory"]
    assert profiled == sorted(profiled)
    assert [step.key for step in plan][:3] == ["h/time/recording", "h/time/spin", "h/time/data type"]
    needed = frozenset[str]().union(*(step.needs for step in plan))
    assert needed <= CUDA_FEATURES | {"profiler", "pinned", "priorities", "compiler"}


def test_a_recording_is_left_goes_on_and_is_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--output", str(tmp_path), "--device", "cpu", "--size", "tiny", "--parts", "h"]
    assert main([*command, "--minutes", "0.15"]) == 3
    assert "remain for lack of time" in capsys.readouterr().err
    assert main(command) == 0, capsys.readouterr().err
    assert (tmp_path / "runs.parquet").is_file() and (tmp_path / "pairs.parquet").is_file()
    assert "h" in capsys.readouterr().err
    result = validate("pairs", [tmp_path], {}).results["pairs"]
    gains: Any = result.details["pairs"]
    by_change = {(gain["change"], gain["case"]): gain for gain in gains}
    spin = by_change["spin", "bert_hook -> bert_spin_20us"]
    runs = pd.read_parquet(tmp_path / "runs.parquet")
    medians = runs[runs["group"] == "spin"].groupby(["run", "measure"])["duration_ns"].median()
    host, step = (medians["bert_spin_20us", name] / medians["bert_hook", name] for name in ("host", "step"))
    assert spin["what_if"] == f"scale_host:{host:.4g}" and spin["measured"] == pytest.approx(1 / step)
    # A CPU works for its host alone, so the gain is the factor's inverse.
    assert spin["predicted"] == pytest.approx(1 / host, rel=1e-3)
    assert {"bert -> bert_on", "bert -> bert_shapes", "bert -> bert_stacks"} <= {case for _, case in by_change}
    # A CPU has no kernels, so the others are refused with a reason, and not one is lost.
    assert all(gain["reason"] for gain in gains if gain["predicted"] is None)
    assert len(gains) == sum(len(group.changes) for group in groups("tiny")) - _impossible() + 3


def _impossible() -> int:
    """Return the changes that need features of a GPU."""
    runs = {run.name: run for group in groups("tiny") for run in group.runs}
    needs = [
        runs[change.before].needs | runs[change.after].needs for group in groups("tiny") for change in group.changes
    ]
    return sum(bool(each) for each in needs)


def test_the_factor_of_a_what_if_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 0

    def make(setting: Setting, _device: str) -> Any:
        def step(_: int) -> None:
            nonlocal now_ns
            now_ns += 2_000_000 if setting.dtype == "bf16" else 4_000_000

        return step

    monkeypatch.setattr(time, "perf_counter_ns", lambda: now_ns)
    runs = (Run("fast", make), Run("slow", make, Setting("fp32")))
    group = Group("sleep", runs, (Change("fast", "slow", "scale_host:{host}"),))
    (step,) = group_steps(FACTS, [group], "tiny")
    tables = checked(step.run(Cpu(), Path()))  # type: ignore[arg-type]
    (pair,) = tables["pairs"]
    assert pair["what_if"] == "scale_host:2"
    measures = {(row["run"], row["measure"]) for row in tables["runs"]}
    assert measures == {(run, measure) for run in ("fast", "slow") for measure in ("step", "host")}
    assert {row["turn"] for row in tables["runs"]} == {0, 1, 2}


def test_a_setting_changes_what_it_names_and_is_taken_back() -> None:
    before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    with apply(Setting("tf32")):
        assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before
    ones = torch.ones(4)
    with apply(Setting(spin_ns=2_000_000)):
        begin = time.perf_counter()
        for _ in range(5):
            ones.add_(1)
        assert time.perf_counter() - begin >= 0.01
    assert ones.tolist() == [6.0] * 4


@pytest.mark.parametrize("optimizer", ["for-loop", "foreach", "fused"])
def test_each_optimizer_trains_alike(optimizer: str) -> None:
    def inputs(generator: Any) -> tuple[Any, ...]:
        return torch.randn((4, 3, 28, 28), generator=generator), torch.arange(4)

    torch.manual_seed(0)
    model = ResNet((1,), 4, 4)
    first = model.loss(*inputs(torch.Generator().manual_seed(23))).item()
    step = training(lambda: model, inputs, Setting("fp32", optimizer), "cpu")
    for number in range(20):
        step(number)
    assert model.loss(*inputs(torch.Generator().manual_seed(23))).item() < first


def test_decoding_gives_what_reading_the_whole_prompt_gives() -> None:
    torch.manual_seed(0)
    model = Generator(16, 2, 2, 32, 8).eval()
    tokens = torch.randint(32, (3, 6))
    cache = model.cache(3, 6)
    with torch.no_grad():
        x = model.tokens(tokens) + model.positions.weight[:6]
        for layer, (keys, values) in zip(model.layers, cache, strict=True):
            parts = layer.projections(layer.first(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
            keys[:, :, :5], values[:, :, :5] = parts[1][:, :, :5], parts[2][:, :, :5]
            x = layer(x)
        decoded = model.decode(tokens[:, 5:], cache)[:, 0]
        assert torch.allclose(decoded, model.prefill(tokens), atol=1e-5)


def test_networks_have_the_sizes_of_their_originals() -> None:
    with torch.device("meta"):
        resnet = ResNet((3, 4, 6, 3), 64, 1000)
    assert sum(each.numel() for each in resnet.parameters()) == 25_557_032  # as torchvision's resnet50
    layer = Experts(8, 32, 4, streams=2)
    tokens = torch.randn(16, 8)
    apart = torch.cat([expert(share) for expert, share in zip(layer.experts, tokens.chunk(4), strict=True)])
    assert torch.equal(layer(tokens), apart)


@pytest.mark.parametrize("how", ["pinned", "stream", "pageable"])
def test_a_batch_that_was_copied_is_computed_on_in_the_next_step(how: str) -> None:
    torch.manual_seed(1)
    step = prefetching(16, 4, 2, how, "cpu")
    first, second, third = step(0), step(1), step(2)
    assert torch.equal(first, third) and not torch.equal(first, second)


def test_a_loader_gives_the_same_batches_from_workers_and_in_the_process() -> None:
    images = Images(8, 28)
    inside, workers = (loading(images, 4, count, "pageable", "cpu") for count in (0, 2))
    for _ in range(3):  # more than an epoch of two batches
        (a, classes), (b, _) = next(inside), next(workers)
        assert torch.equal(a, b) and a.shape == (4, 3, 28, 28) and classes.shape == (4,)
        assert float(a.abs().max()) <= 1

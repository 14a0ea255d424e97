"""Part e of the recording on a GPU: lengths, rows, traces and what a failure leaves behind; on the CPU, tiny."""

import gc
import subprocess
import sys
from collections import Counter
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.gpu import clock, tracing  # noqa: E402
from benchmarks.gpu.journal import Journal  # noqa: E402
from benchmarks.gpu.step import TABLES, Step, Tables  # noqa: E402
from benchmarks.gpu.tracing import Marked, record, trace_path  # noqa: E402
from benchmarks.gpu.training import steps  # noqa: E402
from benchmarks.gpu.training.epochs import CONFIGURATIONS, chosen, jobs  # noqa: E402
from benchmarks.gpu.training.fixed import Bert, Recommender  # noqa: E402
from benchmarks.gpu.training.sequence import Block, LanguageModel, Translation  # noqa: E402
from benchmarks.gpu.training.shapes import cases  # noqa: E402
from benchmarks.gpu.training.trainer import trainer  # noqa: E402
from profilers.ingest.pipeline import collect  # noqa: E402

FACTS = {"name": "CPU", "memory_bytes": 8 << 30, "compute_units": None}
PYTHON = {"string": str, "int64": int, "double": float}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class Cpu:
    """What a step reads of a machine."""

    device = "cpu"
    features = frozenset({"profiler", "pinned"})


def fits(table: str, rows: Any) -> None:
    """Hold rows against the columns of their table and the types of these."""
    for row in rows:
        assert list(row) == list(TABLES[table])
        for name, value in row.items():
            assert value is None or type(value) is PYTHON[TABLES[table][name]], (name, value)


def run(prefix: str, folder: Path) -> dict[str, Tables]:
    """Run the steps whose key begins so, and hold their rows against the tables."""
    found = {step.key: step.run(Cpu(), folder) for step in steps(FACTS, "tiny") if step.key.startswith(prefix)}
    assert found
    for tables in found.values():
        for table, rows in tables.items():
            assert rows and all(row["duration_ns"] > 0 for row in rows)
            fits(table, rows)
    return found


def test_an_epoch_has_every_iteration_of_every_configuration(tmp_path: Path) -> None:
    found = run("e/epoch/", tmp_path)
    for job, order, how in product(jobs("tiny"), ("sorted", "shuffled"), CONFIGURATIONS):
        rows = found[f"e/epoch/{job.model}/{how.name}-{order}"]["epochs"]
        assert [row["iteration"] for row in rows] == list(range(job.iterations))
        assert [row["sequence_length"] for row in rows] == job.epoch(order)
        assert {row["configuration"] for row in rows} == {f"{how.name}-{order}"}
    assert len(found) == 12


def test_a_step_of_every_shape_is_repeated_and_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    for key, tables in run("e/step/", tmp_path).items():
        journal.write(key, "e", 0.0, tables)
    names = ("model", "configuration", "sequence_length", "batch", "dtype")
    kept = Counter(tuple(row[name] for name in names) for row in journal.rows("steps"))
    assert len(kept) == len(cases("tiny")) and set(kept.values()) == {10}
    assert {case[0] for case in kept} == {"lenet", "dlrm", "bert"}


@pytest.mark.parametrize("size", ["tiny", "full"])
def test_lengths_are_drawn_once(size: str) -> None:
    for job, again in zip(jobs(size), jobs(size), strict=True):
        short, mixed = job.epoch("sorted"), job.epoch("shuffled")
        assert short == sorted(short) == sorted(mixed) and mixed != short and mixed == again.epoch("shuffled")
        assert len(short) == job.iterations and all(length % job.multiple == 0 for length in short)
        assert max(short) <= job.lengths[3] and len(set(short)) >= 3


def test_keys_are_unique_and_no_time_is_taken_in_the_wake_of_a_profiler() -> None:
    for size in ("tiny", "full"):
        plan = steps(FACTS, size)
        assert len({step.key for step in plan}) == len(plan) and {step.part for step in plan} == {"e"}
        profiled = ["profiler" in step.needs for step in plan]
        assert profiled == sorted(profiled) and [step.key.startswith("e/trace/") for step in plan] == profiled
    assert sum(step.seconds for step in plan) < 150


def test_the_iterations_of_a_trace_are_found_with_their_lengths(tmp_path: Path) -> None:
    run("e/trace/", tmp_path)
    for job, how in product(jobs("tiny"), CONFIGURATIONS[:2]):
        lengths = job.epoch("shuffled")
        found = collect([trace_path(tmp_path, f"{job.model}_{how.name}")]).iterations.to_pylist()
        expected = [(i, lengths[i], job.batch) for i in chosen(lengths)]
        assert [(r["iteration"], r["sequence_length"], r["batch"]) for r in found] == expected
        assert len({length for _, length, _ in expected}) == 3
    for case in (case for case in cases("tiny") if case.traced):
        trace = collect([trace_path(tmp_path, case.name)])
        assert trace.iterations["iteration"].to_pylist() == list(range(case.traced))
        assert set(trace.iterations["sequence_length"].to_pylist()) == {case.sequence_length}
        assert any(shapes and "[" in shapes for shapes in trace.ops["shapes"].to_pylist())
    assert collect([trace_path(tmp_path, "prefetch")]).iterations.num_rows == 5


def test_a_short_a_median_and_a_long_iteration_are_chosen() -> None:
    lengths = [5, *range(1, 100), 5]
    assert [lengths[i] for i in chosen(lengths)] == [5, 49, 94] and chosen([4, 4, 4]) == [0]


def step_called(key: str, facts: dict[str, Any] | None = None) -> Step:
    return next(step for step in steps(FACTS if facts is None else facts, "tiny") if step.key == key)


@pytest.mark.parametrize("key", ["e/epoch/language/base-sorted", "e/step/bert_n8_b2_fp32", "e/trace/translation/mixed"])
def test_what_does_not_fit_is_refused_before_it_is_made(key: str, tmp_path: Path) -> None:
    with pytest.raises(clock.MemoryNeededError, match=r"needs about .* GB and the device has 0\.0: left out"):
        step_called(key, FACTS | {"memory_bytes": 1000}).run(Cpu(), tmp_path)
    assert step_called(key, FACTS | {"memory_bytes": None}).run(Cpu(), tmp_path)


def test_a_trace_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_profile: object, path: str) -> None:
        Path(path).write_bytes(b"half")
        raise ValueError("no more")

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", broken)
    with pytest.raises(ValueError, match="no more"):
        step_called("e/trace/language/base").run(Cpu(), tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_iteration_that_fails_leaves_no_trace_and_no_profiler(tmp_path: Path) -> None:
    calls = iter([None, None])

    def run() -> None:
        next(calls)

    with pytest.raises(StopIteration):
        record("cpu", tmp_path, "x", [Marked(number, run) for number in range(3)])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not torch.autograd._profiler_enabled()


def test_a_trace_that_is_too_large_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "LARGEST_BYTES", 10)
    with pytest.raises(RuntimeError, match=r"x\.pt\.trace\.json\.gz would have .* more than 10: left out"):
        record("cpu", tmp_path, "x", [Marked(0, lambda: torch.ones(3).sum())])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


class Device:
    """A GPU whose clock moves on by what is launched, and the calls that were made of it."""

    def __init__(self) -> None:
        self.now_ms, self.calls = 0.0, ""

    def event(self, *, enable_timing: bool) -> "Event":
        assert enable_timing
        return Event(self)

    def launch(self, ms: float) -> None:
        self.now_ms += ms
        self.calls += "l"


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device

    def record(self) -> None:
        self.at = self.device.now_ms
        self.device.calls += "e"

    def elapsed_time(self, other: "Event") -> float:
        return other.at - self.at


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(torch.cuda, "Event", device.event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: setattr(device, "calls", device.calls + "s"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: device.launch(cycles / 2.2e6), raising=False)
    return device


def test_laps_on_a_gpu_add_up_and_wait_for_nothing_between(gpu: Device) -> None:
    assert clock.laps("cuda:0", lambda i: gpu.launch(0.5 + i), 3) == [500_000, 1_500_000, 2_500_000]
    assert gpu.calls == "se" + "le" * 3 + "s"


def test_launches_on_a_gpu_are_held_until_all_are_queued(gpu: Device) -> None:
    found = clock.repeated("cuda:0", partial(gpu.launch, 0.004), 2, least_ns=100_000)
    assert found == pytest.approx([4_000.0, 4_000.0])
    assert gpu.calls == "sleles" * 2 + ("sle" + "l" * 25 + "es") * 2
    assert len(clock.repeated("cuda:0", partial(gpu.launch, 50.0), 3, least_ns=100_000)) == 3
    assert gpu.calls.endswith("sleles" * 3)


def test_laps_on_a_cpu_are_each_calls_own() -> None:
    seen: list[int] = []
    found = clock.laps("cpu", seen.append, 4)
    assert seen == [0, 1, 2, 3] and len(found) == 4 and min(found) >= 1
    assert all(one >= 1 for one in clock.repeated("cpu", lambda: None, 2, least_ns=1000))


def test_a_decoder_sees_what_was_and_an_encoder_all() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 6, 8)
    y = x.clone()
    y[0, 5] += 1
    for causal in (True, False):
        block = Block(8, 2, 16, causal=causal)
        same = torch.allclose(block(x)[0, :5], block(y)[0, :5], atol=1e-6)
        assert same is causal


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_training_lowers_the_loss(dtype: str) -> None:
    torch.manual_seed(0)
    made = trainer(
        partial(Translation, 16, 2, 20), "cpu", dtype, optimizer=lambda m: torch.optim.Adam(m.parameters(), 0.02)
    )
    tokens = torch.randint(20, (4, 7))
    losses: list[float] = []

    def loss() -> Any:
        found = made.model.loss(tokens)
        losses.append(found.item())
        return found

    for _ in range(40):
        made.step(loss)
    assert losses[-1] < 0.5 * losses[0]
    assert all(parameter.grad is not None for parameter in made.model.parameters())


def test_the_models_have_the_sizes_of_their_originals() -> None:
    with torch.device("meta"):
        bert = Bert(1024, 24, 16, 30522, 512)
        dlrm = Recommender(16, 1000, 64, (13, 512, 256), (512, 256))
        language = LanguageModel(768, 6, 12, 16384, 768)
    # BERT-Large has 335.1 M weights without its pooler (1.05 M) and its classifier: arXiv 1810.04805 rounds to 340 M.
    encoder = sum(p.numel() for name, p in bert.named_parameters() if not name.startswith(("head", "bias")))
    assert encoder == 30522 * 1024 + 512 * 1024 + 2 * 1024 + 2 * 1024 + 24 * (12 * 1024**2 + 13 * 1024)
    assert dlrm.pairs.shape == (17 * 16 // 2,)
    assert sum(p.numel() for p in language.layers.parameters()) == 6 * (12 * 768**2 + 13 * 768)


@pytest.mark.parametrize("case", [c for c in cases("full") if c.batch >= 4096 or c.name == "bert_n512_b32_fp32"],
                         ids=lambda c: c.name)  # fmt: skip
def test_models_of_full_size_can_be_trained(case: Any) -> None:
    """Shapes alone: nothing is computed."""
    with torch.device("meta"):
        model = case.make()
    loss = model.loss(*(one.to("meta") for one in case.inputs(torch.Generator())))
    loss.backward()
    assert loss.shape == () and all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("how", CONFIGURATIONS, ids=lambda how: how.name)
@pytest.mark.parametrize("job", jobs("full"), ids=lambda job: job.model)
def test_jobs_of_full_size_can_be_trained(job: Any, how: Any) -> None:
    with torch.device("meta"):
        model = job.make(int(job.hidden * how.hidden) // 8 * 8)
        length = job.multiple if job.model == "translation" else max(job.epoch("sorted"))  # LSTMs go step by step here
        tokens = torch.zeros(job.batch, length + 1, dtype=torch.long)
    loss = model.loss(tokens)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_on_a_gpu_fp32_is_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(0))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.cudnn_sdp_enabled()
    try:
        with pytest.raises(ZeroDivisionError), clock.scratch("cuda:0", 1):
            assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32
            assert not torch.backends.cuda.cudnn_sdp_enabled() and not gc.isenabled() and len(freed) == 1
            raise ZeroDivisionError
    finally:
        torch.backends.cudnn.allow_tf32 = before[0]
        torch.backends.cuda.enable_cudnn_sdp(before[1])
    assert gc.isenabled() and len(freed) == 2


def test_pytorch_and_the_standard_library_are_enough() -> None:
    code = (
        "import sys; from benchmarks.gpu import operators, training; training.steps({}, 'full');"
        "operators.steps({}, 'full'); print([m for m in ('pyarrow', 'pandas', 'click', 'numba') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_marks_are_those_of_profile_at() -> None:
    assert Marked(3, lambda: None, 48, 8).text == "iteration sequence_length=48 batch=8"
    assert Marked(3, lambda: None).text == "iteration"

"""Part f of the recording on a GPU: operators as `seqpoint calibrate kernels` reads them; on the CPU, tiny."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from benchmarks.gpu import clock, operators  # noqa: E402
from benchmarks.gpu.launches import launches, matched  # noqa: E402
from benchmarks.gpu.operators import operands, operation, shapes, steps  # noqa: E402
from benchmarks.gpu.step import TABLES  # noqa: E402
from benchmarks.gpu.work import DTYPE_BYTES  # noqa: E402
from profilers.devices.catalogue import find_device  # noqa: E402
from replay.costs.kernels import calibrate, read_measurements  # noqa: E402
from replay.costs.kernels.measurements import KIND_OF  # noqa: E402

FACTS = {"name": "NVIDIA H200", "memory_bytes": 8 << 30, "compute_units": None}
ARROW = {"string": pa.string(), "int64": pa.int64(), "double": pa.float64()}
NAMES = ("linear", "bmm", "softmax", "ln", "elementwise")


class Cpu:
    """What a step reads of a machine."""

    device = "cpu"
    features = frozenset({"profiler"})


def written(path: Path, rows: Iterable[Any]) -> Path:
    """Write rows as the table `operators` is written."""
    schema = pa.schema([(name, ARROW[kind]) for name, kind in TABLES["operators"].items()])
    pq.write_table(pa.Table.from_pylist(list(rows), schema), path)
    return path


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("files")
    return [row for step in steps(FACTS, "tiny") for row in step.run(Cpu(), folder)["operators"]]


def test_rows_fit_the_table_and_are_read_with_kind_sizes_and_type(rows: list[Any], tmp_path: Path) -> None:
    assert all(list(row) == list(TABLES["operators"]) for row in rows)
    assert all(type(row["latency_ms"]) is float and row["latency_ms"] > 0 for row in rows)
    found = read_measurements(written(tmp_path / "operators.parquet", rows))
    assert {(one.kind, one.dtype) for one in found} == {(KIND_OF[r["op"]][0], r["dtype"]) for r in rows}
    assert {one.dtype for one in found} == set(DTYPE_BYTES) and {one.device.name for one in found} == {"H200-SXM-141GB"}
    assert sum(map(len, found)) == len(rows)
    first = next(one for one in found if (one.kind, one.dtype) == ("batched_matmul", "bf16"))
    wanted = [[r[name] for name in "BMKN"] for r in rows if (r["op"], r["dtype"]) == ("bmm", "bf16")]
    assert first.dims.tolist() == wanted


@pytest.mark.parametrize("op", ["linear", "bmm"])
def test_a_product_is_of_m_by_n_and_n_by_k(op: str) -> None:
    for shape in shapes(op, "fp32", 0, "tiny"):
        with FlopCounterMode(display=False) as counter:
            found = operation(op)(*operands(shape, "fp32", "cpu"))
        assert counter.get_total_flops() == 2 * shape.B * shape.M * shape.N * shape.K == shape.flops
        assert tuple(found.shape)[-2:] == (shape.M, shape.K) and found.numel() == shape.B * shape.M * shape.K


def test_what_an_operator_goes_through_is_what_its_model_counts() -> None:
    for name in NAMES:
        for shape in shapes(name, "bf16", 0, "tiny"):
            read = operands(shape, "bf16", "cpu")
            found = operation(shape.op)(*read)
            weights = 2 * shape.H if shape.op == "ln" else 0
            assert sum(one.numel() for one in read) + found.numel() - weights == shape.elements
            assert found.dtype == torch.bfloat16
            if KIND_OF[shape.op][0] == "elementwise":
                assert KIND_OF[shape.op][1] == len(read) + 1


def test_shapes_are_the_same_everywhere_and_bounded() -> None:
    for name in NAMES:
        for dtype, size in DTYPE_BYTES.items():
            drawn = shapes(name, dtype, 0, "full")
            assert drawn == shapes(name, dtype, 0, "full") != shapes(name, dtype, 1, "full")
            assert 30 <= len(drawn) == len(set(drawn)) <= 60
            assert max(shape.elements for shape in drawn) * size <= 4e9
            assert max(shape.flops for shape in drawn) <= (4e11 if dtype == "fp32" else 4e12)


def test_keys_are_unique() -> None:
    for size in ("tiny", "full"):
        plan = steps(FACTS, size)
        assert len({step.key for step in plan}) == len(plan) and {step.part for step in plan} == {"f"}
    assert sum(step.seconds for step in plan) < 60


def test_a_full_recording_is_enough_to_calibrate_every_kind_and_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shapes of a full recording, with times of 50 TFLOP/s and 3 TB/s in the place of measured ones."""
    monkeypatch.setattr(operators, "_time", lambda _, s, dtype: (
        3e3 + max(s.flops / 5e4, s.elements * DTYPE_BYTES[dtype] / 3e3)))  # fmt: skip
    machine = Cpu()
    machine.features = frozenset()  # type: ignore[misc]
    facts = FACTS | {"memory_bytes": None}
    full = [row for step in steps(facts, "full") for row in step.run(machine, tmp_path)["operators"]]
    found = read_measurements(written(tmp_path / "operators.parquet", full))
    assert all(len(one) >= 40 for one in found)
    assert {(one.kind, one.dtype) for one in found} == {(k, d) for k, _ in KIND_OF.values() for d in DTYPE_BYTES}
    fits = calibrate(one for one in found if one.kind in ("softmax", "elementwise")).fits
    device = find_device("NVIDIA H200").name
    assert set(fits) == {(kind, device, dtype, "") for kind in ("softmax", "elementwise") for dtype in DTYPE_BYTES}


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(clock.MemoryNeededError, match="the largest linear needs about"):
        steps(FACTS | {"memory_bytes": 10}, "tiny")[0].run(Cpu(), tmp_path)


def event(name: str, cat: str, ts: float, dur: float, **args: object) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "args": args}


def test_the_longest_kernel_launched_within_a_call_is_its_own() -> None:
    sizes = {"grid": [4, 2, 1], "block": [128, 1, 1]}
    events = [
        event("call 1", "user_annotation", 50, 20),
        event("call 0", "user_annotation", 10, 20),
        event("call 0", "gpu_user_annotation", 100, 20),
        event("cudaLaunchKernel", "cuda_runtime", 5, 2, correlation=1),  # fills operands
        event("cuLaunchKernelEx", "cuda_driver", 12, 2, correlation=2),
        event("cudaLaunchKernel", "cuda_runtime", 15, 2, correlation=3),
        event("cudaLaunchKernel", "cuda_runtime", 35, 2, correlation=4),  # between the calls
        event("cudaMemcpyAsync", "cuda_runtime", 20, 2, correlation=5),
        event("cudaMemcpyAsync", "cuda_runtime", 55, 2, correlation=6),
        event("fill", "kernel", 100, 90, correlation=1, **sizes),
        event("gemm", "kernel", 200, 9, correlation=2, **sizes),
        event("reduce", "kernel", 210, 3, correlation=3),
        event("fill", "kernel", 220, 90, correlation=4),
        event("Memcpy DtoD", "gpu_memcpy", 300, 500, correlation=5),
        event("Memcpy HtoD", "gpu_memcpy", 900, 7, correlation=6, bytes=8),
        {"ph": "M", "name": "process_name"},
    ]
    assert matched({"traceEvents": events}, 2) == [{"name": "gemm", **sizes}, {"name": "Memcpy HtoD"}]


def test_without_a_gpu_no_kernel_is_known_and_a_failure_ends_the_profiler() -> None:
    assert launches("cpu", [lambda: torch.ones(2).sum()] * 3) == [{}] * 3
    with pytest.raises(ZeroDivisionError):
        launches("cpu", [lambda: 1 // 0])
    assert not torch.autograd._profiler_enabled()


def test_a_profiler_that_fails_costs_the_names_of_kernels_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")

    monkeypatch.setattr(torch.profiler.profile, "start_trace", refused)
    rows = steps(FACTS, "tiny")[0].run(Cpu(), tmp_path)["operators"]
    assert rows and all(row["latency_ms"] > 0 and row["kernel_name"] is None for row in rows)

"""Kernels of known residency: their plan, registers by `ptxas`, results by the simulator, launches by a driver that
only keeps what it is told, and a recording of their twins on the CPU."""

import ctypes
import doctest
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.gpu import environment, occupancy, ptx_launches, residency
from benchmarks.gpu import plan as plan_module
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.occupancy import Residency, UnitLimits
from benchmarks.gpu.plan import PARTS, parts_of, plan
from benchmarks.gpu.ptx_launches import Driver, DriverError
from benchmarks.gpu.residency_kernels import FACTOR, PtxKernels, launch_of, scale, text_of
from benchmarks.gpu.sizes import SIZES
from benchmarks.gpu.work import Work, chunked, gemm, multiplied
from profilers.devices.catalogue import find_device
from replay.contention import read_contention
from replay.contention.prediction import _unit_sizes
from replay.costs.occupancy import resident_workgroups
from replay.costs.shipped import load_parameters
from replay.detailed import lower, parse_ptx, run_kernel
from seqpoint.validation.contention import predict_contention
from tests.test_gpu_harness import ABLE, UNABLE, Simulated, gpu, run_all
from tests.test_gpu_ptx import Cuda

__all__ = ["gpu"]

H100 = find_device("H100-SXM5-80GB")
WITH_PTX = {**ABLE, "features": [*ABLE["features"], "ptx"]}
SMALL = Residency(64, 32, 2048)


class Told(Simulated):
    """A simulated machine whose driver says what it was asked for."""

    features = frozenset(WITH_PTX["features"])

    def facts(self) -> dict[str, Any]:
        return dict(WITH_PTX)

    def residency_of(self, works: Sequence[Work]) -> list[dict[str, Any]]:
        return [
            {"registers": work.residency.registers, "static_shared_bytes": 0, "cluster": work.residency.cluster,
             "dynamic_shared_bytes": work.residency.shared_bytes, "resident": UnitLimits().resident(work.residency)}
            for work in works if work.residency
        ]  # fmt: skip


def planned_works() -> list[Work]:
    """Return the works of the full plan, one of each name."""
    works = {work.name: work for group in plan(WITH_PTX, "full", parts="a2").groups for work in group.works}
    return [works[name] for name in sorted(works)]


def residency_in(work: Work) -> Residency:
    assert work.residency is not None
    return work.residency


# --- the plan


def test_parts_are_told_apart_though_one_begins_with_the_name_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    assert parts_of("".join(PARTS)) == PARTS
    assert parts_of("aa2b") == ("a", "a2", "b") and parts_of("a2a") == ("a2", "a") and parts_of("ba") == ("b", "a")
    for wrong in ("", "2", "a22", "az", "a 2"):
        with pytest.raises(SystemExit, match="2"):
            main(["--parts", wrong])
        assert "give some of a, a2, b" in capsys.readouterr().err
    assert {group.part for group in plan(WITH_PTX, "full", parts="a").groups} == {"a"}
    assert {group.part for group in plan(WITH_PTX, "full", parts="a2c").groups} == {"a2", "c"}
    assert {step.part for step in plan(WITH_PTX, "full", parts="a2").steps} == {"a2", "f"}


def test_the_part_holds_every_residency_beside_copies_a_collective_and_others_within_75_seconds() -> None:
    planned = plan(WITH_PTX, "full", parts="a2")
    assert sum(step.seconds for step in planned.steps if step.part == "a2") < 75
    sides = [group.sides for group in planned.groups]
    copied = {b.blocks for a, b in (pair for pair in sides if len(pair) == 2) if b.kind == "copy_kernel"}
    assert copied == {1, 2, 4, 8, 16, 32, 64}
    beside_collective = {a.residency for a, b in (pair for pair in sides if len(pair) == 2) if b.kind == "collective"}
    shapes = {residency.residency_of(*shape, UnitLimits()) for shape in SIZES["full"].known_shapes}
    assert shapes < beside_collective and {8} == {len(group) for group in sides if len(group) != 2}
    assert {work.residency.cluster for pair in sides for work in pair if work.residency} == {1, 2, 4, 8}
    pairs = [group for group in planned.groups if len(group.sides) == 2]
    policies = {"in order", "reverse order", "at once", "priority", "priority of the first"}
    assert all({scenario.policy for scenario in group.scenarios} == policies for group in pairs)
    names = {(a.name, b.name) for a, b in (group.sides for group in pairs)}
    configured = {(a, b) for a, b in names if a.endswith("_l1") != b.endswith("_l1")}
    assert len(configured) == 3 and {(a.removesuffix("_l1"), b.removesuffix("_l1")) for a, b in configured} < names


def test_grids_are_of_so_many_waves_and_of_whole_clusters() -> None:
    limits, waves = UnitLimits(), dict[Residency, set[float]]()
    for work in planned_works():
        if work.kind == "fma":
            slots = 132 * limits.resident(residency_in(work))
            waves.setdefault(residency_in(work), set()).add(round(work.blocks / slots, 2))
            assert work.blocks % residency_in(work).cluster == 0
    found = [kinds for shape, kinds in waves.items() if shape.cluster == 1]
    assert len(found) == 11 and sum(kinds >= {0.25, 0.5, 0.97, 1.0, 1.03, 2.0} for kinds in found) == 4
    assert all(1.0 in kinds for kinds in found)


@pytest.mark.parametrize("shape", SIZES["full"].known_shapes)
def test_one_limit_of_a_unit_decides_how_many_workgroups_fit(shape: tuple[str, int]) -> None:
    limit, resident = shape
    held, limits = residency.residency_of(*shape, UnitLimits()), UnitLimits()
    assert limits.resident(held) == resident
    scarce = {"shared": "shared_bytes", "registers": "registers", "threads": "threads"}
    for name, field in scarce.items():
        more = replace(limits, **{field: 2 * getattr(limits, field)})
        assert (more.resident(held) > resident) == (name == limit)


def test_units_of_other_devices_hold_what_their_facts_say() -> None:
    a100 = UnitLimits.of({"threads_per_unit": 2048, "registers_per_unit": 65536, "shared_bytes_per_unit": 167936})
    held = [residency.residency_of("shared", resident, a100) for resident in (1, 2, 3, 4)]
    assert [a100.resident(each) for each in held] == [1, 2, 3, 4] and held[0].shared_bytes == 163 << 10
    assert UnitLimits.of({"threads_per_unit": None}) == UnitLimits()


def test_a_device_without_the_driver_or_without_clusters_leaves_them_out_and_counts_them() -> None:
    lacking = [what for name, what in plan(UNABLE, "full", parts="a2").left_out if "fma_" in name]
    assert set(lacking) == {"ptx"} and not plan(UNABLE, "full", parts="a2").groups
    older = plan({**WITH_PTX, "architecture": "sm_80"}, "full", parts="a2")
    left_out = {name for name, what in older.left_out if what == "compute capability 9.0"}
    assert left_out and all(re.search(r"c[248] beside", name) for name in left_out)
    assert len(older.groups) + len(left_out) == len(plan(WITH_PTX, "full", parts="a2").groups)
    unknown = plan({**WITH_PTX, "architecture": "gfx942", "features": ["priorities"]}, "full", parts="a2")
    assert not unknown.groups


# --- registers and shared memory, by the compiler


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not on PATH")
def test_kernels_have_the_registers_and_the_residency_that_are_asked(tmp_path: Path) -> None:
    works = {text_of(work): work for work in planned_works()}
    assert len(works) == 11
    for text, work in works.items():
        held, file = residency_in(work), tmp_path / "kernel.ptx"
        file.write_text(text)
        command = ["ptxas", "-v", "-arch=sm_90", str(file), "-o", str(tmp_path / "kernel.cubin")]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        (registers,) = (int(found) for found in re.findall(r"Used (\d+) registers", said))
        assert -(-registers // 8) * 8 == held.registers, work.name
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said and "smem" not in said
    for work in planned_works():
        held = residency_in(work)
        theirs = resident_workgroups(H100, held.threads, registers=held.registers, lds_bytes=held.shared_bytes)
        assert theirs == UnitLimits().resident(held), work.name


# --- results, by the simulator


def simulated(work: Work, buffers: Mapping[str, np.ndarray], **options: Any) -> dict[str, np.ndarray]:
    """Return the buffers of a work after its launch."""
    launch = launch_of(work)
    arguments = [buffers[name] if isinstance(name, str) else name for name in launch.arguments]
    program = lower(parse_ptx(launch.ptx, "kernel.ptx"))
    done = run_kernel(program, launch.grid, launch.block, arguments, shared_bytes=launch.shared_bytes, **options)
    names = [(at, name) for at, name in enumerate(launch.arguments) if isinstance(name, str)]
    return {name: done.outputs[f"arg{at}"] for at, name in names}


def small_works() -> list[Work]:
    """Return the planned kernels, of two workgroups and few steps."""
    works = {text_of(work): work for work in planned_works()}.values()
    return [
        multiplied(residency_in(work), 2, 5) if work.kind == "fma"
        else chunked(work.kind, 3 * residency_in(work).chunk_bytes, 2, residency_in(work), wait_ns=2000)
        for work in works
    ]  # fmt: skip


@pytest.mark.parametrize("work", [multiplied(SMALL, 3, 20), *small_works()], ids=lambda work: work.name)
def test_kernels_compute_what_they_should(work: Work) -> None:
    values = np.random.default_rng(3).standard_normal(work.m).astype(np.float32)
    if work.kind == "fma":
        out = simulated(work, {"x": values, "out": np.zeros_like(values)})["out"]
        expected = values.astype(float) * sum(map(scale, range(work.n))) * FACTOR**work.k
        assert np.abs(out - expected).max() < 1e-6 * np.abs(expected).max()
        return
    state = np.zeros(3, np.uint32)
    found = simulated(work, {"source": values, "target": np.zeros_like(values), "state": state})
    assert np.array_equal(found["target"], np.float32(1) - values if work.kind == "update" else values)
    assert not found.get("state", state).any(), "the flag is taken back"


def test_a_collective_of_which_nobody_sets_the_flag_ends() -> None:
    work = chunked("collective", 3 * SMALL.chunk_bytes, 3, SMALL, wait_ns=1000)
    values = np.random.default_rng(3).standard_normal(work.m).astype(np.float32)
    buffers = {"source": values, "target": np.zeros_like(values), "state": np.zeros(3, np.uint32)}
    # The first workgroup sets the flag, and is not run.
    found = simulated(work, buffers, blocks=[1, 2])
    chunk = SMALL.chunk_bytes // 4
    assert found["state"].tolist() == [0, 2, 2] and np.array_equal(found["target"][chunk:], values[chunk:])


# --- launches, by a driver without a GPU


class Occupied(Cuda):
    """A driver that answers what a workgroup holds, and takes launches in clusters."""

    def __init__(self, local_bytes: int = 0) -> None:
        super().__init__()
        self.attributes[3] = local_bytes
        self.clusters: list[dict[str, Any]] = []

    def on_cuOccupancyMaxActiveBlocksPerMultiprocessor(self, found: Any, _: Any, threads: Any, shared: Any) -> None:  # noqa: N802
        found._obj.value = UnitLimits().resident(Residency(threads.value, self.attributes[4], shared.value))

    def on_cuOccupancyMaxActiveClusters(self, found: Any, _: Any, configured: Any) -> None:  # noqa: N802
        found._obj.value = 128 // configured._obj.attributes[0].value[0]

    def on_cuLaunchKernelEx(self, configured: Any, function: Any, pointers: Any, extra: Any) -> None:  # noqa: N802
        told, attribute = configured._obj, configured._obj.attributes[0]
        assert function.value == 22 and extra is None and told.count == 1
        self.clusters.append({
            "grid": list(told.grid), "block": list(told.block), "shared": told.shared_bytes, "stream": told.stream,
            "attribute": attribute.id, "cluster": list(attribute.value)[:3],
            "given": ctypes.string_at(pointers[0], 8),
        })  # fmt: skip


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=77))


def tensors_at(**addresses: int) -> dict[str, Any]:
    return {name: SimpleNamespace(data_ptr=lambda at=address: at) for name, address in addresses.items()}


@pytest.mark.usefixtures("stream")
def test_a_launch_in_clusters_tells_the_driver_so_and_others_do_not() -> None:
    library = Occupied()
    kernels, shape = PtxKernels(Driver(library)), Residency(256, 40, 57_344)  # type: ignore[arg-type]
    run = kernels.launcher(multiplied(replace(shape, cluster=4), 128, 9), tensors_at(x=0xABCDEF, out=64))
    run()
    run()
    told = {
        "grid": [128, 1, 1], "block": [256, 1, 1], "shared": 57_344, "stream": 77, "attribute": 4,
        "cluster": [4, 1, 1], "given": (0xABCDEF).to_bytes(8, "little"),
    }  # fmt: skip
    assert library.clusters == [told, told] and not library.launched
    kernels.launcher(multiplied(shape, 132, 9), tensors_at(x=1, out=2))()
    assert library.launched[0]["geometry"] == [132, 1, 1, 256, 1, 1] and library.launched[0]["stream"] == 77
    assert library.permitted == [(8, 57_344), (9, 100)] * 2, "more than 48 KB, and all that can be shared memory"
    # Sizes that cuda.h states, without which a driver reads something else.
    assert (ctypes.sizeof(ptx_launches._Attribute), ctypes.sizeof(ptx_launches._Configuration)) == (72, 56)


@pytest.mark.usefixtures("stream")
def test_what_the_driver_says_of_a_kernel_is_what_is_written_down() -> None:
    library = Occupied()
    kernels, shape = PtxKernels(Driver(library)), Residency(256, 48, 57_344)  # type: ignore[arg-type]
    known = {"registers": 40, "static_shared_bytes": 0, "dynamic_shared_bytes": 57_344, "resident": 4, "cluster": 1}
    assert kernels.described(multiplied(shape, 132, 9)) == known, "40 registers, though 48 were asked for"
    clustered = multiplied(replace(shape, cluster=8), 128, 9)
    assert kernels.described(clustered) == known | {"cluster": 8, "clusters": 16}
    kernels.launcher(clustered, tensors_at(x=1, out=2))()
    assert library.calls.count("cuModuleLoadDataEx") == 2, "once a work: what a launch may use is kept by its kernel"
    cached = replace(multiplied(shape, 132, 9), hint="l1")
    kernels.described(cached)
    assert library.permitted[-1] == (9, 0)
    with pytest.raises(DriverError, match="16 bytes a thread do not fit into its registers"):
        PtxKernels(Driver(Occupied(local_bytes=16))).described(multiplied(shape, 132, 9))  # type: ignore[arg-type]


def test_a_gpu_has_the_kernels_if_its_driver_works_and_says_what_they_hold(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import benchmarks.gpu.gpu as module

    work, probed = multiplied(Residency(256, 48), 132, 9), list[str]()
    assert gpu.residency_of([work]) == [{}], "nothing was tried"
    monkeypatch.setattr(module, "probe", probed.append)
    monkeypatch.setattr(module, "Driver", lambda: Driver(Occupied()))
    assert "ptx" in gpu.features and probed == ["cuda:0"]
    (known, nothing) = gpu.residency_of([work, gemm(8, 8, 8)])
    assert (known["registers"], known["resident"], nothing) == (40, 6, {})


def test_a_work_of_unknown_residency_has_no_kernel_of_ours() -> None:
    with pytest.raises(ValueError, match="what its workgroups hold is not known"):
        launch_of(gemm(8, 8, 8))


# --- recordings


def test_what_a_driver_says_is_in_the_tables_and_read_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.gpu.__main__._machine", lambda options: Told())
    assert main(["--output", str(tmp_path), "--parts", "a2"]) == 0
    rows = {row["work"]: row for row in pq.read_table(tmp_path / "works.parquet").to_pylist()}
    for work in planned_works():
        row, held = rows[work.name], residency_in(work)
        assert (row["registers"], row["dynamic_shared_bytes"], row["cluster"]) == (
            held.registers, held.shared_bytes, held.cluster,
        )  # fmt: skip
        assert row["kernel"] == f"kernel of {work.kind}", "the profiler's rows leave what the driver said"
    (found,) = read_contention(tmp_path)
    task = found.works[residency_row(rows, "collective")]
    assert (task.registers, task.shared_bytes, task.resident) == (96, 103_808, 1)
    sizes = _unit_sizes(task, H100)
    assert sizes["unit_shared"] == pytest.approx((103_808 + 1024) / (228 * 1024)), "1 KB is reserved"
    assert sizes["unit_registers"] == pytest.approx(task.workgroup_size * 96 / 65_536)
    assert _unit_sizes(replace(task, workgroup_size=0), H100) == {}
    assert {s.group for s in found.scenarios} == {g.name for g in plan(WITH_PTX, "full", parts="a2").groups}


def residency_row(rows: Mapping[str, Mapping[str, Any]], kind: str) -> str:
    return next(name for name, row in rows.items() if row["kind"] == kind)


def test_works_of_other_parts_have_no_residency() -> None:
    rows = run_all(plan(WITH_PTX, "tiny", parts="aa2").steps, Told())["works"]
    known = {row["work"] for row in rows if "registers" in row}
    assert known == {row["work"] for row in rows if re.search(r"_t\d+r\d+s\d+", row["work"])}
    assert known < {row["work"] for row in rows}


def test_twins_on_the_cpu_are_recorded_left_and_gone_on_with_and_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    command = ["--device", "cpu", "--size", "tiny", "--parts", "a2", "--output", str(tmp_path)]
    assert main([*command, "--minutes", "0.085"]) == 3
    assert main(command) == 0
    assert "left_out" in (tmp_path / "environment.json").read_text()
    (take,) = environment.read_takes(tmp_path)
    assert take["sessions"][0]["parts"] == "a2" and "residency" in take["device"]["twins"]
    rows = pq.read_table(tmp_path / "works.parquet").to_pylist()
    assert {row["kind"] for row in rows} == {"fma", "update", "copy_kernel", "collective"}
    columns = ("registers", "static_shared_bytes", "dynamic_shared_bytes", "resident", "cluster", "clusters")
    assert all(row[column] is None for row in rows for column in columns)
    together = pq.read_table(tmp_path / "together.parquet").to_pylist()
    assert {row["part"] for row in together} == {"a2"}
    assert len({row["group"] for row in together}) == len(plan(take["device"], "tiny", parts="a2").groups)
    capsys.readouterr()
    assert main(command) == 0 and "take 0 is complete" in capsys.readouterr().err
    cases = predict_contention(read_contention(tmp_path), load_parameters())
    assert {case.scenario for case in cases} == {row["scenario"] for row in together}


def test_twins_do_what_the_kernels_do_and_what_does_not_is_found_out() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.gpu.cpu import Operators
    from benchmarks.gpu.kernels import Place, WrongResultError, bind

    class Wrong(Operators):
        """Operators that leave the last element as it was, or never saw the flag."""

        def launcher(self, work: Work, tensors: Mapping[str, Any]) -> Callable[[], object]:
            run, target = super().launcher(work, tensors), tensors["out" if work.kind == "fma" else "target"]

            def launch() -> None:
                last = target[-1].clone()
                run()
                if work.kind == "collective":
                    tensors["state"][2] += 1
                else:
                    target[-1] = last

            return launch

    torch.manual_seed(0)
    moved = [chunked(kind, 4 * SMALL.chunk_bytes, 3, SMALL) for kind in ("copy_kernel", "update", "collective")]
    for work in (multiplied(SMALL, 3, 700), *moved):
        bind(work, Place("cpu", 2, known=Operators())).check()
        with pytest.raises(WrongResultError, match=work.name):
            bind(work, Place("cpu", 2, known=Wrong())).check()
        with pytest.raises(ValueError, match="needs the driver's PTX compiler"):
            bind(work, Place("cpu"))


@pytest.mark.parametrize("module", [occupancy, residency, plan_module])
def test_examples_run(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted and not found.failed

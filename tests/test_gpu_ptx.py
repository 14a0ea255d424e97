"""Kernels in PTX on a GPU: plans, arguments and rows, against a driver that only keeps what it is told."""

import ctypes
import doctest
import json
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import ptx_launches
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.gates import Queue
from benchmarks.gpu.layout import checked
from benchmarks.gpu.ptx_launches import FOLDER, Driver, DriverError, Gpu, PtxPlan, marshal, measure, read_plan, steps
from benchmarks.gpu.step import TABLES
from profilers.errors import InvalidInputError

PTX = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry scale( // y = a * x (in place)
    .param .u64 .ptr .global .align 1 scale_param_0,
    .param .f32 scale_param_1,
    .param .u32 scale_param_2
)
{ ret; }
.visible .entry scaled(.param .align 8 .b8 scaled_param_0[16]) { ret; }
.visible .entry nothing() { ret; }
"""
PLAN = """
about = "Scaling"
[buffers]
x = { dtype = "f32", shape = [4, 8], fill = "normal", seed = 1 }
[[launches]]
ptx = "scale.ptx"
entry = "scale"
grid = [2, 3, 1]
block = [64, 1, 1]
shared_bytes = 512
arguments = ["x", 1.5, -1]
"""


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    (tmp_path / "scale.ptx").write_text(PTX)
    (tmp_path / "scale.toml").write_text(PLAN)
    return tmp_path / "scale.toml"


class Cuda:
    """`libcuda` without a GPU: it keeps what it is asked, and refuses the calls in `refused`."""

    def __init__(self, refused: dict[str, int] | None = None, static_bytes: int = 0) -> None:
        self.refused, self.log = refused or {}, b""
        self.attributes = {1: static_bytes, 3: 16, 4: 40}
        self.calls: list[str] = []
        self.launched: list[dict[str, Any]] = []
        self.permitted: list[tuple[int, int]] = []
        self.run: Callable[[list[bytes]], None] = lambda given: None

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name in self.refused:
                return self.refused[name]
            getattr(self, f"on_{name}", lambda *_: None)(*arguments)
            return 0

        if not name.startswith("cu"):
            raise AttributeError(name)
        return call

    def cuModuleLoadDataEx(self, module: Any, image: bytes, count: Any, options: Any, values: Any) -> int:  # noqa: N802
        self.calls.append("cuModuleLoadDataEx")
        assert image.startswith(b"\n.version") and count.value == 2 and list(options) == [5, 6]
        ctypes.memmove(values[0], self.log + b"\0", min(len(self.log) + 1, values[1]))
        module._obj.value = 11
        return self.refused.get("cuModuleLoadDataEx", 0)

    def cuGetErrorName(self, answer: Any, text: Any) -> int:  # noqa: N802
        text._obj.value = {218: b"CUDA_ERROR_INVALID_PTX", 1: b"CUDA_ERROR_INVALID_VALUE"}.get(answer.value)
        return 0

    def on_cuModuleGetFunction(self, function: Any, module: Any, entry: bytes) -> None:  # noqa: N802
        assert module.value == 11
        function._obj.value = 22
        self.entry = entry.decode()

    def on_cuFuncGetAttribute(self, value: Any, attribute: Any, function: Any) -> None:  # noqa: N802
        assert function.value == 22
        value._obj.value = self.attributes[attribute.value]

    def on_cuFuncSetAttribute(self, _function: Any, attribute: Any, value: Any) -> None:  # noqa: N802
        self.permitted.append((attribute.value, value.value))

    def on_cuLaunchKernel(self, function: Any, *rest: Any) -> None:  # noqa: N802
        *geometry, shared, stream, pointers, extra = rest
        assert function.value == 22 and extra is None
        given = [ctypes.string_at(pointer, size) for pointer, size in zip(pointers, (8, 4, 4), strict=False)]
        self.launched.append({
            "entry": self.entry, "geometry": [extent.value for extent in geometry], "shared": shared.value,
            "stream": stream.value, "given": given,
        })  # fmt: skip
        self.run(given)


class Line:
    """A timeline whose runs take 1 us more each time, and whose first attempt is always thrown away."""

    clock_mhz = 1410.04

    def __init__(self, happened: list[str]) -> None:
        self.happened, self.ns = happened, 5_000

    def run(self, queues: Sequence[Queue], before: Callable[[], object]) -> list[tuple[int, int]]:
        (queue,) = queues
        for _ in range(2):
            before()
            self.happened.append("gate")
            queue.launch(0)
        self.ns += 1_000
        return [(100, 100 + self.ns)]


def gpu_of(library: Cuda, happened: list[str]) -> Gpu:
    stream: Any = SimpleNamespace(cuda_stream=77)
    timeline: Any = Line(happened)
    return Gpu(Driver(library), timeline, stream, lambda: happened.append("flush"))


def plan_of(path: Path, **changes: str) -> PtxPlan:
    """Return the plan with lines replaced: the key's line by the value."""
    lines = [next((new for key, new in changes.items() if line.startswith(key)), line) for line in PLAN.splitlines()]
    path.write_text("\n".join(lines))
    return read_plan(path, "scale")


# --- plans


def test_a_plan_has_its_buffers_launches_and_the_types_that_the_ptx_declares(plan_file: Path) -> None:
    plan = read_plan(plan_file, "folder/scale")
    (launch,) = plan.launches
    assert (plan.name, plan.target) == ("folder/scale", 80)
    assert plan.buffers["x"].size_bytes == 128
    assert (launch.grid, launch.block, launch.shared_bytes) == ((2, 3, 1), (64, 1, 1), 512)
    assert launch.parameters == ("u64", "f32", "u32")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": "grid = [2, 3]"}, r"launches\[0\].grid: \[2, 3\] is not three whole numbers above 0"),
        ({"block": "block = 64"}, r"launches\[0\].block: 64 is not three whole numbers"),
        ({"block": ""}, r"launches\[0\]: lacks block"),
        ({"shared": "shared = 5"}, r"launches\[0\]: no key is called shared; there are ptx, entry"),
        ({"shared": "shared_bytes = -1"}, r"launches\[0\].shared_bytes: -1 is no whole number from 0"),
        ({"entry": 'entry = "scal"'}, r"scale.ptx: no entry is called 'scal'; there are scale, scaled, nothing"),
        ({"ptx": 'ptx = "other.ptx"'}, r"No such file.*other.ptx"),
        ({"x =": 'x = { dtype = "fp32", shape = [4] }'}, r"buffers.x.dtype: 'fp32' is none of f16, bf16, f32"),
        ({"x =": 'x = { dtype = "f32", shape = 4 }'}, r"buffers.x.shape: 4 is no list of whole numbers"),
        ({"x =": 'x = { dtype = "f32", shape = [4], fill = "ones" }'}, r"buffers.x.fill: 'ones' is none of zeros"),
        ({"x =": 'x = { dtype = "f32", shape = [4], file = "x.npy" }'}, r"buffers.x.file: .*x.npy does not exist"),
        ({"x =": "x = 3"}, r"buffers.x: 3 is no table"),
        ({"[[": "[other]"}, r"the plan: no key is called other; there are about, buffers, launches"),
        ({"about": "about ="}, "Invalid value"),
        ({"arg": "arguments = 5"}, r"launches\[0\].arguments: 5 is no list"),
        ({"arg": 'arguments = ["x", 1.5]'}, r"arguments: there are 2, and scale takes 3: u64, f32, u32"),
        ({"arg": 'arguments = ["y", 1.5, 1]'}, r"arguments\[0\]: no buffer is called 'y'; there are x"),
        ({"arg": 'arguments = ["x", 1.5, "x"]'}, r"arguments\[2\]: a buffer's address does not fit .* of type u32"),
        ({"arg": 'arguments = ["x", 1.5, 4294967296]'}, r"arguments\[2\]: 4294967296 does not fit .* of type u32"),
        ({"arg": 'arguments = ["x", 1.5, 2.5]'}, r"arguments\[2\]: 2.5 is no whole number, as .* of type u32 takes"),
        ({"arg": 'arguments = ["x", 1e300, 1]'}, r"arguments\[1\]: float too large"),
        ({"arg": 'arguments = ["x", true, 1]'}, r"arguments\[1\]: True cannot be given for .* of type f32"),
        ({"entry": 'entry = "scaled"', "arg": "arguments = [1]"}, r"1 cannot be given for .* of type b8\[16\]"),
    ],
)
def test_what_is_wrong_with_a_plan_is_said_with_its_file_and_place(
    plan_file: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message) as raised:
        plan_of(plan_file, **changes)
    assert str(raised.value).startswith(f"{plan_file}: ")


def test_an_entry_without_parameters_takes_no_arguments(plan_file: Path) -> None:
    (launch,) = plan_of(plan_file, entry='entry = "nothing"', arg="").launches
    assert marshal(launch, {}) == []


@pytest.mark.parametrize(
    ("kind", "number", "content"),
    [
        ("u32", 7, struct.pack("=I", 7)), ("u32", -7, struct.pack("=i", -7)), ("s64", -7, struct.pack("=q", -7)),
        ("u64", 0, bytes(8)), ("f32", 2, struct.pack("=f", 2.0)), ("f64", 0.1, struct.pack("=d", 0.1)),
        ("f16", 0.5, struct.pack("=e", 0.5)), ("b32", 1.5, struct.pack("=f", 1.5)),
        ("b32", 1, struct.pack("=I", 1)), ("u8", 255, b"\xff"), ("b16", 0x3F80, struct.pack("=H", 0x3F80)),
    ],
)  # fmt: skip
def test_a_number_has_the_bytes_of_its_parameter(kind: str, number: float, content: bytes) -> None:
    launch = ptx_launches.Launch("", "f", (1, 1, 1), (1, 1, 1), 0, (number,), (kind,))
    assert marshal(launch, {}) == [content]


def test_shipped_plans_match_their_ptx() -> None:
    found = steps({"architecture": "sm_90", "name": "simulated"}, "full")
    assert {"g/empty", "g/triton/softmax", "g/triton/matmul_fp16", "g/triton/matmul_bf16"} <= {s.key for s in found}
    for path in FOLDER.rglob("*.toml"):
        for launch in read_plan(path, path.stem).launches:
            required = launch.ptx.split(f".entry {launch.entry}", 1)[1].split("{", 1)[0].partition(".reqntid")[2]
            extents = [int(extent) for extent in required.split()[0].split(",")] if required else []
            assert list(launch.block[: len(extents)]) == extents
            assert not re.search(r"/(root|tmp|work|home)/|^\s*\.(loc|file)\s", launch.ptx, re.MULTILINE)


# --- steps


def test_a_plan_needs_the_driver_and_a_device_that_is_new_enough(plan_file: Path) -> None:
    def needs(architecture: str) -> set[str]:
        (step,) = (s for s in steps({"architecture": architecture}, "tiny", plan_file.parent) if s.key == "g/scale")
        return set(step.needs)

    assert needs("sm_90") == needs("sm_80") == needs("x86_64") == {"ptx"}
    assert needs("sm_75") == {"ptx", "compute capability 8.0"}


def test_a_folder_without_plans_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"holds no plan of launches \(\*.toml\); give another folder by --ptx"):
        steps({}, "tiny", tmp_path)


# --- the driver


def test_rows_are_those_of_the_table_and_each_state_of_the_caches_is_made_before_each_attempt(plan_file: Path) -> None:
    library, happened = Cuda(), list[str]()
    rows = measure(read_plan(plan_file, "scale"), gpu_of(library, happened), {"x": 0xABCDEF0123}, 2)
    checked({"ptx": rows})
    assert set(TABLES["ptx"]) - set(rows[0]) == {"device", "compute_capability", "sm_clock_mhz"}
    assert [(row["cache"], row["repetition"], row["duration_ns"]) for row in rows] == [
        ("cold", 0, 7_000), ("cold", 1, 8_000), ("warm", 0, 10_000), ("warm", 1, 11_000),
    ]  # fmt: skip
    assert {(row["registers"], row["local_bytes"], row["spin_clock_mhz"]) for row in rows} == {(40, 16, 1410.0)}
    (first, *_) = rows
    assert [first[f"grid_{axis}"] for axis in "xyz"] == [2, 3, 1] and first["block_x"] == 64
    # Three cold and three warm runs of two attempts: a flush, or an untimed launch, before each.
    assert happened == ["flush", "gate"] * 6 + ["gate"] * 6
    assert len(library.launched) == 6 + 12 and library.calls[-1] == "cuModuleUnload"


def test_a_launch_is_told_its_geometry_stream_and_arguments(plan_file: Path) -> None:
    library = Cuda()
    measure(read_plan(plan_file, "scale"), gpu_of(library, []), {"x": 0xABCDEF0123}, 1)
    assert all(launched == library.launched[0] for launched in library.launched)
    assert library.launched[0] == {
        "entry": "scale", "geometry": [2, 3, 1, 64, 1, 1], "shared": 512, "stream": 77,
        "given": [struct.pack("=Q", 0xABCDEF0123), struct.pack("=f", 1.5), struct.pack("=i", -1)],
    }  # fmt: skip
    assert not library.permitted, "512 bytes need no permission"


@pytest.mark.parametrize(("dynamic", "static", "permitted"), [(48 << 10, 0, 0), (48 << 10, 4, 1), (64 << 10, 0, 1)])
def test_more_than_48_kb_of_shared_memory_is_permitted_first(
    plan_file: Path, dynamic: int, static: int, permitted: int
) -> None:
    library = Cuda(static_bytes=static)
    rows = measure(plan_of(plan_file, shared=f"shared_bytes = {dynamic}"), gpu_of(library, []), {"x": 64}, 1)
    assert library.permitted == [(8, dynamic)] * permitted
    assert {(row["static_shared_bytes"], row["dynamic_shared_bytes"]) for row in rows} == {(static, dynamic)}


def test_launches_of_one_ptx_are_compiled_once_and_run_in_order(plan_file: Path) -> None:
    text = PLAN + PLAN[PLAN.index("[[") :].replace("[2, 3, 1]", "[9, 1, 1]")
    plan_file.write_text(text)
    library = Cuda()
    rows = measure(read_plan(plan_file, "scale"), gpu_of(library, []), {"x": 64}, 1)
    assert library.calls.count("cuModuleLoadDataEx") == library.calls.count("cuModuleUnload") == 1
    assert [(row["launch"], row["grid_x"]) for row in rows] == [(0, 2), (0, 2), (1, 9), (1, 9)]


def test_what_the_driver_answers_is_said_by_name_with_the_log_of_the_compiler(plan_file: Path) -> None:
    plan = read_plan(plan_file, "scale")
    refusing = Cuda({"cuModuleLoadDataEx": 218})
    refusing.log = b"line 7: unknown symbol"
    with pytest.raises(
        DriverError, match=r"cuModuleLoadDataEx answers 218 \(CUDA_ERROR_INVALID_PTX\): line 7: unknown"
    ):
        measure(plan, gpu_of(refusing, []), {"x": 64}, 1)
    assert "cuModuleUnload" not in refusing.calls
    refusing = Cuda({"cuLaunchKernel": 1})
    with pytest.raises(DriverError, match=r"cuLaunchKernel answers 1 \(CUDA_ERROR_INVALID_VALUE\)$"):
        measure(plan, gpu_of(refusing, []), {"x": 64}, 1)
    assert refusing.calls[-1] == "cuModuleUnload", "the module is given back"
    with pytest.raises(DriverError, match=r"answers 999 \(an unknown error\)"):
        measure(plan, gpu_of(Cuda({"cuModuleGetFunction": 999}), []), {"x": 64}, 1)
    with pytest.raises(DriverError, match="this driver has no cuModuleLoadDataEx"):
        measure(plan, Gpu(Driver(SimpleNamespace()), *(None,) * 3), {"x": 64}, 1)  # type: ignore[arg-type]


def test_a_machine_without_the_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    with pytest.raises(DriverError, match=r"no CUDA driver \(libcuda.so.1: cannot open"):
        Driver()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a machine whose memory is the host's, whose driver is `library`, and whose kernels take microseconds."""
    torch = pytest.importorskip("torch")
    library = Cuda()
    stream = SimpleNamespace(cuda_stream=77)
    monkeypatch.setattr(ptx_launches, "Driver", lambda: Driver(library))
    monkeypatch.setattr(ptx_launches, "Timeline", lambda cuda: Line([]))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    return SimpleNamespace(device="cpu", state=lambda: {"sm_clock_mhz": 1395.0}, library=library)


def test_a_step_gives_a_row_for_each_run_with_every_column(plan_file: Path, machine: Any) -> None:
    facts = {"name": "simulated", "architecture": "sm_80", "memory_bytes": 8 << 30, "l2_bytes": 1 << 20}
    (step,) = (s for s in steps(facts, "tiny", plan_file.parent) if s.key == "g/scale")
    rows = checked(step.run(machine, plan_file.parent))["ptx"]
    assert len(rows) == 4 and all(set(row) == set(TABLES["ptx"]) and None not in row.values() for row in rows)
    known = {"device": "simulated", "compute_capability": "8.0", "sm_clock_mhz": 1395.0, "plan": "scale"}
    assert known.items() <= rows[0].items()


def test_a_plan_that_needs_more_than_the_memory_is_refused(plan_file: Path, machine: Any) -> None:
    facts = {"name": "simulated", "architecture": "sm_80", "memory_bytes": 1 << 20}
    (step,) = (s for s in steps(facts, "tiny", plan_file.parent) if s.key == "g/scale")
    with pytest.raises(RuntimeError, match="the plan scale needs about"):
        step.run(machine, plan_file.parent)


def test_a_driver_is_tried_by_a_kernel_that_writes(machine: Any) -> None:
    with pytest.raises(DriverError, match="a kernel that writes 42 left 0"):
        ptx_launches.probe("cpu")

    def write(given: list[bytes]) -> None:
        ctypes.memmove(int.from_bytes(given[0], "little"), given[1], 4)

    machine.library.run = write
    ptx_launches.probe("cpu")
    assert machine.library.launched[-1]["entry"] == "store"


# --- buffers


def test_buffers_are_filled_the_same_each_time_in_their_type(plan_file: Path) -> None:
    torch = pytest.importorskip("torch")

    def filled(text: str) -> Any:
        return ptx_launches.fill(plan_of(plan_file, x=f"x = {{ shape = [2, 64], {text} }}").buffers["x"])

    normal = filled('dtype = "bf16", fill = "normal", seed = 3')
    assert normal.dtype == torch.bfloat16 and abs(normal.float().std() - 1) < 0.3
    assert torch.equal(normal, filled('dtype = "bf16", fill = "normal", seed = 3'))
    assert not torch.equal(normal, filled('dtype = "bf16", fill = "normal", seed = 4'))
    uniform = filled('dtype = "f16", fill = "uniform", low = -2, high = -1')
    assert uniform.dtype == torch.float16 and (uniform >= -2).all() and (uniform <= -1).all()
    wrapped = filled('dtype = "u16", fill = "randint", low = 65535, high = 65536')
    assert wrapped.dtype == torch.int16 and (wrapped == -1).all()
    assert filled('dtype = "s64", fill = "arange"').flatten().tolist() == list(range(128))
    assert not filled('dtype = "f64"').any()
    for dtype in ptx_launches.DTYPES:
        for fill in ptx_launches.FILLS:
            buffer = plan_of(plan_file, x=f'x = {{ shape = [3], dtype = "{dtype}", fill = "{fill}" }}').buffers["x"]
            tensor = ptx_launches.fill(buffer)
            assert tensor.numel() * tensor.element_size() == buffer.size_bytes


def test_a_buffer_holds_what_its_numpy_file_does(plan_file: Path) -> None:
    pytest.importorskip("torch")
    np = pytest.importorskip("numpy")
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(plan_file.parent / "x.npy", values)

    def filled(shape: list[int]) -> Any:
        text = f'x = {{ dtype = "f32", shape = {shape}, file = "x.npy" }}'
        return ptx_launches.fill(plan_of(plan_file, x=text).buffers["x"])

    assert filled([2, 3]).tolist() == values.tolist()
    with pytest.raises(InvalidInputError, match="holds 24 bytes of <f4, and the plan asks for 32 of f32"):
        filled([2, 4])
    np.save(plan_file.parent / "x.npy", np.asfortranarray(values))
    with pytest.raises(InvalidInputError, match="in C order"):
        filled([2, 3])
    (plan_file.parent / "x.npy").write_text("0 1 2")
    with pytest.raises(InvalidInputError, match="is no NumPy file"):
        filled([2, 3])


# --- the command line


def test_a_machine_without_a_gpu_leaves_the_part_out_and_counts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    command = ["--device", "cpu", "--size", "tiny", "--parts", "dg"]
    assert main([*command, "--plan"]) == 0
    count = 1 + len(list(FOLDER.rglob("*.toml")))
    assert f"left out for want of ptx: {count}\n" in capsys.readouterr().out
    assert main([*command, "--output", str(tmp_path / "out")]) == 0
    (take,) = json.loads((tmp_path / "out" / "environment.json").read_text())
    assert take["left_out"]["ptx"] == count and not (tmp_path / "out" / "ptx.parquet").exists()
    assert main([*command, "--plan", "--ptx", str(tmp_path)]) == 1
    assert "holds no plan of launches" in capsys.readouterr().err


def test_examples_in_the_module_are_right() -> None:
    found = doctest.testmod(ptx_launches)
    assert found.attempted and not found.failed

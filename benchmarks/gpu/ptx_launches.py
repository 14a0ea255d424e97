"""Part g: how long kernels in PTX take, each launched through the CUDA driver as a plan says.

A plan is a TOML file beside its PTX: buffers, and launches with grid, block, shared memory and arguments. Ours are in
`datasets/ptx`. The kernel simulator reads the same files, so its times can be compared with the measured ones.

Each launch is timed in two states of the caches. `cold`: a buffer of four times the L2 cache was written before.
`warm`: the same launch ran before. The launch waits in its stream until the host is done, as in all other parts.
"""

import ast
import ctypes
import hashlib
import math
import re
import struct
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.gates import Queue, Timeline
from benchmarks.gpu.step import Machine, Row, Step, Tables
from profilers.errors import InvalidInputError

__all__ = ["FOLDER", "Driver", "DriverError", "Gpu", "PtxPlan", "measure", "probe", "read_plan", "steps"]

FOLDER = Path(__file__).parents[2] / "datasets" / "ptx"
FEATURE = "ptx"
REPETITIONS = {"full": 20, "cpu": 5, "tiny": 2}
PLAN_SECONDS, LAUNCH_SECONDS = 1.5, 0.1
FLUSH_FACTOR, LEAST_FLUSH_BYTES = 4, 64 << 20
#: More shared memory than this needs a permission for the function.
SHARED_BYTES = 48 << 10
#: Names of our element types in PyTorch. Unsigned ones are held as signed: only their bytes matter.
DTYPES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "s8": "int8", "s16": "int16",
    "s32": "int32", "s64": "int64", "u8": "uint8", "u16": "int16", "u32": "int32", "u64": "int64",
}  # fmt: skip
FILLS = ("zeros", "normal", "uniform", "randint", "arange")
# cuda.h: CUfunction_attribute and CUjit_option.
STATIC_SHARED_BYTES, LOCAL_BYTES, REGISTERS, MOST_DYNAMIC_SHARED_BYTES, CARVEOUT = 1, 3, 4, 8, 9
JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES = 5, 6
CLUSTER_DIMENSION = 4
LOG_BYTES = 8192
#: An empty kernel, whose time is the cost of a launch; and one that shows that launches work.
PROBE = """
.version 6.0
.target sm_50
.address_size 64
.visible .entry empty() { ret; }
.visible .entry store(.param .u64 address, .param .u32 value)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<1>;
    ld.param.u64 %rd0, [address];
    ld.param.u32 %r0, [value];
    cvta.to.global.u64 %rd1, %rd0;
    st.global.u32 [%rd1], %r0;
    ret;
}
"""


class DriverError(RuntimeError):
    """The CUDA driver is absent, or a call of it failed."""


@dataclass(frozen=True)
class Buffer:
    """Device memory of a plan: its type, shape and first content.

    Parameters
    ----------
    dtype : str
        A key of `DTYPES`.
    shape : tuple of int
    fill : str
        One of `FILLS`.
    seed : int
        Of random fills.
    low, high : float
        Range of `uniform` and `randint`, without `high`.
    file : Path or None
        NumPy file with the content, instead of a fill.
    """

    dtype: str
    shape: tuple[int, ...]
    fill: str = "zeros"
    seed: int = 0
    low: float = 0.0
    high: float = 1.0
    file: Path | None = None

    @property
    def size_bytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * int(re.sub(r"\D", "", self.dtype)) // 8


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel: the text of its PTX, entry, geometry, dynamic shared memory and arguments.

    An argument is the name of a buffer or a number. `parameters` are the types that the PTX declares for them. So many
    workgroups along x are a `cluster`. `carveout` is the share of shared memory, %, of what L1 and it have together.
    """

    ptx: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[str | int | float, ...]
    parameters: tuple[str, ...]
    cluster: int = 1
    carveout: int | None = None


@dataclass(frozen=True)
class PtxPlan:
    """Buffers by name, and launches in order."""

    name: str
    buffers: Mapping[str, Buffer]
    launches: tuple[Launch, ...]

    @property
    def target(self) -> int:
        """Least compute capability that its PTX asks for, such as 80."""
        found = (re.search(r"^\s*\.target\s+sm_(\d+)", launch.ptx, re.MULTILINE) for launch in self.launches)
        return max((int(target[1]) for target in found if target), default=0)


EMPTY = PtxPlan("empty", {}, (Launch(PROBE, "empty", (1, 1, 1), (32, 1, 1), 0, (), ()),))


def steps(facts: Mapping[str, Any], size: str, folder: Path = FOLDER) -> list[Step]:
    """Return one step for each plan of a folder and its subfolders, and one for an empty kernel.

    Parameters
    ----------
    facts : mapping
        Of the device.
    size : str
        A key of `REPETITIONS`.
    folder : Path

    Raises
    ------
    InvalidInputError
        No plan is there, or one is wrong.
    """
    paths = sorted(folder.rglob("*.toml"))
    if not paths:
        raise InvalidInputError(f"{folder}: holds no plan of launches (*.toml); give another folder by --ptx")
    plans = [EMPTY, *(read_plan(path, path.relative_to(folder).with_suffix("").as_posix()) for path in paths)]
    return [
        Step(f"g/{plan.name}", "g", round(PLAN_SECONDS + LAUNCH_SECONDS * len(plan.launches), 3),
             partial(_recorded, plan, facts, REPETITIONS[size]), _needs(plan, facts))
        for plan in plans
    ]  # fmt: skip


def _needs(plan: PtxPlan, facts: Mapping[str, Any]) -> frozenset[str]:
    """Return what a plan needs: the driver, and where the device is too old, the compute capability of its PTX."""
    return frozenset({FEATURE, *needed_capability(capability_of(facts), plan.target)})


def needed_capability(capability: int | None, least: int) -> list[str]:
    """Return what a device lacks that is known to be older than some compute capability."""
    return [f"compute capability {_dotted(least)}"] if capability is not None and capability < least else []


def capability_of(facts: Mapping[str, Any]) -> int | None:
    """Return the compute capability that `Machine.facts` tells, such as 90; None if the device has none."""
    found = re.fullmatch(r"sm_(\d+)", str(facts.get("architecture")))
    return int(found[1]) if found else None


def _dotted(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"


def read_plan(path: Path, name: str) -> PtxPlan:
    """Return the plan of a TOML file, checked against the PTX that it names.

    Parameters
    ----------
    path : Path
    name : str
        To give to the plan.

    Raises
    ------
    InvalidInputError
        The plan is wrong; the message has the file, the place in it and what is expected.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        _check_keys(document, "about buffers launches", "the plan")
        tables, entries = document.get("buffers", {}), document.get("launches")
        if not isinstance(tables, dict) or not isinstance(entries, list) or not entries:
            raise ValueError("a plan has [buffers] and at least one [[launches]]")
        buffers = {key: _buffer(entry, f"buffers.{key}", path.parent) for key, entry in tables.items()}
        launches = [_launch(entry, f"launches[{at}]", path.parent) for at, entry in enumerate(entries)]
        plan = PtxPlan(name, buffers, tuple(launches))
        for at, launch in enumerate(launches):
            marshal(launch, dict.fromkeys(buffers, 0), f"launches[{at}]")
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{path}: {error}") from error
    return plan


def _buffer(entry: Mapping[str, Any], place: str, folder: Path) -> Buffer:
    _check_keys(entry, "dtype shape fill seed low high file", place)
    shape: Any = entry.get("shape")
    if entry.get("dtype") not in DTYPES:
        raise ValueError(f"{place}.dtype: {entry.get('dtype')!r} is none of {', '.join(DTYPES)}")
    if not _is_shape(shape):
        raise ValueError(f"{place}.shape: {shape!r} is no list of whole numbers above 0")
    if entry.get("fill", "zeros") not in FILLS:
        raise ValueError(f"{place}.fill: {entry['fill']!r} is none of {', '.join(FILLS)}")
    numbers = [entry.get(key, 0) for key in ("seed", "low", "high")]
    if type(numbers[0]) is not int or not all(isinstance(number, int | float) for number in numbers):
        raise ValueError(f"{place}: seed, low and high are numbers, the seed a whole one")
    file = folder / str(entry["file"]) if "file" in entry else None
    if file is not None and not file.is_file():
        raise ValueError(f"{place}.file: {file} does not exist")
    return Buffer(**{**entry, "shape": tuple(shape), "file": file})


def _launch(entry: Mapping[str, Any], place: str, folder: Path) -> Launch:
    _check_keys(entry, "ptx entry grid block shared_bytes arguments", place)
    lacking = [key for key in ("ptx", "entry", "grid", "block") if key not in entry]
    if lacking:
        raise ValueError(f"{place}: lacks {', '.join(lacking)}")
    for key in ("grid", "block"):
        if not _is_shape(entry[key]) or len(entry[key]) != 3:
            raise ValueError(f"{place}.{key}: {entry[key]!r} is not three whole numbers above 0")
    if type(shared := entry.get("shared_bytes", 0)) is not int or shared < 0:
        raise ValueError(f"{place}.shared_bytes: {shared!r} is no whole number from 0")
    if not isinstance(arguments := entry.get("arguments", []), list):
        raise ValueError(f"{place}.arguments: {arguments!r} is no list")
    ptx = (folder / str(entry["ptx"])).read_text(encoding="utf-8")
    try:
        parameters = parameters_of(ptx, entry["entry"])
    except ValueError as error:
        raise ValueError(f"{place}: {entry['ptx']}: {error}") from error
    (gx, gy, gz), (bx, by, bz) = entry["grid"], entry["block"]
    return Launch(ptx, entry["entry"], (gx, gy, gz), (bx, by, bz), shared, tuple(arguments), parameters)


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(type(extent) is int and extent > 0 for extent in value)


def _check_keys(entry: object, keys: str, place: str) -> None:
    if not isinstance(entry, dict):
        raise ValueError(f"{place}: {entry!r} is no table")
    unknown = sorted(set(entry) - set(keys.split()))
    if unknown:
        raise ValueError(f"{place}: no key is called {', '.join(unknown)}; there are {', '.join(keys.split())}")


def parameters_of(ptx: str, entry: str) -> tuple[str, ...]:
    """Return the types of an entry's parameters; an array has its size behind its type.

    Raises
    ------
    ValueError
        The PTX has no such entry.

    Examples
    --------
    >>> parameters_of(".visible .entry f(.param .u64 .ptr .global .align 1 x, .param .align 4 .b8 y[12]) { }", "f")
    ('u64', 'b8[12]')
    """
    code = re.sub(r"//[^\n]*", "", ptx)
    declared = {found[1]: found[2] or "" for found in re.finditer(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?", code)}
    if entry not in declared:
        raise ValueError(f"no entry is called {entry!r}; there are {', '.join(declared)}")
    types = re.findall(r"\.param\b[^,]*?\.([usbf]\d+)\b[^,\[]*(\[\d+\])?", declared[entry])
    return tuple("".join(parts) for parts in types)


def marshal(launch: Launch, addresses: Mapping[str, int], place: str = "the launch") -> list[bytes]:
    """Return the bytes of each argument of a launch, as its parameter's type asks for.

    Parameters
    ----------
    launch : Launch
    addresses : mapping of str to int
        Where each buffer begins.
    place : str
        Of the launch in its plan, for messages.

    Raises
    ------
    ValueError
        Arguments and parameters do not match.
    """
    if len(launch.arguments) != len(launch.parameters):
        raise ValueError(
            f"{place}.arguments: there are {len(launch.arguments)}, and {launch.entry} takes {len(launch.parameters)}: "
            f"{', '.join(launch.parameters)}"
        )
    found = []
    for at, (argument, kind) in enumerate(zip(launch.arguments, launch.parameters, strict=True)):
        try:
            if isinstance(argument, str) and argument not in addresses:
                raise ValueError(f"no buffer is called {argument!r}; there are {', '.join(addresses)}")
            found.append(_address(addresses[argument], kind) if isinstance(argument, str) else _scalar(argument, kind))
        except (ValueError, OverflowError, struct.error) as error:
            raise ValueError(f"{place}.arguments[{at}]: {error}") from error
    return found


def _address(address: int, kind: str) -> bytes:
    if kind not in ("u64", "s64", "b64"):
        raise ValueError(f"a buffer's address does not fit into a parameter of type {kind}")
    return address.to_bytes(8, sys.byteorder)


def _scalar(number: object, kind: str) -> bytes:
    """Return a number's bytes. A parameter of type b16, b32 or b64 takes the bits of a float if it is given one."""
    if "[" in kind or isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"{number!r} cannot be given for a parameter of type {kind}")
    size = int(kind[1:]) // 8
    if kind[0] == "f" or (kind[0] == "b" and isinstance(number, float)):
        return struct.pack(f"={'e' if size == 2 else 'f' if size == 4 else 'd'}", number)
    if isinstance(number, float):
        raise ValueError(f"{number!r} is no whole number, as a parameter of type {kind} takes")
    try:
        return number.to_bytes(size, sys.byteorder, signed=number < 0)
    except OverflowError as error:
        raise ValueError(f"{number} does not fit into a parameter of type {kind}") from error


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``: an id, padded, and a union of 64 bytes, of which a cluster takes three words."""

    _fields_ = [("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_uint * 16)]


class _Configuration(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint),
    ]  # fmt: skip


def _configured(launch: Launch, stream: int = 0) -> _Configuration:
    """Return what ``cuLaunchKernelEx`` is told of a launch in clusters."""
    attribute = _Attribute(CLUSTER_DIMENSION, 0, (ctypes.c_uint * 16)(launch.cluster, 1, 1))
    geometry = (ctypes.c_uint * 3)(*launch.grid), (ctypes.c_uint * 3)(*launch.block), launch.shared_bytes
    return _Configuration(*geometry, stream, ctypes.pointer(attribute), 1)


class Driver:
    """Calls of the CUDA driver, in the context that is current.

    Parameters
    ----------
    library : object, optional
        With functions as `libcuda` has them; by default that.

    Raises
    ------
    DriverError
        There is no `libcuda`.
    """

    def __init__(self, library: Any = None) -> None:
        try:
            self._library = library or ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DriverError(f"no CUDA driver ({error})") from error

    @contextmanager
    def loaded(self, ptx: str) -> Iterator[ctypes.c_void_p]:
        """Compile PTX for the device; give the module back at the end."""
        module = self.load(ptx)
        try:
            yield module
        finally:
            self._call("cuModuleUnload", module)

    def load(self, ptx: str) -> ctypes.c_void_p:
        """Compile PTX for the device, for as long as the process lasts."""
        module, log = ctypes.c_void_p(), ctypes.create_string_buffer(LOG_BYTES)
        options = (ctypes.c_int * 2)(JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), LOG_BYTES)
        try:
            self._call("cuModuleLoadDataEx", ctypes.byref(module), ptx.encode(), ctypes.c_uint(2), options, values)
        except DriverError as error:
            raise DriverError(f"{error}: {log.value.decode(errors='replace').strip() or 'no log'}") from error
        return module

    def function(self, module: ctypes.c_void_p, launch: Launch) -> ctypes.c_void_p:
        """Return the kernel of a launch, permitted to use its shared memory."""
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), module, launch.entry.encode())
        if launch.shared_bytes + self.attribute(function, STATIC_SHARED_BYTES) > SHARED_BYTES:
            most = ctypes.c_int(launch.shared_bytes)
            self._call("cuFuncSetAttribute", function, ctypes.c_int(MOST_DYNAMIC_SHARED_BYTES), most)
        if launch.carveout is not None:
            self._call("cuFuncSetAttribute", function, ctypes.c_int(CARVEOUT), ctypes.c_int(launch.carveout))
        return function

    def attribute(self, function: ctypes.c_void_p, attribute: int) -> int:
        """Return an attribute of a kernel, such as `REGISTERS`."""
        value = ctypes.c_int()
        self._call("cuFuncGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), function)
        return value.value

    def launch(self, function: ctypes.c_void_p, launch: Launch, arguments: Sequence[bytes], stream: int) -> None:
        """Launch a kernel on a stream, with arguments as `marshal` returns them."""
        self.prepared(function, launch, arguments)(stream)

    def prepared(self, function: ctypes.c_void_p, launch: Launch, arguments: Sequence[bytes]) -> Callable[[int], None]:
        """Return what launches a kernel on a stream that it is given, as often as that is wanted."""
        copies = [ctypes.create_string_buffer(argument, len(argument)) for argument in arguments]
        pointers = (ctypes.c_void_p * len(copies))(*map(ctypes.addressof, copies))
        geometry = [ctypes.c_uint(extent) for extent in (*launch.grid, *launch.block, launch.shared_bytes)]

        def run(stream: int, _kept: object = copies) -> None:
            if launch.cluster == 1:
                self._call("cuLaunchKernel", function, *geometry, ctypes.c_void_p(stream), pointers, None)
            else:
                configured = _configured(launch, stream)
                self._call("cuLaunchKernelEx", ctypes.byref(configured), function, pointers, None)

        return run

    def residency(self, function: ctypes.c_void_p, launch: Launch) -> dict[str, int]:
        """Return what a workgroup holds, how many fit on a compute unit, and how many clusters on the device."""
        found, threads = ctypes.c_int(), ctypes.c_int(math.prod(launch.block))
        shared = ctypes.c_size_t(launch.shared_bytes)
        self._call("cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(found), function, threads, shared)
        columns = {
            "registers": self.attribute(function, REGISTERS),
            "static_shared_bytes": self.attribute(function, STATIC_SHARED_BYTES),
            "dynamic_shared_bytes": launch.shared_bytes,
            "resident": found.value,
            "cluster": launch.cluster,
        }
        if launch.cluster > 1:
            configured, found = _configured(launch), ctypes.c_int()
            self._call("cuOccupancyMaxActiveClusters", ctypes.byref(found), function, ctypes.byref(configured))
            columns["clusters"] = found.value
        return columns

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            answer = getattr(self._library, name)(*arguments)
        except AttributeError as error:
            raise DriverError(f"this driver has no {name}") from error
        if answer:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(ctypes.c_int(answer), ctypes.byref(text))
            raise DriverError(f"{name} answers {answer} ({(text.value or b'an unknown error').decode()})")


@dataclass(frozen=True)
class Gpu:
    """A device as `measure` needs it: driver, timeline, a stream, and what fills its L2 cache with other data."""

    driver: Driver
    timeline: Timeline
    stream: Any
    flush: Callable[[], object]


def measure(plan: PtxPlan, gpu: Gpu, addresses: Mapping[str, int], repetitions: int) -> list[dict[str, Any]]:
    """Time the launches of a plan, one after the other, and return rows of the table `ptx`.

    Every launch runs many times before the next one's turn. So the next finds the results that it expects unless a
    kernel changes its own inputs.

    Parameters
    ----------
    plan : PtxPlan
    gpu : Gpu
    addresses : mapping of str to int
        Where each buffer begins.
    repetitions : int
        Of each state of the caches; one run before is not counted.

    Raises
    ------
    DriverError
        The driver refuses the PTX, or a launch.
    """
    rows = []
    with ExitStack() as stack:
        texts = dict.fromkeys(launch.ptx for launch in plan.launches)
        modules = {ptx: stack.enter_context(gpu.driver.loaded(ptx)) for ptx in texts}
        for number, launch in enumerate(plan.launches):
            function = gpu.driver.function(modules[launch.ptx], launch)
            run = partial(gpu.driver.launch, function, launch, marshal(launch, addresses), gpu.stream.cuda_stream)
            known = {"plan": plan.name, "launch": number, **_columns(gpu.driver, function, launch)}
            for cache, before in (("cold", gpu.flush), ("warm", run)):
                times = [_time(gpu, run, before) for _ in range(1 + repetitions)][1:]
                rows += [
                    {**known, "cache": cache, "repetition": at, "duration_ns": time_ns, "spin_clock_mhz": clock_mhz}
                    for at, (time_ns, clock_mhz) in enumerate(times)
                ]
    return rows


def _time(gpu: Gpu, run: Callable[[], None], before: Callable[[], object]) -> tuple[int, float]:
    """Return how long a launch takes, ns, and the clock just before it, MHz."""
    ((start, end),) = gpu.timeline.run([Queue(gpu.stream, lambda _: run())], before)
    return end - start, round(gpu.timeline.clock_mhz, 1)


def _columns(driver: Driver, function: ctypes.c_void_p, launch: Launch) -> dict[str, Any]:
    sizes = {"grid": launch.grid, "block": launch.block}
    return {
        "entry": launch.entry,
        "ptx_sha256": hashlib.sha256(launch.ptx.encode()).hexdigest(),
        **{
            f"{what}_{axis}": extent for what, three in sizes.items() for axis, extent in zip("xyz", three, strict=True)
        },
        "registers": driver.attribute(function, REGISTERS),
        "static_shared_bytes": driver.attribute(function, STATIC_SHARED_BYTES),
        "dynamic_shared_bytes": launch.shared_bytes,
        "local_bytes": driver.attribute(function, LOCAL_BYTES),
    }


def _recorded(plan: PtxPlan, facts: Mapping[str, Any], repetitions: int, machine: Machine, _files: Path) -> Tables:
    """Run a plan on a GPU and return the rows of its launches."""
    import torch

    from benchmarks.gpu.clock import require

    flush_bytes = max(LEAST_FLUSH_BYTES, FLUSH_FACTOR * (facts.get("l2_bytes") or 0))
    need_bytes = flush_bytes + sum(buffer.size_bytes for buffer in plan.buffers.values())
    require(facts.get("memory_bytes"), need_bytes, f"the plan {plan.name}")
    tensors = {name: fill(buffer).to(machine.device) for name, buffer in plan.buffers.items()}
    addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    other = torch.empty(flush_bytes, dtype=torch.uint8, device=machine.device)
    gpu = Gpu(Driver(), Timeline(torch.cuda), torch.cuda.Stream(device=machine.device), other.zero_)
    rows = measure(plan, gpu, addresses, repetitions)
    capability = capability_of(facts)
    known: Row = {
        "device": facts["name"],
        "compute_capability": None if capability is None else _dotted(capability),
        "sm_clock_mhz": machine.state().get("sm_clock_mhz"),
    }
    return {"ptx": [{**row, **known} for row in rows]}


def fill(buffer: Buffer) -> Any:
    """Return a buffer's first content as a tensor of the host, the same each time."""
    import torch

    dtype = getattr(torch, DTYPES[buffer.dtype])
    if buffer.file is not None:
        return torch.frombuffer(bytearray(_npy_bytes(buffer)), dtype=dtype).reshape(buffer.shape)
    drawn = torch.Generator().manual_seed(buffer.seed)
    if buffer.fill == "zeros":
        return torch.zeros(buffer.shape, dtype=dtype)
    if buffer.fill == "arange":
        return torch.arange(math.prod(buffer.shape)).reshape(buffer.shape).to(dtype)
    if buffer.fill == "randint":
        return torch.randint(int(buffer.low), int(buffer.high), buffer.shape, generator=drawn).to(dtype)
    if buffer.fill == "normal":
        values = torch.randn(buffer.shape, generator=drawn, dtype=torch.float64)
    else:
        values = torch.rand(buffer.shape, generator=drawn, dtype=torch.float64)
        values = buffer.low + (buffer.high - buffer.low) * values
    return (values if dtype.is_floating_point else values.to(torch.int64)).to(dtype)


def _npy_bytes(buffer: Buffer) -> bytes:
    """Return the elements of a NumPy file, which PyTorch alone cannot read.

    Raises
    ------
    InvalidInputError
        The file is none, is not in C order, or has another size than its buffer.
    """
    path = buffer.file
    assert path is not None
    content = path.read_bytes()
    if content[:6] != b"\x93NUMPY":
        raise InvalidInputError(f"{path}: is no NumPy file (.npy)")
    width = 2 if content[6] == 1 else 4
    begin = 8 + width + int.from_bytes(content[8 : 8 + width], "little")
    header = ast.literal_eval(content[8 + width : begin].decode("latin-1"))
    elements = content[begin:]
    if header["fortran_order"] or header["descr"][0] == ">" or len(elements) != buffer.size_bytes:
        raise InvalidInputError(
            f"{path}: holds {len(elements)} bytes of {header['descr']}, and the plan asks for {buffer.size_bytes} of "
            f"{buffer.dtype}, in C order and little endian"
        )
    return elements


def probe(device: str) -> None:
    """Launch a small kernel on a device and look at what it wrote.

    Parameters
    ----------
    device : str
        As PyTorch writes it.

    Raises
    ------
    DriverError
        There is no CUDA driver, it refuses, or the kernel wrote something else.
    """
    import torch

    if torch.version.hip:
        raise DriverError("PTX is for GPUs of NVIDIA")
    target = torch.zeros(1, dtype=torch.int32, device=device)  # makes the primary context, and current
    launch = Launch(PROBE, "store", (1, 1, 1), (1, 1, 1), 0, ("target", 42), ("u64", "u32"))
    driver = Driver()
    with driver.loaded(PROBE) as module:
        arguments = marshal(launch, {"target": target.data_ptr()})
        driver.launch(driver.function(module, launch), launch, arguments, torch.cuda.current_stream().cuda_stream)
        if target.item() != 42:
            raise DriverError(f"a kernel that writes 42 left {target.item()}")

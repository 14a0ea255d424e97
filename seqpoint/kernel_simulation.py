"""Execute kernels in PTX without a GPU, and say how long they take: `simulate_kernel` returns outputs and timings."""

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from profilers.devices import find_device
from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from replay.detailed import KernelLaunch, LaunchPlan, Structure, Texture
from replay.detailed.arguments import Argument
from replay.detailed.launch import INSTRUCTION_LIMIT, CallResult, Progress, RunChecks
from replay.detailed.plans import check_name, read_plan, three
from replay.detailed.timing.launches import DOINGS, WAVES, LaunchTiming, TimedDevice
from replay.detailed.timing.simulation import Checkpoint, simulate_plan
from seqpoint.notebook import DataFrame, Result, Table, data_frame, table_of
from seqpoint.units import duration

if TYPE_CHECKING:
    from profilers.trace import Trace
    from seqpoint.plots.simulations import DrawnLaunch


@dataclass(frozen=True, repr=False)
class SimulatedKernels(Result):
    """Launches of kernels that were executed, and on a device also timed.

    Parameters
    ----------
    plan : LaunchPlan
        Launches.
    outputs : mapping of str to array
        Each buffer after the last launch.
    calls : tuple of CallResult
        What each launch executed.
    timings : tuple of LaunchTiming
        How long each launch takes; empty without a device.
    target : TimedDevice, optional
        Device.
    shared_bytes : tuple of int
        Shared memory of a block of each launch.
    resumed : bool
        Whether it went on from a checkpoint.
    """

    heading = "Simulated kernels"

    plan: LaunchPlan
    outputs: Mapping[str, NDArray[Any]]
    calls: tuple[CallResult, ...]
    timings: tuple[LaunchTiming, ...] = ()
    target: TimedDevice | None = None
    shared_bytes: tuple[int, ...] = ()
    resumed: bool = False

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each launch, with the keys of ``launches`` in the JSON."""
        rows = []
        for number, call in enumerate(self.calls):
            facts = {"entry": call.entry, "grid": list(call.grid), "block": list(call.block)}
            row: dict[str, Any] = {"launch": number, **facts, "warp_instructions": call.warp_instructions}
            row["unset_variables"] = list(call.unset)
            rows.append(row | (timing_facts(self.timings[number]) if self.timings else {}))
        return rows

    @property
    def seconds(self) -> float:
        """Time of all launches, one after another; 0 without a device."""
        return sum(timing.seconds for timing in self.timings)

    def table(self) -> DataFrame:
        """Return a row for each launch: executed instructions, and with a device times, stalls and traffic."""
        return data_frame(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return what ``seqpoint simulate kernel --json`` prints."""
        outputs = {name: {"dtype": str(a.dtype), "shape": list(a.shape)} for name, a in self.outputs.items()}
        device = self.target.memory.name if self.target else None
        return {"plan": self.plan.name, "device": device, "launches": self.rows, "outputs": outputs}

    def summary(self) -> list[str]:
        """Return the lines above the table."""
        device = f" on {self.target.memory.name}: {duration(1e9 * self.seconds)}" if self.target else ", not timed"
        launches = "1 launch" if len(self.calls) == 1 else f"{len(self.calls)} launches"
        unset = dict.fromkeys(name for call in self.calls for name in call.unset)
        zeros = [f"variables without content, read as zeros: {', '.join(unset)}"] if unset else []
        return [f"{self.plan.name}: {launches}{device}", *zeros]

    def tables(self) -> list[Table]:
        """Return the launches as text."""
        columns = {
            "launch": "{launch}", "entry~": "{entry}", "grid~": "{shape}", "warp instructions": "{warp_instructions}",
        }  # fmt: skip
        if self.timings:
            columns |= {
                "time~": "{time}", "error %": "{time_error:.1%}", "blocks a unit": "{resident_blocks}",
                "issue %": "{issue_share:.1%}", "L2 hits %": "{l2_read_hit_rate:.1%}",
                "DRAM util %": "{dram_utilisation:.1%}", "DRAM eff %": "{dram_efficiency:.1%}",
            }  # fmt: skip
        rows = [
            row | {"shape": f"{_by(row['grid'])} of {_by(row['block'])}", "time": duration(row.get("time_ns", 0.0))}
            for row in self.rows
        ]
        return [table_of("Launches", columns, rows)]

    def timed(self) -> "list[DrawnLaunch]":
        """Return the launches for charts, the longest first.

        Raises
        ------
        InvalidInputError
            The launches were not timed.
        """
        from seqpoint.plots.simulations import DrawnLaunch

        if self.target is None or not self.timings:
            raise InvalidInputError("the launches were not timed; give a device")
        entries = [call.entry for call in self.calls]
        order = sorted(range(len(entries)), key=lambda number: -self.timings[number].seconds)
        return [DrawnLaunch(entries[number], number, self.timings[number], self.target) for number in order]

    def plots(self) -> Any:
        """Return the heat maps of each timed launch, as a HoloViews object."""
        from seqpoint.plots.simulations import kernel_overview

        return kernel_overview(self.timed())

    def plot(self) -> Any:
        """Return the chart of what the schedulers of the longest launch do over time."""
        from seqpoint.plots.simulations import kernel_activity

        return kernel_activity(self.timed()[0])

    def trace_events(self) -> dict[str, Any]:
        """Return the launches one after another as a trace in the layout of the PyTorch profiler.

        Raises
        ------
        InvalidInputError
            The launches were not timed.
        """
        if not self.timings or self.target is None:
            raise InvalidInputError("a trace has times; give a device")
        events, start = [], 0.0
        facts = zip(self.calls, self.timings, self.shared_bytes, strict=True)
        for number, (call, timing, shared_bytes) in enumerate(facts):
            length = 1e6 * timing.seconds
            events.append(
                {
                    "ph": "X", "cat": "kernel", "name": call.entry, "pid": 0, "tid": 7, "ts": start, "dur": length,
                    "args": {
                        "device": 0, "stream": 7, "correlation": number + 1, "grid": list(call.grid),
                        "block": list(call.block), "registers per thread": timing.registers,
                        "shared memory": shared_bytes,
                    },
                }
            )  # fmt: skip
            start += length
        device = {"id": 0, "name": self.target.memory.name, "numSms": self.target.core.units, "warpSize": 32}
        return {"schemaVersion": 1, "deviceProperties": [device], "traceEvents": events}

    def trace(self) -> "Trace":
        """Return the launches one after another as a trace, for `sp.describe`, `sp.project` and the like.

        Raises
        ------
        InvalidInputError
            The launches were not timed.
        """
        from profilers.ingest import open_trace

        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "simulated.json"
            file.write_text(json.dumps(self.trace_events()))
            return open_trace(file)

    def save_outputs(self, folder: str | PathLike[str]) -> None:
        """Write each buffer as ``NAME.npy`` into a folder, which appears whole or not at all.

        Raises
        ------
        InvalidInputError
            The folder exists or cannot be written, or the name of a buffer cannot be that of a file.
        """
        target = new_folder(folder)
        for name in self.outputs:
            check_name(name, f"{target}: buffers")
        try:
            new = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name[:40]}."))
        except OSError as problem:
            raise InvalidInputError(f"{target}: cannot be written ({problem.strerror})") from None
        try:
            for name, values in self.outputs.items():
                np.save(new / f"{name}.npy", values, allow_pickle=False)
            new.chmod(0o755)
            new.rename(target)
        except OSError as problem:
            raise InvalidInputError(f"{target}: cannot be written ({problem.strerror})") from None
        finally:
            shutil.rmtree(new, ignore_errors=True)


def _by(sizes: Sequence[int]) -> str:
    return " x ".join(str(size) for size in sizes if size != 1) or "1"


def new_folder(path: str | PathLike[str]) -> Path:
    """Return the path of a folder that does not exist yet, in one that does.

    Raises
    ------
    InvalidInputError
        The folder exists, or that in which it is to be does not.
    """
    target = Path(path)
    if target.exists() or target.is_symlink():
        raise InvalidInputError(f"{target}: exists already; give the name of a new folder")
    if not target.parent.is_dir():
        raise InvalidInputError(f"{target}: cannot be written (there is no folder {target.parent})")
    return target


def timing_facts(timing: LaunchTiming) -> dict[str, Any]:
    """Return the figures of a timed launch, by the keys of the JSON."""
    counters, busy = timing.counters, timing.by_unit.sum(axis=0)
    loads = counters["l1_load_hits"] + counters["l1_load_misses"]
    scale = timing.blocks / timing.timed_blocks
    return {
        "time_ns": 1e9 * timing.seconds,
        "cycles": timing.cycles,
        "time_error": timing.cycles_error,
        "timed_blocks": timing.timed_blocks,
        "blocks": timing.blocks,
        "resident_blocks": timing.resident_blocks,
        "registers": timing.registers,
        "issue_share": float(busy[0] / max(busy.sum(), 1)),
        "stalls": {
            name.replace(" ", "_"): float(share / max(busy.sum(), 1)) for name, share in zip(DOINGS, busy, strict=True)
        },
        "l1_load_hit_rate": counters["l1_load_hits"] / max(loads, 1),
        "l2_read_hit_rate": timing.l2_read_hit_rate,
        "dram_read_bytes": 32 * counters["dram_read_sectors"] * scale,
        "dram_write_bytes": 32 * counters["dram_write_sectors"] * scale,
        "dram_utilisation": timing.dram.utilisation,
        "dram_efficiency": timing.dram.efficiency,
        "row_hit_rate": timing.dram.row_hit_rate,
        "bank_parallelism": timing.dram.bank_parallelism,
    }


@dataclass(frozen=True, kw_only=True)
class KernelOptions:
    """How a kernel is executed and timed.

    Parameters
    ----------
    buffers : mapping of str to array or sequence of str
        Buffers that arguments name. A sequence of names is a buffer of pointers to the buffers of these names.
    variables : mapping of str to array, str, int, float or Structure
        Content of variables of the file, which ``__constant__`` or ``__device__`` declares. An array is a buffer of the
        name of the variable, and a text names a buffer, which is copied to the variable before the launch, and back
        afterwards.
    shared_bytes : int
        Dynamic shared memory of a block.
    clock_mhz : float, optional
        Clock of the compute units, 100 to 10,000 MHz; by default that of the catalogue.
    memory_gbps : float, optional
        Bandwidth of the memory, 10 to 100,000 GB/s; by default that of the catalogue.
    mapping : str, optional
        Mapping of addresses to channels, banks and rows, as of `simulate_memory`; by default that of the device.
    scheduler : str
        Which warp issues: ``"gto"``, greedy, then the oldest; or ``"lrr"``, in turn.
    registers : int, optional
        Registers of a thread; by default estimated from the PTX.
    waves : int, optional
        Waves of blocks that are timed at least; others take as long, with a stated error. 0 or None for all. All blocks
        are executed.
    limit : int
        Instructions of a warp after which it counts as endless.
    allow_races : bool
        Whether to go on where warps race in shared memory, in which the result may depend on their order: two use the
        same byte without a barrier between, and one of them changes it.
    checkpoint : str or path, optional
        File in which the state is kept once a minute. A call with the same arguments that finds it goes on from it, bit
        for bit. It is removed at the end. It is as long as the buffers, or longer. Give only files of your own: what is
        in the state is not checked as a kernel is.
    """

    buffers: Mapping[str, NDArray[Any] | Sequence[str]] = field(default_factory=dict)
    variables: Mapping[str, NDArray[Any] | Argument] = field(default_factory=dict)
    shared_bytes: int = 0
    clock_mhz: float | None = None
    memory_gbps: float | None = None
    mapping: str | None = None
    scheduler: str = "gto"
    registers: int | None = None
    waves: int | None = WAVES
    limit: int = INSTRUCTION_LIMIT
    allow_races: bool = False
    checkpoint: str | PathLike[str] | None = None


def simulate_kernel(
    kernel: str | PathLike[str] | LaunchPlan,
    entry: str = "",
    *,
    grid: int | Sequence[int] = (),
    block: int | Sequence[int] = (),
    arguments: Sequence[NDArray[Any] | Argument | None] = (),
    device: str | Device | None = None,
    options: KernelOptions | None = None,
    progress: Progress | None = None,
) -> SimulatedKernels:
    """Execute a kernel in PTX, or a plan of several, and time it if a device is given.

    Parameters
    ----------
    kernel : str, path or LaunchPlan
        PTX file, TOML file of a plan, or a plan.
    entry : str
        Entry of a PTX file; not needed if it has one.
    grid : int or sequence of int
        Blocks of the launch, in up to three dimensions.
    block : int or sequence of int
        Threads of a block, in up to three dimensions.
    arguments : sequence of array, int, float, str, Texture, Structure or None
        One a parameter; arrays are buffers ``arg0``, ``arg1`` and so on, a text names a buffer of the options, and None
        is a null pointer. Arrays must have the type that the kernel reads. `Texture` and `Structure` are those of
        `replay.detailed`.
    device : str or Device, optional
        Device of the catalogue on which to time; without one, the kernel is executed only.
    options : KernelOptions, optional
        Buffers, variables, the clock and memory of the device, and limits.
    progress : callable, optional
        Called with (blocks done, blocks in all, name of the kernel).

    Raises
    ------
    SeqPointError
        A file, entry or device is missing, the PTX is not supported, the launch does not fit, or the kernel accesses
        memory out of bounds, races in shared memory or does not end.

    Examples
    --------
    >>> from profilers.files import dataset_path
    >>> result = simulate_kernel(dataset_path("ptx/triton/softmax.toml"), device="V100-SXM2-16GB")
    >>> result.outputs["y"].sum(axis=1)[:2].round(4).tolist()
    [1.0, 1.0]
    >>> result.timings[0].dram.efficiency >= result.timings[0].dram.utilisation
    True
    """
    options = options or KernelOptions()
    plan, target = _plan(kernel, entry, (grid, block), arguments, options), None
    if device is not None:
        known = find_device(device) if isinstance(device, str) else device
        clock = {"clock_mhz": options.clock_mhz, "memory_gbps": options.memory_gbps}
        target = TimedDevice.of(known, **clock, mapping=options.mapping, policy=options.scheduler)
    done = simulate_plan(
        plan, target, registers=options.registers, waves=options.waves or None,
        checks=RunChecks(options.limit, options.allow_races), progress=progress,
        checkpoint=Checkpoint(Path(options.checkpoint)) if options.checkpoint else None,
    )  # fmt: skip
    return SimulatedKernels(plan, done.outputs, done.calls, done.timings, target, done.shared_bytes, done.resumed)


def _plan(
    kernel: str | PathLike[str] | LaunchPlan,
    entry: str,
    sizes: tuple[int | Sequence[int], int | Sequence[int]],
    arguments: Sequence[NDArray[Any] | Argument | None],
    options: KernelOptions,
) -> LaunchPlan:
    """Return the plan of the arguments of `simulate_kernel`; `sizes` are grid and block."""
    is_plan = isinstance(kernel, LaunchPlan) or Path(kernel).suffix.lower() == ".toml"
    of_launch = (entry, *sizes, arguments, options.buffers, options.variables, options.shared_bytes)
    if is_plan and any(of_launch):
        raise InvalidInputError("a plan has entry, grid, block, arguments, variables and shared bytes of its own")
    if isinstance(kernel, LaunchPlan):
        return kernel
    if is_plan:
        return read_plan(Path(kernel))
    file = Path(kernel)
    if not all(sizes):
        raise InvalidInputError(f"{file}: give the grid and the block of the launch")
    named: dict[str, NDArray[Any]] = {}
    pointers: dict[str, tuple[str, ...]] = {}
    for name, buffer in options.buffers.items():
        if isinstance(buffer, np.ndarray):
            named[name] = buffer
        else:
            named[name], pointers[name] = np.zeros(len(buffer), np.uint64), tuple(buffer)
    passed: list[Argument] = []
    for number, value in enumerate(arguments):
        if isinstance(value, np.ndarray):
            named[f"arg{number}"] = value
            passed.append(f"arg{number}")
        else:
            passed.append(0 if value is None else _plain(value, f"{file}: argument {number}"))
    contents: dict[str, Argument] = {}
    for name, content in options.variables.items():
        if not isinstance(content, np.ndarray):
            contents[name] = _plain(content, f"{file}: variable {name}")
        elif name in named:
            raise InvalidInputError(f"{file}: variable {name}: there is a buffer of this name; give its name")
        else:
            named[name], contents[name] = content, name
    where = str(file)
    grid, block = (three((size,) if isinstance(size, int) else tuple(size), where) for size in sizes)
    call = KernelLaunch(file, entry, grid, block, tuple(passed), options.shared_bytes, contents)
    return LaunchPlan(entry or file.stem, named, (call,), pointers)


def _plain(value: object, where: str) -> Argument:
    """Return an argument that is no array; a number of NumPy becomes one of Python."""
    plain = value.item() if isinstance(value, np.generic) else value
    if not isinstance(plain, str | int | float | Texture | Structure):
        raise InvalidInputError(
            f"{where} is a {type(value).__name__}; arrays, numbers, names of buffers, Texture and Structure are taken"
        )
    return plain

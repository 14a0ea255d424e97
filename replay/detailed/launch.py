"""Launch kernels: place buffers in memory, pass parameters, execute the grid, and return the buffers.

`run_kernel` runs one launch; `runners` gives those of a plan, which share buffers. Results are exact: no time is
modelled (`replay.detailed.timing`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError, NotFoundError
from profilers.trace.arrays import Ints
from replay.detailed import memory as at
from replay.detailed import program as low
from replay.detailed.arguments import Argument, Texture, pass_parameters, read_variables, texture_table, write_variables
from replay.detailed.execution import run_blocks
from replay.detailed.lowering import lower
from replay.detailed.program import GLOBAL_BASE, Program
from replay.detailed.ptx import Module, Variable, global_layout, parse_ptx, variable_layout
from replay.detailed.tracing import END, LAST

#: Most threads of a block, blocks of a launch, and bytes of memory.
_MOST_THREADS, _MOST_BLOCKS, _MOST_MEMORY = 1024, 1 << 31, 8 << 30
#: Most bytes of shared memory of a block: that of an H100.
_MOST_SHARED = 227 * 1024
#: Instructions of a warp after which it counts as endless, by default: a minute of simulation.
INSTRUCTION_LIMIT = 1 << 28
#: Elements of a trace at first; it grows.
_TRACE = 1 << 16

Progress = Callable[[int, int, str], None]
Shape3 = tuple[int, int, int]


@dataclass(frozen=True)
class RunChecks:
    """What stops a kernel that would not end, or whose result would depend on the order of its warps.

    Parameters
    ----------
    limit : int
        Instructions of a warp after which it counts as endless.
    may_race : bool
        Whether warps may use the same byte of shared memory without a barrier, one of them changing it.
    """

    limit: int = INSTRUCTION_LIMIT
    may_race: bool = False


#: Checks by default.
CHECKS = RunChecks()


@dataclass(frozen=True)
class KernelLaunch:
    """A launch of a plan.

    Parameters
    ----------
    ptx : Path
        PTX file.
    entry : str
        Kernel.
    grid, block : (int, int, int)
        Blocks, and threads of a block.
    arguments : tuple
        One a parameter: the name of a buffer, a texture, a structure, or a number.
    shared_bytes : int
        Dynamic shared memory of a block.
    variables : mapping of str to str, int, float or Structure
        Content of variables of the PTX file, such as ``__constant__`` variables. A text names a buffer: it is copied
        to the variable before the launch, and back afterwards.
    """

    ptx: Path
    entry: str
    grid: Shape3
    block: Shape3
    arguments: tuple[Argument, ...]
    shared_bytes: int = 0
    variables: Mapping[str, Argument] = field(default_factory=dict)


@dataclass(frozen=True)
class LaunchPlan:
    """A sequence of launches that share buffers.

    Parameters
    ----------
    name : str
        Name.
    buffers : mapping of str to array
        Initial content of each buffer.
    calls : tuple of KernelLaunch
        Launches, in order.
    pointers : mapping of str to tuple of str
        For a buffer of pointers, the buffers whose addresses are its first elements, of 8 bytes each.
    """

    name: str
    buffers: Mapping[str, npt.NDArray[Any]]
    calls: tuple[KernelLaunch, ...]
    pointers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class CallResult:
    """What a launch executed.

    Parameters
    ----------
    entry : str
        Kernel.
    grid, block : (int, int, int)
        Blocks, and threads of a block.
    blocks : int
        Blocks that were executed.
    warp_instructions : int
        Instructions of warps, over these blocks.
    unset : tuple of str
        Variables in constant memory that the kernel uses and that neither the file nor a launch gave content: zeros.
    """

    entry: str
    grid: Shape3
    block: Shape3
    blocks: int
    warp_instructions: int
    unset: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelOutputs:
    """Buffers after a run.

    Parameters
    ----------
    outputs : mapping of str to array
        Each buffer after the last launch, in its shape and type.
    calls : tuple of CallResult
        Launches, in order.
    """

    outputs: Mapping[str, npt.NDArray[Any]]
    calls: tuple[CallResult, ...]


@lru_cache(64)
def _module(path: str, mtime_ns: int, size: int) -> Module:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise InvalidInputError(f"{path}: byte {problem.start}: this is no text, so no PTX") from None
    return parse_ptx(text, path)


def read_module(path: str | Path) -> Module:
    """Return the module of a PTX file.

    Raises
    ------
    NotFoundError
        There is no such file.
    InvalidInputError
        It is no PTX, or has something that is not supported.
    """
    file = Path(path)
    if not file.is_file():
        raise NotFoundError(f"{file}: there is no such file")
    facts = file.stat()
    if facts.st_size > 1 << 26:
        raise InvalidInputError(f"{file}: {facts.st_size} bytes; PTX of up to 64 MiB can be read")
    return _module(str(file), facts.st_mtime_ns, facts.st_size)


class PlanMemory:
    """Memory of a device: parameters, variables of modules and buffers, 256 bytes apart, with guard bytes between them.

    Parameters
    ----------
    buffers : mapping of str to array
        Initial content of each buffer.
    modules : iterable of Module
        PTX files of the launches. Launches of the same file share its variables.
    pointers : mapping of str to tuple of str, optional
        As those of `LaunchPlan`.

    Raises
    ------
    InvalidInputError
        A buffer of pointers, or one that it points to, is not there, or it is too short.
    """

    def __init__(
        self,
        buffers: Mapping[str, npt.NDArray[Any]],
        modules: Iterable[Module],
        pointers: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.buffers = {name: np.ascontiguousarray(array) for name, array in buffers.items()}
        self._modules = {module.source: module for module in modules}
        self._pointers = dict(pointers or {})
        for name, targets in self._pointers.items():
            missing = next((buffer for buffer in (name, *targets) if buffer not in self.buffers), None)
            if missing is not None:
                raise InvalidInputError(f"buffer {name:.60}: there is no buffer {missing!r:.60}")
            if 8 * len(targets) > self.buffers[name].nbytes:
                raise InvalidInputError(f"buffer {name}: {len(targets)} pointers in {self.buffers[name].nbytes} bytes")
        #: Variables that launches gave content until now, by PTX file.
        self.initialised: dict[str, set[str]] = {}
        self._variables, end = variable_layout(self._modules.values())
        named = tuple(Variable(name, "global", "b8", 256, array.nbytes) for name, array in self.buffers.items())
        offsets, self.end = global_layout(named, end)
        #: First byte and end of each buffer.
        self.extents = {name: (offsets[name], offsets[name] + array.nbytes) for name, array in self.buffers.items()}

    def variable_offsets(self, module: Module) -> dict[str, int]:
        """Return the offset of each variable of a module."""
        return self._variables[module.source]

    def allocate(self, room: int) -> None:
        """Allocate the memory and fill it, with `room` for shared and local memory behind the buffers."""
        if self.end + room > _MOST_MEMORY:
            raise InvalidInputError(
                f"buffers, shared and local memory take {self.end + room} bytes; {_MOST_MEMORY} are the most"
            )
        words = np.zeros(-(-(self.end + room) // 8) + 32, dtype=np.uint64)
        self.views = tuple(words.view(kind) for kind in (np.uint8, np.uint16, np.uint32, np.uint64))
        self.bytes = self.views[0]
        for source, module in self._modules.items():
            offsets = self._variables[source]
            for variable in module.globals:
                begin = offsets[variable.name]
                self.bytes[begin : begin + len(variable.content)] = np.frombuffer(variable.content, dtype=np.uint8)
                for byte, target, addend in variable.pointers:
                    self.views[3][(begin + byte) // 8] = GLOBAL_BASE + offsets[target] + addend
        for name, (begin, end) in self.extents.items():
            self.bytes[begin:end] = self.buffers[name].reshape(-1).view(np.uint8)
        for name, targets in self._pointers.items():
            first = self.extents[name][0] // 8
            addresses = [GLOBAL_BASE + self.extents[target][0] for target in targets]
            self.views[3][first : first + len(targets)] = addresses

    def allocations(self, program: Program) -> tuple[Ints, Ints, Ints]:
        """Return the first byte, the end and the map of all that a program may access."""
        extents = [(0, program.parameter_bytes)] if program.parameter_bytes else []
        begins = [(program.variable_offsets[variable.name], variable.size) for variable in program.module.globals]
        extents += [(begin, begin + size) for begin, size in begins]
        extents += self.extents.values()
        owner = np.full(self.end // 256 + 1, -1, dtype=np.int64)
        for number, (begin, end) in enumerate(extents):
            owner[begin // 256 : -(-end // 256)] = number
        table = np.array(extents or [(0, 0)], dtype=np.int64)
        return table[:, 0].copy(), table[:, 1].copy(), owner

    def outputs(self) -> dict[str, npt.NDArray[Any]]:
        """Return the buffers as they are now."""
        return {
            name: self.bytes[slice(*self.extents[name])].copy().view(array.dtype).reshape(array.shape)
            for name, array in self.buffers.items()
        }


def run_kernel(
    program: Program,
    grid: Sequence[int],
    block: Sequence[int],
    arguments: Sequence[npt.NDArray[Any] | int | float],
    *,
    shared_bytes: int = 0,
    blocks: Iterable[int] | None = None,
) -> KernelOutputs:
    """Execute a launch of a kernel; return its buffers as ``arg0``, ``arg1`` and so on.

    Parameters
    ----------
    program : Program
        Kernel, as `lower` returns it.
    grid, block : sequence of int
        Blocks, and threads of a block, in up to three dimensions.
    arguments : sequence of array, int or float
        One a parameter, in order; an array is a buffer that the kernel gets a pointer to.
    shared_bytes : int
        Dynamic shared memory of a block.
    blocks : iterable of int, optional
        Blocks to execute, counted along x, then y, then z; by default all.

    Raises
    ------
    InvalidInputError
        The launch does not fit the kernel, or the kernel accesses memory out of bounds, races in shared memory or does
        not end; with kernel, block, thread and line.

    Examples
    --------
    >>> text = '''.version 8.0 .target sm_70 .address_size 64
    ... .visible .entry fill(.param .u64 p) { .reg .b64 %rd<3>; .reg .b32 %r<2>;
    ... ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2;
    ... st.global.u32 [%rd1], %r1; ret; }'''
    >>> run_kernel(lower(parse_ptx(text)), [1], [4], [np.zeros(4, dtype=np.uint32)]).outputs["arg0"]
    array([0, 1, 2, 3], dtype=uint32)
    """
    buffers = {f"arg{n}": value for n, value in enumerate(arguments) if isinstance(value, np.ndarray)}
    named = tuple(f"arg{n}" if isinstance(value, np.ndarray) else value for n, value in enumerate(arguments))
    call = KernelLaunch(
        Path(program.module.source), program.entry.name, _three(grid), _three(block), named, shared_bytes
    )
    memory = PlanMemory(buffers, [program.module])
    memory.allocate(_room(program, call))
    runner = BlockRunner(program, call, memory, RunChecks(INSTRUCTION_LIMIT))
    chosen = np.arange(runner.blocks, dtype=np.int64) if blocks is None else np.fromiter(blocks, np.int64)
    runner.run(chosen)
    result = CallResult(call.entry, call.grid, call.block, len(chosen), runner.warp_instructions, runner.unset)
    return KernelOutputs(memory.outputs(), (result,))


def runners(plan: LaunchPlan, checks: RunChecks = CHECKS) -> "Iterator[BlockRunner]":
    """Yield the launches of a plan, in order; each must be run before the next.

    Parameters
    ----------
    plan : LaunchPlan
        Launches and buffers.
    checks : RunChecks
        What stops a kernel.

    Raises
    ------
    NotFoundError
        A PTX file is missing.
    InvalidInputError
        A PTX file is not supported, or a launch does not fit its kernel.
    """
    modules = [read_module(call.ptx) for call in plan.calls]
    memory = PlanMemory(plan.buffers, modules, plan.pointers)
    programs = [
        lower(module, call.entry, memory.variable_offsets(module))
        for module, call in zip(modules, plan.calls, strict=True)
    ]
    memory.allocate(max([0, *(_room(program, call) for program, call in zip(programs, plan.calls, strict=True))]))
    for program, call in zip(programs, plan.calls, strict=True):
        yield BlockRunner(program, call, memory, checks)
        read_variables(program, call.variables, memory.bytes, memory.extents)


def _three(sizes: Sequence[int]) -> Shape3:
    values = [int(size) for size in sizes] + [1, 1, 1]
    return values[0], values[1], values[2]


def _room(program: Program, call: KernelLaunch) -> int:
    """Return the bytes of shared and local memory of a block, after checks of the launch."""
    name = f"{program.module.source}: {program.entry.name}"
    threads, blocks = int(np.prod(call.block, dtype=object)), int(np.prod(call.grid, dtype=object))
    if min(*call.grid, *call.block) < 1 or threads > _MOST_THREADS or blocks >= _MOST_BLOCKS:
        raise InvalidInputError(
            f"{name}: grid {call.grid} and block {call.block}: sizes of 1 or more, up to {_MOST_THREADS} threads, "
            "fewer than 2^31 blocks"
        )
    entry = program.entry
    if (entry.block and call.block != (*entry.block, 1, 1)[:3]) or 0 < entry.most_threads < threads:
        needs = f"blocks of {entry.block}" if entry.block else f"up to {entry.most_threads} threads"
        raise InvalidInputError(f"{name}: block {call.block}, but the kernel was compiled for {needs}")
    shared = program.shared_bytes + call.shared_bytes
    if call.shared_bytes < 0 or shared > _MOST_SHARED:
        raise InvalidInputError(f"{name}: {shared} bytes of shared memory; up to {_MOST_SHARED} are possible")
    if len(call.arguments) != len(program.entry.parameters):
        raise InvalidInputError(
            f"{name}: {len(call.arguments)} arguments for {len(program.entry.parameters)} parameters of types "
            f"{', '.join(parameter.type for parameter in program.entry.parameters) or '-'}"
        )
    return shared + 64 + threads * (program.local_bytes + 8)


class BlockRunner:
    """A launch whose blocks can be executed some at a time.

    Parameters
    ----------
    program : Program
        Kernel.
    call : KernelLaunch
        Launch.
    memory : PlanMemory
        Buffers; they change.
    checks : RunChecks
        What stops the kernel.
    """

    def __init__(self, program: Program, call: KernelLaunch, memory: PlanMemory, checks: RunChecks = CHECKS) -> None:
        self.program, self.call, self.memory = program, call, memory
        self.warps = -(-int(np.prod(call.block)) // 32)
        self.blocks = int(np.prod(call.grid))
        textures = [value for value in call.arguments if isinstance(value, Texture)]
        where = f"{program.module.source}: {program.entry.name}"
        table = texture_table(textures, memory.buffers, memory.extents, where)
        allocations = (*memory.allocations(program), table)
        pass_parameters(program, call.arguments, memory.bytes, memory.extents)
        write_variables(program, call.variables, memory.bytes, memory.extents)
        initialised = memory.initialised.setdefault(program.module.source, set())
        initialised.update(call.variables)
        self.unset = tuple(name for name in program.unset if name not in initialised)
        shared = program.shared_bytes + call.shared_bytes
        shared_at = -(-memory.end // 16) * 16
        local_at = -(-(shared_at + shared) // 16) * 16
        local_bytes = -(-program.local_bytes // 8) * 8
        geometry = np.array(
            [
                *call.grid, *call.block, shared_at, shared, local_at, local_bytes, self.warps, checks.limit,
                0, 0, 0, 0, 0, int(checks.may_race),
            ],
            dtype=np.int64,
        )  # fmt: skip
        self._registers = np.zeros((self.warps, program.registers, 64), dtype=np.uint64)
        self._stacks = np.zeros((self.warps, 64, 3), dtype=np.int64)
        shadow, tiles, report = np.zeros((2, shared + 8), np.int64), np.zeros((3, 256, 32)), np.zeros(8, np.int64)
        self._launch = at.LaunchState(memory.views, geometry, allocations, shadow, tiles, report)

    @property
    def warp_instructions(self) -> int:
        """Instructions of warps that were executed."""
        return int(self._launch.geometry[at.EXECUTED])

    def resume(self, warp_instructions: int) -> None:
        """Go on after a part of the launch that was executed elsewhere, with so many instructions of warps."""
        self._launch.geometry[at.EXECUTED] = warp_instructions

    def run(self, blocks: Ints, record: bool = False) -> tuple[npt.NDArray[np.int32], Ints]:
        """Execute blocks; return their trace and the first record of each warp (`replay.detailed.tracing`).

        Parameters
        ----------
        blocks : array of int64
            Blocks, counted along x, then y, then z.
        record : bool
            Whether to record a trace; it is empty otherwise.

        Raises
        ------
        InvalidInputError
            The kernel accesses memory out of bounds, races in shared memory or does not end.
        """
        trace = np.zeros(_TRACE if record else 0, dtype=np.int32)
        marks = np.full(LAST + self.warps, -1, dtype=np.int64)
        marks[END] = 0
        firsts = np.full(len(blocks) * self.warps, -1, dtype=np.int64)
        program, report = self.program, self._launch.report
        report[:] = 0
        done, trace = run_blocks(
            (program.code, program.lists), (program.constants, program.special), self._registers, self._stacks, blocks,
            self._launch, (trace, marks, firsts),
        )  # fmt: skip
        if done < len(blocks):
            limit = int(self._launch.geometry[at.LIMIT])
            raise InvalidInputError(_fault_of(program, self.call, self.memory, report, limit))
        return trace[: marks[END]], firsts


def _fault_of(program: Program, call: KernelLaunch, memory: PlanMemory, report: Ints, limit: int) -> str:
    """Return what went wrong, with kernel, block, thread and line.

    Parameters
    ----------
    program, call, memory : Program, KernelLaunch, PlanMemory
        Launch.
    report : array of int64
        What `run_blocks` reported.
    limit : int
        Most instructions of a warp.
    """
    line = int(program.code[report[at.AT], -1])
    x, y, _ = call.grid
    number = int(report[at.BLOCK])
    block = (number % x, number // x % y, number // (x * y))
    bx, by, _ = call.block
    thread = int(report[at.THREAD])
    where = f"{program.module.source}: line {line}: {program.entry.name}, block {block}"
    lane = f", thread {(thread % bx, thread // bx % by, thread // (bx * by))}"
    address = f"address {int(report[at.ADDRESS]):#x}"
    outside = _outside(program, call, memory, int(report[at.ADDRESS]), program.code[report[at.AT]])
    texts = {
        at.OUT_OF_BOUNDS: f"{where}{lane}: {outside}",
        at.MISALIGNED: f"{where}{lane}: {address} is not aligned to the access",
        at.RACE: f"{where}{lane}: two warps use the same byte of shared memory without a barrier between, one writes"
        f"{_variable_at(program, int(report[at.ADDRESS]))}; to go on, allow races",
        at.ENDLESS: f"{where}: more than {limit} instructions of a warp: an endless loop, or it waits for a block or "
        "a warp that runs later; or set a higher limit",
        at.NO_TEXTURE: f"{where}{lane}: the first operand is no texture of the launch",
        at.TRAPPED: f"{where}{lane}: the kernel gives up: a failed assertion, or trap",
        at.OTHER_BARRIER: f"{where}{lane}: only barrier 0 is supported",
        at.NESTED: f"{where}: branches are nested too deeply",
    }
    return texts[int(report[at.PROBLEM])]


def _variable_at(program: Program, address: int) -> str:
    """Return which variable of shared memory lies at an address, as words to add."""
    offset = address & 0xFFFFFFFF
    before = [(begin, name) for name, begin in program.shared_offsets.items() if begin <= offset]
    begin, name = max(before, default=(0, ""))
    return f", byte {offset - begin} of {name}" if name else ""


def _outside(program: Program, call: KernelLaunch, memory: PlanMemory, address: int, row: Ints) -> str:
    """Return where an address lies that is in no buffer."""
    shared = program.shared_bytes + call.shared_bytes
    is_shared = (
        row[low.SPACE] == low.SHARED
        or row[low.KIND] == low.GROUP_PRODUCT
        or low.SHARED_WINDOW <= address < low.LOCAL_WINDOW
    )
    if row[low.KIND] == low.COPY and address < low.GLOBAL_BASE:
        is_shared = True
    if is_shared:
        return (
            f"address {address % low.SHARED_WINDOW:#x} is outside the {shared} bytes of shared memory of a block, "
            f"{call.shared_bytes} of them dynamic"
        )
    offset = address - low.GLOBAL_BASE
    before = [(end, name) for name, (_, end) in memory.extents.items() if end <= offset]
    text = f"address {address:#x} is outside all buffers"
    if not before or offset > memory.end:
        return text
    end, name = max(before)
    return f"{text}, {offset - end} bytes behind the end of {name}"

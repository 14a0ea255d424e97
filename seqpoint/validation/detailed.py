"""Compare the detailed simulation of kernels with counters measured in PATH.

PATH holds PTX files and kernels.json with launches and measured cycles, and beside it the counters of the same kernels
(hardware_counters/accelsim_hw_perf_volta.csv). Each kernel is executed and timed on the device that was measured, a
Quadro GV100 at 1132 MHz. Kernels with instructions that are not supported are left out and named.

\b
seqpoint validate detailed ../shared/data
seqpoint validate detailed kernels/ptx --gate --json
"""

import ast
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from profilers.devices import find_device
from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from profilers.files import key_first
from replay.calibration.tables import refuse_row
from replay.detailed import KernelLaunch, LaunchPlan, Texture
from replay.detailed.timing.launches import LaunchTiming, TimedDevice
from replay.detailed.timing.simulation import simulate_plan
from seqpoint.notebook import table_of
from seqpoint.validation.suites import Suite, SuiteOptions, SuiteResult, ValidationRow, followed, summary_row

#: Device that was measured: the chip of a V100 with other clocks (Accel-Sim, configuration SM7_QV100).
_DEVICE, _CLOCK_MHZ, _MEMORY_GBPS = "V100-SXM2-32GB", 1132.0, 870.4
#: Limits: mean error of cycles, rank correlation, difference of hit rates, median error of DRAM reads.
_CYCLES, _RANKS, _HITS, _READS = 0.30, 0.95, 0.10, 0.10
_TYPES = {
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "s8": np.int8, "s16": np.int16, "s32": np.int32,
    "s64": np.int64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
}  # fmt: skip
#: Counters that are compared.
COUNTERS = ("l2_read_hit_rate", "dram_read_bytes")
#: Most elements of a buffer.
_MOST_ELEMENTS = 1 << 29
_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_FUNCTIONS = {"maximum": np.maximum, "minimum": np.minimum, "exp": np.exp}


class _Fill(msgspec.Struct, frozen=True):
    kind: str = "zeros"
    low: float = 0.0
    high: float = 1.0
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    expr: str = ""
    file: str = ""


class _TextureRow(msgspec.Struct, frozen=True):
    width: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
    height: Annotated[int, msgspec.Meta(ge=1, le=1 << 15)]
    format: str
    filter: str
    address: str
    normalized: bool = False
    fill: _Fill = _Fill()


class _Parameter(msgspec.Struct, frozen=True):
    name: str
    type: str
    n: Annotated[int, msgspec.Meta(ge=1, le=_MOST_ELEMENTS)] = 1
    fill: _Fill | None = None
    value: float | int | None = None
    texture: _TextureRow | None = None
    #: Parameter whose buffer it points to, too: the kernel works in place.
    alias_of: str = ""


class _KernelRow(msgspec.Struct, frozen=True):
    ptx: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    params: list[_Parameter]
    dynamic_shared_bytes: int = 0
    measured_cycles: float = 0.0
    registers_per_thread_ptxas_12_9_sm70: int = 0
    counters_row: dict[str, str] = {}
    checks_interpreter_vs_counters: dict[str, Any] = {}


@dataclass(frozen=True)
class MeasuredKernel:
    """A kernel with what was measured of it.

    Parameters
    ----------
    name : str
        Name.
    folder : Path
        Folder of its files.
    facts : object
        Row of ``kernels.json``.
    counters : mapping of str to str
        Row of the table of counters, if there is one; columns as those of Accel-Sim.
    """

    name: str
    folder: Path
    facts: _KernelRow
    counters: Mapping[str, str]

    def plan(self, *, in_place: bool = True) -> LaunchPlan:
        """Return its launch with its inputs.

        Parameters
        ----------
        in_place : bool
            Whether parameters that point to the same buffer on the GPU do so here, too; or each to its own.

        Raises
        ------
        NotFoundError, InvalidInputError
            A file of data is missing, or a rule or a kind of texture is unknown.
        """
        buffers: dict[str, NDArray[Any]] = {}
        arguments: list[str | int | float | Texture] = []
        for parameter in self.facts.params:
            texture = parameter.texture
            if texture is not None:
                count = texture.width * texture.height
                texels = _Parameter(parameter.name, f"{texture.format}*", count, texture.fill)
                buffers[parameter.name] = self._content(texels).reshape(texture.height, texture.width)
                arguments.append(Texture(parameter.name, texture.filter, texture.address, texture.normalized))
                continue
            if not parameter.type.endswith("*"):
                arguments.append(0 if parameter.value is None else parameter.value)
                continue
            if in_place and parameter.alias_of:
                arguments.append(parameter.alias_of)
                continue
            buffers[parameter.name] = self._content(parameter)
            arguments.append(parameter.name)
        facts = self.facts
        call = KernelLaunch(
            self.folder / facts.ptx, facts.entry, facts.grid, facts.block, tuple(arguments), facts.dynamic_shared_bytes
        )
        return LaunchPlan(self.name, buffers, (call,))

    def _content(self, parameter: _Parameter) -> NDArray[Any]:
        where = f"{self.folder / 'kernels.json'}: {self.name}: {parameter.name}"
        if parameter.type[:-1] not in _TYPES:
            raise InvalidInputError(f"{where}: type {parameter.type!r:.40}; pointers to {', '.join(_TYPES)}")
        kind, fill, count = _TYPES[parameter.type[:-1]], parameter.fill or _Fill(), parameter.n
        random = np.random.default_rng(fill.seed)
        if fill.kind == "uniform":
            spread = np.float32(fill.high - fill.low)
            return (random.random(count, dtype=np.float32) * spread + np.float32(fill.low)).astype(kind)
        if fill.kind == "randint":
            low, high = int(fill.low), int(fill.high)
            if not -(2**63) <= low < high < 2**63:
                raise InvalidInputError(f"{where}: randint from {fill.low:g} to {fill.high:g}; low must be below high")
            return random.integers(low, high, size=count).astype(kind)
        if fill.kind == "expr":
            values = np.asarray(evaluated(fill.expr, {"i": np.arange(count), "n": count}, where)).astype(kind)
            if values.shape != (count,):
                raise InvalidInputError(f"{where}: {fill.expr!r:.80} gives {values.shape}, not {count} elements")
            return values
        if fill.kind == "file":
            file = (self.folder / fill.file).resolve()
            if not file.is_relative_to(self.folder.resolve()) or not file.is_file():
                raise NotFoundError(f"{where}: no file {fill.file!r:.80} in {self.folder}")
            return np.fromfile(file, kind, count)
        if fill.kind != "zeros":
            raise InvalidInputError(f"{where}: fill {fill.kind!r:.40}; uniform, randint, expr, file or zeros")
        return np.zeros(count, kind)


def read_kernels(file: Path) -> list[MeasuredKernel]:
    """Read a file ``kernels.json``, and the counters of its kernels if their table is beside the folder.

    Parameters
    ----------
    file : Path
        File; the table is ``../hardware_counters/accelsim_hw_perf_volta.csv``.

    Raises
    ------
    InvalidInputError
        The file is damaged or lacks a key.
    """
    try:
        rows = msgspec.convert(json.loads(file.read_bytes())["kernels"], dict[str, Any])
    except (ValueError, KeyError, TypeError, RecursionError, OSError, msgspec.ValidationError) as problem:
        raise InvalidInputError(f"{file}: no measured kernels: {str(problem)[:200]}") from None
    kernels = {}
    for name, row in rows.items():
        try:
            kernels[name] = msgspec.convert(row, _KernelRow)
        except msgspec.ValidationError as problem:
            refuse_row(file, name[:80], key_first(str(problem)))
    counters = _counters(file.parents[1] / "hardware_counters" / "accelsim_hw_perf_volta.csv")
    return [
        MeasuredKernel(name, file.parent, facts, counters.get(facts.counters_row.get("kernel", ""), {}))
        for name, facts in kernels.items()
    ]


def _counters(file: Path) -> dict[str, dict[str, str]]:
    if not file.is_file():
        return {}
    lines = [line.split(",") for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]
    counters = {}
    for number, cells in enumerate(lines[1:], 1):
        row = dict(zip(lines[0], cells, strict=False))
        if wrong := next((name for name in COUNTERS if not _is_count(row.get(name, ""))), None):
            refuse_row(file, number, f"{wrong} is {row[wrong]!r:.40}; it must be a number or empty")
        elif len(cells) > 1:
            counters[cells[1]] = row
    return counters


def _is_count(text: str) -> bool:
    """Return whether a cell is empty or a finite number that is not negative."""
    try:
        return not text or 0 <= float(text) < np.inf
    except ValueError:
        return False


def evaluated(text: str, names: Mapping[str, Any], where: str) -> Any:
    """Return the value of an expression of arithmetic and a few functions of NumPy, without executing anything else.

    Parameters
    ----------
    text : str
        Expression, such as ``np.minimum(i + 1, n - 1)``.
    names : mapping of str to object
        Values by name.
    where : str
        Place, for messages.

    Raises
    ------
    InvalidInputError
        It has anything that is not known.

    Examples
    --------
    >>> evaluated("np.minimum(i + 1, n - 1)", {"i": np.arange(3), "n": 3}, "x").tolist()
    [1, 2, 2]
    """
    try:
        return _value(ast.parse(text[:400], mode="eval").body, names)
    except (SyntaxError, KeyError, TypeError, ValueError, AttributeError, RecursionError, MemoryError):
        raise InvalidInputError(f"{where}: {text!r:.80} is no expression that is known") from None


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.BinOp):
        return _BINARY[type(node.op)](_value(node.left, names), _value(node.right, names))
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        raise TypeError(node)
    if node.func.attr == "view" and len(node.args) == 1:
        return _value(node.func.value, names).view(np.dtype(_type_name(node.args[0])))
    arguments = [_value(argument, names) for argument in node.args]
    keywords = {k.arg: k.value for k in node.keywords}
    name, owner = node.func.attr, node.func.value
    if isinstance(owner, ast.Name) and owner.id == "np":
        return _FUNCTIONS[name](*arguments)
    if name == "integers" and isinstance(owner, ast.Call) and isinstance(owner.func, ast.Attribute):
        if owner.func.attr != "default_rng":
            raise KeyError(owner.func.attr)
        size = _value(keywords["size"], names)
        if not 0 <= size <= 4 * _MOST_ELEMENTS:
            raise ValueError(size)
        kind: Any = np.dtype(_type_name(keywords["dtype"]) if "dtype" in keywords else "int64")
        random: Any = np.random.default_rng(*[_value(argument, names) for argument in owner.args])
        return random.integers(*arguments, size=size, dtype=kind)
    raise KeyError(name)


def _type_name(node: ast.expr) -> str:
    """Return the name of a type, as of ``np.uint32``."""
    if not isinstance(node, ast.Attribute):
        raise TypeError(node)
    return node.attr


@dataclass(frozen=True)
class CycleScore:
    """A kernel, and what the simulation says of it.

    Parameters
    ----------
    kernel : MeasuredKernel
        Kernel.
    timing : LaunchTiming
        Simulated.
    """

    kernel: MeasuredKernel
    timing: LaunchTiming

    @property
    def measured(self) -> float:
        """Measured cycles."""
        return self.kernel.facts.measured_cycles

    def counted(self, column: str) -> float | None:
        """Return a measured counter; None if it was not measured."""
        text = self.kernel.counters.get(column, "")
        return float(text) if text else None

    @property
    def scale(self) -> float:
        """All blocks over the timed ones."""
        return self.timing.blocks / self.timing.timed_blocks

    @property
    def dram_read_bytes(self) -> float:
        """Bytes that all blocks read from DRAM, as those of the timed ones."""
        return 32 * self.timing.counters["dram_read_sectors"] * self.scale

    def rows(self) -> list[ValidationRow]:
        """Return its rows: cycles, hit rate of L2, and bytes read from DRAM."""
        name, timing = self.kernel.name, self.timing
        error = abs(timing.cycles / self.measured - 1)
        low, high = (timing.cycles * (1 + side * timing.cycles_error) for side in (-1, 1))
        rows = [ValidationRow(f"{name}: cycles", self.measured, timing.cycles, error, low=low, high=high)]
        hits, reads = self.counted("l2_read_hit_rate"), self.counted("dram_read_bytes")
        if hits is not None:
            rate = timing.l2_read_hit_rate
            rows.append(ValidationRow(f"{name}: hit rate of L2", hits, rate, abs(rate - hits)))
        if reads:
            ours = self.dram_read_bytes
            rows.append(ValidationRow(f"{name}: bytes read from DRAM", reads, ours, abs(ours / reads - 1)))
        return rows


def target() -> TimedDevice:
    """Return the device that was measured."""
    return TimedDevice.of(find_device(_DEVICE), clock_mhz=_CLOCK_MHZ, memory_gbps=_MEMORY_GBPS)


def _score(kernels: Sequence[MeasuredKernel], options: SuiteOptions) -> SuiteResult:
    device, scores, notes = target(), [], []
    for kernel in followed(kernels, options.progress("simulating"), lambda kernel: kernel.name):
        if not kernel.facts.measured_cycles:
            continue
        try:
            registers = kernel.facts.registers_per_thread_ptxas_12_9_sm70 or None
            (timing,) = simulate_plan(kernel.plan(), device, registers=registers, execute_all=False).timings
        except SeqPointError as problem:
            notes.append(f"{kernel.name} is left out: {problem}")
            refuse_row(kernel.folder / "kernels.json", kernel.name, problem)
            continue
        scores.append(CycleScore(kernel, timing))
    rows = [row for score in scores for row in score.rows()]
    if scores:
        rows += _summaries(scores)
    columns = {
        "kernel~": "{s.kernel.name}", "measured": "{s.measured:.0f}", "simulated": "{s.timing.cycles}",
        "ratio": "{ratio:.2f}", "timed blocks": "{s.timing.timed_blocks} of {s.timing.blocks}",
        "L2 hits %": "{s.timing.l2_read_hit_rate:.1%}",
    }  # fmt: skip
    lines = [{"s": score, "ratio": score.timing.cycles / score.measured} for score in scores]
    return SuiteResult(rows, {}, [table_of("Cycles", columns, lines)], scores, notes)


def _summaries(scores: Sequence[CycleScore]) -> list[ValidationRow]:
    cycles = np.array([score.timing.cycles for score in scores], dtype=np.float64)
    measured = np.array([score.measured for score in scores])
    errors = np.abs(cycles / measured - 1)
    count = len(scores)
    rows = [summary_row(f"cycles: mean error of {count} kernels", float(errors.mean()), _CYCLES)]
    if count > 2 and np.ptp(cycles) and np.ptp(measured):
        rank = float(spearmanr(cycles, measured).statistic)
        rows.append(summary_row("cycles: rank correlation", rank, _RANKS, least=True))
    rates = [(s.timing.l2_read_hit_rate, s.counted("l2_read_hit_rate")) for s in scores]
    hits = [abs(ours - rate) for ours, rate in rates if rate is not None]
    reads = [abs(s.dram_read_bytes / read - 1) for s in scores if (read := s.counted("dram_read_bytes"))]
    if hits:
        rows.append(summary_row(f"hit rate of L2: median difference of {len(hits)}", float(np.median(hits)), _HITS))
    if reads:
        rows.append(summary_row(f"bytes read from DRAM: median error of {len(reads)}", float(np.median(reads)), _READS))
    return rows


SUITE = Suite(
    name="detailed",
    description=__doc__,
    needs="measured kernels with their PTX (kernels.json)",
    source=lambda file: file if file.name == "kernels.json" else None,
    read=lambda sources, options: [kernel for source in sources for kernel in read_kernels(source)],
    score=_score,
)

"""Causes of a GEMM's low efficiency, as far as its shape, its grid and the work around it tell.

A cause is measured or follows from figures of the trace. A cause that rests on an assumption is marked as a guess.
"""

import re
from dataclasses import dataclass
from typing import Final

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from replay.costs.kernels.models import matrix_share, runs_as
from replay.gemms.gemm import Gemm
from replay.gemms.tiles import Grid
from replay.graph.operators import DTYPE_BYTES, Operator
from seqpoint.units import duration

#: Names of causes. The first that applies is the leading one.
CAUSES: Final = (
    *("near peak", "memory-bound", "few workgroups", "tail", "edges", "misaligned", "shallow", "short"),
    *("contention", "idle before", "fp32", "not explained"),
)
#: Least share of the bandwidth that a GEMM below the ridge draws if memory is what bounds it.
_DRAWN: Final = 0.25
#: Shares of units, of rounds and of tiles' area below which they are named.
_USED: Final = 0.85
#: Steps along the depth up to which filling and emptying the pipeline dominates (stages of CUTLASS: 3 to 6).
_STEPS: Final = 4
#: Kernels up to this time are close to one without work, which takes 2 to 3 us, in ns.
_SHORT_NS: Final = 6000.0
#: Share of the time with other work beside it, and idle time over its own, from which they are named.
_BESIDE, _IDLE = 0.25, 1.0
#: Share of what the device sustains from which a GEMM is near its peak, and below which a lack of causes is named.
_NEAR, _FAR = 0.85, 0.6
#: Vector loads are this wide, in bytes, and names of CUTLASS state how many elements are aligned.
_VECTOR: Final = 16
_ALIGNMENT: Final = re.compile(r"align[a-c]?(\d+)")


@dataclass(frozen=True)
class Cause:
    """A cause of low efficiency, or the statement that there is none.

    Parameters
    ----------
    name : str
        One of `CAUSES`.
    detail : str
        Figures behind it.
    is_guess : bool
        Whether it rests on an assumption.
    """

    name: str
    detail: str = ""
    is_guess: bool = False

    def __str__(self) -> str:
        """Return the cause as text; a guess begins with a tilde."""
        return f"{'~' * self.is_guess}{self.name}{f': {self.detail}' if self.detail else ''}"


@dataclass(frozen=True)
class Rates:
    """Rates of a GEMM's launches on a device.

    Parameters
    ----------
    efficiency : float
        FLOP/s over the device's peak of the type.
    limit : float
        Largest efficiency that memory allows if every operand is moved once; at most 1.
    bandwidth_share : float
        Bytes of operands and result over time, as a share of the peak bandwidth.
    """

    efficiency: float
    limit: float
    bandwidth_share: float


@dataclass(frozen=True)
class Surroundings:
    """Work around a GEMM's launches.

    Parameters
    ----------
    median_ns : float
        Median duration of a launch.
    beside_share : float
        Share of its time with other work on the device.
    partner : str
        Class of the most frequent work beside it; empty without any.
    idle_before_ns : float
        Median time that the device is idle just before it.
    """

    median_ns: float
    beside_share: float = 0.0
    partner: str = ""
    idle_before_ns: float = 0.0


def rates_of(gemm: Gemm, operator: Operator, time_ns: float, device: Device) -> Rates | None:
    """Return the rates of launches; None without time, or if the device has no peak for the type.

    Parameters
    ----------
    gemm : Gemm
        GEMM that each launch computes.
    operator : Operator
        Its operator, which counts bytes.
    time_ns : float
        Mean time of a launch.
    device : Device
        Device that it ran on.
    """
    try:
        peak = device.flops_per_s(runs_as(device, gemm.dtype))
        bandwidth = device.memory_bytes_per_s
    except InvalidInputError:
        return None
    if time_ns <= 0:
        return None
    limit = min(gemm.flops / operator.bytes_moved * bandwidth / peak, 1.0)
    seconds = time_ns / 1e9
    return Rates(gemm.flops / seconds / peak, limit, operator.bytes_moved / seconds / bandwidth)


def causes_of(
    gemm: Gemm, grid: Grid | None, kernel: str, *, around: Surroundings, rated: tuple[Device, Rates] | None
) -> tuple[Cause, ...]:
    """Return the causes of a GEMM's low efficiency, the leading one first.

    Parameters
    ----------
    gemm : Gemm
        GEMM that the launches compute.
    grid : Grid or None
        Its grid, if it is known.
    kernel : str
        Name of its kernel.
    around : Surroundings
        Work around the launches.
    rated : (Device, Rates), optional
        Device with the rates on it, if they are known.

    Examples
    --------
    >>> from replay.gemms.tiles import grid_of, tile_of_name
    >>> gemm, name = Gemm(512, 512, 4096, dtype="fp16"), "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn"
    >>> grid = grid_of(gemm, tile_of_name(name), 16, units=108)
    >>> [str(cause) for cause in causes_of(gemm, grid, name, around=Surroundings(40e3), rated=None)]
    ['few workgroups: 16 on 108 units']
    """
    found = [] if rated is None else _near_peak(gemm, *rated) + _memory(rated[1])
    found += [] if grid is None else _of_grid(gemm, grid, 0.0 if rated is None else rated[1].efficiency)
    found += _of_shape(gemm, grid, kernel) + _of_surroundings(around)
    found += [] if rated is None else _faster_type(gemm, *rated)
    is_far = rated is not None and rated[1].efficiency < _FAR * rated[1].limit * _sustained(gemm, rated[0])
    return tuple(found) or ((Cause("not explained"),) if is_far else ())


def _memory(rates: Rates) -> list[Cause]:
    is_bound = rates.limit < 1 and rates.bandwidth_share >= _DRAWN
    return [Cause("memory-bound", f"{100 * rates.bandwidth_share:.0f} % of the bandwidth")] if is_bound else []


def _of_grid(gemm: Gemm, grid: Grid, efficiency: float) -> list[Cause]:
    """Return the causes that the workgroups tell; units that were idle cannot have computed."""
    causes = []
    assumed = not grid.workgroups  # the tile alone tells how many there were
    is_possible = efficiency <= grid.tail_efficiency
    if is_possible and grid.units_used < _USED:
        count = min(grid.tiles, grid.workgroups or grid.tiles)
        causes.append(Cause("few workgroups", f"{count} on {grid.units} units", assumed))
    elif is_possible and grid.tail_efficiency < _USED:
        detail = f"{grid.tiles} tiles keep {grid.units} units {100 * grid.tail_efficiency:.0f} % busy"
        causes.append(Cause("tail", detail, assumed))
    inside = grid.inside(gemm)
    if inside is not None and inside < _USED:
        detail = f"{100 - 100 * inside:.0f} % of the tiles is outside"
        causes.append(Cause("edges", detail, grid.known_by != "name"))
    return causes


def _of_shape(gemm: Gemm, grid: Grid | None, kernel: str) -> list[Cause]:
    """Return the causes that the shape and the name of the kernel tell."""
    causes = []
    size = DTYPE_BYTES[gemm.dtype]
    aligned = [int(number) for number in _ALIGNMENT.findall(kernel)]
    odd = [f"{name} = {getattr(gemm, name)}" for name in ("k", "n") if getattr(gemm, name) * size % _VECTOR]
    if aligned and min(aligned) * size < _VECTOR:
        causes.append(Cause("misaligned", f"{min(aligned)} of {_VECTOR // size} elements"))
    elif not aligned and odd and gemm.dtype not in ("fp32", "fp64"):
        causes.append(Cause("misaligned", f"{', '.join(odd)}, no multiple of {_VECTOR // size}", True))
    if grid is not None and grid.depth and (steps := -(-gemm.k // (max(grid.split, 1) * grid.depth))) <= _STEPS:
        causes.append(Cause("shallow", f"{steps} step{'s' * (steps != 1)} along k"))
    return causes


def _of_surroundings(around: Surroundings) -> list[Cause]:
    """Return the causes that time and neighbours tell."""
    causes = []
    if 0 < around.median_ns <= _SHORT_NS:
        causes.append(Cause("short", "near the time of a kernel without work"))
    if around.beside_share >= _BESIDE:
        causes.append(Cause("contention", f"{around.partner} beside {100 * around.beside_share:.0f} % of it", True))
    if around.idle_before_ns > 0 and around.idle_before_ns >= _IDLE * around.median_ns:
        causes.append(Cause("idle before", f"{duration(around.idle_before_ns)}, host-bound", True))
    return causes


def _sustained(gemm: Gemm, device: Device) -> float:
    """Return the share of the peak that the device sustains in a type."""
    return 1.0 if gemm.dtype in ("fp32", "fp64") else matrix_share(device)


def _near_peak(gemm: Gemm, device: Device, rates: Rates) -> list[Cause]:
    sustained = _sustained(gemm, device)
    if rates.efficiency < _NEAR * sustained:
        return []
    return [Cause("near peak", f"about {100 * sustained:.0f} % is sustained" if sustained < 1 else "")]


def _faster_type(gemm: Gemm, device: Device, rates: Rates) -> list[Cause]:
    """Return that matrix units for TF32 would be faster, if memory allows."""
    faster = device.value("tf32_tflops") / device.value("fp32_tflops") if _has_tf32(gemm, device) else 1.0
    return [Cause("fp32", f"TF32 peaks {faster:.2g} times higher")] if faster >= 2 and rates.limit == 1.0 else []


def _has_tf32(gemm: Gemm, device: Device) -> bool:
    return gemm.dtype == "fp32" and {"tf32_tflops", "fp32_tflops"} <= set(device.figures)

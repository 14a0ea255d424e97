"""Rows of GEMMs: the launches of one shape, or of one kernel of unknown shape, with rates, grid and causes."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from profilers.trace.arrays import Ints
from replay.gemms.gemm import Gemm
from replay.gemms.tiles import Grid, grid_of, tile_of_name
from replay.graph.graph import Hardware
from seqpoint.gemm_causes import Cause, Rates, Surroundings, causes_of, rates_of
from seqpoint.gemm_launches import GemmLaunches

#: Properties of a grid in JSON and in tables.
ROUNDS: Final = ("waves", "last_wave", "tail_efficiency")


@dataclass(frozen=True)
class GemmRow:
    """Launches of GEMMs of one shape and type; times in ns.

    Parameters
    ----------
    gemm : Gemm
        Shape and type.
    operators : tuple of str
        Names of the operators that launched them, most time first.
    kernel : str
        Name of the kernel with most time.
    kernels : int
        Number of distinct kernels.
    launches : int
        Number of launches.
    time_ns : int
        Sum of their durations.
    share : float
        Share of the time of all kernels of the trace.
    median_ns : float
        Median duration of a launch.
    rates : Rates, optional
        Rates on the device; None if it is unknown.
    grid : Grid, optional
        Grid of that kernel; None if neither tile nor workgroups are known, or the device is unknown.
    resident_known : bool
        Whether registers and shared memory tell how many workgroups a compute unit holds; else one is assumed.
    beside_share : float
        Share of the time with other work on the device.
    partners : tuple of (str, float)
        Classes of that work, each with its share of the launches that have a partner, most frequent first.
    idle_before_ns : float
        Median time that the device is idle just before a launch.
    why : tuple of Cause
        Causes of low efficiency, the leading one first.
    """

    gemm: Gemm
    operators: tuple[str, ...]
    kernel: str
    kernels: int
    launches: int
    time_ns: int
    share: float
    median_ns: float
    rates: Rates | None
    grid: Grid | None
    resident_known: bool
    beside_share: float
    partners: tuple[tuple[str, float], ...]
    idle_before_ns: float
    why: tuple[Cause, ...]

    @property
    def flops_per_s(self) -> float | None:
        """FLOP over time; None without time."""
        return 1e9 * self.gemm.flops * self.launches / self.time_ns if self.time_ns else None

    @property
    def efficiency(self) -> float | None:
        """FLOP/s over the peak of the device; None if unknown."""
        return None if self.rates is None else self.rates.efficiency

    @property
    def tile(self) -> str:
        """Rows, columns and depth of the tile as text; a tilde marks a guess, a dash an unknown tile."""
        if self.grid is None or not self.grid.tile_m:
            return "-"
        sizes = (self.grid.tile_m, self.grid.tile_n, *([self.grid.depth] if self.grid.depth else []))
        return f"{'~' * (self.grid.known_by != 'name')}{'x'.join(map(str, sizes))}"

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON with stable keys."""
        gemm, grid, rates = self.gemm, self.grid, self.rates
        return {
            **{name: getattr(gemm, name) for name in ("batch", "m", "n", "k", "dtype")},
            **{"operators": list(self.operators), "kernel": self.kernel, "kernels": self.kernels},
            **{"launches": self.launches, "time_ns": self.time_ns, "share": self.share, "median_ns": self.median_ns},
            "flops_per_s": self.flops_per_s,
            "efficiency": self.efficiency,
            "efficiency_limit": None if rates is None else rates.limit,
            "bandwidth_share": None if rates is None else rates.bandwidth_share,
            **_grid_facts(gemm, grid),
            "resident": grid.resident if grid and self.resident_known else None,
            "beside_share": self.beside_share,
            "partners": [{"class": name, "share": share} for name, share in self.partners],
            "idle_before_ns": self.idle_before_ns,
            "why": [{"cause": cause.name, "detail": cause.detail, "guess": cause.is_guess} for cause in self.why],
        }


def _grid_facts(gemm: Gemm, grid: Grid | None) -> dict[str, Any]:
    """Return the grid as JSON; null for an unknown value."""
    names = ("tile_m", "tile_n", "depth", "split", "workgroups", "tiles", "persistent")
    facts = {name: None if grid is None else getattr(grid, name) for name in names}
    for name in ("tile_m", "tile_n", "depth", "split", "workgroups"):
        facts[name] = facts[name] or None
    return {
        **facts,
        "tile_known_by": grid.known_by or None if grid else None,
        **{name: None if grid is None else getattr(grid, name) for name in ROUNDS},
        "tile_inside": None if grid is None else grid.inside(gemm),
    }


@dataclass(frozen=True)
class GemmKernel:
    """Launches of one GEMM kernel with one number of workgroups, whose shapes are unknown; times in ns.

    Parameters
    ----------
    kernel : str
        Name of the kernel.
    launches : int
        Number of launches.
    time_ns : int
        Sum of their durations.
    share : float
        Share of the time of all kernels of the trace.
    median_ns : float
        Median duration.
    tile : str
        Rows, columns and depth of its tile as the library sees them; a dash if its name states none.
    grid : Grid, optional
        Workgroups as a grid. None without workgroups or device, and for a kernel whose workgroups
        take several tiles each.
    """

    kernel: str
    launches: int
    time_ns: int
    share: float
    median_ns: float
    tile: str
    grid: Grid | None

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON with stable keys."""
        names = ("kernel", "launches", "time_ns", "share", "median_ns")
        grid = {name: self.grid and getattr(self.grid, name) for name in ("workgroups", *ROUNDS)}
        return {
            **{name: getattr(self, name) for name in names},
            "tile": None if self.tile == "-" else self.tile,
            **grid,
        }


def kernel_row(launches: GemmLaunches, rows: Ints, hardware: Hardware) -> GemmKernel:
    """Return the row of the launches of one kernel with one number of workgroups, of unknown shape.

    Parameters
    ----------
    launches : GemmLaunches
        Launches of a trace.
    rows : array of int64
        Rows of `launches.unknown`.
    hardware : Hardware
        Hardware of the trace.
    """
    unknown = launches.unknown
    name, duration_ns = launches.names[unknown.name[rows[0]]], unknown.duration_ns[rows]
    tile, time_ns = tile_of_name(name), int(duration_ns.sum())
    workgroups, resident = int(unknown.workgroups[rows[0]]), int(np.median(unknown.resident[rows]))
    stays = tile is not None and tile.persistent
    grid = None
    if workgroups and not stays and hardware.device is not None:
        counts = (workgroups, workgroups, 0, False, hardware.compute_units, max(resident, 1))
        grid = Grid(0, 0, 0, "", *counts)
    sizes = () if tile is None else (tile.m, tile.n, *([tile.depth] if tile.depth else []))
    text = "x".join(map(str, sizes)) or "-"
    share = time_ns / max(launches.kernel_ns_in_all, 1)
    return GemmKernel(name, len(rows), time_ns, share, float(np.median(duration_ns)), text, grid)


def gemm_row(launches: GemmLaunches, rows: Ints, hardware: Hardware, *, fixed_ns: float) -> GemmRow:
    """Return the row of the launches of one shape.

    Parameters
    ----------
    launches : GemmLaunches
        Launches of a trace.
    rows : array of int64
        Rows of `launches`, all of one shape.
    hardware : Hardware
        Hardware of the trace.
    fixed_ns : float
        Time of a product without work on it.
    """
    gemm, operator = launches.shapes[launches.shape[rows[0]]]
    duration_ns = launches.duration_ns[rows]
    time_ns = int(duration_ns.sum())
    names = _by_time(launches.name[rows], duration_ns)
    kernel = launches.names[names[0]]
    main = rows[launches.name[rows] == names[0]]
    device, grid, resident = hardware.device, None, 0
    if device is not None:
        resident = int(np.median(launches.resident[main]))
        workgroups = int(np.median(launches.workgroups[main]))
        tile = tile_of_name(kernel)
        grid = grid_of(gemm, tile, workgroups, units=hardware.compute_units, resident=max(resident, 1))
    partners = launches.partner[rows][launches.partner[rows] >= 0]
    classes, counts = np.unique(partners, return_counts=True)
    most = sorted(zip((-counts).tolist(), (launches.classes[code] for code in classes.tolist()), strict=True))
    kinds = tuple((name, -count / len(partners)) for count, name in most)
    around = Surroundings(
        median_ns=float(np.median(duration_ns)),
        beside_share=int(launches.beside_ns[rows].sum()) / max(time_ns, 1),
        partner=kinds[0][0] if kinds else "",
        idle_before_ns=float(np.median(launches.idle_before_ns[rows])),
        adding_share=int(launches.adding_ns[rows].sum()) / max(time_ns, 1),
    )
    rates = None if device is None else rates_of(gemm, operator, time_ns / len(rows), device)
    rated = None if device is None or rates is None else (device, rates)
    operators = _by_time(launches.operator[rows], duration_ns)
    return GemmRow(
        gemm=gemm,
        operators=tuple(launches.operator_names[code] for code in operators if code >= 0),
        kernel=kernel,
        kernels=len(names),
        launches=len(rows),
        time_ns=time_ns,
        share=time_ns / max(launches.kernel_ns_in_all, 1),
        median_ns=around.median_ns,
        rates=rates,
        grid=grid,
        resident_known=resident > 0,
        beside_share=around.beside_share,
        partners=kinds,
        idle_before_ns=around.idle_before_ns,
        why=causes_of(gemm, grid, kernel, around=around, rated=rated, fixed_ns=fixed_ns),
    )


def _by_time(codes: Ints, duration_ns: Ints) -> list[int]:
    """Return the distinct codes, those with most time first."""
    distinct, position = np.unique(codes, return_inverse=True)
    total = np.bincount(position, weights=duration_ns)
    return [int(code) for code in distinct[np.lexsort((distinct, -total))]]

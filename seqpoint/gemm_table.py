"""GEMMs of a trace: efficiency, waves and tail of each shape, and why it is slow.

`find_gemms` groups the launches of GEMMs by shape. Each `GemmRow` has its time, its rates, its grid, and the causes of
low efficiency. Kernels whose shape the trace does not tell are counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from profilers.trace.trace import Trace
from replay.costs.retiming import floor_ns
from replay.costs.shipped import load_parameters
from replay.costs.tiles import tile_end, tile_of_name
from replay.gemms.gemm import Gemm, LaunchGrid, grid_of
from replay.graph.graph import Hardware, given_hardware, hardware_of
from seqpoint.gemm_groups import StepGroups, suggest_groups
from seqpoint.gemm_launches import Cause, GemmLaunches, Rates, Surroundings, causes_of, gemm_launches, rates_of
from seqpoint.notebook import DataFrame, Result, Table, data_frame, shortened, table_of
from seqpoint.units import duration

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
    grid : LaunchGrid, optional
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
    grid: LaunchGrid | None
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


def _grid_facts(gemm: Gemm, grid: LaunchGrid | None) -> dict[str, Any]:
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
    grid : LaunchGrid, optional
        Workgroups as a grid. None without workgroups or device, and for a kernel whose workgroups
        take several tiles each.
    """

    kernel: str
    launches: int
    time_ns: int
    share: float
    median_ns: float
    tile: str
    grid: LaunchGrid | None

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
        grid = LaunchGrid(0, 0, 0, "", *counts)
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


#: Kinds of neighbours in a table of text; the JSON has all.
_MAX_PARTNERS = 2
#: Most characters of names of kernels and operators in it.
_NAME_LENGTH, _UNKNOWN_LENGTH, _OPERATOR_LENGTH = 48, 40, 28
#: Share of the GEMM time from which most of it is meant.
_MOSTLY = 0.5
#: A rate this far above the peak says that the device, the type or the times are wrong.
_ABOVE_PEAK = 1.02
_RECORD_SHAPES = (
    "record them with torch.profiler.profile(record_shapes=True), outside of CUDA graphs and compiled regions"
)


@dataclass(frozen=True, repr=False)
class TraceGemms(Result):
    """GEMMs of a trace by shape.

    Parameters
    ----------
    rows : tuple of GemmRow
        Shapes, most time first.
    kernel_ns : int
        Sum of the durations of all kernels of the trace.
    unknown : mapping of str to (int, int)
        GEMM kernels of unknown shape, by reason: number, and sum of their durations.
    kernels : tuple of GemmKernel
        These kernels by name, most time first.
    hardware : Hardware
        Hardware of the trace.
    step : StepGroups, optional
        Independent GEMMs of a step; None if they are unknown.
    why_no_step : str
        Why they are unknown; empty if they are known.
    synthetic : bool
        Whether the trace was synthesised.
    """

    heading = "GEMMs"

    rows: tuple[GemmRow, ...]
    kernel_ns: int
    unknown: dict[str, tuple[int, int]]
    kernels: tuple[GemmKernel, ...]
    hardware: Hardware
    step: StepGroups | None = None
    why_no_step: str = ""
    synthetic: bool = False

    @property
    def time_ns(self) -> int:
        """Sum of the durations of the GEMMs of known shape."""
        return sum(row.time_ns for row in self.rows)

    @property
    def efficiency(self) -> float | None:
        """Mean efficiency, weighted by time; None if the device is unknown."""
        known = [(row.efficiency, row.time_ns) for row in self.rows if row.efficiency is not None]
        total = sum(time for _, time in known)
        return sum(each * time for each, time in known) / total if total else None

    def table(self) -> DataFrame:
        """Return a row for each shape, most time first; times in ns."""
        rows = []
        for row in self.rows:
            facts = row.to_dict()
            facts["operators"] = ", ".join(row.operators)
            facts["partners"] = ", ".join(name for name, _ in row.partners)
            facts["why"] = "; ".join(map(str, row.why))
            rows.append(facts)
        return data_frame(rows)

    def plot(self) -> Any:
        """Return the chart of efficiency against waves, as a HoloViews object."""
        from seqpoint.plots.operators import gemm_efficiency

        rows = [
            {
                **{name: getattr(row, name) for name in ("time_ns", "share", "efficiency", "tile")},
                **{"shape": str(row.gemm), "waves": row.grid and row.grid.waves, "why": "; ".join(map(str, row.why))},
                "cause": row.why[0].name if row.why else "no cause",
            }
            for row in self.rows
        ]
        return gemm_efficiency(data_frame(rows))

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint gemms --json` prints."""
        device = self.hardware.device
        return {
            "device": device.name if device else None,
            "known_by": self.hardware.known_by,
            "compute_units": self.hardware.compute_units if device else None,
            "kernel_ns": self.kernel_ns,
            "gemm_ns": self.time_ns,
            "efficiency": self.efficiency,
            "rows": [row.to_dict() for row in self.rows],
            "unknown": [
                {"reason": reason, "kernels": count, "time_ns": time} for reason, (count, time) in self.unknown.items()
            ],
            "kernels_of_unknown_shape": [row.to_dict() for row in self.kernels],
            "step": None if self.step is None else self.step.to_dict(),
            "notes": list(self.notes()),
        }

    def summary(self) -> list[str]:
        """Return how much of the time GEMMs take, how efficient they are, and how many have no known shape."""
        launches, lines = sum(row.launches for row in self.rows), []
        if self.rows:
            rate = "" if self.efficiency is None else f", at {100 * self.efficiency:.1f} % of the peak on average"
            lines.append(
                f"{launches:,} GEMMs of {len(self.rows)} shapes take {duration(self.time_ns)}, "
                f"{self._percent(self.time_ns)} of the kernel time{rate}"
            )
        for reason, (count, time) in self.unknown.items():
            kernels = "1 GEMM kernel has" if count == 1 else f"{count:,} GEMM kernels have"
            share = self._percent(time)
            lines.append(f"{kernels} no known shape ({reason}): {duration(time)}, {share} of the kernel time")
        if not lines:
            lines.append("the trace holds no GEMM kernel; `seqpoint describe TRACE --by kernel` lists its kernels")
        return lines

    def _percent(self, time_ns: int) -> str:
        return f"{100 * time_ns / max(self.kernel_ns, 1):.1f} %"

    def notes(self) -> tuple[str, ...]:
        """Return notes on missing and doubtful figures."""
        notes = []
        if self.hardware.device is None and self.rows:
            notes.append("the trace does not name its device, so efficiency and waves are unknown; add --device NAME")
        if self.unknown and not self.rows:
            notes.append(f"no GEMM has a known shape; {_RECORD_SHAPES}")
        if self.rows and self.synthetic:
            notes.append("the trace is synthetic: nobody measured its times, and its grids are those of one tile")
        if self.rows and self.why_no_step:
            notes.append(f"no independent GEMMs were searched: {self.why_no_step}")
        if self.step is not None and self.step.left_out:
            notes.append(f"{self.step.left_out} more kinds of groups of independent GEMMs have less time")
        waiting = sum(row.time_ns for row in self.rows if row.idle_before_ns > row.median_ns)
        if waiting > _MOSTLY * self.time_ns:
            notes.append(
                "before most GEMMs the device is idle for longer than they take: the host sets the pace, and faster "
                "GEMMs gain little (`seqpoint analyze` shows where)"
            )
        above = [row for row in self.rows if row.efficiency is not None and row.efficiency > _ABOVE_PEAK]
        if above:
            notes.append(
                f"{above[0].gemm} runs at {100 * (above[0].efficiency or 0):.0f} % of the peak: the device, the data "
                "type or the durations are wrong"
            )
        return tuple(notes)

    def tables(self) -> tuple[Table, ...]:
        """Return the tables of text: time and rates, grids, and surroundings of each shape."""
        cells = list(self._cells())
        number = {"no.": "{number}"}
        rates = {
            **number, "shape~": "{shape}", "type~": "{gemm.dtype}", "operator~": "{operator}",
            "launches": "{row.launches}", "time": "{row.time_ns:time}", "share %": "{row.share:.1%}",
            "median": "{row.median_ns:time}", "TFLOP/s": "{tflops:.4g}", "of peak %": "{row.efficiency:.1%}",
            "limit %": "{limit:.0%}",
        }  # fmt: skip
        why = {**number, "shape~": "{shape}", "why~": "{why}"}
        grids = {
            **number, "kernel~": "{kernel}", "tile~": "{row.tile}", "split": "{split}", **_WAVES,
            "inside %": "{inside:.0%}",
        }  # fmt: skip
        around = {
            **number, "shape~": "{shape}", "idle before": "{row.idle_before_ns:time}",
            "beside %": "{row.beside_share:.0%}", "partners~": "{partners}",
        }  # fmt: skip
        unknown = {
            "kernel~": "{kernel}", "launches": "{row.launches}", "time": "{row.time_ns:time}",
            "share %": "{row.share:.1%}", "median": "{row.median_ns:time}", "tile~": "{row.tile}", **_WAVES,
        }  # fmt: skip
        kernels = [
            {"row": row, "kernel": _short_kernel(row.kernel, _UNKNOWN_LENGTH), **_wave_cells(row.grid)}
            for row in self.kernels
        ]
        tables = (
            table_of("GEMMs by time, whole recording", rates, cells),
            table_of("Causes of low efficiency", why, [cell for cell in cells if cell["row"].why]),
            table_of("Tiles and waves of the GEMMs", grids, cells),
            table_of("What runs before and beside the GEMMs", around, cells),
            *self._group_tables(),
            table_of("GEMM kernels of unknown shape", unknown, kernels),
        )
        return tuple(table for table in tables if table.rows)

    def _group_tables(self) -> list[Table]:
        """Return the table of independent GEMMs, if there are any."""
        if self.step is None:
            return []
        columns = {
            "group~": "{row.label}", "groups": "{row.groups}", "evidence~": "{row.evidence}",
            "time": "{row.time_ns:time}", "at once": "{at_once}", "tile~": "{tiles}",
            "speed-up": "{row.speedup:.2f}", "gain %": "{gain:.1%}",
        }  # fmt: skip
        total = max(self.step.kernel_ns, 1.0)
        cells = [
            {
                "row": row,
                "at_once": min(row.degree, len(row.members)),
                "tiles": ", ".join(row.tiles) or "-",
                "gain": row.gain_ns / total,
            }
            for row in self.step.rows
        ]
        title = f"Independent GEMMs of iteration {self.step.iteration}"
        return [table_of(title, columns, cells)]

    def _cells(self) -> Iterator[dict[str, Any]]:
        for number, row in enumerate(self.rows, 1):
            gemm, grid, rates = row.gemm, row.grid, row.rates
            partners = [f"{name} {100 * share:.0f} %" for name, share in row.partners[:_MAX_PARTNERS]]
            yield {
                "number": number,
                "row": row,
                "gemm": gemm,
                "shape": str(gemm).removesuffix(f" {gemm.dtype}"),
                "operator": shortened(row.operators[0], _OPERATOR_LENGTH) if row.operators else "-",
                "tflops": None if row.flops_per_s is None else row.flops_per_s / 1e12,
                "limit": None if rates is None else rates.limit,
                "why": "; ".join(map(str, row.why)),
                "kernel": _short_kernel(row.kernel),
                "split": (grid.split or None) if grid else None,
                **_wave_cells(grid),
                "inside": grid.inside(gemm) if grid else None,
                "partners": ", ".join(partners) or "-",
            }


#: Columns on waves, from the cells of `_wave_cells`.
_WAVES = {
    "workgroups": "{workgroups}", "waves": "{waves:.2f}", "last wave %": "{last_wave:.0%}",
    "tail %": "{tail_efficiency:.0%}",
}  # fmt: skip


def _wave_cells(grid: LaunchGrid | None) -> dict[str, Any]:
    """Return the cells on the waves of a grid; None where they are unknown."""
    cells = {name: None if grid is None else getattr(grid, name) for name in ROUNDS}
    return {"workgroups": (grid.workgroups or None) if grid else None, **cells}


def _short_kernel(name: str, length: int = _NAME_LENGTH) -> str:
    """Return a kernel's name with its begin and what stands before the end of its tile."""
    text = name.removeprefix("void ").removeprefix("cutlass::Kernel<").removeprefix("cutlass::Kernel2<")
    if len(text) <= length:
        return text
    end = tile_end(text)
    return shortened(text, length) if end <= length - 3 else f"{text[:8]}...{text[end - length + 11 : end]}"


def find_gemms(trace: Trace, *, iteration: int | None = None, device: str | None = None) -> TraceGemms:
    """Return the GEMMs of a trace by shape, and the independent GEMMs of a step.

    Parameters
    ----------
    trace : Trace
        The trace; kernels outside of iterations count, too.
    iteration : int, optional
        Iteration whose GEMMs are searched for groups; by default that of median step time.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say.

    Raises
    ------
    NotFoundError, InvalidInputError
        The device or the iteration is unknown.
    """
    asked = trace.without_context()
    hardware = given_hardware(device) or hardware_of(trace)
    launches = gemm_launches(asked, hardware.device)
    order = np.argsort(launches.shape, kind="stable")
    cuts = np.flatnonzero(np.diff(launches.shape[order])) + 1
    blocks = np.split(order, cuts) if len(order) else []
    fixed_ns = _fixed_ns(launches, hardware)
    rows = [gemm_row(launches, block, hardware, fixed_ns=fixed_ns) for block in blocks]  # a loop over shapes
    ordered = sorted(rows, key=lambda row: (-row.time_ns, str(row.gemm)))
    unknown = launches.unknown
    grids, position = np.unique(np.stack([unknown.name, unknown.workgroups]), axis=1, return_inverse=True)
    kernels = [
        kernel_row(launches, np.flatnonzero(position.ravel() == number), hardware) for number in range(grids.shape[1])
    ]
    by_time = tuple(sorted(kernels, key=lambda row: (-row.time_ns, row.kernel)))
    facts = (tuple(ordered), launches.kernel_ns_in_all, unknown.by_reason(), by_time, hardware)
    return TraceGemms(*facts, *_step(trace, iteration, device), synthetic=trace.meta.synthetic)


def _step(trace: Trace, iteration: int | None, device: str | None) -> tuple[StepGroups | None, str]:
    """Return the independent GEMMs of a step, or why they are unknown; an iteration that was asked for must exist."""
    try:
        step = suggest_groups(trace, iteration, device=device)
    except InvalidInputError as error:
        if iteration is not None:
            raise
        return None, str(error)
    return step, "" if step is not None else "the device is unknown"


def _fixed_ns(launches: GemmLaunches, hardware: Hardware) -> float:
    """Return the time of a product without work: that of the vendor's devices, at most the shortest of the trace."""
    if hardware.device is None:
        return 0.0
    usual = floor_ns("product", hardware.device, load_parameters())
    durations = launches.duration_ns[launches.duration_ns > 0]
    return float(min(usual, durations.min())) if len(durations) else usual

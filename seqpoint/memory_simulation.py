"""Simulate an operator under cache policies: `simulate_operator` returns times, hit rates and DRAM traffic.

The operator is named with its shape, and needs no trace. `memory_choices` lists the operators, policies, memory
standards and devices that can be simulated.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from profilers.devices.catalogue import Device, load_devices
from profilers.errors import InvalidInputError, NotFoundError
from replay.costs.kernels.predictor import KernelCalibration
from replay.costs.retiming import capability
from replay.memory.accesses import Stream
from replay.memory.dram import DramCounters, find_dram, load_drams, scaled_dram
from replay.memory.mapping import NAMED
from replay.memory.simulation import MOST_ACCESSES, KernelMemory, simulate
from replay.memory.streams import named_streams, stream_kinds
from replay.memory.system import Cache, CachePolicy, MemorySystem, load_policies, memory_system
from seqpoint.notebook import DataFrame, Result, Table, data_frame, table_of
from seqpoint.units import duration

#: Accesses if there is no limit, and the limits of the factor of a cache's size.
_NO_LIMIT, _FACTORS = 2**62, (1e-6, 1e6)
#: Word for all operands, and most rows of a table over time.
ALL, _MOST_SPANS = "all", 12
_CACHES = ("l1", "l2", "llc")
#: Figures of a cache that can be set.
_SETTABLE = ("ways", "line_bytes", "sector_bytes", "slices", "replacement", "latency", "line_cycles", "misses")

Options = Mapping[str, str | int | float]
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class MemoryOptions:
    """How an operator runs, and what differs from its device.

    Parameters
    ----------
    dtype : str
        Type of the elements: fp64, fp32, tf32, fp16, bf16, fp8 or int8.
    of_operator : mapping
        Options of the kind of operator, such as layout=nt of a product; `memory_choices` has them.
    caches : mapping of str to str or float
        Changes to caches: L2=2 doubles a cache (L1, L2, LLC); L2.ways=8 sets a figure of it: ways, line_bytes,
        sector_bytes, slices, replacement, latency, line_cycles or misses.
    mapping : str
        Mapping of addresses to channels, banks and rows: a name, or an order of bits such as rorabgbachco; by default
        that of the device.
    dram : str
        DRAM standard, such as HBM3, and after a colon its bandwidth in GB/s; by default those of the device.
    max_accesses : int
        Accesses of a kernel beyond which waves of workgroups stand for others, with a stated error; 0 for no limit.
    warm : tuple of str
        Operands that the caches hold from an earlier launch, such as B of a product; ``"all"`` for every operand.
    """

    dtype: str = "fp16"
    of_operator: Options = field(default_factory=dict)
    caches: Options = field(default_factory=dict)
    mapping: str = ""
    dram: str = ""
    max_accesses: int = MOST_ACCESSES
    warm: tuple[str, ...] = ()

    def system(self, device: Device) -> MemorySystem:
        """Return the memory system of a device with the changes.

        Raises
        ------
        SeqPointError
            The caches of the device are unknown, or a change is unknown or does not fit.
        """
        system = memory_system(device)
        for name, value in self.caches.items():
            system = _with_cache(system, name, value)
        if self.dram:
            system = replace(system, dram=_dram(system, self.dram))
        return replace(system, dram=system.dram.with_mapping(self.mapping)) if self.mapping else system

    def operands(self, streams: Sequence[Stream]) -> tuple[str, ...]:
        """Return the names of the warm operands.

        Raises
        ------
        NotFoundError
            The operator has no such operand.
        """
        known = tuple(dict.fromkeys(operand.name for stream in streams for operand in stream.operands))
        for name in self.warm:
            if name not in (*known, ALL):
                raise NotFoundError(f"no operand {name!r} to keep warm; there are {', '.join(known)}, or {ALL}")
        return known if ALL in self.warm else self.warm


def _with_cache(system: MemorySystem, name: str, value: str | float) -> MemorySystem:
    """Return a memory system with a cache scaled, or with another figure of it."""
    cache, _, figure = name.partition(".")
    if cache.lower() not in _CACHES:
        raise NotFoundError(f"no cache {cache!r}; there are L1, L2 and LLC, the last-level cache behind the L2")
    if not figure:
        factor = _converted(name, value, float)
        if not _FACTORS[0] <= factor <= _FACTORS[1]:
            raise InvalidInputError(f"{name}={value}: a factor of a size is a number from 1e-6 to 1e6")
        return system.scaled(cache.lower(), factor)
    if figure not in _SETTABLE:
        raise NotFoundError(f"no figure {figure!r} of a cache can be set; these can: {', '.join(_SETTABLE)}")
    old: Cache | None = getattr(system, cache.lower())
    if old is None:
        raise InvalidInputError(f"{system.name} has no {cache}; {cache}.{figure} has no effect")
    figures: dict[str, Any] = {figure: _converted(name, value, type(getattr(old, figure)))}
    changes: dict[str, Any] = {cache.lower(): replace(old, **figures)}
    return replace(system, **changes)


def _converted(name: str, value: str | float, kind: type) -> Any:
    try:
        return kind(value)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise InvalidInputError(f"{name}={value}: {value!r} is not {wanted}") from None


def _dram(system: MemorySystem, text: str) -> Any:
    """Return the memory of STANDARD or STANDARD:GBPS, by default with the bandwidth of the device."""
    standard, _, gbps = text.partition(":")
    bandwidth = 1e9 * _converted("bandwidth", gbps, float) if gbps else system.dram.bandwidth
    return scaled_dram(find_dram(standard), bandwidth).with_mapping(system.dram.mapping)


@dataclass(frozen=True, repr=False)
class SimulatedMemory(Result):
    """An operator under cache policies on a device.

    Parameters
    ----------
    operator : str
        Kind of operator.
    shape : tuple of int
        Its shape.
    options : MemoryOptions
        How it runs.
    system : MemorySystem
        Device, with the changes of the options.
    kernels : tuple of str
        Names of the kernels that run one after another.
    policies : tuple of CachePolicy
        Policies.
    results : tuple of KernelMemory
        Times and counters under each policy.
    """

    heading = "Memory simulation"

    operator: str
    shape: tuple[int, ...]
    options: MemoryOptions
    system: MemorySystem
    kernels: tuple[str, ...]
    policies: tuple[CachePolicy, ...]
    results: tuple[KernelMemory, ...]

    @property
    def label(self) -> str:
        """Operator, shape and type."""
        return f"{self.operator} {' x '.join(map(str, self.shape))} {self.options.dtype}"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each policy, with the keys of ``rows`` in the JSON."""
        first = self.results[0].seconds
        return [
            {**_row(policy, result, self.system), "speedup": first / result.seconds}
            for policy, result in zip(self.policies, self.results, strict=True)
        ]

    def result(self, policy: str | None = None) -> KernelMemory:
        """Return the times and counters under a policy, by default the first one.

        Raises
        ------
        NotFoundError
            The policy was not simulated.
        """
        names = [each.name for each in self.policies]
        if policy is not None and policy not in names:
            raise NotFoundError(f"{policy!r} was not simulated; there are {', '.join(names)}")
        return self.results[0 if policy is None else names.index(policy)]

    def table(self) -> DataFrame:
        """Return a row for each policy: times in ns, hit shares, DRAM traffic and stalls."""
        return data_frame(self.rows)

    def over_time(self, policy: str | None = None) -> DataFrame:
        """Return the traffic of the DRAM over time under a policy: bytes, row hits, and the busiest channel."""
        return data_frame(_spans(self.result(policy).dram, len(self.result(policy).dram.bytes_over_time)))

    def plot(self) -> Any:
        """Return the chart of compute, cache and memory time by policy, as a HoloViews object."""
        from seqpoint.plots import memory_times

        return memory_times(self.rows, self.label)

    def plot_traffic(self) -> Any:
        """Return the chart of the bytes that each level moves, by policy."""
        from seqpoint.plots import memory_traffic

        rows = [
            {"policy": policy.name, **_moved_bytes(result, self.system)}
            for policy, result in zip(self.policies, self.results, strict=True)
        ]
        return memory_traffic(rows, self.label, self.results[0].footprint)

    def plot_row_hits(self) -> Any:
        """Return the chart of the share of DRAM requests that find their row open, by policy."""
        from seqpoint.plots import memory_row_hits

        return memory_row_hits(self.rows, self.label)

    def plot_channels(self, policy: str | None = None) -> Any:
        """Return the heat map of DRAM channels over time under a policy, by default the first one."""
        from seqpoint.plots import memory_channels

        name = policy or self.policies[0].name
        return memory_channels(self.result(policy).dram, self.system, f"{name[:40]}: {self.label}")

    def plot_beside(self, *others: "SimulatedMemory") -> Any:
        """Return the chart of times of this and other operators by policy, relative to the first policy."""
        from seqpoint.plots import memory_times_by_operator

        return memory_times_by_operator([(each.label, each.rows) for each in (self, *others)])

    def plots(self) -> Any:
        """Return all charts below each other, with a heat map for each policy."""
        from seqpoint.plots import stacked

        moving = [
            policy.name
            for policy, result in zip(self.policies, self.results, strict=True)
            if result.dram.bytes_over_time.sum()
        ]
        charts = [self.plot(), self.plot_traffic(), self.plot_row_hits(), *map(self.plot_channels, moving)]
        return stacked(charts)

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint simulate memory --json` prints."""
        system, options = self.system, self.options
        return {
            "operator": self.operator,
            "shape": list(self.shape),
            "dtype": options.dtype,
            "options": dict(options.of_operator),
            "kernels": list(self.kernels),
            "footprint_bytes": self.results[0].footprint,
            "warm": list(options.warm),
            "device": system.name,
            "caches": _caches_facts(system),
            "dram": {
                "standard": system.dram.name,
                "channels": system.dram.channels,
                "bandwidth_gbps": system.dram.bandwidth / 1e9,
                "mapping": system.dram.mapping,
            },
            "rows": [
                {**row, "counters": dict(result.counters), "over_time": _series(result.dram)}
                for row, result in zip(self.rows, self.results, strict=True)
            ],
        }

    def summary(self) -> list[str]:
        """Return what was simulated, and how much of it stands for the rest, in a sentence each."""
        system, least = self.system, min(result.simulated_share for result in self.results)
        llc = f", LLC {system.llc.size / 2**20:g} MiB" if system.llc else ""
        dies = f"{system.dies} x " if system.dies > 1 else ""
        count = f" in {len(self.kernels)} kernels" if len(self.kernels) > 1 else ""
        sentences = [
            f"{self.label}{count}, operands of {self.results[0].footprint / 1e6:,.1f} MB",
            f"{system.name}: {system.units} units at {system.clock_hz / 1e6:g} MHz, L1 {system.l1.size / 2**10:g} KiB, "
            f"L2 {dies}{system.l2.size / 2**20:g} MiB{llc}, {system.dram.name} of {system.dram.channels} channels, "
            f"{system.dram.bandwidth / 1e9:,.0f} GB/s, mapping {system.dram.mapping}",
        ]
        if least < 1:
            sentences.append(
                f"simulated: {100 * least:.0f} % of the workgroups, which stand for all (--accesses 0: all); "
                "± % is the stated error"
            )
        return sentences

    def tables(self) -> list[Table]:
        """Return times, and traffic of caches and DRAM, by policy."""
        rows, llc = self.rows, {"LLC hit %": "{llc_hit_share:.1%}"} if self.system.llc else {}
        times = {
            "policy~": "{policy}", "time": "{time_ns:time}", "speed-up": "{speedup:.3f}", "bound~": "{bound}",
            "compute": "{compute_ns:time}", "caches": "{caches_ns:time}", "memory": "{memory_ns:time}",
            "± %": "{error_share:.1%}",
        }  # fmt: skip
        traffic = {
            "policy~": "{policy}", "L1 hit %": "{l1_hit_share:.1%}", "L2 hit %": "{l2_hit_share:.1%}", **llc,
            "read MB": "{read_mb:,.1f}", "write MB": "{written_mb:,.1f}", "row hit %": "{row_hit_share:.1%}",
            "GB/s": "{bandwidth_gbps:,.0f}", "of peak %": "{bandwidth_share:.1%}",
            "stall cycles": "{stall_cycles_per_access:,.1f}",
        }  # fmt: skip
        shown = [
            {**row, "read_mb": row["dram_read_bytes"] / 1e6, "written_mb": row["dram_write_bytes"] / 1e6}
            for row in rows
        ]
        return [
            table_of("Time by cache policy, without the launch", times, shown),
            table_of("Caches and DRAM by cache policy", traffic, shown),
        ]

    def time_tables(self) -> list[Table]:
        """Return for each policy a table of the DRAM over time."""
        columns = {
            "from": "{start}", "GB/s": "{gbps:,.0f}", "row hit %": "{row_hit_share:.1%}",
            "busiest channel": "{busiest_over_mean:.2f}",
        }  # fmt: skip
        return [
            table_of(
                f"DRAM over time: {policy.name}",
                columns,
                [{**span, "start": duration(span["start_ns"])} for span in _spans(result.dram, _MOST_SPANS)],
            )
            for policy, result in zip(self.policies, self.results, strict=True)
        ]


def _row(policy: CachePolicy, result: KernelMemory, system: MemorySystem) -> dict[str, Any]:
    counters, request = result.counters, system.dram.access_bytes
    read, written = counters["dram_reads"] * request, counters["dram_writes"] * request
    rate = (read + written) / max(result.seconds, 1e-30)
    hits = {name: result.share(f"{name}_load_sector_hits", f"{name}_load_sectors") for name in _CACHES}
    stalls = {f"{name}_stall_cycles": counters[f"{name}_stall_cycles"] for name in _CACHES}
    return {
        "policy": policy.name,
        "time_ns": 1e9 * result.seconds,
        "bound": result.bound,
        "compute_ns": 1e9 * result.compute_s,
        "caches_ns": 1e9 * result.caches_s,
        "memory_ns": 1e9 * result.memory_s,
        "l1_hit_share": hits["l1"],
        "l2_hit_share": hits["l2"],
        "llc_hit_share": hits["llc"] if system.llc else None,
        "dram_read_bytes": read,
        "dram_write_bytes": written,
        "row_hit_share": result.share("dram_row_hits", "dram_reads", "dram_writes"),
        "bandwidth_gbps": rate / 1e9,
        "bandwidth_share": rate / system.dram.bandwidth,
        **stalls,
        "stall_cycles_per_access": sum(stalls.values()) / max(counters["accesses"], 1.0),
        "error_share": result.error,
        "simulated_share": result.simulated_share,
    }


def _moved_bytes(result: KernelMemory, system: MemorySystem) -> dict[str, float]:
    """Return the bytes that each level moves, by its name."""
    moved = {}
    for name in _CACHES:
        cache: Cache | None = getattr(system, name)
        if cache is not None:
            sectors = result.counters[f"{name}_load_sectors"] + result.counters[f"{name}_store_sectors"]
            moved[name.upper()] = float(cache.sector_bytes * sectors)
    requests = {"DRAM reads": "dram_reads", "DRAM writes": "dram_writes"}
    return moved | {name: float(result.counters[key] * system.dram.access_bytes) for name, key in requests.items()}


def _caches_facts(system: MemorySystem) -> dict[str, Any]:
    """Return the figures of the caches that a device has."""
    caches: dict[str, Cache | None] = {"l1": system.l1, "l2": system.l2, "llc": system.llc}
    return {
        name: {"size_bytes": cache.size, **{figure: getattr(cache, figure) for figure in _SETTABLE}}
        for name, cache in caches.items()
        if cache is not None
    }


def _series(dram: DramCounters) -> dict[str, Any]:
    """Return the course of the DRAM over time, summed over channels, and the bytes by channel."""
    return {
        "window_ns": 1e9 * dram.window_seconds,
        "bytes": dram.bytes_over_time.sum(axis=1).tolist(),
        "row_hits": dram.row_hits_over_time.sum(axis=1).tolist(),
        "bytes_by_channel": dram.bytes_by_channel.tolist(),
    }


def _spans(dram: DramCounters, most: int) -> list[dict[str, float]]:
    """Return the traffic in at most so many spans of equal length."""
    windows = len(dram.bytes_over_time)
    each = -(-windows // max(most, 1)) or 1
    request = int(dram.bytes_by_channel.sum()) / max(dram.reads + dram.writes - dram.merged, 1)
    rows = []
    for begin in range(0, windows, each):
        moved = dram.bytes_over_time[begin : begin + each].sum(axis=0)
        hits = int(dram.row_hits_over_time[begin : begin + each].sum())
        length_s = min(each, windows - begin) * dram.window_seconds
        rows.append(
            {
                "start_ns": 1e9 * begin * dram.window_seconds,
                "bytes": float(moved.sum()),
                "gbps": float(moved.sum()) / length_s / 1e9,
                "row_hit_share": hits * request / max(float(moved.sum()), 1.0),
                "busiest_over_mean": float(moved.max() / max(moved.mean(), 1e-9)),
            }
        )
    return rows


def simulate_operator(
    operator: tuple[str, Sequence[int]],
    device: Device,
    policies: Sequence[CachePolicy],
    options: MemoryOptions,
    *,
    calibration: KernelCalibration,
    progress: Progress | None = None,
) -> SimulatedMemory:
    """Simulate an operator on a device, under each policy in turn.

    Parameters
    ----------
    operator : (str, sequence of int)
        Kind of operator, and its shape.
    device : Device
        Device of the catalogue.
    policies : sequence of CachePolicy
        Policies, at least one.
    options : MemoryOptions
        How the operator runs, and what differs from the device.
    calibration : KernelCalibration
        Fits that give the rate of arithmetic.
    progress : callable, optional
        Called with (policies done, policies in all, name of the policy).

    Raises
    ------
    SeqPointError
        The operator is unknown, its shape or an option does not fit, or the caches of the device are unknown.
    """
    kind, shape = operator
    if not policies:
        raise InvalidInputError("no cache policy to simulate")
    if options.max_accesses < 0:
        raise InvalidInputError(f"{options.max_accesses} accesses to simulate; give 1 or more, or 0 for all")
    streams = named_streams(kind, shape, options.dtype, options=options.of_operator)
    system, warm = options.system(device), options.operands(streams)
    rate = capability(device, options.dtype, calibration).flops_per_s
    results = []
    for number, policy in enumerate(policies):
        if progress:
            progress(number, len(policies), policy.name)
        most = options.max_accesses or _NO_LIMIT
        results.append(simulate(streams, system, policy, flops_per_s=rate, most_accesses=most, warm=warm))
    names = tuple(stream.name for stream in streams)
    return SimulatedMemory(kind, tuple(shape), options, system, names, tuple(policies), tuple(results))


@dataclass(frozen=True)
class MemoryChoices:
    """What can be simulated.

    Parameters
    ----------
    policies : mapping of str to CachePolicy
        Cache policies by name.
    systems : mapping of str to MemorySystem
        Memory systems of the devices whose caches are known.
    """

    policies: Mapping[str, CachePolicy]
    systems: Mapping[str, MemorySystem]

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint simulate memory --list --json` prints."""
        return {
            "operators": [
                {"operator": kind.name, "shape": kind.form, "computes": kind.summary, "options": dict(kind.options)}
                for kind in stream_kinds()
            ],
            "policies": [{"policy": policy.name, "about": policy.about} for policy in self.policies.values()],
            "devices": [
                {
                    "device": name,
                    "caches": _caches_facts(system),
                    "dies": system.dies,
                    "dram": system.dram.name,
                    "channels": system.dram.channels,
                    "bandwidth_gbps": system.dram.bandwidth / 1e9,
                    "mapping": system.dram.mapping,
                }
                for name, system in self.systems.items()
            ],
            "drams": list(load_drams()),
            "mappings": dict(NAMED),
        }

    def tables(self) -> list[Table]:
        """Return the tables of the command."""
        kinds = [
            {"kind": kind, "options": ", ".join(f"{key}={value}" for key, value in kind.options.items()) or None}
            for kind in stream_kinds()
        ]
        systems = [
            {
                "name": name, "dram": system.dram, "gbps": system.dram.bandwidth / 1e9,
                "l1": system.l1.size / 2**10, "l2": system.l2.size * system.dies / 2**20,
                "llc": system.llc.size / 2**20 if system.llc else None,
            }
            for name, system in self.systems.items()
        ]  # fmt: skip
        operators = {
            "operator~": "{kind.name}", "shape~": "{kind.form}", "computes~": "{kind.summary}", "options~": "{options}",
        }  # fmt: skip
        devices = {
            "device~": "{name}", "L1 KiB": "{l1:g}", "L2 MiB": "{l2:g}", "LLC MiB": "{llc:g}",
            "DRAM~": "{dram.name}", "channels": "{dram.channels}", "GB/s": "{gbps:,.0f}",
        }  # fmt: skip
        named = [{"name": name, "bits": bits} for name, bits in NAMED.items()]
        return [
            table_of("Operators that can be simulated", operators, kinds),
            table_of("Cache policies", {"policy~": "{name}", "about~": "{about}"}, self.policies.values()),
            table_of("Memory systems", devices, systems),
            table_of("Address mappings, from high to low bits", {"mapping~": "{name}", "bits~": "{bits}"}, named),
        ]


def memory_choices(policy_file: str | None = None) -> MemoryChoices:
    """Return the operators, policies, memory systems and mappings that can be simulated.

    Parameters
    ----------
    policy_file : str, optional
        File of further policies.
    """
    systems = {}
    for name, device in load_devices().items():
        try:
            systems[name] = memory_system(device)
        except (NotFoundError, InvalidInputError):
            continue
    return MemoryChoices(load_policies(policy_file), systems)

"""What a device was measured to reach with nothing beside it, and the hardware that predictions take from that."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from profilers.devices import Device, Figure, find_device
from profilers.errors import NotFoundError
from replay.contention.recording import ContentionRecording, RecordedWork
from replay.graph import Hardware
from replay.hardware import hardware_named
from replay.parameters import Parameters

__all__ = ["Ceilings", "as_measured", "ceilings_of", "hardware_of_recording"]

#: Of its peak, what a memory delivers at best: by which the peak of a device that no catalogue has is estimated.
_AT_BEST = 0.95
#: Times a cache, beyond which it is no help.
_BEYOND = 4
#: Works of less are too short to tell a bandwidth by, where nobody says how large the caches are.
_LARGE_BYTES = 2**26
_DIRECTIONS = ("h2d", "d2h")
#: Of the data sheet's peak; below that, works of the recording were never bound by memory.
_LEAST_SHARE = 0.2


@dataclass(frozen=True)
class Ceilings:
    """Best rates of single works, alone; 0 where no work of the recording could tell.

    Parameters
    ----------
    memory_bytes_per_s : float
        Of works that compute next to nothing and that no cache helps.
    flops_per_s : mapping of str to float
        By type.
    host_link_bytes_per_s : (float, float)
        Into the device, out of it.
    """

    memory_bytes_per_s: float
    flops_per_s: Mapping[str, float]
    host_link_bytes_per_s: tuple[float, float]

    def bound_by_memory(self, work: RecordedWork) -> bool:
        """Return whether a work's bytes take longer than its FLOP at these rates.

        Examples
        --------
        >>> ceilings = Ceilings(1e12, {"bf16": 1e15}, (0.0, 0.0))
        >>> ceilings.bound_by_memory(RecordedWork("a", "gemm", "bf16", 8, 8, 8, 10**9, 10**5, 0))
        False
        """
        rate = self.flops_per_s.get(work.dtype, 0.0)
        if not work.flops or not rate or not self.memory_bytes_per_s:
            return not work.flops
        return work.bytes_moved / self.memory_bytes_per_s > work.flops / rate


def ceilings_of(recording: ContentionRecording) -> Ceilings:
    """Return the best rates that single works of a recording reached alone, on all compute units."""
    cache = recording.device.l2_bytes or _LARGE_BYTES
    memory, flops, link = 0.0, dict[str, float](), [0.0, 0.0]
    for name in sorted({work for work, units, _ in recording.alone if not units}):
        work = recording.works[name]
        seconds = recording.alone_ns(name) / 1e9
        if work.working_set_bytes > _BEYOND * cache and not work.host_bytes and not work.flops:
            memory = max(memory, work.bytes_moved / seconds)
        if work.flops:
            flops[work.dtype] = max(flops.get(work.dtype, 0.0), work.flops / seconds)
        if work.host_bytes and work.direction in _DIRECTIONS:
            way = _DIRECTIONS.index(work.direction)
            link[way] = max(link[way], work.host_bytes / seconds)
    return Ceilings(memory, MappingProxyType(flops), (link[0], link[1]))


def hardware_of_recording(recording: ContentionRecording, ceilings: Ceilings) -> Hardware:
    """Return the catalogue's device where it knows the name, else one made of what the recording says.

    The link to the host is as fast as it was measured.
    """
    facts = recording.device
    base = _catalogued(recording)
    if base is None:
        base = Hardware(_made(recording, ceilings), "recording")
    units = facts.compute_units or base.compute_units
    engines = float(facts.copy_engines or base.copy_engines)
    link = ceilings.host_link_bytes_per_s
    return replace(base, compute_units=units, copy_engines=engines, host_link_bytes_per_s=link)


def _catalogued(recording: ContentionRecording) -> Hardware | None:
    try:
        device = find_device(recording.device.name)
    except NotFoundError:
        return None
    return hardware_named(device, "recording") if "memory_gbps" in device.figures else None


def _made(recording: ContentionRecording, ceilings: Ceilings) -> Device | None:
    if not ceilings.memory_bytes_per_s:
        return None
    facts = recording.device
    figures = {"memory_gbps": _figure(ceilings.memory_bytes_per_s / _AT_BEST / 1e9, "GB/s")}
    if facts.l2_bytes:
        figures["l2_mb"] = _figure(facts.l2_bytes / 2**20, "MB")
    if facts.compute_units:
        figures["compute_units"] = _figure(float(facts.compute_units), "1")
    return Device(facts.name, facts.vendor, facts.architecture, (), figures)


def _figure(value: float, unit: str) -> Figure:
    return Figure(value, unit, "a recording of works alone", "measured")


def as_measured(parameters: Parameters, hardware: Hardware, ceilings: Ceilings) -> Parameters:
    """Return parameters in which memory delivers what it was measured to deliver, rather than its data sheet's peak."""
    if hardware.device is None or not ceilings.memory_bytes_per_s:
        return parameters
    share = ceilings.memory_bytes_per_s / hardware.device.memory_bytes_per_s
    return parameters.with_values([("memory_efficiency_shared", min(share, 1.0))] if share >= _LEAST_SHARE else [])

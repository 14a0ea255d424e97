"""`VirtualMachine`: a virtual device as what is recorded on."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from benchmarks.gpu.step import Member
from benchmarks.gpu.virtual.device import DEVICES, VirtualDevice
from benchmarks.gpu.virtual.program import program
from benchmarks.gpu.virtual.simulate import Ran, simulate
from benchmarks.gpu.work import Work

__all__ = ["VirtualMachine"]

#: What a repetition and a member of it differ by (sigma of a logarithm), what an event is rounded to, and the mean by
#: which a stream starts late. Chosen.
_REPETITION, _MEMBER = 0.007, 0.007
_RESOLUTION_NS = 500.0
_LATE_NS = 300.0
#: Compute units that a partition may have; another has the rest.
_PARTS = (8, 16, 24, 32, 48, 64)
_MEMCPY = {"h2d": "Memcpy HtoD (Pinned -> Device)", "d2h": "Memcpy DtoH (Device -> Pinned)"}


class VirtualMachine:
    """A `Machine` whose times are simulated, with noise on top.

    What runs together is simulated once; repetitions differ by noise alone.

    Parameters
    ----------
    device : VirtualDevice, optional
    seed : int, optional
        Of the noise.
    drift : float, optional
        By which everything takes longer, as on another day; 0.01 is 1 %.
    """

    def __init__(self, device: VirtualDevice | None = None, *, seed: int = 0, drift: float = 0.0) -> None:
        self.virtual = device or next(iter(DEVICES.values()))
        self._noise = np.random.default_rng(seed)
        self._drift = drift
        self._known: dict[tuple[Member, ...], list[Ran]] = {}

    def again(self, seed: int, drift: float) -> None:
        """Go on with other noise and another drift; what was simulated is kept."""
        self._noise, self._drift = np.random.default_rng(seed), drift

    @property
    def device(self) -> str:
        """As PyTorch would write it."""
        return "cuda:0"

    @property
    def features(self) -> frozenset[str]:
        """All but a profiler."""
        return frozenset({"triton", "partitions", "priorities", "copy_engine", "pinned"})

    def facts(self) -> dict[str, Any]:
        """Return what it is, as a GPU's facts say it; `virtual` holds all that was assumed of it."""
        d = self.virtual
        return {
            "name": d.name,
            "vendor": "NVIDIA",
            "architecture": "virtual",
            "compute_units": d.sms,
            "memory_bytes": d.hbm_bytes,
            "l2_bytes": d.l2_bytes,
            "copy_engines": d.copy_engines,
            "warp_size": 32,
            "registers_per_unit": d.registers,
            "shared_bytes_per_unit": d.shared_bytes,
            "threads_per_unit": d.threads,
            "memory_bus_bits": None,
            "integrated": False,
            "features": sorted(self.features),
            "missing": {},
            "note": "simulated; nothing here was measured",
            "partitions": [[units, d.sms - units] for units in _PARTS if 2 * units <= d.sms],
            "virtual": asdict(d),
        }

    def state(self) -> dict[str, Any]:
        """Return the clock; there is no temperature."""
        return {"sm_clock_mhz": round(1000 * self.virtual.clock_ghz)}

    def synchronize(self) -> None:
        """Return at once: nothing is left running."""

    def alone(self, member: Member, repetitions: int) -> list[int]:
        """Return how long a member's launches took, ns, each time."""
        return [end - start for ((start, end),) in self.together([replace(member, lag_ns=0)], repetitions)]

    def together(self, members: Sequence[Member], repetitions: int) -> list[list[tuple[int, int]]]:
        """Return (start, end) of every member, ns from the first start, each time.

        Raises
        ------
        ValueError
            There is no member, or the partitions have more compute units than the device.
        """
        key = tuple(members)
        if not key:
            raise ValueError("nothing is to run; give at least one member")
        if key not in self._known:
            self._known[key] = simulate(self.virtual, key)
        return [self._noisy(self._known[key]) for _ in range(repetitions)]

    def kernels_of(self, works: Sequence[Work]) -> list[dict[str, Any]]:
        """Return `kernel`, `workgroups`, `workgroup_size` of each work."""
        return [self.kernel_of(work) for work in works]

    def kernel_of(self, work: Work) -> dict[str, Any]:
        """Return `kernel`, `workgroups`, `workgroup_size` of a work; of a transfer by an engine its name alone."""
        if work.kind == "copy_engine":
            return {"kernel": _MEMCPY.get(work.direction, "Memcpy DtoD (Device -> Device)")}
        p = program(work, self.virtual)
        return {"kernel": p.kernel, "workgroups": p.workgroups, "workgroup_size": p.workgroup_size}

    def _noisy(self, ran: Sequence[Ran]) -> list[tuple[int, int]]:
        """Return what events would say of one repetition."""
        common = (1.0 + self._drift) * self._noise.lognormal(0.0, _REPETITION)
        own = self._noise.lognormal(0.0, _MEMBER, len(ran))
        late = self._noise.exponential(_LATE_NS, len(ran))
        starts = np.array([r.start_ns for r in ran]) + late
        ends = starts + np.array([r.end_ns - r.start_ns for r in ran]) * common * own
        first = starts.min()
        spans = zip(starts - first, ends - first, strict=True)
        return [(_event(start), max(_event(end), _event(start) + int(_RESOLUTION_NS))) for start, end in spans]


def _event(t: float) -> int:
    """Return a time as the device's events tell it."""
    return int(t // _RESOLUTION_NS * _RESOLUTION_NS)

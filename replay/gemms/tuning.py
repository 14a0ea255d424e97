"""GO-kernels: the kernel variants that are best with copies or other GEMMs beside them (GOLDYLOC, arXiv 2409.02227).

A library chooses the variant that is fastest alone. `go_kernels` retunes each GEMM for a share of the compute units and
the cache, runs the best few candidates side by side in the engine, and keeps the winner for each degree of concurrency.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from replay.calibration.parameters import Parameters
from replay.gemms.concurrency import GemmDevice, KernelTimes, Saturation, sets_ns
from replay.gemms.gemm import Gemm, Variants
from replay.gemms.variant_model import library_of

#: Degrees of concurrency that the published predictor chooses from.
DEGREES: Final = (1, 2, 4, 8, 16)
#: Candidates that are best on the units and the cache of a degree, and on those of the next degree.
_N_BEST, _N_BEST_NEXT = 8, 4
#: Kernels of the sets that one call of the engine simulates at most.
_MAX_KERNELS: Final = 4096
#: Passes over a set of different GEMMs; in a pass, each GEMM may change its variant.
_PASSES: Final = 2
#: Factor between two grids that count as alike.
_ABOUT: Final = 1.25
#: Gain below which a candidate does not displace the default: the engine's rounding.
_MIN_GAIN: Final = 1e-9


@dataclass(frozen=True)
class GoKernel:
    """The variant of a GEMM that is best with `degree` copies side by side, and its times.

    Parameters
    ----------
    gemm : Gemm
        GEMM that it computes.
    degree : int
        Copies side by side.
    variant, default : Variants
        The GO-kernel, and the variant that is fastest alone; one row each.
    time_ns, default_ns : float
        Time of all copies side by side, with the GO-kernel and with the default.
    alone_ns : float
        Time of the default alone on the device.
    """

    gemm: Gemm
    degree: int
    variant: Variants
    default: Variants
    time_ns: float
    default_ns: float
    alone_ns: float

    @property
    def sequential_ns(self) -> float:
        """Time of the copies one after another, each with the default."""
        return self.degree * self.alone_ns

    @property
    def speedup(self) -> float:
        """Speed-up of the GO-kernels side by side over one after another."""
        return self.sequential_ns / self.time_ns

    @property
    def default_speedup(self) -> float:
        """Speed-up of the defaults side by side over one after another."""
        return self.sequential_ns / self.default_ns

    @property
    def is_default(self) -> bool:
        """Whether the isolated best is the concurrent best."""
        return self.time_ns >= self.default_ns * (1 - _MIN_GAIN)


def go_kernels(
    gemms: Sequence[Gemm], degrees: Sequence[int] = DEGREES, *, device: Device, parameters: Parameters
) -> list[GoKernel]:
    """Return the GO-kernel of each GEMM at each degree, GEMM by GEMM.

    Parameters
    ----------
    gemms : sequence of Gemm
        GEMMs.
    degrees : sequence of int
        Copies side by side, 1 or more.
    device : Device
        Device that they run on.
    parameters : Parameters
        Parameters of the contention model.

    Raises
    ------
    InvalidInputError
        A degree is below 1.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.shipped import load_parameters
    >>> options = {"device": find_device("MI100"), "parameters": load_parameters()}
    >>> alone, pair = go_kernels([Gemm(512, 1024, 1024)], [1, 2], **options)
    >>> alone.is_default, pair.speedup >= pair.default_speedup >= 1.0
    (True, True)
    """
    if any(degree < 1 for degree in degrees):
        raise InvalidInputError(f"degrees {list(degrees)}: a degree of concurrency is 1 or more")
    return _go_kernels(gemms, degrees, device, Saturation.of(parameters))


@lru_cache(maxsize=4096)
def _kept(gemm: Gemm, degree: int, device: Device, saturation: Saturation) -> GoKernel:
    return _go_kernels([gemm], [degree], device, saturation)[0]


def _go_kernels(
    gemms: Sequence[Gemm], degrees: Sequence[int], device: Device, saturation: Saturation
) -> list[GoKernel]:
    result: list[GoKernel] = []
    pending: list[_DegreeSearch] = []
    kernels = 0
    for gemm in gemms:
        tuning = _Tuning.of(gemm, device, saturation)
        for degree in degrees:
            pending.append(tuning.search(degree))
            kernels += degree * len(pending[-1].rows)
        if kernels >= _MAX_KERNELS:
            result, pending, kernels = result + _winners(pending), [], 0
    return result + _winners(pending)


@dataclass(frozen=True)
class TunedKernel:
    """A GO-kernel, against the kernel that is fastest alone.

    Parameters
    ----------
    variant : Variants
        The GO-kernel, one row.
    time_ratio, memory_ratio, cache_ratio : float
        Its time alone, and the bytes that it requests from memory and from the last-level cache, over those of the
        kernel that is fastest alone.
    workgroups : int
        Workgroups.
    footprint : float
        Share of the last-level cache that it needs.
    """

    variant: Variants
    time_ratio: float
    memory_ratio: float
    cache_ratio: float
    workgroups: int
    footprint: float


@dataclass(frozen=True)
class GoMix:
    """GO-kernels of different GEMMs side by side.

    Parameters
    ----------
    gemms : tuple of Gemm
        GEMMs in the order of dispatch.
    kernels : tuple of TunedKernel
        GO-kernel of each.
    defaults : tuple of Variants
        Kernel of each that is fastest alone; one row each.
    time_ns, default_ns : float
        Time of all side by side, with the GO-kernels and with the defaults.
    sequential_ns : float
        Time of the defaults one after another.
    """

    gemms: tuple[Gemm, ...]
    kernels: tuple[TunedKernel, ...]
    defaults: tuple[Variants, ...]
    time_ns: float
    default_ns: float
    sequential_ns: float


def go_mix(gemms: Sequence[Gemm], *, device: Device, parameters: Parameters) -> GoMix:
    """Return the variants that are best for different GEMMs side by side.

    Equal GEMMs take one kernel, that of `go_kernels`. Of different ones, each begins with its GO-kernel for as many
    copies of itself. Then each in turn takes the candidate that is best with the others as they are. The result is kept
    for the next call.

    Parameters
    ----------
    gemms : sequence of Gemm
        GEMMs in the order of dispatch.
    device, parameters
        As for `go_kernels`.

    Raises
    ------
    InvalidInputError
        There is no GEMM.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.shipped import load_parameters
    >>> gemms = [Gemm(512, 1024, 1024), Gemm(128, 1024, 4096)]
    >>> mix = go_mix(gemms, device=find_device("MI100"), parameters=load_parameters())
    >>> mix.time_ns <= mix.default_ns
    True
    """
    if not gemms:
        raise InvalidInputError("no GEMM to run side by side")
    return _kept_mix(tuple(gemms), device, Saturation.of(parameters))


@lru_cache(maxsize=4096)
def _kept_mix(gemms: tuple[Gemm, ...], device: Device, saturation: Saturation) -> GoMix:
    if len(set(gemms)) == 1:
        go, n = _kept(gemms[0], len(gemms), device, saturation), len(gemms)
        kernel = _tuned(gemms[0], go.variant, go.default, GemmDevice.of(device, gemms[0], saturation))
        return GoMix(gemms, (kernel,) * n, (go.default,) * n, go.time_ns, go.default_ns, go.sequential_ns)
    tunings = {gemm: _Tuning.of(gemm, device, saturation) for gemm in dict.fromkeys(gemms)}
    searches = {gemm: tuning.search(len(gemms)) for gemm, tuning in tunings.items()}
    winners = dict(zip(searches, (_best(times) for times in _times_of(list(searches.values()))), strict=True))
    members = [searches[gemm] for gemm in gemms]
    chosen = np.array([winners[gemm] for gemm in gemms])
    for position in [*range(len(gemms))] * _PASSES:
        sets = np.tile(chosen, (len(members[position].rows), 1))
        sets[:, position] = np.arange(len(sets))
        chosen = sets[int(np.argmin(_mixed_ns(members, sets)))]
    defaults = np.zeros_like(chosen)  # the default is the first candidate
    time_ns, default_ns = _mixed_ns(members, np.stack([chosen, defaults])).tolist()
    if time_ns >= default_ns * (1 - _MIN_GAIN):
        chosen, time_ns = defaults, default_ns
    variants = [search.variant(row) for search, row in zip(members, chosen.tolist(), strict=True)]
    default = tuple(search.variant(0) for search in members)
    kernels = tuple(
        _tuned(gemm, variant, alone, tunings[gemm].device)
        for gemm, variant, alone in zip(gemms, variants, default, strict=True)
    )
    return GoMix(gemms, kernels, default, time_ns, default_ns, sum(search.alone_ns for search in members))


def _tuned(gemm: Gemm, variant: Variants, default: Variants, device: GemmDevice) -> TunedKernel:
    """Return a GO-kernel against a default kernel, one row each."""
    columns = [device.columns(gemm, each) for each in (variant, default)]
    go, alone = ({name: float(np.ravel(value)[0]) for name, value in each.items()} for each in columns)
    time_ratio = go["duration_ns"] / alone["duration_ns"]
    memory, cache = (time_ratio * go[name] / alone[name] if alone[name] > 0 else 1.0 for name in ("hbm", "l2"))
    return TunedKernel(variant, time_ratio, memory, cache, int(go["workgroups"]), go["footprint"])


def library_share(
    gemms: tuple[Gemm, ...], workgroups: tuple[int, ...], *, device: Device, parameters: Parameters
) -> float | None:
    """Return the time of GEMMs side by side over one after another, by the library's kernels of such grids.

    Parameters
    ----------
    gemms : tuple of Gemm
        GEMMs in the order of dispatch.
    workgroups : tuple of int
        Workgroups of the kernel of each; 0 if unknown, then the kernel that is fastest alone.
    device, parameters
        As for `go_kernels`.

    Returns
    -------
    float or None
        None if the library has no kernel of a GEMM whose workgroups are within a quarter of those given.
    """
    return _kept_share(gemms, workgroups, device, Saturation.of(parameters))


@lru_cache(maxsize=4096)
def _kept_share(
    gemms: tuple[Gemm, ...], workgroups: tuple[int, ...], device: Device, saturation: Saturation
) -> float | None:
    members = []
    for gemm, count in zip(gemms, workgroups, strict=True):
        tuning = _Tuning.of(gemm, device, saturation)
        row = tuning.with_workgroups(count)
        if row is None:
            return None
        members.append(_DegreeSearch(tuning, len(gemms), np.array([row])))
    alone_ns = sum(member.alone_ns for member in members)
    return float(_mixed_ns(members, np.zeros((1, len(members)), dtype=np.int64))[0]) / alone_ns


@dataclass(frozen=True)
class _Tuning:
    """A GEMM with the kernels of its device; it ranks them on a share of the device."""

    gemm: Gemm
    library: Variants
    device: GemmDevice

    @classmethod
    def of(cls, gemm: Gemm, device: Device, saturation: Saturation) -> "_Tuning":
        return cls(gemm, library_of(device, gemm.dtype)[0], GemmDevice.of(device, gemm, saturation))

    def search(self, degree: int) -> "_DegreeSearch":
        """Return the candidates of a degree."""
        rows = [self.ranked(1)[:1]]
        if degree > 1:
            rows += [self.ranked(degree)[:_N_BEST], self.ranked(2 * degree)[:_N_BEST_NEXT]]
        return _DegreeSearch(self, degree, np.array(list(dict.fromkeys(np.concatenate(rows).tolist()))))

    def with_workgroups(self, count: int) -> int | None:
        """Return the variant that is fastest alone of those with about `count` workgroups; 0 stands for any count."""
        ranked = self.ranked(1)
        if count == 0:
            return int(ranked[0])
        distance = np.abs(np.log(self.library.workgroups(self.gemm)[ranked] / count))
        best = int(np.argmin(distance))  # the first of equals is the fastest
        return int(ranked[best]) if distance[best] <= np.log(_ABOUT) else None

    def ranked(self, parts: int) -> Ints:
        """Return the variants, the fastest first, on one of `parts` equal parts of the device."""
        units = max(self.device.units // parts, 1)
        costs = self.device.model.costs(
            self.gemm, self.library, self.device.device, units=units, cache_share=1.0 / parts
        )
        return np.argsort(costs.time_ns, kind="stable")


@dataclass(frozen=True)
class _DegreeSearch:
    """Candidates of a GEMM at a degree: rows of the library, the default first."""

    tuning: _Tuning
    degree: int
    rows: Ints

    @cached_property
    def variants(self) -> Variants:
        """Candidates."""
        return self.tuning.library.select(self.rows)

    @cached_property
    def workgroups(self) -> Ints:
        """Workgroups of each candidate."""
        return self.variants.workgroups(self.tuning.gemm)

    @cached_property
    def alone_ns(self) -> float:
        """Time of the default alone."""
        return float(self.times(0).alone_ns[0])

    def times(self, on_unit: Ints | int) -> KernelTimes:
        """Return the times of the candidates; `on_unit` as in `GemmDevice.times`."""
        return self.tuning.device.times(self.tuning.gemm, self.variants, on_unit)

    def variant(self, row: int) -> Variants:
        """Return a candidate."""
        return self.variants.select(row)


def _times_of(searches: Sequence[_DegreeSearch]) -> list[Floats]:
    """Return for each search the time of `degree` copies of each candidate, ns."""
    count = np.array([len(search.rows) for search in searches])
    times = [search.times(-(-search.degree * search.workgroups // search.tuning.device.units)) for search in searches]
    joined = times[0].joined(*times[1:])
    degree = np.repeat([search.degree for search in searches], count)
    copies = np.arange(degree.max()) < degree[:, None]
    sets = np.where(copies, np.arange(len(joined))[:, None], -1)
    return np.split(sets_ns(joined, sets), np.cumsum(count)[:-1])


def _mixed_ns(members: Sequence[_DegreeSearch], sets: Ints) -> Floats:
    """Return the time of each set of kernels: a row of `sets` has the candidate of each member."""
    workgroups = np.stack([search.workgroups[sets[:, k]] for k, search in enumerate(members)], axis=1)
    on_unit = -(-workgroups.sum(axis=1) // members[0].tuning.device.units)
    times = [
        search.tuning.device.times(search.tuning.gemm, search.variants.select(sets[:, k]), on_unit)
        for k, search in enumerate(members)
    ]
    joined = times[0].joined(*times[1:])
    return sets_ns(joined, np.arange(len(joined)).reshape(len(members), len(sets)).T)


def _best(times: Floats) -> int:
    """Return the best candidate; the default, which is the first, unless another is faster."""
    best = int(np.argmin(times))
    return best if times[best] < times[0] * (1 - _MIN_GAIN) else 0


def _winners(searches: Sequence[_DegreeSearch]) -> list[GoKernel]:
    """Return the GO-kernel of each search."""
    if not searches:
        return []
    result = []
    for search, times in zip(searches, _times_of(searches), strict=True):
        best = _best(times)
        variants = search.variant(best), search.variant(0)
        copies = float(times[best]), float(times[0]), search.alone_ns
        result.append(GoKernel(search.tuning.gemm, search.degree, *variants, *copies))
    return result

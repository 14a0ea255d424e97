"""Score re-timing for another device on pairs of traces of one job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from profilers.trace.kernels import CLASSES
from replay.calibration.parameters import Parameters
from replay.costs.shipped import load_parameters
from replay.graph.graph import KernelGraph, TaskKind
from replay.what_ifs import WhatIf, compose, scale_device
from seqpoint.validation.rows import ValidationRow

#: Error of a job's total kernel time that is allowed.
LIMIT = 0.20
#: Draws of the parameters for the interval.
_DRAWS = 200
_COLLECTIVE = CLASSES.index("collective")


@dataclass(frozen=True)
class RetimingScore:
    """Total kernel time of a job on a device, from its trace on another and as measured.

    Parameters
    ----------
    case, source, target : str
        What was compared; the devices' names.
    traced_ns, measured_ns, retimed_ns : float
        On the source; on the target; the trace of the source re-timed for the target.
    low_ns, high_ns : float
        Central 90 % of the re-timed total over the ranges of the parameters.
    by_class : mapping of str to (traced, measured, retimed)
        In ns, by class of kernel.
    """

    case: str
    source: str
    target: str
    traced_ns: float
    measured_ns: float
    retimed_ns: float
    low_ns: float
    high_ns: float
    by_class: Mapping[str, tuple[float, float, float]]

    @property
    def error(self) -> float:
        """Re-timed over measured, less one."""
        return self.retimed_ns / self.measured_ns - 1


def score_retiming(
    case: str,
    traced: Sequence[KernelGraph],
    measured: Sequence[KernelGraph],
    then: WhatIf | None = None,
    seed: int = 0,
) -> RetimingScore:
    """Re-time the graphs of one device for the device of others, and compare their kernels' total time.

    Collectives are left out: they wait for other ranks, and go over links, so that their time is not the device's.
    Copies are no kernels. Only work of whole iterations counts, in its duration alone on the device.

    Parameters
    ----------
    case : str
    traced, measured : sequence of KernelGraph
        The same iterations of one job on two devices, as many of each.
    then : WhatIf, optional
        What else is known to differ on the target, such as a data type.
    seed : int
        Of the draws for the interval.

    Raises
    ------
    InvalidInputError
        There is no graph, there are not as many of each, or a device is not known.
    """
    if not traced or len(traced) != len(measured):
        raise InvalidInputError(f"{case}: {len(traced)} and {len(measured)} iterations; give as many of each device")
    source, target = (graphs[0].hardware.device for graphs in (traced, measured))
    if source is None or target is None:
        raise InvalidInputError(f"{case}: a trace does not say on which device it was recorded")
    what_if = compose(scale_device(target), *([then] if then else []))
    nominal, random = load_parameters(), np.random.default_rng(seed)
    new = _totals(traced, what_if, nominal)
    drawn = [_totals(traced, what_if, nominal.drawn(random)).sum() for _ in range(_DRAWS)]
    low, high = np.quantile(drawn, (0.05, 0.95)).tolist()
    old, true = _by_class(traced), _by_class(measured)
    classes = {
        name: (float(old[i]), float(true[i]), float(new[i])) for i, name in enumerate(CLASSES) if old[i] or true[i]
    }
    totals = (float(old.sum()), float(true.sum()), float(new.sum()))
    return RetimingScore(case, source.name, target.name, *totals, low, high, MappingProxyType(classes))


def retiming_rows(scores: Sequence[RetimingScore], information: Sequence[str] = ()) -> list[ValidationRow]:
    """Return a row a score; those whose case is in `information` have no limit."""
    return [
        ValidationRow(
            f"{one.case}: {one.source} -> {one.target}",
            one.measured_ns / 1e6,
            one.retimed_ns / 1e6,
            abs(one.error),
            None if one.case in information else LIMIT,
            source="a pair of traces",
        )
        for one in scores
    ]


def _totals(graphs: Sequence[KernelGraph], what_if: WhatIf, parameters: Parameters) -> Floats:
    return _by_class([what_if(graph, parameters) for graph in graphs])


def _by_class(graphs: Sequence[KernelGraph]) -> Floats:
    found = np.zeros(len(CLASSES))
    for graph in graphs:
        tasks = graph.tasks
        chosen = (tasks.kind == TaskKind.KERNEL) & tasks.own & graph.on_device() & (tasks.class_ != _COLLECTIVE)
        found += np.bincount(tasks.class_[chosen], tasks.duration_ns[chosen], len(CLASSES))
    return found

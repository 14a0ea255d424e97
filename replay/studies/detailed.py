"""What detailed simulation of kernels must show (arXiv 1811.08933): camping, DRAM metrics, and a resumed run."""

import tempfile
from pathlib import Path

import numpy as np

from profilers.devices import find_device
from replay.calibration.parameters import Parameters
from replay.detailed.launch import Plan, runners
from replay.detailed.timing.launches import Target, TimedLaunch, Timing, timed_plan
from replay.studies.lenet import ALGORITHMS, lenet_plan
from replay.studies.operator_kernels import stride_plan

_DEVICE = "V100-SXM2-16GB"
#: Bytes after which a consecutive mapping returns to the same channel, on the device.
_STRIDE = 16384
#: Traffic of the busiest channel over the mean from which it counts as camping.
_CAMPING = 2.0
_BATCH = 4
#: Cycles after which the run that is resumed is saved.
_SAVED_AT = 1500


def reproduce(parameters: Parameters) -> dict[str, float]:
    """Return our figure for every name in `datasets/published/detailed.toml`."""
    spread = {mapping: _spread(mapping) for mapping in ("interleaved", "xor")}
    target = Target.of(find_device(_DEVICE))
    launches = [timing for name in ALGORITHMS for timing in timed_plan(_forward(name), target)]
    return {
        "camping_consecutive": float(spread["interleaved"] >= _CAMPING),
        "camping_xor": float(spread["xor"] < _CAMPING),
        "efficiency_at_least_utilisation": float(
            sum(timing.dram.efficiency >= timing.dram.utilisation for timing in launches) / len(launches)
        ),
        "algorithms_compared": float(len(ALGORITHMS)),
        "resumed_identical": float(_resumes(target)),
    }


def _spread(mapping: str) -> float:
    """Return the bytes of the busiest channel over the mean, for lines a stride apart."""
    target = Target.of(find_device(_DEVICE), mapping=mapping)
    (timing,) = timed_plan(stride_plan(80, 64, 8, _STRIDE), target)
    moved = timing.dram.bytes_by_channel
    return float(moved.max() / moved.mean())


def _forward(algorithm: str) -> Plan:
    return lenet_plan(algorithm, batch=_BATCH, backward=False)


def _resumes(target: Target) -> bool:
    """Return whether a run that was saved and resumed ends as one that was not."""
    plan = stride_plan(80, 128, 8, 4096)

    def launch() -> TimedLaunch:
        return TimedLaunch(next(iter(runners(plan))), target)

    whole, stopped, resumed = launch().run(), launch(), launch()
    with tempfile.TemporaryDirectory() as folder:
        stopped.advance(_SAVED_AT)
        stopped.save(Path(folder) / "state.npz")
        resumed.resume(Path(folder) / "state.npz")
    return _equal(whole, resumed.run())


def _equal(first: Timing, second: Timing) -> bool:
    return (
        first.cycles == second.cycles
        and first.counters == second.counters
        and np.array_equal(first.series, second.series)
    )

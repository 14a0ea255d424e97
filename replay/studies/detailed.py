"""What detailed simulation of kernels must show (arXiv 1811.08933): camping, DRAM metrics, and a resumed run."""

import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np

from profilers.devices import find_device
from profilers.files import dataset_path
from replay.calibration.parameters import Parameters
from replay.detailed.launch import KernelLaunch, LaunchPlan
from replay.detailed.timing.launches import LaunchTiming, TimedDevice
from replay.detailed.timing.simulation import Checkpoint, simulate_plan
from replay.studies.lenet import ALGORITHMS, lenet_plan

_DEVICE = "V100-SXM2-16GB"
#: Bytes after which a consecutive mapping returns to the same channel, on the device.
_STRIDE = 16384
#: Traffic of the busiest channel over the mean from which it counts as camping.
_CAMPING = 2.0
_BATCH = 4


def reproduce(parameters: Parameters) -> dict[str, float]:
    """Return our figure for every name in `datasets/published/detailed.toml`."""
    spread = {mapping: _spread(mapping) for mapping in ("interleaved", "xor")}
    target = TimedDevice.of(find_device(_DEVICE))
    launches = [timing for name in ALGORITHMS for timing in simulate_plan(_forward(name), target).timings]
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
    target = TimedDevice.of(find_device(_DEVICE), mapping=mapping)
    (timing,) = simulate_plan(stride_plan(80, 64, 8, _STRIDE), target).timings
    moved = timing.dram.bytes_by_channel
    return float(moved.max() / moved.mean())


def _forward(algorithm: str) -> LaunchPlan:
    return lenet_plan(algorithm, batch=_BATCH, backward=False)


class _StoppedError(Exception):
    """The simulation is stopped on purpose."""


def _resumes(target: TimedDevice) -> bool:
    """Return whether a simulation that was stopped, and goes on from its checkpoint, ends as one that was not."""
    plan = stride_plan(80, 128, 64, 512)

    def stop(done: int, blocks: int, name: str) -> None:
        if file.exists():
            raise _StoppedError

    (whole,) = simulate_plan(plan, target).timings
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state.npz"
        with suppress(_StoppedError):
            simulate_plan(plan, target, progress=stop, checkpoint=Checkpoint(file, 0.0))
        was_kept = file.exists()
        (resumed,) = simulate_plan(plan, target, checkpoint=Checkpoint(file)).timings
    return was_kept and _equal(whole, resumed)


def _equal(first: LaunchTiming, second: LaunchTiming) -> bool:
    return (
        first.cycles == second.cycles
        and first.counters == second.counters
        and np.array_equal(first.series, second.series)
    )


def stride_plan(blocks: int, threads: int, turns: int, stride: int) -> LaunchPlan:
    """Return a launch whose warps each read a line of 128 bytes in each turn.

    Parameters
    ----------
    blocks, threads : int
        Blocks, and threads of a block; threads are a multiple of 32.
    turns : int
        Lines that each warp reads.
    stride : int
        Bytes between lines; a multiple of 4.
    """
    lines = blocks * threads // 32 * turns
    buffers = {
        "y": np.zeros(blocks * threads, dtype=np.float32),
        "x": np.zeros(lines * stride // 4 + 32, dtype=np.float32),
    }
    file = dataset_path("ptx/operators/probes.ptx")
    call = KernelLaunch(file, "stride", (blocks, 1, 1), (threads, 1, 1), ("y", "x", stride // 4, turns))
    return LaunchPlan(f"lines {stride} bytes apart", buffers, (call,))

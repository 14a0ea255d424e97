"""What a device sustains, where its data sheet says what it could reach."""

from dataclasses import dataclass, replace
from functools import cache

from profilers.devices import Device, find_device
from replay.durations.calibration import load_calibration
from replay.durations.carrying import carry_over
from replay.durations.fitting import Fit
from replay.durations.machine import Machine, runs_as
from replay.durations.models import MODELS

__all__ = ["Capability", "capability"]


@dataclass(frozen=True)
class Capability:
    """A device at one data type.

    Parameters
    ----------
    device : Device
    machine : Machine
        Its peaks, as the models of durations take them.
    dtype : str
        What kernels of the type run as there: FP16 on a device without units for it is FP32.
    efficiency : float
        Share of `machine`'s rate that large products reach: matrix units' is what was measured, 1 is all of it.
    memory : float
        Share of the bandwidth that streaming kernels sustain.
    """

    device: Device
    machine: Machine
    dtype: str
    efficiency: float
    memory: float

    @property
    def flops_per_s(self) -> float:
        """FLOP/s of a large matrix product."""
        return self.machine.flops_per_s * self.efficiency

    @property
    def bytes_per_s(self) -> float:
        """Bytes/s of a large streaming kernel."""
        return self.machine.memory_bytes_per_s * self.memory

    def fit(self, kind: str, floor_s: float) -> Fit:
        """Return the parameters of a product's model here, with what holds of traced kernels in place of two.

        The models are fitted to FP32 and to times that include the host's launch; a traced kernel's does not.
        """
        found = _fit(kind, self.machine, self.dtype)
        names = [p.name for p in MODELS[kind].parameters]
        values = list(found.values)
        values[names.index("start_s")] = floor_s
        values[names.index("efficiency")] = self.efficiency
        return replace(found, values=tuple(values))


@cache
def capability(device: Device, dtype: str) -> Capability:
    """Return what `device` sustains in `dtype`.

    Vector units (FP32, FP64) sustain the share that FP32 products were fitted at (`datasets/fits`; where the device was
    not measured, on one of its architecture, else carried over from all). Matrix units of 16 and 8 bits and TF32
    sustain what `replay.durations.machine.matrix_share` says.

    Parameters
    ----------
    device : Device
    dtype : str
        One of `profilers.devices.DTYPES`.

    Raises
    ------
    InvalidInputError
        The catalogue lacks a figure that is needed.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> one, other = (capability(find_device(name), "bf16").flops_per_s for name in ("H100", "MI300X"))
    >>> f"{one:.3g} {other:.3g}"
    '7.94e+14 6.68e+14'
    >>> capability(find_device("V100"), "bf16").dtype
    'fp32'
    """
    # FP64 counts as FP32 where it has no figure.
    computes = runs_as(device, dtype)
    computes = computes if f"{computes}_tflops" in device.figures else "fp32"
    machine = Machine.of(device, computes)
    vector = computes in ("fp32", "fp64")
    efficiency = _parameter("matmul", _fit("matmul", machine, "fp32")) if vector else 1.0
    memory = _parameter("elementwise", _fit("elementwise", machine, "fp32"))
    return Capability(device, machine, computes, efficiency, memory)


@cache
def _fit(kind: str, machine: Machine, dtype: str) -> Fit:
    """Return the device's own fit, that of devices of its architecture, or what is carried over from all."""
    known = load_calibration()
    fits = known.donors(kind, known.like(kind, dtype), ())
    alike = {name: fit for name, fit in fits.items() if find_device(name).architecture == machine.architecture}
    return fits.get(machine.name) or carry_over(kind, alike or fits, machine)


def _parameter(kind: str, fit: Fit) -> float:
    name = "memory" if kind == "elementwise" else "efficiency"
    return fit.values[[p.name for p in MODELS[kind].parameters].index(name)]

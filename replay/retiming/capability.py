"""What a device sustains, where its data sheet says what it could reach."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from profilers.devices import DTYPES, Device, find_device, load_devices
from replay.durations.fitting import Fit
from replay.durations.machine import Machine
from replay.durations.models import MODELS
from replay.durations.predictor import carry_over, load_calibration

__all__ = ["Capability", "capability"]

#: The figure of the best matrix product that was measured, and the peak that it is a share of.
_SUSTAINED, _PEAK = "bf16_sustained_tflops", "bf16_tflops"


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
        Share of the peak that large matrix products sustain.
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
        found = _fit(kind, self.machine)
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
    sustain the share of the best product that was measured on the device (`bf16_sustained_tflops` of the catalogue),
    else the mean of its vendor's devices.

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
    >>> one, other = (capability(find_device(name), "bf16").efficiency for name in ("H100", "MI300X"))
    >>> round(one, 2), round(other, 2)
    (0.8, 0.51)
    >>> capability(find_device("V100"), "bf16").dtype
    'fp32'
    """
    runs_as = _runs_as(device, dtype)
    machine = Machine.of(device, runs_as)
    products = _fit("matmul", machine)
    efficiency = _matrix_share(device) if runs_as not in ("fp32", "fp64") else _parameter("matmul", products)
    return Capability(device, machine, runs_as, efficiency, _parameter("elementwise", _fit("elementwise", machine)))


def _runs_as(device: Device, dtype: str) -> str:
    """Return the type whose peak stands in for that of `dtype`; FP64 counts as FP32 where it has no figure."""
    have = [figure for figure in (*DTYPES[dtype], "fp32_tflops") if figure in device.figures]
    return have[0].removesuffix("_tflops") if have else dtype


@cache
def _fit(kind: str, machine: Machine) -> Fit:
    """Return the device's own fit, that of devices of its architecture, or what is carried over from all."""
    fits = {name: fit for (k, name), fit in load_calibration().fits.items() if k == kind}
    alike = {name: fit for name, fit in fits.items() if find_device(name).architecture == machine.architecture}
    return fits.get(machine.name) or carry_over(kind, alike or fits, machine)


def _parameter(kind: str, fit: Fit) -> float:
    name = "memory" if kind == "elementwise" else "efficiency"
    return fit.values[[p.name for p in MODELS[kind].parameters].index(name)]


def _matrix_share(device: Device) -> float:
    if _SUSTAINED in device.figures and _PEAK in device.figures:
        return device.value(_SUSTAINED) / device.value(_PEAK)
    measured = [one for one in load_devices().values() if _SUSTAINED in one.figures]
    alike = [one for one in measured if one.vendor == device.vendor] or measured
    return float(np.mean([one.value(_SUSTAINED) / one.value(_PEAK) for one in alike]))

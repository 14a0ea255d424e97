"""What a model of kernel durations reads of a device."""

from dataclasses import dataclass
from typing import Self

from profilers.devices import Device

__all__ = ["FAMILIES", "Machine"]

#: Architectures that parameters carry over between better than from others: how caches and schedulers are built.
FAMILIES: tuple[tuple[str, ...], ...] = (
    ("Pascal",),
    ("Volta", "Turing", "Ampere", "Ada Lovelace", "Hopper", "Blackwell"),
    ("Vega", "CDNA", "CDNA 2", "CDNA 3", "CDNA 4"),
)

#: J per FLOP of FP32 arithmetic outside matrix units, and the share of the power limit that arithmetic gets: of five
#: values tried (8 to 11.5 pJ), the one with which left-out devices are predicted best on the files that are fitted. A
#: T4 then sustains 63 % of its peak, a P4 86 %, an A100 PCIe 93 %, a V100 PCIe all of it.
_JOULE_PER_FLOP, _POWER_SHARE = 10.2e-12, 0.75
#: Share of their peak that matrix units sustain: geometric mean of what the fastest products of 5 GFLOP and more reach
#: in traces of an H100 (BF16, 0.70) and an MI300X (BF16, 0.49), and in published measurements of an A100 (FP16, 0.81),
#: over the 0.95 that kernels reach of what is sustained. Not from the MI100, whose FP32 units it is used for.
_MATRIX_SHARE = 0.69
#: How sharply the lower of two rates rules.
_SHARPNESS = 12.0


@dataclass(frozen=True)
class Machine:
    """A device as the models see it.

    Parameters
    ----------
    name, vendor, architecture : str
    compute_units : float
    flops_per_s : float
        That can be sustained: the peak of the data type, or what the power limit allows.
    memory_bytes_per_s, l2_bytes, lds_bytes : float
        Bandwidth; the shared cache; shared memory (LDS) of one compute unit.
    """

    name: str
    vendor: str
    architecture: str
    compute_units: float
    flops_per_s: float
    memory_bytes_per_s: float
    l2_bytes: float
    lds_bytes: float

    @classmethod
    def of(cls, device: Device, dtype: str = "fp32", *, power: bool = True) -> Self:
        """Take the figures of a catalogue's device.

        Parameters
        ----------
        device : Device
        dtype : str
            One of `profilers.devices.DTYPES`. FP32 uses matrix units where the device has them for it.
        power : bool
            Whether a power limit bounds FP32 arithmetic outside matrix units: a T4 reaches half of its peak.

        Raises
        ------
        InvalidInputError
            The catalogue lacks a figure that is needed; or there is no such data type.
        """
        matrix = dtype == "fp32" and "fp32_matrix_tflops" in device.figures
        peak = device.value("fp32_matrix_tflops") * 1e12 if matrix else device.flops_per_s(dtype)
        if matrix:
            peak *= _MATRIX_SHARE
        if power and dtype == "fp32" and not matrix and "power_w" in device.figures:
            sustained = _POWER_SHARE * device.value("power_w") / _JOULE_PER_FLOP
            peak = (peak**-_SHARPNESS + sustained**-_SHARPNESS) ** (-1 / _SHARPNESS)
        return cls(
            device.name,
            device.vendor,
            device.architecture,
            float(device.compute_units),
            peak,
            device.memory_bytes_per_s,
            device.value("l2_mb") * 2**20,
            device.value("lds_kb") * 2**10,
        )

    @property
    def family(self) -> int:
        """Place in `FAMILIES`; -1 for an architecture that is in none."""
        return next((i for i, names in enumerate(FAMILIES) if self.architecture in names), -1)

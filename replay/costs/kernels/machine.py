"""A device as the models of kernel durations see it: `Machine`, with the rates that its units sustain.

A rate is the peak of the catalogue, the share of it that matrix units sustain, or what the power limit allows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from profilers.devices.catalogue import DTYPES, Device
from profilers.errors import InvalidInputError

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
#: Share of that energy in chips of 5 nm, by the foundry's claims (TSMC: 7 nm 60 % less than 16, 5 nm 30 % less than 7).
#: It matters to small cards; no measurement here shows it. An A100's 7 nm at full clock take as much as a T4's 12 nm at
#: half of it.
_ENERGY: dict[str, float] = dict.fromkeys(("Ada Lovelace", "Hopper", "Blackwell", "CDNA 3", "CDNA 4"), 0.3)
#: An SM of 128 FP32 lanes (Ampere's GA10x and later) issues one instruction a cycle to each 32 of them, so that every
#: load costs an FMA: one instruction in five is assumed. Of 64 lanes (Volta, Turing, GA100) other instructions are
#: free, and Pascal issues two at a time.
_ISSUE_SHARE, _WIDE_LANES, _DUAL_ISSUE = 0.8, 100.0, ("Pascal",)
_ALL_WIDE = ("Ada Lovelace", "Hopper", "Blackwell")
#: Share of their peak that matrix units for FP32 sustain: the geometric mean of the shares of the fastest products of 5
#: GFLOP and more in traces of an H100 (BF16, 0.70) and an MI300X (BF16, 0.49), and in published measurements of an A100
#: (FP16, 0.81), over the 0.95 of the sustained rate that kernels reach. It is used for the MI100, not fitted to it.
_MATRIX_SHARE = 0.69
_MATRIX_TYPES = ("tf32", "bf16", "fp16", "fp8", "int8", "int8_wo", "int4_wo", "nvfp4")
#: Bytes of an element of activations, weights and results of a product; NVFP4 has a scale of a byte for 16 elements.
_OPERAND_BYTES: Mapping[str, tuple[float, float, float]] = MappingProxyType(
    {
        "fp64": (8.0, 8.0, 8.0),
        "fp32": (4.0, 4.0, 4.0),
        "tf32": (4.0, 4.0, 4.0),
        "bf16": (2.0, 2.0, 2.0),
        "fp16": (2.0, 2.0, 2.0),
        "fp8": (1.0, 1.0, 2.0),
        "int8": (1.0, 1.0, 2.0),
        "int8_wo": (2.0, 1.0, 2.0),
        "int4_wo": (2.0, 0.5, 2.0),
        "nvfp4": (0.5625, 0.5625, 2.0),
    }
)
#: Clock at which `start_s` of a product of matrix units is given, and clock of a device whose clock is unknown.
REFERENCE_CLOCK_HZ = 2e9
#: Architectures whose peaks of halves are of vector units.
NO_MATRIX = ("Pascal", "GCN 5")
#: How sharply the lower of two rates rules.
_SHARPNESS = 12.0


def runs_as(device: Device, dtype: str) -> str:
    """Return the type whose units compute `dtype` on a device: FP32 if the device has no units for it.

    Raises
    ------
    InvalidInputError
        There is no such type.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> runs_as(find_device("V100"), "bf16"), runs_as(find_device("A100"), "fp8")
    ('fp32', 'fp16')
    """
    if dtype not in DTYPES:
        raise InvalidInputError(f"data type {dtype!r} is none of {', '.join(DTYPES)}")
    have = [figure for figure in DTYPES[dtype] if figure in device.figures]
    if not have or have[0] == DTYPES[dtype][0]:
        return dtype
    return have[0].removesuffix("_tflops")


def _is_wide(device: Device) -> bool:
    if device.vendor != "NVIDIA" or device.architecture in _DUAL_ISSUE:
        return False
    if "clock_mhz" not in device.figures:
        return device.architecture in _ALL_WIDE
    lanes = device.value("fp32_tflops") * 1e6 / (2 * device.compute_units * device.value("clock_mhz"))
    return lanes > _WIDE_LANES


def matrix_share(device: Device) -> float:
    """Return the share of their peak that matrix units sustain in types of 16 bits and less, and in TF32.

    The share is that of the best product measured on the device (`bf16_sustained_tflops` of the catalogue), else the
    mean of its vendor's devices.
    """
    return device.measured_matrix_share or device.vendor_matrix_share or _MATRIX_SHARE


@dataclass(frozen=True)
class Machine:
    """A device as the models see it.

    Parameters
    ----------
    name, vendor, architecture : str
        As in the catalogue.
    compute_units : float
        SMs or CUs.
    flops_per_s : float
        Sustained rate: the peak of the data type, or the rate that the power limit allows.
    memory_bytes_per_s, l2_bytes, lds_bytes : float
        Bandwidth; the shared cache; shared memory (LDS) of one compute unit.
    peak_flops_per_s : float
        Peak of the data sheet, which nothing exceeds.
    cache_bytes : float
        Size of all caches between the compute units and memory.
    operand_bytes : (float, float, float)
        Bytes of an element of activations, weights and results of a product.
    clock_hz : float
        Peak clock; 2 GHz if unknown.
    """

    name: str
    vendor: str
    architecture: str
    compute_units: float
    flops_per_s: float
    memory_bytes_per_s: float
    l2_bytes: float
    lds_bytes: float
    peak_flops_per_s: float
    cache_bytes: float
    operand_bytes: tuple[float, float, float] = (4.0, 4.0, 4.0)
    clock_hz: float = REFERENCE_CLOCK_HZ

    @classmethod
    def of(cls, device: Device, dtype: str = "fp32", *, power: bool = True) -> Self:
        """Take the figures of a catalogue's device.

        Parameters
        ----------
        device : Device
            Device of the catalogue.
        dtype : str
            One of `profilers.devices.DTYPES`. The peak is that of the type whose units compute it (`runs_as`), of
            matrix units if the device has them.
        power : bool
            Whether a power limit bounds FP32 arithmetic outside matrix units: a T4 reaches half of its peak.

        Raises
        ------
        InvalidInputError
            The catalogue lacks a figure that is needed; or there is no such data type.
        """
        dtype = runs_as(device, dtype)
        fp32_matrix = dtype == "fp32" and "fp32_matrix_tflops" in device.figures
        peak = sheet = device.flops_per_s(dtype, matrix=True)
        matrix = fp32_matrix or (dtype in _MATRIX_TYPES and device.architecture not in NO_MATRIX)
        if matrix:
            peak *= _MATRIX_SHARE if fp32_matrix else matrix_share(device)
        if dtype == "fp32" and not matrix:
            peak *= _ISSUE_SHARE if _is_wide(device) else 1.0
            if power and "power_w" in device.figures:
                energy = _JOULE_PER_FLOP * _ENERGY.get(device.architecture, 1.0)
                sustained = _POWER_SHARE * device.value("power_w") / energy
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
            sheet,
            (device.value("l2_mb") + (device.value("llc_mb") if "llc_mb" in device.figures else 0.0)) * 2**20,
            _OPERAND_BYTES[dtype],
            device.value("clock_mhz") * 1e6 if "clock_mhz" in device.figures else REFERENCE_CLOCK_HZ,
        )

    @property
    def family(self) -> int:
        """Index in `FAMILIES`; -1 for an architecture without a family."""
        return next((i for i, names in enumerate(FAMILIES) if self.architecture in names), -1)

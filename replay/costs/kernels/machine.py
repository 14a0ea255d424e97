"""A device as the models of kernel durations see it: `Machine`, with the rates that its units sustain.

A rate is the peak of the catalogue, the share of it that matrix units sustain, or what the power limit allows.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Self

import numpy as np

from profilers.devices.catalogue import DTYPES, Device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Bools, Floats
from replay.costs.architectures import architecture_of

#: Board power without arithmetic (leakage, memory, regulators): W, and share of the power limit. Round numbers
#: from recollection of what drivers report of idle cards at full clock: 22 to 30 W of a T4, P4 and L4, 35 to 55 W of a
#: V100 PCIe and an A100 PCIe. Arithmetic gets a tenth of the limit at least.
_IDLE_W, _IDLE_SHARE, _LEAST_SHARE = 20.0, 0.1, 0.1
#: J per FLOP of FP32 arithmetic outside matrix units at 1 V and 12 to 16 nm, and J per byte of memory. With 22 pJ,
#: of 19 to 23 tried, products of left-out T4, P4 and A100 PCIe are predicted best together.
_JOULE_PER_FLOP, _JOULE_PER_BYTE = 22e-12, 50e-12
#: Least voltage of a chip, over that of its highest clock.
_LEAST_VOLT = 0.7


class _ChipProcess(NamedTuple):
    """How energy and voltage of a chip's process go.

    `energy` is that of a FLOP at 1 V over that of 12 to 16 nm, and `matrix_j` that of a FLOP of matrix units in 16
    bits, J. The least voltage suffices up to `low_hz`, and 1 V is needed at `high_hz`; between them the voltage is
    linear.
    """

    energy: float
    matrix_j: float
    low_hz: float
    high_hz: float


#: Processes by `process_nm` of an architecture. No card of 5 and 4 nm is in the fitted files. It is assumed that a card
#: of 72 W (L4) sustains a third to a half of its FP32 peak, and the energy is set to that. The energy of matrix units
#: is the most with which V100, A100, H100 and B200 reach their best measured product within their power.
_PROCESSES: Mapping[int, _ChipProcess] = MappingProxyType(
    {
        16: _ChipProcess(1.0, 2.5e-12, 1.2e9, 1.9e9),
        7: _ChipProcess(1.0, 1.6e-12, 1.0e9, 1.9e9),
        5: _ChipProcess(0.38, 0.75e-12, 1.2e9, 2.6e9),
    }
)
#: An SM of 128 FP32 lanes (Ampere's GA10x and later) issues one instruction a cycle to each 32 of them, so that every
#: load costs an FMA: one instruction in five is assumed. Of 64 lanes (Volta, Turing, GA100) other instructions are
#: free, and Pascal issues two at a time.
_ISSUE_SHARE, _WIDE_LANES = 0.8, 100.0
#: Share of their peak that matrix units for FP32 sustain: the geometric mean of the shares of the fastest products of 5
#: GFLOP and more in traces of an H100 (BF16, 0.70) and an MI300X (BF16, 0.49), and in published measurements of an A100
#: (FP16, 0.81), over the 0.95 of the sustained rate that kernels reach. It is used for the MI100, not fitted to it.
_MATRIX_SHARE = 0.69
_MATRIX_TYPES = (
    "tf32", "bf16", "fp16", "fp8", "int8", "int8_wo", "int4_wo", "nvfp4", "fp8_block", "w4a16_mxfp4",
    "w4a8_mxfp4_mxfp8", "bf16_kv_fp8",
)  # fmt: skip
#: Bytes of an element of activations, weights and results of a product; of queries, the KV cache and results of an
#: attention. NVFP4 has a scale of a byte for 16 elements, MXFP4 and MXFP8 for 32.
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
        "fp8_block": (1.0, 1.0, 2.0),
        "w4a16_mxfp4": (2.0, 0.53125, 2.0),
        "w4a8_mxfp4_mxfp8": (1.03125, 0.53125, 2.0),
        "bf16_kv_fp8": (2.0, 1.0, 2.0),
    }
)
#: Clock at which `start_s` of a product of matrix units is given, and clock of a device whose clock is unknown.
REFERENCE_CLOCK_HZ = 2e9
#: Rate of vector units over that of FP32: packed halves, and dot products of four bytes.
_VECTOR_RATES: Mapping[str, float] = MappingProxyType({"fp16": 2.0, "int8": 4.0})


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


def refuse_shapes(dims: Floats, rules: Iterable[tuple[Bools, str]], kind: str = "") -> None:
    """Raise `InvalidInputError` for the first shape that breaks a rule.

    Parameters
    ----------
    dims : array of float64, shape (n, n_dims)
        Shapes.
    rules : iterable of (array of bool, str)
        Mask of the shapes that break a rule, and the rule.
    kind : str
        Kind of operator, for the message.
    """
    for broken, rule in rules:
        if broken.any():
            row = int(np.argmax(broken))
            raise InvalidInputError(f"{kind and f'{kind}: '}dims[{row}] are {dims[row].tolist()}; {rule}")


def _is_wide(device: Device) -> bool:
    architecture = architecture_of(device.architecture)
    if device.vendor != "NVIDIA" or architecture.dual_issue:
        return False
    if "clock_mhz" not in device.figures:
        return architecture.wide
    lanes = device.value("fp32_tflops") * 1e6 / (2 * device.compute_units * device.value("clock_mhz"))
    return lanes > _WIDE_LANES


def _powered_flops_per_s(device: Device, arithmetic_w: float, *, matrix: bool = False) -> float:
    """Return the rate of FP32 arithmetic, or of matrix units in 16 bits, at the clock whose power is `arithmetic_w`.

    Power goes with the clock and with the square of the voltage, P = C V(f)^2 f, and the energy of a FLOP with V^2. A
    device whose clock is unknown runs at the least voltage.
    """
    process = _PROCESSES[architecture_of(device.architecture).process_nm]
    joule = process.matrix_j if matrix else _JOULE_PER_FLOP * process.energy
    if "clock_mhz" not in device.figures:
        return arithmetic_w / (joule * _LEAST_VOLT**2)
    clock_hz, peak = device.value("clock_mhz") * 1e6, device.flops_per_s("fp16" if matrix else "fp32")

    def watt(hz: float) -> float:
        above = max(hz - process.low_hz, 0.0) / (process.high_hz - process.low_hz)
        volt = _LEAST_VOLT + (1 - _LEAST_VOLT) * above
        return joule * volt**2 * peak * hz / clock_hz

    low_hz, high_hz = 0.0, 4 * clock_hz
    for _ in range(40):  # halves the interval of the clock
        middle_hz = (low_hz + high_hz) / 2
        low_hz, high_hz = (middle_hz, high_hz) if watt(middle_hz) < arithmetic_w else (low_hz, middle_hz)
    return peak * low_hz / clock_hz


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
    vector_flops_per_s : float
        Peak of FP32 outside matrix units.
    packed_flops_per_s : float
        Peak of the type outside matrix units: that of FP32, twice that in FP16, four times that in INT8.
    full_clock_flops_per_s, powered_flops_per_s : float
        Sustained rate at the peak clock, and the rate that the power limit allows (infinite without a limit);
        `flops_per_s` is the lower one.
    powered_byte_s : float
        Time in which a byte of memory takes the energy that the power limit leaves to arithmetic, s.
    design : (str, float, float)
        `profilers.devices.catalogue.Device.design`.
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
    vector_flops_per_s: float = 0.0
    packed_flops_per_s: float = 0.0
    full_clock_flops_per_s: float = math.inf
    powered_flops_per_s: float = math.inf
    powered_byte_s: float = 0.0
    design: tuple[str, float, float] = ("", 0.0, 0.0)

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
        matrix = fp32_matrix or (dtype in _MATRIX_TYPES and architecture_of(device.architecture).matrix)
        if matrix:
            peak *= _MATRIX_SHARE if fp32_matrix else matrix_share(device)
        arithmetic_w, limited, watt = math.inf, math.inf, math.inf
        if power and "power_w" in device.figures:
            watt = max(device.value("power_w") * (1 - _IDLE_SHARE) - _IDLE_W, device.value("power_w") * _LEAST_SHARE)
        if dtype == "fp32" and not matrix:
            peak *= _ISSUE_SHARE if _is_wide(device) else 1.0
            if watt < math.inf:
                arithmetic_w, limited = watt, _powered_flops_per_s(device, watt)
        elif matrix and not fp32_matrix and watt < math.inf and "fp16_tflops" in device.figures:
            # Narrower types take less energy as they are faster: the clock is that of 16 bits.
            limited = _powered_flops_per_s(device, watt, matrix=True) * sheet / device.flops_per_s("fp16")
        return cls(
            device.name,
            device.vendor,
            device.architecture,
            float(device.compute_units),
            min(peak, limited),
            device.memory_bytes_per_s,
            device.value("l2_mb") * 2**20,
            device.value("lds_kb") * 2**10,
            sheet,
            (device.value("l2_mb") + (device.value("llc_mb") if "llc_mb" in device.figures else 0.0)) * 2**20,
            _OPERAND_BYTES[dtype],
            device.value("clock_mhz") * 1e6 if "clock_mhz" in device.figures else REFERENCE_CLOCK_HZ,
            device.flops_per_s("fp32"),
            device.flops_per_s("fp32") * _VECTOR_RATES.get(dtype, 1.0),
            peak,
            limited,
            _JOULE_PER_BYTE / arithmetic_w,
            device.design,
        )

    @property
    def family(self) -> str:
        """Family of the architecture; empty for one without a family."""
        return architecture_of(self.architecture).family

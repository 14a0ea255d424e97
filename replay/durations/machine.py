"""What a model of kernel durations reads of a device."""

from dataclasses import dataclass
from typing import Self

from profilers.devices import DTYPES, Device, load_devices
from profilers.errors import InvalidInputError

__all__ = ["FAMILIES", "Machine", "matrix_share", "runs_as"]

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
#: What chips of 5 nm take of that, by the foundry's claims (TSMC: 7 nm 60 % less than 16, 5 nm 30 % less than 7). It
#: matters to small cards; nothing that was measured here shows it. An A100's 7 nm at full clock take as much as a T4's
#: 12 nm at half of it.
_ENERGY: dict[str, float] = dict.fromkeys(("Ada Lovelace", "Hopper", "Blackwell", "CDNA 3", "CDNA 4"), 0.3)
#: An SM of 128 FP32 lanes (Ampere's GA10x and later) issues one instruction a cycle to each 32 of them, so that every
#: load costs an FMA: one instruction in five is assumed. Of 64 lanes (Volta, Turing, GA100) other instructions are
#: free, and Pascal issues two at a time.
_ISSUE_SHARE, _WIDE_LANES, _DUAL_ISSUE = 0.8, 100.0, ("Pascal",)
_ALL_WIDE = ("Ada Lovelace", "Hopper", "Blackwell")
#: Share of their peak that matrix units for FP32 sustain: geometric mean of what the fastest products of 5 GFLOP and
#: more reach in traces of an H100 (BF16, 0.70) and an MI300X (BF16, 0.49), and in published measurements of an A100
#: (FP16, 0.81), over the 0.95 that kernels reach of what is sustained. Not from the MI100, whose units it is used for.
_MATRIX_SHARE = 0.69
#: The figure of the best matrix product that was measured, and the peak that it is a share of.
_SUSTAINED, _PEAK = "bf16_sustained_tflops", "bf16_tflops"
_MATRIX_TYPES = ("tf32", "bf16", "fp16", "fp8")
#: Architectures whose peaks of halves are of vector units.
_NO_MATRIX = ("Pascal", "GCN 5")
#: How sharply the lower of two rates rules.
_SHARPNESS = 12.0


def runs_as(device: Device, dtype: str) -> str:
    """Return the type whose units compute `dtype` on a device: FP32 where it has none for it.

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
    return have[0].removesuffix("_tflops") if have else dtype


def _is_wide(device: Device) -> bool:
    if device.vendor != "NVIDIA" or device.architecture in _DUAL_ISSUE:
        return False
    if "clock_mhz" not in device.figures:
        return device.architecture in _ALL_WIDE
    lanes = device.value("fp32_tflops") * 1e6 / (2 * device.compute_units * device.value("clock_mhz"))
    return lanes > _WIDE_LANES


def matrix_share(device: Device) -> float:
    """Return the share of their peak that matrix units sustain in types of 16 bits and less, and in TF32.

    That of the best product that was measured on the device (`bf16_sustained_tflops` of the catalogue), else the mean
    of its vendor's devices.
    """
    if own := _measured_share(device):
        return own
    shares = {d.name: share for d in load_devices().values() if (share := _measured_share(d))}
    alike = [share for name, share in shares.items() if load_devices()[name].vendor == device.vendor]
    every = alike or list(shares.values())
    return sum(every) / len(every)


def _measured_share(device: Device) -> float:
    if _SUSTAINED in device.figures and _PEAK in device.figures:
        return device.value(_SUSTAINED) / device.value(_PEAK)
    return 0.0


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
    peak_flops_per_s : float
        Of the data sheet, which nothing exceeds.
    cache_bytes : float
        All caches between the compute units and memory.
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

    @classmethod
    def of(cls, device: Device, dtype: str = "fp32", *, power: bool = True) -> Self:
        """Take the figures of a catalogue's device.

        Parameters
        ----------
        device : Device
        dtype : str
            One of `profilers.devices.DTYPES`; what the device computes it in counts (`runs_as`), with matrix units
            where there are some.
        power : bool
            Whether a power limit bounds FP32 arithmetic outside matrix units: a T4 reaches half of its peak.

        Raises
        ------
        InvalidInputError
            The catalogue lacks a figure that is needed; or there is no such data type.
        """
        dtype = runs_as(device, dtype)
        own = dtype == "fp32" and "fp32_matrix_tflops" in device.figures
        peak = sheet = device.value("fp32_matrix_tflops") * 1e12 if own else device.flops_per_s(dtype)
        matrix = own or (dtype in _MATRIX_TYPES and device.architecture not in _NO_MATRIX)
        if matrix:
            peak *= _MATRIX_SHARE if own else matrix_share(device)
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
        )

    @property
    def family(self) -> int:
        """Place in `FAMILIES`; -1 for an architecture that is in none."""
        return next((i for i, names in enumerate(FAMILIES) if self.architecture in names), -1)

"""GEMMs of chosen sizes side by side on a device, without a trace: speed-up by size and degree of concurrency."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from replay.costs.shipped import load_parameters
from replay.gemms.gemm import Gemm, Variants
from replay.gemms.tuning import DEGREES, GoKernel, go_kernels
from seqpoint.notebook import DataFrame, as_html, data_frame

#: Dimensions of a shape without and with a batch.
_N_DIMS = (3, 4)


@dataclass(frozen=True)
class ConcurrentGemms:
    """Copies of GEMMs side by side, each with the kernel that is best at its degree of concurrency.

    Parameters
    ----------
    device : Device
        Device that they run on.
    kernels : tuple of GoKernel
        Kernels by GEMM, then by degree.
    """

    device: Device
    kernels: tuple[GoKernel, ...]

    def table(self) -> DataFrame:
        """Return a row for each GEMM and degree; times in ns."""
        return data_frame(self.to_dict()["rows"])

    def plot(self) -> Any:
        """Return the map of speed-ups over one after another, by size and degree, as a HoloViews object."""
        from seqpoint.plots.gemms import concurrency_map

        return concurrency_map(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the device and the rows as JSON with stable keys."""
        return {"device": self.device.name, "rows": [_facts(kernel) for kernel in self.kernels]}

    def summary(self) -> list[str]:
        """Return how often the kernel that is best alone is not the best side by side, in a sentence."""
        together = [kernel for kernel in self.kernels if kernel.degree > 1]
        other = sum(not kernel.is_default for kernel in together)
        return [
            f"on {self.device.name}, another kernel than the one that is fastest alone is the fastest side by side "
            f"{other} of {len(together)} times (modelled)"
        ]

    def _repr_html_(self) -> str:
        return as_html("GEMMs side by side", self.summary(), {"Speed-up over one after another": self.table()})


def tile_text(variant: Variants) -> str:
    """Return tile and split of one variant as text, such as ``64x32 split 4``."""
    split = int(variant.global_split[0])
    return f"{variant.tile_m[0]}x{variant.tile_n[0]}{f' split {split}' if split > 1 else ''}"


def _facts(kernel: GoKernel) -> dict[str, Any]:
    return {
        "gemm": str(kernel.gemm),
        "degree": kernel.degree,
        "speedup": kernel.speedup,
        "default_speedup": kernel.default_speedup,
        "tile": tile_text(kernel.variant),
        "default_tile": tile_text(kernel.default),
        "time_ns": kernel.time_ns,
        "default_ns": kernel.default_ns,
        "sequential_ns": kernel.sequential_ns,
    }


def simulate_gemms(
    shapes: Sequence[Sequence[int]], device: Device, *, dtype: str, degrees: Sequence[int] = DEGREES
) -> ConcurrentGemms:
    """Return copies of GEMMs side by side on a device.

    Parameters
    ----------
    shapes : sequence of sequence of int
        m, n and k of each GEMM, or batch, m, n and k.
    device : Device
        Device that they run on.
    dtype : str
        Data type, such as ``"fp16"``.
    degrees : sequence of int
        Copies side by side.

    Raises
    ------
    InvalidInputError
        A shape has not three or four sizes of 1 or more, a degree is below 1, or there is no such type.
    """
    gemms = []
    for shape in shapes:
        if len(shape) not in _N_DIMS:
            raise InvalidInputError(f"a GEMM of {tuple(shape)}: give m, n and k, or batch, m, n and k")
        batch, m, n, k = map(int, shape if len(shape) == _N_DIMS[1] else (1, *shape))
        gemms.append(Gemm(m, n, k, batch, dtype))
    kernels = go_kernels(gemms, list(degrees), device=device, parameters=load_parameters())
    return ConcurrentGemms(device, tuple(kernels))

"""What it costs a product that the rows of its operands lie far apart in memory."""

from dataclasses import replace
from functools import cache, lru_cache
from types import MappingProxyType

from replay.durations import predict
from replay.durations.calibration import Calibration, load_calibration
from replay.durations.models import MODELS
from replay.overlap.products import Product

__all__ = ["distance_factor"]

#: So small a cost that it is none; parameters are carried over by their logarithms.
_NONE = 1e-12


@lru_cache(maxsize=4096)
def distance_factor(product: Product) -> float:
    """Return how many times as long a product takes as if its operands' rows lay close together.

    By the kernel model (`replay.durations.models`, parameter ``far``), it rises with the length of rows and with how
    many there are. A piece of a product reads rows of the whole's operands, which lie as far apart as before.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> near, far = (Product(8192, 2048, k, find_device("MI300X")) for k in (512, 131072))
    >>> 1 <= distance_factor(near) < 1.02 < distance_factor(far) < 1.2
    True
    """
    dims, device = [[1, product.m, product.n, product.k]], product.device
    apart, near = (
        float(predict("matmul", dims, device, dtype=product.dtype, calibration=known).seconds[0])
        for known in (load_calibration(), _without_distance())
    )
    return apart / near


@cache
def _without_distance() -> Calibration:
    known = load_calibration()
    at = [parameter.name for parameter in MODELS["matmul"].parameters].index("far")
    fits = {
        key: replace(one, values=(*one.values[:at], _NONE, *one.values[at + 1 :])) if key[0] == "matmul" else one
        for key, one in known.fits.items()
    }
    return replace(known, fits=MappingProxyType(fits))

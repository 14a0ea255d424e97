"""The degree of concurrency of a GEMM, predicted before anything runs (GOLDYLOC, arXiv 2409.02227).

`DegreePredictor` is a multinomial logistic regression on sizes of the GEMM relative to the device. It chooses among the
degrees that the number of independent GEMMs allows, and chooses 1, one after another, unless the gain that it expects
is above its error. `benchmarks/gemms/train_degree_predictor.py` trains it on sets of GEMMs in the engine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import Device
from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError
from profilers.files import dataset_path, key_first
from profilers.trace.arrays import Floats, Ints
from replay.costs.kernels.machine import runs_as
from replay.costs.products import cache_bytes
from replay.gemms.concurrency import serial_start
from replay.gemms.gemm import Gemm
from replay.graph.operators import DTYPE_BYTES

#: Time that a small GEMM takes, to which the time of its arithmetic is compared, s.
_SHORT_S: Final = 1e-5


@dataclass(frozen=True)
class _Sizes:
    """Sizes of n GEMMs and what the device offers them: arrays of length n."""

    m: Floats
    n: Floats
    k: Floats
    batch: Floats
    element_bytes: Floats
    flops_per_s: Floats
    transpose_a: Floats
    transpose_b: Floats
    available: Floats
    device: Device

    @classmethod
    def of(cls, gemms: Sequence[Gemm], available: npt.ArrayLike, device: Device) -> "_Sizes":
        rates = {dtype: device.flops_per_s(runs_as(device, dtype)) for dtype in {gemm.dtype for gemm in gemms}}
        rows = [
            (g.m, g.n, g.k, g.batch, DTYPE_BYTES[g.dtype], rates[g.dtype], g.transpose_a, g.transpose_b) for g in gemms
        ]
        m, n, k, batch, size, rate, first, second = np.array(rows, dtype=np.float64).reshape(len(gemms), 8).T
        count = np.broadcast_to(np.asarray(available, dtype=np.float64), len(gemms))
        return cls(m, n, k, batch, size, rate, first, second, count, device)

    @property
    def flops(self) -> Floats:
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def operand_bytes(self) -> Floats:
        return self.element_bytes * self.batch * (self.m * self.k + self.k * self.n + self.m * self.n)

    def waves(self, tile: int) -> Floats:
        """Return the waves of square tiles."""
        tiles = np.ceil(self.m / tile) * np.ceil(self.n / tile) * self.batch
        return np.asarray(tiles / self.device.compute_units)


#: Features of a decision. Sizes of the grid, the operands and the arithmetic are relative to the device.
FEATURES: Mapping[str, Callable[[_Sizes], Floats]] = MappingProxyType(
    {
        "log_m": lambda s: np.log2(s.m),
        "log_n": lambda s: np.log2(s.n),
        "log_k": lambda s: np.log2(s.k),
        "log_batch": lambda s: np.log2(s.batch),
        "transpose_a": lambda s: s.transpose_a,
        "transpose_b": lambda s: s.transpose_b,
        "log_waves_32": lambda s: np.log2(s.waves(32)),
        "log_waves_64": lambda s: np.log2(s.waves(64)),
        "log_waves_128": lambda s: np.log2(s.waves(128)),
        "fill_64": lambda s: s.waves(64) / np.ceil(s.waves(64)),
        "fill_128": lambda s: s.waves(128) / np.ceil(s.waves(128)),
        "beyond_wave_64": lambda s: np.maximum(np.log2(s.waves(64)), 0.0),
        "log_footprint": lambda s: np.log2(s.operand_bytes / cache_bytes(s.device)),
        "log_intensity": lambda s: np.log2(s.flops / s.operand_bytes / (s.flops_per_s / s.device.memory_bytes_per_s)),
        "log_time": lambda s: np.log2(s.flops / s.flops_per_s / _SHORT_S),
        "serial_start": lambda s: np.full(len(s.m), serial_start(s.device)),
        "log_available": lambda s: np.log2(s.available),
    }
)


def features_of(gemms: Sequence[Gemm], available: npt.ArrayLike, device: Device) -> Floats:
    """Return the features of decisions, of shape (decisions, features).

    Parameters
    ----------
    gemms : sequence of Gemm
        GEMMs, one a decision.
    available : int or array of int, shape (decisions,)
        GEMMs that can run side by side with each, itself included.
    device : Device
        Device that they run on.
    """
    sizes = _Sizes.of(gemms, available, device)
    return np.stack([feature(sizes) for feature in FEATURES.values()], axis=1)


class DegreePredictor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A logistic regression of the degree of concurrency, with the gain to expect from each degree.

    Parameters
    ----------
    degrees : tuple of int
        Degrees to choose from, in rising order; the first is 1.
    features : tuple of str
        Names in `FEATURES`.
    means, scales : tuple of float
        Mean and standard deviation of each feature, by which it is standardised.
    weights, offsets : tuple
        Weights of the standardised features for each degree, and an offset a degree (multinomial logit).
    gain_weights, gain_offsets : tuple
        The same for the logarithm of the speed-up of each degree; its features are followed by their squares.
    gain_errors : tuple of float
        Error of the logarithm of a small speed-up for each degree, on GEMMs of families that were not learnt from.
    made_by : str
        Program that trained it.
    seed : int
        Seed of the GEMMs that it learnt from.
    gemms : int
        Number of these GEMMs.
    device : str
        Devices that they ran on, in the engine.
    tolerance : float
        Degrees whose time is within this share of the fastest are as good as the fastest; the smallest was learnt.
    """

    degrees: tuple[int, ...]
    features: tuple[str, ...]
    means: tuple[float, ...]
    scales: tuple[float, ...]
    weights: tuple[tuple[float, ...], ...]
    offsets: tuple[float, ...]
    gain_weights: tuple[tuple[float, ...], ...]
    gain_offsets: tuple[float, ...]
    gain_errors: tuple[float, ...]
    made_by: str = ""
    seed: int = 0
    gemms: int = 0
    device: str = ""
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        n_features, n_degrees = len(self.features), len(self.degrees)
        shapes = {
            "means": (n_features,),
            "scales": (n_features,),
            "weights": (n_degrees, n_features),
            "offsets": (n_degrees,),
            "gain_weights": (n_degrees, 2 * n_features),
            "gain_offsets": (n_degrees,),
            "gain_errors": (n_degrees,),
        }
        if self.degrees[:1] != (1,) or list(self.degrees) != sorted(set(self.degrees)):
            raise ValueError(f"degrees {list(self.degrees)}; they must rise from 1")
        if self.features != tuple(FEATURES):
            raise ValueError(f"features {', '.join(self.features)[:80]}; they must be {', '.join(FEATURES)}")
        for name, shape in shapes.items():
            rows = getattr(self, name)
            lengths = {len(row) for row in rows} if len(shape) > 1 else set(shape[1:])
            if len(rows) != shape[0] or lengths != set(shape[1:]):
                raise ValueError(f"{name} must have the shape {' x '.join(map(str, shape))}")
            if not np.isfinite(rows).all() or (name == "scales" and min(rows) <= 0):
                raise ValueError(f"{name} must be finite numbers{', above 0' if name == 'scales' else ''}")

    def degree_of(self, gemm: Gemm, available: int, *, device: Device) -> int:
        """Return the degree of concurrency for a GEMM; as `choose`.

        Parameters
        ----------
        gemm : Gemm
            GEMM.
        available : int
            GEMMs that can run side by side, itself included.
        device : Device
            Device that runs it.

        Examples
        --------
        >>> from profilers.devices import find_device
        >>> mi100, predictor = find_device("MI100"), load_degree_predictor()
        >>> [predictor.degree_of(Gemm(size, size, 512), 16, device=mi100) for size in (128, 8192)]
        [16, 1]
        """
        return int(self.choose([gemm], available, device=device)[0])

    def choose(self, gemms: Sequence[Gemm], available: npt.ArrayLike, *, device: Device) -> Ints:
        """Return the degree of concurrency for each GEMM, of shape (gemms,).

        Parameters
        ----------
        gemms : sequence of Gemm
            GEMMs, one a decision.
        available : int or array of int, shape (gemms,)
            GEMMs that can run side by side with each, itself included. The largest degree is the next one that is not
            below it: degree 4 lets three GEMMs run at once.
        device : Device
            Device that runs them.

        Raises
        ------
        InvalidInputError
            Fewer than 1 GEMM is available.
        """
        if not len(gemms):
            return np.zeros(0, dtype=np.int64)
        count = np.broadcast_to(np.asarray(available), len(gemms))
        if (count < 1).any():
            raise InvalidInputError(f"{count.min()} GEMMs side by side: there is 1 or more")
        degrees = np.array(self.degrees)
        most = degrees[np.minimum(np.searchsorted(degrees, count), len(degrees) - 1)]
        return self.decide(features_of(gemms, np.minimum(count, most), device), most)

    def decide(self, features: Floats, most: Ints) -> Ints:
        """Return the degree of each decision.

        The most probable degree is taken if the gain that is expected of it is above its error, else 1.

        Parameters
        ----------
        features : array of float64, shape (decisions, features)
            Result of `features_of`.
        most : array of int64, shape (decisions,)
            Largest degree of each decision.
        """
        degrees = np.array(self.degrees)
        scaled = (features - np.array(self.means)) / np.array(self.scales)
        logits = scaled @ np.array(self.weights).T + np.array(self.offsets)
        best = np.argmax(np.where(degrees <= most[:, None], logits, -np.inf), axis=1)
        with_squares = np.concatenate([scaled, scaled**2], axis=1)
        gain = np.einsum("ij,ij->i", with_squares, np.array(self.gain_weights)[best])
        gain += np.array(self.gain_offsets)[best]
        return np.asarray(np.where(gain > np.array(self.gain_errors)[best], degrees[best], degrees[0]))

    @property
    def multiply_adds(self) -> int:
        """Multiplications and additions of a decision, without the logarithms of its features."""
        n_features = len(self.features)
        return n_features * (1 + len(self.degrees)) + 3 * n_features + len(self.degrees) + 1


def load_degree_predictor(path: str | Path | None = None) -> DegreePredictor:
    """Read a predictor from a file in the layout of `datasets/fits/gemm_degrees.json`, by default that one.

    Raises
    ------
    NotFoundError, BrokenFileError
        There is no such file; or it holds no predictor: the message says what is wrong and where.

    Examples
    --------
    >>> load_degree_predictor().degrees
    (1, 2, 4, 8, 16)
    """
    return _shipped() if path is None else _read(Path(path))


@cache
def _shipped() -> DegreePredictor:
    return _read(dataset_path("fits/gemm_degrees.json"))


def _read(file: Path) -> DegreePredictor:
    try:
        return msgspec.json.decode(file.read_bytes(), type=DegreePredictor)
    except FileNotFoundError as error:
        raise NotFoundError(f"{file}: no such file of a degree predictor") from error
    except (ValueError, OSError, RecursionError) as error:
        reason = key_first(str(error))
        raise BrokenFileError(
            f"{file}: no degree predictor ({reason}); make it with benchmarks/gemms/train_degree_predictor.py"
        ) from error

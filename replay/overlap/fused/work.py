"""`Work`: what one rank computes before a collective, as bytes, time of arithmetic, and workgroups."""

from dataclasses import dataclass

from profilers.devices import Device
from profilers.errors import InvalidInputError
from profilers.kernels import CLASSES, classify
from replay.durations import predict
from replay.operators import DTYPE_BYTES
from replay.parameters import load_parameters
from replay.sizes import checked_size

__all__ = ["COLLECTIVES", "Work", "embedding", "gemm", "gemv"]

#: What fuses with the computation before it.
COLLECTIVES = ("all_to_all", "all_reduce")
_ITEMS, _WAVE = 256, 64  # work-items of a workgroup, and of a wave of AMD devices
_INDEX_BYTES = 8
_TILE = 128


@dataclass(frozen=True)
class Work:
    """What one rank computes, and the collective that exchanges it.

    Parameters
    ----------
    name : str
    collective : str
        One of `COLLECTIVES`.
    moved_bytes : float
        To and from memory, the output among them.
    output_bytes : float
        Of the whole result, the rank's own part among it.
    arithmetic_ns : float
        What it takes where memory is not the limit.
    workgroups, resident : int
        In all, and at once on the device.
    packed : bool
        Whether a library's collective needs the result in another layout first.

    Raises
    ------
    InvalidInputError
        There is no such collective, or a size is not above zero.
    """

    name: str
    collective: str
    moved_bytes: float
    output_bytes: float
    arithmetic_ns: float
    workgroups: int
    resident: int
    packed: bool = True

    @property
    def class_(self) -> int:
        """The class of its kernel, by its name: an index into `profilers.kernels.CLASSES`."""
        return CLASSES.index(classify(self.name))

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            raise InvalidInputError(f"{self.name}: no collective {self.collective!r}; give {' or '.join(COLLECTIVES)}")
        if not (0 < self.output_bytes <= self.moved_bytes and self.arithmetic_ns >= 0):
            raise InvalidInputError(
                f"{self.name}: output {self.output_bytes} of {self.moved_bytes} bytes moved, arithmetic "
                f"{self.arithmetic_ns} ns; an output is above zero and is itself moved, a time is not negative"
            )
        if min(self.workgroups, self.resident) < 1:
            raise InvalidInputError(f"{self.name}: {self.workgroups} workgroups, {self.resident} at once; give 1 each")

    def seconds(self, device: Device, memory_share: float) -> float:
        """Return what it takes alone: arithmetic or memory, whichever is longer."""
        return max(self.arithmetic_ns * 1e-9, self.moved_bytes / (device.memory_bytes_per_s * memory_share))


def embedding(device: Device, *, batch: int, tables: int, pooling: int, dim: int) -> Work:
    """Return pooled look-ups of one rank's tables for the samples of all ranks, exchanged all to all.

    Parameters
    ----------
    device : Device
    batch : int
        Samples of all ranks together.
    tables : int
        Of one rank.
    pooling : int
        Rows that are summed for a sample and table.
    dim : int
        Elements of a row, FP32.

    Notes
    -----
    Memory carries every row that is summed, its index (8 bytes), and the sum. A wave works on one row of up to 128
    elements, two an item; a workgroup has four waves.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> work = embedding(find_device("MI210"), batch=512, tables=32, pooling=20, dim=128)
    >>> work.output_bytes, work.workgroups, work.resident
    (8388608, 4096, 832)
    """
    batch, tables, pooling, dim = (checked_size(n, v) for n, v in _named(batch, tables, pooling, dim))
    rows, width = batch * tables, dim * DTYPE_BYTES["fp32"]
    moved = rows * pooling * (width + _INDEX_BYTES) + rows * width
    waves = rows * max(-(-dim // (2 * _WAVE)), 1)
    name = f"embedding {batch}|{tables}|{pooling}|{dim}"
    return Work(name, "all_to_all", moved, rows * width, 0.0, -(-waves * _WAVE // _ITEMS), _resident(device))


def _named(batch: int, tables: int, pooling: int, dim: int) -> tuple[tuple[str, int], ...]:
    return ("batch", batch), ("tables", tables), ("pooling", pooling), ("dim", dim)


def _resident(device: Device) -> int:
    return device.compute_units * int(load_parameters()["work_items_per_unit_max"]) // _ITEMS


def gemv(device: Device, *, batch: int, n: int, k: int) -> Work:
    """Return a product of a few rows with one rank's part of a weight matrix, summed over the ranks.

    Parameters
    ----------
    device : Device
    batch, n, k : int
        Rows, columns of the result, and the rank's part of the depth; 16-bit elements.

    Notes
    -----
    Memory carries the weights; a wave computes one column, so a workgroup four.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> gemv(find_device("MI210"), batch=1, n=8192, k=2048).moved_bytes
    33574912
    """
    batch, n, k = checked_size("batch", batch), checked_size("n", n), checked_size("k", k)
    size = DTYPE_BYTES["bf16"]
    moved, output = size * (n * k + batch * (n + k)), size * batch * n
    groups = -(-n * _WAVE // _ITEMS)
    return Work(f"gemv {batch}|{n}|{k}", "all_reduce", moved, output, 0.0, groups, _resident(device), packed=False)


def gemm(device: Device, *, m: int, n: int, k: int) -> Work:
    """Return the last product of one rank's experts, whose rows go back to the ranks of their tokens.

    Parameters
    ----------
    device : Device
    m, n, k : int
        Tokens that the rank's experts have, hidden size, depth; BF16.

    Notes
    -----
    Time by `replay.durations`, without the start that the launch counts; a workgroup a tile of 128 x 128, one a
    compute unit.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> gemm(find_device("MI210"), m=4096, n=4096, k=14336).workgroups
    1024
    """
    m, n, k = checked_size("m", m), checked_size("n", n), checked_size("k", k)
    found = predict("matmul", [[1, m, n, k]], device, dtype="bf16")
    size = DTYPE_BYTES["bf16"]
    arithmetic = max(float(found.seconds[0]) - found.start_s, 0.0) * 1e9
    groups = -(-m // _TILE) * -(-n // _TILE)
    moved, output = size * (m * k + k * n + m * n), size * m * n
    return Work(f"gemm {m}|{n}|{k}", "all_to_all", moved, output, arithmetic, groups, device.compute_units)

"""Quantise arrays: to the codes of a format, to packed bytes, and back, with statistics of the error.

All conversions round to the nearest code, and halves to the even one. They are exact: no intermediate result is rounded
before the last step, except by the divisions of NVFP4.
"""

from dataclasses import dataclass
from math import frexp, inf, log10, nan, prod
from operator import index
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError
from profilers.trace.arrays import Bools, Floats
from replay.formats.catalogue import Format, find_format
from replay.formats.codes import (
    CHUNK,
    Bytes,
    Codes,
    code_type,
    pack_codes,
    read_values,
    unpack_codes,
    write_floats,
    write_integers,
    write_nvfp4,
)


@dataclass(frozen=True, eq=False)
class Quantized:
    """An array in a data format.

    Parameters
    ----------
    format : Format
        Format of the elements and of what blocks share.
    codes : array of uint8, uint16 or uint32
        Code of each element. Its shape is that of the array with `axis` moved to the end.
    scales : array of uint8, shape (..., length / block)
        Code of the scale of each block; empty if the format has none.
    microexponents : array of uint8, shape (..., length / block)
        Microexponents of each block: bit i belongs to pair i. Empty if the format has none.
    shape : tuple of int
        Shape of the array.
    axis : int
        Axis that the blocks lie along, not negative. A copy of W with ``axis=1`` is not the transpose of a copy of
        the transposed W: its blocks have other members.
    tensor_scale : float
        Scale of the whole array, a float32; 1 if the format has none.
    """

    format: Format
    codes: Codes
    scales: Bytes
    microexponents: Bytes
    shape: tuple[int, ...]
    axis: int
    tensor_scale: float = 1.0

    @property
    def nbytes(self) -> int:
        """Bytes of the array, packed: what `pack` returns."""
        return self.format.nbytes(self.codes.size)

    def dequantize(self) -> npt.NDArray[np.float32]:
        """Return the values as float32, in the shape of the array.

        Every number of a format is a float32, except products above the largest float32, which saturate there, and
        those of NVFP4 with its two scales, which are rounded once. OCP MX v1.0 leaves such products open.

        Examples
        --------
        >>> quantize(np.array([1.0, 0.3] * 8), "mx4").dequantize()[:2].tolist()
        [1.0, 0.5]
        """
        values = read_values(self.format, self.codes, self.scales, self.microexponents, self.tensor_scale)
        if not self.shape:
            return values.reshape(())
        return np.ascontiguousarray(np.moveaxis(values.reshape(self._moved_shape), -1, self.axis))

    def pack(self) -> bytes:
        """Return the array as bytes, with no bit unused.

        The scale of the array comes first, if there is one, as float32. Then come the blocks: the scale, the
        microexponents, and the elements, each from its lowest bit. Numbers of several bytes are little-endian. The
        specifications do not prescribe an order; this one is the project's own.
        """
        size = self.format.element_bits
        elements = pack_codes(self.codes, size).reshape(max(self.scales.size, 1), -1)
        shared = [part.reshape(-1, 1) for part in (self.scales, self.microexponents) if part.size]
        head = np.float32(self.tensor_scale).tobytes() if self.format.tensor_bits else b""
        return head + np.concatenate([*shared, elements], axis=1).tobytes()

    @property
    def _moved_shape(self) -> tuple[int, ...]:
        return _move_to_end(self.shape, self.axis)


def quantize(array: npt.ArrayLike, data_format: str | Format, axis: int = -1) -> Quantized:
    """Convert an array to a data format.

    Rounding is to the nearest code, halves to even: prescribed for the OCP formats (MX v1.0, section 6.3) and chosen
    here for shared microexponents, where arXiv 2302.08007 does not say. A magnitude that rounds to more than the
    largest code takes the largest code. In ``fp16``, ``bf16`` and ``fp32`` it becomes infinite, as in IEEE 754.

    A block that holds an infinity or a NaN takes the scale NaN and dequantises to NaN, as no finite scale fits; OCP
    leaves this open. FP8 without blocks takes an infinity for the largest number, the saturating mode of OFP8, and
    keeps a NaN. Exponents of scales are clamped to -127 to 127. NaN loses its payload.

    Parameters
    ----------
    array : array of float16, float32 or float64
        Values.
    data_format : str or Format
        Format, or its name, one of `FORMATS`.
    axis : int
        Axis that the blocks lie along; the last by default. Its length must be a multiple of the block.

    Raises
    ------
    NotFoundError
        The format is unknown.
    InvalidInputError
        The values are no floats or are masked, the format is no name, the axis does not exist, or its length is no
        multiple of the block.

    Examples
    --------
    >>> weights = np.linspace(-1, 1, 32, dtype=np.float32)
    >>> quantize(weights, "mx9").nbytes, quantize(weights, "mxfp4").nbytes
    (36, 17)
    """
    target = find_format(data_format)
    values, axis = _checked(_as_array(array), target, axis)
    moved = np.ascontiguousarray(np.moveaxis(values, axis, -1) if values.ndim else values)
    shape = (*moved.shape[:-1], moved.shape[-1] // target.block) if target.is_directional else (0,)
    scales, micro = np.zeros(shape, np.uint8), np.zeros(shape if target.pair_bits else (0,), np.uint8)
    codes = np.empty(moved.shape, code_type(target))
    flat, parts = moved.reshape(-1), (codes.reshape(-1), scales.reshape(-1), micro.reshape(-1))
    tensor_scale = 1.0
    if target.scale == "E4M3":
        tensor_scale = write_nvfp4(target, flat, *parts[:2])
    elif target.is_integer:
        write_integers(target, flat, *parts)
    else:
        write_floats(target, flat, *parts[:2])
    return Quantized(target, codes, scales, micro, values.shape, axis, tensor_scale)


def unpack(data: bytes, data_format: str | Format, shape: tuple[int, ...], axis: int = -1) -> Quantized:
    """Return the array that `Quantized.pack` wrote.

    Parameters
    ----------
    data : bytes
        Packed array.
    data_format : str or Format
        Its format, or the name.
    shape : tuple of int
        Shape of the array.
    axis : int
        Axis that the blocks lie along.

    Raises
    ------
    NotFoundError
        The format is unknown.
    InvalidInputError
        The number of bytes is not that of the shape, or the shape does not fit the format.

    Examples
    --------
    >>> copy = quantize(np.linspace(-1, 1, 16), "mx6")
    >>> bool((unpack(copy.pack(), "mx6", (16,)).codes == copy.codes).all())
    True
    """
    target = find_format(data_format)
    if any(length < 0 for length in shape):
        raise InvalidInputError(f"a shape has no negative lengths, and this one is {shape}")
    axis = _checked_axis(shape, target, axis)
    needed = target.nbytes(prod(shape))
    if len(data) != needed:
        raise InvalidInputError(f"{target.name} of shape {shape} has {needed} bytes, and there are {len(data)}")
    head = target.tensor_bits // 8
    tensor_scale = float(np.frombuffer(data[:head], "<f4")[0]) if head else 1.0
    raw = np.frombuffer(data, np.uint8, offset=head)
    moved = _move_to_end(shape, axis)
    blocks = (*moved[:-1], moved[-1] // target.block) if target.is_directional else (0,)
    rows = raw.reshape(prod(blocks) or 1, -1) if raw.size else raw.reshape(0, 2)
    scales = rows[:, 0].reshape(blocks) if target.is_directional else np.zeros(0, np.uint8)
    micro = rows[:, 1].reshape(blocks) if target.pair_bits else np.zeros(0, np.uint8)
    start = int(target.is_directional) + int(target.pair_bits > 0)
    codes = unpack_codes(np.ascontiguousarray(rows[:, start:]).reshape(-1), target).reshape(moved)
    return Quantized(target, codes, scales.copy(), micro.copy(), shape, axis, tensor_scale)


def load_array(path: str | PathLike[str]) -> npt.NDArray[Any]:
    """Map the array of a ``.npy`` file into memory.

    Parameters
    ----------
    path : str or path
        File that `numpy.save` wrote. Files with Python objects are refused, since reading them would run code.

    Raises
    ------
    NotFoundError
        There is no such file.
    BrokenFileError
        The file cannot be read, or is no ``.npy`` file of numbers.
    """
    if not Path(path).exists():
        raise NotFoundError(f"{path}: no such file; a .npy file, as numpy.save writes it, is needed")
    try:
        # A mapped array cannot be larger than its file, whatever the header says.
        with np.errstate(over="ignore"):
            return np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, TypeError, OverflowError, SyntaxError) as error:
        reason = str(error).split("\n", 1)[0]
        raise BrokenFileError(f"{path}: cannot be read as an array in .npy format: {reason}") from error


def directional_copies(matrix: npt.ArrayLike, data_format: str | Format) -> tuple[Quantized, ...]:
    """Return the copies of a matrix W that products with W and with its transpose need.

    A product sums along the blocks. So one copy has its blocks along rows, and the other along columns; the second is
    the transpose of a copy of the transposed W. A format without blocks needs one copy for both.

    Parameters
    ----------
    matrix : array of float, shape (..., rows, columns)
        Weights.
    data_format : str or Format
        Format, or its name.

    Raises
    ------
    NotFoundError
        The format is unknown.
    InvalidInputError
        `quantize` refuses the array along one of the two axes.

    Examples
    --------
    >>> weights = np.eye(32, dtype=np.float32)
    >>> [copy.axis for copy in directional_copies(weights, "mx9")], len(directional_copies(weights, "bf16"))
    ([1, 0], 1)
    """
    target, values = find_format(data_format), _as_array(matrix)
    if values.ndim < 2:
        raise InvalidInputError(f"a matrix has at least 2 axes, and this array has {values.ndim}")
    return tuple(quantize(values, target, axis) for axis in ((-1, -2) if target.is_directional else (-1,)))


@dataclass(frozen=True)
class ErrorStatistics:
    """Errors of a quantised array, over the finite values of the original.

    Parameters
    ----------
    mean_absolute, maximum : float
        Mean and largest absolute error of the values that stay finite; NaN if there are none.
    sqnr_db : float
        Signal-to-quantisation-noise ratio in dB: 10 log10 of the sum of squares over the sum of squared errors.
        Infinite without an error; NaN without a value other than zero.
    saturated : float
        Share of values whose magnitude is above the largest that their block, or the format, can hold.
    flushed : float
        Share of values that are not zero and became zero.
    lost : float
        Share of values that became infinite or NaN.
    not_finite : float
        Share of infinite values and NaN in the original. Other shares are of its finite values, and NaN without any.
    """

    mean_absolute: float
    maximum: float
    sqnr_db: float
    saturated: float
    flushed: float
    lost: float
    not_finite: float


def error_statistics(array: npt.ArrayLike, quantized: Quantized) -> ErrorStatistics:
    """Compare an array with its quantised copy.

    Parameters
    ----------
    array : array of float
        The original; values that are infinite or NaN are left out.
    quantized : Quantized
        Its copy.

    Raises
    ------
    InvalidInputError
        The shapes differ.

    Examples
    --------
    >>> values = np.array([1.0, 0.25] * 8)
    >>> error_statistics(values, quantize(values, "mx4")).maximum
    0.25
    """
    values = _as_array(array)
    if values.shape != quantized.shape:
        raise InvalidInputError(f"the array has shape {values.shape}, and its copy {quantized.shape}")
    largest = np.moveaxis(_is_largest(quantized), -1, quantized.axis) if values.ndim else _is_largest(quantized)
    x, y, limit = values.reshape(-1), quantized.dequantize().reshape(-1), largest.reshape(-1)
    chunks = [slice(i, i + CHUNK) for i in range(0, len(x), CHUNK)]
    tops = [np.max(np.abs(x[each]), where=np.isfinite(x[each]), initial=0.0) for each in chunks]
    exponent = frexp(float(max(tops, default=0.0)))[1]
    parts = [_errors(x[each], y[each], limit[each], exponent) for each in chunks]
    table = np.array(parts).reshape(-1, 8)
    finite, kept, saturated, flushed, signal, noise, absolute = table[:, :7].sum(axis=0).tolist()
    return ErrorStatistics(
        float(np.ldexp(absolute / kept, exponent)) if kept else nan,
        float(table[:, 7].max()) if kept else nan,
        10 * log10(signal / noise) if noise and signal else inf if signal else nan,
        saturated / finite if finite else nan,
        flushed / finite if finite else nan,
        (finite - kept) / finite if finite else nan,
        (len(x) - finite) / max(len(x), 1),
    )


def _errors(original: npt.NDArray[Any], copy: npt.NDArray[np.float32], is_largest: Bools, exponent: int) -> Floats:
    """Return counts of finite, kept, saturated and flushed values, sums of x^2, e^2 and |e|, and the largest |e|.

    Values are below 2^exponent. Sums are those of values over it, whose squares are in the range of float64.
    """
    finite, above = np.isfinite(original), np.abs(original) > np.abs(copy)
    kept = finite & np.isfinite(copy)
    x = np.where(kept, original, 0).astype(np.float64)
    error = np.abs(x - np.where(kept, copy, 0))
    flags = (finite, kept, finite & is_largest & above, finite & (original != 0) & (copy == 0))
    with np.errstate(over="ignore", under="ignore"):
        signal, noise = np.ldexp(x, -exponent), np.ldexp(error, -exponent)
        sums = (np.square(signal).sum(), np.square(noise).sum(), noise.sum(), error.max(initial=0.0))
    return np.array([*map(np.count_nonzero, flags), *sums], np.float64)


def _as_array(values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return values as an array."""
    if isinstance(values, np.ma.MaskedArray):
        raise InvalidInputError("a masked array has no values behind its mask; fill them first: array.filled(0)")
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, and tensors of other libraries
        reason = str(error).split("\n", 1)[0]
        raise InvalidInputError(
            f"the values make no array ({reason:.150}); of a torch tensor, give tensor.detach().cpu().float().numpy()"
        ) from error


def _checked(values: npt.NDArray[Any], target: Format, axis: int) -> tuple[npt.NDArray[Any], int]:
    """Return the values as float32 or float64 of this machine, and the axis counted from 0."""
    if values.dtype.kind != "f" or values.dtype.itemsize > 8:
        raise InvalidInputError(f"values must be float16, float32 or float64, and these are {values.dtype}")
    axis = _checked_axis(values.shape, target, axis)
    return values.astype(np.float64 if values.dtype.itemsize == 8 else np.float32, copy=False), axis


def _checked_axis(shape: tuple[int, ...], target: Format, axis: int) -> int:
    try:
        axis = index(None if isinstance(axis, bool) else axis)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidInputError(f"an axis is a whole number such as -1, and not {axis!r:.40}") from None
    if not shape and not target.is_directional and axis in (-1, 0):
        return 0
    if not -len(shape) <= axis < len(shape):
        possible = f"axes are {-len(shape)} to {len(shape) - 1}" if shape else "the array has no axis"
        raise InvalidInputError(f"there is no axis {axis}: {possible}")
    if shape[axis] % target.block:
        raise InvalidInputError(
            f"{target.name} has blocks of {target.block}, and axis {axis} has length {shape[axis]}, which is no "
            f"multiple; pad the axis or choose another"
        )
    return axis % len(shape)


def _move_to_end(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :], *shape[axis : axis + 1])


def _is_largest(quantized: Quantized) -> Bools:
    """Return, in the order of the codes, whether an element is the largest number or above it."""
    target = quantized.format
    codes = quantized.codes.astype(np.int64)
    if target.is_integer and target.pair == 1:
        return np.where(codes > 127, 256 - codes, codes) >= target.largest_code
    return np.asarray((codes & (1 << target.element_bits - 1) - 1) >= target.largest_code)

"""The data formats as data: bits of an element, what a block shares, and the source of the definition.

An element has a sign, an exponent and a mantissa. An element without an exponent is an integer: a fraction with one
bit before the point. A block of elements may share a scale, and each pair in it a microexponent.

Under shared microexponents (arXiv 2302.08007), E is the exponent of the largest magnitude of the block. A pair whose
magnitudes are all below 2^E has the microexponent t = 1, otherwise 0. An element is a sign and m bits of magnitude::

    q = min(round(|x| 2^(m-1) / 2^(E-t)), 2^m - 1)        value = +- q 2^(E-t) / 2^(m-1)

The paper leaves three points open. Here halves are rounded to even. E is clamped to -127 to 127, and stored with a bias
of 127, as the scale of OCP MX. A block with an infinity or a NaN has the stored exponent 255, and all its values become
NaN. A zero keeps its sign; a block of zeros has the exponent -127 and all microexponents at 1.

OCP MX (version 1.0, section 6.3): the exponent of a scale is that of the largest magnitude of the block, less the
largest exponent of an element. Elements saturate. MXINT8 leaves -2 unused, so that it is symmetric. The specification
leaves values above the largest float32 to the implementation: here the scale stays at its limit, and `dequantize`
returns the largest float32. A block with an infinity or a NaN takes the scale 255, which is NaN for all of it.

NVFP4: the scale of the array is its largest magnitude over 6 x 448, in float32, and that of a block its largest
magnitude over 6 and over the scale of the array, in E4M3. A block with an infinity or a NaN takes the scale NaN, and
does not count for the scale of the array. An array of zeros has the scale 1.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from profilers.errors import InvalidInputError, NotFoundError

_SHARED = "arXiv 2302.08007, With Shared Microexponents"
_OCP_MX = "OCP Microscaling Formats (MX) v1.0"
_OCP_FP8 = "OCP 8-bit Floating Point (OFP8) v1.0, saturating"
_NVFP4 = "NVIDIA Transformer Engine, NVFP4"
_IEEE = "IEEE 754-2019, binary{}"


@dataclass(frozen=True)
class Format:
    """A number format, with what blocks of numbers share.

    Parameters
    ----------
    name : str
        Name, such as ``"mx9"``.
    kind : str
        ``"float"``, ``"shared microexponents"``, ``"OCP MX"`` or ``"NVFP4"``.
    exponent_bits, mantissa_bits : int
        Bits of an element, beside its sign bit. Without exponent bits the mantissa is an integer that includes the bit
        before the point: sign and magnitude under shared microexponents, two's complement in MXINT8.
    source : str
        Specification or publication that defines the format.
    block : int
        Number of values along the axis that share a scale; 1 if there is no scale.
    scale : str
        Format of the scale: ``"E8M0"`` (a power of two, biased by 127), ``"E4M3"``, or ``"-"`` for none.
    scale_bits : int
        Bits of the scale of a block.
    pair : int
        Number of neighbours that share a microexponent; 1 if there is none.
    pair_bits : int
        Bits of the microexponent.
    tensor_bits : int
        Bits of the scale of the whole array.
    specials : str
        Codes of an element that are no numbers: ``"IEEE"`` (infinities and NaN), ``"NaN"`` or ``"none"``.
    overflow : str
        What a finite value beyond the largest one becomes: ``"largest"`` or ``"infinity"``.

    Examples
    --------
    >>> find_format("mx9").bits_per_value, find_format("mxfp4").bits_per_value
    (Fraction(9, 1), Fraction(17, 4))
    """

    name: str
    kind: str
    exponent_bits: int
    mantissa_bits: int
    source: str
    block: int = 1
    scale: str = "-"
    scale_bits: int = 0
    pair: int = 1
    pair_bits: int = 0
    tensor_bits: int = 0
    specials: str = "none"
    overflow: str = "largest"

    @property
    def element_bits(self) -> int:
        """Bits of an element: sign, exponent and mantissa."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bits_per_value(self) -> Fraction:
        """Bits of a value with its part of what its block shares. The scale of the whole array is not counted."""
        return self.element_bits + Fraction(self.scale_bits, self.block) + Fraction(self.pair_bits, self.pair)

    @property
    def is_integer(self) -> bool:
        """Whether elements are integers, without an exponent of their own."""
        return not self.exponent_bits

    @property
    def is_directional(self) -> bool:
        """Whether the copy depends on the axis of the blocks, so that W and its transpose need one each."""
        return self.block > 1

    @property
    def bias(self) -> int:
        """Bias of the exponent of an element."""
        return (1 << self.exponent_bits - 1) - 1 if self.exponent_bits else 0

    @property
    def largest_code(self) -> int:
        """Code of the largest number of an element, without the sign."""
        codes = 1 << self.exponent_bits + self.mantissa_bits
        return codes - 1 - {"none": 0, "NaN": 1, "IEEE": 1 << self.mantissa_bits}[self.specials]

    @property
    def nan_code(self) -> int:
        """Code of the quiet NaN of an element, without the sign; for a format without NaN it means nothing."""
        if self.specials == "NaN":
            return self.largest_code + 1
        return self.largest_code + 1 + (1 << self.mantissa_bits - 1)

    @property
    def largest_exponent(self) -> int:
        """Exponent of the largest power of two that an element holds."""
        return (self.largest_code >> self.mantissa_bits) - self.bias if self.exponent_bits else 0

    @property
    def largest(self) -> Fraction:
        """Largest number of an element, before any scale."""
        if self.is_integer:
            return Fraction(self.largest_code, 1 << self.mantissa_bits - 1)
        mantissa = (1 << self.mantissa_bits) + self.largest_code % (1 << self.mantissa_bits)
        return mantissa * Fraction(2) ** (self.largest_exponent - self.mantissa_bits)

    def nbytes(self, values: int) -> int:
        """Return the bytes of an array of `values` numbers, packed, with the scale of the array if there is one.

        Parameters
        ----------
        values : int
            Number of values.

        Examples
        --------
        >>> find_format("mx6").nbytes(1024), find_format("nvfp4").nbytes(1024)
        (768, 580)
        """
        return -(-(values * self.bits_per_value + self.tensor_bits) // 8)


def _shared_microexponents(name: str, mantissa_bits: int) -> Format:
    shared = {"block": 16, "scale": "E8M0", "scale_bits": 8, "pair": 2, "pair_bits": 1}
    return Format(name, "shared microexponents", 0, mantissa_bits, _SHARED, **shared)  # type: ignore[arg-type]


def _ocp(name: str, exponent_bits: int, mantissa_bits: int, specials: str = "none") -> Format:
    return Format(
        name, "OCP MX", exponent_bits, mantissa_bits, _OCP_MX,
        block=32, scale="E8M0", scale_bits=8, specials=specials,
    )  # fmt: skip


def _float(name: str, exponent_bits: int, mantissa_bits: int, source: str) -> Format:
    return Format(name, "float", exponent_bits, mantissa_bits, source, specials="IEEE", overflow="infinity")


_ALL = (
    _shared_microexponents("mx9", 7),
    _shared_microexponents("mx6", 4),
    _shared_microexponents("mx4", 2),
    _ocp("mxfp8_e4m3", 4, 3, "NaN"),
    _ocp("mxfp8_e5m2", 5, 2, "IEEE"),
    _ocp("mxfp6_e3m2", 3, 2),
    _ocp("mxfp6_e2m3", 2, 3),
    _ocp("mxfp4", 2, 1),
    _ocp("mxint8", 0, 7),
    Format("nvfp4", "NVFP4", 2, 1, _NVFP4, block=16, scale="E4M3", scale_bits=8, tensor_bits=32),
    Format("fp8_e4m3", "float", 4, 3, _OCP_FP8, specials="NaN"),
    Format("fp8_e5m2", "float", 5, 2, _OCP_FP8, specials="IEEE"),
    _float("fp16", 5, 10, _IEEE.format(16)),
    _float("bf16", 8, 7, "upper half of IEEE 754-2019, binary32"),
    _float("fp32", 8, 23, _IEEE.format(32)),
)
#: The formats by name.
FORMATS: Mapping[str, Format] = MappingProxyType({each.name: each for each in _ALL})


def find_format(name: str | Format) -> Format:
    """Return the format of a name; case, and a hyphen for an underscore, do not matter.

    Parameters
    ----------
    name : str or Format
        Name of a format, one of `FORMATS`; a format is returned as it is.

    Raises
    ------
    NotFoundError
        No format has that name; the message gives the nearest ones and all others.
    InvalidInputError
        The name is no text.

    Examples
    --------
    >>> find_format("MXFP8-E4M3").block
    32
    """
    if isinstance(name, Format):
        return name
    if not isinstance(name, str):
        raise InvalidInputError(
            f"a data format is given by its name, not by {name!r:.40}; formats: {', '.join(FORMATS)}"
        )
    plain = name.strip().lower().replace("-", "_")
    if plain in FORMATS:
        return FORMATS[plain]
    near = difflib.get_close_matches(plain, list(FORMATS), n=3, cutoff=0.5)
    nearest = f"nearest: {', '.join(near)}; " if near else ""
    raise NotFoundError(f"no data format is called {name[:40]!r}; {nearest}formats: {', '.join(FORMATS)}")

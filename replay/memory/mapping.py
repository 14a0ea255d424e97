"""Map addresses to channels, banks and rows: by an order of bits, with hashes that spread conflicting rows."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from profilers.trace.compiled import compiled

#: Fields of an address, by their two letters.
FIELDS: Mapping[str, str] = MappingProxyType(
    {"ro": "row", "ra": "rank", "ba": "bank", "bg": "bank group", "ch": "channel", "co": "column"}
)
#: Mappings with a name: an order of bits, from high to low, and after a plus sign the fields that are hashed.
NAMED: Mapping[str, str] = MappingProxyType(
    {
        "row": "rorabgbachco",
        "channel": "rochrababgco",
        "interleaved": "rorababgco*chco2",
        "xor": "rorababgco*chco2+ba+bg+ch",
    }
)
#: Numbers of the fields in the tables of the compiled code; rank and column select nothing there.
_SELECTED = {"ch": 0, "bg": 1, "ba": 2, "ro": 3}
#: Addresses that are decoded at a time, so that they stay in the first cache.
_CHUNK = 1024
_PIECE = re.compile(r"([a-z]{2})(\d+|\*)?")


@dataclass(frozen=True)
class AddressMapping:
    """Where each bit of an address goes.

    Parameters
    ----------
    text : str
        Order of bits from high to low, such as ``"rorabgbachco"``: ro row, ra rank, ba bank, bg bank group, ch channel,
        co column. A field is in pieces if each piece has its number of bits, or ``*`` for all that are left:
        ``"rorababgco*chco2"``. Banks after a plus sign are combined with bits of the row by exclusive or,
        the channel with all bits above it: ``"rorababgchco+ba+ch"``.
        Or a name of `NAMED`. If the number of channels is no power of two, the channel is the rest of a division and
        is not hashed.
    widths : mapping of str to int
        Bits of each field. The number of channels may be no power of two; its width is then 0.
    access_bytes : int
        Bytes of a request; the bits below choose a byte in it.
    channels : int
        Number of channels.

    Raises
    ------
    InvalidInputError
        A field is unknown, missing, or has more or fewer bits than the memory.
    """

    text: str
    widths: Mapping[str, int]
    access_bytes: int
    channels: int

    def __post_init__(self) -> None:
        _ = self.pieces, self._hashed

    @cached_property
    def pieces(self) -> tuple[tuple[str, int, int], ...]:
        """Pieces from low to high: field, bits, and bits of the field below it."""
        order = self._expanded.split("+")[0]
        matches = list(_PIECE.finditer(order))
        if "".join(match[0] for match in matches) != order or not order:
            raise self._refusal("it must be fields of two letters, each with an optional number of bits")
        named = [(match[1], match[2] or "") for match in matches]
        for field, _ in named:
            if field not in FIELDS:
                raise self._refusal(f"there is no field {field!r}; fields are {', '.join(FIELDS)}")
        return self._placed(list(reversed(named)))

    def _placed(self, named: list[tuple[str, str]]) -> tuple[tuple[str, int, int], ...]:
        """Return the pieces with their numbers of bits; `named` is from low to high."""
        for field, meaning in FIELDS.items():
            sizes = [size for name, size in named if name == field]
            if not sizes and (self.widths[field] or (field == "ch" and self.channels > 1)):
                raise self._refusal(f"it misses the {self.widths[field]} bits of {field} ({meaning})")
            if len(sizes) > 1 and ("" in sizes or sizes.count("*") > 1):
                raise self._refusal(f"it repeats {field} ({meaning}); give each piece its number of bits")
            given = sum(int(size) for size in sizes if size not in ("", "*"))
            open_ended = any(size in ("", "*") for size in sizes)
            if given > self.widths[field] or (sizes and not open_ended and given < self.widths[field]):
                raise self._refusal(f"it gives {field} ({meaning}) {given} bits; the memory has {self.widths[field]}")
        pieces: list[tuple[str, int, int]] = []
        for field, size in named:
            given = sum(int(other) for name, other in named if name == field and other not in ("", "*"))
            bits = self.widths[field] - given if size in ("", "*") else int(size)
            pieces.append((field, bits, sum(b for name, b, _ in pieces if name == field)))
        return tuple(pieces)

    @cached_property
    def _expanded(self) -> str:
        return NAMED.get(self.text, self.text)

    @cached_property
    def _hashed(self) -> tuple[str, ...]:
        """Fields that are combined with higher bits: banks with those of the row, the channel with all above it."""
        fields = tuple(self._expanded.split("+")[1:])
        for field in fields:
            if field not in ("ba", "bg", "ch"):
                raise self._refusal(f"{field!r} cannot be hashed; ba, bg and ch can")
        return fields

    @property
    def folds_channel(self) -> bool:
        """Whether the channel is combined with all bits above it."""
        return "ch" in self._hashed and self.widths["ch"] > 0

    def _refusal(self, problem: str) -> InvalidInputError:
        return InvalidInputError(f"address mapping {self.text!r}: {problem}")

    @cached_property
    def table(self) -> Ints:
        """Moves of bits, shape (n, 4): field, shift down, mask, shift up. Moves to one field are combined by xor."""
        moves: list[tuple[int, int, int, int]] = []
        rows: list[int] = []
        shift = end = self.access_bytes.bit_length() - 1
        for field, bits, below in self.pieces:
            if field in _SELECTED and bits:
                moves.append((_SELECTED[field], shift, (1 << bits) - 1, below))
            rows.extend(range(shift, shift + bits) if field == "ro" else ())
            shift += bits
            end = shift if field == "ch" else end
        banks = [field for field in self._hashed if field != "ch"]
        for field in self._hashed:
            width = self.widths[field]
            if field == "ch":
                # All bits above the channel, so that no stride stays on a few channels.
                moves.extend(
                    (_SELECTED[field], at, 1, number % width) for number, at in enumerate(range(end, shift)) if width
                )
                continue
            # Row bits are dealt to the fields of banks in turn, so that each of them depends on others.
            first, step = (
                sum(self.widths[other] for other in banks[: banks.index(field)]),
                sum(map(self.widths.__getitem__, banks)),
            )
            moves.extend((_SELECTED[field], at, 1, bit) for bit in range(width) for at in rows[first + bit :: step])
        return np.array(moves, dtype=np.int64).reshape(-1, 4)

    @cached_property
    def split_at(self) -> int:
        """Bit at which the address is divided by the channels if their number is no power of two; otherwise -1."""
        if self.channels & (self.channels - 1) == 0:
            return -1
        shift = self.access_bytes.bit_length() - 1
        for field, bits, _ in self.pieces:
            if field == "ch":
                return shift
            shift += bits
        return -1

    def decode(self, address: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return channel, bank group, bank in the group and row of each address, arrays of shape (n,).

        Addresses beyond the memory wrap around.
        """
        fields = np.empty((4, len(address)), dtype=np.int64)
        _decode(np.ascontiguousarray(address, dtype=np.int64), self.table, fields, self.channels, self.split_at)
        return fields[0], fields[1], fields[2], fields[3]


@compiled
def _decode(address, table, fields, channels, split_at):  # type: ignore[no-untyped-def]
    """Fill channel, bank group, bank and row of each address."""
    n = len(address)
    inner = np.empty(_CHUNK, np.int64)
    for begin in range(0, n, _CHUNK):
        count = min(_CHUNK, n - begin)
        for i in range(count):
            inner[i] = address[begin + i]
        for field in range(4):
            fields[field, begin : begin + count] = 0
        if split_at >= 0:
            low = (1 << split_at) - 1
            for i in range(count):
                upper = inner[i] >> split_at
                rest = upper // channels
                fields[0, begin + i] = upper - rest * channels
                inner[i] = (rest << split_at) | (inner[i] & low)
        for move in range(len(table)):
            chosen = fields[table[move, 0], begin : begin + count]
            down, mask, up = table[move, 1], table[move, 2], table[move, 3]
            for i in range(count):
                chosen[i] ^= ((inner[i] >> down) & mask) << up

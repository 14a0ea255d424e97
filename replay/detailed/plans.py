"""Read plans of launches from TOML, and buffers from short texts.

A plan names buffers, and launches of PTX files that share them; `read_plan` reads one. `parse_argument` reads an
argument of the command line: a number, or a buffer such as ``x=f32[64,256]:normal:seed=1``.
"""

import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import read_toml, typed_table
from replay.detailed.arguments import Argument, Structure, Texture
from replay.detailed.launch import KernelLaunch, LaunchPlan

#: NumPy types of elements; NumPy has no BF16, so its bits stand in 16-bit integers.
DTYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64, "s8": np.int8, "s16": np.int16,
    "s32": np.int32, "s64": np.int64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
}  # fmt: skip
FILLS = ("zeros", "normal", "uniform", "randint", "arange")
#: Most bytes of a buffer.
_MOST_BYTES = 4 << 30
#: Most dimensions of a buffer; NumPy has 64.
_MOST_DIMENSIONS = 16
#: Name of a buffer. It becomes the name of a file, so that it has no dots or slashes.
_NAME = re.compile(r"[^\W\d]\w{0,99}")
_BUFFER = re.compile(r"(\w{1,9})\[([0-9, ]{1,400})\]((?::[\w.=+-]+)*)")
#: Settings that each fill has in an argument of the command line.
_SETTINGS = {"normal": ("seed",), "uniform": ("seed", "low", "high"), "randint": ("seed", "low", "high")}

Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 32)]


class _Buffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str = ""
    shape: list[Size] = []
    fill: str = "zeros"
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    low: float = 0.0
    high: float = 1.0
    file: str = ""
    pointers: list[str] = []


class _LaunchEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ptx: str
    entry: str
    grid: list[Size]
    block: list[Size]
    arguments: list[str | int | float | list[str]] = []
    shared_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    variables: dict[str, str | int | float | list[str]] = {}


class _TextureEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    buffer: str
    filtering: str = "point"
    addressing: str = "clamp"
    normalized: bool = False


class _LaunchPlanFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    launches: list[dict[str, Any]]
    buffers: dict[str, dict[str, Any]] = {}
    textures: dict[str, dict[str, Any]] = {}
    about: str = ""


def read_plan(path: str | Path) -> LaunchPlan:
    """Return the plan of a TOML file.

    Parameters
    ----------
    path : str or Path
        File; paths in it are relative to its folder.

    Raises
    ------
    NotFoundError
        There is no such file, or a file that it names.
    InvalidInputError
        A key is unknown or missing, or a value cannot be; with file and key.
    """
    file = Path(path)
    content = typed_table(read_toml(file, "a plan of launches"), _LaunchPlanFile, str(file))
    if not content.launches:
        raise InvalidInputError(f"{file}: launches: a plan has one or more")
    for name in content.buffers:
        check_name(name, f"{file}: buffers")
    tables = {name: typed_table(table, _Buffer, f"{file}: buffers.{name}") for name, table in content.buffers.items()}
    buffers = {name: make_buffer(table, f"{file}: buffers.{name}", file.parent) for name, table in tables.items()}
    pointers = {
        name: tuple(_known(target, buffers, f"{file}: buffers.{name}.pointers") for target in table.pointers)
        for name, table in tables.items() if table.pointers
    }  # fmt: skip
    textures = {}
    for name, table in content.textures.items():
        where = f"{file}: textures.{name}"
        textures[name] = _texture(typed_table(table, _TextureEntry, where), buffers, where)
    calls = [
        _call(table, buffers, textures, f"{file}: launches[{number}]", file.parent)
        for number, table in enumerate(content.launches)
    ]
    return LaunchPlan(content.about or file.stem, buffers, tuple(calls), pointers)


def _call(
    table: dict[str, Any], buffers: dict[str, NDArray[Any]], textures: dict[str, Texture], where: str, folder: Path
) -> KernelLaunch:
    """Return the launch that a table describes."""
    launch = typed_table(table, _LaunchEntry, where)
    source = folder / launch.ptx
    if not source.is_file():
        raise NotFoundError(f"{where}.ptx: there is no file {str(source)!r:.120}")
    grid, block = (three(sizes, where) for sizes in (launch.grid, launch.block))
    arguments = tuple(_argument(value, buffers, textures, f"{where}.arguments") for value in launch.arguments)
    variables = {
        name: _argument(value, buffers, {}, f"{where}.variables.{name}") for name, value in launch.variables.items()
    }
    return KernelLaunch(source, launch.entry, grid, block, arguments, launch.shared_bytes, variables)


def _argument(
    value: str | float | list[str], buffers: dict[str, NDArray[Any]], textures: dict[str, Texture], where: str
) -> Argument:
    """Return an argument, or the content of a variable."""
    if isinstance(value, list):
        return _structure(value, buffers, where)
    if isinstance(value, str) and value not in buffers and value not in textures:
        raise InvalidInputError(f"{where}: there is no buffer or texture {value!r:.60}")
    return textures.get(value, value) if isinstance(value, str) else value


def _structure(members: list[str], buffers: dict[str, NDArray[Any]], where: str) -> Structure:
    """Return a structure of members such as ``u64 x``, a pointer to a buffer, or ``f32 0.5``."""
    found: list[tuple[str, str | int | float]] = []
    for text in members:
        kind, _, value = text.partition(" ")
        if value in buffers:
            found.append((kind, value))
            continue
        try:
            found.append((kind, _number(value.strip())))
        except ValueError:
            raise InvalidInputError(
                f"{where}: member {text!r:.60}: a type and a number or the name of a buffer, such as 's32 5'"
            ) from None
    return Structure(tuple(found))


def _texture(facts: _TextureEntry, buffers: dict[str, NDArray[Any]], where: str) -> Texture:
    name = where.rpartition(".")[2]
    if name in buffers:
        raise InvalidInputError(f"{where}: a buffer has the same name")
    buffer = _known(facts.buffer, buffers, f"{where}.buffer")
    return Texture(buffer, facts.filtering, facts.addressing, facts.normalized)


def _known(name: str, buffers: dict[str, NDArray[Any]], where: str) -> str:
    """Return the name of a buffer that is there."""
    if name not in buffers:
        raise InvalidInputError(f"{where}: there is no buffer {name!r:.60}")
    return name


def check_name(name: str, where: str) -> None:
    """Check the name of a buffer, which is also that of its file.

    Raises
    ------
    InvalidInputError
        It is not a letter followed by letters, digits and underscores, 100 in all.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInputError(f"{where}: {name!r:.60} is no name of a buffer; letters, digits and underscores are")


def three(sizes: "list[int] | tuple[int, ...]", where: str) -> tuple[int, int, int]:
    """Return sizes in three dimensions.

    Raises
    ------
    InvalidInputError
        There are none, or more than three.
    """
    if not 1 <= len(sizes) <= 3:
        raise InvalidInputError(f"{where}: {len(sizes)} sizes of a grid or block; one to three")
    x, y, z = [*sizes, 1, 1][:3]
    return x, y, z


def make_buffer(facts: _Buffer, where: str, folder: Path) -> NDArray[Any]:
    """Return the content of a buffer.

    Raises
    ------
    NotFoundError
        There is no such file.
    InvalidInputError
        Type, fill or file cannot be.
    """
    if facts.pointers:
        if facts != _Buffer(pointers=facts.pointers):
            raise InvalidInputError(f"{where}: a buffer of pointers has no other keys")
        return np.zeros(len(facts.pointers), np.uint64)
    if facts.dtype not in DTYPES and (facts.dtype or not facts.file):
        raise InvalidInputError(f"{where}.dtype: {facts.dtype!r:.40}; one of {', '.join(DTYPES)}")
    if facts.file:
        values = _loaded(folder / facts.file, f"{where}.file")
        if facts.dtype and values.dtype != DTYPES[facts.dtype]:
            expected = np.dtype(DTYPES[facts.dtype])
            raise InvalidInputError(f"{where}.file: {facts.file}: elements of {values.dtype}, not {expected}")
        if facts.shape and values.shape != tuple(facts.shape):
            raise InvalidInputError(f"{where}.shape: {facts.shape}, but {facts.file} has {list(values.shape)}")
        return values
    kind, count = np.dtype(DTYPES[facts.dtype]), math.prod(facts.shape)
    width = kind.itemsize if facts.fill == "zeros" else 8
    if not 1 <= len(facts.shape) <= _MOST_DIMENSIONS or count * width > _MOST_BYTES:
        raise InvalidInputError(
            f"{where}.shape: {facts.shape!s:.60}; 1 to {_MOST_DIMENSIONS} sizes, and up to {_MOST_BYTES} bytes, "
            "of 8 an element if it is filled"
        )
    if facts.fill not in FILLS:
        raise InvalidInputError(f"{where}.fill: {facts.fill!r:.40}; one of {', '.join(FILLS)}")
    if not -1e300 < facts.low <= facts.high < 1e300:
        raise InvalidInputError(f"{where}: low {facts.low} and high {facts.high} are no range")
    if facts.fill == "zeros":
        return np.zeros(facts.shape, kind)
    values = _filled(facts, count, where)
    _check_range(values, facts.dtype, where)
    if facts.dtype == "bf16":
        bits = values.astype(np.float32).view(np.uint32)
        values = bits + 0x7FFF + ((bits >> 16) & 1) >> 16
    return values.astype(kind).reshape(facts.shape)


def _filled(facts: _Buffer, count: int, where: str) -> NDArray[Any]:
    random = np.random.default_rng(facts.seed)
    if facts.fill == "normal":
        return random.standard_normal(count, dtype=np.float32)
    if facts.fill == "uniform":
        return facts.low + random.random(count) * (facts.high - facts.low)
    if facts.fill == "arange":
        return np.arange(count)
    low, high = int(facts.low), max(int(facts.high), int(facts.low) + 1)
    if low < -(1 << 63) or high > 1 << 63:
        raise InvalidInputError(f"{where}: low {facts.low} and high {facts.high}: randint has 64 bits")
    return random.integers(low, high, size=count)


def _check_range(values: NDArray[Any], dtype: str, where: str) -> None:
    """Check that a type holds all values of a fill."""
    if dtype[0] in "su":
        facts = np.iinfo(DTYPES[dtype])
        low, high = float(facts.min), float(facts.max)
    else:
        high = {"f16": 65504.0, "bf16": 3.38e38, "f32": 3.4e38, "f64": math.inf}[dtype]
        low = -high
    least, most = values.min(), values.max()
    if not (low <= least and most <= high):
        raise InvalidInputError(f"{where}: values from {least} to {most} do not fit {dtype}")


def _loaded(file: Path, where: str) -> NDArray[Any]:
    """Return the array of a NumPy file, with elements that a kernel can take."""
    if not file.is_file():
        raise NotFoundError(f"{where}: {file}: there is no such file")
    if file.stat().st_size > _MOST_BYTES:
        raise InvalidInputError(f"{where}: {file}: more than {_MOST_BYTES} bytes")
    try:
        with file.open("rb") as stream:
            values = np.load(stream, allow_pickle=False)
    except (ValueError, OSError, EOFError, MemoryError) as problem:
        raise InvalidInputError(f"{where}: {file}: no array of NumPy ({str(problem)[:100]})") from None
    if not isinstance(values, np.ndarray) or values.dtype not in [np.dtype(kind) for kind in DTYPES.values()]:
        raise InvalidInputError(f"{where}: {file}: no array with elements of {', '.join(DTYPES)}")
    return values


def _number(text: str) -> int | float:
    """Return a number; a ValueError says that the text is none."""
    try:
        return int(text, 0)
    except ValueError:
        return float(text)


def parse_argument(text: str) -> tuple[str, NDArray[Any] | int | float | None]:
    """Return the name and the value of an argument; no name for a number, no value for a buffer that was named before.

    A buffer is ``NAME=TYPE[SIZES]``, then, after colons, a fill and its settings; or ``NAME=@FILE.npy``.

    Parameters
    ----------
    text : str
        Text.

    Raises
    ------
    NotFoundError, InvalidInputError
        It is none of these; or as `make_buffer`.

    Examples
    --------
    >>> parse_argument("0x10"), parse_argument("1.5")
    (('', 16), ('', 1.5))
    >>> name, values = parse_argument("x=f32[2,3]:uniform:low=1:high=2:seed=7")
    >>> name, values.shape, bool((values >= 1).all())
    ('x', (2, 3), True)
    """
    with suppress(ValueError):
        return "", _number(text)
    return _parse_named(text)


def parse_variable(text: str) -> tuple[str, NDArray[Any] | int | float | None]:
    """Return the name and the content of a variable: ``NAME=5``, or a buffer, with the errors of `parse_argument`.

    Examples
    --------
    >>> parse_variable("count=0x10"), parse_variable("table=u8[2]:arange")
    (('count', 16), ('table', array([0, 1], dtype=uint8)))
    """
    name, _, rest = text.partition("=")
    if _NAME.fullmatch(name):
        with suppress(ValueError):
            return name, _number(rest)
    return _parse_named(text)


def _parse_named(text: str) -> tuple[str, NDArray[Any] | None]:
    name, equals, rest = text.partition("=")
    if not _NAME.fullmatch(name):
        raise InvalidInputError(f"argument {text!r:.80}: a number, NAME=f32[64,256]:normal:seed=1 or NAME=@FILE.npy")
    if not equals:
        return name, None
    if rest.startswith("@"):
        return name, _loaded(Path(rest[1:]), f"argument {text!r:.80}")
    match = _BUFFER.fullmatch(rest)
    if not match:
        with suppress(ValueError):
            number = _number(rest)
            raise InvalidInputError(f"argument {text!r:.80}: a number has no name; give {number}")
        raise InvalidInputError(f"argument {text!r:.80}: after the equals sign stands f32[64,256]:normal:seed=1")
    where = f"argument {text!r:.80}"
    facts = _settings(match[3].split(":")[1:], where)
    try:
        facts["shape"] = [int(size) for size in match[2].split(",") if size.strip()]
    except ValueError:
        raise InvalidInputError(f"{where}: sizes stand between commas") from None
    buffer = typed_table({"dtype": match[1], **facts}, _Buffer, where)
    return name, make_buffer(buffer, f"argument {name}", Path())


def _settings(parts: list[str], where: str) -> dict[str, Any]:
    """Return the fill and the settings that stand behind the sizes of a buffer."""
    facts: dict[str, Any] = {}
    for part in parts:
        key, is_setting, value = part.partition("=")
        allowed = _SETTINGS.get(facts.get("fill", ""), ())
        if not is_setting and "fill" not in facts:
            facts["fill"] = key
            continue
        if not is_setting or key not in allowed or key in facts:
            known = (
                f"fill {facts['fill']} has {', '.join(allowed) or 'no settings'}"
                if "fill" in facts
                else "a setting follows a fill"
            )
            raise InvalidInputError(f"{where}: {part!r:.40} cannot stand here ({known}, each once)")
        try:
            facts[key] = int(value) if key == "seed" else float(value)
        except ValueError:
            raise InvalidInputError(f"{where}: {key}: {value!r:.40} is no number") from None
    return facts

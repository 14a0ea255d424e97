"""Read plans of launches from TOML, and buffers from short texts.

A plan names buffers, and launches of PTX files that share them; `read_plan` reads one. `parse_argument` reads an
argument of the command line: a number, or a buffer such as ``x=f32[64,256]:normal:seed=1``.
"""

import math
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import read_toml, typed_table
from replay.detailed.launch import KernelCall, Plan

#: NumPy types of elements; NumPy has no BF16, so its bits stand in 16-bit integers.
DTYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64, "s8": np.int8, "s16": np.int16,
    "s32": np.int32, "s64": np.int64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
}  # fmt: skip
FILLS = ("zeros", "normal", "uniform", "randint", "arange")
#: Most bytes of a buffer.
_MOST_BYTES = 4 << 30
_BUFFER = re.compile(r"(\w+)\[([\d, ]+)\]((?::[\w.=+-]+)*)")

Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 32)]


class _Buffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: list[Size] = []
    fill: str = "zeros"
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    low: float = 0.0
    high: float = 1.0
    file: str = ""


class _Launch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ptx: str
    entry: str
    grid: list[Size]
    block: list[Size]
    arguments: list[str | int | float] = []
    shared_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0


class _PlanFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    launches: list[_Launch]
    buffers: dict[str, _Buffer] = {}
    about: str = ""


def read_plan(path: str | Path) -> Plan:
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
    content = typed_table(read_toml(file, "a plan of launches"), _PlanFile, str(file))
    if not content.launches:
        raise InvalidInputError(f"{file}: launches: a plan has one or more")
    buffers = {
        name: make_buffer(facts, f"{file}: buffers.{name}", file.parent) for name, facts in content.buffers.items()
    }
    calls = []
    for number, launch in enumerate(content.launches):
        where = f"{file}: launches[{number}]"
        unknown = next((a for a in launch.arguments if isinstance(a, str) and a not in buffers), None)
        if unknown is not None:
            raise InvalidInputError(f"{where}.arguments: there is no buffer {unknown!r:.60}")
        source = file.parent / launch.ptx
        if not source.is_file():
            raise NotFoundError(f"{where}.ptx: no file {launch.ptx!r:.80} in {file.parent}")
        grid, block = (three(sizes, where) for sizes in (launch.grid, launch.block))
        calls.append(KernelCall(source, launch.entry, grid, block, tuple(launch.arguments), launch.shared_bytes))
    return Plan(content.about or file.stem, buffers, tuple(calls))


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
    if facts.dtype not in DTYPES:
        raise InvalidInputError(f"{where}.dtype: {facts.dtype!r:.40}; one of {', '.join(DTYPES)}")
    kind = np.dtype(DTYPES[facts.dtype])
    if facts.file:
        return _loaded(folder / facts.file, kind, where)
    count = math.prod(facts.shape)
    if not facts.shape or count * kind.itemsize > _MOST_BYTES:
        raise InvalidInputError(f"{where}.shape: {facts.shape} has no size, or more than {_MOST_BYTES} bytes")
    if facts.fill not in FILLS:
        raise InvalidInputError(f"{where}.fill: {facts.fill!r:.40}; one of {', '.join(FILLS)}")
    if not facts.low <= facts.high < 1e300:
        raise InvalidInputError(f"{where}: low {facts.low} and high {facts.high} are no range")
    values = _filled(facts, count)
    if facts.dtype == "bf16":
        bits = values.astype(np.float32).view(np.uint32)
        values = bits + 0x7FFF + ((bits >> 16) & 1) >> 16
    return values.astype(kind).reshape(facts.shape)


def _filled(facts: _Buffer, count: int) -> NDArray[Any]:
    random = np.random.default_rng(facts.seed)
    if facts.fill == "normal":
        return random.standard_normal(count, dtype=np.float32)
    if facts.fill == "uniform":
        return facts.low + random.random(count) * (facts.high - facts.low)
    if facts.fill == "randint":
        return random.integers(int(facts.low), max(int(facts.high), int(facts.low) + 1), size=count)
    return np.arange(count) if facts.fill == "arange" else np.zeros(count)


def _loaded(file: Path, kind: "np.dtype[Any]", where: str) -> NDArray[Any]:
    if not file.is_file():
        raise NotFoundError(f"{where}.file: {file}: there is no such file")
    try:
        values = np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError) as problem:
        raise InvalidInputError(f"{where}.file: {file}: no array of NumPy ({str(problem)[:100]})") from None
    if not isinstance(values, np.ndarray) or values.dtype != kind:
        raise InvalidInputError(f"{where}.file: {file}: elements of {getattr(values, 'dtype', '?')}, not {kind}")
    return np.asarray(values)


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
    for kind in (lambda t: int(t, 0), float):
        try:
            return "", kind(text)
        except ValueError:
            continue
    name, equals, rest = text.partition("=")
    if not name.isidentifier():
        raise InvalidInputError(f"argument {text!r:.80}: a number, NAME=f32[64,256]:normal:seed=1 or NAME=@FILE.npy")
    if not equals:
        return name, None
    if rest.startswith("@"):
        return name, _any_array(Path(rest[1:]), text)
    match = _BUFFER.fullmatch(rest)
    if not match:
        raise InvalidInputError(f"argument {text!r:.80}: after the equals sign stands f32[64,256]:normal:seed=1")
    sizes = [int(size) for size in match[2].split(",") if size.strip()]
    facts: dict[str, Any] = {"dtype": match[1], "shape": sizes}
    for part in match[3].split(":")[1:]:
        key, is_setting, value = part.partition("=")
        if not is_setting:
            facts["fill"] = key
        elif key in ("seed", "low", "high"):
            facts[key] = int(value) if key == "seed" and value.isdigit() else float(value)
        else:
            raise InvalidInputError(f"argument {text!r:.80}: no setting {key!r}; seed, low and high")
    buffer = typed_table(facts, _Buffer, f"argument {text!r:.80}")
    return name, make_buffer(buffer, f"argument {name}", Path())


def _any_array(file: Path, text: str) -> NDArray[Any]:
    if not file.is_file():
        raise NotFoundError(f"argument {text!r:.80}: {file}: there is no such file")
    try:
        values = np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError) as problem:
        raise InvalidInputError(f"{file}: no array of NumPy ({str(problem)[:100]})") from None
    if not isinstance(values, np.ndarray) or values.dtype not in [np.dtype(kind) for kind in DTYPES.values()]:
        raise InvalidInputError(f"{file}: elements that no kernel takes")
    return values

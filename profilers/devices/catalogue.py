"""The device catalogue: figures of GPUs, each with its source and its certainty, and look-up by name.

`load_devices` reads the shipped catalogue and a user's own TOML files. `find_device` knows the names and aliases that
profilers write. `device_of_file` finds the device that the name of a file says.
"""

import difflib
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import dataset_path, read_toml, typed_table

#: The environment variable that names TOML files of a user's own devices.
USER_DEVICES: Final = "SEQPOINT_DEVICES"
_USER_FILE: Final = f"a TOML file that {USER_DEVICES} names, in the layout of datasets/devices.toml (docs/devices.md)"


class _FigureLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The unit and the range of a figure."""

    unit: str
    least: float
    most: float


def _read_limits() -> dict[str, _FigureLimits]:
    file = dataset_path("figures.toml")
    return {
        name: typed_table(row, _FigureLimits, f"{file}: {name}") for name, row in read_toml(file, "figures").items()
    }


_LIMITS = _read_limits()
#: The unit of each figure that a catalogue may give, and its least and largest value in that unit.
FIGURE_UNITS: Final = MappingProxyType({name: limits.unit for name, limits in _LIMITS.items()})
FIGURE_RANGES: Final = MappingProxyType({name: (limits.least, limits.most) for name, limits in _LIMITS.items()})

#: A rate that was measured, and the peak that it cannot exceed.
_SUSTAINED, _PEAK = "bf16_sustained_tflops", "bf16_tflops"

#: From most to least certain; the head of `datasets/devices.toml` says what they mean.
CERTAINTIES: Final = ("data-sheet", "published", "third-party", "recollection")

#: The figures that give the peak of a data type, first choice first: what a kernel of that type runs as on a
#: device without units for it.
DTYPES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "fp64": ("fp64_tflops",),
        "fp32": ("fp32_tflops",),
        "tf32": ("tf32_tflops", "fp32_tflops"),
        "bf16": ("bf16_tflops", "fp32_tflops"),
        "fp16": ("fp16_tflops", "fp32_tflops"),
        "fp8": ("fp8_tflops", "fp16_tflops", "fp32_tflops"),
        "int8": ("int8_tflops",),
        "int8_wo": ("fp16_tflops",),  # weights of 8 bits alone; the arithmetic is in 16 bits
        "int4_wo": ("fp16_tflops",),
        "nvfp4": ("nvfp4_tflops",),
        "fp8_block": ("fp8_tflops", "fp16_tflops", "fp32_tflops"),  # with a scale a block
        "w4a16_mxfp4": ("fp16_tflops",),  # weights of 4 bits alone, with a scale a block
        "w4a8_mxfp4_mxfp8": ("fp8_tflops",),  # weights of 4 bits, activations of 8
        "bf16_kv_fp8": ("bf16_tflops", "fp32_tflops"),  # attention in BF16 over a KV cache of 8 bits
    }
)

_VENDOR_PREFIXES: Final = ("nvidia ", "amd ")
_TEXT_LIMIT: Final = 500


class _CatalogueFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The layout of `datasets/devices.toml`."""

    devices: dict[str, Any]


class _DeviceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device of a catalogue file; keys as in `Device`."""

    vendor: str
    architecture: str
    aliases: list[str]
    figures: dict[str, Any]


class _FigureTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure of a catalogue file; keys as in `RatedFigure`."""

    value: float
    unit: str
    source: str
    certainty: str


@dataclass(frozen=True)
class RatedFigure:
    """One number about a device.

    Parameters
    ----------
    value : float
        In `unit`; in a catalogue within the range of `FIGURE_RANGES`.
    unit : str
        The unit of that figure in `FIGURE_UNITS`.
    source : str
        The public document, or the measurement, that the value is from.
    certainty : str
        One of `CERTAINTIES`.
    """

    value: float
    unit: str
    source: str
    certainty: str


#: Threads of a compute unit of NVIDIA's devices for computing (CUDA C++ Programming Guide, compute capabilities).
_THREADS_TO_COMPUTE = 2048


@dataclass(frozen=True)
class Device:
    """A GPU, or the die of one that a process sees as a GPU.

    Parameters
    ----------
    name : str
        The catalogue's name.
    vendor, architecture : str
        Such as ``"AMD"`` and ``"CDNA 3"``.
    aliases : tuple of str
        Other names, most of them as profilers write them.
    figures : mapping of str to RatedFigure
        By a name of `FIGURE_UNITS`; a figure that is not there is unknown.
    vendor_matrix_share : float
        Mean share of the BF16 peak that products reached on the catalogue's devices of this vendor, for graphics or not
        as itself. 0 of a device that is in no catalogue.

    Examples
    --------
    >>> device = find_device("AMD Instinct MI300X")
    >>> device.name, device.compute_units
    ('MI300X', 304)
    >>> f"{device.memory_bytes_per_s:.3g} {device.flops_per_s('fp16'):.3g}"
    '5.3e+12 1.31e+15'
    >>> device.figures["links"].source
    'AMD ROCm documentation, MI300 series microarchitecture'
    """

    name: str
    vendor: str
    architecture: str
    aliases: tuple[str, ...]
    figures: Mapping[str, RatedFigure] = field(hash=False)
    vendor_matrix_share: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "figures", MappingProxyType(dict(self.figures)))

    def __reduce__(self) -> tuple[type["Device"], tuple[object, ...]]:
        # A mappingproxy cannot be pickled, and devices travel to worker processes.
        facts = (self.name, self.vendor, self.architecture, self.aliases, dict(self.figures), self.vendor_matrix_share)
        return Device, facts

    @property
    def design(self) -> tuple[str, float, float]:
        """Architecture, shared memory (KB) and threads of a compute unit: devices with the same ones are siblings.

        Examples
        --------
        >>> find_device("H100").design == find_device("H200").design
        True
        >>> find_device("A100").design == find_device("A10").design
        False
        """
        lds_kb, threads = (
            self.figures[name].value if name in self.figures else 0.0 for name in ("lds_kb", "unit_threads")
        )
        return self.architecture, lds_kb, threads

    @property
    def is_for_graphics(self) -> bool:
        """Whether its die is one for graphics: units of NVIDIA's hold 1,024 or 1,536 threads, others 2,048 and more.

        Examples
        --------
        >>> [find_device(name).is_for_graphics for name in ("T4", "L40S", "A100", "MI300X")]
        [True, True, False, False]
        """
        return self.vendor == "NVIDIA" and 0 < self.design[2] < _THREADS_TO_COMPUTE

    def value(self, figure: str) -> float:
        """Return a figure, in its unit of `FIGURE_UNITS`.

        Raises
        ------
        InvalidInputError
            The catalogue does not know this figure of this device, or no device has a figure of that name.

        Examples
        --------
        >>> find_device("A100-SXM4-80GB").value("l2_mb")
        40.0
        """
        if figure not in FIGURE_UNITS:
            raise InvalidInputError(f"no figure is called {figure!r}; the figures are {', '.join(FIGURE_UNITS)}")
        if figure not in self.figures:
            raise _unknown(self.name, figure)
        return self.figures[figure].value

    @property
    def measured_matrix_share(self) -> float:
        """Share of the BF16 peak that the best measured product reached; 0 if nobody measured one."""
        if _SUSTAINED in self.figures and _PEAK in self.figures:
            return self.value(_SUSTAINED) / self.value(_PEAK)
        return 0.0

    @property
    def compute_units(self) -> int:
        """SMs or CUs that a kernel can use."""
        return int(self.value("compute_units"))

    @property
    def memory_bytes_per_s(self) -> float:
        """Peak memory bandwidth, bytes/s."""
        return self.value("memory_gbps") * 1e9

    @property
    def link_bytes_per_s(self) -> float:
        """Peak one-way bandwidth to all peers together, bytes/s."""
        return self.value("link_gbps") * 1e9

    def flops_per_s(self, dtype: str, *, matrix: bool = False) -> float:
        """Return the peak rate of a data type, FLOP/s, without sparsity.

        Where the device has no peak of its own for the type, that of the type it would compute in stands in:
        FP8 as FP16, then FP32; FP16, BF16 and TF32 as FP32. FP64, FP32, INT8 and NVFP4 have no stand-in. Weight-only
        types compute in FP16.

        Parameters
        ----------
        dtype : str
            One of `DTYPES`.
        matrix : bool
            Whether the rate is that of matrix products: some devices have matrix units for FP32.

        Raises
        ------
        InvalidInputError
            The type is not in `DTYPES`, or the device has neither its peak nor a stand-in.

        Examples
        --------
        >>> f"{find_device('V100-SXM2-16GB').flops_per_s('bf16'):.3g}"
        '1.57e+13'
        """
        if dtype not in DTYPES:
            raise InvalidInputError(f"data type {dtype!r} is none of {', '.join(DTYPES)}")
        of_matrix = ("fp32_matrix_tflops",) if matrix and dtype == "fp32" else ()
        for figure in (*of_matrix, *DTYPES[dtype]):
            if figure in self.figures:
                return self.figures[figure].value * 1e12
        raise _unknown(self.name, " or ".join(DTYPES[dtype]))


def load_devices(*paths: str | Path) -> Mapping[str, Device]:
    """Return the shipped catalogue, with the devices of a user's TOML files added.

    The files that the environment variable ``SEQPOINT_DEVICES`` names (several joined as in ``PATH``) come first, then
    `paths`. Commands and what-ifs know the devices of the former by their names. A device of a later file replaces a
    device of the same name as a whole, figures included.

    Parameters
    ----------
    *paths : str or Path
        Files in the layout of `datasets/devices.toml`, at most 1 MiB each.

    Returns
    -------
    Mapping[str, Device]
        Read-only, by name, in the order of the files.

    Raises
    ------
    NotFoundError
        A file does not exist.
    InvalidInputError
        A file is no TOML, cannot be read, or is not in the layout. The message names the file, and in the last case
        the device and the figure.

    Examples
    --------
    >>> len(load_devices()) > 20
    True
    """
    catalogue = _shipped_and(_user_files())
    return _with_files(catalogue.values(), paths) if paths else catalogue


def _user_files() -> tuple[str, ...]:
    return tuple(filter(None, os.environ.get(USER_DEVICES, "").split(os.pathsep)))


@cache
def _shipped_and(user_files: tuple[str, ...]) -> Mapping[str, Device]:
    """Return the shipped catalogue with the devices of a user's files; read once a process."""
    return _with_files(_read(dataset_path("devices.toml")), user_files)


def _with_files(shipped: Iterable[Device], paths: Iterable[str | Path]) -> Mapping[str, Device]:
    """Return the devices with those of some files, and with the mean matrix share of their vendor, or else of all.

    Devices of the vendor that are for graphics, or are not, go before others.
    """
    devices = {_plain(device.name): device for device in shipped}
    for path in map(Path, paths):
        for device in _read(path):
            devices.pop(_plain(device.name), None)  # the new device comes last, whatever it replaces
            devices[_plain(device.name)] = device
    measured = [device for device in devices.values() if device.measured_matrix_share]
    catalogue = {}
    for device in devices.values():
        of_vendor = [each for each in measured if each.vendor == device.vendor] or measured
        alike = [each for each in of_vendor if each.is_for_graphics == device.is_for_graphics] or of_vendor
        like = [each.measured_matrix_share for each in alike]
        catalogue[device.name] = replace(device, vendor_matrix_share=sum(like) / len(like) if like else 0.0)
    return MappingProxyType(catalogue)


def _named(devices: Mapping[str, Device]) -> list[tuple[str, Device]]:
    """Return the devices with their aliases, then with their names, which go before aliases in a look-up."""
    aliases = [(alias, device) for device in devices.values() for alias in device.aliases]
    return [*aliases, *devices.items()]


def find_device(name: str, devices: Mapping[str, Device] | None = None) -> Device:
    """Return the device of a name or alias.

    Case, ``NVIDIA`` or ``AMD`` in front, and underscores for spaces do not matter. A name goes before an
    alias; of two devices with one alias, the later in `devices` is taken. A name that is spelt otherwise is that of
    the only device with the same words: in any order, with a size of memory within a tenth, without words that all
    products share (``GPU``, ``HBM3``), and whatever the number of ``SXM``. A word of another product (``NVL``) counts.

    Parameters
    ----------
    name : str
        As a profiler writes it, or the catalogue's own name.
    devices : mapping of str to Device, optional
        Where to look; the shipped catalogue if not given.

    Raises
    ------
    NotFoundError
        No device has that name; the message gives the nearest ones.

    Examples
    --------
    >>> find_device("Tesla V100-DGXS-32GB").name
    'V100-SXM2-32GB'
    >>> find_device("NVIDIA Blackwell GPU (B200-SXM-180GB)").name
    'B200-SXM-192GB'
    """
    index = _index_of_files(_user_files()) if devices is None else _by_name(devices)
    if (key := _plain(name)) in index:
        return index[key]
    if len(alike := _spelt_otherwise(name, index)) == 1:
        return alike[0]
    near = difflib.get_close_matches(key, list(index), n=8, cutoff=0.4)
    names = list(dict.fromkeys(index[key].name for key in near))[:4]
    nearest = f"nearest: {', '.join(names)}; " if names else ""
    raise NotFoundError(
        f"no device is called {name!r}; {nearest}`seqpoint devices` lists all; a device of your own goes into "
        f"{_USER_FILE}"
    )


#: Words that tell no product from another, words that do, and the largest difference of two sizes of its memory.
_SHARED_WORDS: Final = frozenset(
    ("nvidia", "amd", "intel", "tesla", "instinct", "geforce", "gpu", "accelerator", "blackwell", "hopper", "ultra",
     "hbm3", "hbm3e", "dlc")
)  # fmt: skip
_FORMS: Final = frozenset({"nvl", "pcie", "mig", "laptop"})
_MEMORY_DIFFERENCE: Final = 0.1


def _spelt_otherwise(name: str, index: Mapping[str, Device]) -> list[Device]:
    """Return the devices that have a name or alias with the words of `name`, and memory of the size that it says."""
    words, sizes = _product(name)
    alike = {device.name: device for known, device in index.items() if words and _product(known)[0] == words}
    return [device for device in alike.values() if all(_has_memory(device, size) for size in sizes)]


@lru_cache(maxsize=4096)
def _product(name: str) -> tuple[frozenset[str], tuple[float, ...]]:
    """Return the words that tell a product, and the sizes of memory in GB that its name says."""
    text = re.sub(r"\bsxm\d\b", "sxm", name[:_TEXT_LIMIT].casefold().replace("_", " "))
    size = r"\b(\d{1,4}) ?gi?b\b"
    words = frozenset(re.findall("[a-z0-9]+", re.sub(size, " ", text))) - _SHARED_WORDS
    return words, tuple(map(float, re.findall(size, text)))


def _has_memory(device: Device, size_gb: float) -> bool:
    """Return whether a device has memory of about this size; a device whose size is unknown has none."""
    memory_gb = device.figures["memory_gb"].value if "memory_gb" in device.figures else 0.0
    return abs(size_gb - memory_gb) <= _MEMORY_DIFFERENCE * memory_gb


def _by_name(devices: Mapping[str, Device]) -> Mapping[str, Device]:
    """Return the device of every name and alias, as they are compared."""
    return {_plain(alias): device for alias, device in _named(devices)}


@cache
def _index_of_files(user_files: tuple[str, ...]) -> Mapping[str, Device]:
    return _by_name(_shipped_and(user_files))


@lru_cache(maxsize=4096)
def _plain(name: str) -> str:
    """Return what two spellings of one device name have in common."""
    text = " ".join(name.replace("_", " ").casefold().split())
    for prefix in _VENDOR_PREFIXES:
        text = text.removeprefix(prefix)
    return text


def _unknown(device: str, figure: str) -> InvalidInputError:
    return InvalidInputError(f"device {device!r}: {figure} is unknown; give the device with it in {_USER_FILE}")


def _read(path: Path) -> tuple[Device, ...]:
    document = typed_table(read_toml(path, "devices, as datasets/devices.toml"), _CatalogueFile, str(path))
    devices = tuple(_device(name, entry, f"{path}: device {name!r}") for name, entry in document.devices.items())
    _distinct_names(devices, path)
    return devices


def _device(name: str, entry: object, where: str) -> Device:
    table = typed_table(entry, _DeviceTable, where)
    figures = {figure: _figure(figure, value, f"{where}: figure {figure!r}") for figure, value in table.figures.items()}
    if _SUSTAINED in figures and _PEAK in figures and figures[_SUSTAINED].value > figures[_PEAK].value:
        raise InvalidInputError(
            f"{where}: figure {_SUSTAINED!r}: {figures[_SUSTAINED].value:g} is above {_PEAK} of "
            f"{figures[_PEAK].value:g}; what is sustained is at most the peak"
        )
    return Device(
        name=_text(name, f"{where}: its name"),
        vendor=_text(table.vendor, f"{where}: 'vendor'"),
        architecture=_text(table.architecture, f"{where}: 'architecture'"),
        aliases=tuple(_text(alias, f"{where}: 'aliases': an alias") for alias in table.aliases),
        figures=figures,
    )


def _figure(name: str, entry: object, where: str) -> RatedFigure:
    if name not in FIGURE_UNITS:
        raise InvalidInputError(f"{where}: unknown; the figures are {', '.join(FIGURE_UNITS)}")
    table = typed_table(entry, _FigureTable, where)
    if table.unit != FIGURE_UNITS[name]:
        raise InvalidInputError(f"{where}: the unit is {FIGURE_UNITS[name]!r}, not {table.unit!r}; convert the value")
    if table.certainty not in CERTAINTIES:
        raise InvalidInputError(f"{where}: certainty {table.certainty!r} is none of {', '.join(CERTAINTIES)}")
    if not (math.isfinite(table.value) and table.value > 0):
        raise InvalidInputError(f"{where}: 'value' is finite and above zero; leave the figure out if it is unknown")
    low, high = FIGURE_RANGES[name]
    if not low <= table.value <= high:
        raise InvalidInputError(f"{where}: {table.value:g} {FIGURE_UNITS[name]} is not within {low:g} to {high:g}")
    if FIGURE_UNITS[name] == "1" and not table.value.is_integer():
        raise InvalidInputError(f"{where}: the value is a count, so a whole number, not {table.value}")
    source = _text(table.source, f"{where}: 'source'")
    return RatedFigure(value=table.value, unit=table.unit, source=source, certainty=table.certainty)


def _text(value: str, where: str) -> str:
    if not (value.strip() and value.isprintable() and len(value) <= _TEXT_LIMIT):
        raise InvalidInputError(f"{where} is a line of printable text, 1 to {_TEXT_LIMIT} characters")
    return value


def _distinct_names(devices: tuple[Device, ...], path: Path) -> None:
    """Raise if one file uses a name for two devices."""
    owners: dict[str, str] = {}
    for device in devices:
        for name in {_plain(name): name for name in (device.name, *device.aliases)}.values():
            owner = owners.setdefault(_plain(name), device.name)
            if owner != device.name:
                raise InvalidInputError(
                    f"{path}: device {device.name!r}: the name {name!r} is also one of device {owner!r}; "
                    "remove it from one of them"
                )


_Words = tuple[str, ...]
#: Short names that people give to files and that no profiler writes: the MI300 without a letter is the accelerator, not
#: the MI300A with processor cores.
_SHORT: Mapping[str, str] = MappingProxyType({"mi300": "MI300X"})


def devices_in_name(text: str) -> tuple[Device, ...]:
    """Return the devices that a text names, in its order, each once.

    Words next to each other that are a name or alias of the catalogue together go before fewer words. Where the words
    that follow make it another device (``v100_32gb``: a V100, but the alias ``V100`` has 16 GB), all that have those
    words are returned, and none if the next word is a form that the catalogue lacks (``h200_nvl``).

    Examples
    --------
    >>> [device.name for device in devices_in_name("rtx_2080_ti_all_reduce")]
    ['RTX 2080 Ti']
    >>> [device.name for device in devices_in_name("v100_32gb")]
    ['V100-SXM2-32GB', 'V100-PCIE-32GB']
    """
    words, index = _words(text), _index()
    longest = max(map(len, index))
    devices: dict[str, Device] = {}
    while words:
        length = next((n for n in range(min(longest, len(words)), 0, -1) if words[:n] in index), 0)
        if length:
            matches, length = _longest_match(words, length, index)
            if words[length : length + 1] and words[length] in _FORMS:
                matches = []  # a product that the catalogue lacks, as h200_nvl
            devices |= {device.name: device for device in matches}
        words = words[max(length, 1) :]
    return tuple(devices.values())


def device_of_file(file: Path, device: str | None) -> Device:
    """Return the device that the file's name says, or else `device`.

    Parameters
    ----------
    file : Path
        File whose name is read.
    device : str, optional
        For files whose name says no device, or more than one.

    Raises
    ------
    NotFoundError
        The catalogue lacks `device`, even if the name of the file says another.
    InvalidInputError
        The name has no device, or more than one, and `device` is left out.

    Examples
    --------
    >>> device_of_file(Path("a100_dgx_all_reduce.csv"), None).name
    'A100-SXM4-80GB'
    """
    fallback = None if device is None else find_device(device)
    named = devices_in_name(file.stem)
    if len(named) == 1:
        return named[0]
    if fallback is not None:
        return fallback
    number = f"more than one device ({', '.join(device.name for device in named)})" if named else "no device"
    raise InvalidInputError(
        f"{file}: its name has {number}, and there is no column of it; give --device NAME, or a name with one device "
        "of `seqpoint devices`, as a100_measured.csv has"
    )


def _words(text: str) -> _Words:
    return tuple(word for word in re.split(r"[^a-z0-9]+", text.casefold()) if word)


def _index() -> dict[_Words, Device]:
    """Return the devices by the words of their names and aliases, without the vendor's."""
    devices = load_devices()
    index = {(short,): devices[name] for short, name in _SHORT.items() if name in devices}
    return index | {_words(_plain(" ".join(_words(name)))): device for name, device in _named(devices)}


def _longest_match(words: _Words, length: int, index: Mapping[_Words, Device]) -> tuple[list[Device], int]:
    """Return the devices whose name matches the longest prefix of `words`, and the length of that prefix.

    The first `length` words are the name of a device; further words match in their order, with others between them.
    """
    devices = [index[words[:length]]]
    while length < len(words):
        more = {d.name: d for name, d in index.items() if _has(name, words[: length + 1])}
        if not more:
            break
        if not any(device.name in more for device in devices):
            devices = list(more.values())
        elif len(devices) > 1:
            devices = [device for device in devices if device.name in more]
        length += 1
    return devices, length


def _has(name: _Words, words: _Words) -> bool:
    """Return whether a name has all the words, in this order."""
    rest = iter(name)
    return all(word in rest for word in words)

"""The device that the name of a file says, by the names of the catalogue."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from profilers.devices import Device, find_device, load_devices
from profilers.errors import InvalidInputError

__all__ = ["device_of_file", "devices_in_name"]

_Words = tuple[str, ...]
_VENDORS = ("nvidia", "amd")
#: Short names that people give to files and that no profiler writes: the MI300 without a letter is the accelerator, not
#: the MI300A with processor cores.
_SHORT: Mapping[str, str] = MappingProxyType({"mi300": "MI300X"})


def devices_in_name(text: str) -> tuple[Device, ...]:
    """Return the devices that a text names, in its order, each once.

    Words next to each other that are a name or alias of the catalogue together go before fewer words. Where the words
    that follow make it another device (``v100_32gb``: a V100, but the alias ``V100`` has 16 GB), all that have those
    words are returned.

    Examples
    --------
    >>> [device.name for device in devices_in_name("rtx_2080_ti_all_reduce")]
    ['RTX 2080 Ti']
    >>> [device.name for device in devices_in_name("v100_32gb")]
    ['V100-SXM2-32GB', 'V100-PCIE-32GB']
    """
    words, index = _words(text), _index()
    longest = max(map(len, index), default=0)
    found: dict[str, Device] = {}
    at = 0
    while at < len(words):
        length = next((n for n in range(longest, 0, -1) if words[at : at + n] in index and at + n <= len(words)), 0)
        if length:
            devices, length = _extended(words[at:], length, index)
            found |= {device.name: device for device in devices}
        at += max(length, 1)
    return tuple(found.values())


def device_of_file(file: Path, device: str | None) -> Device:
    """Return the device that the file's name says, else the one that is given.

    Parameters
    ----------
    file : Path
    device : str, optional
        For files whose name says none, or more than one.

    Raises
    ------
    NotFoundError
        There is no such device as the given one, whether or not it is needed.
    InvalidInputError
        The name has none, or more than one, and none is given.

    Examples
    --------
    >>> device_of_file(Path("a100_dgx_all_reduce.csv"), None).name
    'A100-SXM4-80GB'
    """
    given = None if device is None else find_device(device)
    found = devices_in_name(file.stem)
    if len(found) == 1:
        return found[0]
    if given is not None:
        return given
    which = f"more than one device ({', '.join(one.name for one in found)})" if found else "no device"
    raise InvalidInputError(
        f"{file}: its name has {which}, and there is no column of it; give --device NAME, or a name with one device of "
        "`seqpoint devices`, as a100_measured.csv has"
    )


def _words(text: str) -> _Words:
    return tuple(word for word in re.split(r"[^a-z0-9]+", text.casefold()) if word)


def _index() -> dict[_Words, Device]:
    """Return the devices by the words of their names and aliases, without the vendor's."""
    index: dict[_Words, Device] = {}
    devices = load_devices()
    for device in devices.values():
        for name in device.aliases:
            index[_without_vendor(_words(name))] = device
    index |= {_without_vendor(_words(name)): device for name, device in devices.items()}
    for short, name in _SHORT.items():
        if name in devices:
            index.setdefault((short,), devices[name])
    return index


def _without_vendor(words: _Words) -> _Words:
    return words[1:] if words[:1] in [(vendor,) for vendor in _VENDORS] else words


def _extended(words: _Words, length: int, index: Mapping[_Words, Device]) -> tuple[list[Device], int]:
    """Return what the first words name with as many of those that follow as some name has too, and how many."""
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

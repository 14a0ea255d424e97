"""Words of ROCm's tools as words of the schema: domains of calls, directions of copies, names of kernels, and GPUs."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profilers.readers.common.json_documents import ints, listed
from profilers.readers.common.numbers import narrow
from profilers.readers.common.recording import Output, renamed, write_annotations
from profilers.trace.arrays import MISSING, Bools, Ints
from profilers.trace.columns import constant, lookup
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import DeviceProperties


class TableFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of `datasets/formats/rocpd.toml` and `rpd.toml`: columns by table."""

    required: dict[str, tuple[str, ...]]
    columns: dict[str, tuple[str, ...]]


def is_text(values: pa.Array, text: str) -> Bools:
    """Return for each row whether it holds `text`."""
    return np.asarray(pc.equal(values, text).fill_null(False).to_numpy(zero_copy_only=False), dtype=bool)


_DOMAINS = (
    ("HIP_COMPILER", "launches", "hip_compiler"),
    ("HIP", "launches", "hip_runtime"),
    ("HSA", "ranges", "hsa_api"),
    ("RCCL", "ranges", "rccl"),
    ("NCCL", "ranges", "rccl"),
    ("MARKER", "ranges", "user_annotation"),
    ("ROCTX", "ranges", "user_annotation"),
)
_DIRECTIONS = tuple(
    (re.compile(rf"{source}_?TO_?{target}", re.IGNORECASE), f"{source[0]}to{target[0]}")
    for source in ("HOST", "DEVICE")
    for target in ("HOST", "DEVICE")
)
_FILL = re.compile("fill|memset", re.IGNORECASE)
_CLONE = re.compile(r"(\s*\[clone \.kd\]|\.kd)$")


def call_kind(domain: str) -> tuple[str, str]:
    """Return the kind of event that the calls of a domain become, and their ``api`` or ``category``.

    Calls of HIP launch device work. Calls of HSA carry out what a call of HIP asked for, so they are ranges.

    Examples
    --------
    >>> call_kind("HIP_RUNTIME_API_EXT"), call_kind("MARKER_CORE_API"), call_kind("ROCDECODE_API")
    (('launches', 'hip_runtime'), ('ranges', 'user_annotation'), ('ranges', 'rocdecode_api'))
    """
    upper = domain.upper()
    kinds = ((kind, category) for prefix, kind, category in _DOMAINS if upper.startswith(prefix))
    return next(kinds, ("ranges", domain.lower() or "unknown"))


def copy_direction(word: str) -> str:
    """Return the direction of a copy as Kineto spells it; `word` itself if it names no direction.

    Examples
    --------
    >>> copy_direction("MEMORY_COPY_HOST_TO_DEVICE"), copy_direction("CopyDeviceToHost"), copy_direction("FillBuffer")
    ('HtoD', 'DtoH', 'memset')
    """
    directions = (short for pattern, short in _DIRECTIONS if pattern.search(word))
    return next(directions, "memset" if _FILL.search(word) else word or "unknown")


def with_peers(directions: pa.Array, peers: Bools) -> pa.DictionaryArray:
    """Return directions of copies with ``PtoP`` for copies between two GPUs.

    Parameters
    ----------
    directions : array of string
        Directions as `copy_direction` gives them.
    peers : array of bool
        Whether source and target of each copy are different GPUs.
    """
    between = pa.array(peers & is_text(directions, "DtoD"))
    return pc.if_else(between, "PtoP", directions).dictionary_encode()


def kernel_name(text: str) -> str:
    """Return the name of a kernel without quotes and without the suffix of its descriptor.

    Examples
    --------
    >>> kernel_name('"copyBuffer.kd"'), kernel_name("void f<int>(int) [clone .kd]")
    ('copyBuffer', 'void f<int>(int)')
    """
    return _CLONE.sub("", text.strip().removeprefix('"').removesuffix('"'))


#: A GPU as rocprofv3 lists it: its position among the agents of the machine, the number or handle by which events name
#: it, and its properties.
Gpu = tuple[int, int, DeviceProperties]


def gpu_properties(names: Iterable[str | None], properties: Mapping[str, Any]) -> DeviceProperties:
    """Return the properties of a GPU from the JSON that rocprofv3 writes of it.

    Parameters
    ----------
    names : iterable of str or None
        Candidates for the name; the first that is not empty counts.
    properties : mapping of str to Any
        JSON object with ``cu_count`` and ``mem_banks``.
    """
    units = int(ints([properties], "cu_count")[0])
    banks = ints(listed(properties.get("mem_banks")), "size_in_bytes").tolist()
    name = next((name for name in names if name), "")
    return DeviceProperties(OWN_RANK, 0, name, units if units > 0 else None, max(banks, default=0) or None)


class Agents:
    """The agents of a machine, CPUs and GPUs; numbers the GPUs as devices.

    Parameters
    ----------
    gpus : iterable of Gpu
        GPUs in any order. If there is none, as in recordings that list no agents, the key of an agent is its device.

    Examples
    --------
    >>> gpu = gpu_properties(["MI300X"], {"cu_count": 304})
    >>> agents = Agents([(2, 9, gpu), (1, 8, gpu)])
    >>> agents.devices(np.array([8, 9])).tolist(), (agents.devices(np.array([7])) == MISSING).tolist()
    ([0, 1], [True])
    """

    def __init__(self, gpus: Iterable[Gpu]) -> None:
        self._gpus = {key: properties for _, key, properties in sorted(gpus, key=lambda gpu: gpu[:2])}

    def devices(self, keys: Ints) -> Ints:
        """Return the device of each agent key, `MISSING` for a CPU."""
        if not self._gpus:
            return narrow(keys)
        return lookup(np.array([*self._gpus]), np.arange(len(self._gpus)), keys)

    def copies(self, words: pa.Array, source: Ints, target: Ints) -> dict[str, Any]:
        """Return the columns ``name``, ``direction`` and ``device`` of copies that rocprofv3 recorded.

        The device is the source if that is a GPU, else the target. If the recording lists no GPU, the direction tells
        whether source or target is the device.

        Parameters
        ----------
        words : array of string
            Directions in rocprofv3's spelling, such as ``MEMORY_COPY_HOST_TO_DEVICE``.
        source, target : array of int64
            Keys of the agents that a copy reads and writes.
        """
        words = words.fill_null("")
        directions = renamed(words, copy_direction).cast(pa.string())
        source_gpu, target_gpu = self.devices(source), self.devices(target)
        peers = (source_gpu != target_gpu) & (source_gpu != MISSING) & (target_gpu != MISSING) & bool(self._gpus)
        is_target = source_gpu == MISSING if self._gpus else is_text(directions, "HtoD")
        return {
            "name": words,
            "direction": with_peers(directions, peers),
            "device": np.where(is_target, target_gpu, source_gpu),
        }

    def properties(self, rank: int) -> tuple[DeviceProperties, ...]:
        """Return name, compute units and memory of every GPU, as devices of `rank`."""
        return tuple(replace(gpu, rank=rank, device=i) for i, gpu in enumerate(self._gpus.values()))


def lanes(stream: Ints, queue: Ints, correlation: Ints) -> dict[str, Ints]:
    """Return the columns ``stream``, ``queue`` and ``correlation``.

    In versions of rocprofv3 that name no stream, the queue stands for it.
    """
    return {"stream": queue if (stream == MISSING).all() else stream, "queue": queue, "correlation": correlation}


def write_calls(out: Output, domain: str, columns: Mapping[str, Any], end: Ints) -> None:
    """Give calls of one domain to the sink, as launches or as ranges, or as operators that markers name.

    Parameters
    ----------
    out : Output
        Takes the events.
    domain : str
        Domain of the calls, as for `call_kind`.
    columns : mapping of str to array
        Columns as for `Output.write`. A range has no ``correlation``, so this column is left out.
    end : array of int64
        End of each call in ns.
    """
    kind, category = call_kind(domain)
    word = {"api" if kind == "launches" else "category": constant(category, len(end))}
    kept = {name: values for name, values in columns.items() if kind == "launches" or name != "correlation"}
    if category == "user_annotation":
        write_annotations(out, kept | word, end)
    else:
        out.write(kind, kept | word, end)

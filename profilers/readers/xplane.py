"""`XPlaneReader`: profiles of JAX and TensorFlow (`.xplane.pb`), and the words of XLA's profiler in them.

`launch_facts` and `stream_of` read what XLA's profiler writes as text, in XPlane files and in Chrome's JSON alike.
"""

import re
from math import prod

from profilers.readers.common.numbers import INT32_LIMIT, finite_number, integer, positive

#: A fact of a launch: a name, and a number or the numbers of an extent.
_FACT = re.compile(r"(\w+):(\d{1,18}(?:[.,]\d{1,18}){0,2})(?![\d.,])")
_STREAM = re.compile(r"^Stream #(\d{1,18})\s*(?:\((.*)\))?$")
_NARROW = ("workgroup_size", "registers")


def launch_facts(details: str) -> dict[str, int | float | None]:
    """Return columns of ``kernels`` from the text ``kernel_details``; None for what it does not state.

    Grids count workgroups, on NVIDIA and on AMD. An occupancy of 0 means that it is unknown.

    Parameters
    ----------
    details : str
        Facts of a launch, such as ``regs:32 static_shared:0 dynamic_shared:64 grid:4,64,1 block:256,1,1 occ_pct:50``.

    Examples
    --------
    >>> facts = launch_facts(" grid:4,64,1 block:256,1,1 private_mem:0 group_mem:8704 occ_pct:0")
    >>> facts["workgroups"], facts["workgroup_size"], facts["lds_bytes"], facts["occupancy"], facts["registers"]
    (256, 256, 8704, None, None)
    """
    facts = dict(_FACT.findall(details))
    memories = [_extent(facts[name]) for name in ("group_mem", "static_shared", "dynamic_shared") if name in facts]
    columns: dict[str, int | float | None] = {
        "workgroups": positive(_extent(facts.get("grid", "0"))),
        "workgroup_size": positive(_extent(facts.get("block", "0"))),
        "registers": positive(_extent(facts.get("regs", "0"))),
        "lds_bytes": integer(sum(memories)) if memories else None,
        "occupancy": finite_number(facts.get("occ_pct")) or None,
    }
    return columns | {name: None for name in _NARROW if (columns[name] or 0) >= INT32_LIMIT}


def _extent(text: str) -> int:
    """Return the product of the numbers of an extent; a part behind a decimal point does not count."""
    return prod(int(axis) for axis in text.split(".")[0].split(","))


def stream_of(line: str) -> tuple[int, str] | None:
    """Return number and content of the stream that a line's name states, None for any other line of a device.

    All other lines repeat the time of the streams on another level: steps, modules, operators, scopes of names.

    Examples
    --------
    >>> stream_of("Stream #16(Kernel)"), stream_of("Stream #17(MemcpyD2D,Kernel)"), stream_of("XLA Ops")
    ((16, 'Kernel'), (17, 'MemcpyD2D,Kernel'), None)
    """
    match = _STREAM.match(line)
    return None if match is None else (int(match[1]), match[2] or "")

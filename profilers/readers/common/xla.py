"""Words of XLA's profiler, as it writes them in XPlane files and in Chrome's JSON of JAX and TensorFlow."""

import re
from collections.abc import Mapping
from math import prod
from types import MappingProxyType

from profilers.readers.common.numbers import INT32_LIMIT, finite_number, integer, positive

#: A fact of a launch or copy: a name, and a number or the numbers of an extent.
_FACT = re.compile(r"(\w+):(\d{1,18}(?:[.,]\d{1,18}){0,2})(?![\d.,])")
_STREAM = re.compile(r"^Stream #(\d{1,18})\s*(?:\((.*)\))?$")
_COPY = re.compile(r"^Memcpy(?:([A-Z])(?:2|to)([A-Z])|Other)?$|^Memset")
_NARROW = ("workgroup_size", "registers")
#: Lines of a GPU that repeat the time of its streams on another level.
DERIVED = frozenset({
    "Steps", "XLA Modules", "XLA Ops", "XLA TraceMe", "Framework Ops", "Framework Name Scope", "Source code",
    "Source Code", "TensorFlow Ops", "TensorFlow Name Scope", "Launch Stats",
})  # fmt: skip


def launch_facts(details: str) -> Mapping[str, int | float | None]:
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
    return MappingProxyType(columns | {name: None for name in _NARROW if (columns[name] or 0) >= INT32_LIMIT})


def _extent(text: str) -> int:
    """Return the product of the numbers of an extent; a part behind a decimal point does not count."""
    return prod(int(axis) for axis in text.split(".")[0].split(","))


def copy_facts(name: str, details: str) -> tuple[str, int | None] | None:
    """Return direction and bytes of a copy or fill, None for a kernel.

    Parameters
    ----------
    name : str
        Name of an event of a stream.
    details : str
        Its text ``memcpy_details`` or ``memset_details``; empty if it has none.

    Examples
    --------
    >>> copy_facts("MemcpyH2D", "kind_src:pinned kind_dst:device size:4096 dest:0 async:1"), copy_facts("gemm", "")
    (('HtoD', 4096), None)
    """
    match = _COPY.match(name)
    if match is None and not details:
        return None
    direction = "memset" if name.startswith("Memset") else "unknown"
    if match is not None and match[1]:
        direction = f"{match[1]}to{match[2]}"
    return direction, positive(dict(_FACT.findall(details)).get("size"))


def stream_of(line: str) -> tuple[int, str] | None:
    """Return number and content of the stream that a line's name states, None for any other line of a device.

    Examples
    --------
    >>> stream_of("Stream #16(Kernel)"), stream_of("Stream #17(MemcpyD2D,Kernel)"), stream_of("XLA Ops")
    ((16, 'Kernel'), (17, 'MemcpyD2D,Kernel'), None)
    """
    match = _STREAM.match(line)
    return None if match is None else (int(match[1]), match[2] or "")


def step_name(name: str, number: int) -> str:
    """Return the name of a numbered annotation (JAX's `StepTraceAnnotation`), by which iterations are found.

    Examples
    --------
    >>> step_name("train", 5)
    'train#step_num=5#'
    """
    return f"{name}#step_num={number}#"


def device_step(name: str) -> str:
    """Return the name of a step that a device without streams (a TPU) recorded, by which iterations are found.

    Examples
    --------
    >>> device_step("5")
    'device step 5'
    """
    return f"device step {name}"


def api_of(call: str) -> str:
    """Return the ``api`` of a call that launches device work.

    Examples
    --------
    >>> api_of("hipModuleLaunchKernel"), api_of("cuLaunchKernel"), api_of("cudaLaunchKernel")
    ('hip_runtime', 'cuda_driver', 'cuda_runtime')
    """
    if call.startswith("hip"):
        return "hip_runtime"
    return "cuda_runtime" if call.startswith("cuda") else "cuda_driver"

"""`kernel_in`: which kernel a trace of PyTorch's profiler says did the work, and of how many workgroups."""

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["kernel_in"]


def kernel_in(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Return name, workgroups and workgroup size of the longest kernel in a trace; without kernels, of the copy.

    Examples
    --------
    >>> kernel_in({"traceEvents": [
    ...     {"cat": "kernel", "name": "gemm", "dur": 9.5, "args": {"grid": [4, 2, 1], "block": [128, 1, 1]}}]})
    {'kernel': 'gemm', 'workgroups': 8, 'workgroup_size': 128}
    """
    events = [event for event in trace.get("traceEvents", ()) if isinstance(event, dict)]
    for category in ("kernel", "gpu_memcpy"):
        named = [event for event in events if event.get("cat") == category and isinstance(event.get("name"), str)]
        if named:
            return _described(max(named, key=lambda event: (float(event.get("dur", 0)), event["name"])))
    return {}


def _described(event: Mapping[str, Any]) -> dict[str, Any]:
    arguments = event.get("args", {})
    sizes = {"workgroups": arguments.get("grid"), "workgroup_size": arguments.get("block")}
    return {
        "kernel": event["name"][:500],
        **{key: math.prod(int(side) for side in size) for key, size in sizes.items() if isinstance(size, list)},
    }

"""Which kernel each of some calls launched, from one pass of the profiler over all of them."""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.gpu.clock import synchronize
from profilers.record.profiling import ProfiledWindow, settings

__all__ = ["launches", "matched"]

_MARK = "call "
_LAUNCHES = ("cuda_runtime", "cuda_driver")


def launches(device: str, calls: Iterable[Callable[[], object]]) -> list[dict[str, Any]]:
    """Return the longest kernel of each call: `name`, `grid` and `block`; an empty dict where none was seen.

    Of a call that launches no kernel it is the longest copy, which has a name alone.

    Parameters
    ----------
    device : str
    calls : iterable of callable
        Each is made (its operands too) before its mark begins, so that kernels that fill operands are not its own.
    """
    window = ProfiledWindow(torch, settings(torch, None, False))
    count = 0
    try:
        torch.zeros(1, device=device).add_(1)  # the profiler is prepared by now; its first launch is no call's
        synchronize(device)
        window.start()
        for call in calls:
            with torch.profiler.record_function(f"{_MARK}{count}"):
                call()
            count += 1
        synchronize(device)
    except BaseException:
        window.drop()
        raise
    with TemporaryDirectory() as folder:
        path = Path(folder) / "calls.json"
        window.write(path)
        return matched(json.loads(path.read_text(encoding="utf-8", errors="replace")), count)


def matched(trace: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the longest kernel (without one, copy) launched within each of `count` marks of a Chrome trace."""
    events = [event for event in trace.get("traceEvents", ()) if isinstance(event.get("args"), dict)]
    marks = sorted(
        (float(event["ts"]), float(event["ts"]) + float(event["dur"]), int(event["name"].removeprefix(_MARK)))
        for event in events
        if event.get("cat") == "user_annotation" and str(event.get("name")).startswith(_MARK)
    )
    starts = [start for start, _, _ in marks]
    call_of: dict[Any, int] = {}
    for event in events:
        place = bisect_right(starts, float(event.get("ts", 0))) - 1
        if event.get("cat") in _LAUNCHES and place >= 0 and float(event["ts"]) < marks[place][1]:
            call_of[event["args"].get("correlation")] = marks[place][2]
    found: list[dict[str, Any]] = [{} for _ in range(count)]
    # A kernel goes before any copy, however long that is.
    longest = [(False, 0.0)] * count
    for event in events:
        call = call_of.get(event["args"].get("correlation"))
        if event.get("cat") not in ("kernel", "gpu_memcpy") or call is None:
            continue
        rank = (event["cat"] == "kernel", float(event["dur"]))
        if rank > longest[call]:
            longest[call] = rank
            found[call] = {"name": str(event["name"]), **_sizes(event["args"])}
    return found


def _sizes(arguments: Mapping[str, Any]) -> dict[str, list[int]]:
    return {
        what: [int(one) for one in sizes]
        for what in ("grid", "block")
        if isinstance(sizes := arguments.get(what), list) and len(sizes) == 3
    }

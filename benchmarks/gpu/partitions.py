"""Streams that run on some of a device's compute units only.

On NVIDIA, green contexts. Two of `torch.cuda.green_contexts`, made one after the other, may be on the same SMs: each
call splits the whole device anew and takes the first group (pytorch/pytorch issue 195378). Here the driver is asked
itself, once a split: the group goes to one stream and all that remains to another, so the two are disjoint. On ROCm, a
stream has a mask of compute units (`hipExtStreamCreateWithCUMask`): one stream gets the first bits, one the others.

A wrong call into a driver ends a process. So `found` tries it all in a process of its own, and a recording uses
only what worked there: ``python -m benchmarks.gpu.partitions cuda:0`` prints the splits that can be had, as JSON.
"""

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.gates import Timeline

__all__ = ["PartitionError", "Split", "found", "split"]

#: Compute units asked for; a driver may round up (Hopper gives multiples of 8).
ASKED = (4, 8, 16, 24, 32, 48, 64, 80, 96, 112)
PROBE_SECONDS = 60
# cuda.h: CUdevResource is an int, 92 bytes of padding and a union of 48 bytes that begins with the number of SMs.
RESOURCE_BYTES = 144
SM_COUNT_AT = 96
SM_RESOURCE = 1  # CU_DEV_RESOURCE_TYPE_SM
DEFAULT_STREAM = 1  # CU_GREEN_CTX_DEFAULT_STREAM, which cuGreenCtxCreate demands
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING, which cuGreenCtxStreamCreate demands


class PartitionError(RuntimeError):
    """The device, or its driver, gives no such part of its compute units."""


@dataclass(frozen=True)
class Split:
    """Two disjoint parts of a device: `units` compute units each, and a raw stream on each."""

    units: tuple[int, int]
    streams: tuple[int, int]


def split(device: str, asked: int) -> Split:
    """Split a device in two, of `asked` compute units (or what a driver makes of it) and the rest.

    What is made lasts as long as the process: streams stay valid.

    Raises
    ------
    PartitionError
        It cannot be.
    """
    import torch

    torch.zeros(1, device=device)  # makes the primary context, and current
    with torch.cuda.device(device):
        if torch.version.hip:
            return _masked(torch.cuda.get_device_properties(device).multi_processor_count, asked)
        return _green(torch.cuda.current_device(), asked)


def found(device: str) -> list[tuple[int, int]]:
    """Return the splits that worked in another process, compute units each.

    Raises
    ------
    PartitionError
        None did; the message has the last that the process said.
    """
    command = [sys.executable, "-m", "benchmarks.gpu.partitions", device]
    try:
        root = Path(__file__).parents[2]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
        splits = [(int(first), int(rest)) for first, rest in json.loads(done.stdout.splitlines()[-1])]
    except (OSError, subprocess.SubprocessError) as error:
        raise PartitionError(str(error)) from error
    except (ValueError, IndexError, TypeError) as error:
        raise PartitionError(f"the process that tried ended with {done.returncode}: {done.stderr[-400:]}") from error
    if not splits:
        raise PartitionError(f"no split worked: {done.stderr[-400:]}")
    return splits


def _green(ordinal: int, asked: int) -> Split:
    call = _driver()
    device = ctypes.c_int()
    call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
    whole, group, rest = (ctypes.create_string_buffer(2 * RESOURCE_BYTES) for _ in range(3))
    call("cuDeviceGetDevResource", device, whole, ctypes.c_int(SM_RESOURCE))
    groups = ctypes.c_uint(1)
    call(
        "cuDevSmResourceSplitByCount", group, ctypes.byref(groups), whole, rest, ctypes.c_uint(0), ctypes.c_uint(asked)
    )
    if groups.value != 1 or not _units(group) or not _units(rest):
        raise PartitionError(f"{asked} SMs leave no two parts of the device")
    streams = [_green_stream(call, device, part) for part in (group, rest)]
    return Split((_units(group), _units(rest)), (streams[0], streams[1]))


def _green_stream(call: Callable[..., None], device: Any, part: Any) -> int:
    description, context, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuDevResourceGenerateDesc", ctypes.byref(description), part, ctypes.c_uint(1))
    call("cuGreenCtxCreate", ctypes.byref(context), description, device, ctypes.c_uint(DEFAULT_STREAM))
    call("cuGreenCtxStreamCreate", ctypes.byref(stream), context, ctypes.c_uint(NON_BLOCKING), ctypes.c_int(0))
    if not stream.value:
        raise PartitionError("the driver gave no stream")
    return stream.value


def _units(resource: Any) -> int:
    return int.from_bytes(resource.raw[SM_COUNT_AT : SM_COUNT_AT + 4], sys.byteorder)


def _driver() -> Callable[..., None]:
    """Return what calls a function of the CUDA driver by name, and raises what it answers."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise PartitionError(f"no CUDA driver ({error})") from error
    return lambda name, *arguments: _called(library, name, arguments)


def _called(library: Any, name: str, arguments: Sequence[Any]) -> None:
    try:
        answer = getattr(library, name)(*arguments)
    except AttributeError as error:
        raise PartitionError(f"this driver has no {name}") from error
    if answer:
        raise PartitionError(f"{name} answers {answer}")


def mask_words(first: int, end: int, units: int) -> list[int]:
    """Return 32-bit words with the bits [first, end) set, of so many units.

    Examples
    --------
    >>> [hex(word) for word in mask_words(30, 34, 40)]
    ['0xc0000000', '0x3']
    """
    bits = (1 << end) - (1 << first)
    return [bits >> 32 * word & 0xFFFFFFFF for word in range(-(-units // 32))]


def _masked(units: int, asked: int) -> Split:
    if not 0 < asked < units:
        raise PartitionError(f"{asked} of {units} compute units leave no two parts")
    try:
        library = ctypes.CDLL("libamdhip64.so")
    except OSError as error:
        raise PartitionError(f"no HIP runtime ({error})") from error
    streams = [_masked_stream(library, mask_words(*part, units)) for part in ((0, asked), (asked, units))]
    return Split((asked, units - asked), (streams[0], streams[1]))


def _masked_stream(library: Any, words: Sequence[int]) -> int:
    stream = ctypes.c_void_p()
    mask = (ctypes.c_uint32 * len(words))(*words)
    arguments = (ctypes.byref(stream), ctypes.c_uint32(len(words)), mask)
    _called(library, "hipExtStreamCreateWithCUMask", arguments)
    if not stream.value:
        raise PartitionError("the runtime gave no stream")
    return stream.value


def _tried(device: str, asked: int, copy: Callable[[Any, Any], object]) -> tuple[int, int] | None:
    """Return the parts of a split whose streams work (`_wrong`); or nothing, saying why."""
    try:
        made = split(device, asked)
        wrong = _wrong(device, made, copy)
    except RuntimeError as error:  # of PyTorch, or a `PartitionError`
        wrong = str(error)
    if wrong:
        print(f"{asked} units: {wrong}", file=sys.stderr)
        return None
    return made.units


def _wrong(device: str, made: Split, copy: Callable[[Any, Any], object]) -> str:
    """Return what is wrong with the streams of a split: kernels, waiting, times, running at once; or nothing."""
    import torch

    gate = torch.cuda.Event(enable_timing=True)
    gate.record(torch.cuda.current_stream(device))
    a = torch.randn(1024, 1024, device=device)
    out, copied, expected = torch.empty_like(a), torch.empty_like(a), a @ a
    torch.cuda.synchronize(device)
    for raw in made.streams:
        stream = torch.cuda.ExternalStream(raw, device=device)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        stream.wait_event(gate)
        start.record(stream)
        with torch.cuda.stream(stream):
            torch.mm(a, a, out=out)
            copy(out.view(-1), copied.view(-1))
        end.record(stream)
        torch.cuda.synchronize(device)
        timed = gate.elapsed_time(end) > 0 and start.elapsed_time(end) > 0
        if not (timed and torch.allclose(copied, expected, atol=1e-2)):
            return "the streams' events or results are wrong"
    first, rest = (torch.cuda.ExternalStream(raw, device=device) for raw in made.streams)
    timeline = Timeline(torch.cuda)
    # A device that is late once is none that makes one wait for the other.
    together = any(timeline.side_by_side(first, rest) for _ in range(3))
    return "" if together else "one part waits for the other"


def _copier(device: str) -> Callable[[Any, Any], object]:
    """Return a copy by Triton, which launches by other calls than PyTorch; by PyTorch where Triton does not work."""
    import torch

    try:
        from benchmarks.gpu.triton_kernels import copy

        a = torch.ones(4096, device=device)
        copy(a, torch.empty_like(a), 4)
        torch.cuda.synchronize(device)
    except Exception:  # noqa: BLE001  Compilers raise what they like; the recording finds out for itself.
        return lambda source, target: target.copy_(source)
    return lambda source, target: copy(source, target, 4)


def main(device: str) -> None:
    """Print the splits that can be had, as JSON, the smallest first."""
    import torch

    torch.cuda.set_device(device)
    units = torch.cuda.get_device_properties(device).multi_processor_count
    copy = _copier(device)
    splits = {made for asked in ASKED if asked < units and (made := _tried(device, asked, copy)) is not None}
    print(json.dumps(sorted(splits)))


if __name__ == "__main__":
    main(sys.argv[1])

"""Which catalogue device each device of a trace is."""

from dataclasses import replace

from profilers.device_names import devices_in_name
from profilers.devices import Device, find_device
from profilers.errors import NotFoundError
from profilers.trace import Trace, TraceMeta
from replay.graph import Hardware

__all__ = ["hardware_named", "hardware_of"]

#: Launches that wait before the next one blocks. CUDA: in a trace of an A100, launches block at 966 to 969 waiting
#: kernels, with event records and copies beside them; 1,024 is assumed. HIP: 1,493 waited on an MI300, none blocked.
_LAUNCH_QUEUE = {"NVIDIA": 1024}


def hardware_of(trace: Trace) -> Hardware:
    """Return what the devices of a trace are, and how that is known.

    The profiler's device properties name it; a file without them may carry it in its own name
    (``mi300_rank0.json.gz``), which is a guess and called one.
    """
    named = {properties.name for properties in trace.meta.devices if properties.name}
    found = {device.name: device for name in named if (device := _find(name)) is not None}
    device, known_by = None, "unknown"
    if len(found) == 1:
        device, known_by = next(iter(found.values())), "trace"
    elif not found and (guess := _from_file_names(trace.meta)) is not None:
        device, known_by = guess, "file name"
    written = {p.compute_units for p in trace.meta.devices if p.compute_units}
    base = Hardware(known_by=known_by) if device is None else hardware_named(device, known_by)
    units = written.pop() if len(written) == 1 else base.compute_units
    return replace(base, compute_units=units)


def hardware_named(device: Device, known_by: str) -> Hardware:
    """Return a catalogue's device as the hardware of a graph."""
    engines = device.figures.get("copy_engines")
    return Hardware(
        device,
        known_by,
        device.compute_units,
        engines.value if engines else Hardware().copy_engines,
        launch_queue=_LAUNCH_QUEUE.get(device.vendor, 0),
    )


def _find(name: str) -> Device | None:
    try:
        return find_device(name)
    except NotFoundError:
        return None


def _from_file_names(meta: TraceMeta) -> Device | None:
    """Return the one device that the names of the files say."""
    hits = {device.name: device for source in meta.sources for device in devices_in_name(source)}
    return next(iter(hits.values())) if len(hits) == 1 else None

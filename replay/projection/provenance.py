"""Provenance of a projection: all that is needed to compute it again, bit for bit."""

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from profilers.devices.catalogue import Device
from profilers.trace.trace import TraceMeta
from replay.calibration.parameters import Parameters
from replay.engine.timeline import Timeline
from replay.what_ifs.what_if import WhatIf

#: Quantiles at the ends of intervals.
QUANTILES = (0.05, 0.95)
_LIBRARIES = ("numpy", "numba", "scipy")


def provenance_of(
    meta: TraceMeta,
    timelines: Sequence[Timeline],
    what_ifs: Sequence[WhatIf],
    nominal: Parameters,
    *,
    draws: int,
    seed: int,
) -> dict[str, Any]:
    """Return the provenance of a projection.

    Parameters
    ----------
    meta : TraceMeta
        Metadata of the trace.
    timelines : sequence of Timeline
        The unchanged window first, then one of each what-if.
    what_ifs : sequence of WhatIf
        What-ifs that are projected.
    nominal : Parameters
        Nominal parameters, with their ranges and the calibrations that what-ifs use.
    draws : int
        Number of draws of the parameters.
    seed : int
        Seed of the draws.
    """
    hardware = timelines[0].graph.hardware
    devices = [line.graph.hardware.device for line in timelines]
    libraries = {name: version(name) for name in _LIBRARIES}
    parameters = {name: [p.value, p.low, p.high] for name, p in nominal.known.items()}
    return {
        "trace_fingerprint": meta.fingerprint,
        **({"class_rules": [list(rule) for rule in meta.class_rules]} if meta.class_rules else {}),
        "trace_format": meta.format,
        "sources": list(meta.sources),
        "synthetic": meta.synthetic,
        "device": hardware.device.name if hardware.device else None,
        "device_known_by": hardware.known_by,
        "version": version("seqpoint"),
        "libraries": {"python": platform.python_version(), **libraries, "machine": platform.machine()},
        # As a plan file has them.
        "what_ifs": [
            {"title": each.title, "steps": list(each.steps), "parameters": dict(each.parameters)} for each in what_ifs
        ],
        "parameters": parameters,
        "parameters_sha256": digest(parameters),
        "models_sha256": _models_digest(nominal, [device for device in devices if device is not None]),
        "draws": draws,
        "seed": seed,
        "confidence": round(QUANTILES[1] - QUANTILES[0], 6),
    }


def digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of `content` as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _models_digest(nominal: Parameters, devices: Sequence[Device]) -> str:
    """Return the digest of the calibrations, and of the figures of the devices that the graphs run on."""
    figures = {
        device.name: {name: figure.value for name, figure in device.figures.items()}
        | {"vendor_matrix_share": device.vendor_matrix_share}
        for device in devices
    }
    return hashlib.sha256(f"{nominal.calibrations!r}{digest(figures)}".encode()).hexdigest()

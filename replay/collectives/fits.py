"""The file that holds fits of measured collectives: written only if it can be read, read only if it can be."""

import json
import math
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from profilers.atomic import write_text
from profilers.datasets import dataset_path
from profilers.devices import find_device
from profilers.errors import InvalidInputError, SeqPointError
from replay.calibration_file import read_calibration_file
from replay.collectives.algorithms import KINDS
from replay.collectives.calibration import Band, CollectiveCalibration, CollectiveFit
from replay.collectives.curve import Curve
from replay.collectives.topology import LINKS, MOST_BYTES, MOST_WORKERS, Topology

__all__ = ["load_collectives", "read_fits", "write_fits"]

#: Of times, in us and in us a MB: ten thousand years are no collective. Of spreads, that e^100 is still a number.
_MOST_TIME, _MOST_SPREAD = 3e17, 100.0
_BASES = ("carried", "prior")
#: Sizes are written in whole bytes from here on.
_WHOLE_BYTES = 1000.0


def write_fits(path: Path, calibration: CollectiveCalibration) -> None:
    """Write a calibration as JSON, whole or not at all.

    Raises
    ------
    InvalidInputError
        It has a number that `read_fits` would refuse, such as one that is not finite.
    """
    try:
        content = {
            "fits": [_content(one) for one in calibration.fits],
            "spreads": [
                {"link": link, "basis": basis, "left_out": n, "spread": round(spread, 4)}
                for (link, basis, n), spread in sorted(calibration.spreads.items())
            ],
            "fitted_files_sha256": list(calibration.digests),
        }
        _known(content)
    except (ValueError, OverflowError, SeqPointError) as error:
        raise InvalidInputError(f"{path}: not written: {error}") from error
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def _content(one: CollectiveFit) -> dict[str, Any]:
    where, curve, band = one.topology, one.curve, one.band
    lines = zip(curve.starts_bytes, curve.alphas_s, curve.betas, strict=True)
    return {
        "kind": one.kind,
        "device": one.device,
        "fabric": where.fabric,
        "link": where.link,
        "workers": where.n_workers,
        "devices_per_node": where.devices_per_node,
        "node_devices": where.node_devices,
        "nics": where.nics,
        "rows": one.rows,
        "most_bytes": round(one.most_bytes),
        "lines": [
            {"from_bytes": _start(start), "alpha_us": round(1e6 * alpha, 3), "us_per_mb": float(f"{1e12 * beta:.5g}")}
            for start, alpha, beta in lines
        ],
        "measured_over_predicted": [
            {"from_bytes": _start(start), "low": round(low, 4), "high": round(high, 4)}
            for start, low, high in zip(band.starts_bytes, band.low, band.high, strict=True)
        ],
    }


def _start(size: float) -> float:
    """Return where a line starts: whole bytes, but where that could make two lines start at one."""
    return round(size) if size == 0 or size >= _WHOLE_BYTES else round(size, 6)


def read_fits(path: str | Path) -> CollectiveCalibration:
    """Read what `write_fits` wrote.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file, or its content is no calibration; the place is named.
    """
    absent = "no such calibration; `seqpoint calibrate collectives` writes one"
    return read_calibration_file(path, absent, "not what `seqpoint calibrate collectives` writes", _known)


def _known(content: Mapping[str, Any]) -> CollectiveCalibration:
    fits = tuple(_fit_of(row) for row in content["fits"])
    spreads = {_key_of(row): _number(row, "spread", 0, _MOST_SPREAD) for row in content["spreads"]}
    digests = tuple(str(digest) for digest in content["fitted_files_sha256"])
    return CollectiveCalibration(fits, MappingProxyType(spreads), digests)


def _key_of(row: Mapping[str, Any]) -> tuple[str, str, int]:
    if row["link"] not in LINKS or row["basis"] not in _BASES:
        raise ValueError(f"a spread of {row['link']!r:.40}, {row['basis']!r:.40}")
    return row["link"], row["basis"], _whole(row, "left_out", 0)


def _fit_of(row: Mapping[str, Any]) -> CollectiveFit:
    if row["kind"] not in KINDS:
        raise ValueError(f"no collective is called {row['kind']!r:.40}")
    try:
        where = Topology(
            _whole(row, "workers", 2),
            _whole(row, "devices_per_node", 1),
            _whole(row, "node_devices", 1),
            str(row["fabric"]),
            _whole(row, "nics", 1) if "nics" in row else 0,
        )
        most = _number(row, "most_bytes", 1, MOST_BYTES)
        curve, band = _curve_of(row["lines"]), _band_of(row["measured_over_predicted"])
        rows = _whole(row, "rows", 1, MOST_BYTES)
    except ValueError as error:
        raise ValueError(f"{row['kind']} on {row['device']}: {error}") from error
    return CollectiveFit(row["kind"], find_device(str(row["device"])).name, where, curve, band, rows, most)


def _curve_of(lines: list[Mapping[str, Any]]) -> Curve:
    curve = Curve(
        _starts(lines),
        tuple(_number(one, "alpha_us", 0, _MOST_TIME) / 1e6 for one in lines),
        tuple(_number(one, "us_per_mb", 0, _MOST_TIME) / 1e12 for one in lines),
    )
    if any(alpha + beta == 0 for alpha, beta in zip(curve.alphas_s, curve.betas, strict=True)):
        raise ValueError("a line of lines takes no time: alpha_us and us_per_mb are both 0")
    return curve


def _band_of(bounds: list[Mapping[str, Any]]) -> Band:
    low = tuple(_number(one, "low", 0, 1) for one in bounds)
    return Band(_starts(bounds), low, tuple(_number(one, "high", 1, math.exp(_MOST_SPREAD)) for one in bounds))


def _starts(rows: list[Mapping[str, Any]]) -> tuple[float, ...]:
    starts = tuple(_number(one, "from_bytes", 0, MOST_BYTES) for one in rows)
    if not starts or any(one >= other for one, other in pairwise(starts)):
        raise ValueError("from_bytes must ascend, over one row or more")
    return starts


def _number(row: Mapping[str, Any], name: str, least: float, most: float) -> float:
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        shown = "beyond that" if isinstance(value, int) and abs(value) > 2**64 else f"{value!r:.40}"
        raise ValueError(f"a number cannot be: {name} is {shown}, not {least:g} to {most:g}")
    return float(value)


def _whole(row: Mapping[str, Any], name: str, least: int, most: int = MOST_WORKERS) -> int:
    number = _number(row, name, least, most)
    if number != int(number):
        raise ValueError(f"{name} is {number:g}; it must be whole")
    return int(number)


@cache
def load_collectives() -> CollectiveCalibration:
    """Return the shipped calibration."""
    return read_fits(dataset_path("fits/collectives.json"))

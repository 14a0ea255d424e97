"""Small recordings of contention: times that a test states, or the engine's under parameters that a test chooses."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from replay.contention.fitting import base_parameters
from replay.contention.prediction import scenario_model
from replay.contention.reading import read_recording
from replay.contention.recording import RecordedMember
from replay.costs.shipped import load_parameters

Rows = list[dict[str, Any]]
#: A device that no catalogue has: its memory gives 2 TB/s, its cache 6, a product 400 TFLOP/s, its link 50 GB/s.
DEVICE = {
    "name": "Imaginary 100", "vendor": "nobody", "architecture": "none", "compute_units": 100,
    "memory_bytes": 2**36, "l2_bytes": 50 * 2**20, "copy_engines": 2,
}  # fmt: skip
MEMORY, CACHE, FLOPS, LINK = 2e12, 6e12, 4e14, 5e10
MB = 2**20


def work(name: str, kind: str, **given: Any) -> dict[str, Any]:
    row = {
        "work": name, "kind": kind, "dtype": "bf16" if kind == "gemm" else "fp32", "m": 1, "n": 1, "k": 1, "flops": 0,
        "bytes_read": 0, "bytes_written": 0, "host_bytes": 0, "direction": "", "blocks": 0, "hint": "", "kernel": None,
        "workgroups": None, "workgroup_size": None, "take": 0,
    }  # fmt: skip
    return {**row, **given}


def product(side: int) -> dict[str, Any]:
    each = 2 * side * side
    sizes = {"m": side, "n": side, "k": side, "flops": 2 * side**3, "bytes_read": 2 * each, "bytes_written": each}
    return work(f"gemm_{side}", "gemm", **sizes, workgroups=(side // 128) ** 2)


def streamed(mb: int, kind: str = "elementwise", blocks: int = 0) -> dict[str, Any]:
    name = f"{kind}_{mb}" + (f"_b{blocks}" if blocks else "")
    sizes = {"m": mb * MB // 4, "bytes_read": mb * MB, "bytes_written": mb * MB}
    return work(name, kind, **sizes, blocks=blocks, workgroups=blocks or mb * 256)


def moved(mb: int, direction: str, kind: str = "copy_engine") -> dict[str, Any]:
    size = mb * MB
    sides = {"bytes_read": size if direction == "d2h" else 0, "bytes_written": size if direction == "h2d" else 0}
    return work(f"{kind}_{direction}_{mb}", kind, m=size // 4, host_bytes=size, direction=direction, **sides,
                blocks=8 if kind == "zero_copy" else 0)  # fmt: skip


def alone_ns(row: Mapping[str, Any]) -> float:
    if row["host_bytes"]:
        return row["host_bytes"] / LINK * 1e9
    size = row["bytes_read"] + row["bytes_written"]
    rate = CACHE * 0.8 if row["kind"] == "update" else MEMORY
    throttle = min(row["blocks"] / 64, 1.0) if row["blocks"] else 1.0
    return max(size / (rate * throttle), row["flops"] / FLOPS) * 1e9


WORKS = [
    product(2048), product(4096), product(6144), streamed(64), streamed(128), streamed(256, "copy_kernel"),
    streamed(128, "copy_kernel", 16), streamed(8, "update"), streamed(12, "update"), moved(64, "h2d"), moved(32, "h2d"),
    moved(64, "d2h"), moved(32, "h2d", "zero_copy"),
]  # fmt: skip


def pairs(works: Sequence[Mapping[str, Any]] = WORKS) -> list[tuple[str, str, list[RecordedMember]]]:
    """Return (group, policy, members) of every pair of works, equally long, under the policies that suit it."""
    found = []
    for i, one in enumerate(works):
        for other in works[i + 1 :]:
            times = [alone_ns(row) for row in (one, other)]
            launches = [max(1, round(max(times) / t)) for t in times]
            group = f"{one['work']}|{other['work']}"
            plain = [RecordedMember(r["work"], n) for r, n in zip((one, other), launches, strict=True)]
            found.append((group, "streams", plain))
            if one["kind"] == "gemm":
                first = [plain[0], RecordedMember(other["work"], launches[1], priority=1)]
                found.append((group, "priority", first))
                if other["kind"] != "copy_engine":
                    apart = [
                        RecordedMember(one["work"], launches[0], units=80),
                        RecordedMember(other["work"], launches[1], units=20),
                    ]
                    found.append((group, "partition", apart))
    return found


def write(folder: Path, name: str, rows: Rows) -> None:
    pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")


def together_rows(scenarios: Sequence[Any], take: int, repetition: int, ends: Sequence[Sequence[float]]) -> Rows:
    return [
        {
            "part": "b", "take": take, "group": group, "scenario": f"{group}:{policy}", "policy": policy,
            "repetition": repetition, "member": number, "work": one.work, "launches": one.launches,
            "priority": one.priority, "units": one.units or None, "lag_ns": one.lag_ns,
            "start_ns": one.lag_ns, "end_ns": int(mine[number]),
        }
        for (group, policy, members), mine in zip(scenarios, ends, strict=True)
        for number, one in enumerate(members)
    ]  # fmt: skip


def alone_rows(works: Sequence[Mapping[str, Any]], take: int, noise: float, random: np.random.Generator) -> Rows:
    return [
        {
            "part": "a", "take": take, "work": row["work"], "units": None, "repetition": repetition, "launches": 2,
            "duration_ns": int(2 * alone_ns(row) * np.exp(noise * random.standard_normal())),
        }
        for row in works
        for repetition in range(3)
    ]  # fmt: skip


def write_recording(
    folder: Path,
    truth: Mapping[str, float],
    *,
    works: Sequence[Mapping[str, Any]] = WORKS,
    scenarios: Sequence[tuple[str, str, list[RecordedMember]]] | None = None,
    noise: float = 0.005,
    takes: int = 2,
    device: Mapping[str, Any] = DEVICE,
    seed: int = 0,
) -> Path:
    """Write a recording whose times side by side are the engine's under `truth`, a factor of noise apart."""
    chosen = list(pairs(works) if scenarios is None else scenarios)
    how: dict[str, Any] = {"works": works, "noise": noise, "takes": takes, "device": device, "seed": seed}
    write_measured(folder, [(*one, [m.lag_ns + 1000.0 for m in one[2]]) for one in chosen], **how)
    recording = read_recording(folder)
    model = scenario_model(recording, [s.members for s in recording.scenarios])
    known = base_parameters(recording, load_parameters()).with_values(truth.items())
    ends = model.ends_ns(known)
    measured = [(*one, ends[model.lineup == number].tolist()) for number, one in enumerate(chosen)]
    return write_measured(folder, measured, **how)


def write_measured(
    folder: Path,
    measured: Sequence[tuple[str, str, list[RecordedMember], Sequence[float]]],
    *,
    works: Sequence[Mapping[str, Any]],
    noise: float = 0.0,
    takes: int = 2,
    device: Mapping[str, Any] = DEVICE,
    seed: int = 0,
) -> Path:
    """Write a recording of (group, policy, members, end of each member in ns), a factor of noise apart."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    (folder / "environment.json").write_text(json.dumps([{"take": take, "device": device} for take in range(takes)]))
    write(folder, "works", [dict(row) for row in works])
    write(folder, "alone", [one for take in range(takes) for one in alone_rows(works, take, noise, random)])
    scenarios = [(group, policy, members) for group, policy, members, _ in measured]
    count = sum(len(ends) for *_, ends in measured)
    rows: Rows = []
    for take in range(takes):
        for repetition in range(3):
            factors = iter(np.exp(noise * random.standard_normal(count)).tolist())
            noisy = [[end * next(factors) for end in ends] for *_, ends in measured]
            rows += together_rows(scenarios, take, repetition, noisy)
    write(folder, "together", rows)
    return folder

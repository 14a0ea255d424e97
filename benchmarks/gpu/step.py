"""`Step`: what is recorded in one go, and written down before the next begins; and what it is recorded on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.gpu.work import Work

__all__ = ["CUDA_FEATURES", "TABLES", "Machine", "Member", "Row", "Step", "Tables"]

Row = Mapping[str, Any]
#: Rows by the table that they belong to.
Tables = Mapping[str, Sequence[Row]]

#: Features that each GPU has which PyTorch drives, and a CPU lacks; TF32 is of NVIDIA's alone.
CUDA_FEATURES = frozenset({"efficient_attention", "graphs", "memory_history", "streams", "tensor_float"})

#: Columns of every table that is recorded, in order, with their Arrow types. `take` is added by the journal: 0 for the
#: first recording of a plan, 1 for its repetition. Times are ns of the device's clock. Null is not known.
TABLES: Mapping[str, Mapping[str, str]] = {
    "works": {
        "work": "string", "kind": "string", "dtype": "string", "m": "int64", "n": "int64", "k": "int64",
        "flops": "int64", "bytes_read": "int64", "bytes_written": "int64", "host_bytes": "int64",
        "direction": "string", "blocks": "int64", "hint": "string",
        "kernel": "string", "workgroups": "int64", "workgroup_size": "int64",
        "registers": "int64", "static_shared_bytes": "int64", "dynamic_shared_bytes": "int64", "resident": "int64",
        "cluster": "int64", "clusters": "int64",
    },
    "alone": {
        "part": "string", "work": "string", "units": "int64", "repetition": "int64", "launches": "int64",
        "duration_ns": "int64",
    },
    "together": {
        "part": "string", "group": "string", "scenario": "string", "policy": "string", "repetition": "int64",
        "member": "int64", "work": "string", "launches": "int64", "priority": "int64", "units": "int64",
        "lag_ns": "int64", "start_ns": "int64", "end_ns": "int64",
    },
    "epochs": {
        "model": "string", "configuration": "string", "iteration": "int64", "sequence_length": "int64",
        "batch": "int64", "duration_ns": "int64",
    },
    "steps": {
        "model": "string", "configuration": "string", "sequence_length": "int64", "batch": "int64",
        "dtype": "string", "repetition": "int64", "duration_ns": "int64",
    },
    "runs": {
        "group": "string", "run": "string", "dtype": "string", "sequence_length": "int64", "batch": "int64",
        "measure": "string", "turn": "int64", "duration_ns": "int64",
    },
    "pairs": {"group": "string", "before": "string", "after": "string", "what_if": "string"},
    "operators": {
        "op": "string", "device": "string", "B": "int64", "M": "int64", "N": "int64", "K": "int64", "H": "int64",
        "latency_ms": "double", "dtype": "string", "kernel_name": "string",
        "grid_x": "int64", "grid_y": "int64", "grid_z": "int64",
        "block_x": "int64", "block_y": "int64", "block_z": "int64",
    },
    "ptx": {
        "plan": "string", "launch": "int64", "entry": "string", "ptx_sha256": "string",
        "device": "string", "compute_capability": "string",
        "grid_x": "int64", "grid_y": "int64", "grid_z": "int64",
        "block_x": "int64", "block_y": "int64", "block_z": "int64",
        "registers": "int64", "static_shared_bytes": "int64", "dynamic_shared_bytes": "int64", "local_bytes": "int64",
        "cache": "string", "repetition": "int64", "duration_ns": "int64",
        "spin_clock_mhz": "double", "sm_clock_mhz": "double",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Member:
    """A work that runs beside others.

    Parameters
    ----------
    work : Work
    launches : int
        One behind the other on its stream.
    priority : int
        Of its stream; more is sooner.
    units : int
        Compute units that it may run on, a partition of its own; 0 for all.
    lag_ns : int
        After the first, when its stream is let go.
    """

    work: Work
    launches: int = 1
    priority: int = 0
    units: int = 0
    lag_ns: int = 0


class Machine(Protocol):
    """What is recorded on: a GPU, or its twin on a CPU."""

    @property
    def device(self) -> str:
        """As PyTorch writes it: ``"cuda:0"``, ``"cpu"``."""

    @property
    def features(self) -> frozenset[str]:
        """Return features that it has.

        Any of ``triton``, ``partitions``, ``priorities``, ``copy_engine``, ``pinned``, ``ptx``, ``profiler``,
        ``compiler``, and `CUDA_FEATURES`.
        """

    def facts(self) -> dict[str, Any]:
        """Return what it is, under the keys of `device` in ``environment.json``."""

    def state(self) -> dict[str, Any]:
        """Return clocks, temperature and power as they are now; empty where nobody says."""

    def synchronize(self) -> None:
        """Wait for all that was launched."""

    def alone(self, member: Member, repetitions: int) -> list[int]:
        """Return how long a member's launches took, ns, each time."""

    def together(self, members: Sequence[Member], repetitions: int) -> list[list[tuple[int, int]]]:
        """Return (start, end) of every member, ns from the first start, each time."""

    def residency_of(self, works: Sequence[Work]) -> list[dict[str, Any]]:
        """Return what a workgroup of each work of known residency holds, as the driver says; empty for a twin."""

    def kernels_of(self, works: Sequence[Work]) -> list[dict[str, Any]]:
        """Return `kernel`, `workgroups`, `workgroup_size` of each work, from a profiler; empty where none says."""


@dataclass(frozen=True)
class Step:
    """What is recorded in one go.

    Parameters
    ----------
    key : str
        Tells it from all others; a resumed recording looks for it.
    part : str
        One of `PARTS` of the plan.
    seconds : float
        That it may take, by a guess.
    run : callable
        From the machine and the folder for files (traces), to rows by table.
    needs : frozenset of str
        Features without which it is left out.
    """

    key: str
    part: str
    seconds: float
    run: Callable[[Machine, Path], Tables]
    needs: frozenset[str] = frozenset()

    @property
    def profiles(self) -> bool:
        """Whether a profiler runs in it, which slows the launches of its process from then on."""
        return self.part == "f" or "profiler" in self.needs

"""What copies of weights in low precision cost a job in memory, and what memory that is saved allows: `weight_copies`.

Copies that are kept are there for all layers. Copies just in time (arXiv 2311.05034) are there for two layers, one that
runs and the next. Products read the copies in the place of weights in BF16. An embedding that no product reads has no
copies and stays in BF16. The time that copies take is that of the what-if ``quantize_weights``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError
from replay.formats import Format, find_format
from replay.graph.choice import unknown_name
from replay.plug_ins.quantize_weights import KEEPING, MAKERS
from replay.plug_ins.weight_copies import copy_bytes
from replay.workloads import TrainingJob, job_memory, memory_share, usable_bytes
from replay.workloads.job_memory import JobMemory, embedding_bytes
from seqpoint.notebook import DataFrame, Result, Table, data_frame, table_of

#: Ways to hold weights, and the maker of copies that holds them so.
_HELD: Mapping[str, str] = MappingProxyType({"kept": "pim", "just in time": "jit_pim"})
#: Largest micro-batch and ranks that are tried.
_MOST = 2**16


@dataclass(frozen=True)
class CopiesRow:
    """Memory of a job whose weights are held in one way.

    Parameters
    ----------
    copies : str
        ``"bf16"`` for the job as it is, ``"kept"``, or ``"just in time"``.
    memory : JobMemory
        Memory of the rank that needs most; `weights` are the copies, and the embedding in BF16.
    share : float
        Reserved memory as a share of the usable memory of the device.
    micro_batch : int
        Largest micro-batch that fits; 0 if none does.
    ranks : int
        Fewest tensor-parallel ranks on which the job fits; 0 if none are enough.
    copies_bytes : int
        Bytes of the weights that products read: of BF16, or of the copies.
    """

    copies: str
    memory: JobMemory
    share: float
    micro_batch: int
    ranks: int
    copies_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON."""
        return {
            "copies": self.copies,
            "copies_bytes": self.copies_bytes,
            "weights_bytes": self.memory.weights,
            "memory_bytes": self.memory.reserved,
            "fits": self.share <= 1,
            "largest_micro_batch": self.micro_batch,
            "fewest_tensor_ranks": self.ranks,
        }


@dataclass(frozen=True, repr=False)
class WeightCopies(Result):
    """Memory of a job with copies of its weights.

    Parameters
    ----------
    rows : tuple of CopiesRow
        The job as it is, with copies that are kept, and just in time.
    formats : tuple of str
        Formats of the copies.
    device : Device
        Device that all ranks run on.
    """

    heading = "Copies of weights"

    rows: tuple[CopiesRow, ...]
    formats: tuple[str, ...]
    device: Device

    def table(self) -> DataFrame:
        """Return a row for each way to hold weights; memory in bytes."""
        return data_frame([row.to_dict() for row in self.rows])

    def tables(self) -> tuple[Table, ...]:
        """Return the ways to hold weights as text."""
        columns = {
            "copies~": "{copies}", "weights GB": "{weights:.1f}", "memory GB": "{memory:.1f}", "fits~": "{fitting}",
            "largest micro-batch": "{largest_micro_batch}", "fewest tensor ranks": "{fewest_tensor_ranks}",
        }  # fmt: skip
        rows = [
            row.to_dict()
            | {"weights": row.memory.weights / 1e9, "memory": row.memory.reserved / 1e9}
            | {"fitting": "yes" if row.share <= 1 else "NO"}
            for row in self.rows
        ]
        return (table_of("Copies of weights", columns, rows),)

    def plot(self) -> Any:
        """Return the memory of a rank by part as bars, one for each way to hold weights."""
        from seqpoint.plots import memory_by_part

        return memory_by_part({row.copies: row.memory for row in self.rows})

    def summary(self) -> list[str]:
        """Return what is compared, and what copies just in time save, in a sentence each."""
        plain, (kept, live) = self.rows[0], (row.memory for row in self.rows[1:])
        saved, others = kept.reserved - live.reserved, plain.memory.weights - plain.copies_bytes
        return [
            f"copies in {', '.join(self.formats)}, of weights and of their transposes; FP32 weights in the optimizer",
            f"they replace {plain.copies_bytes / 1e9:.1f} GB of weights in bf16"
            + (f"; {others / 1e9:.1f} GB of the embedding stay in bf16" if others else ""),
            f"just in time saves {saved / 1e9:.1f} GB of a rank, {saved / kept.reserved:.1%} of its memory",
            f"usable memory of {self.device.name}: {usable_bytes(self.device) / 1e9:.1f} GB",
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint formats --job --json` prints."""
        return {"formats": list(self.formats), "device": self.device.name, "usable_bytes": usable_bytes(self.device),
                "rows": [row.to_dict() for row in self.rows]}  # fmt: skip


def weight_copies(job: TrainingJob, formats: Sequence[str], *, device: str = "MI300X") -> WeightCopies:
    """Return what copies of the weights in low precision cost a job in memory, and what that allows.

    Parameters
    ----------
    job : TrainingJob
        Job in BF16.
    formats : sequence of str
        Formats of the copies, such as ``["mx9", "mx6"]``; `replay.formats.FORMATS` has them.
    device : str
        Name of the device.

    Raises
    ------
    SeqPointError
        A format or the device is unknown, the job is in another precision, or the memory of the device is unknown.

    Examples
    --------
    >>> from replay.workloads import training_job
    >>> sizes = {"layers": 32, "hidden": 5120, "heads": 64, "length": 2048, "precision": "bf16", "recompute": True}
    >>> [row.ranks for row in weight_copies(training_job(sizes), ["mx9", "mx6"]).rows]
    [2, 2, 1]
    """
    hardware, found = find_device(device), [find_format(name) for name in formats]
    if not found:
        raise InvalidInputError("no format of copies is given; give one, such as mx9")
    held = {"bf16": ([], ""), **{name: (found, maker) for name, maker in _HELD.items()}}
    rows = [
        CopiesRow(
            name,
            memory := memory_with_copies(job, *how),
            memory_share(memory, hardware),
            largest_micro_batch(job, hardware, *how),
            fewest_ranks(job, hardware, *how),
            memory.weights - embedding_bytes(job, memory.stage),
        )
        for name, how in held.items()
    ]
    return WeightCopies(tuple(rows), tuple(each.name for each in found), hardware)


def memory_with_copies(job: TrainingJob, formats: Sequence[Format], maker: str) -> JobMemory:
    """Return the memory of a rank whose weights in 16 bits are copies of other formats.

    Parameters
    ----------
    job : TrainingJob
        Job in BF16, whose optimizer has the weights in FP32.
    formats : sequence of Format
        Formats of the copies, of weights and of their transposes; empty for the job as it is.
    maker : str
        Who makes the copies, as in ``quantize_weights``: ``"pim"`` and ``"gpu_kept"`` keep all of them, others those of
        two layers.

    Raises
    ------
    InvalidInputError, NotFoundError
        The job is in another precision, or there is no such maker.

    Examples
    --------
    >>> from replay.workloads import training_job
    >>> job = training_job({"layers": 24, "precision": "bf16"})
    >>> kept, live = (memory_with_copies(job, [find_format("mx9")], maker) for maker in ("pim", "jit_pim"))
    >>> round(kept.weights / live.weights)
    24
    """
    if job.precision != "bf16":
        raise InvalidInputError(f"a job in {job.precision}: the memory of copies is counted for jobs in bf16")
    memory = job_memory(job)
    if not formats:
        return memory
    if maker not in MAKERS:
        raise unknown_name("maker cannot be", str(maker), MAKERS)
    embedding = embedding_bytes(job, memory.stage)
    copies = copy_bytes((memory.weights - embedding) / job.element_bytes, formats, directions=2)
    of_rank = max(job.model.layers // job.layout.pipeline, 1)
    return replace(memory, weights=round(embedding + copies * (1.0 if maker in KEEPING else 1.0 / of_rank)))


def fits_with_copies(job: TrainingJob, device: Device, formats: Sequence[Format], maker: str) -> bool:
    """Return whether a job with copies fits on a device."""
    return memory_share(memory_with_copies(job, formats, maker), device) <= 1


def largest_micro_batch(job: TrainingJob, device: Device, formats: Sequence[Format], maker: str) -> int:
    """Return the largest micro-batch that fits on a device; 0 if none does.

    Parameters are those of `fits_with_copies`; the micro-batch of the job does not matter.
    """
    low, high = 0, 1
    while high <= _MOST and _fits_batch(job, high, device, (formats, maker)):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _fits_batch(job, middle, device, (formats, maker)) else (low, middle)
    return low


def _fits_batch(job: TrainingJob, batch: int, device: Device, how: tuple[Sequence[Format], str]) -> bool:
    return fits_with_copies(replace(job, micro_batch=batch, global_batch=batch * job.layout.data), device, *how)


def fewest_ranks(job: TrainingJob, device: Device, formats: Sequence[Format], maker: str) -> int:
    """Return the fewest tensor-parallel ranks that a job fits on, a power of two that divides the heads; 0 if none.

    Parameters are those of `fits_with_copies`.
    """
    ranks = 1
    while ranks <= _MOST and job.model.heads % ranks == 0:
        if fits_with_copies(replace(job, layout=replace(job.layout, tensor=ranks)), device, formats, maker):
            return ranks
        ranks *= 2
    return 0

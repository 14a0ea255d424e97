"""`Work`: one kind of launch on the device, told by what it computes and moves rather than by what does it."""

from dataclasses import dataclass, fields

from benchmarks.gpu.occupancy import Residency

__all__ = ["DTYPE_BYTES", "KINDS", "Work", "chunked", "copied", "gemm", "moved", "multiplied", "streamed"]

DTYPE_BYTES = {"fp32": 4, "bf16": 2}
#: What a work can be. `copy_engine` and `zero_copy` cross the link to the host (or stay on the device, ``d2d``).
KINDS = (
    "gemm", "copy_kernel", "copy_engine", "zero_copy", "elementwise", "softmax", "read", "update", "fma", "collective",
)  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What one launch does. Sizes in bytes count each operand once, whatever a cache makes of it.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    dtype : str
        A key of `DTYPE_BYTES`.
    m, n, k : int
        Of a product, (m, k) by (k, n); rows and columns of a softmax; threads, accumulators of each and steps of
        `fma`; elsewhere elements and 1, but `k` of a collective is how long it waits, ns.
    bytes_read, bytes_written : int
        Of the device's memory.
    host_bytes : int
        Across the link to the host.
    direction : str
        Of a transfer: ``"h2d"``, ``"d2h"`` or ``"d2d"``; else empty.
    blocks : int
        Workgroups that it is throttled to; 0 where the kernel chooses.
    hint : str
        ``"streaming"`` (do not keep in a cache), ``"accumulate"`` (a product that adds to its result) or ``"l1"`` (L1
        in the place of shared memory); else empty.
    residency : Residency, optional
        What a workgroup holds, of kernels of our own.
    """

    kind: str
    dtype: str
    m: int = 1
    n: int = 1
    k: int = 1
    bytes_read: int = 0
    bytes_written: int = 0
    host_bytes: int = 0
    direction: str = ""
    blocks: int = 0
    hint: str = ""
    residency: Residency | None = None

    @property
    def flops(self) -> int:
        """Of a product or `fma`; a multiplication and an addition count as two. Else 0."""
        return 2 * self.m * self.n * self.k if self.kind in ("gemm", "fma") else 0

    @property
    def name(self) -> str:
        """What tells it from others, and means the same in every recording."""
        size = f"{self.m}x{self.n}" + (f"x{self.k}" if self.kind in ("gemm", "fma", "collective") else "")
        held = str(self.residency or "")
        parts = (self.kind, self.direction, self.dtype, size, f"b{self.blocks}" if self.blocks else "", held, self.hint)
        return "_".join(part for part in parts if part)

    def row(self) -> dict[str, object]:
        """Return it as a row of the table `works`, without what only a device can say of its residency."""
        told = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "residency"}
        return {"work": self.name, **told, "flops": self.flops}


def gemm(m: int, n: int, k: int, dtype: str = "bf16", *, accumulate: bool = False) -> Work:
    """Return the product of an (m, k) by a (k, n) matrix."""
    size = DTYPE_BYTES[dtype]
    read = size * (m * k + k * n + (m * n if accumulate else 0))
    return Work("gemm", dtype, m, n, k, read, size * m * n, hint="accumulate" if accumulate else "")


def streamed(kind: str, rows: int, columns: int = 1, dtype: str = "fp32", *, hint: str = "") -> Work:
    """Return a kernel that goes through memory: elementwise (two arrays in, one out), softmax, read or update."""
    array = DTYPE_BYTES[dtype] * rows * columns
    reads, writes = {"elementwise": (2, 1), "softmax": (1, 1), "read": (1, 0), "update": (1, 1)}[kind]
    return Work(kind, dtype, rows, columns, 1, reads * array, writes * array, hint=hint)


def copied(size_bytes: int, blocks: int = 0, dtype: str = "fp32") -> Work:
    """Return a copy within the device's memory by a kernel, throttled to so many workgroups."""
    return Work("copy_kernel", dtype, size_bytes // DTYPE_BYTES[dtype], 1, 1, size_bytes, size_bytes, blocks=blocks)


def moved(carrier: str, direction: str, size_bytes: int, blocks: int = 0) -> Work:
    """Return a transfer by `copy_engine` or by `zero_copy` (a kernel that reads or writes pinned memory)."""
    read = size_bytes if direction in ("d2h", "d2d") else 0
    written = size_bytes if direction in ("h2d", "d2d") else 0
    host = 0 if direction == "d2d" else size_bytes
    return Work(carrier, "fp32", size_bytes // 4, 1, 1, read, written, host, direction, blocks)


def multiplied(residency: Residency, blocks: int, steps: int, hint: str = "") -> Work:
    """Return a kernel that computes: so many workgroups, whose threads multiply all their accumulators in each step."""
    threads = blocks * residency.threads
    size = DTYPE_BYTES["fp32"] * threads
    shape = threads, residency.accumulators, steps
    return Work("fma", "fp32", *shape, size, size, blocks=blocks, hint=hint, residency=residency)


def chunked(kind: str, size_bytes: int, blocks: int, residency: Residency, *, wait_ns: int = 1, hint: str = "") -> Work:
    """Return a `copy_kernel`, `update` or `collective` of known residency; bytes are rounded to whole chunks, up."""
    size = -(-size_bytes // residency.chunk_bytes) * residency.chunk_bytes
    elements = size // DTYPE_BYTES["fp32"]
    return Work(kind, "fp32", elements, 1, wait_ns, size, size, blocks=blocks, hint=hint, residency=residency)

"""Kernels that PyTorch has none of: copies by so many workgroups, and passes that ask the cache not to keep them.

Every kernel is a grid that does not grow with the data (`blocks` programs, each going on by all programs' width), so
that the number of workgroups is the caller's. Imported where Triton is; nothing here is used before it was checked.
"""

import triton
import triton.language as tl

__all__ = ["copy", "read", "update"]

#: Elements a program moves at a time, and the warps that do: four 16-byte accesses of a thread in flight.
BLOCK = 8192
WARPS = 16
#: Offsets are int32.
MOST_ELEMENTS = 2**30
#: How "streaming" is said. On NVIDIA an eviction priority cannot go with a cache operator in one instruction (PTX ISA,
#: ``ld``), and it is the priority that reaches L2; AMD's compiler knows the operators.
HINTS = {"cuda": ("", "", "evict_first"), "hip": (".cg", ".cs", "")}


@triton.jit
def _copy(source, target, count, BLOCK: tl.constexpr):
    for at in range(tl.program_id(0) * BLOCK, count, tl.num_programs(0) * BLOCK):
        offsets = at + tl.arange(0, BLOCK)
        inside = offsets < count
        tl.store(target + offsets, tl.load(source + offsets, mask=inside), mask=inside)


@triton.jit
def _read(source, sums, count, BLOCK: tl.constexpr, LOAD: tl.constexpr, EVICT: tl.constexpr):
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for at in range(tl.program_id(0) * BLOCK, count, tl.num_programs(0) * BLOCK):
        offsets = at + tl.arange(0, BLOCK)
        inside = offsets < count
        values = tl.load(source + offsets, mask=inside, other=0.0, cache_modifier=LOAD, eviction_policy=EVICT)
        total += values.to(tl.float32)
    tl.store(sums + tl.program_id(0), tl.sum(total, axis=0))


@triton.jit
def _update(values, count, BLOCK: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr, EVICT: tl.constexpr):
    for at in range(tl.program_id(0) * BLOCK, count, tl.num_programs(0) * BLOCK):
        offsets = at + tl.arange(0, BLOCK)
        inside = offsets < count
        old = tl.load(values + offsets, mask=inside, cache_modifier=LOAD, eviction_policy=EVICT)
        # 1 - (1 - x) is x: however often it is repeated, the values stay as random as they were.
        tl.store(values + offsets, old * -1.0 + 1.0, mask=inside, cache_modifier=STORE, eviction_policy=EVICT)


def copy(source, target, blocks: int) -> None:
    """Copy a flat tensor into another; either may be pinned memory of the host."""
    _copy[(blocks,)](source, target, _count(source), BLOCK=BLOCK, num_warps=WARPS)


def read(source, sums, hint: tuple[str, str, str]) -> None:
    """Sum a flat tensor into one partial sum a program; `sums` (programs,) fp32 says how many programs."""
    load, _, evict = hint
    _read[(sums.numel(),)](
        source, sums, _count(source), BLOCK=BLOCK, LOAD=load, EVICT=evict, num_warps=WARPS
    )  # fmt: skip


def update(values, blocks: int, hint: tuple[str, str, str]) -> None:
    """Replace every x of a flat tensor by 1 - x."""
    load, store, evict = hint
    _update[(blocks,)](
        values, _count(values), BLOCK=BLOCK, LOAD=load, STORE=store, EVICT=evict, num_warps=WARPS
    )  # fmt: skip


def _count(tensor) -> int:
    if tensor.numel() > MOST_ELEMENTS:
        raise ValueError(f"{tensor.numel()} elements; these kernels count to {MOST_ELEMENTS}")
    return tensor.numel()

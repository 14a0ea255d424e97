"""`bind`: what launches a `Work`: its own buffers, the call, and a proof that the call computes what it should.

The same PyTorch operators do the work on a GPU and on a CPU; kernels that PyTorch lacks come from a `Special`.

Inputs are random, never zeros, for power and so clocks depend on the bits. They rotate: a launch that is repeated finds
other inputs than the one before, as many sets as together are three times the last cache, so that it starts from memory
each time. `read`, `update` and `fma` do not rotate: what the first two are launched for is to go over the same buffer
again. Products that accumulate alternate between adding and taking away, which leaves sizes where they were.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from benchmarks.gpu.residency_kernels import FACTOR, STATE_WORDS, scale
from benchmarks.gpu.work import DTYPE_BYTES, Work

__all__ = ["Bound", "KnownKernels", "Special", "WrongResultError", "bind", "footprint_bytes", "sets_of"]

#: Relative to the largest value of the reference. fp32 is well below what TF32 would give (about 1e-3).
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}
MOST_SETS = 64
MOST_HOST_SETS = 4
#: Rows and columns of a product that are computed again in double precision.
CHECKED = 16


class WrongResultError(ValueError):
    """A kernel computed something else than it should have; what it took means nothing."""


class Special(Protocol):
    """Kernels that PyTorch has none of."""

    def copy(self, source: Any, target: Any, blocks: int) -> None:
        """Copy a flat tensor by so many workgroups."""

    def read(self, source: Any, sums: Any, hint: str) -> None:
        """Read a flat tensor, leaving partial sums."""

    def update(self, values: Any, hint: str) -> None:
        """Replace every x by 1 - x."""


class KnownKernels(Protocol):
    """Kernels of known residency."""

    def launcher(self, work: Work, tensors: Mapping[str, Any]) -> Callable[[], object]:
        """Return what launches a work on tensors, by the names of `launch_of`."""


@dataclass(frozen=True)
class Bound:
    """A work with buffers.

    Parameters
    ----------
    launch : callable
        Launches it for the i-th time, on the current stream.
    check : callable
        Raises `WrongResultError`; the device must be idle.
    held_bytes : int
        Of the device's memory.
    """

    launch: Callable[[int], object]
    check: Callable[[], None]
    held_bytes: int


@dataclass(frozen=True)
class Place:
    """Where buffers are: a device as PyTorch writes it, how many sets, and what else there is to launch."""

    device: str
    sets: int = 1
    special: Special | None = None
    known: KnownKernels | None = None

    def random(self, *shape: int, dtype: str) -> Any:
        """Return normal values."""
        import torch

        return torch.randn(*shape, device=self.device, dtype=_torch_dtype(dtype))

    def host(self, elements: int) -> Any:
        """Return normal fp32 values in memory of the host, pinned where the device is another."""
        import torch

        if self.device == "cpu":
            return torch.randn(elements)
        # Drawn on the device, which is quicker by far.
        return torch.empty(elements, pin_memory=True).copy_(torch.randn(elements, device=self.device))


def footprint_bytes(work: Work) -> int:
    """Return the device memory that one set of buffers takes."""
    size = DTYPE_BYTES[work.dtype]
    if work.kind == "gemm":
        return size * (work.m * work.k + work.k * work.n + work.m * work.n)
    if work.kind == "fma":
        return 2 * size * work.m
    arrays = {"elementwise": 3, "softmax": 2, "copy_kernel": 2, "collective": 2}.get(work.kind, 1)
    return size * work.m * work.n * (2 if work.direction == "d2d" else arrays)


def sets_of(work: Work, cache_bytes: int) -> int:
    """Return how many sets of inputs a work rotates among, by the size of the last cache."""
    if work.kind in ("read", "update", "fma") or not cache_bytes:
        return 1
    most = MOST_HOST_SETS if work.host_bytes else MOST_SETS
    return max(1, min(most, -(-3 * cache_bytes // max(footprint_bytes(work), 1))))


def bind(work: Work, place: Place) -> Bound:
    """Return a work with buffers of its own.

    Raises
    ------
    ValueError
        It needs a kernel that this place has not.
    """
    if work.residency is not None:
        return _known(work, place)
    if work.kind == "gemm":
        return _gemm(work, place)
    if work.kind in ("copy_kernel", "zero_copy") and work.blocks and place.special is None:
        raise ValueError(f"{work.name}: a copy by {work.blocks} workgroups needs Triton")
    if work.hint == "streaming" and place.special is None:
        raise ValueError(f"{work.name}: a cache hint needs Triton")
    make = {"copy_engine": _copied, "copy_kernel": _copied, "zero_copy": _copied, "elementwise": _elementwise}
    make |= {"softmax": _softmax, "read": _read, "update": _update}
    return make[work.kind](work, place)


def _torch_dtype(dtype: str) -> Any:
    import torch

    return {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]


def _gemm(work: Work, place: Place) -> Bound:
    import torch

    make = partial(place.random, dtype=work.dtype)
    sets = [(make(work.m, work.k), make(work.k, work.n), make(work.m, work.n)) for _ in range(place.sets)]

    def launch(turn: int) -> object:
        a, b, out = sets[turn % len(sets)]
        if work.hint == "accumulate":
            # Each set sees turns of both signs only where their number is odd; so the sign goes by rounds.
            return out.addmm_(a, b, alpha=1 if turn // len(sets) % 2 == 0 else -1)
        return torch.mm(a, b, out=out)

    def check() -> None:
        a, b, out = sets[0]
        before = _corner(out)
        launch(0)
        expected = a[:CHECKED].double().cpu() @ b[:, :CHECKED].double().cpu()
        _compare(work, _corner(out), expected + before if work.hint == "accumulate" else expected)

    return Bound(launch, check, place.sets * footprint_bytes(work))


def _corner(out: Any) -> Any:
    return out[:CHECKED, :CHECKED].double().cpu()


def _copied(work: Work, place: Place) -> Bound:
    sets = [_ends(work, place) for _ in range(place.sets)]
    special = place.special

    def launch(turn: int) -> object:
        source, target = sets[turn % len(sets)]
        if special is not None and work.blocks:
            return special.copy(source, target, work.blocks)
        return target.copy_(source, non_blocking=True)

    def check() -> None:
        launch(0)
        _settle(place)
        source, target = (end.to(place.device) for end in sets[0])
        if not bool((source == target).all()):
            raise WrongResultError(f"{work.name}: the copy differs from what was copied")

    return Bound(launch, check, place.sets * footprint_bytes(work))


def _ends(work: Work, place: Place) -> tuple[Any, Any]:
    """Return source and target, of different values."""
    device = partial(place.random, work.m, dtype=work.dtype)
    source = place.host(work.m) if work.direction == "h2d" else device()
    return source, place.host(work.m) if work.direction == "d2h" else device()


def _elementwise(work: Work, place: Place) -> Bound:
    import torch

    make = partial(place.random, work.m, work.n, dtype=work.dtype)
    sets = [(make(), make(), make()) for _ in range(place.sets)]

    def launch(turn: int) -> object:
        a, b, out = sets[turn % len(sets)]
        return torch.add(a, b, out=out)

    def check() -> None:
        launch(0)
        a, b, out = (tensor[:CHECKED].double().cpu() for tensor in sets[0])
        _compare(work, out, a + b)

    return Bound(launch, check, place.sets * footprint_bytes(work))


def _softmax(work: Work, place: Place) -> Bound:
    import torch

    make = partial(place.random, work.m, work.n, dtype=work.dtype)
    sets = [(make(), make()) for _ in range(place.sets)]

    def launch(turn: int) -> object:
        source, out = sets[turn % len(sets)]
        return torch.softmax(source, -1, out=out)

    def check() -> None:
        launch(0)
        source, out = (tensor[:CHECKED].double().cpu() for tensor in sets[0])
        _compare(work, out, torch.softmax(source, -1))

    return Bound(launch, check, place.sets * footprint_bytes(work))


def _read(work: Work, place: Place) -> Bound:
    import torch

    source = place.random(work.m * work.n, dtype=work.dtype)
    special = place.special
    sums = torch.empty(_programs(place), device=place.device)
    total = torch.empty((), device=place.device, dtype=source.dtype)

    def launch(_: int) -> object:
        if special is not None:
            return special.read(source, sums, work.hint)
        return torch.sum(source, 0, out=total)

    def check() -> None:
        launch(0)
        found = sums.double().sum() if special is not None else total.double()
        # Random signs cancel: the error is held against the sum of sizes, over sqrt(count) of them.
        scale = source.double().abs().sum() / source.numel() ** 0.5
        _compare(work, (found / scale).cpu(), (source.double().sum() / scale).cpu(), floor=1.0)

    return Bound(launch, check, footprint_bytes(work))


def _update(work: Work, place: Place) -> Bound:
    values = place.random(work.m * work.n, dtype=work.dtype)
    special = place.special

    def launch(_: int) -> object:
        return special.update(values, work.hint) if special is not None else values.mul_(-1)

    def check() -> None:
        before = values.clone()
        launch(0)
        _compare(work, values, 1 - before if special is not None else -before)

    return Bound(launch, check, footprint_bytes(work))


def _known(work: Work, place: Place) -> Bound:
    """Return a work of known residency, whose check looks at all that it wrote."""
    if place.known is None:
        raise ValueError(f"{work.name}: its kernel needs the driver's PTX compiler")
    sets = [_known_buffers(work, place) for _ in range(place.sets)]
    launchers = [place.known.launcher(work, buffers) for buffers in sets]

    def launch(turn: int) -> object:
        return launchers[turn % len(launchers)]()

    def check() -> None:
        buffers = sets[0]
        before = {name: tensor.clone() for name, tensor in buffers.items()}
        launch(0)
        _settle(place)
        if work.kind == "fma":
            start = sum(scale(accumulator) for accumulator in range(work.n))
            _compare(work, buffers["out"].double().cpu(), before["x"].double().cpu() * start * FACTOR**work.k)
            return
        expected = 1 - before["source"] if work.kind == "update" else before["source"]
        if not bool((buffers["target"] == expected).all()):
            raise WrongResultError(f"{work.name}: the target holds something else than it should")
        if bool(buffers.get("state", before["target"][:0]).any()):
            raise WrongResultError(f"{work.name}: the flag was not seen, or not taken back")

    return Bound(launch, check, place.sets * footprint_bytes(work))


def _known_buffers(work: Work, place: Place) -> dict[str, Any]:
    """Return tensors by the names of `launch_of`."""
    import torch

    first = place.random(work.m, dtype=work.dtype)
    if work.kind == "update":
        return {"source": first, "target": first}
    if work.kind == "fma":
        return {"x": first, "out": torch.zeros_like(first)}
    copied = {"source": first, "target": place.random(work.m, dtype=work.dtype)}
    if work.kind == "copy_kernel":
        return copied
    return copied | {"state": torch.zeros(STATE_WORDS, dtype=torch.int32, device=place.device)}


def _programs(place: Place) -> int:
    """Return workgroups that fill any device there is; each needs 16 warps."""
    import torch

    if place.device == "cpu":
        return 1
    return 4 * int(torch.cuda.get_device_properties(place.device).multi_processor_count)


def _settle(place: Place) -> None:
    import torch

    if place.device != "cpu":
        torch.cuda.synchronize(place.device)


def _compare(work: Work, found: Any, expected: Any, floor: float = 0.0) -> None:
    largest = max(float(expected.abs().max()), floor)
    error = float((found - expected).abs().max()) / largest if largest else float(found.abs().max())
    if not error <= TOLERANCE[work.dtype]:  # NaN fails, too
        raise WrongResultError(f"{work.name}: relative error {error:.2g}, more than {TOLERANCE[work.dtype]:g}")

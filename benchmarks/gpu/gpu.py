"""`GpuMachine`: one GPU that PyTorch drives, of NVIDIA or of AMD.

Members of a run have a stream each, of the priority they ask for, or on their partition. Streams are kept and used
again, first to first, so that a library's workspace on a stream is made once; a work is launched on its stream before
it is timed there. Buffers are kept too, up to an eighth of the memory, the longest unused going first.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

from benchmarks.gpu.contention import CROWDS
from benchmarks.gpu.gates import Queue, Timeline
from benchmarks.gpu.gpu_facts import facts_of, state_of
from benchmarks.gpu.held import Held, slots_of
from benchmarks.gpu.kernels import Bound, Place, Special, bind, sets_of
from benchmarks.gpu.partitions import PartitionError, found, split
from benchmarks.gpu.profile import described
from benchmarks.gpu.ptx_launches import Driver, probe
from benchmarks.gpu.residency_kernels import PtxKernels
from benchmarks.gpu.step import CUDA_FEATURES, Member
from benchmarks.gpu.work import Work, copied, moved, streamed

__all__ = ["GpuMachine", "TritonKernels"]

#: Read by CUDA when it starts: with fewer, streams share a hardware queue and wait for one another.
CONNECTIONS = ("CUDA_DEVICE_MAX_CONNECTIONS", "32")
SHARE_OF_MEMORY = 8
WARM_LAUNCHES = 2
#: PyTorch deals out 32 streams a priority by turns.
DRAWN_STREAMS = 24
#: On AMD there is a cache behind L2, of which PyTorch says nothing; inputs rotate past the largest (CDNA 3's).
INFINITY_CACHE_BYTES = 256 << 20
CHECKED_BYTES = 1 << 20


class TritonKernels:
    """The kernels of `benchmarks.gpu.triton_kernels`, on a device of so many compute units."""

    def __init__(self, units: int, vendor: str) -> None:
        from benchmarks.gpu import triton_kernels

        self._kernels, self._programs = triton_kernels, 4 * units
        self._hints = {"": ("", "", ""), "streaming": triton_kernels.HINTS[vendor]}

    def copy(self, source: Any, target: Any, blocks: int) -> None:
        """Copy a flat tensor by so many workgroups."""
        self._kernels.copy(source, target, blocks)

    def read(self, source: Any, sums: Any, hint: str) -> None:
        """Read a flat tensor, leaving partial sums."""
        self._kernels.read(source, sums, self._hints[hint])

    def update(self, values: Any, hint: str) -> None:
        """Replace every x by 1 - x."""
        self._kernels.update(values, self._programs, self._hints[hint])


class GpuMachine:
    """A GPU.

    Parameters
    ----------
    device : str
        As PyTorch writes it.
    without : frozenset of str
        Features that are not tried: one may leave a device in error, after which a process can do nothing with it.

    Raises
    ------
    ValueError
        PyTorch sees no such device.
    """

    def __init__(self, device: str = "cuda:0", without: frozenset[str] = frozenset()) -> None:
        os.environ.setdefault(*CONNECTIONS)
        import torch

        index = torch.device(device).index or 0
        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            raise ValueError(f"{device}: PyTorch {torch.__version__} sees no such GPU; --device cpu records a CPU")
        self.device = f"cuda:{index}"
        torch.cuda.set_device(index)
        torch.set_float32_matmul_precision("highest")
        self._torch = torch
        self._properties = torch.cuda.get_device_properties(index)
        self._missing = dict.fromkeys(sorted(without), "was not to be tried")
        self._special: Special | None = None
        self._known: PtxKernels | None = None
        self._held = Held(self._bound, self._properties.total_memory // SHARE_OF_MEMORY)
        self._checked: set[Work] = set()
        self._warm: set[tuple[Work, int, int]] = set()
        self._streams: dict[tuple[int, int], Any] = {}
        self._sharing = 0
        self._parts: dict[tuple[int, int], tuple[Any, Any]] = {}
        self._timeline = Timeline(torch.cuda)
        cache_bytes = getattr(self._properties, "L2_cache_size", 0)
        self._cache_bytes = max(cache_bytes, INFINITY_CACHE_BYTES) if torch.version.hip else cache_bytes

    @cached_property
    def features(self) -> frozenset[str]:
        """What was found to work, by trying it; `facts` says under `missing` what did not, and why."""
        tried = {"triton": self._try_triton, "pinned": self._try_pinned, "copy_engine": self._try_engine}
        tried["ptx"] = self._try_ptx
        working = {name for name, attempt in tried.items() if self._works(name, attempt)}
        least, greatest = self._torch.cuda.Stream.priority_range()
        if greatest < least:
            working.add("priorities")
        if self._splits:
            working.add("partitions")
        profiler = self._torch.profiler
        if "profiler" not in self._missing and profiler.ProfilerActivity.CUDA in profiler.supported_activities():
            working.add("profiler")
        working |= CUDA_FEATURES - ({"tensor_float"} if self._torch.version.hip else set())
        if "triton" in working:
            working.add("compiler")
        return frozenset(working)

    def facts(self) -> dict[str, Any]:
        """Return what PyTorch says of the device, what it can be split in, and which features are missing."""
        features = self.features
        self._draw_streams()
        return {
            **facts_of(self._torch, self._properties),
            "streams_that_wait_for_others": self._sharing,
            "features": sorted(features),
            "missing": dict(self._missing),
            "partitions": [list(units) for units in self._splits],
        }

    def state(self) -> dict[str, Any]:
        """Return clocks, temperature and power as they are now; empty where nobody says."""
        return state_of(self._torch, self._properties)

    def synchronize(self) -> None:
        """Wait for all that was launched; raises what went wrong on the device."""
        self._torch.cuda.synchronize()

    def release(self) -> None:
        """Give all buffers back."""
        self._held.clear()
        self._torch.cuda.empty_cache()

    def alone(self, member: Member, repetitions: int) -> list[int]:
        """Return how long a member's launches took, ns, each time."""
        return [end - start for ((start, end),) in self.together([member], repetitions)]

    def together(self, members: Sequence[Member], repetitions: int) -> list[list[tuple[int, int]]]:
        """Return (start, end) of every member, ns from the first start, each time; one run before is not counted."""
        slots = slots_of(members)
        bounds = self._held.of([(member.work, slot) for member, slot in zip(members, slots, strict=True)])
        streams = self._streams_of(members)
        for member, slot, bound, stream in zip(members, slots, bounds, streams, strict=True):
            self._warm_up((member.work, slot, stream.cuda_stream), bound, stream)
        queues = [
            Queue(stream, bound.launch, member.launches, member.lag_ns)
            for member, bound, stream in zip(members, bounds, streams, strict=True)
        ]
        return [self._timeline.run(queues) for _ in range(1 + repetitions)][1:]

    def residency_of(self, works: Sequence[Work]) -> list[dict[str, Any]]:
        """Return what a workgroup of each work of known residency holds, as the driver says."""
        return [self._known.described(work) if self._known and work.residency else {} for work in works]

    def kernels_of(self, works: Sequence[Work]) -> list[dict[str, Any]]:
        """Return `kernel`, `workgroups`, `workgroup_size` of each work, from one pass of PyTorch's profiler.

        Empty without a profiler. One that fails raises: the step fails and can be tried again, and what the works are
        is written down already.
        """
        if "profiler" not in self.features:
            return [{} for _ in works]
        from benchmarks.gpu.launches import launches  # it loads PyTorch, which is not to come before CONNECTIONS

        return [described(launch) for launch in launches(self.device, self._calls(works))]

    def _calls(self, works: Sequence[Work]) -> Iterator[Callable[[], object]]:
        """Yield what launches each work once more; nothing of it is new to the device when it is asked for."""
        for work in works:
            (bound,) = self._held.of([(work, 0)])
            bound.launch(0)
            self.synchronize()
            yield partial(bound.launch, 1)

    def _bound(self, work: Work) -> Bound:
        """Return buffers on the device, settled, and their call checked once a work."""
        sets = sets_of(work, self._cache_bytes)
        bound = bind(work, Place(self.device, sets, self._special, self._known))
        self.synchronize()
        if work not in self._checked:
            bound.check()
            self.synchronize()
            self._checked.add(work)
        return bound

    def _warm_up(self, key: tuple[Work, int, int], bound: Bound, stream: Any) -> None:
        if key in self._warm:
            return
        with self._torch.cuda.stream(stream):
            for turn in range(WARM_LAUNCHES):
                bound.launch(turn)
        self.synchronize()
        self._warm.add(key)

    def _streams_of(self, members: Sequence[Member]) -> list[Any]:
        parted = [member for member in members if member.units]
        if any(member.priority for member in parted):
            raise ValueError("a stream of a partition has no priority")
        parts = iter(self._parts_of(tuple(member.units for member in parted)))
        used: dict[int, int] = {}
        streams = []
        for member in members:
            if member.units:
                streams.append(next(parts))
                continue
            at = used[member.priority] = used.get(member.priority, -1) + 1
            streams.append(self._stream(member.priority, at))
        return streams

    def _stream(self, priority: int, at: int) -> Any:
        if (priority, at) not in self._streams:
            least, greatest = self._torch.cuda.Stream.priority_range()
            # PyTorch counts downwards: -1 is sooner than 0.
            clamped = max(min(-priority, least), greatest)
            self._streams[priority, at] = self._own(clamped)
        return self._streams[priority, at]

    def _draw_streams(self) -> None:
        """Draw the streams that a plan needs: they are few, and whether they are apart is among the facts."""
        if not self._streams:
            self._sharing = 0
        for at in range(max(CROWDS)):
            self._stream(0, at)
        if "priorities" in self.features:
            self._stream(1, 0)

    def _own(self, priority: int) -> Any:
        """Return a stream that runs beside all that were drawn before; if there is none, one that does not."""
        for _ in range(DRAWN_STREAMS):
            stream = self._torch.cuda.Stream(device=self.device, priority=priority)
            if all(
                stream.cuda_stream != other.cuda_stream and self._timeline.side_by_side(stream, other)
                for other in self._streams.values()
            ):
                return stream
        self._sharing += 1
        return stream

    def _parts_of(self, units: tuple[int, ...]) -> list[Any]:
        """Return streams on disjoint parts of so many compute units."""
        if not units:
            return []
        fitting = [parts for parts in self._splits if sorted(units) == sorted(parts) or len(units) == 1]
        for parts in fitting:
            if all(wanted in parts for wanted in units):
                streams = dict(zip(("first", "rest"), self._split(parts), strict=True))
                order = ("first", "rest") if units[0] == parts[0] else ("rest", "first")
                return [streams[name] for name in order[: len(units)]]
        raise ValueError(f"no partitions of {units} compute units; there are {self._splits}")

    def _split(self, parts: tuple[int, int]) -> tuple[Any, Any]:
        if parts not in self._parts:
            made = split(self.device, parts[0])
            if made.units != parts:
                raise ValueError(f"the device was to be split in {parts} compute units, and was in {made.units}")
            external = self._torch.cuda.ExternalStream
            first, rest = (external(raw, device=self.device) for raw in made.streams)
            self._parts[parts] = (first, rest)
        return self._parts[parts]

    @cached_property
    def _splits(self) -> list[tuple[int, int]]:
        if "partitions" in self._missing:
            return []
        try:
            return found(self.device)
        except PartitionError as error:
            self._missing["partitions"] = str(error)
            return []

    def _works(self, name: str, attempt: Any) -> bool:
        """Return whether an attempt ends well; why not goes to the facts. A device in error ends the recording."""
        if name in self._missing:
            return False
        try:
            attempt()
            self.synchronize()
            return True
        except Exception as error:  # noqa: BLE001  Compilers and drivers raise what they like.
            self._missing[name] = f"{type(error).__name__}: {error}"[:500]
        try:
            self.synchronize()
        except RuntimeError as error:
            raise ValueError(f"trying {name} left the device in error ({error}); run with --without {name}") from error
        return False

    def _try_triton(self) -> None:
        vendor = "hip" if self._torch.version.hip else "cuda"
        special = TritonKernels(self._properties.multi_processor_count, vendor)
        rows = CHECKED_BYTES // 4 - 3  # no multiple of anything, so that masks matter
        works = [copied(4 * rows, 4), *(streamed(kind, rows, hint=hint) for kind in ("read", "update")
                                        for hint in ("", "streaming"))]  # fmt: skip
        for work in works:
            bind(work, Place(self.device, 1, special)).check()
        self._special = special

    def _try_ptx(self) -> None:
        probe(self.device)
        self._known = PtxKernels(Driver())

    def _try_pinned(self) -> None:
        for direction in ("h2d", "d2h"):
            bind(moved("zero_copy", direction, CHECKED_BYTES, 4), Place(self.device, 1, self._special)).check()

    def _try_engine(self) -> None:
        for direction in ("h2d", "d2h", "d2d"):
            bind(moved("copy_engine", direction, CHECKED_BYTES), Place(self.device)).check()

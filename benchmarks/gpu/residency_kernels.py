"""Kernels of known residency: PTX of our own, with as many registers, threads and bytes of shared memory as is asked.

A kernel uses its registers: a loop keeps so many accumulators, or so many loads in flight, that a compiler can neither
drop nor spill them; ``.maxnreg`` bounds them above. Shared memory is dynamic, so the launch alone says how much. All
ask for the largest share of shared memory that a unit can be configured for (but those with the hint ``"l1"``): units
are configured anew only while nothing runs on them.

===============  ======================================================================================================
kind of work     kernel
===============  ======================================================================================================
``fma``          each thread multiplies its accumulators by `FACTOR` in each of `k` steps
``copy_kernel``  each workgroup copies chunks: one load of 16 bytes behind the other, then as many stores
``update``       the same loop, which replaces every x by 1 - x in place
``collective``   every workgroup waits until a flag in device memory is set, then copies
===============  ======================================================================================================

The first workgroup of a ``collective`` sets the flag `k` ns after it began, as a peer does that arrives late. None
waits longer than `LIMIT_NS`. The last one that goes on takes the flag back, for the next launch.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.gpu.occupancy import VECTOR_BYTES, Residency
from benchmarks.gpu.ptx_launches import LOCAL_BYTES, Driver, DriverError, Launch, marshal, parameters_of
from benchmarks.gpu.work import Work

__all__ = ["FACTOR", "LIMIT_NS", "STATE_WORDS", "PtxKernels", "launch_of", "scale", "text_of"]

#: Of an accumulator in each step. 4,096 steps leave 1/55 of it, and one step too few is found out.
FACTOR = 1 - 2.0**-10
#: Of the wait of a collective: a device must never hang.
LIMIT_NS = 5_000_000
#: Words of a collective's state: flag, workgroups that went on, and workgroups that waited for nothing in the end.
STATE_WORDS = 3
#: In % of what L1 and shared memory have together.
SHARED_CARVEOUT, L1_CARVEOUT = 100, 0
#: Clusters are an attribute of the launch, so the text is for older devices, too.
HEAD = ".version 7.0\n.target sm_75\n.address_size 64"
MOVED = "u64 source, u64 target, u64 bytes"
PARAMETERS = {"fma": "u64 x, u64 out, u32 steps, f32 factor, f32 term",
              "collective": f"{MOVED}, u64 state, u64 wait, u64 limit"}  # fmt: skip


def launch_of(work: Work) -> Launch:
    """Return the launch of a work of known residency.

    Buffers are called ``x`` and ``out``, or ``source`` and ``target``; a collective also has ``state``.
    """
    residency, text = _residency(work), text_of(work)
    arguments: Mapping[str, tuple[str | int | float, ...]] = {
        "fma": ("x", "out", work.k, FACTOR, 0.0),
        "collective": ("source", "target", work.bytes_read, "state", work.k, LIMIT_NS),
    }
    given = arguments.get(work.kind, ("source", "target", work.bytes_read))
    grid, block, shared_bytes = (work.blocks, 1, 1), (residency.threads, 1, 1), residency.shared_bytes
    carveout = L1_CARVEOUT if work.hint == "l1" else SHARED_CARVEOUT
    parameters = parameters_of(text, work.kind)
    return Launch(text, work.kind, grid, block, shared_bytes, given, parameters, residency.cluster, carveout)


def text_of(work: Work) -> str:
    """Return the PTX of a work of known residency."""
    residency = _residency(work)
    body = _multiplied(work.n) if work.kind == "fma" else _moved(work.kind, residency)
    parameters = ", ".join(f".param .{each}" for each in PARAMETERS.get(work.kind, MOVED).split(", "))
    begin = f".visible .entry {work.kind}({parameters}) .maxnreg {residency.registers}"
    return "\n".join(["", HEAD, begin, "{", *body, "ret;", "}", ""])


def scale(accumulator: int) -> float:
    """Return the factor of x that an accumulator begins with."""
    return 1 + accumulator / 256


def _residency(work: Work) -> Residency:
    if work.residency is None:
        raise ValueError(f"{work.name}: what its workgroups hold is not known")
    return work.residency


def _real(value: float) -> str:
    return f"0f{struct.unpack('=I', struct.pack('=f', value))[0]:08X}"


def _multiplied(count: int) -> Iterator[str]:
    yield f".reg .f32 %a<{count}>; .reg .f32 %f<3>; .reg .b32 %r<5>; .reg .b64 %d<3>; .reg .pred %p;"
    yield "ld.param.u64 %d0, [x]; ld.param.u64 %d1, [out]; ld.param.u32 %r0, [steps];"
    yield "ld.param.f32 %f0, [factor]; ld.param.f32 %f1, [term];"
    yield "cvta.to.global.u64 %d0, %d0; cvta.to.global.u64 %d1, %d1;"
    yield "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r1, %r2, %r3;"
    yield "mul.wide.u32 %d2, %r4, 4; add.u64 %d0, %d0, %d2; add.u64 %d1, %d1, %d2;"
    yield "ld.global.f32 %f2, [%d0];"
    yield from (f"mul.rn.f32 %a{at}, %f2, {_real(scale(at))};" for at in range(count))
    yield '.pragma "nounroll";'
    yield "STEP:"
    yield from (f"fma.rn.f32 %a{at}, %a{at}, %f0, %f1;" for at in range(count))
    yield "sub.u32 %r0, %r0, 1; setp.ne.u32 %p, %r0, 0;"
    yield "@%p bra STEP;"
    yield from (f"add.rn.f32 %a0, %a0, %a{at};" for at in range(1, count))
    yield "st.global.f32 [%d1], %a0;"


def _moved(kind: str, residency: Residency) -> Iterator[str]:
    """Yield a loop over chunks. A compiler keeps all loads before the stores, for they may be to the same memory."""
    loads, threads = residency.loads, residency.threads
    vectors = ["{" + ", ".join(f"%a{4 * at + part}" for part in range(4)) + "}" for at in range(loads)]
    offsets = range(0, residency.chunk_bytes, threads * VECTOR_BYTES)
    yield f".reg .f32 %a<{4 * loads}>; .reg .b32 %r<5>; .reg .b64 %d<9>; .reg .pred %p;"
    yield from _awaited() if kind == "collective" else ()
    yield "ld.param.u64 %d0, [source]; ld.param.u64 %d1, [target]; ld.param.u64 %d2, [bytes];"
    yield "cvta.to.global.u64 %d0, %d0; cvta.to.global.u64 %d1, %d1; add.u64 %d2, %d0, %d2;"
    yield "mov.u32 %r0, %ctaid.x; mov.u32 %r1, %nctaid.x; mov.u32 %r2, %tid.x;"
    yield f"mad.lo.u32 %r3, %r0, {loads * threads}, %r2; mul.wide.u32 %d3, %r3, {VECTOR_BYTES};"
    yield f"add.u64 %d0, %d0, %d3; add.u64 %d1, %d1, %d3; mul.wide.u32 %d4, %r1, {residency.chunk_bytes};"
    yield "setp.ge.u64 %p, %d0, %d2;"
    yield "@%p bra DONE;"
    yield '.pragma "nounroll";'
    yield "CHUNK:"
    yield from (f"ld.global.v4.f32 {vector}, [%d0+{at}];" for vector, at in zip(vectors, offsets, strict=True))
    if kind == "update":
        yield from (f"fma.rn.f32 %a{at}, %a{at}, {_real(-1)}, {_real(1)};" for at in range(4 * loads))
    yield from (f"st.global.v4.f32 [%d1+{at}], {vector};" for vector, at in zip(vectors, offsets, strict=True))
    yield "add.u64 %d0, %d0, %d4; add.u64 %d1, %d1, %d4; setp.lt.u64 %p, %d0, %d2;"
    yield "@%p bra CHUNK;"
    yield "DONE:"


def _awaited() -> Iterator[str]:
    """Yield the wait: one thread of a workgroup looks at the flag, the others stand at a barrier."""
    yield "ld.param.u64 %d0, [state]; ld.param.u64 %d1, [wait]; ld.param.u64 %d2, [limit];"
    yield "cvta.to.global.u64 %d0, %d0;"
    yield "mov.u32 %r0, %tid.x; setp.ne.u32 %p, %r0, 0;"
    yield "@%p bra ARRIVED;"
    yield "mov.u64 %d3, %globaltimer; mov.u32 %r1, %ctaid.x; setp.ne.u32 %p, %r1, 0;"
    yield "@%p bra LOOK;"
    yield "PEER:"
    yield "mov.u64 %d4, %globaltimer; sub.u64 %d5, %d4, %d3; setp.lt.u64 %p, %d5, %d1;"
    yield "@%p bra PEER;"
    yield "st.volatile.global.u32 [%d0], 1;"
    yield "LOOK:"
    yield "ld.volatile.global.u32 %r2, [%d0]; setp.ne.u32 %p, %r2, 0;"
    yield "@%p bra SEEN;"
    yield "mov.u64 %d4, %globaltimer; sub.u64 %d5, %d4, %d3; setp.lt.u64 %p, %d5, %d2;"
    yield "@%p bra LOOK;"
    yield "red.global.add.u32 [%d0+8], 1;"
    yield "SEEN:"
    yield "mov.u32 %r3, %nctaid.x; sub.u32 %r3, %r3, 1;"
    yield "atom.global.inc.u32 %r4, [%d0+4], %r3; setp.ne.u32 %p, %r4, %r3;"
    yield "@%p bra ARRIVED;"
    yield "st.volatile.global.u32 [%d0], 0;"
    yield "ARRIVED:"
    yield "bar.sync 0;"


class PtxKernels:
    """Launches of kernels of known residency on a GPU of NVIDIA, through its driver.

    Parameters
    ----------
    driver : Driver
        Its context is that of PyTorch.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._functions: dict[Work, Any] = {}

    def launcher(self, work: Work, tensors: Mapping[str, Any]) -> Callable[[], object]:
        """Return what launches a work on tensors, by the names of `launch_of`, on PyTorch's current stream."""
        import torch

        launch, addresses = launch_of(work), {name: tensor.data_ptr() for name, tensor in tensors.items()}
        run = self._driver.prepared(self._function(work, launch), launch, marshal(launch, addresses))
        return lambda: run(torch.cuda.current_stream().cuda_stream)

    def described(self, work: Work) -> dict[str, int]:
        """Return what a workgroup holds and how many a unit does, as the driver says: columns of the table `works`."""
        launch = launch_of(work)
        return self._driver.residency(self._function(work, launch), launch)

    def _function(self, work: Work, launch: Launch) -> Any:
        """Return the kernel of a work, compiled once: what one launch may use is kept by its kernel."""
        if work not in self._functions:
            function = self._driver.function(self._driver.load(launch.ptx), launch)
            if spilled := self._driver.attribute(function, LOCAL_BYTES):
                raise DriverError(f"{work.name}: {spilled} bytes a thread do not fit into its registers")
            self._functions[work] = function
        return self._functions[work]

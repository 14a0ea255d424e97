"""What a workgroup of a work does: tiles or chunks, phase by phase, and what it holds of its SM meanwhile."""

import math
from dataclasses import dataclass, replace

from benchmarks.gpu.virtual.device import VirtualDevice
from benchmarks.gpu.work import DTYPE_BYTES, Work

__all__ = ["Program", "program"]

_KIB = 2**10
#: Bytes that a warp loads with one instruction of 16 bytes a thread.
_WARP_BYTES = 512
#: Instructions of a warp for as many bytes of the first operand; of a softmax, with its exponentials. Chosen.
_INSTRUCTIONS = {"copy_kernel": 8, "zero_copy": 8, "read": 6, "update": 10, "elementwise": 12, "softmax": 60}
#: Threads of a workgroup (of elementwise: PyTorch's; else chosen), and bytes that a thread has under way (chosen).
_STREAMED = {
    "copy_kernel": (512, 64),
    "zero_copy": (512, 32),
    "read": (256, 32),
    "update": (256, 32),
    "elementwise": (128, 32),
    "softmax": (256, 32),
}
#: Threads that are simulated as one workgroup, of kernels whose workgroups are smaller: several side by side.
_SIDE_BY_SIDE = 512
#: Bytes across the host link that a workgroup has under way. Chosen.
_HOST_UNDER_WAY = 8 * _KIB
#: Sizes of a tile, threads, registers a thread, bytes of a stage times stages, and the share of an SM's
#: peak that one workgroup reaches where nothing holds it up (chosen).
_TILES = {
    "bf16": (
        (128, 256, 384, 168, 4, 0.85),
        (128, 128, 256, 128, 4, 0.74),
        (64, 128, 128, 128, 4, 0.62),
        (64, 64, 128, 96, 4, 0.45),
    ),
    "fp32": ((128, 128, 256, 122, 4, 0.82), (128, 64, 128, 122, 4, 0.76), (32, 64, 128, 80, 4, 0.5)),
}
#: Elements of k in a stage, and in a phase of the simulation at least; phases of a launch at most.
_STAGE_K = {"bf16": 64, "fp32": 16}
_PHASE_K = {"bf16": 128, "fp32": 64}
_PHASES = 80_000
#: Chunks of an operand at most.
_CHUNKS = 200_000
#: Share of the peak that an SM reaches however many workgroups it has. Chosen.
_REACHED = 0.9


@dataclass(frozen=True)
class Program:
    """What the workgroups of one launch do.

    Parameters
    ----------
    blocks, phases : int
        Workgroups as simulated (of a kernel with very many small ones, several that are neighbours are one), and the
        phases of each.
    workgroups, workgroup_size : int
        As launched.
    threads, shared, registers : int
        What a workgroup as simulated holds of its SM; bytes, where it is shared memory.
    tiles : tuple of int
        Rows and columns of tiles of a product; else empty.
    loads : tuple of int
        Bytes of the operands that are loaded in every phase.
    added : int
        Bytes that the last phase loads beside, of a product that adds to its result.
    stores : int
        Bytes that every phase stores; of a product, the last phase alone.
    reads_host, writes_host : int
        Bytes in every phase.
    math_ns, least_ns, issue_ns : float
        Of every phase, at full clock: what it takes of the SM's arithmetic; how long one workgroup needs for it, that
        waits for its own results now and then (others can compute meanwhile); and what it takes of the issue slots.
    tensor : bool
        Whether the arithmetic is that of tensor units.
    under_way : int
        Bytes that a workgroup has requested at one time.
    keeps : bool
        Whether what it touches goes into the cache.
    in_place : bool
        Whether it stores where it loaded.
    kernel : str
        As a profiler writes it.
    """

    blocks: int
    phases: int
    workgroups: int
    workgroup_size: int
    threads: int
    shared: int
    registers: int
    kernel: str
    tiles: tuple[int, int] | tuple[()] = ()
    loads: tuple[int, ...] = ()
    added: int = 0
    stores: int = 0
    reads_host: int = 0
    writes_host: int = 0
    math_ns: float = 0.0
    least_ns: float = 0.0
    issue_ns: float = 0.0
    tensor: bool = False
    under_way: int = 1
    keeps: bool = True
    in_place: bool = False


def program(work: Work, device: VirtualDevice) -> Program:
    """Return what a kernel does on a device.

    Raises
    ------
    ValueError
        The work is no kernel.
    """
    if work.kind == "gemm":
        return _product(work, device)
    if work.kind not in _STREAMED:
        raise ValueError(f"{work.name}: a {work.kind} is no kernel")
    return _stream(work, device)


def _product(work: Work, device: VirtualDevice) -> Program:
    size = DTYPE_BYTES[work.dtype]
    rows, columns, threads, registers, stages, efficiency = _tile(work, device)
    tiles = (math.ceil(work.m / rows), math.ceil(work.n / columns))
    blocks = tiles[0] * tiles[1]
    phases = max(1, min(math.ceil(work.k / _PHASE_K[work.dtype]), max(_PHASES // blocks, 4)))
    depth = work.k / phases
    tensor = work.dtype == "bf16"
    peak = device.clock_ghz * (device.tensor_per_clock if tensor else device.simd_per_clock)
    math_ns = 2.0 * rows * columns * depth / (peak * _REACHED)
    stored = size * min(rows, work.m) * min(columns, work.n)
    stage = size * (rows + columns) * _STAGE_K[work.dtype]
    layers = "tn_n_tilesize" if tensor else "nn_tilesize"
    arithmetic = "bf16bf16_bf16f32" if tensor else "f32f32_f32f32"
    return Program(
        blocks=blocks,
        phases=phases,
        workgroups=blocks,
        workgroup_size=threads,
        threads=threads,
        shared=stages * stage,
        registers=threads * registers,
        kernel=f"sm90_xmma_gemm_{arithmetic}_{layers}{rows}x{columns}x{_STAGE_K[work.dtype]}",
        tiles=tiles,
        loads=(round(size * min(rows, work.m) * depth), round(size * min(columns, work.n) * depth)),
        added=stored if work.hint == "accumulate" else 0,
        stores=stored,
        math_ns=math_ns,
        least_ns=math_ns * _REACHED / efficiency,
        issue_ns=math_ns * (0.3 if tensor else 0.85),
        tensor=tensor,
        under_way=(stages - 1) * stage,
    )


def _tile(work: Work, device: VirtualDevice) -> tuple[int, int, int, int, int, float]:
    """Return the tile whose waves end first; of equals the largest."""

    def waves_time(tile: tuple[int, int, int, int, int, float]) -> float:
        rows, columns, _, _, _, efficiency = tile
        tiles = math.ceil(work.m / rows) * math.ceil(work.n / columns)
        return math.ceil(tiles / device.sms) * rows * columns / efficiency

    return min(_TILES[work.dtype], key=waves_time)


def _stream(work: Work, device: VirtualDevice) -> Program:
    size, each = _STREAMED[work.kind]
    threads = size if work.blocks else max(size, _SIDE_BY_SIDE)
    operands = 2 if work.kind == "elementwise" else 1
    array = max(work.bytes_written if work.kind == "zero_copy" else 0, work.bytes_read // operands, work.host_bytes)
    chunks = math.ceil(max(array, 1) / _chunk(array, threads * each // operands))
    at_once = device.sms * min(device.threads // threads, device.slots)
    phases = max(1, min(chunks // (8 * at_once), 4))
    blocks = min(work.blocks, chunks) if work.blocks else math.ceil(chunks / phases)
    phases = math.ceil(chunks / blocks)
    part = math.ceil(array / (blocks * phases))
    issued = _INSTRUCTIONS[work.kind] * part / _WARP_BYTES / (device.clock_ghz * device.issue_per_clock)
    one = Program(
        blocks=blocks,
        phases=phases,
        workgroups=work.blocks or max(math.ceil(array / _per_workgroup(work)), 1),
        workgroup_size=size,
        threads=threads,
        shared=0,
        registers=threads * 32,
        kernel=_name(work),
        loads=(part,) * operands if work.bytes_read else (),
        stores=part if work.bytes_written else 0,
        issue_ns=issued,
        under_way=threads * each,
        keeps=work.hint != "streaming",
        in_place=work.kind == "update",
    )
    if not work.host_bytes:
        return one
    return replace(one, **{"reads_host" if work.direction == "h2d" else "writes_host": part})


def _chunk(array: int, under_way: int) -> int:
    """Return the bytes of an operand that one phase moves: what is under way at one time, or more of a large array."""
    size = under_way
    while array > size * _CHUNKS:
        size *= 2
    return size


def _per_workgroup(work: Work) -> int:
    """Return the bytes of an operand that one workgroup goes through where the kernel chooses their number."""
    if work.kind == "softmax":
        return work.n * DTYPE_BYTES[work.dtype]
    return 4 * _KIB if work.kind == "elementwise" else 32 * _KIB


def _name(work: Work) -> str:
    kind = {"fp32": "float", "bf16": "c10::BFloat16"}[work.dtype]
    return {
        "copy_kernel": "_copy_kernel",
        "zero_copy": "_zero_copy_kernel",
        "read": f"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<{kind}, sum_functor>>",
        "update": f"void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<{kind}, MulFunctor>>",
        "elementwise": f"void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<{kind}>>",
        "softmax": f"void (anonymous namespace)::cunn_SoftMaxForward<4, {kind}, float, {kind}>",
    }[work.kind]

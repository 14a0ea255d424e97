"""`Size`: how much of the plan is recorded, and with which numbers."""

from dataclasses import dataclass

__all__ = ["SIZES", "Size"]

MIB = 1 << 20
Product = tuple[int, int, int, str]


@dataclass(frozen=True)
class Size:
    """Numbers of a plan.

    Parameters
    ----------
    repetitions : int
        Of everything that is timed.
    target_ns : int
        How long either side of a scenario is to take alone.
    products : tuple
        (m, n, k, dtype) of the products that meet everything else.
    crowds : tuple
        Products of which several run at once.
    split_products : tuple
        Products that are cut.
    blocks : tuple of int
        Workgroups of copies; the number of compute units is added.
    copy_bytes, link_bytes : int
        Of a copy within the device, and of one to or from the host.
    rows, columns : int
        Of an elementwise kernel and a softmax.
    pieces : tuple of int
        In how many a product is cut.
    command_bytes : tuple of int
        Sizes of copy commands.
    cache_steps : tuple of float
        Working sets, of the L2's size.
    known_shapes : tuple of (str, int)
        Kernels of known residency: by which limit of a compute unit, and how many fit on one.
    known_copies : tuple of int
        Workgroups of copies beside them.
    known_bytes : int
        That a workgroup of such a copy copies.
    wave_ns : int
        How long the workgroups that fit on a device are to compute, by a guess.
    cache_bytes : int
        What stands for the L2's size where nobody knows it; and its upper bound.
    """

    repetitions: int
    target_ns: int
    products: tuple[Product, ...]
    crowds: tuple[Product, ...]
    split_products: tuple[Product, ...]
    blocks: tuple[int, ...]
    copy_bytes: int
    link_bytes: int
    rows: int
    columns: int
    pieces: tuple[int, ...]
    command_bytes: tuple[int, ...]
    cache_steps: tuple[float, ...]
    cache_bytes: int
    known_shapes: tuple[tuple[str, int], ...]
    known_copies: tuple[int, ...]
    known_bytes: int
    wave_ns: int


SIZES = {
    "full": Size(
        repetitions=7,
        target_ns=2_000_000,
        products=(
            (8192, 8192, 8192, "bf16"), (4096, 4096, 4096, "bf16"), (2048, 2048, 2048, "bf16"),
            (1024, 1024, 4096, "bf16"), (8192, 8192, 1024, "bf16"), (16384, 1024, 4096, "bf16"),
            (16, 8192, 8192, "bf16"), (64, 16384, 4096, "bf16"), (256, 8192, 8192, "bf16"),
            (2048, 2048, 2048, "fp32"), (4096, 4096, 1024, "fp32"), (16, 8192, 4096, "fp32"),
        ),
        crowds=(
            (1024, 1024, 1024, "bf16"), (2048, 2048, 2048, "bf16"), (4096, 4096, 1024, "bf16"),
            (16, 8192, 8192, "bf16"), (1024, 1024, 1024, "fp32"),
        ),
        split_products=((4096, 4096, 4096, "bf16"), (8192, 8192, 2048, "bf16"), (256, 8192, 8192, "bf16")),
        blocks=(4, 8, 16, 32, 64),
        copy_bytes=64 * MIB,
        link_bytes=16 * MIB,
        rows=8192,
        columns=4096,
        pieces=(2, 4, 8, 16),
        command_bytes=tuple(1024 * 4**power for power in range(10)),
        cache_steps=(0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0),
        cache_bytes=256 * MIB,
        known_shapes=(
            ("shared", 1), ("shared", 2), ("shared", 3), ("shared", 4), ("registers", 1), ("registers", 2),
            ("registers", 3), ("registers", 4), ("threads", 2), ("threads", 3), ("threads", 4),
        ),
        known_copies=(1, 2, 4, 8, 16, 32, 64),
        known_bytes=MIB,
        wave_ns=20_000,
    ),
    "cpu": Size(
        repetitions=5,
        target_ns=8_000_000,
        products=(
            (512, 512, 512, "fp32"), (1024, 1024, 256, "fp32"), (256, 1024, 1024, "fp32"),
            (8, 2048, 2048, "fp32"), (1, 4096, 2048, "fp32"), (512, 512, 512, "bf16"),
        ),
        crowds=((256, 256, 256, "fp32"), (8, 2048, 1024, "fp32")),
        split_products=((512, 512, 512, "fp32"), (1024, 512, 256, "fp32")),
        blocks=(1, 4, 16),
        copy_bytes=8 * MIB,
        link_bytes=4 * MIB,
        rows=512,
        columns=2048,
        pieces=(2, 4, 8),
        command_bytes=tuple(1024 * 4**power for power in range(8)),
        cache_steps=(0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
        cache_bytes=8 * MIB,
        known_shapes=(("shared", 1), ("shared", 2), ("registers", 3), ("threads", 4)),
        known_copies=(1, 4, 16),
        known_bytes=MIB // 4,
        wave_ns=2_000,
    ),
    "tiny": Size(
        repetitions=2,
        target_ns=200_000,
        products=((64, 64, 64, "fp32"), (4, 256, 128, "fp32")),
        crowds=((64, 64, 64, "fp32"),),
        split_products=((64, 64, 64, "fp32"),),
        blocks=(2,),
        copy_bytes=MIB // 4,
        link_bytes=MIB // 4,
        rows=64,
        columns=256,
        pieces=(2,),
        command_bytes=(1024, 65536),
        cache_steps=(0.5, 2.0),
        cache_bytes=MIB,
        known_shapes=(("shared", 1), ("registers", 2)),
        known_copies=(2,),
        known_bytes=MIB // 16,
        wave_ns=200,
    ),
}  # fmt: skip

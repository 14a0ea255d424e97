"""Compile the Triton kernels of this file to PTX for the kernel simulator; no GPU is needed.

    pip install triton
    python benchmarks/detailed/triton_sources.py datasets/ptx/triton

writes one `NAME.ptx` for each entry of `KERNELS`. It prints the launch of each: entry, threads of a block, dynamic
shared bytes and parameters. `--capability 90` compiles for compute capability 9.0 instead of 8.0. There, a product uses
`wgmma`, an instruction that the simulator does not execute.
"""

import argparse
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Read by Triton on import: without it, the PTX names this file with its full path.
os.environ["TRITON_DISABLE_LINE_INFO"] = "1"

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

WARP_SIZE = 32
#: Pointers and sizes are multiples of this number, as those of most PyTorch tensors are. So loads are of 16 bytes.
DIVISIBILITY = 16


@triton.jit
def softmax(y, x, columns, BLOCK: tl.constexpr):
    """Write the softmax of each row of `x` to `y`; a program takes one row of at most BLOCK columns."""
    offsets = tl.arange(0, BLOCK)
    inside = offsets < columns
    row = tl.program_id(0) * columns
    values = tl.load(x + row + offsets, mask=inside, other=float("-inf"))
    exponentials = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row + offsets, exponentials / tl.sum(exponentials, axis=0), mask=inside)


@triton.jit
def matmul(a, b, c, m, n, k, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    """Write the product of the (m, k) matrix `a` and the (k, n) matrix `b` to `c`, all row-major.

    Program (i, j) computes a tile of ROWS by COLUMNS at row i and column j of tiles. Sums are fp32.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, k, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        left_inside = (rows[:, None] < m) & (depth[None, :] < k)
        right_inside = (depth[:, None] < k) & (columns[None, :] < n)
        left = tl.load(a + rows[:, None] * k + depth[None, :], mask=left_inside, other=0.0)
        right = tl.load(b + depth[:, None] * n + columns[None, :], mask=right_inside, other=0.0)
        total = tl.dot(left, right, total)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class Kernel:
    """A function of this file, with the types and sizes to compile it for.

    Parameters
    ----------
    function : triton.JITFunction
    signature : mapping of str to str
        Type of each launch argument, in Triton's notation.
    sizes : mapping of str to int
        Values of the arguments that are fixed at compilation.
    warps : int
        Warps of a block.
    stages : int
        Stages of the pipelined loop. Triton keeps one buffer less than stages before compute capability 9.0.
    """

    function: triton.JITFunction
    signature: Mapping[str, str]
    sizes: Mapping[str, int]
    warps: int = 4
    stages: int = 3


#: Pointers that Triton adds behind the arguments of the source. A kernel that uses no scratch memory is given 0.
SCRATCH = ["u64 global_scratch", "u64 profile_scratch"]
TILE = {"ROWS": 64, "COLUMNS": 64, "DEPTH": 32}
EXTENTS = {"m": "i32", "n": "i32", "k": "i32"}
KERNELS = {
    "softmax": Kernel(softmax, {"y": "*fp32", "x": "*fp32", "columns": "i32"}, {"BLOCK": 256}),
    "matmul_fp16": Kernel(matmul, {"a": "*fp16", "b": "*fp16", "c": "*fp32", **EXTENTS}, TILE),
    "matmul_bf16": Kernel(matmul, {"a": "*bf16", "b": "*bf16", "c": "*bf16", **EXTENTS}, TILE),
}


def compile_kernel(kernel: Kernel, capability: int) -> triton.compiler.CompiledKernel:
    """Return Triton's result for a kernel and a compute capability, such as 80."""
    source = ASTSource(
        fn=kernel.function,
        signature={**kernel.signature, **dict.fromkeys(kernel.sizes, "constexpr")},
        constexprs=dict(kernel.sizes),
        attrs={(at,): [["tt.divisibility", DIVISIBILITY]] for at in range(len(kernel.signature))},
    )
    options = {"num_warps": kernel.warps, "num_stages": kernel.stages, "enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget("cuda", capability, WARP_SIZE), options=options)


def describe_launch(kernel: Kernel, metadata: object, ptx: str) -> str:
    """Return the launch geometry and the parameter list of a compiled kernel as text."""
    arguments = [f"{kind} {name}" for name, kind in kernel.signature.items()]
    parameters = len(re.findall(rf"\.param .*\b{metadata.name}_param_\d+", ptx))
    hidden = SCRATCH[: parameters - len(arguments)]
    threads = metadata.num_warps * WARP_SIZE
    return (
        f"entry {metadata.name}, block [{threads}, 1, 1], shared_bytes {metadata.shared}, "
        f"parameters: {', '.join(arguments + hidden)}"
    )


def main() -> None:
    """Compile every kernel into a folder, and print how each is launched."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder to write the PTX into; made if absent")
    parser.add_argument("--capability", type=int, default=80, help="compute capability times ten (default 80)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, kernel in KERNELS.items():
        result = compile_kernel(kernel, options.capability)
        header = f"// Compiled from triton_sources.py by Triton {triton.__version__} for sm_{options.capability}.\n"
        (options.folder / f"{name}.ptx").write_text(header + result.asm["ptx"])
        print(f"{name}.ptx: {describe_launch(kernel, result.metadata, result.asm['ptx'])}")


if __name__ == "__main__":
    main()

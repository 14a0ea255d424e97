"""Kernels executed instruction by instruction: PTX read, checked, and run without a GPU.

Read in this order: `ptx` (the file), `lowering` (an entry as arrays), `lanes` (arithmetic), `execution` (warps and
blocks), and `launch` (buffers, parameters, grids).
"""

from replay.detailed.arguments import Structure, Texture
from replay.detailed.launch import CallResult, KernelLaunch, KernelOutputs, LaunchPlan, read_module, run_kernel
from replay.detailed.lowering import lower
from replay.detailed.program import Program
from replay.detailed.ptx import Entry, Instruction, Module, Variable, parse_ptx

__all__ = [
    "CallResult",
    "Entry",
    "Instruction",
    "KernelLaunch",
    "KernelOutputs",
    "LaunchPlan",
    "Module",
    "Program",
    "Structure",
    "Texture",
    "Variable",
    "lower",
    "parse_ptx",
    "read_module",
    "run_kernel",
]

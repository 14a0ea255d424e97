"""A PTX entry as flat arrays: an instruction a row, registers by number. The columns, and what stands in them."""

from collections.abc import Mapping
from dataclasses import dataclass

from profilers.trace.arrays import Ints
from replay.detailed.ptx import Entry, Module

#: Kinds of instructions.
(
    INT, F32, F64, HALF, SETP_INT, SETP_F32, SETP_F64, SETP_HALF, SELECT, CONVERT, LOAD, STORE, BRANCH, EXIT, BARRIER,
    SHUFFLE, VOTE, ATOMIC, PACK, UNPACK, LDMATRIX, COPY, NOTHING, MASK,
    FRAGMENT_LOAD, FRAGMENT_STORE, PRODUCT, TEXTURE, TRAP, CARRY,
    REDUCED, GROUP_PRODUCT, STMATRIX,
) = range(33)  # fmt: skip
#: Columns of `Program.code`. VECTOR is the position of the first register of a vector in `Program.lists`. The first
#: instruction of a basic block has the block's number in LEADER, and the count of its memory accesses in MEMORIES; SLOT
#: numbers these accesses.
(
    KIND, OP, BITS, SIGNED, D, A, B, C, E, GUARD, NEGATED, TARGET, JOIN, OFFSET, COUNT, SPACE, FROM, TO, HOW, SATURATE,
    D2, VECTOR, LEADER, SLOT, MEMORIES, LINE,
) = range(26)  # fmt: skip
#: State spaces. GENERIC addresses name any of them; parameters and constants lie in global memory.
GLOBAL, SHARED, LOCAL, GENERIC, PARAMETER, CONSTANT = range(6)
#: Kinds of number in conversions.
WHOLE, FP16, BF16, FP32, FP64, TF32, E4M3, E5M2 = range(8)
#: Roundings of conversions; AWAY is to nearest, ties away from zero.
NEAREST, ZERO, DOWN, UP, AWAY = range(5)
#: First generic address of shared and of local memory, and of global memory.
SHARED_WINDOW, LOCAL_WINDOW, GLOBAL_BASE = 1 << 44, 1 << 45, 1 << 32
#: Handle of the first texture of a launch.
TEXTURE_BASE = 1 << 48
#: Operations of ATOMIC beyond those of `lanes`.
EXCHANGE, COMPARE, INCREMENT, DECREMENT = range(100, 104)
#: Operations of VOTE. REDUCE has an operation of `lanes` in HOW.
VOTE_ALL, VOTE_ANY, VOTE_UNI, VOTE_BALLOT, MATCH_ANY, MATCH_ALL, REDUCE, ELECT = range(8)
#: Operations of BARRIER, and of REDUCED, which gives what a barrier counted.
PLAIN_BARRIER, COUNT_TRUE, ALL_TRUE, ANY_TRUE = range(4)
#: Operation of MASK that gives the instructions of warps until now, for a clock. Without one, it gives active lanes.
COUNT_INSTRUCTIONS = 1
#: Special registers by number; the compiled code sets them when a block begins.
SPECIAL = (
    "%tid.x", "%tid.y", "%tid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%ntid.x", "%ntid.y", "%ntid.z",
    "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid", "%warpid", "%nwarpid", "%smid", "%lanemask_lt", "%lanemask_le",
    "%lanemask_eq", "%lanemask_ge", "%lanemask_gt", "%clock", "%clock64", "%globaltimer",
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """An entry as arrays.

    Parameters
    ----------
    module, entry : Module, Entry
        What it was lowered from.
    code : array of int64, shape (n, 26)
        Instructions; columns as in this module.
    lists : array of int64
        Registers of vectors.
    registers : int
        Registers of a thread, constants and special registers included.
    constants : array of int64, shape (m, 2)
        Registers that hold a constant, and its bits.
    special : array of int64, shape (k, 2)
        Registers that hold a special register, and its number in `SPECIAL`.
    shared_bytes, local_bytes, parameter_bytes : int
        Static shared memory of a block, local memory of a thread, and parameters.
    parameter_offset : tuple of int
        Offset of each parameter.
    variable_offsets, shared_offsets : mapping of str to int
        Offset of each variable in global and constant memory, and of each in shared memory.
    unset : tuple of str
        Variables in constant memory that the code uses and that the file gives no content.
    widths : tuple of int
        32-bit registers of the machine that each register takes; 0 for predicates and constants.
    """

    module: Module
    entry: Entry
    code: Ints
    lists: Ints
    registers: int
    constants: Ints
    special: Ints
    shared_bytes: int
    local_bytes: int
    parameter_bytes: int
    parameter_offset: tuple[int, ...]
    variable_offsets: Mapping[str, int]
    shared_offsets: Mapping[str, int]
    unset: tuple[str, ...]
    widths: tuple[int, ...]

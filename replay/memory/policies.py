"""Cache policies as data: which accesses a cache keeps, and what it does when it cannot.

`load_policies` reads `datasets/cache_policies.toml` and a user's file of the same layout.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class CachePolicy:
    """What the caches of a device keep.

    Parameters
    ----------
    name : str
        Name, such as ``"CacheRW"``.
    loads : bool
        Whether loads are kept in L1 and L2; otherwise they bypass both.
    stores : bool
        Whether stores are combined in the L2, and written back on eviction or at the end of the kernel; otherwise they
        go to memory at once.
    allocation_bypass : bool
        Whether an access bypasses a cache in whose set all ways wait for memory; otherwise it stalls (AB).
    rinse : bool
        Whether the eviction of a dirty line also writes back the dirty lines of the same DRAM row (CR).
    operand_bypass : bool
        Whether loads and stores of an instruction without reuse bypass the L2 (PCby).
    adaptive : bool
        Whether a kernel measures the choices of loads and stores on a few sets, and the rest follows the best.
    about : str
        One sentence, with the source.
    """

    name: str
    loads: bool
    stores: bool
    allocation_bypass: bool = False
    rinse: bool = False
    operand_bypass: bool = False
    adaptive: bool = False
    about: str = ""

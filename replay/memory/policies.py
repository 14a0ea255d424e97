"""Cache policies as data: which accesses a cache keeps, and what it does when it cannot.

`load_policies` reads `datasets/cache_policies.toml` and a user's file of the same layout.
"""

import difflib
from os import PathLike
from pathlib import Path

import msgspec

from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import dataset_path, read_toml, typed_table


class CachePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the caches of a device keep: a row of `datasets/cache_policies.toml`.

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
    waits_at_end : bool
        Whether a kernel ends when its dirty lines are written back; otherwise they go to memory beside later kernels.
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
    waits_at_end: bool = True
    about: str = ""


def load_policies(path: str | PathLike[str] | None = None) -> dict[str, CachePolicy]:
    """Return the shipped policies, and those of a user's file, which go before shipped ones of the same name.

    Parameters
    ----------
    path : str or path, optional
        TOML file: a list ``policies`` of tables with the keys of `CachePolicy`.

    Raises
    ------
    NotFoundError
        The file is missing.
    InvalidInputError
        The file is no TOML, or a policy lacks a key, has an unknown one, or has the name of another of the file.

    Examples
    --------
    >>> list(load_policies())[:3]
    ['Device', 'Uncached', 'CacheR']
    """
    shipped = _read(dataset_path("cache_policies.toml"))
    return shipped if path is None else shipped | _read(Path(path))


def find_policy(name: str, path: str | PathLike[str] | None = None) -> CachePolicy:
    """Return the policy of a name; case does not matter.

    Parameters
    ----------
    name : str
        Name of a policy.
    path : str or path, optional
        A user's file of policies, as of `load_policies`.

    Raises
    ------
    NotFoundError
        There is no such policy, the message gives the nearest; or no such file.
    InvalidInputError
        As of `load_policies`.

    Examples
    --------
    >>> find_policy("cacherw-ab").allocation_bypass
    True
    """
    policies = load_policies(path)
    by_case = {policy.casefold(): policy for policy in policies}
    if name in policies or name.casefold() in by_case:
        return policies.get(name) or policies[by_case[name.casefold()]]
    near = difflib.get_close_matches(name.casefold(), list(by_case), 3, 0.4)
    listed = ", ".join(by_case[key] for key in near) or ", ".join(policies)
    raise NotFoundError(f"no cache policy is called {name[:60]!r}; nearest: {listed}; others can be given in a file")


def _read(path: Path) -> dict[str, CachePolicy]:
    """Return the policies of a file by name."""
    content = read_toml(path, "cache policies")
    rows = content.get("policies")
    if set(content) != {"policies"} or not isinstance(rows, list) or not rows:
        raise InvalidInputError(f"{path}: a file of cache policies holds a list 'policies', and nothing else")
    policies: dict[str, CachePolicy] = {}
    for number, row in enumerate(rows, 1):
        table = typed_table(row, CachePolicy, f"{path}: policy {number}")
        if table.name in policies:
            raise InvalidInputError(f"{path}: policy {number} is called {table.name!r}, as is one before it")
        policies[table.name] = table
    return policies

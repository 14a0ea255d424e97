"""`described`: what a profiler says of a launch, as columns of the table `works`."""

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["described"]


def described(launch: Mapping[str, Any]) -> dict[str, Any]:
    """Return name, workgroups and workgroup size of what `launches` found; of a copy, which has no grid, its name.

    Examples
    --------
    >>> described({"name": "gemm", "grid": [4, 2, 1], "block": [128, 1, 1]})
    {'kernel': 'gemm', 'workgroups': 8, 'workgroup_size': 128}
    >>> described({})
    {}
    """
    if "name" not in launch:
        return {}
    sizes = {"workgroups": launch.get("grid"), "workgroup_size": launch.get("block")}
    return {
        "kernel": str(launch["name"])[:500],
        **{key: math.prod(int(side) for side in size) for key, size in sizes.items() if size is not None},
    }

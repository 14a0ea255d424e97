"""Compile a function with numba, keeping the machine code on disk where there is a place for it."""

from collections.abc import Callable
from typing import Any

import numba

__all__ = ["compiled", "inlined"]


def compiled(function: Callable[..., Any]) -> Any:
    """Return `function` compiled at its first call.

    The code is cached beside the module, or in the user's cache directory where the module's is read-only
    (``NUMBA_CACHE_DIR`` names another). Where neither can be written, it is compiled in every process.

    Examples
    --------
    >>> exec("def twice(x):\\n    return 2 * x")  # no file, so nowhere to cache
    >>> compiled(twice)(21)
    42
    """
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:
        return numba.njit(nogil=True, error_model="numpy")(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Return `function` compiled into each of its callers, which are `compiled` themselves."""
    return numba.njit(inline="always", error_model="numpy")(function)

"""Keep what long reads hold small: memory that is free goes back to the system."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa

__all__ = ["give_back", "lean_memory"]


@contextmanager
def lean_memory() -> Iterator[None]:
    """Let Arrow take its memory from the system's allocator for a while, which keeps less than Arrow's own."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)
        give_back()


def give_back() -> None:
    """Return free memory to the system, where the C library can."""
    with suppress(AttributeError, OSError):  # only the GNU library has the call
        ctypes.CDLL(None).malloc_trim(0)

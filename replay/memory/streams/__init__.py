"""Tiles of each kind of operator: which memory its workgroups touch, step by step.

`stream_of` returns the stream of an operator of a trace. A module holds operators that touch memory alike:
`products`, `streaming` (a single pass), and `rowwise` (several passes over rows).
"""

from replay.memory.streams.operators import stream_of

__all__ = ["stream_of"]

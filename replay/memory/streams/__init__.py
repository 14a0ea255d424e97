"""Tiles of each kind of operator: which memory its workgroups touch, step by step.

`stream_of` returns the stream of an operator of a trace, `named_streams` those of a kind and a shape. A module holds
operators that touch memory alike: `products`, `convolutions`, `passes` (over elements, rows and channels), `windows`,
`attention` and `recurrent`.
"""

from replay.memory.streams.named import StreamKind, named_stream, named_streams, stream_kinds
from replay.memory.streams.operators import stream_of
from replay.memory.streams.recurrent import time_steps

__all__ = ["StreamKind", "named_stream", "named_streams", "stream_kinds", "stream_of", "time_steps"]

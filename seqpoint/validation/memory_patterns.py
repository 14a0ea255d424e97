"""Addresses of the access patterns that the reference of DRAM was computed with.

Random patterns are drawn from one generator, in a fixed order, so each pattern depends on those before it.
"""

from collections.abc import Mapping

import numpy as np

from profilers.trace.arrays import Ints
from replay.memory.dram import Traffic

#: Requests of a pattern, where it divides them evenly, and bytes of a request.
REQUESTS, REQUEST_BYTES = 120_000, 64
_SEED = 7
_MIB, _GIB = 1 << 20, 1 << 30


def dram_patterns() -> Mapping[str, Traffic]:
    """Return the patterns by name.

    ``stream_*`` read and write in order; ``copy_blockB`` reads B lines and writes them 1 GiB further on;
    ``streamsK_aligned`` reads K streams in turn, 64 MiB apart; ``strideS`` reads every S bytes; ``random_F`` reads at
    random in F; ``random_blocksS`` reads S bytes in order at random multiples of S.
    """
    rng = np.random.default_rng(_SEED)
    lines = np.arange(REQUESTS) * REQUEST_BYTES
    patterns = {"stream_read": _reads(lines), "stream_write": _traffic(lines, np.ones(REQUESTS))}
    for percent in (25, 50, 75):
        patterns[f"stream_mixed_write{percent}"] = _traffic(lines, rng.random(REQUESTS) < percent / 100)
    for block in (1, 4, 16, 64, 256):
        patterns[f"copy_block{block}"] = _copy(block)
    for streams in (2, 3, 4, 8, 16, 32):
        steps = np.arange(REQUESTS // streams)[:, None] * REQUEST_BYTES
        patterns[f"streams{streams}_aligned"] = _reads((steps + np.arange(streams) * 64 * _MIB).ravel())
    for stride in (1 << power for power in range(7, 18)):
        patterns[f"stride{stride}"] = _reads(np.arange(REQUESTS) * stride % (4 * _GIB))
    for footprint in (1, 16, 256, 4096):
        patterns[f"random_{footprint}MiB"] = _reads(_random(rng, footprint * _MIB // REQUEST_BYTES, REQUESTS))
    everywhere = _random(rng, 4 * _GIB // REQUEST_BYTES, REQUESTS)
    patterns["random_4096MiB_write50"] = _traffic(everywhere, rng.random(REQUESTS) < 0.5)
    for block in (2, 4, 8, 16, 32, 64):
        starts = _random(rng, 4 * _GIB // (REQUEST_BYTES * block), REQUESTS // block)[:, None] * block
        addresses = (starts + np.arange(block) * REQUEST_BYTES).ravel()
        patterns[f"random_blocks{block * REQUEST_BYTES}B"] = _reads(addresses)
    return patterns


def _traffic(address: Ints, is_write: object) -> Traffic:
    return Traffic(address.astype(np.int64), np.asarray(is_write).astype(np.uint8))


def _reads(address: Ints) -> Traffic:
    return _traffic(address, np.zeros(len(address)))


def _random(rng: np.random.Generator, places: int, count: int) -> Ints:
    """Return random multiples of a request's bytes."""
    return np.asarray(rng.integers(0, places, count) * REQUEST_BYTES)


def _copy(block: int) -> Traffic:
    """Return reads of blocks of lines, each followed by writes of the same lines 1 GiB further on."""
    blocks = REQUESTS // 2 // block
    source = (np.arange(blocks * block) * REQUEST_BYTES).reshape(blocks, block)
    written = np.repeat([[0] * block + [1] * block], blocks, axis=0)
    return _traffic(np.concatenate([source, source + _GIB], axis=1).ravel(), written.ravel())

"""Models of fused attention over a KV cache: `context_seconds` of prompts, and `generation_seconds` of new tokens.

Both take the columns sequences, query tokens, KV tokens, query heads, KV heads, head dimension and window. The queries
are the last of the KV tokens, and each attends to the tokens before it, at most `window` of them (0: all). Query heads
of a group share a KV head.

*Context.* A workgroup takes a tile of queries of a head through its keys. Each key costs two products and, for every
score, an exponential and a few other instructions. On Hopper and Blackwell the matrix units run beside them, so that
the longer rules; before, both add up. Exponentials matter more from device to device: matrix units grew faster than
special function units. Workgroups fill the compute units, and one of them runs to its end after the rest. Queries,
results, keys and values move through memory before and after. A tile may hold the heads of a group side by side.

*Generation.* A workgroup takes the query heads of a group through the cache, or through a part of it if there are few
groups. It streams at a share of the bandwidth of a compute unit, and all of them at a share of that of memory. Groups
that a kernel cannot hold run head by head.

The measurements that they are fitted to run the same attention again and again, so that a small cache is in L2.
"""

import numpy as np

from profilers.trace.arrays import Floats
from profilers.trace.compiled import compiled
from replay.costs.architectures import architecture_of
from replay.costs.kernels.machine import REFERENCE_CLOCK_HZ, Machine, refuse_shapes

#: Exponentials that a compute unit computes in a cycle, of NVIDIA's devices from Volta to Blackwell (CUDA C++
#: Programming Guide, arithmetic instructions), and other instructions of vector units for each score: scale, maximum,
#: sum, convert.
_EXPONENTIALS, _INSTRUCTIONS = 16.0, 4.0
#: Keys of a tile; most parts of a KV cache and fewest tokens of a part.
_KEYS, _MOST_PARTS, _LEAST_TOKENS = 64.0, 64.0, 128.0
#: Bytes of a key or value before it enters the cache.
_NEW_BYTES = 2.0


def check_attention(dims: Floats) -> None:
    """Refuse attention that cannot be.

    Parameters
    ----------
    dims : array of float64, shape (n, 7)
        Shapes.

    Raises
    ------
    InvalidInputError
        The KV cache is shorter than the queries, or the query heads are no multiple of the KV heads.
    """
    _, queries, tokens, heads, kv_heads, _, _ = dims.T
    rules = (
        (tokens < queries, "the KV cache must hold the queries: kv_tokens is below query_tokens"),
        (heads % kv_heads != 0, "query_heads must be a multiple of kv_heads"),
    )
    refuse_shapes(dims, rules)


def least_attention_seconds(dims: Floats, element_bytes: int, machine: Machine) -> Floats:
    """Return the least time that the data sheet allows, s, shape (n,).

    The products of all pairs of query and key run at the peak. Queries, results and the KV cache move through memory
    once, but for what the caches hold. Attention over a cache of 8 bits may compute in 8 bits.

    Parameters
    ----------
    dims : array of float64, shape (n, 7)
        Shapes.
    element_bytes : int
        Without effect: queries, cache and results have the sizes of the machine's type.
    machine : Machine
        Rates of the device.
    """
    sequences, queries, tokens, heads, kv_heads, width, window = dims.T
    query_bytes, kv_bytes, result_bytes = machine.operand_bytes
    most = np.where(window > 0, np.minimum(window, tokens), tokens)
    # The first queries see fewer than `most` tokens: one more each.
    rising = np.clip(most - (tokens - queries), 0.0, queries)
    pairs = queries * most - rising * (rising - 1) / 2
    peak = machine.peak_flops_per_s * (2.0 if kv_bytes < query_bytes else 1.0)
    seen = np.minimum(most + queries - 1, tokens)
    moved = width * (queries * heads * (query_bytes + result_bytes) + 2 * seen * kv_heads * kv_bytes)
    beyond = np.maximum(sequences * moved - machine.cache_bytes, 0.0)
    computing, moving = 4 * sequences * heads * width * pairs / peak, beyond / machine.memory_bytes_per_s
    return np.asarray(np.maximum(computing, moving), dtype=np.float64)


def _rates(machine: Machine) -> Floats:
    """Return figures of a device as the compiled models take them."""
    score_s = 1 / (machine.clock_hz * _EXPONENTIALS)
    score_s += 2 * _INSTRUCTIONS * machine.compute_units / machine.vector_flops_per_s
    return np.array(
        [machine.compute_units, machine.flops_per_s, machine.memory_bytes_per_s, machine.l2_bytes, score_s,
         architecture_of(machine.architecture).asynchronous, *machine.operand_bytes,
         machine.clock_hz / REFERENCE_CLOCK_HZ]
    )  # fmt: skip


def context_seconds(theta: Floats, tile: tuple[int, int], dims: Floats, element_bytes: int, machine: Machine) -> Floats:
    """Return the times of attention of the tokens of prompts, s, shape (n,).

    Parameters
    ----------
    theta : array of float64
        Parameters of `datasets/kernel_models.toml`.
    tile : (int, int)
        Query rows of a tile, and most query tokens for which it holds a group of heads.
    dims : array of float64, shape (n, 7)
        Shapes.
    element_bytes : int
        Without effect: queries, cache and results have the sizes of the machine's type.
    machine : Machine
        Rates of the device.
    """
    seconds = np.empty(len(dims))
    _fill_context(np.ascontiguousarray(dims), theta, np.array(tile, np.float64), _rates(machine), seconds)
    return seconds


@compiled
def _fill_context(dims, theta, tile, rates, seconds):  # type: ignore[no-untyped-def]
    start, efficiency, softmax, prologue, alone, sharpness, query_moves, kv_moves = theta
    units, flops, bandwidth, _, score_s, asynchronous, query_bytes, kv_bytes, result_bytes, _ = rates
    rows, most_packed = tile
    sharpness = sharpness if asynchronous else 1.0
    vector_s = rows * softmax * score_s
    for i in range(len(dims)):
        sequences, queries, tokens, heads, kv_heads, width, window = dims[i]
        group = heads / kv_heads if queries <= most_packed else 1.0
        positions = max(rows / group, 1.0)
        offset, count = tokens - queries, np.ceil(queries * group / rows)
        longest = np.ceil(tokens / _KEYS) * _KEYS
        most = longest if window == 0 else min(longest, np.ceil((window + positions) / _KEYS) * _KEYS)
        # Query tile j, from 0, attends to offset + (j + 1) * positions keys, and to `most` at most.
        rising = min(max(np.floor((most - offset) / positions), 0.0), count)
        keys = rising * offset + positions * rising * (rising + 1) / 2 + (count - rising) * most
        matrix_s = rows * 4 * width * units / (flops * efficiency)
        longer, shorter = max(matrix_s, vector_s), min(matrix_s, vector_s)
        key_s = longer * (1 + (shorter / longer) ** sharpness) ** (1 / sharpness)
        computing = sequences * heads / group * (keys * key_s + count * prologue) / units
        last = most * key_s * alone + prologue
        moved = query_moves * queries * heads * (query_bytes + result_bytes)
        moved += kv_moves * tokens * kv_heads * 2 * (_NEW_BYTES + kv_bytes)
        seconds[i] = start + computing + last + sequences * width * moved / bandwidth


def generation_seconds(
    theta: Floats, tile: tuple[int, int], dims: Floats, element_bytes: int, machine: Machine
) -> Floats:
    """Return the times of attention of new tokens, one or a few a sequence, s, shape (n,).

    Parameters
    ----------
    theta : array of float64
        Parameters of `datasets/kernel_models.toml`.
    tile : (int, int)
        Most heads of a group that a workgroup holds, 0 for any; and 0. With a limit, a kernel of its own runs one head
        a workgroup if a group is larger, or has one head.
    dims : array of float64, shape (n, 7)
        Shapes.
    element_bytes : int
        Without effect: queries, cache and results have the sizes of the machine's type.
    machine : Machine
        Rates of the device.
    """
    seconds = np.empty(len(dims))
    _fill_generation(np.ascontiguousarray(dims), theta, float(tile[0] or np.inf), _rates(machine), seconds)
    return seconds


@compiled
def _fill_generation(dims, theta, most_group, rates, seconds):  # type: ignore[no-untyped-def]
    start, memory, feed, prologue, head_prologue, summing, hit, efficiency, sharpness, query_moves, wait = theta
    units, flops, bandwidth, l2, _, _, query_bytes, kv_bytes, result_bytes, clock = rates
    start, prologue, head_prologue, summing = start / clock, prologue / clock, head_prologue / clock, summing / clock
    fed_hz = clock * REFERENCE_CLOCK_HZ
    hit = min(bandwidth * memory / (units * fed_hz * hit), 1.0)
    for i in range(len(dims)):
        sequences, queries, tokens, heads, kv_heads, width, window = dims[i]
        length = tokens if window == 0 else min(tokens, window + queries - 1)
        token_bytes, group, most_parts = 2 * width * kv_bytes, heads / kv_heads, _MOST_PARTS
        moved = sequences * kv_heads * length * token_bytes
        each_s = prologue
        if group > most_group:
            group, most_parts = 1.0, 1.0
        if group == 1 and most_group < np.inf:
            each_s = head_prologue
        groups = sequences * heads / group
        fed_s = token_bytes / (feed * fed_hz)
        computed_s = np.ceil(queries * group / 16) * 64 * width * units / (flops * efficiency)
        token_s = np.sqrt(fed_s**2 + computed_s**2)
        missed = 1 / (1 + (0.5 * l2 / moved) ** 2)
        moving = moved * (missed + (1 - missed) * hit) / (bandwidth * memory)
        best, parts = np.inf, 1.0
        while parts <= most_parts:
            share = groups * parts / units
            part = np.sqrt((length / parts) ** 2 + wait**2) * token_s + each_s
            computing = part * max(share, 1.0)
            longer, shorter = max(computing, moving), min(computing, moving)
            whole = longer * (1 + (shorter / longer) ** sharpness) ** (1 / sharpness) + summing * (parts > 1)
            best = min(best, whole)
            if share >= 2 or length / parts < _LEAST_TOKENS:
                break
            parts *= 2
        new = queries * (heads * (query_bytes + result_bytes) + 2 * kv_heads * (_NEW_BYTES + kv_bytes))
        seconds[i] = start + best + query_moves * sequences * width * new / bandwidth

"""Durations of a mixture-of-experts layer on one rank: routing, two grouped products, and the sum over experts.

*Load.* Tokens choose experts evenly, or by a power law. The rank owns ``experts / expert_parallel`` experts of width
``inter / tensor_parallel``. It is the busiest rank, for which all others wait. AIConfigurator's measurements are made
so: with even routing the first rank, which gets the remainders; with a power law the rank with the most tokens. Each
expert then draws its tokens from a bounded power law, 1 to 0.8 of all tokens. If there are fewer choices than experts,
it is 0.01 to 2.

*Products.* The tokens of each expert fill tiles of the fastest height and width. Tiles take waves of the compute units.
Meanwhile the weights of all experts that have a token, and the activations, come from memory. What fits the L2 cache is
still there from the layer's last run. A tile is never faster than its steps along the depth.

*The rest.* Gathering, activation and sum move the rows of the chosen experts. A launch takes a fixed time, and so does
each expert with a token. Some libraries compute or move rows of experts that other ranks own: `remote` and `passed`.

Only data-sheet figures distinguish devices: compute units, rate, bandwidth, L2 size and clock.
"""

import math

import numpy as np

from profilers.trace.arrays import Floats
from profilers.trace.compiled import compiled, inlined
from replay.costs.kernels.machine import REFERENCE_CLOCK_HZ, Machine, refuse_shapes

#: Columns of the dimensions.
DIMS = (
    "tokens", "hidden", "inter", "topk", "experts", "tensor_parallel", "expert_parallel", "skew", "gated",
)  # fmt: skip
#: Classes of experts by number of tokens, of a rank with many experts.
_CLASSES = 12
#: Exponents of a power law: from nearly even shares to one that nobody measured.
_MOST_SKEW = 3.0
#: Heights and widths of tiles from which libraries choose, the share of the last wave that is lost, depth that a tile
#: costs beside its own, and time of reading from the L2 cache as a share of reading from memory.
_HEIGHTS, _WIDTHS = np.array([16.0, 32, 64, 128, 256]), np.array([128.0, 256])
_LAST, _PROLOGUE, _HIT = 0.5, 150.0, 0.5


def experts_seconds(theta: Floats, tile: tuple[int, int], dims: Floats, element_bytes: int, machine: Machine) -> Floats:
    """Return the times of layers, s, shape (n,); the sizes of elements are those of the machine's type.

    Parameters
    ----------
    theta : array of float64
        Parameters, in the order of `datasets/kernel_models.toml`.
    tile : (int, int)
        Not used: the model has tiles of its own.
    dims : array of float64, shape (n, 9)
        Layers, in the columns `DIMS`.
    element_bytes : int
        Not used: the machine has the bytes of its type.
    machine : Machine
        Rates of the device.
    """
    rates = (
        machine.compute_units, machine.flops_per_s, machine.memory_bytes_per_s, machine.l2_bytes,
        machine.clock_hz / REFERENCE_CLOCK_HZ,
    )  # fmt: skip
    seconds = np.empty(len(dims))
    _fill(np.ascontiguousarray(dims), theta, rates, machine.operand_bytes, seconds)
    return seconds


def least_experts_seconds(dims: Floats, element_bytes: int, machine: Machine) -> Floats:
    """Return the least time that the peak allows a rank with its share of the tokens, s, shape (n,).

    Parameters
    ----------
    dims : array of float64, shape (n, 9)
        Layers, in the columns `DIMS`.
    element_bytes : int
        Not used: the machine has the bytes of its type.
    machine : Machine
        Rates of the device.
    """
    tokens, hidden, inter, topk, _experts, tensor, expert, _skew, gated = dims.T
    return np.asarray(2 * (2 + gated) * tokens * topk / expert * hidden * inter / tensor / machine.peak_flops_per_s)


def check_experts(dims: Floats) -> None:
    """Refuse layers that cannot be.

    Parameters
    ----------
    dims : array of float64, shape (n, 9)
        Layers, in the columns `DIMS`.

    Raises
    ------
    InvalidInputError
        More experts are chosen than there are, ranks do not divide experts or width, or a flag or an exponent is out of
        range.
    """
    _tokens, _hidden, inter, topk, experts, tensor, expert, skew, gated = dims.T
    rules = (
        ((dims[:, :7] % 1 != 0).any(axis=1), "sizes are whole numbers"),
        (topk > experts, "a token chooses at most all experts (topk, experts)"),
        (experts % expert != 0, "the ranks of expert parallelism divide the experts (expert_parallel, experts)"),
        (inter % tensor != 0, "the ranks of tensor parallelism divide the width (tensor_parallel, inter)"),
        (skew > _MOST_SKEW, f"the exponent of the routing is 0 (even) to {_MOST_SKEW:g} (skew)"),
        ((gated != 0) & (gated != 1), "gated is 0 or 1"),
    )
    refuse_shapes(dims, rules, "experts")


def loads(tokens: float, topk: float, experts: float, ranks: float, skew: float) -> tuple[Floats, Floats, float]:
    """Return the load of the busiest rank.

    Parameters
    ----------
    tokens, topk, experts, ranks : float
        Tokens, experts that each chooses, experts in all, and ranks that share them.
    skew : float
        Exponent of the power law; 0 for even routing.

    Returns
    -------
    tokens_of : array of float64, shape (n,)
        Tokens of an expert, by class.
    experts_of : array of float64, shape (n,)
        Experts of each class.
    local : float
        Tokens that chose at least one of the rank's experts.

    Examples
    --------
    >>> tokens_of, experts_of, local = loads(64, 2, 8, 4, 0)
    >>> float(tokens_of @ experts_of), local
    (32.0, 32.0)
    """
    count, many = np.zeros(_CLASSES + 2), np.zeros(_CLASSES + 2)
    classes, local = _loads(float(tokens), float(topk), float(experts), float(ranks), float(skew), count, many)
    return count[:classes], many[:classes], local


@compiled
def _loads(tokens, topk, experts, ranks, skew, count, many):  # type: ignore[no-untyped-def]
    return _fill_loads(tokens, topk, experts, ranks, skew, count, many)


@inlined
def _fill_loads(tokens, topk, experts, ranks, skew, count, many):  # type: ignore[no-untyped-def]
    """Write tokens and experts of each class; return the number of classes and the rank's tokens."""
    if skew == 0:
        return _fill_even(tokens, topk, experts, ranks, count, many)
    return _fill_power_law(tokens, topk, experts, ranks, skew, count, many)


@inlined
def _fill_even(tokens, topk, experts, ranks, count, many):  # type: ignore[no-untyped-def]
    """Token t chooses experts t, t + stride, t + 2 stride, and so on; few tokens spread over the first stride."""
    own, stride = experts / ranks, experts / topk
    blocks = math.floor(own / stride + 1e-9)
    rest, each = own - blocks * stride, math.floor(tokens / stride + 1e-9)
    more = tokens - each * stride
    if each == 0:
        count[0], many[0] = 1.0, min(blocks * tokens + math.ceil(rest * tokens / stride - 1e-9), own)
        return 1, min(tokens, many[0])
    count[0], many[0] = each + 1, blocks * more + min(rest, more)
    count[1], many[1] = each, own - many[0]
    return 2, min(max(tokens * min(1.0, topk / ranks), 1.0), count[0] * many[0] + count[1] * many[1])


@inlined
def _fill_power_law(tokens, topk, experts, ranks, skew, count, many):  # type: ignore[no-untyped-def]
    """Draw experts at even quantiles; those of the busiest of several ranks lie higher."""
    own, chosen = experts / ranks, tokens * topk
    low, high = (1.0, 0.8 * tokens) if chosen > experts else (0.01, 2.0)
    power = 1 - skew if abs(1 - skew) > 1e-6 else -1e-6
    first, span = low**power, high**power - low**power
    classes = int(min(own, _CLASSES))
    width, up = own / classes, ranks ** -(own**-0.42)
    total = 0.0
    for j in range(classes):
        quantile = (j + 0.5) / classes
        if ranks > 1:
            quantile = quantile**up if own > 1 else 1 / (1 + up)
        count[j], many[j] = (first + span * quantile) ** (1 / power), width
        total += count[j] * width
    if ranks > 1:  # over all experts; a skew of 2 has no closed form
        further = power + 1 if abs(power + 1) > 1e-6 else 1e-6
        total = experts * power / further * (high**further - low**further) / span
    taken, short = 0.0, 0.0
    for j in range(classes):
        drawn = count[j] * chosen / total
        count[j] = min(np.round(drawn), tokens)
        taken, short = taken + count[j] * width, short + (drawn - count[j]) * width
    for j in range(classes):  # what rounding and the limit left over goes to experts without a token
        if count[j] == 0 and short > 0:
            count[j], many[j] = 1.0, min(short, width)
            taken, short = taken + many[j], short - many[j]
    passes = 3 if ranks == 1 else 0
    while short > 0 and passes > 0:  # each pass may bring experts to the limit, which leaves a rest
        below, passes = 1e-9, passes - 1
        for j in range(classes):
            below += many[j] if count[j] < tokens else 0.0
        share = short / below
        for j in range(classes):
            more = min(share, tokens - count[j])
            count[j], taken, short = count[j] + more, taken + more * many[j], short - more * many[j]
    if taken < 1:
        count[0], many[0], taken, classes = 1.0, 1.0, 1.0, 1
    columns = min(topk, own)
    return classes, min(max(tokens * (1 - (1 - min(taken / tokens / columns, 1.0)) ** columns), 1.0), tokens)


@compiled
def _fill(dims, theta, rates, sizes, seconds):  # type: ignore[no-untyped-def]
    start, efficiency, memory, edge, smallest, step, sharpness, traffic, expert, cache, remote, passed = theta
    units, flops, bandwidth, l2_bytes, clock = rates
    activation, weight, result = sizes
    unit_rate = flops / units
    depth_s = np.empty((len(_HEIGHTS), len(_WIDTHS)))
    for i in range(len(_HEIGHTS)):
        for j in range(len(_WIDTHS)):
            flop = 2 * _HEIGHTS[i] * _WIDTHS[j] * (1 + edge * (1 / _HEIGHTS[i] + 1 / _WIDTHS[j]))
            depth_s[i, j] = max(flop / efficiency, 2 * smallest**2) / unit_rate
    count, many, rows = np.zeros(_CLASSES + 2), np.zeros(_CLASSES + 2), np.empty(len(_HEIGHTS))
    for r in range(len(dims)):
        tokens, hidden, inter, topk, experts, tensor, ranks, skew, gated = dims[r]
        classes, local = _fill_loads(tokens, topk, experts, ranks, skew, count, many)
        active, own = 0.0, 0.0
        for c in range(classes):
            own += count[c] * many[c]
            active += many[c] if count[c] > 0 else 0.0
        away = max(local * topk - own, 0.0)
        other = away * min(remote, 1.0)
        if other >= 1:  # they all go to one expert
            count[classes], many[classes] = other, 1.0
            active, classes = active + 1, classes + 1
        for i in range(len(_HEIGHTS)):
            rows[i] = 0.0
            for c in range(classes):
                rows[i] += many[c] * math.ceil(count[c] / _HEIGHTS[i])
        width, computed = inter / tensor, own + other
        out = (1 + gated) * width
        once = computed * (hidden * (activation + result) + out * result + width * activation)
        held = cache * l2_bytes / (active * (out + width) * hidden * weight + once)
        cost = 1 / (1 + held**2)
        per_byte = (cost + (1 - cost) * _HIT) / bandwidth
        moved = (own + max(away * min(passed, 1.0), other)) * (hidden * (activation + result) + width * activation)
        moved += (own + max(away * min(passed, 1.0), other)) * out * result + 2 * result * tokens * hidden
        total = start / clock + active * expert / clock + traffic * moved * per_byte
        for product in range(2):
            columns, depth = (out, hidden) if product == 0 else (hidden, width)
            moving = active * columns * depth * weight + computed * (depth * activation + columns * result)
            moving *= per_byte / memory
            computing = np.inf
            for j in range(len(_WIDTHS)):
                across = math.ceil(columns / _WIDTHS[j]) / units
                for i in range(len(_HEIGHTS)):
                    share = rows[i] * across
                    waves = share + _LAST * (math.ceil(share) - share) if share > 1 else 1.0
                    computing = min(computing, max(waves * depth_s[i, j], step / clock))
            computing *= depth + _PROLOGUE
            longest = max(computing, moving)
            total += longest * (1 + (min(computing, moving) / longest) ** sharpness) ** (1 / sharpness)
        seconds[r] = total

"""How long an operator's main kernel takes on a device, as far as its shape tells.

Only ratios of these times are used: a traced kernel keeps what the model does not know of it.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from replay.durations.models import MODELS
from replay.operators import Operator
from replay.retiming.capability import Capability

__all__ = ["modelled_seconds"]

Floats = npt.NDArray[np.float64]

#: The model of each kind of operator; a convolution is the product that it is when its windows are laid out.
_MODEL_OF = {"matmul": "matmul", "batched_matmul": "batched_matmul", "convolution": "matmul"}
#: Queries that a workgroup of a fused attention holds (FlashAttention-2, arXiv 2307.08691, section 3.3).
_QUERIES = 128


def modelled_seconds(
    operators: Sequence[Operator], place: Capability, floor_s: float, attention_share: float
) -> Floats:
    """Return the time of each operator, s, shape (n,).

    - Products and convolutions: the models of `replay.durations`, with the share of the peak that `place` sustains.
    - Attention: workgroups of 128 queries go through all keys, each at the rate of one compute unit; fewer of
      them than units leave units idle.

    Parameters
    ----------
    operators : sequence of Operator
        Of kind matmul, batched_matmul, convolution or attention.
    place : Capability
    floor_s : float
        What a kernel takes that computes next to nothing.
    attention_share : float
        Rate of a fused attention over that of a matrix product.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.operators import batched_matmul
    >>> from replay.retiming.capability import capability
    >>> place = capability(find_device("A100-SXM4-80GB"), "bf16")
    >>> seconds = modelled_seconds([batched_matmul(1, 4096, 4096, 4096, 2)], place, 4e-6, 0.5)[0]
    >>> bool(0.8 < 2 * 4096**3 / seconds / 271e12 < 1.0)
    True
    """
    found = np.zeros(len(operators))
    groups: dict[tuple[str, int], list[int]] = {}
    for row, one in enumerate(operators):
        groups.setdefault((one.kind, one.element_bytes), []).append(row)
    for (kind, size), rows in groups.items():
        several = [operators[row] for row in rows]
        if kind == "attention":
            found[rows] = [_attention(one, place, floor_s, attention_share) for one in several]
        else:
            found[rows] = _products(several, size, place, floor_s)
    return found


def _products(operators: Sequence[Operator], element_bytes: int, place: Capability, floor_s: float) -> Floats:
    model = _MODEL_OF[operators[0].kind]
    fit = place.fit(model, floor_s)
    dims = np.array([one.dims for one in operators], dtype=np.float64)
    return MODELS[model].seconds(fit.theta, fit.tile, dims, element_bytes, place.machine)


def _attention(operator: Operator, place: Capability, floor_s: float, share: float) -> float:
    heads, queries, keys, width = operator.dims
    units = place.machine.compute_units
    # How much a pass over all scores, masked ones too, is of what this operator counts: half of it if causal.
    passes = operator.flops / (4.0 * heads * queries * keys * width)
    blocks = heads * np.ceil(queries / _QUERIES)
    each = passes * 4.0 * _QUERIES * keys * width / (place.flops_per_s / units * share)
    moving = operator.bytes_moved / place.bytes_per_s
    return float(floor_s + max(max(blocks / units, 1.0) * each, moving))

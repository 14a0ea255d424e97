"""What bypasses the L2 cache because nothing is gained from keeping it, compiled.

- Bypass by operand: sample sets keep an operand in any case, and count its lines that were used again and those that
  were evicted before, as signatures do in SHiP (Wu and others, MICRO 2011). In other sets an operand without use
  bypasses. Each operand has one set in 64, and counts halve, so that a change of its use is noticed.
- Adaptive: sample sets keep all, loads only, or nothing. The other sets follow the choice that causes fewest requests
  (set duelling: Qureshi and others, Adaptive Insertion Policies for High Performance Caching, ISCA 2007).
"""

import numpy as np

from profilers.trace.compiled import bare, inlined
from replay.memory.cache_layout import (
    ATOMS,
    DUEL,
    DUEL_CHOICE,
    DUEL_EVICTIONS,
    L2,
    OPERAND_AT,
    OPERANDS,
    REUSE,
    ROWS,
    SECTORS,
    USED_AGAIN,
)  # fmt: skip

#: Lines evicted without use before an operand may bypass, how many it takes for each that was used again, and the count
#: at which both halve.
_SAMPLES, _DEAD_FOR_USED, _MOST_SAMPLES = 32, 16, 512
#: Choices that sample sets measure.
ALL, LOADS_ONLY, NOTHING = 0, 1, 2
#: Groups of sets by hash, the first three of which measure the choices.
_GROUPS = 32
#: Requests of the best choice, times this, are as good.
_TIE = 33 / 32


@inlined
def bypasses(machine, operand, base, is_write):  # type: ignore[no-untyped-def]
    """Return whether a miss of an operand is not kept in the set of L2 at `base`, by what was learnt so far."""
    rules = machine.rules[0]
    if rules.adaptive:
        choice = _group(machine, base)
        if choice > NOTHING:
            choice = machine.numbers[DUEL_CHOICE]
        return choice == NOTHING or (choice == LOADS_ONLY and is_write == 1)
    if not rules.operand_bypass:
        return False
    number = operand & (OPERANDS - 1)
    used, dead = machine.numbers[np.uint64(REUSE + 2 * number)], machine.numbers[np.uint64(REUSE + 2 * number + 1)]
    return dead >= _SAMPLES and dead > _DEAD_FOR_USED * used and _sampled(machine, base) != number


@inlined
def learn_eviction(machine, base, held):  # type: ignore[no-untyped-def]
    """Note the eviction of a line with the given sectors and operand."""
    rules = machine.rules[0]
    if rules.operand_bypass and not held & USED_AGAIN:
        _learn(machine, base, held, 1)
    if rules.adaptive and _group(machine, base) == ALL:
        machine.numbers[DUEL_EVICTIONS] += 1


@inlined
def _sampled(machine, base):  # type: ignore[no-untyped-def]
    """Return the operand that the set at `base` always keeps."""
    return (base // (ROWS * machine.levels[L2].row) * 0x9E3779B1 >> 16) & (OPERANDS - 1)


@inlined
def learn_use(machine, base, way):  # type: ignore[no-untyped-def]
    """Note the first use of a line of L2 after the one that filled it."""
    if machine.rules[0].operand_bypass:
        at = base + SECTORS * machine.levels[L2].row + way
        held = np.int64(machine.cells[np.uint64(at)])
        if not held & USED_AGAIN:
            machine.cells[np.uint64(at)] = held | USED_AGAIN
            _learn(machine, base, held, 0)


@inlined
def _learn(machine, base, held, is_dead):  # type: ignore[no-untyped-def]
    """Count a line of a sampled set that was used again, or evicted before; counts halve when they get large."""
    number = held >> OPERAND_AT & (OPERANDS - 1)
    if _sampled(machine, base) == number:
        machine.numbers[np.uint64(REUSE + 2 * number + is_dead)] += 1
        if machine.numbers[np.uint64(REUSE + 2 * number + is_dead)] >= _MOST_SAMPLES:
            machine.numbers[np.uint64(REUSE + 2 * number)] >>= 1
            machine.numbers[np.uint64(REUSE + 2 * number + 1)] >>= 1


@bare
def weigh(machine, base, sectors):  # type: ignore[no-untyped-def]
    """Count an access of L2, with the sectors that go to memory now or when they are written back.

    Once lines are evicted, all other sets follow the choice that keeps least, of those with the fewest requests but for
    1 in 32: what is kept without need may stall, and is written back in another order.
    """
    group = _group(machine, base)
    if group > NOTHING:
        return
    for atom in range(machine.rules[0].atoms):
        machine.numbers[np.uint64(DUEL + 2 * group)] += machine.numbers[np.uint64(ATOMS + atom)] & sectors != 0
    machine.numbers[np.uint64(DUEL + 2 * group + 1)] += 1
    if machine.numbers[np.uint64(DUEL + 2 * group + 1)] % _SAMPLES != 0:
        return
    choice, best = ALL, np.inf
    for candidate in range(3):
        requests, accesses = (
            machine.numbers[np.uint64(DUEL + 2 * candidate)],
            machine.numbers[np.uint64(DUEL + 2 * candidate + 1)],
        )
        if accesses < _SAMPLES or machine.numbers[DUEL_EVICTIONS] < _SAMPLES:
            return
        best = min(best, requests / accesses)
    for candidate in range(3):
        requests, accesses = (
            machine.numbers[np.uint64(DUEL + 2 * candidate)],
            machine.numbers[np.uint64(DUEL + 2 * candidate + 1)],
        )
        if requests / accesses <= best * _TIE:
            choice = candidate
    machine.numbers[DUEL_CHOICE] = choice
    if machine.numbers[np.uint64(DUEL + 2 * group + 1)] >= _MOST_SAMPLES * 8:
        machine.numbers[np.uint64(DUEL + 2 * group)] >>= 1
        machine.numbers[np.uint64(DUEL + 2 * group + 1)] >>= 1


@inlined
def _group(machine, base):  # type: ignore[no-untyped-def]
    """Return the choice that the set at `base` measures, or a greater number."""
    return (base // (ROWS * machine.levels[L2].row) * 0x9E3779B1 >> 16) & (_GROUPS - 1)

"""Which registers an instruction reads and writes."""

from dataclasses import dataclass

from replay.detailed import program as low
from replay.detailed.fragments import BITS_OF
from replay.detailed.program import Program


@dataclass(frozen=True)
class Operands:
    """Registers of an instruction.

    Parameters
    ----------
    sources, targets : tuple of int
        Registers that it reads, its guard included, and that it writes.
    """

    sources: tuple[int, ...]
    targets: tuple[int, ...]


def operands_of(program: Program) -> list[Operands]:
    """Return the registers of each instruction of a program."""
    return [_operands(row, program.lists) for row in program.code]


def _operands(row, lists) -> Operands:  # type: ignore[no-untyped-def]
    kind = row[low.KIND]
    sources = [int(row[low.GUARD])]
    vector = [int(r) for r in lists[row[low.VECTOR] : row[low.VECTOR] + row[low.COUNT]]] if row[low.VECTOR] >= 0 else []
    plain = [int(row[column]) for column in (low.A, low.B, low.C, low.E)]
    target = [int(row[low.D]), int(row[low.D2])]
    if kind == low.LOAD or kind == low.LDMATRIX:
        sources, target = [*sources, int(row[low.A])], vector
    elif kind in (low.STORE, low.STMATRIX, low.PACK):
        sources += [int(row[low.A]), *vector]
    elif kind == low.UNPACK:
        sources, target = [*sources, int(row[low.A])], vector
    elif kind == low.PRODUCT:
        facts = int(row[low.E]) + 3
        held = []
        for number, column in enumerate((low.D, low.A, low.B, low.C)):
            count, element = int(lists[facts + 3 * number + 1]), int(lists[facts + 3 * number + 2])
            held.append([int(lists[row[column] + n]) for n in range(count * min(BITS_OF[element], 32) // 32)])
        sources, target = [*sources, *held[1], *held[2], *held[3]], held[0]
    elif kind == low.GROUP_PRODUCT:
        # Sums are added to in the tensor cores: a product does not wait for the one before.
        left = [int(lists[row[low.A] + n]) for n in range(4)] if row[low.HOW] else [int(row[low.A])]
        sources += [*left, int(row[low.B]), int(row[low.C])]
        target = [int(lists[row[low.D] + n]) for n in range(int(lists[row[low.E] + 9]))]
    elif kind == low.TEXTURE or kind == low.FRAGMENT_LOAD:
        sources, target = [*sources, *plain[: 2 + (kind == low.TEXTURE)]], vector
    elif kind == low.FRAGMENT_STORE:
        sources, target = [*sources, *plain[:2], *vector], []
    elif kind == low.COPY:
        sources, target = [*sources, int(row[low.D]), *plain[:2]], []
    else:
        sources += plain
    if kind in (low.STORE, low.STMATRIX):
        target = []
    return Operands(tuple(s for s in sources if s >= 0), tuple(t for t in target if t >= 0))


def single_definitions(operands: list[Operands]) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Return the instruction that defines each register, -1 if there are several, and those that read it."""
    defined: dict[int, int] = {}
    uses: dict[int, list[int]] = {}
    for row, item in enumerate(operands):
        for target in item.targets:
            defined[target] = -1 if target in defined else row
        for source in set(item.sources):
            uses.setdefault(source, []).append(row)
    return defined, uses

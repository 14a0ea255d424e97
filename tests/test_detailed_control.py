"""Control flow of PTX: random programs against the threads one by one; shuffles, votes and atomics of each kind."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from profilers.errors import InvalidInputError
from replay.detailed import lower, parse_ptx, run_kernel

HEAD = ".version 8.0 .target sm_80 .address_size 64\n.shared .align 4 .b8 s[256];\n"
REGISTERS = ".reg .b64 %rd<4>; .reg .b32 %r<400>; .reg .pred %p<40>;\n"
BEGIN = (
    "ld.param.u64 %rd0, [p]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x;\n"
    "mad.lo.u32 %r3, %r1, %r2, %r0; mul.wide.u32 %rd1, %r3, 4; add.s64 %rd2, %rd0, %rd1;\n"
)
WORD = 0xFFFFFFFF


def executed(body: str, threads: int, *, blocks: int = 1, words: int = 0) -> np.ndarray:
    """Return the buffer that a kernel fills; %r0 is the thread, %r3 that of the grid, %rd2 the address of its word."""
    text = f"{HEAD}.visible .entry k(.param .u64 p) {{\n{REGISTERS}{BEGIN}{body}\nret; }}"
    buffer = np.zeros(words or threads * blocks, np.uint32)
    return run_kernel(lower(parse_ptx(text, "k.ptx")), [blocks], [threads], [buffer]).outputs["arg0"]


class Writer:
    """A random program as PTX text, and as a function of Python that one thread executes."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.count = 0

    def block(self, depth: int, loops: int) -> tuple[str, Callable[[list[int]], str]]:
        """Return statements; the function changes x in its list, and says why it ended: "", "break" or "return"."""
        pairs = [self.statement(depth, loops) for _ in range(int(self.random.integers(1, 4)))]

        def run(x: list[int]) -> str:
            for _, step in pairs:
                why = step(x)
                if why:
                    return why
            return ""

        return "".join(text for text, _ in pairs), run

    def statement(self, depth: int, loops: int) -> tuple[str, Callable[[list[int]], str]]:
        kinds = ["change", "guarded"] + ["if", "loop"] * (2 * (depth > 0)) + ["break"] * (loops > 0) + ["return"]
        kind = str(self.random.choice(kinds))
        number, a, b = self.number(), int(self.random.integers(1, 99)), int(self.random.integers(1, 8))
        test = f"and.b32 %r9, %r8, {b}; setp.eq.u32 %p{number % 40}, %r9, 0;\n"
        if kind == "change":
            return f"mad.lo.u32 %r8, %r8, {2 * a + 1}, {b};\n", lambda x: self.change(x, a, b)
        if kind == "guarded":
            text = f"{test}@!%p{number % 40} add.u32 %r8, %r8, {a};\n"
            return text, lambda x: "" if x[0] & b == 0 else self.add(x, a)
        if kind == "if":
            return self.branches(depth, loops, number, b)
        if kind == "loop":
            return self.loop(depth, number, b)
        if kind == "break":
            text = f"{test}@%p{number % 40} bra END{loops};\n"
            return text, lambda x: "break" if x[0] & b == 0 else ""
        text = f"and.b32 %r9, %r8, 63; setp.eq.u32 %p{number % 40}, %r9, {b}; @%p{number % 40} bra DONE;\n"
        return text, lambda x: "return" if x[0] & 63 == b else ""

    def branches(self, depth: int, loops: int, number: int, b: int) -> tuple[str, Callable[[list[int]], str]]:
        yes, no = self.block(depth - 1, loops), self.block(depth - 1, loops)
        head = f"and.b32 %r9, %r8, {b}; setp.eq.u32 %p{number % 40}, %r9, 0;\n@%p{number % 40} bra YES{number};\n"
        text = f"{head}{no[0]}bra.uni BOTH{number};\nYES{number}:\n{yes[0]}BOTH{number}:\n"
        return text, lambda x: (yes if x[0] & b == 0 else no)[1](x)

    def loop(self, depth: int, number: int, b: int) -> tuple[str, Callable[[list[int]], str]]:
        """Return a loop of 1 to 8 turns, as many as the number of the thread says."""
        body, counter = self.block(depth - 1, number), 10 + number
        text = (
            f"and.b32 %r{counter}, %r8, {b};\nTURN{number}:\n{body[0]}setp.eq.u32 %p0, %r{counter}, 0;\n"
            f"@%p0 bra END{number};\nsub.u32 %r{counter}, %r{counter}, 1;\nbra TURN{number};\nEND{number}:\n"
        )

        def run(x: list[int]) -> str:
            for _ in range((x[0] & b) + 1):
                why = body[1](x)
                if why == "return":
                    return why
                if why:
                    break
            return ""

        return text, run

    def number(self) -> int:
        self.count += 1
        return self.count

    @staticmethod
    def change(x: list[int], a: int, b: int) -> str:
        x[0] = (x[0] * (2 * a + 1) + b) & WORD
        return ""

    @staticmethod
    def add(x: list[int], a: int) -> str:
        x[0] = (x[0] + a) & WORD
        return ""


@pytest.mark.parametrize("seed", range(12))
def test_threads_of_a_warp_compute_what_each_does_alone(seed: int) -> None:
    writer = Writer(seed)
    pieces = [writer.block(3, 0) for _ in range(3)]
    assert 10 < writer.count < 390  # registers for counters
    text = "".join(piece for piece, _ in pieces)
    got = executed(f"mul.lo.u32 %r8, %r3, 2654435761;\n{text}DONE:\nst.global.u32 [%rd2], %r8;", 48, blocks=2)
    expected = []
    for thread in range(96):
        x = [thread * 2654435761 & WORD]
        for _, run in pieces:
            if run(x):
                break
        expected.append(x[0])
    assert got.tolist() == expected


def shuffled(mode: str, lane: int, b: int, width: int) -> int:
    """Return the lane that a lane reads, of its segment of so many lanes; itself if there is none."""
    first, last = lane // width * width, lane // width * width + width - 1
    source = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": first + b % width}[mode]
    # The PTX ISA compares with one end only: a butterfly may read a lower segment.
    return source if (mode != "up" or first <= source) and source <= last else lane


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffles_read_the_lane_of_their_segment(mode: str) -> None:
    body, expected = "mul.lo.u32 %r4, %r0, 3;\n", []
    cases = [(b, width) for b in (0, 1, 3, 8, 17, 31) for width in (32, 16, 8, 2)]
    for n, (b, width) in enumerate(cases):
        c = (32 - width << 8) | (0 if mode == "up" else 31)
        body += f"shfl.sync.{mode}.b32 %r5|%p1, %r4, {b}, {c}, -1; selp.u32 %r6, 1000, 0, %p1;\n"
        body += f"add.u32 %r5, %r5, %r6; st.global.u32 [%rd2+{128 * n}], %r5;\n"
        for lane in range(32):
            source = shuffled(mode, lane, b, width)
            is_valid = source != lane or b == 0 or (mode == "idx" and lane % width == b % width)
            expected.append(3 * source + 1000 * is_valid)
    got = executed(body, 32, words=32 * len(cases))
    assert got.tolist() == expected


def test_votes_count_the_lanes_that_are_active() -> None:
    body = "and.b32 %r4, %r0, 1; setp.eq.u32 %p1, %r4, 0; setp.lt.u32 %p2, %r0, 40; setp.lt.u32 %p3, %r0, 64;\n"
    votes = [("all", "%p1"), ("any", "%p1"), ("all", "%p3"), ("any", "!%p3"), ("uni", "%p2"), ("uni", "%p3")]
    for n, (mode, operand) in enumerate(votes):
        body += (
            f"vote.sync.{mode}.pred %p5, {operand}, -1; selp.u32 %r5, 1, 0, %p5; st.global.u32 [%rd2+{256 * n}], %r5;\n"
        )
    body += "@!%p1 bra SKIP;\nvote.sync.ballot.b32 %r5, %p2, 0x55555555; st.global.u32 [%rd2+1536], %r5;\nSKIP:\n"
    rows = executed(body, 64, words=64 * 7).reshape(7, 64)
    assert [row[:32].max() for row in rows[:6]] == [0, 1, 1, 0, 1, 1]
    assert [row[32:].max() for row in rows[:6]] == [0, 1, 1, 0, 0, 1]
    assert set(rows[6, ::2].tolist()) == {0x55555555, 0x55} and not rows[6, 1::2].any()


ATOMICS: dict[str, tuple[int, Any]] = {
    "add.u32": (7, sum), "min.u32": (40, min), "max.u32": (3, max), "min.s32": (WORD, lambda v: WORD),
    "max.s32": (WORD, lambda v: 63), "and.b32": (WORD, lambda v: 0), "or.b32": (64, lambda v: 127),
    "xor.b32": (5, lambda v: 5), "inc.u32": (0, None), "dec.u32": (0, None), "exch.b32": (9, None),
}  # fmt: skip


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("name", ATOMICS)
def test_atomics_give_each_thread_the_value_before_its_own(name: str, space: str) -> None:
    start, total = ATOMICS[name]
    operand = {"inc.u32": "9", "dec.u32": "9"}.get(name, "%r0")
    place = "[%rd0+256]" if space == "global" else "[%r7]"
    body = f"mov.u32 %r7, s; mov.u32 %r5, {start}; setp.ne.u32 %p1, %r0, 0;\n"
    body += (
        f"@!%p1 st.{space}.u32 {place}, %r5; bar.sync 0;\natom.{space}.{name} %r6, {place}, {operand}; bar.sync 0;\n"
    )
    body += f"st.global.u32 [%rd2], %r6; ld.{space}.u32 %r6, {place}; bar.sync 0; @!%p1 st.global.u32 [%rd0+256], %r6;"
    *before, last = executed(body, 64, words=65).tolist()
    if name in ("inc.u32", "dec.u32"):
        turns = [n % 10 if name == "inc.u32" else -n % 10 for n in range(64)]
        assert sorted(before) == sorted(turns) and last == (4 if name == "inc.u32" else 6)
    elif name == "exch.b32":
        assert sorted([*before, last]) == sorted([*range(64), 9])
    else:
        assert last == total([start, *range(64)]) and start in before


def test_compare_and_swap_makes_a_lock_of_a_word() -> None:
    # Each thread adds to a word by compare and swap, until no other was between: all additions are there.
    body = """TRY: ld.global.u32 %r4, [%rd0]; add.u32 %r5, %r4, %r0; atom.global.cas.b32 %r6, [%rd0], %r4, %r5;
setp.ne.u32 %p1, %r6, %r4; @%p1 bra TRY;"""
    assert executed(body, 64, blocks=3, words=1).tolist() == [3 * 63 * 32]


@pytest.mark.parametrize(
    ("kind", "value"),
    [("u32", np.inf), ("s32", np.nan), ("u64", -np.inf), ("f32", 10**400)],
    ids=["u32", "s32", "u64", "f32"],
)
def test_numbers_that_no_parameter_holds_are_refused(kind: str, value: float) -> None:
    text = f"{HEAD}.visible .entry k(.param .{kind} p) {{ ret; }}"
    with pytest.raises(InvalidInputError, match=rf"parameter 0: .* does not fit type \.{kind}"):
        run_kernel(lower(parse_ptx(text, "k.ptx")), [1], [1], [value])


def test_lanes_vote_with_those_that_they_name() -> None:
    """Eight lanes each, as tiles of cooperative groups name them; the last group also has lanes that have left."""
    body = """setp.lt.u32 %p3, %r0, 30; @!%p3 ret;
    and.b32 %r4, %r0, 24; mov.u32 %r5, 255; shl.b32 %r5, %r5, %r4; and.b32 %r6, %r0, 1; setp.eq.u32 %p1, %r6, 1;
    vote.sync.ballot.b32 %r7, %p1, %r5; vote.sync.any.pred %p2, %p3, %r5; selp.u32 %r8, 1, 0, %p2;
    setp.lt.u32 %p1, %r0, 8; vote.sync.all.pred %p2, %p1, %r5; @%p2 add.u32 %r8, %r8, 2;
    shr.u32 %r9, %r0, 2; match.any.sync.b32 %r10, %r9, %r5; match.all.sync.b32 %r11|%p2, %r4, %r5;
    redux.sync.add.u32 %r12, %r0, %r5; redux.sync.max.u32 %r13, %r0, %r5;
    mul.lo.u32 %r14, %r0, 24; cvt.u64.u32 %rd1, %r14; add.s64 %rd2, %rd0, %rd1;
    st.global.u32 [%rd2], %r7; st.global.u32 [%rd2+4], %r8; st.global.u32 [%rd2+8], %r10; st.global.u32 [%rd2+12], %r11;
    st.global.u32 [%rd2+16], %r12; st.global.u32 [%rd2+20], %r13;"""
    out = executed(body, 32, words=32 * 6).reshape(32, 6)
    for lane in range(30):
        first = lane & 24
        tile = [n for n in range(first, first + 8) if n < 30]
        expected = [
            sum(1 << n for n in tile if n & 1), 3 if first == 0 else 1,
            sum(1 << n for n in tile if n >> 2 == lane >> 2), sum(1 << n for n in tile), sum(tile), max(tile),
        ]  # fmt: skip
        assert out[lane].tolist() == expected, lane


def test_one_lane_of_those_that_are_named_is_elected() -> None:
    body = """setp.ge.u32 %p3, %r0, 3; @!%p3 ret; mov.u32 %r5, 0xffff;
    setp.ge.u32 %p1, %r0, 16; @%p1 mov.u32 %r5, 0xffff0000;
    elect.sync %r6|%p2, %r5; selp.u32 %r7, 100, 0, %p2; add.u32 %r7, %r7, %r6; st.global.u32 [%rd2], %r7;"""
    assert executed(body, 32).tolist() == [0] * 3 + [103] + [3] * 12 + [116] + [16] * 15
    with pytest.raises(InvalidInputError, match=r"elect\.any is not supported"):
        executed("elect.any %r6|%p2, %r5;", 32)

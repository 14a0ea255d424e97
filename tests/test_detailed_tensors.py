"""Matrices and textures: ``mma``, ``wmma`` and ``wgmma`` against NumPy, and fetches against filters written out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqpoint as sp
from profilers.errors import InvalidInputError
from replay.detailed import KernelLaunch, LaunchPlan, Texture, lower, parse_ptx, run_kernel
from replay.detailed.launch import runners
from replay.detailed.plans import read_plan
from replay.detailed.timing.simulation import simulate_plan
from seqpoint.validation.detailed import read_kernels
from tests import ptx_kernels

HEAD = ".version 8.0 .target sm_80 .address_size 64\n"
SHAPES = {
    "m16n16k16": (16, 16, 16), "m32n8k16": (32, 8, 16), "m8n32k16": (8, 32, 16), "m16n16k8": (16, 16, 8),
    "m8n8k4": (8, 8, 4),
}  # fmt: skip
#: Types of the factors, of the sums that are added, and of the result.
OF_DEPTH = {
    16: (("f16", "f32", "f32"), ("f16", "f16", "f32"), ("bf16", "f32", "f32"), ("f16", "f16", "f16"),
         ("s8", "s32", "s32"), ("u8", "s32", "s32")),
    8: (("tf32", "f32", "f32"),), 4: (("f64", "f64", "f64"),),
}  # fmt: skip
CASES = [
    (shape, layouts, kinds)
    for shape, sizes in SHAPES.items()
    for layouts in (("row", "col", "row"), ("col", "row", "col"), ("row", "row", "row"))
    for kinds in OF_DEPTH[sizes[2]]
]
#: Bytes of an element in registers.
WIDTHS = {"f16": 2, "bf16": 2, "f32": 4, "tf32": 4, "f64": 4, "s8": 1, "u8": 1, "s32": 4}


def registers(name: str, count: int) -> str:
    return "{" + ",".join(f"%{name}{n}" for n in range(count)) + "}"


def product_kernel() -> str:
    """Return a module with an entry for each case: d = a @ b + c, matrices with three elements more a line."""
    text = HEAD
    for number, (shape, (left, right, sums), (kind, c, d)) in enumerate(CASES):
        rows, columns, depth = SHAPES[shape]
        counts = {name: size * depth * WIDTHS[kind] // 128 for name, size in (("a", rows), ("b", columns))}
        if kind == "f16":
            counts = {"a": 8, "b": 8}
        leading = {
            "a": depth if left == "row" else rows,
            "b": columns if right == "row" else depth,
            "c": columns if sums == "row" else rows,
        }
        held = {name: max(rows * columns * WIDTHS[of] // 128, 1) for name, of in (("d", d), ("c", c))}
        types = f"{d}.{c}" if kind == "f16" else f"{d}.{kind}.{kind}.{c}"
        wide = "b64" if kind == "f64" else "b32"
        text += f".visible .entry k{number}(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d) {{\n"
        text += f".reg .b64 %rd<9>; .reg .{wide} %a<16>, %b<16>, %c<16>, %d<16>;\n"
        text += "".join(f"ld.param.u64 %rd{n}, [{name}];\n" for n, name in enumerate("abcd"))
        for n, (name, layout, kind_of) in enumerate((("a", left, kind), ("b", right, kind), ("c", sums, c))):
            count = counts.get(name, held["c"])
            text += f"wmma.load.{name}.sync.aligned.{layout}.{shape}.global.{kind_of} {registers(name, count)}, "
            text += f"[%rd{n}], {leading[name] + 3};\n"
        text += f"wmma.mma.sync.aligned.{left}.{right}.{shape}.{types} "
        all_held = {"d": held["d"], **counts, "c": held["c"]}
        text += ", ".join(registers(name, count) for name, count in all_held.items()) + ";\n"
        text += f"wmma.store.d.sync.aligned.{sums}.{shape}.global.{d} [%rd3], {registers('d', held['d'])}, "
        text += f"{leading['c'] + 3};\nret; }}\n"
    return text


def stored(matrix: np.ndarray, layout: str, kind: str) -> np.ndarray:
    """Return a matrix as it lies in memory, with three elements more a line."""
    lines = np.zeros((matrix.shape[layout == "col"], matrix.shape[layout == "row"] + 3), np.float32)
    lines[:, :-3] = matrix if layout == "row" else matrix.T
    return (lines.view(np.uint32) >> 16).astype(np.uint16) if kind == "bf16" else lines.astype(HELD[kind])


def test_products_of_fragments_are_those_of_numpy() -> None:
    module, random = parse_ptx(product_kernel(), "wmma.ptx"), np.random.default_rng(5)
    for number, (shape, (left, right, sums), (kind, c, d)) in enumerate(CASES):
        rows, columns, depth = SHAPES[shape]
        # Eighths are exact in BF16; their products and sums in FP16, too.
        least, part = (0 if kind == "u8" else -8), (1.0 if kind in ("s8", "u8") else 8.0)
        a, b, add = (
            (random.integers(least, 9, size=size) / part).astype(np.float32)
            for size in ((rows, depth), (depth, columns), (rows, columns))
        )
        result = stored(np.zeros((rows, columns)), sums, d)
        given = [stored(a, left, kind), stored(b, right, kind), stored(add, sums, c), result]
        got = run_kernel(lower(module, f"k{number}"), [1], [32], given).outputs["arg3"].astype(np.float64)
        assert not got[:, -3:].any()
        got = got[:, :-3] if sums == "row" else got[:, :-3].T
        assert np.array_equal(got, (a @ b + add).astype(HELD[d])), CASES[number]


#: ``mma``: rows, depth, types of the factors and of the sums, and the types of NumPy that hold them.
MMA = [
    *((16, depth, "f16", sums) for depth in (8, 16) for sums in ("f16", "f32")),
    (16, 8, "bf16", "f32"), (16, 16, "bf16", "f32"), (16, 4, "tf32", "f32"), (16, 8, "tf32", "f32"),
    (8, 4, "f64", "f64"), (16, 4, "f64", "f64"), (16, 8, "f64", "f64"), (16, 16, "f64", "f64"),
    *((rows, depth, kind, "s32") for rows, depth in ((8, 16), (16, 16), (16, 32)) for kind in ("s8", "u8")),
    *((16, depth, kind, "f32") for depth in (16, 32) for kind in ("e4m3", "e5m2")), (16, 32, "e4m3", "f16"),
]  # fmt: skip
HELD = {
    "f16": np.float16, "bf16": np.uint16, "tf32": np.float32, "f64": np.float64, "s8": np.int8, "u8": np.uint8,
    "e4m3": np.uint8, "e5m2": np.uint8, "f32": np.float32, "s32": np.int32,
}  # fmt: skip


def held(matrix: np.ndarray, kind: str) -> np.ndarray:
    """Return small whole numbers as elements of a type."""
    if kind == "bf16":
        return (matrix.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if kind == "e5m2":
        return (matrix.astype(np.float16).view(np.uint16) >> 8).astype(np.uint8)
    if kind == "e4m3":  # -3 to 3: the sign, the exponent and the fraction
        codes = np.array([0, 0x38, 0x40, 0x44], np.uint8)
        return codes[np.abs(matrix)] | np.where(matrix < 0, 0x80, 0).astype(np.uint8)
    return matrix.astype(HELD[kind])


def fragments_of_mma(a: np.ndarray, b: np.ndarray, c: np.ndarray, bits: int, sum_bits: int) -> list[np.ndarray]:
    """Return the registers of each lane (PTX ISA, fragments of mma.m16n8k8, k16, k32, k4 and m8n8k4)."""
    rows, depth = a.shape
    group, four = np.arange(32) // 4, np.arange(32) % 4
    together = max(32 // bits, 1)
    a_held = [
        a[group + 8 * half, together * four + part + base]
        for base in range(0, depth, 4 * together) for half in range(rows // 8) for part in range(together)
    ]  # fmt: skip
    b_held = [
        b[together * four + part + base, group] for base in range(0, depth, 4 * together) for part in range(together)
    ]
    c_held = [c[group + 8 * half, 2 * four + part] for half in range(rows // 8) for part in range(2)]
    words = []
    for elements, size in ((a_held, bits), (b_held, bits), (c_held, sum_bits)):
        lanes = np.ascontiguousarray(np.stack(elements, axis=1))
        words.append(lanes.view(np.uint64 if size == 64 else np.uint32))
    return words


@pytest.mark.parametrize(("rows", "depth", "kind", "sums"), MMA)
def test_products_of_mma_are_those_of_numpy(rows: int, depth: int, kind: str, sums: str) -> None:
    random = np.random.default_rng(rows + depth)
    low = 0 if kind == "u8" else -3
    a, b, c = (random.integers(low, 4, size) for size in ((rows, depth), (depth, 8), (rows, 8)))
    wide = kind == "f64"
    words = fragments_of_mma(
        held(a, kind), held(b, kind), held(c, sums), 8 * HELD[kind]().itemsize, 8 * HELD[sums]().itemsize
    )
    size, letter = (8, "rd") if wide else (4, "r")
    text = f"{HEAD}.visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3) {{\n"
    text += ".reg .b64 %rd<90>; .reg .b32 %r<90>; mov.u32 %r80, %tid.x;\n"
    operands, first = [], 0
    for number, held_words in enumerate(words):
        count = held_words.shape[1]
        text += f"ld.param.u64 %rd{80 + number}, [p{number}]; mul.wide.u32 %rd89, %r80, {size * count};"
        text += f"add.s64 %rd{80 + number}, %rd{80 + number}, %rd89;\n"
        names = [f"%{letter}{first + n}" for n in range(count)]
        text += "".join(f"ld.global.b{8 * size} {x}, [%rd{80 + number}+{size * n}];" for n, x in enumerate(names))
        operands.append(f"{{{','.join(names)}}}")
        first += count
    out = [f"%{letter}{first + n}" for n in range(words[2].shape[1])]
    satfinite = ".satfinite" if sums == "s32" else ""
    text += f"mma.sync.aligned.m{rows}n8k{depth}.row.col{satfinite}.{sums}.{kind}.{kind}.{sums} "
    text += f"{{{','.join(out)}}}, {', '.join(operands)};\nld.param.u64 %rd83, [p3]; "
    text += f"mul.wide.u32 %rd89, %r80, {size * len(out)}; add.s64 %rd83, %rd83, %rd89;"
    text += "".join(f"st.global.b{8 * size} [%rd83+{size * n}], {x};" for n, x in enumerate(out)) + "ret; }"
    given = [*words, np.zeros_like(words[2])]
    got = run_kernel(lower(parse_ptx(text, "mma.ptx")), [1], [32], given).outputs["arg3"]
    expected = fragments_of_mma(a, b, a @ b + c, 64, 64)[2].view(np.int64)
    assert np.array_equal(got.view(HELD[sums]).astype(np.int64), expected)


#: ``wgmma``: types of the factors and of the sums; swizzle of both factors (0 none, 1 to 3 for 128, 64 and 32 bytes);
#: whether they are turned, so that the depth is the slow dimension; and whether the left one is in registers.
GROUPS = [
    *(("f16", "f32", mode, turns, False) for mode in range(4) for turns in ((0, 0), (1, 1), (0, 1))),
    ("f16", "f16", 1, (0, 1), False), ("bf16", "f32", 2, (1, 0), False), ("tf32", "f32", 1, (0, 0), False),
    ("e4m3", "f32", 2, (0, 0), False), ("s8", "s32", 3, (0, 0), False), ("u8", "s32", 0, (0, 0), False),
    ("f16", "f32", 1, (0, 1), True), ("tf32", "f32", 3, (0, 0), True), ("s8", "s32", 1, (0, 0), True),
]  # fmt: skip


def laid_out(elements: np.ndarray, mode: int, turned: int) -> tuple[np.ndarray, int]:
    """Return 32 KiB of shared memory with a factor, and its descriptor without the address (PTX ISA, wgmma).

    Element (line, deep) of a factor is that of row or column `line`.
    """
    size, width = elements.itemsize, {0: 16, 1: 128, 2: 64, 3: 32}[mode]
    line, deep = np.indices(elements.shape)
    if turned:
        across, stride = line * size, 8 * width
        leading = stride * elements.shape[1] // 8
        if mode == 0:
            leading, stride = stride, leading
        far, near = (leading, stride) if mode else (stride, leading)
        address = across % width + across // width * far + deep % 8 * width + deep // 8 * near
    else:
        along, stride, leading = deep * size, 8 * width, 128
        stride = 256 if mode == 0 else stride
        address = line // 8 * stride + line % 8 * width + along % width + along // width * leading
    address ^= (address >> 7 & {0: 0, 1: 7, 2: 3, 3: 1}[mode]) << 4
    memory = np.zeros(1 << 15, np.uint8)
    for byte in range(size):
        memory[address + byte] = np.ascontiguousarray(elements).view(np.uint8).reshape(*elements.shape, size)[..., byte]
    return memory, leading >> 4 << 16 | stride >> 4 << 32 | mode << 62


@pytest.mark.parametrize(("kind", "sums", "mode", "turns", "in_registers"), GROUPS)
def test_products_of_wgmma_are_those_of_numpy(
    kind: str, sums: str, mode: int, turns: tuple[int, int], in_registers: bool
) -> None:
    size, columns = HELD[kind]().itemsize, 40 if mode == 0 else 128
    depth, random = 32 // size, np.random.default_rng(mode)
    low = 0 if kind == "u8" else -3
    a, b = random.integers(low, 4, (64, depth)), random.integers(low, 4, (columns, depth))
    c = random.integers(-3, 4, (64, columns))
    left, left_facts = laid_out(held(a, kind), mode, turns[0])
    right, right_facts = laid_out(held(b, kind), mode, turns[1])
    # Lanes of four warps, each with 16 rows, hold the sums and the left matrix as those of mma.m16n8k16 do.
    each = [
        fragments_of_mma(
            held(a[16 * w : 16 * w + 16], kind), held(b[:8], kind).T,
            held(c[16 * w : 16 * w + 16, first : first + 8], sums), 8 * size, 8 * HELD[sums]().itemsize,
        )
        for w in range(4) for first in range(0, columns, 8)
    ]  # fmt: skip
    tiles = columns // 8
    given = np.concatenate([np.hstack([each[w * tiles + n][2] for n in range(tiles)]) for w in range(4)])
    held_left = np.concatenate([each[w * tiles][0] for w in range(4)])
    count = given.shape[1]
    d = "{" + ",".join(f"%d{n}" for n in range(count)) + "}"
    signs = "" if sums == "s32" else ", -1, 1"
    turned = "" if size != 2 else f", {turns[1]}" if in_registers else f", {turns[0]}, {turns[1]}"
    source = "{%a0,%a1,%a2,%a3}" if in_registers else "%rd4"
    text = f"""{HEAD.replace("sm_80", "sm_90a")}.extern .shared .align 1024 .b8 tile[];
    .visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3) {{
    .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .b32 %d<{count}>; .reg .b32 %a<4>; .reg .pred %p<3>;
    ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; ld.param.u64 %rd2, [p2]; ld.param.u64 %rd3, [p3];
    mov.u32 %r0, %tid.x; mul.wide.u32 %rd6, %r0, 16; add.s64 %rd0, %rd0, %rd6; mov.u32 %r1, tile;
    mad.lo.u32 %r1, %r0, 16, %r1; mul.wide.u32 %rd6, %r0, 16; add.s64 %rd1, %rd1, %rd6;
    mul.wide.u32 %rd6, %r0, {4 * count}; add.s64 %rd2, %rd2, %rd6; add.s64 %rd3, %rd3, %rd6;
    ld.global.v4.b32 {{%a0,%a1,%a2,%a3}}, [%rd1];\n"""
    for n in range(32):
        text += f"ld.global.v4.b32 {{%r2,%r3,%r4,%r5}}, [%rd0+{2048 * n}]; "
        text += f"st.shared.v4.b32 [%r1+{2048 * n}], {{%r2,%r3,%r4,%r5}};\n"
    text += "".join(f"ld.global.b32 %d{n}, [%rd2+{4 * n}];" for n in range(count))
    text += f"""bar.sync 0; mov.u64 %rd4, {left_facts}; mov.u64 %rd5, {right_facts | 1 << 11}; wgmma.fence.sync.aligned;
    setp.eq.u32 %p1, %r0, 999; setp.ne.u32 %p2, %r0, 999;\n"""
    product = f"wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.{sums}.{kind}.{kind} {d}, {source}, %rd5"
    text += f"{product}, %p2{signs}{turned};\nwgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n"
    text += "".join(f"st.global.b32 [%rd3+{4 * n}], %d{n};" for n in range(count))
    text += f"{product}, %p1{signs}{turned};\n"
    text += "".join(f"st.global.b32 [%rd3+{4 * (count * 128 + n)}], %d{n};" for n in range(count)) + "ret; }"
    memory = np.concatenate([left, right])
    arguments = [memory, held_left, given, np.zeros((2, *given.shape), np.uint32)]
    program = lower(parse_ptx(text, "wgmma.ptx"))
    got = run_kernel(program, [1], [128], arguments, shared_bytes=1 << 16).outputs["arg3"]
    sign = 1 if sums == "s32" else -1
    for number, exact in enumerate((sign * (a @ b.T) + c, sign * (a @ b.T))):
        parts = [
            fragments_of_mma(a[:16], b[:8].T, exact[16 * w : 16 * w + 16, first : first + 8], 64, 64)[2].view(np.int64)
            for w in range(4) for first in range(0, columns, 8)
        ]  # fmt: skip
        expected = np.concatenate([np.hstack(parts[w * tiles : w * tiles + tiles]) for w in range(4)])
        assert np.array_equal(np.ascontiguousarray(got[number]).view(HELD[sums]).astype(np.int64), expected)


def test_factors_of_wgmma_outside_shared_memory_end_the_run() -> None:
    text = f"""{HEAD.replace("sm_80", "sm_90a")}.visible .entry k() {{
    .reg .b64 %rd<3>; .reg .b32 %d<4>; mov.u64 %rd1, 4096;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%d0,%d1,%d2,%d3}}, %rd1, %rd1, 0, 1, 1, 0, 0; ret; }}"""
    with pytest.raises(
        InvalidInputError, match=r"w\.ptx: line 4: k, block .* address 0x10000 is outside the 512 bytes"
    ):
        run_kernel(lower(parse_ptx(text, "w.ptx")), [1], [128], [], shared_bytes=512)


@pytest.mark.parametrize(
    "instruction",
    [
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32 {%a0,%a1,%a2,%a3}, {%a0}, {%a0}, {%a0};",
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%a0,%a1,%a2,%a3}, {%a0}, {%a0}, {%a0};",
        "mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32 {%a0,%a1,%a2,%a3}, {%a0}, {%a0}, {%a0};",
        "wmma.load.a.sync.aligned.row.m16n16k8.global.f16 {%a0,%a1,%a2,%a3}, [%rd0];",
        "wmma.load.c.sync.aligned.row.m16n16k8.global.s32 {%a0,%a1,%a2,%a3,%a4,%a5,%a6,%a7}, [%rd0];",
        "wmma.mma.sync.aligned.row.col.m16n16k16.f32.s8.s8.f32 {%a0}, {%a0}, {%a0}, {%a0};",
        "wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%a0,%a1,%a2,%a3}, [%rd0];",
        "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32.satfinite {%a0}, {%a0}, {%a0}, {%a0};",
        "tex.3d.v4.f32.f32 {%a0,%a1,%a2,%a3}, [%rd0, {%a4,%a5,%a6,%a7}];",
        "tex.2d.v4.f32.f32 {%a0,%a1,%a2,%a3}, [%rd0, {%a4}];",
    ],
)
def test_shapes_that_are_not_supported_are_named_with_their_line(instruction: str) -> None:
    text = f"{HEAD}.visible .entry k() {{ .reg .b64 %rd<2>; .reg .b32 %a<9>;\n{instruction}\nret; }}"
    with pytest.raises(InvalidInputError, match=r"t\.ptx: line 3: (wmma|tex|mma)\..* is not supported"):
        lower(parse_ptx(text, "t.ptx"))


def texture_kernel(geometry: str, result: str, kind: str) -> str:
    place = "{%a0, %a1}" if geometry == "2d" else "{%a0}"
    return f"""{HEAD}.visible .entry fetch(.param .u64 y, .param .u64 x, .param .u64 t) {{
.reg .b64 %rd<6>; .reg .b32 %a<9>;
ld.param.u64 %rd0, [y]; ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [t];
mov.u32 %a4, %tid.x; mul.wide.u32 %rd3, %a4, 8; add.s64 %rd1, %rd1, %rd3; ld.global.v2.u32 {{%a0, %a1}}, [%rd1];
tex.{geometry}.v4.{result}.{kind} {{%a0, %a1, %a2, %a3}}, [%rd2, {place}];
mul.wide.u32 %rd3, %a4, 16; add.s64 %rd0, %rd0, %rd3; st.global.v4.u32 [%rd0], {{%a0, %a1, %a2, %a3}};
ret; }}"""


def fetched(folder: Path, texels: np.ndarray, at: np.ndarray, result: str = "f32", **how: Any) -> np.ndarray:
    """Return what a kernel fetches at coordinates: four channels each."""
    file = folder / "fetch.ptx"
    kind = "f32" if at.dtype == np.float32 else "s32"
    file.write_text(texture_kernel("2d" if texels.ndim > 1 else "1d", result, kind))
    buffers = {"y": np.zeros((len(at), 4), np.float32 if result == "f32" else np.int32), "x": at, "t": texels}
    call = KernelLaunch(file, "fetch", (1, 1, 1), (len(at), 1, 1), ("y", "x", Texture("t", **how)))
    return simulate_plan(LaunchPlan("fetch", buffers, (call,))).outputs["y"]


def linear(texels: np.ndarray, at: np.ndarray, pad: str) -> np.ndarray:
    """Return the bilinear filter of the CUDA Programming Guide, with texels around the texture added before."""
    around = np.pad(texels.astype(np.float64), 16, {"clamp": "edge", "border": "constant"}.get(pad, pad))  # type: ignore[call-overload]
    x, y = (at.astype(np.float64) - 0.5).T
    i, j = np.floor(x).astype(int), np.floor(y).astype(int)
    a, b = np.round((x - i) * 256) / 256, np.round((y - j) * 256) / 256
    i, j = i + 16, j + 16
    top = (1 - a) * around[j, i] + a * around[j, i + 1]
    return (1 - b) * top + b * ((1 - a) * around[j + 1, i] + a * around[j + 1, i + 1])


@pytest.mark.parametrize("addressing", ["clamp", "border", "wrap", "mirror"])
def test_fetches_filter_and_address_as_the_guide_says(tmp_path: Path, addressing: str) -> None:
    random = np.random.default_rng(7)
    texels = random.standard_normal((8, 16)).astype(np.float32)
    at = (random.random((96, 2)) * [28, 20] - [6, 6]).astype(np.float32)
    scaled = addressing in ("wrap", "mirror")
    given = (at / [16, 8]).astype(np.float32) if scaled else at
    pad = "symmetric" if addressing == "mirror" else addressing
    exact = given.astype(np.float64) * [16, 8] if scaled else at
    got = fetched(tmp_path, texels, given, filtering="linear", addressing=addressing, normalized=scaled)
    # A coordinate that is rounded may take the next of 256 weights.
    assert np.abs(got[:, 0] - linear(texels, exact, pad)).max() < (0.02 if scaled else 1e-6)
    assert not got[:, 1:].any()
    inside = np.floor(exact).astype(int) + 16
    mode: Any = {"clamp": "edge", "border": "constant"}.get(pad, pad)
    around = np.pad(texels, 16, mode)
    nearest = fetched(tmp_path, texels, given, addressing=addressing, normalized=scaled)
    assert np.array_equal(nearest[:, 0], around[inside[:, 1], inside[:, 0]])


def test_fetches_of_integers_channels_and_lines(tmp_path: Path) -> None:
    texels = np.random.default_rng(8).integers(-128, 128, size=(4, 8, 2)).astype(np.int8)
    at = np.array([[0, 0], [7, 3], [-5, 9], [3, 1]], np.int32)
    got = fetched(tmp_path, texels, at, "s32")
    assert got[:, :2].tolist() == [texels[j, i].tolist() for i, j in ((0, 0), (7, 3), (0, 3), (3, 1))]
    assert not got[:, 2:].any()
    bytes_, middle = np.arange(8, dtype=np.uint8) * 30, np.array([[2.5, 0], [3.0, 0]], np.float32)
    assert np.allclose(fetched(tmp_path, bytes_, middle, filtering="linear")[:, 0] * 255, [60, 75])
    half = np.arange(4, dtype=np.float16).reshape(2, 2) / 3
    assert fetched(tmp_path, half, np.array([[1.5, 1.5]], np.float32))[0, 0] == np.float32(half[1, 1])


PLAN = """
[buffers]
y = { dtype = "f32", shape = [2, 4] }
x = { dtype = "f32", shape = [2, 2], fill = "uniform", low = 2.5, high = 2.5 }
t = { dtype = "f32", shape = [4, 8], fill = "arange" }
[textures]
image = { buffer = "t", filtering = "linear" }
[[launches]]
ptx = "fetch.ptx"
entry = "fetch"
grid = [1]
block = [2]
arguments = ["y", "x", "image"]
"""


def test_plans_have_textures(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    (tmp_path / "fetch.ptx").write_text(texture_kernel("2d", "f32", "f32"))
    file.write_text(PLAN)
    plan = read_plan(file)
    assert simulate_plan(plan).outputs["y"][:, 0].tolist() == [18.0, 18.0]
    named = {name: plan.buffers[name] for name in ("y", "x", "t")}
    texture = Texture("t", filtering="linear")
    result = sp.simulate_kernel(
        tmp_path / "fetch.ptx", grid=1, block=2, arguments=["y", "x", texture], options=sp.KernelOptions(buffers=named)
    )
    assert result.outputs["y"][:, 0].tolist() == [18.0, 18.0]
    for old, new, message in (
        ("image =", "x =", "textures.x: a buffer has the same name"),
        ('buffer = "t"', 'buffer = "z"', "textures.image.buffer: there is no buffer 'z'"),
        ('"image"]', '"images"]', "there is no buffer or texture 'images'"),
        ('"linear"', '"cubic"', "filtering 'cubic'"),
    ):
        file.write_text(PLAN.replace(old, new))
        with pytest.raises(InvalidInputError, match=message):
            read_plan(file)


@pytest.mark.skipif(not ptx_kernels.PTX.is_dir(), reason="no ../shared/data/ptx")
def test_kernels_with_textures_and_wmma_compute_what_numpy_does() -> None:
    plans = {kernel.name: kernel.plan for kernel in read_kernels(ptx_kernels.PTX / "kernels.json")}
    plan = plans["dct8x8_kernel1_tex"]()
    expected = ptx_kernels.cosines(plan.buffers["TexSrc"])
    result = simulate_plan(plan)
    assert np.abs(result.outputs["Dst"] - expected).max() <= 2e-6 * np.abs(expected).max()
    assert result.calls[0].warp_instructions == 819200

    # One row of macroblocks: 480 by 4 blocks.
    plan = plans["parboil_sad_mb_sad_calc_tex"]()
    frame, around = (plan.buffers[name].ravel()[: 16 * 1920].reshape(16, 1920) for name in ("frame", "ref"))
    buffers = {"blk_sad": np.zeros(41 * 1096 * 120, np.uint16), "frame": frame.ravel(), "ref": around}
    call = replace(plan.calls[0], grid=(480, 4, 1), arguments=("blk_sad", "frame", 120, 1, Texture("ref")))
    sums = simulate_plan(LaunchPlan("sad", buffers, (call,))).outputs["blk_sad"][25 * 1096 * 120 :]
    expected = ptx_kernels.sums_of_differences({"frame": frame, "ref": around})["blk_sad"]
    assert np.array_equal(sums.reshape(-1, 1096)[:, :1089], expected.reshape(-1, 1096)[:, :1089])

    # A block computes thirteen tiles; the first is the corner.
    plan = plans["cudaTensorCoreGemm"]()
    (runner,) = runners(plan)
    runner.run(np.arange(1))
    a, b, c = (plan.buffers[name].reshape(4096, 4096)[:128].astype(np.float64) for name in "ABC")
    tile = runner.memory.outputs()["D"].reshape(4096, 4096)[:128, :128]
    assert np.abs(tile - (np.float32(1.1) * (a @ b.T) + np.float32(1.2) * c[:, :128])).max() < 1e-3


@pytest.mark.skipif(not ptx_kernels.PTX.is_dir(), reason="no ../shared/data/ptx")
def test_a_kernel_that_works_in_place_gets_one_buffer() -> None:
    (kernel,) = (k for k in read_kernels(ptx_kernels.PTX / "kernels.json") if k.name == "fwtBatch1Kernel")
    plan = kernel.plan()
    assert plan.calls[0].arguments[:2] == ("d_Output", "d_Output") and set(plan.buffers) == {"d_Output"}
    assert set(kernel.plan(in_place=False).buffers) == {"d_Output", "d_Input"}
    (runner,) = runners(plan)
    runner.run(np.arange(4))
    got, given = (values[: 4 * 2048] for values in (runner.memory.outputs()["d_Output"], plan.buffers["d_Output"]))
    assert np.array_equal(got, ptx_kernels.walsh_in_block({"d_Output": given})["d_Output"])


def test_textures_that_cannot_be_are_refused(tmp_path: Path) -> None:
    at = np.zeros((2, 2), np.float32)
    with pytest.raises(InvalidInputError, match=r"fetch: buffer 't' of shape \(2, 2, 3\) is no texture"):
        fetched(tmp_path, np.zeros((2, 2, 3), np.float32), at)
    with pytest.raises(InvalidInputError, match="no textures of float64"):
        fetched(tmp_path, np.zeros((2, 2)), at)
    with pytest.raises(InvalidInputError, match="filtering 'cubic'"):
        Texture("t", filtering="cubic")
    program = lower(parse_ptx(texture_kernel("2d", "f32", "f32"), "t.ptx"))
    with pytest.raises(InvalidInputError, match=r"line 6: fetch, block .* is no texture of the launch"):
        run_kernel(program, [1], [2], [np.zeros((2, 4), np.float32), at, 0])

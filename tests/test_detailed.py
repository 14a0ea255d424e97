"""Kernels in PTX: reading, refusals, arithmetic against NumPy, control flow, and faults of kernels."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.detailed.operator_kernels import OPERATORS, operator_plan
from profilers.errors import InvalidInputError
from profilers.files import dataset_path
from replay.detailed import lower, parse_ptx, read_module, run_kernel
from tests import ptx_kernels

HEAD = ".version 8.0 .target sm_70 .address_size 64\n"
REGISTERS = (
    ".reg .b64 %rd<40>; .reg .b32 %r<40>; .reg .b16 %h<20>; .reg .f32 %f<40>; .reg .f64 %d<20>; .reg .pred %p<9>;\n"
)


def kernel(body: str, parameters: int = 1, more: str = "") -> Any:
    """Return a program of a body; its parameters are pointers in %rd0 and on, moved on by four bytes a thread."""
    names = ", ".join(f".param .u64 p{n}" for n in range(parameters))
    loads = "\n".join(f"ld.param.u64 %rd{n}, [p{n}]; add.s64 %rd{n}, %rd{n}, %rd39;" for n in range(parameters))
    begin = f"mov.u32 %r0, %tid.x; mul.wide.u32 %rd39, %r0, 4;\n{loads}\n"
    return lower(parse_ptx(f"{HEAD}{more}.visible .entry k({names}) {{\n{REGISTERS}{begin}{body}\nret; }}", "k.ptx"))


def outputs(body: str, *buffers: np.ndarray, threads: int = 32, blocks: int = 1, more: str = "") -> list[np.ndarray]:
    result = run_kernel(kernel(body, len(buffers), more), [blocks], [threads], list(buffers))
    return [result.outputs[f"arg{n}"] for n in range(len(buffers))]


U32 = np.random.default_rng(1).integers(0, 1 << 32, size=(3, 256), dtype=np.uint64).astype(np.uint32)
U32[:, :8] = np.array([0, 1, 2, 31, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 32], dtype=np.uint32)


def signed(values: np.ndarray) -> np.ndarray:
    return values.view(np.int32).astype(np.int64)


INTEGERS = {
    "add.s32 %r9, %r1, %r2": lambda a, b, c: a + b,
    "sub.u32 %r9, %r1, %r2": lambda a, b, c: a - b,
    "mul.lo.s32 %r9, %r1, %r2": lambda a, b, c: a * b,
    "mad.lo.s32 %r9, %r1, %r2, %r3": lambda a, b, c: a * b + c,
    "mul.hi.u32 %r9, %r1, %r2": lambda a, b, c: (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32),
    "mul.hi.s32 %r9, %r1, %r2": lambda a, b, c: (signed(a) * signed(b) >> 32).astype(np.uint32),
    "and.b32 %r9, %r1, %r2": lambda a, b, c: a & b,
    "or.b32 %r9, %r1, %r2": lambda a, b, c: a | b,
    "xor.b32 %r9, %r1, %r2": lambda a, b, c: a ^ b,
    "not.b32 %r9, %r1": lambda a, b, c: ~a,
    "neg.s32 %r9, %r1": lambda a, b, c: -a,
    "min.s32 %r9, %r1, %r2": lambda a, b, c: np.minimum(signed(a), signed(b)).astype(np.uint32),
    "max.u32 %r9, %r1, %r2": lambda a, b, c: np.maximum(a, b),
    "shr.s32 %r9, %r1, 5": lambda a, b, c: (signed(a) >> 5).astype(np.uint32),
    "shl.b32 %r9, %r1, %r2": lambda a, b, c: np.where(b < 32, a.astype(np.uint64) << (b & 31).astype(np.uint64), 0)
    .astype(np.uint32),
    "shr.u32 %r9, %r1, %r2": lambda a, b, c: np.where(b < 32, a >> (b & 31), 0).astype(np.uint32),
    "popc.b32 %r9, %r1": lambda a, b, c: np.array([int(x).bit_count() for x in a], np.uint32),
    "clz.b32 %r9, %r1": lambda a, b, c: np.array([32 - int(x).bit_length() for x in a], np.uint32),
    "brev.b32 %r9, %r1": lambda a, b, c: np.array([int(f"{x:032b}"[::-1], 2) for x in a], np.uint32),
    "bfe.u32 %r9, %r1, 5, 11": lambda a, b, c: (a >> 5) & 0x7FF,
    "bfi.b32 %r9, %r1, %r2, 4, 8": lambda a, b, c: (b & ~np.uint32(0xFF0)) | ((a & 0xFF) << 4),
    "prmt.b32 %r9, %r1, %r2, 0x5140": lambda a, b, c: (a & 0xFF) | ((b & 0xFF) << 8) | ((a >> 8 & 0xFF) << 16)
    | ((b >> 8 & 0xFF) << 24),
    "shf.l.wrap.b32 %r9, %r1, %r2, 7": lambda a, b, c: (b << 7) | (a >> 25),
    "lop3.b32 %r9, %r1, %r2, %r3, 0x96": lambda a, b, c: a ^ b ^ c,
    "setp.lt.s32 %p1, %r1, %r2; selp.b32 %r9, %r1, %r3, %p1": lambda a, b, c: np.where(signed(a) < signed(b), a, c),
    "mul.wide.s32 %rd9, %r1, %r2; shr.u64 %rd9, %rd9, 16; cvt.u32.u64 %r9, %rd9": lambda a, b, c: (
        signed(a) * signed(b) >> 16
    ).astype(np.uint32),
}  # fmt: skip


def test_integers_are_those_of_numpy() -> None:
    body = "ld.global.u32 %r1, [%rd0]; ld.global.u32 %r2, [%rd1]; ld.global.u32 %r3, [%rd2];\n"
    size = U32.shape[1]
    for number, instruction in enumerate(INTEGERS):
        body += f"{instruction};\nst.global.u32 [%rd3+{4 * size * number}], %r9;\n"
    *_, got = outputs(body, *U32, np.zeros((len(INTEGERS), size), np.uint32), threads=size)
    for row, (instruction, expected) in zip(got, INTEGERS.items(), strict=True):
        wanted = np.asarray(expected(*U32)).astype(np.uint32)
        assert np.array_equal(row, wanted), instruction


REALS = np.random.default_rng(2).standard_normal((3, 128)).astype(np.float32) * 10
REALS[0, :6] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40]
FLOATS = {
    "add.f32 %f9, %f1, %f2": lambda a, b, c: a + b,
    "mul.f32 %f9, %f1, %f2": lambda a, b, c: a * b,
    "fma.rn.f32 %f9, %f1, %f2, %f3": lambda a, b, c: (a.astype(np.longdouble) * b + c).astype(np.float32),
    "div.rn.f32 %f9, %f1, %f2": lambda a, b, c: a / b,
    "sqrt.rn.f32 %f9, %f1": lambda a, b, c: np.sqrt(a),
    "abs.f32 %f9, %f1": lambda a, b, c: np.abs(a),
    "max.f32 %f9, %f1, %f2": lambda a, b, c: np.fmax(a, b),
    "cvt.rni.f32.f32 %f9, %f1": lambda a, b, c: np.rint(a),
    "cvt.rzi.s32.f32 %r9, %f2; cvt.rn.f32.s32 %f9, %r9": lambda a, b, c: np.trunc(b),
    "cvt.rn.f16.f32 %h1, %f1; cvt.f32.f16 %f9, %h1": lambda a, b, c: a.astype(np.float16).astype(np.float32),
    "cvt.f64.f32 %d1, %f1; mul.f64 %d1, %d1, %d1; cvt.rn.f32.f64 %f9, %d1": lambda a, b, c: (
        a.astype(np.float64) ** 2
    ).astype(np.float32),
    "setp.geu.f32 %p1, %f1, %f2; selp.f32 %f9, %f1, %f3, %p1": lambda a, b, c: np.where(~(a < b), a, c),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*encountered in")
def test_floating_point_is_that_of_numpy() -> None:
    body = "ld.global.f32 %f1, [%rd0]; ld.global.f32 %f2, [%rd1]; ld.global.f32 %f3, [%rd2];\n"
    size = REALS.shape[1]
    for number, instruction in enumerate(FLOATS):
        body += f"{instruction};\nst.global.f32 [%rd3+{4 * size * number}], %f9;\n"
    *_, got = outputs(body, *REALS, np.zeros((len(FLOATS), size), np.float32), threads=size)
    for row, (instruction, expected) in zip(got, FLOATS.items(), strict=True):
        wanted = np.asarray(expected(*REALS)).astype(np.float32)
        assert np.array_equal(row, wanted, equal_nan=True), instruction


def test_special_functions_are_near_those_of_numpy() -> None:
    x = np.linspace(0.1, 3, 32, dtype=np.float32)
    names = {
        "sin": np.sin,
        "cos": np.cos,
        "ex2": np.exp2,
        "lg2": np.log2,
        "rsqrt": lambda v: 1 / np.sqrt(v),
        "tanh": np.tanh,
    }
    body = "ld.global.f32 %f1, [%rd0];\n" + "".join(
        f"{name}.approx.f32 %f2, %f1; st.global.f32 [%rd1+{128 * n}], %f2;\n" for n, name in enumerate(names)
    )
    _, got = outputs(body, x, np.zeros((len(names), 32), np.float32))
    for row, (name, function) in zip(got, names.items(), strict=True):
        assert np.allclose(row, function(x.astype(np.float64)), rtol=2e-6, atol=2e-6), name


def test_lanes_that_part_meet_again_and_loops_end_apart() -> None:
    body = """mov.u32 %r1, 0; mov.u32 %r2, 0;
LOOP: setp.ge.u32 %p1, %r1, %r0; @%p1 bra END;
and.b32 %r3, %r1, 1; setp.eq.u32 %p2, %r3, 0; @%p2 bra EVEN;
add.u32 %r2, %r2, 100; bra NEXT;
EVEN: add.u32 %r2, %r2, 1;
NEXT: add.u32 %r1, %r1, 1; bra LOOP;
END: activemask.b32 %r4; st.global.u32 [%rd0], %r2; st.global.u32 [%rd1], %r4;"""
    total, mask = outputs(body, np.zeros(32, np.uint32), np.zeros(32, np.uint32))
    assert total.tolist() == [(n + 1) // 2 + 100 * (n // 2) for n in range(32)]
    assert set(mask.tolist()) == {0xFFFFFFFF}


def test_shuffles_votes_barriers_and_atomics() -> None:
    body = """shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1; st.global.u32 [%rd0], %r1;
setp.lt.u32 %p1, %r0, 5; vote.sync.ballot.b32 %r2, %p1, -1; st.global.u32 [%rd1], %r2;
mov.u32 %r5, s; mad.lo.u32 %r6, %r0, 4, %r5; st.shared.u32 [%r6], %r0; bar.sync 0;
xor.b32 %r7, %r0, 63; mad.lo.u32 %r7, %r7, 4, %r5; ld.shared.u32 %r8, [%r7]; st.global.u32 [%rd2], %r8;
sub.s64 %rd3, %rd3, %rd39; atom.global.add.u32 %r9, [%rd3], %r0;"""
    shared = ".shared .align 4 .b8 s[256];\n"
    zeros = [np.zeros(64, np.uint32) for _ in range(4)]
    pair, ballot, other, total = outputs(body, *zeros, threads=64, more=shared)
    assert pair.tolist() == [n ^ 1 for n in range(64)]
    assert ballot.tolist() == [31] * 32 + [0] * 32
    assert other.tolist() == [n ^ 63 for n in range(64)] and total[0] == 63 * 32


FAULTS = {
    "st.global.u32 [%rd0+4096], %r0;": r"k\.ptx: line 7: k, block \(0, 0, 0\), thread \(0, 0, 0\): address .* outside",
    "st.global.u32 [%rd0+2], %r0;": "is not aligned to the access",
    "L: bra L;": "more than 1000 instructions of a warp: an endless loop",
    "mov.u32 %r5, s; shr.u32 %r6, %r0, 5; st.shared.u32 [%r5+4], %r6;": "one writes, byte 4 of s; to go on, allow",
}


@pytest.mark.parametrize("body", FAULTS)
def test_faults_of_a_kernel_name_block_thread_and_line(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.detailed.launch.INSTRUCTION_LIMIT", 1000)
    program = kernel(body, 1, ".shared .align 4 .b8 s[256];\n")
    with pytest.raises(InvalidInputError, match=FAULTS[body]):
        run_kernel(program, [1], [64], [np.zeros(64, np.uint32)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no .version"),
        (".version 5.0 .target sm_70", "PTX version '5.0'"),
        (HEAD + ".entry k() { .reg .b32 %r<3>;\nfoo.b32 %r1, %r2; ret; }", "line 3: foo.b32 is not supported"),
        (HEAD + ".entry k() { ret;", "ends in the middle"),
        (HEAD + ".entry k() { .reg .b32 %r<3>; add.s32 %r1, %r2, %q; }", "line 2: %q is no declared register"),
        (
            HEAD + ".entry k() { .reg .b32 %r<3>; mov.u32 %r1, %envreg2; }",
            "%envreg2 is no declared register, and no special",
        ),
        (HEAD + ".entry k() { bra NOWHERE; }", "there is no label NOWHERE"),
        (HEAD + ".entry k() { tcgen05.wait::ld.sync.aligned; }", "tcgen05"),
        (HEAD + ".shared .align .b8 s[4];", "line 2: .align is not supported"),
        (HEAD + ".global .u32 g[2] = {1, 2, 3};", "line 2: g has 8 bytes, and initial values of 12"),
        (HEAD + ".shared .align 3 .b8 s[4];", "line 2: .align is not supported"),
        (HEAD + f".shared .b8 s[{'9' * 5000}];", "line 2: this is no declaration"),
        (
            HEAD + ".entry k() { .reg .b32 %r<3>; .reg .b64 %q;\natom.global.foo.u32 %r1, [%q], 1; }",
            "line 3: atom.global",
        ),
        (HEAD + f".entry k() {{ .reg .b64 %q;\nld.global.u64 %q, [%q+{1 << 64}]; }}", "line 3: address .* is not"),
    ],
)
def test_what_is_not_supported_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        lower(parse_ptx(text, "k.ptx"))


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_are_those_of_numpy(operator: str) -> None:
    for seed, (rows, columns) in enumerate(((5, 252), (3, 1100))):
        plan = operator_plan(operator, rows, columns, seed=seed)
        call = plan.calls[0]
        values = [plan.buffers[a] if isinstance(a, str) else a for a in call.arguments]
        program = lower(read_module(call.ptx), call.entry)
        y = run_kernel(program, call.grid, call.block, values).outputs["arg0"].astype(np.float64)
        x = plan.buffers["x"].astype(np.float64)
        powers = np.exp(x - x.max(axis=1, keepdims=True))
        expected = {
            "add": lambda x=x, plan=plan: x + plan.buffers["other"],
            "copy": lambda x=x: x,
            "softmax": lambda powers=powers: powers / powers.sum(axis=1, keepdims=True),
            "layer_norm": lambda x=x, plan=plan: (x - x.mean(axis=1, keepdims=True))
            / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5) * plan.buffers["gamma"] + plan.buffers["beta"],
        }[operator]()  # fmt: skip
        assert np.abs(y - expected).max() < 5e-6


@pytest.mark.parametrize("name", ["softmax", "matmul_fp16", "matmul_bf16"])
def test_triton_kernels_are_those_of_numpy(name: str) -> None:
    from replay.detailed.plans import read_plan

    plan = read_plan(dataset_path(f"ptx/triton/{name}.toml"))
    call, random = plan.calls[0], np.random.default_rng(3)
    program = lower(read_module(call.ptx), call.entry)

    def wide(values: np.ndarray) -> np.ndarray:
        is_brain = values.dtype == np.uint16
        return ((values.astype(np.uint32) << 16).view(np.float32) if is_brain else values).astype(np.float64)

    for _ in range(3 if name == "softmax" else 1):
        buffers = dict(plan.buffers)
        if name == "softmax":
            buffers["x"] = random.standard_normal(buffers["x"].shape, dtype=np.float32) * 5
        values = [buffers[a] if isinstance(a, str) else a for a in call.arguments]
        result = run_kernel(program, call.grid, call.block, values, shared_bytes=call.shared_bytes).outputs
        place = {a: f"arg{n}" for n, a in enumerate(call.arguments) if isinstance(a, str)}
        if name == "softmax":
            powers = np.exp(wide(buffers["x"]) - wide(buffers["x"]).max(axis=1, keepdims=True))
            assert np.abs(result[place["y"]] - powers / powers.sum(axis=1, keepdims=True)).max() < 1e-6
        else:
            error = np.abs(wide(result[place["c"]]) - wide(buffers["a"]) @ wide(buffers["b"])).max()
            assert error < (2e-5 if name == "matmul_fp16" else 0.3) and not math.isnan(error)


@pytest.mark.skipif(not ptx_kernels.PTX.is_dir(), reason="no ../shared/data/ptx")
@pytest.mark.parametrize("name", ["srad_v1_srad", "dct8x8_kernel2", "backprop_adjust_weights"])
def test_kernels_of_benchmarks_compute_what_numpy_does(name: str) -> None:
    facts = ptx_kernels.facts()[name]
    given: dict[str, Any] = {
        p["name"]: ptx_kernels.array(p) if p["type"].endswith("*") else p["value"] for p in facts["params"]
    }
    program = lower(read_module(Path(ptx_kernels.PTX) / facts["ptx"]), facts["entry"])
    result = run_kernel(program, facts["grid"], facts["block"], list(given.values()))
    place = {p: f"arg{n}" for n, p in enumerate(given)}
    for output, expected in ptx_kernels.EXPECTED[name](given).items():
        got = result.outputs[place[output]]
        scale = max(float(np.abs(expected).max()), 1e-30)
        assert np.abs(got - expected).max() <= 2e-6 * scale, output
    wanted = facts["checks_interpreter_vs_counters"]["ptx_warp_instr"]
    assert abs(result.calls[0].warp_instructions - wanted) <= 0.01 * wanted

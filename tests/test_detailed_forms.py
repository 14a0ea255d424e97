"""Forms of PTX that compilers emit: debug information, scopes, functions, structures, and what warps do together."""

from pathlib import Path

import numpy as np
import pytest

from profilers.errors import InvalidInputError
from replay.detailed import KernelLaunch, LaunchPlan, Structure, lower, parse_ptx, run_kernel
from replay.detailed.launch import BlockRunner, PlanMemory
from replay.detailed.plans import read_plan
from replay.detailed.timing.simulation import simulate_plan

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
#: A kernel of one block, with pointers in %rd0 and %rd1 to four bytes of each thread.
BEGIN = """.visible .entry k(.param .u64 p0, .param .u64 p1) {
.reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b16 %h<9>; .reg .pred %p<4>;
ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 4;
add.s64 %rd0, %rd0, %rd2; add.s64 %rd1, %rd1, %rd2;
"""


def result(body: str, x: np.ndarray, before: str = "", dtype: type = np.uint32) -> np.ndarray:
    """Return what each thread stores at %rd1; `body` follows the instructions of `BEGIN`."""
    program = lower(parse_ptx(f"{HEAD}{before}{BEGIN}{body} ret; }}", "k.ptx"))
    return run_kernel(program, [1], [len(x)], [x, np.zeros(len(x), dtype)]).outputs["arg1"]


def test_debug_information_is_passed_over() -> None:
    text = f"""{HEAD}
.extern .shared .align 16 .b8 global_smem[];
.visible .entry k(.param .u64 .ptr .global .align 16 p0, .param .u64 .ptr .global .align 16 p1)
.reqntid 32
{{
.reg .b32 %r<4>; .reg .b64 %rd<4>;
.loc 1 12 0 // kernel.py:12:0
$L__func_begin0:
.loc	1 14 8, function_name $L__info_string0, inlined_at 1 13 4
mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [p0]; ld.param.b64 %rd2, [p1];
mul.wide.u32 %rd3, %r1, 4; add.s64 %rd1, %rd1, %rd3; add.s64 %rd2, %rd2, %rd3;
// begin inline asm
	.loc 1 15 8
mov.u32 %r2, 0x0;
ld.global.L1::evict_last.b32 {{ %r2 }}, [ %rd1 + 0 ];
// end inline asm
$L__tmp0:
st.global.b32 [ %rd2 + 0 ], {{ %r2 }};
ret;
$L__tmp1:
$L__func_end0:
}}
	.file	1 "/home/user/kernel.py", 1700000000, 123
	.section	.debug_abbrev
	{{
.b8 1 // Abbreviation Code
.b32 $L__tmp0
	}}
	.section	.debug_macinfo	{{	}}
"""
    x = np.arange(32, dtype=np.uint32) * 3
    out = run_kernel(lower(parse_ptx(text, "k.ptx")), [1], [32], [x, np.zeros_like(x)]).outputs["arg1"]
    assert np.array_equal(out, x)
    with pytest.raises(InvalidInputError, match=r"k\.ptx: line \d+: the file ends in the middle"):
        parse_ptx(text[: text.index("$L__tmp0\n\t}")], "k.ptx")


def test_names_within_braces_are_their_own() -> None:
    body = """ld.global.u32 %r1, [%rd0];
    { .reg .b32 t<3>, %r2; add.u32 t0, %r1, 1; mov.u32 %r2, t0; mul.lo.u32 %r1, %r2, 2; }
    { .reg .b64 t<3>; .reg .pred %r2; cvt.u64.u32 t1, %r1; setp.gt.u64 %r2, t1, 10; @!%r2 mov.u32 %r1, 7; }
    mov.b64 %rd3, {%r1, %r0}; mov.b64 {_, %r3}, %rd3; mad.lo.u32 %r1, %r3, 100, %r1; st.global.u32 [%rd1], {%r1};"""
    x = np.arange(32, dtype=np.uint32)
    doubled = 2 * (x + 1)
    assert np.array_equal(result(body, x), np.where(doubled > 10, doubled, 7) + 100 * x)


FUNCTIONS = """
.extern .func (.param .b32 func_retval0) vprintf (.param .b64 p0, .param .b64 p1);
.extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e) .noreturn;
.func (.param .b32 out) power(.param .b32 power_0, .param .b32 power_1) {
.reg .f32 %f<4>; .reg .b32 %r<4>; .reg .pred %p<2>;
ld.param.f32 %f1, [power_0]; ld.param.u32 %r1, [power_1]; mov.f32 %f2, 0f3F800000;
$top: setp.eq.u32 %p1, %r1, 0; @%p1 bra $done; mul.f32 %f2, %f2, %f1; sub.u32 %r1, %r1, 1; bra $top;
$done: st.param.f32 [out+0], %f2; ret; }
.func (.param .align 8 .b8 out[16]) both(.param .align 8 .b8 both_0[16]) {
.reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .f32 %f<3>;
ld.param.b32 %r1, [both_0]; ld.param.b64 %rd1, [both_0+8]; add.u32 %r1, %r1, 5; shl.b64 %rd1, %rd1, 1;
{ .param .b32 a; .param .b32 b; .param .b32 c; mov.f32 %f1, 0f40000000; mov.u32 %r2, 3;
st.param.f32 [a], %f1; st.param.b32 [b], %r2; call.uni (c), power, (a, b); ld.param.f32 %f2, [c]; }
cvt.rzi.u32.f32 %r2, %f2; add.u32 %r1, %r1, %r2;
st.param.b32 [out], %r1; st.param.b64 [out+8], %rd1; ret; }
.func (.param .b32 out) endless(.param .b32 in) { .reg .b32 %r<2>; ld.param.b32 %r1, [in];
{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call.uni (b), endless, (a); } ret; }
"""
CALL = "{ .param .b32 param0; .param .b32 param1; .param .b32 retval0; "


def test_functions_are_called() -> None:
    body = f"""ld.global.f32 %f1, [%rd0]; and.b32 %r1, %r0, 3; setp.lt.u32 %p1, %r0, 16; mov.f32 %f2, 0f00000000;
    {CALL} st.param.f32 [param0+0], %f1; st.param.b32 [param1+0], %r1;
    call.uni (retval0), power, (param0, param1); ld.param.f32 %f2, [retval0+0]; }}
    {CALL} st.param.f32 [param0], %f2; st.param.b32 [param1], 2;
    @%p1 call (retval0), power, (param0, param1); @%p1 ld.param.f32 %f2, [retval0]; }} st.global.f32 [%rd1], %f2;"""
    x = np.linspace(-2, 2, 64, dtype=np.float32)
    power = x ** (np.arange(64) & 3)
    assert np.allclose(result(body, x, FUNCTIONS, np.float32), np.where(np.arange(64) < 16, power**2, power), rtol=1e-6)


def test_structures_are_passed_to_functions() -> None:
    body = """ld.global.u32 %r1, [%rd0]; mul.wide.u32 %rd3, %r1, 7;
    { .param .align 8 .b8 param0[16]; .param .align 8 .b8 retval0[16];
    st.param.b32 [param0], %r1; st.param.b64 [param0+8], %rd3; call.uni (retval0), both, (param0);
    ld.param.b32 %r2, [retval0]; ld.param.b64 %rd4, [retval0+8]; }
    cvt.u32.u64 %r3, %rd4; mad.lo.u32 %r1, %r3, 1000, %r2; st.global.u32 [%rd1], %r1;"""
    x = np.arange(32, dtype=np.uint32)
    assert np.array_equal(result(body, x, FUNCTIONS), 14000 * x + x + 13)


def test_printf_prints_nothing_and_failed_assertions_end_the_run() -> None:
    body = """ld.global.u32 %r1, [%rd0]; setp.lt.u32 %p1, %r1, 40; @%p1 bra fine;
    { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
    call.uni __assertfail, (a, b, c, d, e); }
    fine: { .param .b64 a; .param .b64 b; .param .b32 c; call.uni (c), vprintf, (a, b); ld.param.b32 %r2, [c]; }
    add.u32 %r1, %r1, %r2; st.global.u32 [%rd1], %r1;"""
    x = np.arange(40, dtype=np.uint32)
    assert np.array_equal(result(body, x, FUNCTIONS), x)
    with pytest.raises(
        InvalidInputError, match=r"k\.ptx: line \d+: k, block \(0, 0, 0\), thread \(40, 0, 0\): the kernel g"
    ):
        result(body, np.arange(64, dtype=np.uint32), FUNCTIONS)


def test_structures_of_the_kernel_are_read_by_address_beside_calls() -> None:
    """A kernel that indexes a structure it gets by value reads it with ``ld.param [%register]``."""
    text = f"""{HEAD}{FUNCTIONS}.visible .entry k(.param .u64 p, .param .align 4 .b8 s[32]) {{
    .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .f32 %f<9>; .local .align 4 .b8 other[64];
    ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2;
    mov.b64 %rd3, s; add.s64 %rd4, %rd3, %rd2; ld.param.f32 %f1, [%rd4];
    {{ .param .align 4 .b8 a[4]; .param .b32 b; .param .b32 c; mov.b64 %rd5, a; st.param.f32 [%rd5], %f1;
    st.param.b32 [b], 2; call.uni (c), power, (a, b); ld.param.f32 %f2, [c]; }}
    st.global.f32 [%rd1], %f2; ret; }}"""
    program = lower(parse_ptx(text, "k.ptx"))
    values = Structure(tuple(("f32", float(n)) for n in range(8)))
    plan_call = KernelLaunch(Path("k.ptx"), "k", (1, 1, 1), (8, 1, 1), ("y", values))
    memory = PlanMemory({"y": np.zeros(8, np.float32)}, [program.module])
    memory.allocate(4096)
    BlockRunner(program, plan_call, memory).run(np.arange(1))
    assert memory.outputs()["y"].tolist() == [float(n) ** 2 for n in range(8)]
    mixed = text.replace("mov.b64 %rd5, a;", "mov.b64 %rd5, a; selp.b64 %rd5, %rd5, %rd3, 1;")
    with pytest.raises(InvalidInputError, match="%rd5 is the address of a parameter"):
        lower(parse_ptx(mixed, "k.ptx"))


def test_directives_without_blanks() -> None:
    body = "{.reg.b32 t; .reg.b16%t<2>; ld.global.u32 t, [%rd0]; add.u32 t, t, 2; st.global.u32 [%rd1], t; }"
    assert result(body, np.arange(32, dtype=np.uint32)).tolist() == list(range(2, 34))


def test_the_length_of_a_table_may_be_that_of_its_values() -> None:
    before = ".const .align 4 .u32 c[] = {5, 6, 7};\n.const .align 4 .u32 d = 8;\n"
    body = """ld.const.u32 %r1, [c+8]; ld.const.u32 %r2, [d];
    mad.lo.u32 %r1, %r2, 10, %r1; st.global.u32 [%rd1], %r1;"""
    assert result(body, np.zeros(32, np.uint32), before).tolist() == [87] * 32
    with pytest.raises(InvalidInputError, match="outside all buffers"):
        result("ld.const.u32 %r1, [c+12];", np.zeros(32, np.uint32), before)


def test_clocks_count_instructions() -> None:
    body = """mov.u32 %r1, %clock; add.u32 %r3, %r0, 1; mov.u32 %r2, %clock; sub.u32 %r1, %r2, %r1;
    mov.u64 %rd3, %clock64; mov.u64 %rd4, %globaltimer; sub.s64 %rd4, %rd4, %rd3; cvt.u32.u64 %r2, %rd4;
    mad.lo.u32 %r1, %r1, 10, %r2; st.global.u32 [%rd1], %r1;"""
    assert result(body, np.zeros(32, np.uint32)).tolist() == [21] * 32


def test_spaces_of_addresses() -> None:
    before = ".shared .align 4 .b8 s[16];\n.global .align 4 .b8 g[16];\n.const .align 4 .b8 c[4] = {1, 0, 0, 0};\n"
    body = """.local .align 4 .b8 l[16]; mov.u64 %rd3, s; cvta.shared.u64 %rd3, %rd3; mov.u64 %rd4, l;
    cvta.local.u64 %rd4, %rd4; mov.u64 %rd5, g; mov.u32 %r1, 0;
    isspacep.shared %p1, %rd3; @%p1 or.b32 %r1, %r1, 1; isspacep.global %p1, %rd3; @%p1 or.b32 %r1, %r1, 2;
    isspacep.local %p1, %rd4; @%p1 or.b32 %r1, %r1, 4; isspacep.shared::cta %p1, %rd4; @%p1 or.b32 %r1, %r1, 8;
    isspacep.global %p1, %rd5; @%p1 or.b32 %r1, %r1, 16; isspacep.local %p1, %rd5; @%p1 or.b32 %r1, %r1, 32;
    st.global.u32 [%rd1], %r1;"""
    assert result(body, np.zeros(32, np.uint32), before).tolist() == [1 + 4 + 16] * 32
    for wrong in ("isspacep.tensor %p1, %rd0;", "isspacep.shared %p1;", "isspacep;"):
        with pytest.raises(InvalidInputError, match=r"line 8: isspacep.* is not supported"):
            result(wrong, np.zeros(32, np.uint32))


@pytest.mark.parametrize("place", ["param0+0]%f1", "param0+", "param0+x", "param0+0]+", ""])
def test_wrong_places_beside_calls_are_refused(place: str) -> None:
    body = f"{CALL} st.param.f32 [{place}], %f1; call.uni (retval0), power, (param0, param1); }}"
    with pytest.raises(InvalidInputError, match=r"k\.ptx: line \d+: "):
        result(body, np.zeros(32, np.uint32), FUNCTIONS)


def test_the_number_of_a_barrier_may_be_in_a_register() -> None:
    body = "mov.u32 %r1, 0; barrier.sync %r1; shr.u32 %r1, %r0, 5; st.global.u32 [%rd1], %r1;"
    assert result(body, np.zeros(64, np.uint32)).tolist() == [0] * 32 + [1] * 32
    with pytest.raises(InvalidInputError, match=r"thread \(32, 0, 0\): only barrier 0 is supported"):
        result("shr.u32 %r1, %r0, 5; barrier.sync %r1;", np.zeros(64, np.uint32))


def test_entries_by_their_name_in_the_source() -> None:
    names = ("_Z5scalePfi", "_ZN2ns4blurEPf", "_Z4foldILi64EEvPi", "_Z4foldILi32EEvPi", "_Z15scalePf")
    module = parse_ptx(HEAD + "".join(f".visible .entry {name}() {{ ret; }}\n" for name in names), "k.ptx")
    assert [module.entry(name).name for name in ("scale", "blur", "_Z15scalePf")] == [*names[:2], names[4]]
    for name, problem in (("fold", "several entries are called 'fold'"), ("cale", "no entry is called 'cale'")):
        with pytest.raises(InvalidInputError, match=rf"k.ptx: {problem}; there are _Z5scalePfi, "):
            module.entry(name)


def test_tables_of_functions_are_there_until_one_is_called() -> None:
    table = ".func other() { ret; }\n.global .align 8 .u64 table[2] = {other, 0};\n"
    body = "mov.u64 %rd3, table; ld.global.u64 %rd4, [%rd3]; cvt.u32.u64 %r1, %rd4; st.global.u32 [%rd1], %r1;"
    assert result(body, np.zeros(32, np.uint32), table).tolist() == [0] * 32
    with pytest.raises(InvalidInputError, match="calls of a function by its address are not supported"):
        result(f"{body} call %rd4, prototype;", np.zeros(32, np.uint32), table)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("call.uni (retval0), endless, (param0);", "function endless calls itself"),
        ("call.uni (retval0), malloc, (param0);", "malloc in a kernel is not supported"),
        ("call.uni (retval0), other, (param0);", "function other is called, but is not in the file"),
        ("call.uni (retval0), power, (param0);", "this call of power has other parameters"),
        ("call (retval0), %rd3, (param0), prototype_0;", "calls of a function by its address"),
    ],
)
def test_calls_that_cannot_be_replaced_are_refused(call: str, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"k\.ptx: line \d+: {problem}"):
        result(f"{CALL} {call} }}", np.zeros(32, np.uint32), FUNCTIONS)


def test_warps_match_and_reduce() -> None:
    x = np.random.default_rng(3).integers(0, 4, 64).astype(np.uint32)
    lanes = 1 << np.arange(32, dtype=np.int64)
    alike = np.concatenate([[lanes[w == value].sum() for value in w] for w in x.reshape(2, 32)])
    assert np.array_equal(
        result("ld.global.u32 %r1, [%rd0]; match.any.sync.b32 %r2, %r1, -1; st.global.u32 [%rd1], %r2;", x), alike
    )
    body = """ld.global.u32 %r1, [%rd0]; match.all.sync.b32 %r2|%p1, %r1, -1; selp.u32 %r3, 0, 1, %p1;
    add.u32 %r2, %r2, %r3; st.global.u32 [%rd1], %r2;"""
    same = np.repeat([1, 0, 5, 5], [1, 31, 16, 16]).astype(np.uint32)
    assert result(body, same).tolist() == [1] * 32 + [2**32 - 1] * 32
    signed = x.astype(np.int32) - 2
    for name, kind, function in (
        ("add", "s32", np.add), ("min", "s32", np.minimum), ("max", "u32", np.maximum), ("xor", "b32", np.bitwise_xor),
        ("and", "b32", np.bitwise_and), ("or", "b32", np.bitwise_or), ("max", "s32", np.maximum),
    ):  # fmt: skip
        values = signed if kind == "s32" else signed.view(np.uint32)
        wanted = np.repeat([function.reduce(warp) for warp in values.reshape(2, 32)], 32).astype(values.dtype)
        body = f"ld.global.u32 %r1, [%rd0]; redux.sync.{name}.{kind} %r2, %r1, -1; st.global.u32 [%rd1], %r2;"
        assert np.array_equal(result(body, values, dtype=values.dtype), wanted), (name, kind)


def test_barriers_count_the_threads_of_a_block() -> None:
    body = """ld.global.u32 %r1, [%rd0]; mov.u32 %r5, 0; mov.u32 %r6, 0;
    again: setp.gt.u32 %p1, %r1, %r5; barrier.cta.red.popc.aligned.u32 %r2, 0, %p1; mad.lo.u32 %r6, %r6, 100, %r2;
    bar.red.or.pred %p2, 0, !%p1; bar.red.and.pred %p3, 0, %p1; selp.u32 %r3, 10, 0, %p2; selp.u32 %r4, 20, 0, %p3;
    add.u32 %r6, %r6, %r3; add.u32 %r6, %r6, %r4; add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 3; @%p1 bra again;
    st.global.u32 [%rd1], %r6;"""
    x = np.random.default_rng(4).integers(1, 4, 96).astype(np.uint32)
    total = 0
    for least in range(3):
        held = x > least
        total = total * 100 + held.sum() + 10 * (not held.all()) + 20 * held.all()
    assert set(result(body, x).tolist()) == {total}


def test_warps_may_write_the_same_to_shared_memory() -> None:
    body = """.shared .align 4 .b8 s[128]; mov.u32 %r1, s; and.b32 %r2, %r0, 31; mad.lo.u32 %r1, %r2, 4, %r1;
    ld.global.u32 %r3, [%rd0]; st.shared.b32 [%r1], %r3; bar.sync 0; ld.shared.b32 %r4, [%r1];
    st.global.u32 [%rd1], %r4;"""
    x = np.tile(np.arange(32, dtype=np.uint32), 2)
    assert np.array_equal(result(body, x), x)
    with pytest.raises(InvalidInputError, match="two warps use the same byte of shared memory"):
        result(body, np.arange(64, dtype=np.uint32))


def test_set_gives_ones_or_zeros() -> None:
    x = np.random.default_rng(9).standard_normal(128).astype(np.float16)
    x[5] = np.nan
    load = "ld.global.b32 %r1, [%rd0]; mov.u32 %r2, 0x38003800; setp.lt.u32 %p1, %r0, 40;"  # 0.5, twice
    pairs = result(f"{load} set.gt.f16x2.f16x2 %r3, %r1, %r2; st.global.u32 [%rd1], %r3;", x.view(np.uint32))
    assert np.array_equal(pairs.view(np.float16), (x > 0.5).astype(np.float16))
    words = np.random.default_rng(9).integers(-5, 5, 64).astype(np.int32)
    load = "ld.global.b32 %r1, [%rd0]; setp.lt.u32 %p1, %r0, 40; mov.u32 %r3, 7;"
    got = result(f"{load} set.lt.and.u32.s32 %r3, %r1, 2, %p1; st.global.u32 [%rd1], %r3;", words)
    assert np.array_equal(got, np.where((words < 2) & (np.arange(64) < 40), 2**32 - 1, 0))
    got = result(f"{load} @%p1 set.ne.f32.s32 %r3, %r1, 2; st.global.u32 [%rd1], %r3;", words)
    one = np.float32(1).view(np.uint32)
    assert np.array_equal(got, np.where(np.arange(64) < 40, np.where(words != 2, one, 0), 7))
    with pytest.raises(InvalidInputError, match=r"set\.lt\.u64\.s32 is not supported"):
        result("set.lt.u64.s32 %rd3, %r0, 2;", words)


def test_atomics_add_fp16_and_bf16() -> None:
    numbers = np.arange(64, dtype=np.float16)
    body = (
        "ld.global.b32 %r1, [%rd0]; sub.s64 %rd3, %rd1, %rd2; atom.global.gpu.relaxed.add.noftz.f16x2 %r2, [%rd3], %r1;"
    )
    out = result(body, numbers.view(np.uint32)).view(np.float16)
    assert out[:2].tolist() == [numbers[::2].sum(dtype=float), numbers[1::2].sum(dtype=float)] and not out[2:].any()
    body = """ld.global.b32 %r1, [%rd0]; mov.b32 {%h1, %h2}, %r1; sub.s64 %rd3, %rd1, %rd2;
    red.global.add.noftz.v2.bf16 [%rd3+4], {%h1, %h2};"""
    brain = (np.arange(32) % 4).astype(np.float32)
    pairs = brain.view(np.uint32) >> 16
    out = result(body, pairs | pairs << 16)
    assert out[0] == 0 and (out[1:2] << 16).view(np.float32)[0] == (out[1:2] & 0xFFFF0000).view(np.float32)[0] == 48.0


def test_atomics_compare_16_bits() -> None:
    body = """and.b32 %r1, %r0, 31; mul.wide.u32 %rd3, %r1, 2; sub.s64 %rd1, %rd1, %rd2; add.s64 %rd1, %rd1, %rd3;
    cvt.u16.u32 %h1, %r0; atom.global.cas.b16 %h2, [%rd1], 0, %h1;"""
    out = result(body, np.zeros(64, np.uint32)).view(np.uint16)
    # The first thread finds zeros and leaves one, so that the thread a warp later writes; others keep the first.
    assert out[:33].tolist() == [32, *range(1, 32), 0]


def test_clusters_of_one_block_and_the_width_of_a_warp() -> None:
    text = f"{HEAD}{BEGIN} mov.u32 %r1, WARP_SZ; st.global.u32 [%rd1], %r1; ret; }}"
    for hints in (
        ".explicitcluster .reqnctapercluster 1, 1, 1",
        ".reqnctapercluster 1",
        ".maxntid 128 .maxclusterrank 4",
    ):
        program = lower(parse_ptx(text.replace(") {", f")\n{hints} {{"), "k.ptx"))
        assert (
            run_kernel(program, [1], [32], [np.zeros(32), np.zeros(32, np.uint32)]).outputs["arg1"].tolist()
            == [32] * 32
        )
    with pytest.raises(InvalidInputError, match=r"k\.ptx: line \d+: clusters of several blocks"):
        parse_ptx(text.replace(") {", ")\n.reqnctapercluster 2, 1, 1 {"), "k.ptx")


def test_launches_have_the_threads_that_a_kernel_was_compiled_for() -> None:
    for hint, threads, problem in (
        (".reqntid 128", 64, r"block \(64, 1, 1\), but the kernel was compiled for blocks of \(128,\)"),
        (".maxntid 64, 1, 1", 96, "compiled for up to 64 threads"),
    ):
        program = lower(parse_ptx(f"{HEAD}.visible .entry k()\n{hint}\n{{ ret; }}", "k.ptx"))
        run_kernel(program, [1], [128 if "req" in hint else 64], [])
        with pytest.raises(InvalidInputError, match=problem):
            run_kernel(program, [1], [threads], [])


def test_accesses_outside_say_what_lies_near() -> None:
    x = np.zeros(32, np.uint32)
    with pytest.raises(InvalidInputError, match=r"outside all buffers, 0 bytes behind the end of arg1"):
        result("st.global.u32 [%rd1+8], %r0;", x)
    with pytest.raises(
        InvalidInputError, match="address 0x40 is outside the 64 bytes of shared memory of a block, 0 of them"
    ):
        result(".shared .align 4 .b8 s[64]; mov.u32 %r1, s; st.shared.u32 [%r1+64], %r0;", x)


def test_structures_are_arguments(tmp_path: Path) -> None:
    text = f"""{HEAD}.visible .entry k(.param .align 8 .b8 k_0[32], .param .u32 k_1) {{
    .reg .b64 %rd<5>; .reg .b32 %r<4>; .reg .f32 %f<4>; .reg .f64 %d<3>; .reg .b16 %h<2>;
    ld.param.u64 %rd1, [k_0]; ld.param.u32 %r1, [k_0+8]; ld.param.f64 %d1, [k_0+16]; ld.param.u8 %h1, [k_0+24];
    mov.u32 %r2, %tid.x; mul.wide.u32 %rd2, %r2, 4; add.s64 %rd1, %rd1, %rd2; cvt.rn.f32.f64 %f1, %d1;
    cvt.rn.f32.u32 %f2, %r1; add.f32 %f1, %f1, %f2; cvt.rn.f32.u16 %f3, %h1; add.f32 %f1, %f1, %f3;
    st.global.f32 [%rd1], %f1; ret; }}"""
    (tmp_path / "k.ptx").write_text(text)
    plan = """launches = [{ptx = "k.ptx", entry = "k", grid = [1], block = [32], arguments = [MEMBERS, 3]}]
    buffers = {y = {dtype = "f32", shape = [32]}}\n"""
    (tmp_path / "k.toml").write_text(plan.replace("MEMBERS", '["u64 y", "s32 20", "f64 0.5", "u8 0x7"]'))
    assert simulate_plan(read_plan(tmp_path / "k.toml")).outputs["y"].tolist() == [27.5] * 32
    for members, problem in (
        ('["u64 y", "s32 20", "f64 0.5"]', "parameter 0: the members take 24 bytes, the structure has 32"),
        ('["u64 y", "s32 z", "f64 0.5", "u8 7"]', r"launches\[0\]\.arguments: member 's32 z'"),
        ('["u64 y", "u32 y", "f64 0.5", "u8 7"]', r"parameter 0: member 1 has type \.u32, no pointer"),
        ('["u64 y", "s32 20", "f64 0.5", "u8 700"]', r"parameter 0: member 3: 700 does not fit type \.u8"),
        ('["u64 y", "int 20", "f64 0.5", "u8 7"]', "member 1: type 'int'"),
        ("5", "parameter 0 is a structure of 32 bytes"),
    ):
        (tmp_path / "k.toml").write_text(plan.replace("MEMBERS", members))
        with pytest.raises(InvalidInputError, match=problem):
            simulate_plan(read_plan(tmp_path / "k.toml"))
    call = KernelLaunch(tmp_path / "k.ptx", "k", (1, 1, 1), (32, 1, 1), (Structure((("u64", "y"),)), Structure(())))
    with pytest.raises(InvalidInputError, match="parameter 0: the members take 8 bytes"):
        simulate_plan(LaunchPlan("k", {"y": np.zeros(32, np.float32)}, (call,)))

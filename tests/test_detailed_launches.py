"""What a launch may be given: content of variables, a limit, leave to race; and what is said of what is not given."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Run

import seqpoint as sp
from replay.detailed import parse_ptx
from replay.detailed.timing.simulation import Checkpoint, simulate_plan

#: `scale` writes ``taps[tid % 4] * factor + params.b + params.p[tid] + *pick[0]``, and adds 1 to `hits`. `read` copies
#: `hits`.
PTX = """
.version 8.0
.target sm_70
.address_size 64
.const .align 4 .f32 taps[4];
.const .align 4 .f32 factor;
.const .align 8 .b8 params[16];
.global .align 4 .u32 hits;
.global .align 4 .f32 table[3] = {1.5, 2.5, 3.5};
.global .align 8 .u64 pick[2] = {generic(table)+4, table};
.visible .entry scale(.param .u64 y)
{
    .reg .b64 %p<9>;
    .reg .b32 %r<9>;
    .reg .f32 %f<9>;
    mov.u32 %r1, %tid.x;
    and.b32 %r2, %r1, 3;
    mul.wide.u32 %p1, %r2, 4;
    mov.u64 %p2, taps;
    add.s64 %p2, %p2, %p1;
    ld.const.f32 %f1, [%p2];
    ld.const.f32 %f2, [factor];
    ld.const.s32 %r3, [params+8];
    cvt.rn.f32.s32 %f3, %r3;
    fma.rn.f32 %f1, %f1, %f2, %f3;
    ld.const.u64 %p3, [params];
    mul.wide.u32 %p4, %r1, 4;
    add.s64 %p3, %p3, %p4;
    ld.global.f32 %f4, [%p3];
    add.f32 %f1, %f1, %f4;
    ld.global.u64 %p5, [pick];
    ld.f32 %f5, [%p5];
    add.f32 %f1, %f1, %f5;
    ld.param.u64 %p6, [y];
    add.s64 %p6, %p6, %p4;
    st.global.f32 [%p6], %f1;
    atom.global.add.u32 %r5, [hits], 1;
    ret;
}
.visible .entry read(.param .u64 out)
{
    .reg .b64 %p<3>;
    .reg .b32 %r<3>;
    ld.param.u64 %p1, [out];
    ld.global.u32 %r1, [hits];
    st.global.u32 [%p1], %r1;
    ret;
}
"""
PLAN = """
[buffers]
y = {dtype = "f32", shape = [8]}
taps = {dtype = "f32", shape = [4], fill = "normal", seed = 1}
p = {dtype = "f32", shape = [8], fill = "uniform", seed = 2}
first = {dtype = "u32", shape = [1]}
counted = {dtype = "u32", shape = [1], fill = "randint", low = 40, high = 41}

[[launches]]
ptx = "k.ptx"
entry = "scale"
grid = [1]
block = [8]
arguments = ["y"]
variables = {taps = "taps", factor = 2.0, params = ["u64 p", "s32 3"]}

[[launches]]
ptx = "k.ptx"
entry = "read"
grid = [1]
block = [1]
arguments = ["first"]

[[launches]]
ptx = "k.ptx"
entry = "scale"
grid = [1]
block = [8]
arguments = ["y"]
variables = {taps = "taps", hits = "counted"}
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "k.ptx").write_text(PTX)
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path / "plan.toml"


def test_content_is_given_and_kept(plan: Path) -> None:
    outputs = sp.simulate_kernel(plan).outputs
    expected = np.tile(outputs["taps"], 2) * np.float32(2) + 3 + outputs["p"] + np.float32(2.5)
    # The third launch says nothing of factor and params: they are as the first left them.
    np.testing.assert_allclose(outputs["y"], expected, rtol=1e-6)
    assert outputs["first"].tolist() == [8], "hits is kept from the first launch to the second"
    assert outputs["counted"].tolist() == [48], "what the kernel wrote to a variable comes back to its buffer"


def test_a_run_that_goes_on_keeps_variables(plan: Path, tmp_path: Path) -> None:
    from replay.detailed.plans import read_plan

    whole = sp.simulate_kernel(plan).outputs
    file = tmp_path / "state.npz"
    calls = 0

    def stop(_done: int, _count: int, _name: str) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate_plan(read_plan(plan), progress=stop, checkpoint=Checkpoint(file, 0.0))
    resumed = simulate_plan(read_plan(plan), checkpoint=Checkpoint(file, 0.0))
    assert resumed.resumed
    assert all(np.array_equal(whole[name], values) for name, values in resumed.outputs.items())
    changed = plan.read_text().replace("factor = 2.0", "factor = 3.0")
    with pytest.raises(KeyboardInterrupt):
        calls = 0
        simulate_plan(read_plan(plan), progress=stop, checkpoint=Checkpoint(file, 0.0))
    plan.write_text(changed)
    with pytest.raises(sp.SeqPointError, match="the state of another simulation"):
        simulate_plan(read_plan(plan), checkpoint=Checkpoint(file, 0.0))


def test_arguments_in_python(plan: Path) -> None:
    file = plan.with_name("k.ptx")
    y, p = np.zeros(8, np.float32), np.arange(8, dtype=np.float32)
    # A structure of a pointer and a number is given by a plan; here its bytes are those of a buffer.
    result = sp.simulate_kernel(
        file,
        "read",
        grid=1,
        block=1,
        arguments=[np.zeros(1, np.uint32)],
        options=sp.KernelOptions(variables={"hits": np.uint32(5)}),
    )
    assert result.outputs["arg0"].tolist() == [5]
    result = sp.simulate_kernel(
        file,
        "read",
        grid=1,
        block=1,
        arguments=["n"],
        options=sp.KernelOptions(buffers={"n": np.zeros(1, np.uint32)}, variables={"hits": "n"}),
    )
    assert result.outputs["n"].tolist() == [0]
    with pytest.raises(sp.SeqPointError, match="variable hits: there is a buffer of this name"):
        sp.simulate_kernel(
            file,
            "read",
            grid=1,
            block=1,
            arguments=["hits"],
            options=sp.KernelOptions(buffers={"hits": y}, variables={"hits": y}),
        )
    with pytest.raises(sp.SeqPointError, match="variable hits is a list"):
        wrong = sp.KernelOptions(variables={"hits": [1]})  # type: ignore[dict-item]
        sp.simulate_kernel(file, "read", grid=1, block=1, arguments=[p], options=wrong)
    with pytest.raises(sp.SeqPointError, match="a plan has entry, grid, block, arguments, variables"):
        sp.simulate_kernel(plan, options=sp.KernelOptions(variables={"hits": 1}))


def test_the_command(plan: Path, run: Run, tmp_path: Path) -> None:
    launch = ["simulate", "kernel", plan.with_name("k.ptx"), "--entry", "read", "--grid", "1", "--block", "1"]
    run(*launch, "--arg", "out=u32[1]", "--variable", "hits=0x10", "--outputs", tmp_path / "one")
    assert np.load(tmp_path / "one" / "out.npy").tolist() == [16]
    run(
        *launch, "--arg", "out=u32[1]", "--variable", "hits=u32[1]:randint:low=9:high=10", "--outputs", tmp_path / "two"
    )
    assert np.load(tmp_path / "two" / "out.npy").tolist() == [9]
    assert np.load(tmp_path / "two" / "hits.npy").tolist() == [9]


def test_what_nobody_gave_is_said(plan: Path, run: Run) -> None:
    whole = sp.simulate_kernel(plan)
    assert [row["unset_variables"] for row in whole.rows] == [[], [], []]
    plan.write_text(plan.read_text().replace("factor = 2.0, ", ""))
    result = sp.simulate_kernel(plan)
    assert [row["unset_variables"] for row in result.rows] == [["factor"], [], ["factor"]]
    shown = run("simulate", "kernel", plan)
    assert "variables without content, read as zeros: factor" in " ".join(shown.out.split())


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("other=7", "variable other is not in the file; there are taps, factor, params, hits, table, pick"),
        ("taps=7", "variable taps has 16 bytes; give a buffer or a structure"),
        ("taps=f32[5]", "variable taps has 16 bytes, and the buffer taps 20"),
        ("hits=1.5", "1.5 does not fit type .u32"),
        ("hits", "variable hits: there is no buffer 'hits'"),
        ("7", "argument '7': a number, NAME=f32"),
        ("hits=@none.npy", "there is no such file"),
    ],
)
def test_what_cannot_be_given(plan: Path, run: Run, given: str, problem: str) -> None:
    file = plan.with_name("k.ptx")
    result = run(
        "simulate", "kernel", file, "--entry", "read", "--grid", "1", "--block", "1", "--arg", "out=u32[1]",
        "--variable", given,
    )  # fmt: skip
    assert result.code and problem in result.err


def test_a_name_is_given_once(plan: Path, run: Run) -> None:
    variables = ("--variable", "hits=1", "--variable", "hits=2")
    result = run(
        "simulate", "kernel", plan.with_name("k.ptx"), "--entry", "read", "--grid", "1", "--block", "1",
        "--arg", "out=u32[1]", *variables,
    )  # fmt: skip
    assert result.code == 2 and "--variable hits=2: write NAME=VALUE, each name once" in result.err


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('taps = "taps"', 'taps = "none"', r"launches\[0\].variables.taps: there is no buffer or texture 'none'"),
        ('"s32 3"', '"s32 3", "f64 1"', "the members take 24 bytes, the structure has 16"),
        ('"s32 3"', '"3"', r"launches\[0\].variables.params: member '3'"),
        ("factor = 2.0", "factor = []", "the members take 0 bytes"),
    ],
)
def test_plans_that_are_wrong(plan: Path, old: str, new: str, problem: str) -> None:
    plan.write_text(plan.read_text().replace(old, new, 1))
    with pytest.raises(sp.SeqPointError, match=problem):
        sp.simulate_kernel(plan)


@pytest.mark.parametrize("value", ["generic(nothing)", "nothing", "table+x", "generic(table"])
def test_addresses_of_what_is_not_there(value: Any) -> None:
    with pytest.raises(sp.SeqPointError, match=r"k.ptx: line 11: "):
        parse_ptx(PTX.replace("generic(table)+4", value), "k.ptx")


def kernel_file(folder: Path, body: str) -> Path:
    """Write a kernel that gets a pointer in %rd1; `body` begins on line 4."""
    file = folder / "k.ptx"
    head = ".version 8.0 .target sm_70 .address_size 64\n.shared .align 4 .b8 s[8];\n"
    registers = ".reg .b64 %rd<2>; .reg .b32 %r<3>; .reg .pred %p<2>;"
    file.write_text(f"{head}.visible .entry k(.param .u64 x) {{ {registers} ld.param.u64 %rd1, [x];\n{body}\nret; }}")
    return file


def test_a_wait_for_a_later_block_ends(tmp_path: Path) -> None:
    """Block 0 waits for what block 1 writes; blocks run in order."""
    file = kernel_file(
        tmp_path,
        "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 1; @%p1 bra WRITE;\n"
        "L: ld.volatile.global.u32 %r2, [%rd1]; setp.eq.u32 %p1, %r2, 0; @%p1 bra L; ret;\n"
        "WRITE: st.global.u32 [%rd1], 1;",
    )
    with pytest.raises(sp.SeqPointError, match=r"line 5: k, block \(0, 0, 0\): .*waits for a block or a warp"):
        sp.simulate_kernel(
            file, grid=2, block=32, arguments=[np.zeros(1, np.uint32)], options=sp.KernelOptions(limit=10_000)
        )


def test_races_may_be_allowed(tmp_path: Path, run: Run) -> None:
    """Warps write their number to one word of shared memory; the last one's is read."""
    file = kernel_file(
        tmp_path,
        "mov.u32 %r1, %tid.x; shr.u32 %r1, %r1, 5; add.u32 %r1, %r1, 1;\n"
        "st.shared.u32 [s], %r1; bar.sync 0; ld.shared.u32 %r2, [s]; st.global.u32 [%rd1], %r2;",
    )
    given = [np.zeros(1, np.uint32)]
    with pytest.raises(sp.SeqPointError, match=r"line 5: k, .* byte 0 of s; to go on, allow races"):
        sp.simulate_kernel(file, grid=1, block=128, arguments=given)
    assert (
        sp.simulate_kernel(
            file, grid=1, block=128, arguments=given, options=sp.KernelOptions(allow_races=True)
        ).outputs["arg0"][0]
        == 4
    )
    launch = ["simulate", "kernel", file, "--grid", "1", "--block", "128", "--arg", "x=u32[1]"]
    assert run(*launch).code == 1 and run(*launch, "--allow-races").code == 0


def test_the_limit_is_of_each_warp(tmp_path: Path) -> None:
    file, given = kernel_file(tmp_path, "bar.sync 0; bar.sync 0;"), [np.zeros(1, np.uint32)]
    (call,) = sp.simulate_kernel(file, grid=4, block=128, arguments=given, options=sp.KernelOptions(limit=4)).calls
    assert call.warp_instructions == 4 * 4 * 4
    with pytest.raises(sp.SeqPointError, match="more than 3 instructions of a warp"):
        sp.simulate_kernel(file, grid=4, block=128, arguments=given, options=sp.KernelOptions(limit=3))


def test_the_command_has_the_defaults_of_the_function() -> None:
    from seqpoint.cli.simulate_kernel import kernel

    defaults = {option.name: option.default for option in kernel.params}
    parameters = inspect.signature(sp.KernelOptions).parameters
    for name in ("limit", "waves", "scheduler", "shared_bytes"):
        assert defaults[name] == parameters[name].default, name


#: Each block adds what its pointer of two points to, to what the other's does: ``p[block][tid] += p[1 - block][tid]``.
CROSSED = """.version 8.0
.target sm_70
.address_size 64
.visible .entry cross(.param .u64 p)
{
    .reg .b64 %rd<9>;
    .reg .b32 %r<5>;
    .reg .f32 %f<4>;
    ld.param.u64 %rd1, [p];
    mov.u32 %r1, %ctaid.x;
    mul.wide.u32 %rd2, %r1, 8;
    add.s64 %rd2, %rd1, %rd2;
    ld.global.u64 %rd3, [%rd2];
    xor.b32 %r2, %r1, 1;
    mul.wide.u32 %rd4, %r2, 8;
    add.s64 %rd4, %rd1, %rd4;
    ld.global.u64 %rd5, [%rd4];
    mov.u32 %r3, %tid.x;
    mul.wide.u32 %rd6, %r3, 4;
    add.s64 %rd3, %rd3, %rd6;
    add.s64 %rd5, %rd5, %rd6;
    ld.global.f32 %f1, [%rd3];
    ld.global.f32 %f2, [%rd5];
    add.f32 %f1, %f1, %f2;
    st.global.f32 [%rd3], %f1;
    ret;
}
"""


def test_a_buffer_holds_pointers_to_others(tmp_path: Path) -> None:
    (tmp_path / "c.ptx").write_text(CROSSED)
    text = """[buffers]
    x = {dtype = "f32", shape = [32], fill = "arange"}
    y = {dtype = "f32", shape = [32], fill = "normal", seed = 3}
    p = {pointers = ["x", "y"]}
    [[launches]]
    ptx = "c.ptx"
    entry = "cross"
    grid = [2]
    block = [32]
    arguments = ["p"]"""
    (tmp_path / "plan.toml").write_text(text)
    y = np.random.default_rng(3).standard_normal(32, dtype=np.float32)
    x = np.arange(32, dtype=np.float32)
    for result in (
        sp.simulate_kernel(tmp_path / "plan.toml"),
        sp.simulate_kernel(tmp_path / "plan.toml", device="V100-SXM2-16GB"),
        sp.simulate_kernel(
            tmp_path / "c.ptx",
            grid=2,
            block=32,
            arguments=["p"],
            options=sp.KernelOptions(buffers={"x": x, "y": y, "p": ["x", "y"]}),
        ),
    ):
        assert np.array_equal(result.outputs["x"], x + y) and np.array_equal(result.outputs["y"], y + (x + y))
    for old, new, problem in (
        ('"x", "y"]', '"x", "z"]', r"buffers\.p\.pointers: there is no buffer 'z'"),
        ("{pointers", '{dtype = "u64", pointers', r"buffers\.p: a buffer of pointers has no other keys"),
    ):
        (tmp_path / "plan.toml").write_text(text.replace(old, new))
        with pytest.raises(sp.SeqPointError, match=problem):
            sp.simulate_kernel(tmp_path / "plan.toml")
    with pytest.raises(sp.SeqPointError, match="buffer p: there is no buffer 1"):
        wrong = sp.KernelOptions(buffers={"p": [1, 2]})  # type: ignore[dict-item]
        sp.simulate_kernel(tmp_path / "c.ptx", grid=2, block=32, arguments=["p"], options=wrong)

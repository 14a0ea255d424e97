"""`seqpoint simulate kernel`, `simulate_kernel`, plans, and the suite that compares with counters."""

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import seqpoint as sp
from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from profilers.files import dataset_path
from replay.detailed.plans import parse_argument, read_plan
from seqpoint.cli import cli
from seqpoint.plots.simulations import kernel_heat_map
from seqpoint.validation.detailed import evaluated

SOFTMAX = str(dataset_path("ptx/triton/softmax.toml"))
PTX = str(dataset_path("ptx/operators/operators.ptx"))
ADD = ["--entry", "add", "--grid", "2", "--block", "128", "--arg", "y=f32[1000]", "--arg", "x=f32[1000]:arange"]


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["simulate", "kernel", *arguments])
    assert result.exception is None or isinstance(result.exception, SeqPointError | SystemExit), result.exception
    return result.exit_code, result.output + str(result.exception or "")


def test_a_kernel_is_executed_and_its_buffers_are_written(tmp_path: Path) -> None:
    code, text = run(PTX, *ADD, "--arg", "x", "--arg", "1000", "--outputs", str(tmp_path / "out"), "--json")
    assert code == 0, text
    told = json.loads(text[text.index("{") :])
    assert told["launches"][0]["entry"] == "add" and told["launches"][0]["warp_instructions"] > 0
    assert np.array_equal(np.load(tmp_path / "out" / "y.npy"), 2 * np.arange(1000, dtype=np.float32))
    code, text = run(PTX, *ADD, "--arg", "x", "--arg", "1000", "--outputs", str(tmp_path / "out"))
    assert code != 0 and "exists already" in text


def test_a_plan_is_timed_drawn_and_written_as_a_trace(tmp_path: Path) -> None:
    trace, page = tmp_path / "softmax.json.gz", tmp_path / "softmax.html"
    code, text = run(SOFTMAX, "--device", "A100-SXM4-80GB", "--perfetto", str(trace), "--plot", str(page))
    assert code == 0 and "softmax" in text, text
    (event,) = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert event["name"] == "softmax" and event["args"]["grid"] == [64, 1, 1] and event["dur"] > 1
    opened = sp.open(trace)
    assert sp.describe(opened).to_dict()
    row = opened.kernels.to_pylist()[0]
    assert (row["workgroups"], row["workgroup_size"], row["lds_bytes"]) == (64, 128, 16) and row["registers"] > 0
    titles = ("Warp schedulers", "Compute units", "Slices of L2", "DRAM channels", "Row hits of DRAM channels")
    assert [title for title in titles if f"{title} over time: softmax, launch 0" not in page.read_text()] == []


def test_launches_are_a_trace_in_python_too() -> None:
    simulated = sp.simulate_kernel(SOFTMAX, device="A100-SXM4-80GB")
    kernels = simulated.trace().kernels
    assert kernels.column("name").to_pylist() == ["softmax"]
    assert kernels.column("dur_ns").to_pylist() == [round(1e9 * simulated.seconds)]
    with pytest.raises(InvalidInputError, match="give a device"):
        sp.simulate_kernel(SOFTMAX).trace()


def test_charts_show_shares_on_one_axis_of_time() -> None:
    simulated = sp.simulate_kernel(SOFTMAX, device="V100-SXM2-16GB")
    images = [kernel_heat_map(simulated.timed()[0], what) for what in ("units", "slices", "channels", "rows")]
    ends = {image.opts.get("plot", backend="bokeh").kwargs["xlim"] for image in images}
    assert len(ends) == 1
    hits, timing = images[3].dimension_values("busy"), simulated.timings[0]
    assert np.nanmin(hits) >= 0 and np.nanmax(hits) <= 100 and np.isnan(hits).any()
    assert timing.dram.row_hits_over_time.sum() == timing.dram.read_row_hits + timing.dram.write_row_hits > 0
    with pytest.raises(InvalidInputError, match="units, slices, channels or rows"):
        kernel_heat_map(simulated.timed()[0], "banks")


def test_what_cannot_be_written_is_said_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqpoint.kernel_simulation.simulate_kernel", lambda *_, **__: pytest.fail("it ran"))
    for option, name in (("--outputs", "missing/out"), ("--outputs", ""), ("--perfetto", "missing/t.json")):
        code, text = run(SOFTMAX, "--device", "A100-SXM4-80GB", option, str(tmp_path / name))
        assert code != 0 and ("cannot be written" in text or "exists already" in text), text


def test_no_buffer_is_written_outside_the_folder_of_outputs(tmp_path: Path) -> None:
    for name in ("../escaped", "a/b", "a.b", ""):
        buffers = f'[buffers]\n"{name}" = {{ dtype = "f32", shape = [4] }}\n'
        launch = f'[[launches]]\nptx = "{PTX}"\nentry = "copy"\ngrid = [1]\nblock = [32]\n'
        (tmp_path / "plan.toml").write_text(f'{buffers}{launch}arguments = ["{name}", "{name}", 4]\n')
        code, text = run(str(tmp_path / "plan.toml"), "--outputs", str(tmp_path / "out"))
        assert code != 0 and "no name of a buffer" in text, text
        simulated = replace(sp.simulate_kernel(SOFTMAX), outputs={name: np.zeros(4)})
        with pytest.raises(InvalidInputError, match="no name of a buffer"):
            simulated.save_outputs(tmp_path / "out")
        assert [path.name for path in tmp_path.iterdir()] == ["plan.toml"]


COPY = ["--entry", "copy", "--grid", "1", "--block", "32"]
BAD = {
    "missing": (["--entry", "nothing", "--grid", "1", "--block", "32"], "no entry is called 'nothing'"),
    "few": ([*ADD], "4 parameters"),
    "huge": (["--entry", "add", "--grid", "2147483648", "--block", "128"], "fewer than 2^31 blocks"),
    "no grid": (["--entry", "add"], "give the grid and the block"),
    "bad fill": (["--grid", "1", "--block", "32", "--arg", "y=f32[4]:lots"], "fill"),
    "bad type": (["--grid", "1", "--block", "32", "--arg", "y=f31[4]"], "dtype"),
    "no buffer": ([*COPY, "--arg", "y", "--arg", "y", "--arg", "3"], "no buffer"),
    "plot": (["--plot", "x.html"], "give a --device"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_launches_give_one_clear_line(case: str) -> None:
    arguments, message = BAD[case]
    code, text = run(PTX, *arguments)
    assert code != 0 and message in text and "Traceback" not in text, text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".version 5.0\n.target sm_70", "PTX version '5.0'"),
        (".version 8.0 .target sm_70 .address_size 64 .entry k() { add.s32", "ends in the middle"),
        (".version 8.0 .target sm_70 .address_size 64 .entry k() { L: bra L; }", "an endless loop"),
    ],
)
def test_bad_files_give_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.ptx"
    file.write_text(text)
    code, told = run(str(file), "--grid", "1", "--block", "32", "--limit", "10000")
    assert code != 0 and message in told and "bad.ptx" in told, told


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('x = { dtype = "f33", shape = [4] }', "buffers.x.dtype"), ('x = { dtype = "f32", size = 4 }', "size"),
        ('x = { dtype = "f32", file = "none.npy" }', "no such file"),
        ('x = { dtype = "f32", shape = [4000000000, 4000000000] }', "shape"),
        ('y = { dtype = "f32", shape = [4] }', "there is no buffer or texture 'x'"),
        ('x = { dtype = "f32", shape = [4], fill = "randint", low = -inf }', "are no range"),
        ('x = { dtype = "f32", shape = [4], fill = "randint", high = 1e30 }', "64 bits"),
        ('x = { dtype = "u8", shape = [4], fill = "randint", low = 300, high = 301 }', "do not fit u8"),
        ('x = { dtype = "u8", shape = [4000000000], fill = "normal" }', "buffers.x.shape"),
        ('x = { dtype = "f32", shape = [7], file = "six.npy" }', "six.npy has [6]"),
        ('x = { dtype = "f64", file = "six.npy" }', "elements of float32, not float64"),
        ('x = { dtype = "f32", file = "huge.npy" }', "no array of NumPy"),
    ],
)  # fmt: skip
def test_bad_plans_name_file_and_key(tmp_path: Path, line: str, message: str) -> None:
    plan = tmp_path / "plan.toml"
    (tmp_path / "k.ptx").write_text("")
    np.save(tmp_path / "six.npy", np.zeros(6, np.float32))
    content = (tmp_path / "six.npy").read_bytes()
    (tmp_path / "huge.npy").write_bytes(content.replace(b"(6,), }" + 14 * b" ", b"(100000000000000,), }"))
    launch = '[[launches]]\nptx = "k.ptx"\nentry = "k"\ngrid = [1]\nblock = [32]\narguments = ["x"]\n'
    plan.write_text(f"[buffers]\n{line}\n{launch}")
    with pytest.raises((InvalidInputError, NotFoundError), match=r"plan\.toml") as problem:
        read_plan(plan)
    assert message in str(problem.value)


def test_arguments_are_numbers_or_buffers(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3, dtype=np.int32))
    assert parse_argument(f"x=@{tmp_path / 'x.npy'}")[1].tolist() == [0, 1, 2]  # type: ignore[union-attr]
    assert parse_argument("h=bf16[2]:uniform:low=1:high=1")[1].tolist() == [0x3F80, 0x3F80]  # type: ignore[union-attr]
    assert parse_argument("-3") == ("", -3) and parse_argument("y") == ("y", None)
    assert parse_argument("y=u8[2]:randint:low=7:high=8")[1].tolist() == [7, 7]  # type: ignore[union-attr]


#: Bad arguments with a part of the message; each was a traceback, or silently something else, or might become it.
BAD_ARGUMENTS = {
    "y=": "after the equals sign", "y=f32[]": "after the equals sign", "1y=f32[2]": "a number, NAME=",
    "../y=f32[2]": "a number, NAME=", "y=f32[2]:normal:size=3": "fill normal has seed",
    "y=f32[2]:uniform:low=abc": "low: 'abc' is no number", "y=f32[2]:uniform:low=-1e400": "are no range",
    "y=f32[2]:uniform:low=nan": "are no range", "y=f32[2]:randint:low=-1e30": "64 bits",
    "y=f32[2]:normal:seed=1.5": "seed: '1.5' is no number", "y=f32[2]:normal:seed=-1": "seed",
    "y=f32[2]:normal:uniform": "cannot stand here", "y=f32[2]:high=2": "follows a fill", "y=f32[2 2]": "between commas",
    f"y=f32[{'1,' * 70}1]": "1 to 16 sizes", f"y=f32[2]:normal:seed={'9' * 5000}": "is no number",
    "y=f16[65600]:arange": "do not fit f16", "y=u8[2]:normal:seed=1": "do not fit u8", "y=f32[²]": "equals sign",
    "y=bf16[9]:uniform:low=3.39e38:high=1e39": "do not fit bf16",
}  # fmt: skip


@pytest.mark.parametrize("text", BAD_ARGUMENTS, ids=lambda text: text[:40])
def test_bad_arguments_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(BAD_ARGUMENTS[text])):
        parse_argument(text)


def test_expressions_of_measurements_are_not_executed() -> None:
    names = {"i": np.arange(4), "n": 4}
    assert evaluated("np.exp(np.random.default_rng(6).integers(0,256,size=n)/255.0)", names, "x").shape == (4,)
    for text in ("__import__('os').system('true')", "np.load('x')", "i.__class__", "(lambda: 1)()", "n ** 9999999"):
        with pytest.raises(InvalidInputError, match="no expression that is known"):
            evaluated(text, names, "x")


def test_the_suite_scores_kernels_against_counters(tmp_path: Path) -> None:
    folder = tmp_path / "ptx"
    folder.mkdir()
    (folder / "k.ptx").write_text(Path(PTX).read_text())
    row = {
        "ptx": "k.ptx", "entry": "copy", "grid": [64, 1, 1], "block": [128, 1, 1], "measured_cycles": 5000.0,
        "params": [
            {"name": "y", "type": "f32*", "n": 32768}, {"name": "x", "type": "f32*", "n": 32768},
            {"name": "n", "type": "s32", "value": 32768},
        ],
    }  # fmt: skip
    (folder / "kernels.json").write_text(json.dumps({"kernels": {"copy": row}}))
    validation = sp.validate("detailed", folder)
    rows = {row.case: row for row in validation.rows}
    assert 2500 < rows["copy: cycles"].ours < 6000
    assert rows["cycles: mean error of 1 kernels"].error == pytest.approx(abs(rows["copy: cycles"].ours / 5000 - 1))
    (folder / "kernels.json").write_text("{}")
    with pytest.raises(InvalidInputError, match="no measured kernels"):
        sp.validate("detailed", folder)

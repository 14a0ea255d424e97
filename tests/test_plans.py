"""Plan files: alternatives, named arguments, parameters; and everything that can be wrong with them."""

import os
import time
from pathlib import Path

import pytest

from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError, SeqPointError
from replay.costs.shipped import load_parameters
from replay.what_ifs import parse_plan, read_plan

PLAN = """
title = "What next"
[parameters]
dma_command_ns = 3000

[[alternative]]
title = "DMA on another GPU"
steps = [
  "dma_collectives",
  {what_if = "scale_device", device = "MI355X"},
]

[[alternative]]
steps = [{what_if = "swap_kernel", kernel = "at::mm*", by = 0.1, workgroups = 64}]
parameters = {dma_command_ns = 4000, graph_launch_ns = 9000}
"""


def test_alternatives_have_steps_titles_and_parameters(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    one, two = read_plan(tmp_path / "plan.toml", parameters=load_parameters())
    assert (one.label, one.steps) == ("DMA on another GPU", ("dma_collectives", "scale_device:MI355X"))
    assert one.parameters == (("dma_command_ns", 3000.0),)
    assert two.name == "swap_kernel:at::mm*:0.1::64" and two.title == ""
    assert two.parameters == (("dma_command_ns", 4000.0), ("graph_launch_ns", 9000.0))


STEPS = '[[alternative]]\ntitle = "T"\nsteps = [%s]\n'


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("[[alternative]\n", BrokenFileError, r"plan: no TOML: .*line 1"),
        ("a = " + "[" * 5000, BrokenFileError, "no TOML: nested too deep"),
        ("a = " + "9" * 5000, BrokenFileError, "^plan: no TOML: a number has thousands of digits$"),
        (".".join(["a"] * 66) + " = 1", BrokenFileError, "^plan: no TOML: a key has more than 64 dots$"),
        ("[" + ".".join(["'a#'"] * 66) + "]", BrokenFileError, "more than 64 dots"),
        ("#" * (2**16 + 1), BrokenFileError, "^plan: a plan has 65536 bytes at most$"),
        ("", InvalidInputError, "a plan has 1 to 1000 tables"),
        ("alternative = 3", InvalidInputError, "a plan has 1 to 1000 tables"),
        ("[[alternativ]]", NotFoundError, "there is no key 'alternativ'; did you mean alternative"),
        ("[[alternative]]\nstep = []", NotFoundError, "alternative 1: there is no key 'step'; did you mean steps"),
        ("[[alternative]]\n", InvalidInputError, "alternative 1: steps is a list of 1 to 64"),
        (STEPS % "3", InvalidInputError, r"alternative 1 \(T\), step 1: this has to be a table, not a number"),
        (STEPS % "{device = 'A100'}", InvalidInputError, "step 1: a step is a text, or a table with what_if"),
        (STEPS % "'dma_collectives', 'scale_lnks:2'", NotFoundError, "step 2: .*did you mean scale_links"),
        (STEPS % "{what_if = 'scale_links', facter = 2}", NotFoundError, "no argument 'facter'; did you mean factor"),
        (STEPS % "{what_if = 'scale_links'}", InvalidInputError, "step 1: scale_links needs factor"),
        (STEPS % "{what_if = 'scale_links', factor = true}", InvalidInputError, "factor is a boolean"),
        (STEPS % "{what_if = 'scale_links', factor = [2]}", InvalidInputError, "factor is a list"),
        (STEPS % "{what_if = 'scale_links', factor = 'x'}", InvalidInputError, "factor 'x' is no number"),
        (STEPS % "{what_if = 'scale_links', factor = inf}", InvalidInputError, "step 1: .*above zero"),
        (STEPS % "'overlap:ideal'" + "parameters = {dma_comand_ns = 1}", NotFoundError, "did you mean dma_command_ns"),
        (STEPS % "'overlap:ideal'" + "parameters = {dma_command_ns = -1}", InvalidInputError, "not plausible"),
        (STEPS % "'overlap:ideal'" + "parameters = {hbm_share_collective = 1.5}", InvalidInputError, "not plausible"),
        (STEPS % "'overlap:ideal'" + "parameters = {dma_command_ns = nan}", InvalidInputError, "finite number"),
        (
            STEPS % "'overlap:ideal'" + f"parameters = {{graph_launch_ns = {'9' * 400}}}",
            InvalidInputError,
            "not plausible",
        ),
        (
            STEPS % "'overlap:ideal'" + "parameters = {graph_launch_ns = 1e12}",
            InvalidInputError,
            "not plausible; .* to",
        ),
        (
            STEPS % "'overlap:ideal'" + "parameters = {graph_launch_ns = 1e-3}",
            InvalidInputError,
            "not plausible; .* to",
        ),
        (
            STEPS % "'overlap:ideal'" + "parameters = {replay_error = 0}",
            InvalidInputError,
            "replay_error cannot be given",
        ),
        (
            STEPS % f"{{what_if = 'change_world_size', ranks = 0x{'f' * 5000}}}",
            InvalidInputError,
            "step 1: ranks is a whole number of more than 63 bits$",
        ),
        (STEPS % "'overlap:ideal'" + "parameters = 3", InvalidInputError, "parameters: this has to be a table"),
        (STEPS.replace('"T"', "5") % "'overlap:ideal'", InvalidInputError, "alternative 1: title is a text"),
        ((STEPS % "'overlap:ideal'") * 2, InvalidInputError, "title 'T' is used twice"),
        (STEPS.replace("T", "baseline") % "'overlap:ideal'", InvalidInputError, "'baseline' is used twice"),
        (STEPS % ",".join(["'overlap:ideal'"] * 65), InvalidInputError, "1 to 64 steps"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, error: type[SeqPointError], message: str) -> None:
    with pytest.raises(error, match=message):
        parse_plan(text, parameters=load_parameters())


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such plan file"):
        read_plan(tmp_path / "absent.toml", parameters=load_parameters())
    with pytest.raises(InvalidInputError, match="no regular file"):
        read_plan(tmp_path, parameters=load_parameters())
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidInputError, match="no regular file"):
        read_plan(tmp_path / "pipe", parameters=load_parameters())
    (tmp_path / "large.toml").write_bytes(b"#" * (2**16 + 1))
    with pytest.raises(BrokenFileError, match="65536 bytes at most"):
        read_plan(tmp_path / "large.toml", parameters=load_parameters())
    (tmp_path / "latin.toml").write_bytes(b"a = '\xe9'")
    with pytest.raises(BrokenFileError, match="not UTF-8 at byte 5"):
        read_plan(tmp_path / "latin.toml", parameters=load_parameters())


def test_long_keys_are_refused_at_once_and_dots_elsewhere_are_not() -> None:
    before = time.perf_counter()
    with pytest.raises(BrokenFileError, match="more than 64 dots"):
        parse_plan(".".join(["a"] * 20_000) + " = 1", parameters=load_parameters())
    for unfinished in (r'"""\"""' * 8000, "'''" * 20_001, '"\\' * 30_000, "'" * 60_001, '"""\\'):
        with pytest.raises(BrokenFileError):
            parse_plan(unfinished, parameters=load_parameters())
    assert time.perf_counter() - before < 2
    dots = "." * 100
    for text in (f"# {dots}\n", f'title = "{dots}\\"{dots[80:]}"\n', f"title = '''\n{dots}\n'''\n"):
        assert len(parse_plan(text + STEPS % "'overlap:ideal'", parameters=load_parameters())) == 1

"""What the documentation shows runs as it is written."""

import contextlib
import functools
import io
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from traces import transformer, write_trace

from profilers.devices.catalogue import USER_DEVICES
from profilers.trace import save_trace
from seqpoint.cli import COMMANDS, cli

ROOT = Path(__file__).parents[1]

Shown = Callable[[str], str]

PAGES = ["README", *(str(path.relative_to(ROOT).with_suffix("")) for path in sorted((ROOT / "docs").rglob("*.md")))]
#: Pages whose first example in Python stands above what it prints.
EXAMPLES = ["durations", "formats", "systems/c3", "systems/comp_vs_comm"]


def blocks(file: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / file).read_text(), re.MULTILINE | re.DOTALL)


def test_the_tour_in_python_works_on_any_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tour,) = [text for text in blocks("README.md", "python") if "sp.open(" in text]
    save_trace(transformer(128, 256), tmp_path / "job.trace")
    monkeypatch.chdir(tmp_path)
    tour = tour.replace('"rank*.json.gz"', '"job.trace"')
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(compile(tour, "README.md", "exec"), {})
    assert all(name in shown.getvalue() for name in ("overlap:ideal", "scale_device:H100-SXM5-80GB", "speedup"))
    assert (tmp_path / "job.html").stat().st_size


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Return a function that runs a command of the documentation in a folder that has the README's job, once."""
    folder = tmp_path_factory.mktemp("documentation")
    (folder / "datasets").symlink_to(ROOT / "datasets")
    (folder / "copies.toml").write_text(blocks("docs/systems/jitq.md", "toml")[0])

    @functools.cache
    def run(command: str) -> str:
        arguments, _, target = command.removeprefix("seqpoint ").partition(" > ")
        with contextlib.chdir(folder):
            done = CliRunner().invoke(cli, shlex.split(arguments), env={"COLUMNS": "80"})
        assert done.exit_code == 0, (command, done.output)
        if target:
            (folder / target).write_text(done.stdout)
        return " ".join(done.stdout.split())

    run(next(command for command, _ in console(ROOT / "README.md") if "synthesize" in command))
    return run


def console(page: Path) -> list[tuple[str, list[str]]]:
    """Return the commands of a page, without comments, each with the lines that are shown of its output."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for text in block.split("$ ")[1:]:
            command, *lines = text.splitlines()
            found.append((re.split(r"\s{2,}#", command)[0], [line for line in lines if line.strip(" .")]))
    return found


#: What needs files that are not shipped, or minutes.
NOT_RUN = (
    "nanogpt.trace",
    "nanogpt1.trace",
    "particles.trace",
    "engine.trace",  # tests/test_selection_serving.py compares what is shown
    "weights.npy",  # tests/test_formats.py compares what is shown
    "operations.parquet",
    "../shared",
    "overlap:all",
    "benchmarks.gpu",
    "ddp4.trace",
    "validate collectives",
    "validate pairs datasets/measured/h100",
)


@pytest.mark.parametrize("page", PAGES)
def test_the_output_in_the_documentation_is_what_the_command_prints(page: str, shown: Shown) -> None:
    # The packages that docs/extending.md shows are installed, and its commands run, by a test of their own.
    for command, lines in () if page == "docs/extending" else console(ROOT / f"{page}.md"):
        if not (lines or " > " in command) or any(name in command for name in NOT_RUN) or " @" in command:
            continue
        printed, at = shown(command), 0
        for line in lines:
            text = " ".join(line.split())
            assert text in printed[at:], (command, line)
            at = printed.index(text, at) + len(text)


@pytest.mark.parametrize("page", EXAMPLES)
def test_an_example_in_python_prints_what_stands_below_it(page: str) -> None:
    example = blocks(f"docs/{page}.md", "python")[0]
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(compile(example, page, "exec"), {})
    assert shown.getvalue() == blocks(f"docs/{page}.md", "text")[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["devices", "My GPU"],
        ["project", "TRACE", "-w", "scale_device:My GPU"],
        ["project", "TRACE", "-w", "scale_device:My GPU+change_dtype:bf16->fp16+scale_links:2"],
        ["synthesize", "--device", "My GPU", "--layers", "2", "--tp", "2", "--dp", "2"],
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_the_example_of_a_device_of_ones_own_has_all_that_is_run_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    (tmp_path / "my_gpu.toml").write_text(blocks("docs/devices.md", "toml")[0])
    trace = write_trace(tmp_path / "t.json")
    monkeypatch.setenv(USER_DEVICES, str(tmp_path / "my_gpu.toml"))
    found = CliRunner().invoke(cli, [str(trace) if one == "TRACE" else one for one in arguments])
    assert found.exit_code == 0, found.exception


def test_the_plan_in_the_documentation_is_read_and_projected(tmp_path: Path) -> None:
    (plan,) = [text for text in blocks("docs/what_ifs.md", "toml") if "[[alternative]]" in text]
    (tmp_path / "plan.toml").write_text(plan)
    trace = write_trace(tmp_path / "t.json")
    found = CliRunner().invoke(cli, ["project", str(trace), "-w", f"@{tmp_path / 'plan.toml'}", "--json"])
    assert found.exit_code == 0, found.exception
    assert [row["title"] for row in json.loads(found.output)["rows"]] == ["DMA on MI355X", "own GEMM"]


def shown_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command that a text shows in a block, a table or a sentence, from `seqpoint` on."""
    blocks_ = re.findall(r"^(?:\$ )?(seqpoint [a-z].*)$", text, re.MULTILINE)
    for command in [*blocks_, *re.findall(r"`(seqpoint [a-z][^`]*)`", text)]:
        with contextlib.suppress(ValueError):  # a quote that ends elsewhere
            yield shlex.split(re.split(r"\s{2,}#|\s[|>&;]", command)[0])


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING", "SECURITY", "--help"])
def test_each_command_that_a_page_shows_has_the_options_that_it_shows(page: str) -> None:
    wrong, context = [], click.Context(cli)
    helps = [command.help or "" for name in COMMANDS if (command := cli.get_command(context, name))]
    text = (
        "\n".join(line.strip() for one in helps for line in one.splitlines())
        if page == "--help"
        else (ROOT / f"{page}.md").read_text()
    )
    for words in shown_commands(text):
        group, rest = cli, words[1:]
        while rest and isinstance(group, click.Group) and (command := group.get_command(context, rest[0])):
            group, rest = command, rest[1:]
        known = {"--help", *(flag for given in group.params for flag in (*given.opts, *given.secondary_opts))}
        given = [word.partition("=")[0] for word in rest if re.match(r"-{1,2}[a-z]", word)]
        is_command = (
            not isinstance(group, click.Group) or not rest or "." in rest[0] or rest[0].isupper() or "/" in rest[0]
        )
        if not is_command or set(given) - known:
            wrong.append((" ".join(words), sorted(set(given) - known)))
    assert wrong == []


def test_every_command_is_tested_and_has_a_line_in_the_list_of_commands() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py") if path.stem != "test_docs")
    table = (ROOT / "docs/commands.md").read_text()
    assert [name for name in COMMANDS if f"| `seqpoint {name}" not in table] == []
    assert [name for name in COMMANDS if not re.search(rf'["(\[ ]{name}[" ]', tests)] == []

"""Named baselines, the gate of a pull request, and its comment."""

import gzip
import re
import shlex
from pathlib import Path

import pytest

from seqpoint.baselines import baseline_runs
from seqpoint.table_files import Sheet, as_comment
from tests.commands import Run
from tests.test_compare import ADD, job

ROOT = Path(__file__).parents[1]


def test_a_slower_run_fails_against_its_baseline_and_does_not_replace_it(run: Run, tmp_path: Path) -> None:
    fast, slow, same = (job(tmp_path / f"{n}.json", slow=80.0 * (n == 1), seed=n) for n in range(3))
    assert run("compare", fast, "--save-baseline", "main").out == ".seqpoint/baselines/main: 1 run\n"
    (kept,) = baseline_runs("main")
    failed = run("compare", slow, "--baseline", "main", "--save-baseline", "main", "--fail-if-slower")
    assert failed.code == 1 and failed.out.startswith("slower\n") and baseline_runs("main") == [kept]
    (reason,) = failed.err.splitlines()
    assert reason.startswith("slower by more than 0 % and the noise: step time ")
    gate = ("compare", slow, "--baseline", "main", "--fail-if-slower")
    assert run(*gate, "2%").code == 1 and run(*gate, "20%").code == 0
    passed = run("compare", same, "--baseline", "main", "--save-baseline", "main", "--fail-if-slower", "2%")
    assert passed.code == 0 and passed.err == "wrote .seqpoint/baselines/main: 1 run\n"
    assert run("compare", fast, same, "--save-baseline", "two", "--baselines", "b").code == 0
    assert [path.name for path in baseline_runs("two", "b")] == ["run1.trace", "run2.trace"]
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["two"]


def test_what_cannot_be_told_or_found_says_so_in_a_line(run: Run, tmp_path: Path) -> None:
    single, other = (job(tmp_path / f"{n}.json", steps=1, slow=500.0 * n) for n in range(2))
    run("compare", single, "--save-baseline", "main")
    unknown = run("compare", other, "--baseline", "main", "--fail-if-slower")
    assert unknown.code == 0 and "cannot tell: one step a side shows no noise" in unknown.err
    missing = run("compare", single, "--baseline", "mian")
    assert missing.code == 1 and "no such baseline (there are main)" in missing.err
    assert run("compare", single, "--baseline", "../main").code == 1
    (tmp_path / ".seqpoint" / "baselines" / "notes").mkdir()
    assert "is no baseline" in run("compare", single, "--save-baseline", "notes").err
    for wrong in (("to", other), ("--fail-if-slower", "2%"), ("--markdown",)):
        assert run("compare", single, *wrong, "--save-baseline", "main").code == 2
    assert run("compare", single, other, "--markdown", "--json").code == 2


def test_the_comment_has_the_verdict_first_and_no_markup_of_a_trace(run: Run, tmp_path: Path) -> None:
    evil = "kernel<|`@team` [x](http://a.b) <script>"
    before, after = job(tmp_path / "a.json"), job(tmp_path / "b.json", add=f"{ADD}{evil}", slow=80.0, seed=1)
    shown = run("compare", before, after, "--markdown").out
    assert shown.startswith("**slower**\n\nstep time ")
    assert re.search(r"\n\n\| part \| before \|.*\n\| --- \| --: \|", shown)
    head, details = shown.split("<details>")
    assert head.count("\n| ") <= 10 and details.endswith("</details>\n") and "\n- " in details
    assert "<script" not in shown.replace("\\<", "") and "@team" not in shown and "http://" not in shown
    assert len(as_comment(["verdict"], [Sheet("t", ("name",), (True,), [("<" * 200,)] * 999)] * 9, ["note"])) < 65536
    rows = [line for line in details.splitlines() if "team" in line]
    assert rows and all(len(re.findall(r"(?<!\\)\|", row)) == len(re.findall(r"(?<!\\)\|", rows[0])) for row in rows)


@pytest.mark.parametrize("slow", [0.0, 80.0])
def test_the_workflow_of_the_page_runs(run: Run, tmp_path: Path, slow: float) -> None:
    workflow = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(), re.DOTALL)[0]
    compare, keep = re.findall(r"run: seqpoint (compare .*)", workflow)
    for n, seconds in ((n, seconds) for seconds in (0.0, slow) for n in (1, 2, 3)):
        name = tmp_path / f"run{n}.json.gz"
        name.write_bytes(gzip.compress(job(tmp_path / "t.json", slow=seconds, seed=n).read_bytes()))
        if seconds == 0 and n == 3 and not (tmp_path / ".seqpoint").exists():
            assert run(*shlex.split(keep)).code == 0
    done = run(*shlex.split(compare.partition(" > ")[0]))
    assert done.code == int(slow > 0) and done.out.startswith("**slower**" if slow else "**no difference")

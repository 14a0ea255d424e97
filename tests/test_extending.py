"""docs/extending.md: its packages are the files, they install, and its commands print what it shows."""

import doctest
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_readers import EXAMPLES, ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text()
FOLDERS = ("reader", "what_if", "selector")
#: Most lines of a package, its metadata included.
MOST_LINES = 100


def files(folder: str) -> list[Path]:
    return sorted(path for path in (EXAMPLES / folder).iterdir() if path.is_file())


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_shows_every_module_and_one_description_and_links_the_others() -> None:
    shown = dict(re.findall(r"^\[(\S+)\]\(extending/\1\):\n\n```\w+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    files_by_name = {f"{folder}/{path.name}": path.read_text() for folder in FOLDERS for path in files(folder)}
    assert all(files_by_name[name] == text for name, text in shown.items())
    assert {name for name in files_by_name if name.endswith(".py")} | {"reader/pyproject.toml"} == set(shown)
    assert all(f"](extending/{name})" in PAGE for name in files_by_name)
    assert len(shown) == len(blocks("toml")) + len(blocks("python"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_package_is_short(folder: str) -> None:
    assert sum(len(path.read_text().splitlines()) for path in files(folder)) < MOST_LINES


def test_every_package_installs_and_the_commands_print_what_the_page_shows(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for folder in FOLDERS:
        shutil.copytree(EXAMPLES / folder, tmp_path / folder)
    pip = ("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation", "--target", site)
    done = subprocess.run(
        [sys.executable, *pip, *(tmp_path / folder for folder in FOLDERS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for name, content in zip(("run.csv", "epoch.csv"), blocks("csv"), strict=True):
        (tmp_path / name).write_text(content)
    same = doctest.OutputChecker().check_output
    for command, shown in re.findall(r"^\$ seqpoint (.*)\n((?:[^$].*\n)*)", "".join(blocks("console")), re.MULTILINE):
        done = subprocess.run(
            [sys.executable, "-c", "import sys; from seqpoint.cli import main; main(sys.argv[1:])", *command.split()],
            env={**os.environ, "COLUMNS": "160", "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert same(shown, done.stdout, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE), done.stdout


def test_every_group_is_on_the_page() -> None:
    assert set(re.findall(r"seqpoint\.(?:readers|what_ifs|selectors)", PAGE)) == {
        "seqpoint.readers",
        "seqpoint.what_ifs",
        "seqpoint.selectors",
    }

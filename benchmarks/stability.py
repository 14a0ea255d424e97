"""Record what a release promises: names, parameters, commands, options, keys of JSON; with files that it wrote.

    python benchmarks/stability.py tests/stored/0.1.0

writes a folder for a new release; folders of older releases stay as they are. `tests/test_stability.py` holds the
project to all of them, and docs/stability.md says what is promised.
"""

import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

import seqpoint
from seqpoint.cli import COMMANDS, cli

#: A small job, as the release synthesises it, and what it says of the job. In a folder with `log.csv`.
JOB = "synthesize --layers 1 --hidden 1024 --heads 16 --tp 2 --global-batch 4 --micro-batch 2 --steps 3 -o job.trace"
KEPT = {
    "result.json": "project job.trace -w overlap:ideal -w scale_links:2 --json",
    "selection.json": "select log.csv --json",
}
#: Commands whose keys of JSON are promised.
ANSWERS = (
    "advise job.trace --max-points 1 --minutes 0.01 --json",
    "analyze job.trace --json",
    "characterize job.trace --json",
    "compare job.trace job.trace --json",
    "describe job.trace --json",
    "devices MI300X --json",
    "doctor --json",
    "estimate selection.json log.csv --from log.csv --json",
    "gemms job.trace --json",
    "iterations job.trace --json",
    "readers --json",
    "replay job.trace --json",
    "what-ifs --json",
    *KEPT.values(),
)


def names() -> dict[str, list[str]]:
    """Return the parameters of each public name; an exception takes its message alone."""
    values = {name: getattr(seqpoint, name) for name in seqpoint.__all__}
    return {
        name: [] if value is seqpoint.SeqPointError else list(inspect.signature(value).parameters)
        for name, value in values.items()
    }


def options() -> dict[str, list[str]]:
    """Return the flags of the options of each command, and the names of its arguments."""
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in COMMANDS}
    return {
        name: sorted(text for given in command.params for text in given.opts)
        for name, command in found.items()
        if command is not None
    }


def answer(command: str) -> Any:
    """Return the JSON that a command prints."""
    done = CliRunner().invoke(cli, command.split())
    if done.exit_code:
        raise SystemExit(f"{command}: {done.output} {done.exception}")
    return json.loads(done.stdout)


def keys(content: Any, path: str = "") -> Iterator[str]:
    """Yield the path of each key of JSON; elements of a list share one, and so do names such as those of devices."""
    if isinstance(content, dict):
        for key, value in content.items():
            if str(key).replace("_", "").isalnum() and str(key).islower():
                yield f"{path}/{key}"
                yield from keys(value, f"{path}/{key}")
    elif isinstance(content, list):
        for value in content:
            yield from keys(value, f"{path}[]")


def promises() -> dict[str, Any]:
    """Return what the version at hand promises; in a folder that has the files."""
    answers = {command: sorted(set(keys(answer(command)))) for command in ANSWERS}
    return {"names": names(), "options": options(), "keys": answers}


if __name__ == "__main__":
    import os

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    log = "\n".join(f"{number},{100 + 7 * (number % 11)},{(3 + number % 11) / 100}" for number in range(60))
    (folder / "log.csv").write_text(f"iteration,sequence_length,duration\n{log}\n")
    os.chdir(folder)
    CliRunner().invoke(cli, JOB.split())
    for name, command in KEPT.items():
        Path(name).write_text(json.dumps(answer(command), indent=1) + "\n")
    Path("promises.json").write_text(json.dumps(promises(), indent=1) + "\n")

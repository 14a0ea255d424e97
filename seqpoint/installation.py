"""What is installed, what is missing, and the command that mends it: `seqpoint doctor`."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Any, ClassVar, Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from profilers.devices.catalogue import USER_DEVICES, load_devices
from profilers.errors import SeqPointError
from profilers.readers import readers
from profilers.trace.compiled import MADE_WITH, SHIPPED_FOLDER, compiled_with, user_folder
from seqpoint.notebook import DataFrame, Result, Table, counted, data_frame, table_of

__all__ = ["Check", "Installation", "doctor"]

#: What each extra is for; those of developers are left out.
_EXTRAS: Final = {
    "cluster": "ingest on many machines (--cluster)",
    "mcp": "traces for agents (seqpoint mcp)",
    "spreadsheet": "tables as .xlsx (--save-tables)",
    "sql": "seqpoint sql",
    "torch": "recording chosen iterations (profile_at)",
}
#: Profilers and managers of GPUs, and what each is for.
_TOOLS: Final = {
    "nsys": "records with Nsight Systems, and converts .nsys-rep",
    "ncu": "records kernels with Nsight Compute, and converts .ncu-rep",
    "rocprofv3": "records on AMD GPUs",
    "rocprof-compute": "records counters of kernels on AMD GPUs",
    "nvidia-smi": "names NVIDIA GPUs",
    "rocm-smi": "names AMD GPUs",
}
#: Seconds that a tool may take to say its version.
_ANSWER_S: Final = 5.0
_SHOWN: Final = 60
#: States of a check, the most urgent first.
_STATES: Final = ("wrong", "slow", "ok", "missing")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Parameters
    ----------
    part : str
        Kind of thing: ``"needed"``, ``"extra"``, ``"reader"``, ``"tool"``, ``"cache"`` or ``"setting"``.
    name : str
        Name of the package, tool, folder or setting.
    state : str
        ``"ok"``; ``"wrong"`` must be mended; ``"missing"`` may be added; ``"slow"`` costs time only.
    found : str
        Version, size or problem that was found.
    advice : str
        Command that mends or adds it, or what it is for.
    """

    part: str
    name: str
    state: str
    found: str
    advice: str = ""


class Installation(Result):
    """What an installation has, and what would mend or extend it.

    Parameters
    ----------
    checks : tuple of Check
        All things that were looked at.
    """

    heading: ClassVar[str] = "Installation"

    def __init__(self, checks: tuple[Check, ...]) -> None:
        self.checks = checks

    @cached_property
    def wrong(self) -> tuple[Check, ...]:
        """What must be mended before all commands work."""
        return tuple(check for check in self.checks if check.state == "wrong")

    def summary(self) -> list[str]:
        """Return whether the installation is whole, then each thing that must be mended."""
        python = ".".join(map(str, sys.version_info[:3]))
        verdict = f"{len(self.wrong)} of {len(self.checks)} checks found something to mend" if self.wrong else "ready"
        faults = (f"{check.name}: {check.found}; {check.advice}" for check in self.wrong)
        return [f"seqpoint {version('seqpoint')} on Python {python}: {verdict}", *faults]

    def table(self) -> DataFrame:
        """Return a row for each check."""
        return data_frame([asdict(check) for check in self.checks])

    def tables(self) -> list[Table]:
        """Return the checks that a user may act on, and the others for ``--verbose``."""
        columns = {
            "part~": "{part}",
            "name~": "{name}",
            "state~": "{state}",
            "found~": "{found}",
            "advice~": "{advice}",
        }
        groups: tuple[list[Check], list[Check]] = ([], [])
        for check in self.checks:
            groups[check.part == "needed" and check.state == "ok"].append(check)
        urgent: list[Check] = sorted(groups[0], key=lambda check: _STATES.index(check.state))
        return [
            table_of("Installation", columns, urgent),
            table_of("Needed packages", columns, groups[1], verbose=True),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the checks as JSON."""
        return {"version": version("seqpoint"), "ready": not self.wrong, "checks": list(map(asdict, self.checks))}


def doctor() -> Installation:
    """Look at versions, extras, readers, tools of GPUs, caches and settings; nothing is changed.

    Tools that are installed are asked for their version, at most 5 s each.
    """
    parts = (_python, _packages, _extras, _readers, _tools, _caches, _settings)
    return Installation(tuple(check for part in parts for check in part()))


def _python() -> Iterator[Check]:
    allowed, found = metadata("seqpoint")["Requires-Python"], ".".join(map(str, sys.version_info[:3]))
    is_right = found in SpecifierSet(allowed)
    yield Check(
        "needed", "Python", "ok" if is_right else "wrong", found, "" if is_right else f"install Python {allowed}"
    )


def _requirements(extra: str) -> Iterator[Requirement]:
    """Yield what the package needs with an extra; without one if it is empty."""
    for text in requires("seqpoint") or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if (marker is None) != bool(extra) and (marker is None or marker.evaluate({"extra": extra})):
            yield requirement


def _problem(requirement: Requirement) -> tuple[str, str]:
    """Return the version that is installed, and what is wrong with it."""
    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return "", "not installed"
    is_right = requirement.specifier.contains(found, prereleases=True)
    return found, "" if is_right else f"{found}, where {requirement.specifier} is needed"


def _packages() -> Iterator[Check]:
    for requirement in _requirements(""):
        found, problem = _problem(requirement)
        advice = f"pip install '{requirement.name}{requirement.specifier}'" if problem else ""
        yield Check("needed", requirement.name, "wrong" if problem else "ok", problem or found, advice)


def _extras() -> Iterator[Check]:
    for extra, purpose in _EXTRAS.items():
        found = {each.name: _problem(each) for each in _requirements(extra)}
        problems = [f"{name} {problem}" for name, (_, problem) in found.items() if problem]
        versions = ", ".join(f"{name} {number}" for name, (number, _) in found.items())
        advice = f"pip install 'seqpoint[{extra}]', for {purpose}" if problems else purpose
        yield Check("extra", extra, "missing" if problems else "ok", ", ".join(problems) or versions, advice)


def _readers() -> Iterator[Check]:
    for plugin in readers():
        if plugin.problem:
            advice = f"mend or remove the package {plugin.package}"
            yield Check("reader", plugin.name, "wrong", plugin.problem, advice)


def _tools() -> Iterator[Check]:
    paths = {name: shutil.which(name) for name in _TOOLS}
    for name, path in paths.items():
        if path:
            yield Check("tool", name, "ok", _said(path), _TOOLS[name])
    if absent := [name for name, path in paths.items() if path is None]:
        advice = "only recording, and reading .nsys-rep and .ncu-rep, needs them"
        yield Check("tool", "profilers", "missing", f"not on the path: {', '.join(absent)}", advice)


def _said(tool: str) -> str:
    """Return the first line with a number that a tool says of its version, or where it is."""
    try:
        done = subprocess.run(
            [tool, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=_ANSWER_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return f"{tool}, which does not answer"
    lines = (line.strip() for line in done.stdout.splitlines() if any(map(str.isdigit, line)))
    return "".join(filter(str.isprintable, next(lines, tool)))[:_SHOWN]


def _caches() -> Iterator[Check]:
    made = SHIPPED_FOLDER / MADE_WITH
    if made.is_file():
        versions = json.loads(made.read_text())
        others = [f"{name} {versions[name]}" for name, now in compiled_with().items() if versions[name] != now]
        advice = "first commands compile, up to a minute in all" if others else ""
        found = f"made with {', '.join(others)}, which is not installed" if others else "that of the wheel"
        yield Check("cache", "machine code", "slow" if others else "ok", found, advice)
    else:
        found = "none came with this installation"
        yield Check("cache", "machine code", "slow", found, "first commands compile, up to a minute in all")
    folder = user_folder()
    if folder is None:
        yield Check(
            "cache", "compiled code", "slow", "no home folder", "set NUMBA_CACHE_DIR to a folder that can be written"
        )
        return
    sizes = [path.stat().st_size for path in folder.glob("*.code")]
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if os.access(there, os.W_OK):
        found = f"{folder}: {counted(len(sizes), 'file')}, {sum(sizes) / 1e6:.0f} MB"
        yield Check("cache", "compiled code", "ok", found, f"all that an uninstallation leaves: rm -r {folder.parent}")
    else:
        advice = "every process compiles: set NUMBA_CACHE_DIR to a folder that can be written"
        yield Check("cache", "compiled code", "slow", f"{there} cannot be written", advice)


def _settings() -> Iterator[Check]:
    files = os.environ.get(USER_DEVICES, "")
    if files:
        try:
            load_devices()
        except SeqPointError as error:
            yield Check("setting", USER_DEVICES, "wrong", str(error), "mend the file, or unset the variable")
        else:
            yield Check("setting", USER_DEVICES, "ok", files, "devices of your own")
    yield from _space(Path.cwd())


def _space(folder: Path) -> Iterator[Check]:
    """Say whether traces can be written here."""
    free = shutil.disk_usage(folder).free
    is_right = os.access(folder, os.W_OK)
    found = f"{folder}: {free / 1e9:.0f} GB free" if is_right else f"{folder} cannot be written"
    yield Check(
        "setting", "this folder", "ok" if is_right else "slow", found, "" if is_right else "write traces elsewhere: -o"
    )

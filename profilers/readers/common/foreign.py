"""Files of other tools: what they are, what to do with them, and their conversion by the tools that wrote them.

The table is `datasets/formats/foreign.toml`. A tool runs only if it is installed, without a shell and for a limited
time.
"""

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from profilers.errors import BrokenFileError, UnknownFormatError
from profilers.files import dataset_path, read_toml, typed_table

#: Seconds that a conversion may take.
CONVERSION_S = 1800.0
#: Characters of a tool's last line that a message repeats.
_SHOWN = 200


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of the table, as the head of the file describes it."""

    what: str
    suffixes: tuple[str, ...] = ()
    magic: tuple[str, ...] = ()
    advice: str = ""
    command: tuple[str, ...] = ()
    result: str = ""
    stdout: bool = False


@cache
def _entries() -> tuple[_Entry, ...]:
    file = dataset_path("formats/foreign.toml")
    content: Mapping[str, object] = read_toml(file, "foreign formats")
    return tuple(typed_table(entry, _Entry, f"{file}: {name}") for name, entry in content.items())


@dataclass(frozen=True)
class ForeignFile:
    """A file of another tool.

    Parameters
    ----------
    path : Path
        The file.
    entry : _Entry
        What it is, and what to do.
    """

    path: Path
    entry: _Entry

    @property
    def tool(self) -> str | None:
        """Path of the tool that converts it; None if there is none, or it is not installed."""
        return shutil.which(self.entry.command[0]) if self.entry.command else None

    def message(self) -> str:
        """Return what the file is, and what to do."""
        if not self.entry.command:
            return f"{self.path}: no reader knows this format: it is {self.entry.what}; {self.entry.advice}"
        name = f"./{self.path}" if str(self.path).startswith("-") else str(self.path)
        target = name.removesuffix(self.path.suffix) + self.entry.result
        text = shlex.join(self._arguments(name, target))
        command = f"{text} > {shlex.quote(target)}" if self.entry.stdout else text
        missing = "" if self.tool else f"{self.entry.command[0]}, which converts it, is not installed here; "
        said = f"{self.path}: no reader knows this format: it is {self.entry.what}; "
        return f"{said}{missing}run `{command}`, and give {target}"

    def _arguments(self, source: str, target: str) -> list[str]:
        return [word.format(input=source, output=target) for word in self.entry.command]

    def convert(self, folder: Path, limit_bytes: int) -> Path:
        """Return the file that the tool makes of this one in a folder.

        Parameters
        ----------
        folder : Path
            Folder for the result, which keeps the name of the file.
        limit_bytes : int
            Most bytes of the result.

        Raises
        ------
        UnknownFormatError
            The tool is not installed.
        BrokenFileError
            It fails, takes too long, or writes nothing or too much.
        """
        tool, target = self.tool, folder / f"{self.path.stem}{self.entry.result}"
        if tool is None:
            raise UnknownFormatError(self.message())
        # Absolute paths, so that a name that begins with a dash is no option.
        _, *arguments = self._arguments(str(self.path.absolute()), str(target))
        log = folder / "messages"
        problem = _run([tool, *arguments], target if self.entry.stdout else folder / "output", log)
        name = self.entry.command[0]
        if not problem and not (target.is_file() and target.stat().st_size):
            problem = "it wrote nothing"
        if problem:
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            last = "".join(character for character in " ".join(said)[:_SHOWN] if character.isprintable())
            raise BrokenFileError(f"{self.path}: {name} could not convert it: {problem}{f' ({last})' if last else ''}")
        if target.stat().st_size > limit_bytes:
            raise BrokenFileError(
                f"{self.path}: {name} makes more than {limit_bytes:,} bytes of it; raise the limit if you trust it"
            )
        return target


def _run(command: list[str], output: Path, log: Path) -> str:
    """Run a tool with its output and its messages in files; return what went wrong, or ""."""
    with output.open("wb") as out, log.open("wb") as errors:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True
            )
        except OSError as error:
            return f"it does not start ({error.strerror})"
        try:
            status = process.wait(CONVERSION_S)
        except BaseException as error:
            with suppress(ProcessLookupError):  # the tool and the processes that it started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                return f"it took more than {CONVERSION_S:g} s"
            raise
    return f"it ended with status {status}" if status else ""


def foreign_file(path: Path, start: bytes) -> ForeignFile | None:
    """Return the file as one of another tool that is known by its beginning or its name; None for another file.

    Parameters
    ----------
    path : Path
        The file.
    start : bytes
        Its first bytes, unpacked.
    """
    name = path.name.lower()
    for entry in _entries():
        if name.endswith(entry.suffixes) or any(start.startswith(bytes.fromhex(magic)) for magic in entry.magic):
            return ForeignFile(path, entry)
    return None

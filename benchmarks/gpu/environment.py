"""``environment.json``: on what, in which state and by which versions every take was recorded."""

import importlib.util
import json
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from profilers.errors import InvalidInputError
from profilers.files import write_text

__all__ = ["begin", "end", "joined", "read_takes", "versions", "write"]

NAME = "environment.json"
MOST_BYTES = 16 << 20
#: What makes a device another one.
IDENTITY = ("name", "architecture", "compute_units", "memory_bytes")
GIT_SECONDS = 10
#: Objects that a session may have.
_STATES = ("state_before", "state_after", "versions")


def read_takes(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of all takes, in the order of their first session; none where nothing was recorded.

    Raises
    ------
    InvalidInputError
        The file is none of ours.
    """
    path = folder / NAME
    if not path.exists():
        return []
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES} bytes")
        entries = json.loads(path.read_text(encoding="utf-8"))
        for entry in entries:
            _check(entry)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInputError(f"{path}: is no list of recordings ({error}); give another folder") from error
    return list(entries)


def _check(entry: Mapping[str, Any]) -> None:
    """Raise where an entry has not what is read of it, or as another type."""
    if type(entry["take"]) is not int or not entry["sessions"]:
        raise ValueError("an entry without take or sessions")
    _ = {key: entry["device"].get(key) for key in IDENTITY}, entry["plan"]["size"], entry["plan"]["seed"]
    if not isinstance(entry["device"].get("name"), str | None):
        raise ValueError("a device whose name is no text")
    states = [session.get(name) for session in entry["sessions"] for name in _STATES]
    if not all(isinstance(one, dict | None) for one in (entry["device"].get("missing"), *states)):
        raise ValueError(f"one of missing, {', '.join(_STATES)} that is no object")
    texts = [text for session in entry["sessions"] for text in (session["date"], session.get("parts", ""))]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a session whose date or parts is no text")


def begin(folder: Path, take: int, about: Mapping[str, Any], session: Mapping[str, Any]) -> None:
    """Write that a session of a take begins.

    Parameters
    ----------
    folder : Path
    take : int
    about : mapping
        `device` (facts) and `plan` (`size`, `seed`), which all sessions of a folder share.
    session : mapping
        What is this session's own: `minutes`, `parts`, `state_before`, versions.

    Raises
    ------
    InvalidInputError
        The folder holds recordings of another device or plan.
    """
    entries = read_takes(folder)
    for entry in entries:
        _same(folder, entry, about)
    started = {"date": datetime.now(UTC).isoformat(timespec="seconds"), **session}
    mine = next((entry for entry in entries if entry["take"] == take), None)
    if mine is None:
        mine = {"take": take, **about, "sessions": []}
        entries.append(mine)
    mine["sessions"].append(started)
    mine.setdefault("state_before", session.get("state_before", {}))
    write(entries, folder)


def end(folder: Path, take: int, state: Mapping[str, Any]) -> None:
    """Write in which state the device was at the end of the last session of a take."""
    entries = read_takes(folder)
    mine = next(entry for entry in entries if entry["take"] == take)
    mine["state_after"] = mine["sessions"][-1]["state_after"] = dict(state)
    mine["sessions"][-1]["ended"] = datetime.now(UTC).isoformat(timespec="seconds")
    write(entries, folder)


def joined(takes: Sequence[Mapping[str, Any]], target: Path) -> list[dict[str, Any]]:
    """Return takes together with the takes that a folder holds, session by session.

    Raises
    ------
    InvalidInputError
        The folder holds recordings of another device or plan.
    """
    entries = {entry["take"]: entry for entry in read_takes(target)}
    for take in takes:
        for entry in entries.values():
            _same(target, entry, take)
        before = entries.get(take["take"], {}).get("sessions", [])
        dates = {session["date"] for session in take["sessions"]}
        sessions = [*(session for session in before if session["date"] not in dates), *take["sessions"]]
        entries[take["take"]] = {**take, "sessions": sorted(sessions, key=lambda session: str(session["date"]))}
    return [dict(entries[take]) for take in sorted(entries)]


def write(takes: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write the takes of a folder."""
    write_text(folder / NAME, json.dumps(takes, indent=1) + "\n")


def versions() -> dict[str, Any]:
    """Return versions of what a recording depends on; null for what is not there."""
    return {
        "python": platform.python_version(),
        "os": _system(),
        "cpu": platform.machine(),
        **_torch_versions(),
        "triton": _triton_version(),
        "commit": _commit(),
    }


def _system() -> str:
    """Return the system with its C library, without the kernel's build, which may name a provider."""
    library = " ".join(part for part in platform.libc_ver() if part)
    return ", ".join(part for part in (f"{platform.system()} {platform.machine()}", library) if part)


def _torch_versions() -> dict[str, Any]:
    """Return what PyTorch is and was built with; nothing where there is none."""
    if importlib.util.find_spec("torch") is None:
        return dict.fromkeys(("torch", "cuda", "hip", "cudnn"))
    import torch

    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),
    }


def _triton_version() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        import triton
    except Exception as error:  # noqa: BLE001  What a broken installation raises is part of the environment.
        return f"cannot be imported ({type(error).__name__})"
    return str(triton.__version__)


def _commit() -> str | None:
    """Return the commit of the checkout that this runs from, with a mark if it was changed; null outside one."""
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _same(folder: Path, entry: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    for key in IDENTITY:
        there, here = entry["device"].get(key), about["device"].get(key)
        if there != here and not (key == "memory_bytes" and _close(there, here)):
            raise InvalidInputError(f"{folder}: was recorded on another device ({key} {there}, here {here}); "
                                    "give another --output")  # fmt: skip
    for key in ("size", "seed"):
        there, here = entry["plan"][key], about["plan"][key]
        if there != here:
            raise InvalidInputError(f"{folder}: holds a plan of --{key} {there}, not {here}; give another --output")


def _close(there: Any, here: Any) -> bool:
    """Return whether sizes of memory are of the same device: what a driver keeps of it differs by a little."""
    return isinstance(there, int) and isinstance(here, int) and abs(there - here) < 0.01 * here

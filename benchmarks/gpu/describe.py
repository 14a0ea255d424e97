"""`describe`: the README of a recording, from what it holds."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["describe"]

#: What is said first of a state.
_STATES = ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w", "load")


def describe(takes: Sequence[Mapping[str, Any]], written: Mapping[Path, int], failed: Mapping[str, str]) -> str:
    """Return Markdown that says on what, how and with which versions a recording was made.

    Parameters
    ----------
    takes : sequence of mapping
        As ``environment.json`` has them.
    written : mapping of Path to int
        Rows by file, the paths within the recording's folder.
    failed : mapping of str to str
        What became of steps that gave nothing, by take and key.
    """
    device = takes[0]["device"] if takes else {}
    lines = [f"# Recorded on {_cell(device.get('name') or 'a device without a name')}", ""]
    lines += ["By `python -m benchmarks.gpu`; `benchmarks/gpu/README.md` says what is measured and how, and what the",
              "columns mean. Nothing here is modelled or corrected.", ""]  # fmt: skip
    lines += _table(("device", ""), [(key, _text(value)) for key, value in device.items() if key != "missing"])
    lines += [line for entry in takes for line in _take(entry)]
    lines += _table(("file", "rows"), [(path.as_posix(), f"{rows}") for path, rows in sorted(written.items())])
    if failed:
        lines += ["Steps that failed, and gave no rows:", ""]
        lines += _table(("step", "error"), [(key, error[:200]) for key, error in sorted(failed.items())])
    if device.get("missing"):
        lines += _table(
            ("not to be had here", "why"), [(key, str(why)[:200]) for key, why in device["missing"].items()]
        )
    return "\n".join(lines).rstrip() + "\n"


def _take(entry: Mapping[str, Any]) -> list[str]:
    """Return what is said of one take: its plan, its versions, and the device's state around each session."""
    plan = entry["plan"]
    lines = [f"## Take {entry['take']}", ""]
    lines += [f"Size `{plan['size']}`, seed {plan['seed']}.", ""]
    rows = []
    for session in entry["sessions"]:
        before, after = session.get("state_before") or {}, session.get("state_after") or {}
        states = ", ".join(
            f"{key} {_text(before.get(key))} / {_text(after.get(key))}" for key in _keys(before, after)
        )  # fmt: skip
        rows.append((session["date"], session.get("parts", ""), states or "nobody says"))
    lines += _table(("session", "parts", "before / after"), rows)
    versions = [session.get("versions") or {} for session in entry["sessions"]]
    said = Counter((key, _text(value)) for one in versions for key, value in one.items())
    return lines + _table(("version", ""), sorted(said))


def _keys(*states: Mapping[str, Any]) -> list[str]:
    found = {key for state in states for key in state}
    return [key for key in _STATES if key in found] + sorted(found - set(_STATES))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    lines = [header, ["---"] * len(header), *rows]
    return [*("| " + " | ".join(map(_cell, line)) + " |" for line in lines), ""]


def _text(value: Any) -> str:
    return "unknown" if value is None else value if isinstance(value, str) else json.dumps(value)


def _cell(text: str) -> str:
    """Return text that stays within a cell, whatever a driver wrote."""
    clean = "".join(c if c.isprintable() else " " for c in text)
    return clean.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")[:500]

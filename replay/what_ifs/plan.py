"""Plan files: several alternatives in TOML, each a list of steps with named arguments."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError, SeqPointError
from profilers.files import parse_toml
from replay.calibration.parameters import Parameters
from replay.what_ifs.registry import compose, made, parse_what_if, recipe_named
from replay.what_ifs.what_if import WhatIf, unknown

#: A plan is written by hand; more is another file, or an attack.
_BYTES, _ALTERNATIVES, _STEPS, _TITLE = 2**16, 1000, 64, 200
#: A parameter is at most this far outside the range that is shipped.
_FACTOR = 1000.0
_WHAT_IF = "what_if"


def read_plan(path: str | Path, parameters: Parameters) -> tuple[WhatIf, ...]:
    """Return the alternatives of a plan file.

    Parameters
    ----------
    path : str or Path
        TOML file of at most 64 KiB, in the layout of `parse_plan`.
    parameters : Parameters
        Parameters of the models, whose ranges the plan's own values are checked against.

    Raises
    ------
    NotFoundError
        There is no such file, or no such what-if, argument or parameter as it names; the nearest are offered.
    BrokenFileError
        It is no TOML, larger than 64 KiB, or has a key of more than 64 dots; the message says which.
    InvalidInputError
        An entry is not what it has to be; the message says which.
    """
    path = Path(path)
    if not path.exists():
        raise NotFoundError(f"{path}: no such plan file")
    if not path.is_file():
        raise InvalidInputError(f"{path}: no regular file; a plan is a TOML file")
    try:
        with path.open("rb") as stream:
            content = stream.read(_BYTES + 1)
    except OSError as error:
        raise BrokenFileError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > _BYTES:
        raise BrokenFileError(f"{path}: a plan has {_BYTES} bytes at most")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BrokenFileError(f"{path}: not UTF-8 at byte {error.start}") from error
    return parse_plan(text, parameters, str(path))


def parse_plan(text: str, parameters: Parameters, source: str = "plan") -> tuple[WhatIf, ...]:
    """Return the alternatives of a plan.

    Parameters
    ----------
    text : str
        TOML: ``[[alternative]]`` tables with ``steps``, each a text as the command line has it or a table with
        ``what_if`` and its arguments by name; optionally ``title`` and a table ``parameters``, which stand in for those
        of the models. A table ``parameters`` at the top is for all alternatives.
    parameters : Parameters
        Parameters of the models, whose ranges the plan's own values are checked against.
    source : str
        For messages.

    Raises
    ------
    SeqPointError
        As `read_plan`.

    Examples
    --------
    >>> plan = '[[alternative]]\\ntitle = "A"\\nsteps = [{what_if = "scale_links", factor = 2}, "dma_collectives"]'
    >>> from replay.costs.shipped import load_parameters
    >>> what_if = parse_plan(plan, load_parameters())[0]
    >>> what_if.label, what_if.name
    ('A', 'scale_links:2+dma_collectives')
    """
    content = _loaded(text, source)
    _only(content, ("alternative", "parameters", "title"), source)
    _title(content, source)
    alternatives = content.get("alternative")
    if not isinstance(alternatives, list) or not 1 <= len(alternatives) <= _ALTERNATIVES:
        raise InvalidInputError(f"{source}: a plan has 1 to {_ALTERNATIVES} tables [[alternative]]")
    common = _parameters(content, source, parameters)
    found = tuple(
        _alternative(entry, common, f"{source}: alternative {i}", parameters) for i, entry in enumerate(alternatives, 1)
    )
    titles = ["baseline", *(what_if.title for what_if in found if what_if.title)]
    if twice := {title for title in titles if titles.count(title) > 1}:
        raise InvalidInputError(f"{source}: title {min(twice)!r} is used twice; results go by it")
    return found


def _loaded(text: str, source: str) -> dict[str, Any]:
    if len(text) > _BYTES:
        raise BrokenFileError(f"{source}: a plan has {_BYTES} bytes at most")
    try:
        return parse_toml(text)
    except ValueError as error:
        raise BrokenFileError(f"{source}: no TOML: {error}") from error


def _alternative(entry: object, common: Mapping[str, float], place: str, parameters: Parameters) -> WhatIf:
    table = _table(entry, place)
    title = _title(table, place)
    if title:
        place = f"{place} ({title[:40]})"
    _only(table, ("title", "steps", "parameters"), place)
    steps = table.get("steps")
    if not isinstance(steps, list) or not 1 <= len(steps) <= _STEPS:
        raise InvalidInputError(f"{place}: steps is a list of 1 to {_STEPS} steps")
    parts = [_step(step, f"{place}, step {i}") for i, step in enumerate(steps, 1)]
    values = {**common, **_parameters(table, place, parameters)}
    what_if = parts[0] if len(parts) == 1 else compose(*parts)
    return replace(what_if, title=title, parameters=tuple(sorted(values.items())))


def _step(entry: object, place: str) -> WhatIf:
    try:
        if isinstance(entry, str):
            return parse_what_if(entry)
        table = dict(_table(entry, place))
        name = table.pop(_WHAT_IF, None)
        if not isinstance(name, str):
            raise InvalidInputError(f'a step is a text, or a table with {_WHAT_IF} = "NAME"')
        recipe = recipe_named(name)
        for key, value in table.items():
            if not isinstance(value, str | int | float) or isinstance(value, bool):
                raise InvalidInputError(f"{key} is a {_type(value)}; it has to be a text or a number")
        return made(recipe, recipe.texts(table))
    except SeqPointError as error:
        text = str(error)
        raise type(error)(text if text.startswith(place) else f"{place}: {text}") from error


def _parameters(table: Mapping[str, Any], place: str, parameters: Parameters) -> dict[str, float]:
    known = parameters.known
    found = {}
    for name, value in _table(table.get("parameters", {}), f"{place}: parameters").items():
        if name not in known:
            raise unknown(f"{place}: no parameter is called", name, known)
        if name == "replay_error":
            raise InvalidInputError(f"{place}: replay_error cannot be given; it is the replay's, not an alternative's")
        if isinstance(value, bool) or not isinstance(value, int | float) or value - value != 0:
            raise InvalidInputError(f"{place}: parameter {name} has to be a finite number, not a {_type(value)}")
        one = known[name]
        least, most = one.low / _FACTOR, 1.0 if one.unit.startswith("share") else one.high * _FACTOR
        if not least <= value <= most:
            shown = f"{value:g}" if abs(value) < 2**63 else "too large"
            raise InvalidInputError(
                f"{place}: parameter {name} is {shown}, in {one.unit}: not plausible; {least:g} to {most:g} is taken"
            )
        found[name] = float(value)
    return found


def _title(table: Mapping[str, Any], place: str) -> str:
    title = table.get("title", "")
    if not isinstance(title, str) or len(title) > _TITLE:
        raise InvalidInputError(f"{place}: title is a text of {_TITLE} characters at most")
    return title


def _only(table: Mapping[str, Any], keys: tuple[str, ...], place: str) -> None:
    for key in table:
        if key not in keys:
            raise unknown(f"{place}: there is no key", key, keys)


def _table(value: object, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInputError(f"{place}: this has to be a table, not a {_type(value)}")
    return value


def _type(value: object) -> str:
    names = {
        str: "text",
        bool: "boolean",
        list: "list",
        dict: "table",
        int: "number",
        float: "number that is not finite",
    }
    return names.get(type(value), type(value).__name__)

"""Plan files: alternatives in TOML, each a list of what-ifs with named arguments.

A plan is not trusted: its size, its keys and its values are bounded, and each error names the alternative and step.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError, SeqPointError
from profilers.files import parse_toml
from replay.calibration.parameters import Parameters
from replay.what_ifs.registry import build_what_if, compose, parse_what_if, recipe_named
from replay.what_ifs.what_if import WhatIf, unknown_name

#: Bounds on bytes, alternatives, steps of an alternative, and characters of a title. Plans are written by hand.
_MOST_BYTES, _MOST_ALTERNATIVES, _MOST_STEPS, _LONGEST_TITLE = 2**16, 1000, 64, 200
#: A parameter may be outside its shipped range by this factor.
_FACTOR_OUTSIDE = 1000.0
#: Key of the name of a what-if in the table of a step.
_WHAT_IF_KEY = "what_if"


def read_plan(path: str | Path, parameters: Parameters) -> tuple[WhatIf, ...]:
    """Read the alternatives of a plan file.

    Parameters
    ----------
    path : str or Path
        TOML file of at most 64 KiB, in the layout of `parse_plan`.
    parameters : Parameters
        Parameters of the models, whose ranges the plan's own values are checked against.

    Raises
    ------
    NotFoundError
        The file is missing, or it names an unknown what-if, argument or parameter. The message offers the nearest
        names.
    BrokenFileError
        The file is no TOML, larger than 64 KiB, or has a key of more than 64 dots.
    InvalidInputError
        An entry has a wrong type or value; the message names it.
    """
    path = Path(path)
    if not path.exists():
        raise NotFoundError(f"{path}: no such plan file")
    if not path.is_file():
        raise InvalidInputError(f"{path}: no regular file; a plan is a TOML file")
    try:
        with path.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise BrokenFileError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise BrokenFileError(f"{path}: a plan has {_MOST_BYTES} bytes at most")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BrokenFileError(f"{path}: not UTF-8 at byte {error.start}") from error
    return parse_plan(text, parameters, str(path))


def parse_plan(text: str, parameters: Parameters, source: str = "plan") -> tuple[WhatIf, ...]:
    """Parse the alternatives of a plan.

    Parameters
    ----------
    text : str
        TOML: tables ``[[alternative]]`` with ``steps``. A step is a text as on the command line, or a table with
        ``what_if`` and its arguments by name. An alternative may have a ``title``, and a table ``parameters`` that
        replaces values of the models. A table ``parameters`` at the top holds for all alternatives.
    parameters : Parameters
        Parameters of the models, whose ranges bound the values of the plan.
    source : str
        Name of the plan in messages.

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
    if len(text) > _MOST_BYTES:
        raise BrokenFileError(f"{source}: a plan has {_MOST_BYTES} bytes at most")
    try:
        content = parse_toml(text)
    except ValueError as error:
        raise BrokenFileError(f"{source}: no TOML: {error}") from error
    _check_keys(content, ("alternative", "parameters", "title"), source)
    _checked_title(content, source)
    alternatives = content.get("alternative")
    if not isinstance(alternatives, list) or not 1 <= len(alternatives) <= _MOST_ALTERNATIVES:
        raise InvalidInputError(f"{source}: a plan has 1 to {_MOST_ALTERNATIVES} tables [[alternative]]")
    common = _checked_parameters(content, source, parameters)
    what_ifs = tuple(
        _alternative(entry, common, f"{source}: alternative {i}", parameters) for i, entry in enumerate(alternatives, 1)
    )
    titles = ["baseline", *(what_if.title for what_if in what_ifs if what_if.title)]
    if repeated := {title for title in titles if titles.count(title) > 1}:
        raise InvalidInputError(f"{source}: title {min(repeated)!r} is used twice; give each alternative its own title")
    return what_ifs


def _alternative(entry: object, common: Mapping[str, float], where: str, parameters: Parameters) -> WhatIf:
    table = _checked_table(entry, where)
    title = _checked_title(table, where)
    if title:
        where = f"{where} ({title[:40]})"
    _check_keys(table, ("title", "steps", "parameters"), where)
    steps = table.get("steps")
    if not isinstance(steps, list) or not 1 <= len(steps) <= _MOST_STEPS:
        raise InvalidInputError(f"{where}: steps is a list of 1 to {_MOST_STEPS} steps")
    parts = [_step(step, f"{where}, step {i}") for i, step in enumerate(steps, 1)]
    values = {**common, **_checked_parameters(table, where, parameters)}
    what_if = parts[0] if len(parts) == 1 else compose(*parts)
    return replace(what_if, title=title, parameters=tuple(sorted(values.items())))


def _step(entry: object, where: str) -> WhatIf:
    try:
        if isinstance(entry, str):
            return parse_what_if(entry)
        table = dict(_checked_table(entry, where))
        name = table.pop(_WHAT_IF_KEY, None)
        if not isinstance(name, str):
            raise InvalidInputError(f'a step is a text, or a table with {_WHAT_IF_KEY} = "NAME"')
        recipe = recipe_named(name)
        for key, value in table.items():
            if not isinstance(value, str | int | float) or isinstance(value, bool):
                raise InvalidInputError(f"{key} is a {_type_name(value)}; it has to be a text or a number")
        return build_what_if(recipe, recipe.texts(table))
    except SeqPointError as error:
        text = str(error)
        raise type(error)(text if text.startswith(where) else f"{where}: {text}") from error


def _checked_parameters(table: Mapping[str, Any], where: str, parameters: Parameters) -> dict[str, float]:
    shipped = parameters.known
    values = {}
    for name, value in _checked_table(table.get("parameters", {}), f"{where}: parameters").items():
        if name not in shipped:
            raise unknown_name(f"{where}: no parameter is called", name, shipped)
        if name == "replay_error":
            raise InvalidInputError(f"{where}: replay_error cannot be given; it is the replay's, not an alternative's")
        if isinstance(value, bool) or not isinstance(value, int | float) or value - value != 0:
            raise InvalidInputError(f"{where}: parameter {name} has to be a finite number, not a {_type_name(value)}")
        parameter = shipped[name]
        least = parameter.low / _FACTOR_OUTSIDE
        most = 1.0 if parameter.unit.startswith("share") else parameter.high * _FACTOR_OUTSIDE
        if not least <= value <= most:
            shown = f"{value:g}" if abs(value) < 2**63 else "too large"
            raise InvalidInputError(
                f"{where}: parameter {name} is {shown}, in {parameter.unit}: not plausible; give {least:g} to {most:g}"
            )
        values[name] = float(value)
    return values


def _checked_title(table: Mapping[str, Any], where: str) -> str:
    title = table.get("title", "")
    if not isinstance(title, str) or len(title) > _LONGEST_TITLE:
        raise InvalidInputError(f"{where}: title is a text of {_LONGEST_TITLE} characters at most")
    return title


def _check_keys(table: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in keys:
            raise unknown_name(f"{where}: there is no key", key, keys)


def _checked_table(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInputError(f"{where}: this has to be a table, not a {_type_name(value)}")
    return value


def _type_name(value: object) -> str:
    names = {
        str: "text",
        bool: "boolean",
        list: "list",
        dict: "table",
        int: "number",
        float: "number that is not finite",
    }
    return names.get(type(value), type(value).__name__)

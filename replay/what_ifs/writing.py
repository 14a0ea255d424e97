"""What-ifs in one line: ``NAME:ARGUMENT``, joined by ``+``; a ``:`` or ``+`` in an argument has a ``\\`` before it."""

import re
from collections.abc import Sequence

__all__ = ["number_text", "split_steps", "split_words", "written"]


def number_text(value: float) -> str:
    """Return the shortest text that is read as exactly this number, without a ``+``.

    Examples
    --------
    >>> number_text(2.0), number_text(0.1), number_text(1e300)
    ('2', '0.1', '1e300')
    """
    return repr(float(value)).removesuffix(".0").replace("e+", "e")


def written(name: str, *arguments: str | float) -> str:
    """Return the line that is read as this what-if.

    Examples
    --------
    >>> written("swap_kernel", "at::add*", 0.5)
    'swap_kernel:at\\\\:\\\\:add*:0.5'
    """
    texts = (one if isinstance(one, str) else number_text(one) for one in arguments)
    return ":".join((name, *(re.sub(r"([\\:+])", r"\\\1", text) for text in texts)))


def split_steps(text: str) -> list[str]:
    """Return the steps of a composition, as written.

    Examples
    --------
    >>> split_steps("a:1 + b:x\\\\+y")
    ['a:1', 'b:x\\\\+y']
    """
    return [part.strip() for part in _split(text, "+")]


def split_words(step: str) -> list[str]:
    """Return the name and the arguments of one step."""
    return [re.sub(r"\\(.)", r"\1", part, flags=re.DOTALL) for part in _split(step, ":")]


def _split(text: str, mark: str) -> Sequence[str]:
    """Split at every `mark` that has no backslash before it."""
    parts, characters = [""], iter(text)
    for character in characters:
        if character == "\\":
            parts[-1] += character + next(characters, "")
        elif character == mark:
            parts.append("")
        else:
            parts[-1] += character
    return parts

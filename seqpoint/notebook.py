"""HTML of a result in a notebook: a heading, a few sentences and tables, with all text escaped."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


#: Rows of a table that a notebook shows; `.table()` has all of them.
_SHOWN_ROWS = 25


def as_text(sentences: Sequence[str], table: "pd.DataFrame") -> str:
    """Return a result as plain text: its sentences, then its table with every column.

    Parameters
    ----------
    sentences : sequence of str
        What the result says, one line each.
    table : pandas.DataFrame
        Its main table.
    """
    return "\n".join([*sentences, table.to_string(index=False, float_format="{:,.4g}".format)])


def as_html(heading: str, sentences: Sequence[str], tables: "Mapping[str, pd.DataFrame]") -> str:
    """Return a result as HTML; all text is escaped, since names come from traces.

    Parameters
    ----------
    heading : str
        Name of the result.
    sentences : sequence of str
        Sentences below the heading, a paragraph each.
    tables : mapping of str to pandas.DataFrame
        Tables by caption. The first 25 rows of each are shown; a table without rows is left out.

    Examples
    --------
    >>> print(as_html("A & B", ["One sentence."], {}))
    <div><h4>A &amp; B</h4>
    <p>One sentence.</p></div>
    """
    parts = [f"<h4>{escape(heading)}</h4>", *(f"<p>{escape(sentence)}</p>" for sentence in sentences)]
    for caption, table in tables.items():
        if table.empty:
            continue
        more = f" (the first {_SHOWN_ROWS} of {len(table)} rows)" if len(table) > _SHOWN_ROWS else ""
        parts.append(f"<p><b>{escape(caption)}</b>{more}</p>")
        parts.append(_table_html(table.head(_SHOWN_ROWS)))
    return "<div>" + "\n".join(parts) + "</div>"


def _table_html(table: "pd.DataFrame") -> str:
    """Return a table as HTML, its texts in full."""
    import pandas as pd

    times: Any = {
        name: _number for name, type_ in table.dtypes.items() if str(name).endswith("_ns") and type_.kind == "i"
    }
    with pd.option_context("display.max_colwidth", None):
        return table.to_html(index=False, escape=True, border=0, float_format=_number, formatters=times)


def _number(value: float) -> str:
    """Return a number with four digits, and with all digits before the point.

    Examples
    --------
    >>> _number(1234567.8), _number(0.0123456)
    ('1,234,568', '0.01235')
    """
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:,.4g}"

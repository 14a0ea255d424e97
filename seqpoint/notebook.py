"""HTML of a result in a notebook: a heading, a few sentences and tables, with all text escaped."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


#: Rows of a table that a notebook shows; `.table()` has all of them.
_SHOWN_ROWS = 20


def as_html(heading: str, sentences: Sequence[str], tables: "Mapping[str, pd.DataFrame]") -> str:
    """Return a result as HTML; all text is escaped, since names come from traces.

    Parameters
    ----------
    heading : str
        Name of the result.
    sentences : sequence of str
        Sentences below the heading, a paragraph each.
    tables : mapping of str to pandas.DataFrame
        Tables by caption; the first 20 rows of each are shown.

    Examples
    --------
    >>> print(as_html("A & B", ["One sentence."], {}))
    <div><h4>A &amp; B</h4>
    <p>One sentence.</p></div>
    """
    parts = [f"<h4>{escape(heading)}</h4>", *(f"<p>{escape(sentence)}</p>" for sentence in sentences)]
    for caption, table in tables.items():
        more = f" (the first {_SHOWN_ROWS} of {len(table)} rows)" if len(table) > _SHOWN_ROWS else ""
        parts.append(f"<p><b>{escape(caption)}</b>{more}</p>")
        parts.append(table.head(_SHOWN_ROWS).to_html(index=False, escape=True, border=0, float_format="{:,.4g}".format))
    return "<div>" + "\n".join(parts) + "</div>"

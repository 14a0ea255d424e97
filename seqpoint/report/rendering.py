"""Templates to pages: all text escaped, and no script but ours."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from seqpoint import __version__
from seqpoint.report.charts import FONTS
from seqpoint.report.scripts import inert, policy_of
from seqpoint.report.text import clean

__all__ = ["rendered"]


def rendered(template: str, title: str, scripts: Sequence[str], content: Mapping[str, Any]) -> str:
    """Return a page that asks the network for nothing.

    Parameters
    ----------
    template : str
        Of this package; it extends ``page.html``.
    title : str
    scripts : sequence of str
        All that may run in it.
    content : mapping
        What the template shows; text in it is escaped unless it is `Markup`.
    """
    environment = Environment(
        loader=PackageLoader("seqpoint.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else clean(value),
    )
    harmless = [inert(text) for text in scripts if text]
    return environment.get_template(template).render(
        content,
        title=title,
        version=__version__,
        scripts=harmless,
        policy=policy_of(harmless),
        fonts=Markup(FONTS),
    )

"""Charts as one HTML file that never accesses the network: `save`, which every chart of this package has as a method.

HoloViews' own `save` loads BokehJS from a server. Here the page holds BokehJS, and a content security policy allows
only the scripts of the page.
"""

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import partial, wraps
from os import PathLike
from pathlib import Path
from typing import Any, ParamSpec

import holoviews as hv
from bokeh.embed import components
from bokeh.models import GlyphRenderer, GridPlot, Plot
from bokeh.resources import Resources
from bokeh.themes import Theme
from markupsafe import Markup

from profilers.errors import InvalidInputError
from profilers.files import file_to_write, write_text
from seqpoint.plots.frame import Chart, plain_text

P = ParamSpec("P")

FONTS = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
#: Properties of Bokeh's models that set a font.
_FONT_PROPERTIES = {
    "Title": ("text_font",),
    "Axis": ("axis_label_text_font", "major_label_text_font"),
    "Legend": ("label_text_font",),
    "LabelSet": ("text_font",),
    "Text": ("text_font",),
}
_THEME = {"attrs": {model: dict.fromkeys(names, FONTS) for model, names in _FONT_PROPERTIES.items()}}
_PAGE = Markup("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
</head>
<body>
{chart}
{scripts}
</body>
</html>
""")


def saveable(function: Callable[P, Chart]) -> Callable[P, Chart]:
    """Return a function that makes a chart, whose charts have the method ``save(path)``."""

    @wraps(function)
    def make(*arguments: P.args, **options: P.kwargs) -> Chart:
        chart = function(*arguments, **options)
        chart.save = partial(save, chart)
        return chart

    return make


@saveable
def stacked(charts: Sequence[Chart]) -> Chart:
    """Return charts below each other, each with its own axes."""
    return hv.Layout(charts).opts(shared_axes=False, backend="bokeh").cols(1)


def save(chart: Chart, path: str | PathLike[str]) -> Path:
    """Write a chart to one HTML file, which opens without a network, and return its path.

    Parameters
    ----------
    chart : object
        A chart of this package, or any HoloViews object made of them, such as ``chart * other`` or ``chart + other``.
    path : str or path
        File to write; its name ends in ``.html``.

    Raises
    ------
    InvalidInputError
        The name does not end in ``.html``, or the folder does not exist or may not be written.
    """
    target = page_to_write(path)
    scripts, (element,) = drawn([(chart, ())])
    write_text(target, _page(target.stem, scripts, element))
    return target


def page_to_write(path: str | PathLike[str]) -> Path:
    """Return the path of a page that can be written; the errors are those of `save`."""
    target = Path(path)
    if target.suffix.lower() not in {".html", ".htm"}:
        raise InvalidInputError(
            f"{target}: charts are saved as HTML; name the file {target.with_suffix('.html').name}, "
            "whose toolbar saves pictures (.png)"
        )
    file_to_write(target)
    return target


def _page(title: str, scripts: Sequence[str], element: str) -> str:
    safe = inert(scripts)
    code = Markup("\n").join(Markup("<script>{}</script>").format(script) for script in safe)
    return _PAGE.format(policy=policy_of(safe), title=plain_text(title), chart=Markup(element), scripts=code)


def inert(scripts: Sequence[str]) -> list[Markup]:
    """Return scripts in which no text can end the script element."""
    return [Markup(text.replace("</script", "<\\/script").replace("<!--", "<\\!--")) for text in scripts]


def policy_of(scripts: Sequence[Markup]) -> str:
    """Return a content security policy that allows these scripts, by their digests, and no network."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    rules = (
        "default-src 'none'",
        f"script-src {allowed}",
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        "font-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    )
    return "; ".join(rules)


def drawn(charts: Sequence[tuple[Chart, Sequence[str]]]) -> tuple[list[str], list[str]]:
    """Return BokehJS and the script that draws charts, and the HTML element of each chart.

    Parameters
    ----------
    charts : sequence of (chart, labels)
        HoloViews objects. Their labels are added to the titles inside, so that saved images show them too.
    """
    models = {str(i): _model(chart, labels) for i, (chart, labels) in enumerate(charts)}
    bokeh = Resources(mode="inline", minified=True, components=["bokeh"], log_level="error")
    script, elements = components(models, wrap_script=False, theme=Theme(json=_THEME))
    return ["\n".join(bokeh.js_raw), str(script)], [elements[name] for name in models]


def _model(chart: Chart, labels: Sequence[str]) -> Any:
    model = hv.render(chart, backend="bokeh")
    for figure in model.select({"type": Plot}):
        figure.title.text += "".join(f"  [{plain_text(label, 40)}]" for label in labels)
    # HoloViews links legends by code in strings, which the page's security policy does not let run.
    for renderer in model.select({"type": GlyphRenderer}):
        renderer.js_property_callbacks = {}
    if isinstance(model, GridPlot):
        model.toolbar.logo = None
    return model

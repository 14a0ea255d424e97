"""Draw one picture of each published system for docs/systems.

`python benchmarks/pictures.py` writes docs/systems/pictures/NAME.svg from pictures.toml, in which each picture has a
title, a description and rows. A line of the rows is a verb and its text; `VERBS` has a function for each.
"""

import csv
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import seqpoint as sp

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "systems" / "pictures"
EPOCH = ROOT / "datasets" / "samples" / "cpu_epoch" / "log_threads1.csv"
PICTURES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())

WIDTH, LEFT, UNIT = 760, 160, 5.76  # pixels of the picture, of the labels, and of a hundredth of the time
LETTER = 6.4  # pixels of a letter of a box, at most; on average
STYLE = """
text { font: 13px Helvetica, Arial, sans-serif; fill: #1c2430 }
.head { font-size: 15px; font-weight: bold } .note { fill: #4a5563; font-style: italic }
.small { font-size: 12px } .code { font: 12px monospace } .gain { fill: #17692d; font-weight: bold }
rect { fill: #fff; stroke: #98a2b0 } .plain { fill: #eceff3 } .idle { fill: none; stroke-dasharray: 4 3 }
rect.compute { fill: #cfe1fa; stroke: #2f68b4 } rect.comm { fill: #ffdcb2; stroke: #b8650f }
rect.memory { fill: #cdeccf; stroke: #2f8442 } rect.loss { fill: #f8cfcb; stroke: #b23a31 }
path { fill: none; stroke-width: 2; stroke-linecap: round }
path.line { stroke: #4a5563; stroke-width: 1.4 } path.gain { stroke: #17692d }
path.comm { stroke: #b8650f } path.compute { stroke: #2f68b4 }
path.tip { stroke: none }
.tip.line { fill: #4a5563 } .tip.gain { fill: #17692d } .tip.comm { fill: #b8650f } .tip.compute { fill: #2f68b4 }
path.dash { stroke: #98a2b0; stroke-width: 1; stroke-dasharray: 3 4 }
path.dots { stroke: #9dbbe3; stroke-width: 6 } path.chosen { stroke: #b8650f; stroke-width: 11 }
"""

TIPS = ("line", "gain", "comm", "compute")  # kinds of lines that may have tips
TIP = {"markerWidth": "9", "markerHeight": "9", "markerUnits": "userSpaceOnUse", "refX": "7", "refY": "4"}

Point = tuple[float, float]


class Canvas:
    """The SVG of a picture; places are pixels from the left edge and from the top of the current row."""

    def __init__(self, title: str, description: str) -> None:
        self.svg = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", role="img", width=str(WIDTH))
        self.top = 0.0
        for tag, text in (("title", title), ("desc", description), ("style", STYLE)):
            ET.SubElement(self.svg, tag).text = text
        for kind in TIPS:
            tip = ET.SubElement(self.svg, "marker", id=kind, viewBox="0 0 8 8", orient="auto-start-reverse", **TIP)
            ET.SubElement(tip, "path", {"class": f"tip {kind}", "d": "M0 0 8 4 0 8z"})
        self.panel = self.box(1, 1, WIDTH - 2, 0, "", "", corner=10)

    def box(
        self, x: float, y: float, width: float, height: float, kind: str, text: str, *, corner: int = 3
    ) -> ET.Element:
        """Draw a box with lines of text, which `/` parts, in its middle."""
        place = {"x": f"{x:.5g}", "y": f"{y + self.top:.5g}", "width": f"{width:.5g}", "height": f"{height:.5g}"}
        rect = ET.SubElement(self.svg, "rect", place | {"rx": str(corner)} | ({"class": kind} if kind else {}))
        lines = [line.strip() for line in text.split("/")]
        if LETTER * max(map(len, lines)) > width:
            raise ValueError(f"{text!r} is too long for a box of {width:.0f} pixels")
        for number, line in enumerate(lines):
            middle = y + height / 2 + 4.5 + 16 * (number - (len(lines) - 1) / 2)
            self.text(x + width / 2, middle, "small", line, "middle")
        return rect

    def text(self, x: float, y: float, kind: str, text: str, anchor: str = "start") -> None:
        """Write a line of text on the base line `y`."""
        if text:
            place = {"x": f"{x:.5g}", "y": f"{y + self.top:.5g}"} | ({"class": kind} if kind else {})
            ET.SubElement(self.svg, "text", place | ({"text-anchor": anchor} if anchor != "start" else {})).text = text

    def dots(self, points: Iterable[Point], kind: str) -> None:
        """Draw round dots."""
        line = "".join(f"M{x:.0f} {y + self.top:.0f}h0" for x, y in points)
        ET.SubElement(self.svg, "path", {"d": line, "class": kind})

    def path(self, points: Sequence[Point], kind: str = "line", tips: str = "end") -> None:
        """Draw a line through points, with tips at its `end`, at `start end`, or at none."""
        line = "M" + " ".join(f"{x:.5g} {y + self.top:.5g}" for x, y in points)
        ends = {f"marker-{end}": f"url(#{kind})" for end in tips.split()}
        ET.SubElement(self.svg, "path", {"d": line, "class": kind} | ends)


def at(time: float) -> float:
    """Return the pixel of a time."""
    return LEFT + UNIT * time


def boxes(parts: str) -> Iterator[tuple[float, float, str, str]]:
    """Yield start, duration, kind and text of `DURATION KIND TEXT | ...`, one after another; a gap has the kind `-`.

    `4* 10 compute chunk #` stands for four, numbered from 1.
    """
    start = 0.0
    for part in parts.split("|"):
        words = part.split()
        times = int(words.pop(0)[:-1]) if words[0].endswith("*") else 1
        for number in range(1, times + 1):
            if words[1] != "-":
                yield start, float(words[0]), words[1], " ".join(words[2:]).replace("#", str(number))
            start += float(words[0])


def head(canvas: Canvas, text: str) -> float:
    """Draw `HEADING`, or `HEADING | NOTE` with the note in italics below it."""
    heading, _, note = text.partition(" | ")
    canvas.text(20, 27, "head", heading)
    canvas.text(20, 46, "note", note)
    return 55 if note else 37


def lane(canvas: Canvas, text: str, height: float = 28) -> float:
    """Draw `LABEL | BOXES` against time."""
    label, _, parts = text.partition("|")
    canvas.text(LEFT - 12, height / 2 + 5, "", label.strip(), "end")
    for start, duration, kind, words in boxes(parts):
        canvas.box(at(start), 0, UNIT * duration, height, kind, words)
    return height + 5


def thin(canvas: Canvas, text: str) -> float:
    """Draw a lane of less height."""
    return lane(canvas, text, 18)


def upper(canvas: Canvas, text: str) -> float:
    """Draw a lane that touches the next."""
    return lane(canvas, text) - 5


def arrows(canvas: Canvas, text: str) -> float:
    """Draw arrows from the lane above to the next: a time or `START>END` for each, with `+` to the lane after that."""
    for word in text.split():
        start, _, end = word.strip("+").partition(">")
        canvas.path([(at(float(start)), -4), (at(float(end or start)), 60 if word.endswith("+") else 13)])
    return 14


def saved(canvas: Canvas, text: str) -> float:
    """Draw `START END TEXT`: an arrow over the time that is saved, and the text to the left of it."""
    start, end, words = text.split(maxsplit=2)
    x, right = at(float(start)), at(float(end))
    for side in (x, right):
        canvas.path([(side, 0), (side, 18)], "gain", "")
    canvas.path([(x + 1, 9), (right - 1, 9)], "gain", "start end")
    canvas.text(x - 8, 14, "gain", words, "end")
    return 22


def axis(canvas: Canvas, text: str) -> float:
    """Draw the axis of time or of what the text says."""
    canvas.path([(at(0), 8), (at(100), 8)])
    canvas.text(LEFT - 12, 12, "note", text, "end")
    return 22


def note(canvas: Canvas, text: str) -> float:
    """Draw a line of text below a drawing."""
    canvas.text(20, 20, "note", text)
    return 18


def box(canvas: Canvas, text: str) -> float:
    """Draw `X Y WIDTH HEIGHT KIND TEXT`, in pixels of the row."""
    x, y, width, height, kind, *words = text.split()
    canvas.box(float(x), float(y), float(width), float(height), kind, " ".join(words))
    return 0


def write(canvas: Canvas, text: str) -> float:
    """Write `X Y KIND ANCHOR TEXT`, in pixels of the row."""
    x, y, kind, anchor, words = text.split(maxsplit=4)
    canvas.text(float(x), float(y), kind, words, anchor)
    return 0


def path(canvas: Canvas, text: str) -> float:
    """Draw an arrow `KIND X Y X Y ...`, in pixels of the row."""
    kind, *numbers = text.split()
    points = list(map(float, numbers))
    canvas.path(list(zip(points[::2], points[1::2], strict=True)), kind)
    return 0


def space(canvas: Canvas, text: str) -> float:
    """Move down by some pixels."""
    return float(text)


def epoch(canvas: Canvas, text: str) -> float:
    """Draw how `seqpoint select` chooses iterations of a shipped epoch, to scale."""
    chosen = sp.select(EPOCH, max_points=6)
    with EPOCH.open() as file:
        log = [(int(row["sequence_length"]), int(row["duration_ns"]) / 1e6) for row in csv.DictReader(file)]
    points = list(zip(chosen.table()["sequence_length"], chosen.table()["value"] / 1e6, chosen.weights, strict=True))
    longest, slowest = max(log)[0], max(time for _, time in log)

    def place(length: float, time: float) -> Point:
        return LEFT + 540 * length / longest, 175 - 155 * time / slowest

    canvas.path([place(0, 0), (at(100), 175)])
    canvas.path([place(0, 0), (LEFT, 8)])
    for edge in sorted(set(chosen.bin_edges.ravel().tolist())):
        canvas.path([place(edge, 0), (place(edge, 0)[0], 12)], "dash", "")
        canvas.text(place(edge, 0)[0], 191, "small", f"{edge:.0f}", "middle")
    canvas.dots((place(*pair) for pair in sorted(set(log))), "dots")
    canvas.dots((place(length, time) for length, time, _ in points), "chosen")
    for length, time, weight in points:
        x, y = place(length, time)
        canvas.text(x - 8, y - 14, "gain", f"weight {weight:.0f}", "end" if x > at(90) else "middle")
    for line, words in (
        (20, "time of"),
        (36, "an iteration"),
        (52, f"up to {slowest:.0f} ms"),
        (191, "sequence length"),
    ):
        canvas.text(LEFT - 12, line, "", words, "end")
    canvas.top += 200
    total, short = sum(time for _, time in log), sum(time for _, time, _ in points)
    estimate = sum(time * weight for _, time, weight in points)
    parts = [(100 * time * weight / total, f"{weight:.0f} × {time:.0f}") for _, time, weight in points]
    canvas.top += head(canvas, f"{len(points)} profiled iterations stand for {len(log)}")
    canvas.top += lane(canvas, f"the epoch | 100 compute {len(log)} iterations: {total:.0f} ms measured")
    canvas.top += lane(canvas, f"profiled | {100 * short / total} comm {short:.0f}")
    canvas.top += saved(canvas, f"{100 * short / total} 100 {total / short:.0f} times less")
    sums = " | ".join(f"{length} comm {words if length > 5 else ''}" for length, words in parts)
    canvas.top += lane(canvas, f"weight × ms | {sums}")
    canvas.top += note(
        canvas, f"The sum of weight × time is {estimate:.0f} ms. Profiling takes {total / short:.0f} times less."
    )
    return 0


VERBS: dict[str, Callable[[Canvas, str], float]] = {
    verb.__name__: verb for verb in (head, lane, thin, upper, arrows, saved, axis, note, box, write, path, space, epoch)
}


def drawn(name: str) -> str:
    """Return the SVG of a picture."""
    picture = PICTURES[name]
    canvas = Canvas(picture["title"], " ".join(picture["description"].split()))
    canvas.top = 4
    for line in picture["rows"].replace("\n    ", " ").strip().splitlines():
        verb, _, text = line.partition(" ")
        height = VERBS[verb](canvas, text)
        canvas.top += height
    height = round(canvas.top + 14)
    canvas.svg.set("height", str(height))
    canvas.svg.set("viewBox", f"0 0 {WIDTH} {height}")
    canvas.panel.set("height", str(height - 2))
    ET.indent(canvas.svg)
    return ET.tostring(canvas.svg, encoding="unicode") + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in PICTURES:
        (FOLDER / f"{name}.svg").write_text(drawn(name))

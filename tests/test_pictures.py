"""Pictures of the systems: the files are what their program writes, small, and their texts are inside."""

import re
from xml.etree import ElementTree as ET

import pytest

from benchmarks.pictures import FOLDER, PICTURES, boxes, drawn
from replay.costs.shipped import load_parameters
from seqpoint.validation.bert import load_cases, profile_of

SVG = "{http://www.w3.org/2000/svg}"
#: Pixels of a letter, at most on average, by kind of text.
LETTERS = {"head": 8.2, "small": 6.4, "code": 7.3, "gain": 7.3, "note": 6.6, None: 6.8}


def test_every_picture_is_drawn_and_no_other() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.svg" for name in PICTURES}


@pytest.mark.parametrize("name", PICTURES)
def test_the_file_is_what_the_program_writes(name: str) -> None:
    text = (FOLDER / f"{name}.svg").read_text()
    assert text == drawn(name) and len(text.encode()) < 10_000
    assert not re.search(r"<script|@import|href|https?://(?!www\.w3\.org/2000/svg)", text)


@pytest.mark.parametrize("name", PICTURES)
def test_what_is_drawn_is_inside_the_panel(name: str) -> None:
    root = ET.parse(FOLDER / f"{name}.svg").getroot()
    width, height = (float(root.attrib[side]) for side in ("width", "height"))
    assert root.findtext(f"{SVG}title") and root.findtext(f"{SVG}desc")
    assert root.attrib["viewBox"] == f"0 0 {width:g} {height:g}" and width == 760
    for text in root.iter(f"{SVG}text"):
        long = LETTERS[text.get("class")] * len(text.text or "")
        left = float(text.attrib["x"]) - long * {"middle": 0.5, "end": 1}.get(text.get("text-anchor", ""), 0)
        assert left > 5 and left + long < width - 5, text.text
        assert 12 < float(text.attrib["y"]) < height - 5, text.text
    for box in root.iter(f"{SVG}rect"):
        x, y, across, down = (float(box.attrib[side]) for side in ("x", "y", "width", "height"))
        assert x > 0 and x + across < width and y > 0 and y + down < height


def test_a_text_that_is_wider_than_its_box_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PICTURES, "wide", {"title": "", "description": "", "rows": "lane a | 3 compute far too long"})
    with pytest.raises(ValueError, match="'far too long' is too long for a box of 17 pixels"):
        drawn("wide")


def test_boxes_follow_one_another() -> None:
    assert list(boxes("2 - | 2* 5 comm send # | 1 loss")) == [
        (2, 5, "comm", "send 1"), (7, 5, "comm", "send 2"), (12, 1, "loss", "")
    ]  # fmt: skip


@pytest.mark.parametrize("case", ["n128_b32_fp32", "n128_b32_fp16", "n128_b4_fp32", "n128_b4_fp16"])
def test_shares_of_bert_are_those_of_its_steps(case: str) -> None:
    _, batch, precision = case.split("_")
    lane = re.search(rf"^lane {precision.upper()}, batch {batch[1:]} \| (.*)", PICTURES["bert"]["rows"], re.MULTILINE)
    assert lane
    profile = profile_of(load_cases()[case], load_parameters())
    total = profile.characterization.facts.total_ns
    times = {row.name: row.time_ns for row in profile.characterization.rows("class")}
    gemm, lamb = (round(100 * times[name] / total) for name in ("gemm", "optimizer"))
    assert [duration for _, duration, _, _ in boxes(lane[1])] == [gemm, lamb, 100 - gemm - lamb]

"""Sentences have at most 30 words, the README at most 600, and the glossary few terms."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
MOST_WORDS_IN_SENTENCE = 30
MOST_WORDS_IN_README = 600
MOST_TERMS = 57
#: What begins a block of its own: a list item, quoted or not.
ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
#: The end of a sentence: a full stop after a word, a bracket or a quote, before white space.
END = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(`*\[A-Z0-9])")
NO_END = re.compile(r"\b(e\.g|i\.e|cf|vs|Fig|Eq)\.\s")


def blocks(text: str) -> Iterator[str]:
    """Yield the paragraphs and list items of Markdown, without code blocks, tables and headings."""
    kept: list[str] = []
    for line in re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL).splitlines():
        skipped = not line.strip() or line.lstrip().startswith(("|", "#", "<"))
        if (skipped or ITEM.match(line)) and kept:
            yield " ".join(kept)
            kept = []
        if not skipped:
            kept.append(ITEM.sub("", line).strip())
    if kept:
        yield " ".join(kept)


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of Markdown; a list item ends one."""
    for block in blocks(text):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", block)
        yield from END.split(NO_END.sub(lambda match: match[0].replace(".", ""), plain))


def words(text: str) -> list[str]:
    """Return the words of a text: what white space parts and has a letter or a digit."""
    return [word for word in text.split() if re.search(r"\w", word)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_is_long(page: Path) -> None:
    long = [one for one in sentences(page.read_text()) if len(words(one)) > MOST_WORDS_IN_SENTENCE]
    assert long == []


def test_the_readme_is_read_in_three_minutes() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= MOST_WORDS_IN_README


def test_the_glossary_has_few_terms_and_says_where_each_lives() -> None:
    rows = re.findall(
        r"^\| (?!term |---)(.+) \| (.+) \| (.+) \|$", (ROOT / "docs/concepts.md").read_text(), re.MULTILINE
    )
    assert 10 <= len(rows) <= MOST_TERMS
    assert [term for term, meaning, home in rows if len(list(sentences(meaning))) != 1 or "`" not in home] == []


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.name}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
        if not target.startswith("http") and not (page.parent / target).exists()
    ]
    assert broken == []


def test_sentences_are_told_from_tables_headings_and_code() -> None:
    text = "# A heading. No\n\nOne two,\nthree. Four `a.b c` five!\n\n- Six. Seven\n  eight\n- nine\n\n"
    text += "| a | b. C |\n\n```sh\nx. Y\n```\n"
    assert list(sentences(text)) == ["One two, three.", "Four `a.b c` five!", "Six.", "Seven eight", "nine"]


def test_no_word_is_misspelt() -> None:
    told = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "mkdocs.yml",
        "docs",
        "benchmarks",
        "datasets",
    ]
    command = [
        sys.executable,
        "-m",
        "codespell_lib",
        *told,
        "profilers",
        "replay",
        "seqpoint",
        "--skip",
        "*.ipynb,*.svg,*.csv",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")

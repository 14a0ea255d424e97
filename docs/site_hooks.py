"""Files of the repository outside `docs/` that pages link to become files of the site."""

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
#: Folder of the site for these files.
FOLDER = "repository"
#: Pages outside `docs/` that have a place in the menu.
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")
#: A link to a file, without its text: a title or an anchor may follow.
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")
HREF = re.compile(r'href="(?!\w+:)([^"#]+\.md)(#[^"]*)?"')
#: The beginning of a link whose text is the name of a page, which a site shows without its ending.
NAME = re.compile(r"\[(?:[\w/]+/)?(\w+)\.md\]\(")


def on_files(files: Files, config: Any) -> Files:
    """Add the files that pages link to."""
    texts = {PurePosixPath("docs", file.src_uri): file.content_string for file in files.documentation_pages()}
    texts |= {PurePosixPath(page): (ROOT / page).read_text() for page in PAGES}
    linked = {_target(page, link) for page, text in texts.items() for link in LINK.findall(text)}
    for path in sorted({*map(str, linked), *PAGES}):
        if not path.startswith("docs/") and (ROOT / path).is_file():
            files.append(File.generated(config, f"{FOLDER}/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point the links of a page to where its targets are in the site."""
    here = PurePosixPath(page.file.src_uri)
    source = PurePosixPath(*here.parts[1:]) if here.parts[0] == FOLDER else PurePosixPath("docs", here)

    def moved(link: re.Match[str]) -> str:
        target = _target(source, link[1])
        uri = target.relative_to("docs") if target.parts[0] == "docs" else PurePosixPath(FOLDER, target)
        return f"]({os.path.relpath(uri, here.parent)}"

    return NAME.sub(lambda name: f"[{name[1].replace('_', ' ')}](", LINK.sub(moved, markdown))


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Point the links of a notebook, which are HTML already, to the pages of the site."""

    def moved(link: re.Match[str]) -> str:
        source = _target(PurePosixPath(page.file.src_uri), link[1])
        file = files.get_file_from_path(str(source))
        return link[0] if file is None else f'href="{file.url_relative_to(page.file)}{link[2] or ""}"'

    return HREF.sub(moved, html) if page.file.src_uri.endswith(".ipynb") else html


def _target(page: PurePosixPath, link: str) -> PurePosixPath:
    """Return the file of the repository that a page links to."""
    return PurePosixPath(os.path.normpath(page.parent / link))

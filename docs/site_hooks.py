"""Files of the repository outside `docs/` that pages link to become files of the site."""

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
#: What pages may link to outside `docs/`, and its folder in the site.
SHARED = ("CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md", "tests/accuracy/*")
FOLDER = "repository"
#: A link to a file, without its text: a title or an anchor may follow.
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the shared files to the site."""
    for pattern in SHARED:
        for path in sorted(ROOT.glob(pattern)):
            name = f"{FOLDER}/{path.relative_to(ROOT).as_posix()}"
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point the links of a page to where its targets are in the site."""
    here = PurePosixPath(page.file.src_uri)
    inside = here.parts[0] == FOLDER
    source = PurePosixPath(*here.parts[1:]) if inside else PurePosixPath("docs", here)

    def moved(link: re.Match[str]) -> str:
        target = PurePosixPath(os.path.normpath(source.parent / link[1]))
        uri = target.relative_to("docs") if target.parts[0] == "docs" else PurePosixPath(FOLDER, target)
        return f"]({os.path.relpath(uri, here.parent)}"

    return LINK.sub(moved, markdown)

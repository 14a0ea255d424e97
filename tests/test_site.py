"""The site builds without a warning: its links and anchors lead somewhere, and its menu has every page."""

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).parents[1]
#: What a page loads, as scripts, styles and images; links that a reader clicks may leave the site.
LOADED = re.compile(
    r"""<(?:script|img|iframe)[^>]+src="?(https?:[^"\s>]+)|<link[^>]+rel="?stylesheet[^>]+href="?(https?:[^"\s>]+)"""
)


#: A link or a source in HTML.
LINK = re.compile(r"""<(?:a|img|script|link)\b[^>]*?\b(?:href|src)=["']([^"'#?]+)""")


def test_the_site_builds_strictly_its_links_lead_somewhere_and_it_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = {path: path.read_text() for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > sum(1 for kind in ("*.md", "*.ipynb") for _ in (ROOT / "docs").rglob(kind))
    assert {str(path): found for path, text in pages.items() if (found := LOADED.findall(text))} == {}
    broken = {
        (path.relative_to(site).as_posix(), link)
        for path, text in pages.items()
        for link in LINK.findall(text)
        if not re.match(r"\w+:|//|data:", link) and not (path.parent / unquote(link)).exists()
    }
    assert broken == set()

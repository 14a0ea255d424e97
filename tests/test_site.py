"""The site builds without a warning: its links and anchors lead somewhere, and its menu has every page."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: What a page loads, as scripts, styles and images; links that a reader clicks may leave the site.
LOADED = re.compile(
    r"""<(?:script|img|iframe)[^>]+src="?(https?:[^"\s>]+)|<link[^>]+rel="?stylesheet[^>]+href="?(https?:[^"\s>]+)"""
)


def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > sum(1 for kind in ("*.md", "*.ipynb") for _ in (ROOT / "docs").rglob(kind))
    assert {str(page): found for page in pages if (found := LOADED.findall(page.read_text()))} == {}

"""Scripts of a page: only those written into it may run, and none may end the element that it stands in."""

import base64
import hashlib
from collections.abc import Sequence

from markupsafe import Markup

__all__ = ["inert", "policy_of"]


def inert(script: str) -> Markup:
    """Return a script that cannot end the element it stands in."""
    return Markup(script.replace("</script", "<\\/script").replace("<!--", "<\\!--"))


def policy_of(scripts: Sequence[Markup]) -> str:
    """Return a content security policy: these scripts by their digests, and no network."""
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

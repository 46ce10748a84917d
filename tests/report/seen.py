"""A page as a browser would take it in."""

import base64
import hashlib
from html.parser import HTMLParser


class Seen(HTMLParser):
    """What a browser would see: the tags with their attributes, the text, the scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[tuple[str | None, str]] = []
        self._script: str | None = None
        self._raw = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._raw = tag in ("script", "style")
        if tag == "script":
            self.scripts.append((dict(attrs).get("type"), ""))

    def handle_endtag(self, tag: str) -> None:
        self._raw = False

    def handle_data(self, data: str) -> None:
        if not self._raw:
            self.text += data
        elif self.tags[-1][0] == "script":
            kind, text = self.scripts[-1]
            self.scripts[-1] = (kind, text + data)

    def policy(self) -> str:
        """The page's content policy."""
        return next(a["content"] for tag, a in self.tags if tag == "meta" and "http-equiv" in a) or ""

    def runnable(self) -> list[str]:
        return [text for kind, text in self.scripts if kind is None]


def fetches_nothing(html: str) -> None:
    """Nothing in the page leads out of it, and the one script that may run is the page's own."""
    seen = Seen(html)
    for tag, attributes in seen.tags:
        assert tag not in ("link", "img", "iframe", "object", "base", "embed", "use", "image")
        assert not {"src", "href", "srcset", "action", "xlink:href"} & attributes.keys()
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in html and "@import" not in html
    (script,) = seen.runnable()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in seen.policy()
    assert "default-src 'none'" in seen.policy()

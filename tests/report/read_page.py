"""What a test reads of a page: tags, attributes, texts."""

from __future__ import annotations

from html.parser import HTMLParser

NASTY = "</script><script>alert(1)</script>\"'&`\x1b[31m\n\x00"
"""A name as an attacker would give it."""


class Page(HTMLParser):
    """Tags, their attributes and the text between them; complains where tags do not match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)

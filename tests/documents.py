"""A page as a browser takes it apart. For tests."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "input", "br", "link", "img"}


class Document(HTMLParser):
    """Elements with their attributes, and the text of each, in order, but for scripts and styles; each has to be closed."""

    def __init__(self, content: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.stack = [], [], []
        self.feed(content)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.stack, f"</{tag}> closes nothing"
        assert self.stack.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        if not self.stack or self.stack[-1] not in {"script", "style"}:
            self.texts.append(data)

    @property
    def text(self):
        return "".join(self.texts)

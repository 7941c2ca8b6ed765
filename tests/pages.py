"""Reading the HTML pages that reports write: by a parser, and in a browser where there is one."""

import os
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


class Page(HTMLParser):
    """Its tags with their attributes and its words; a tag that is not closed, or closed twice, is an error."""

    VOID = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def of(self, tag: str, name: str = "") -> list[dict[str, Any]]:
        """The attributes of all tags of a kind, and of a class."""
        return [found for each, found in self.tags if each == tag and name in ("", *found.get("class", "").split())]

    def check_alone(self, text: str) -> None:
        """Nothing is fetched and nothing runs."""
        assert not [tag for tag, attributes in self.tags if tag in ("script", "link", "img") or "src" in attributes]
        for word in ("http:", "https:", "url(", "@import"):
            assert word not in text


def rendered(path: Path) -> str:
    """What a headless Chromium makes of a page; SUBBYTE_TEST_BROWSER names one that is not on the path."""
    browser = os.environ.get("SUBBYTE_TEST_BROWSER") or next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        pytest.skip("needs a headless Chromium, which is not installed")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=1000"]
    done = subprocess.run([browser, *options, path.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout

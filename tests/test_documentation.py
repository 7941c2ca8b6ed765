"""Every Python example of the README and the docs runs as printed; every YAML example loads."""

import re
from pathlib import Path

import pytest

from subbyte import load_capability

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(page, kind, code, id=f"{page.name}-{index}")
    for page in PAGES
    for index, (kind, code) in enumerate(BLOCK.findall(page.read_text()))
]


@pytest.mark.parametrize(("page", "kind", "code"), BLOCKS)
def test_example(page: Path, kind: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for other, text in BLOCK.findall(page.read_text()):
        if other == "yaml" and text.startswith("# "):  # a file that later examples name
            (tmp_path / text.splitlines()[0].removeprefix("# ")).write_text(text)
    if kind == "python":
        exec(compile(code, page.name, "exec"), {})
    else:
        (tmp_path / "capability.yaml").write_text(code)
        load_capability(tmp_path / "capability.yaml")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"

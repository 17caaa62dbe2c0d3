"""docs/pictures/: what pages show is there, what is there is shown, and every screenshot can be taken again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.deploy_script import deploy_script

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "pictures"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOWN = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")


def shown(page: Path) -> list[tuple[str, Path]]:
    """Alternative texts and files."""
    found = SHOWN.findall(page.read_text())
    return [(text, (page.parent / place).resolve()) for text, place in found if "://" not in place]


def test_every_picture_that_a_page_shows_is_there_and_described() -> None:
    assert [(page.name, path.name) for page in PAGES for _, path in shown(page) if not path.is_file()] == []
    assert [(page.name, path.name) for page in PAGES for text, path in shown(page) if not text] == []


def test_every_picture_is_shown() -> None:
    assert set(FOLDER.iterdir()) - {path for page in PAGES for _, path in shown(page)} == set()


def test_every_screenshot_is_one_that_make_pictures_takes_and_is_small() -> None:
    pictures = deploy_script("pictures")
    there = {path.stem: path.stat().st_size for path in FOLDER.glob("*.png")}
    assert set(there) == set(pictures.PICTURES)
    assert {name: size for name, size in there.items() if size > pictures.LARGEST} == {}


def test_what_is_not_installed_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = deploy_script("pictures")
    monkeypatch.setattr(pictures, "missing", lambda: ["chromium", "pngquant"])
    monkeypatch.setattr("sys.argv", ["pictures.py"])
    assert pictures.main() == 1
    assert capsys.readouterr().err == "packages are missing: apt-get install -y chromium pngquant\n"

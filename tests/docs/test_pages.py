"""What can be set, counted, sent or called stands in docs/, and every link there leads somewhere."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.api.messages import KINDS
from services.api.settings import SETTINGS
from tests.deploy_script import deploy_script

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md"),
                                 *(ROOT / "kernels").rglob("*.md"), ROOT / "bench" / "README.md"])  # fmt: skip
SETTINGS_PAGE = ROOT / "docs" / "operate" / "settings.md"
# What was so when it was written.
HISTORIES = ("CHANGELOG.md", "log.md")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def parsers() -> Iterator[argparse.ArgumentParser]:
    from services.cli.main import parser

    root = parser()
    yield root
    for action in root._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def commands() -> list[str]:
    return [name for name, _ in deploy_script("docs").subcommands()]


def without_fences(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def test_the_tables_of_docs_are_what_the_code_says() -> None:
    maker = deploy_script("docs")
    stale = [page.name for page in maker.pages() if page.read_text() != maker.remade(page.read_text())]
    assert stale == [], "run `make docs`"
    assert {page.name for page in maker.pages()} >= {"settings.md", "metrics.md", "messages.md", "commands.md"}


def test_a_stale_table_is_noticed_and_remade_and_the_words_around_it_stay() -> None:
    maker = deploy_script("docs")
    page = "Before.\n\n<!-- made: commands -->\n| old |\n<!-- end -->\nAfter.\n"
    remade = maker.remade(page)
    assert "| old |" not in remade and "specmesh up" in remade
    assert remade.startswith("Before.\n") and remade.endswith("After.\n")
    assert maker.remade(remade) == remade


@pytest.mark.parametrize("setting", [row.name for row in SETTINGS])
def test_a_setting_stands_in_the_docs(setting: str) -> None:
    assert f"| `{setting}` |" in SETTINGS_PAGE.read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_message_stands_in_the_docs(kind: str) -> None:
    assert f"** (`{kind}`)." in (ROOT / "docs" / "internals" / "messages.md").read_text()


def test_each_part_of_the_messages_has_a_heading() -> None:
    source = (ROOT / "services" / "api" / "messages.py").read_text()
    page = (ROOT / "docs" / "internals" / "messages.md").read_text()
    assert re.findall(r"^# (\d\S+) ", source, re.MULTILINE) == re.findall(r"^### (\d\S+) ", page, re.MULTILINE)


def test_every_command_stands_in_the_docs() -> None:
    text = (ROOT / "docs" / "use" / "commands.md").read_text()
    assert [name for name in commands() if f"`specmesh {name}`" not in text] == []
    assert len(commands()) >= 8


def test_every_metric_in_the_code_stands_in_the_docs() -> None:
    """By name, in whatever process: a metric the maker of the tables doesn't build would be missing."""
    text = (ROOT / "docs" / "operate" / "metrics.md").read_text()
    named: set[str] = set()
    for file in [*(ROOT / "services").rglob("*.py"), *(ROOT / "mesh").rglob("*.py")]:
        named |= set(re.findall(r"[\"']specmesh:([a-z0-9_]+)[\"']", file.read_text()))
    assert named
    assert sorted(name for name in named if f"`specmesh:{name}" not in text) == []


def test_every_help_has_text() -> None:
    for each in parsers():
        assert each.description, each.prog
        for action in each._actions:
            if isinstance(action, argparse._SubParsersAction):
                assert all(choice.help for choice in action._choices_actions)
                continue
            assert action.help, f"{each.prog} {action.option_strings or action.dest} has no help"


def test_help_is_printed_when_run_as_a_module() -> None:
    command = [sys.executable, "-m", "services.cli", "--help"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0
    assert "usage: specmesh" in finished.stdout


def headings(page: Path) -> set[str]:
    """As a link names them."""
    found = re.findall(r"^#+ (.+)$", without_fences(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    dead = []
    for link in LINK.findall(without_fences(page)):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, heading = link.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (heading and file.suffix == ".md" and heading not in headings(file)):
            dead.append(link)
    assert dead == []


def test_every_page_that_code_names_is_there() -> None:
    rooms = ("bench", "deploy", "kernels", "loadtest", "mesh", "models", "services", "specmesh", "tests")
    kinds = ("*.py", "*.sh", "*.yaml", "*.yml")
    files = [*ROOT.glob("*"), *(path for room in rooms for kind in kinds for path in (ROOT / room).rglob(kind))]
    lost = {
        f"{path.relative_to(ROOT)}: {page}"
        for path in files
        if path.is_file() and path.suffix in (".py", ".sh", ".yaml", ".yml", ".txt", ".toml", "")
        for page in re.findall(r"\bdocs/[\w/-]+(?:\.md|/\d{4})", path.read_text(errors="replace"))
        if not list(ROOT.glob(page if page.endswith(".md") else f"{page}-*.md"))
    }
    assert lost == set()


def test_each_promise_is_linked_to_the_tests_of_its_law() -> None:
    readme = (ROOT / "README.md").read_text()
    for file in sorted((ROOT / "tests" / "laws").glob("test_law_*.py")):
        assert f"](tests/laws/{file.name})" in readme


def test_nothing_tells_to_install_specmesh_from_an_index_where_another_package_may_have_that_name() -> None:
    sources = [path for room in ("services", "mesh", "models", "deploy") for path in (ROOT / room).rglob("*.py")]
    told = re.compile(r"pip install (-\S+ )*['\"`]?specmesh")
    assert [
        file for file in [*PAGES, *sources] if file.name not in HISTORIES and told.search(file.read_text())
    ] == []


def test_metrics_named_in_the_docs_dashboards_and_rules_exist() -> None:
    """A name that was changed in the code leaves an empty panel behind, or an alert that never fires."""
    docs = deploy_script("docs")
    known = {name for build in docs.PROCESSES.values() for name, *_ in docs.families(build)}
    known |= {f"{name}{part}" for name in set(known) for part in ("_bucket", "_count", "_sum")}
    rules = ROOT / "deploy" / "prometheus"
    recorded = set(re.findall(r"record: (\S+)", (rules / "rules.yml").read_text()))
    used: dict[str, str] = {}
    dashboards = (ROOT / "deploy" / "grafana" / "dashboards").glob("*.json")
    pages = [page for page in PAGES if page.name not in HISTORIES]
    for file in [*dashboards, *rules.glob("*.yml"), *pages]:
        for name in re.findall(r"specmesh:[a-z0-9_:]+", file.read_text()):
            used[name] = file.name
    assert used
    assert {name: file for name, file in used.items() if name not in known | recorded} == {}

"""`specmesh corpus` against the real door, behind which a proposer keeps corpora in memory."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "streamer"))

from fake_mesh import FakeMesh, ids_of, says
from fake_proposer import FakeProposer

from services.cli import corpus as corpus_command
from services.cli.corpus import LINK, CorpusApi, Files, find_files, parts, read_text
from services.cli.corpus_server import CorpusError
from services.cli.main import main

KEY = "one"


@pytest.fixture
def proposer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeProposer]:
    """A mesh in a thread; the settings' port is its door's."""
    for name in [name for name in os.environ if name.startswith("SPECMESH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SPECMESH_CONFIG", "")
    monkeypatch.setattr(corpus_command, "POLL", 0.0)
    kept, started, loop = FakeProposer(), threading.Event(), asyncio.new_event_loop()
    end = asyncio.Event()

    async def serve() -> None:
        mesh = FakeMesh()
        await mesh.start_tokenizer()
        await mesh.start_target(says("x"))
        await mesh.start("proposer", "proposer-1", kept)
        door = await mesh.start_door(api_keys=f"{KEY},two")
        monkeypatch.setenv("SPECMESH_PORT", str(door.port))
        monkeypatch.setenv("SPECMESH_API_KEYS", KEY)
        started.set()
        await end.wait()
        await mesh.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(10)
    yield kept
    loop.call_soon_threadsafe(end.set)
    thread.join()
    loop.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Text, and what is none."""
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("hidden")
    (tmp_path / ".env").write_text("SECRET=1")
    (tmp_path / "a.txt").write_text("the quick fox")
    (tmp_path / "b.bin").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "c.latin").write_bytes("é".encode("latin-1"))
    (tmp_path / "d.empty").touch()
    (tmp_path / "sub" / "e.py").write_text("\ufeffhello world\n", encoding="utf-8")
    return tmp_path


def texts_of(proposer: FakeProposer, name: str) -> list[list[int]]:
    ((_, kept),) = [(key, kept) for key, kept in proposer.kept.items() if key[2] == name]
    return kept.texts


# Files


EVIL = "\x1b]0;title\x07\x9b2J\n"


def test_what_a_server_says_cannot_command_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card = {"name": f"a{EVIL}", "state": f"ready{EVIL}", "tokens": 5, "texts": 1, "progress": 1.0, "message": EVIL}

    async def cards(self: CorpusApi, http: Any) -> list[dict[str, Any]]:
        return [card]

    monkeypatch.setattr(CorpusApi, "cards", cards)
    assert corpus_command.show_list(CorpusApi("http://here"), [], False) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.isprintable() and "5 tokens" in line
    assert str(CorpusError(f"the server: {EVIL}")) == "the server: \ufffd]0;title\ufffd\ufffd2J\n"


def test_nor_can_the_name_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / f".hidden{EVIL}").touch()
    corpus_command._tell_skipped(find_files([str(tmp_path)]))
    assert all(line.isprintable() for line in capsys.readouterr().err.splitlines())


def test_hidden_binary_and_empty_files_are_left_out_and_named(folder: Path) -> None:
    files = find_files([str(folder)])
    assert list(parts(files)) == [["the quick fox", "hello world\n"]]
    left_out = {str(path.relative_to(folder)): why for path, why in files.skipped}
    assert left_out == {
        ".git": "hidden", ".env": "hidden", "b.bin": "binary", "c.latin": "not UTF-8", "d.empty": "empty",
    }  # fmt: skip


def test_a_hidden_file_that_is_named_is_taken(folder: Path) -> None:
    assert list(parts(find_files([str(folder / ".env")]))) == [["SECRET=1"]]


def test_pipes_large_and_unreadable_files_are_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder / "pipe")
    monkeypatch.setattr(corpus_command, "LARGEST_FILE", 13)
    (folder / "large").write_text("x" * 14)
    why = {path.name: why for path, why in find_files([str(folder)]).skipped}
    assert why["pipe"] == "not a regular file"
    assert why["large"].startswith("larger than")


def test_links_in_a_folder_are_not_followed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "secret.txt").write_text("the secret")
    (folder / "sub" / "file").symlink_to(elsewhere / "secret.txt")
    (folder / "inside").symlink_to(folder / "a.txt")
    (folder / "tree").symlink_to(elsewhere)
    files = find_files([str(folder)])
    assert list(parts(files)) == [["the quick fox", "hello world\n"]]
    links = {str(path.relative_to(folder)) for path, why in files.skipped if why == LINK}
    assert links == {"sub/file", "inside", "tree"}


def test_a_link_that_is_named_is_taken(folder: Path) -> None:
    (folder / "link").symlink_to(folder / "a.txt")
    assert list(parts(find_files([str(folder / "link")]))) == [["the quick fox"]]


def test_parts_are_as_large_as_they_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_command, "PART_BYTES", 10)
    for number, text in enumerate(["1234", "123456", "é" * 6, "x"]):
        (tmp_path / str(number)).write_text(text)
    files = find_files([str(tmp_path)])
    assert list(parts(files)) == [["1234", "123456"], ["é" * 6], ["x"]]
    assert files.bytes == 4 + 6 + 12 + 1
    monkeypatch.setattr(corpus_command, "PART_TEXTS", 1)
    assert len(list(parts(find_files([str(tmp_path)])))) == 4


def test_a_file_that_vanishes_is_left_out(tmp_path: Path) -> None:
    files = Files()
    assert read_text(tmp_path / "nothing", files) == ""
    assert files.skipped == [(tmp_path / "nothing", "No such file or directory")]


# Against a server


def test_a_folder_is_sent_and_waited_for(
    proposer: FakeProposer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proposer.states = ["building", "building", "ready"]
    assert main(["corpus", "add", "docs", str(folder)]) == 0
    assert texts_of(proposer, "docs") == [ids_of("the quick fox"), ids_of("hello world\n")]
    told = capsys.readouterr()
    tokens = sum(map(len, texts_of(proposer, "docs")))
    assert told.out == f"docs: ready, {tokens} tokens of 2 texts\n"
    assert "building" in told.err and f"left out: {folder / 'b.bin'} (binary)" in told.err
    assert "SECRET" not in told.out + told.err


def test_the_number_of_links_that_were_left_out_is_said(
    proposer: FakeProposer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(30):
        (folder / f"link{number}").symlink_to("/etc/passwd")
    assert main(["corpus", "add", "docs", str(folder)]) == 0
    told = capsys.readouterr().err
    assert "left out: 30 symbolic links" in told and "link7" not in told and "b.bin (binary)" in told
    assert texts_of(proposer, "docs") == [ids_of("the quick fox"), ids_of("hello world\n")]


def test_a_large_folder_is_sent_in_parts(
    proposer: FakeProposer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_command, "PART_TEXTS", 2)
    for number in range(7):
        (tmp_path / str(number)).write_text(f"text {number}")
    assert main(["corpus", "add", "many", str(tmp_path)]) == 0
    ((_, kept),) = proposer.kept.items()
    assert (kept.parts, kept.whole) == (4, True)
    assert kept.texts == [ids_of(f"text {number}") for number in range(7)]


def test_corpora_are_listed_and_removed(
    proposer: FakeProposer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["corpus"]) == 0
    assert capsys.readouterr().out.startswith("no corpora here")
    assert main(["corpus", "add", "docs", str(folder / "a.txt"), "--json"]) == 0
    added: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (added["corpus"]["state"], added["skipped"]) == ("ready", [])
    assert main(["corpus", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [added["corpus"]]
    assert main(["corpus", "list"]) == 0
    assert capsys.readouterr().out.split() == ["docs", "ready", str(added["corpus"]["tokens"]), "tokens", "1", "texts"]
    assert main(["corpus", "remove", "docs"]) == 0
    assert capsys.readouterr().out == "removed docs\n"
    assert proposer.kept == {}


def test_namespaces_and_keys_are_apart(
    proposer: FakeProposer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = str(folder / "a.txt")
    assert main(["corpus", "add", "n", text, "--namespace", "team"]) == 0
    assert main(["corpus", "add", "n", text, "--api-key", "two"]) == 0
    assert len(proposer.kept) == 2
    assert main(["corpus", "remove", "n"]) == 1
    assert "the server answered 404" in capsys.readouterr().err
    assert main(["corpus", "remove", "n", "--namespace", "team"]) == 0
    assert len(proposer.kept) == 1


def test_a_corpus_that_cannot_be_built_is_a_failure(
    proposer: FakeProposer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proposer.states = ["building", "failed"]
    assert main(["corpus", "add", "docs", str(folder)]) == 1
    assert "could not build docs: the disk is full" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["add", "docs"], "give a name and at least one file"),
        (["add", "docs", "/nowhere/at/all"], "/nowhere/at/all is not there"),
        (["add", "docs", "{folder}/b.bin"], "there is no text"),
        (["add", "a b", "{folder}"], "the server answered 400: name"),
        (["remove"], "give the name"),
        (["remove", "../models"], "the server answered 400: name"),
        (["list", "other"], "there is no corpus other"),
        (["list", "--api-key", "wrong"], "the server answered 401"),
        (["list", "--url", "http://127.0.0.1:1"], "nothing answers at http://127.0.0.1:1"),
        (["list", "--url", "::"], "is not a URL"),
    ],
)
def test_what_is_wrong_is_said_and_the_exit_code_is_1(
    proposer: FakeProposer, folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["corpus", *(word.format(folder=folder) for word in words)]) == 1
    err = capsys.readouterr().err
    assert f"specmesh: {told}" in err or told in err
    assert proposer.kept == {}

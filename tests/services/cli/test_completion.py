"""`specmesh completion`: what shells are told to offer."""

from __future__ import annotations

import argparse
import shutil
import subprocess

import pytest

from loadtest.flags import parser as load_parser
from services.cli.completion import script, words_of
from services.cli.main import main, parser


def commands() -> dict[str, argparse.ArgumentParser]:
    (action,) = [each for each in parser()._actions if isinstance(each, argparse._SubParsersAction)]
    return {**action.choices, "load": load_parser()}


def completed(*words: str) -> set[str]:
    """What bash would offer for the last word."""
    line = " ".join(f"'{word}'" for word in words)
    asked = f"COMP_WORDS=({line}) COMP_CWORD={len(words) - 1}"
    ask = f"{script('bash', commands())}\n{asked}\n_specmesh\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-euc", ask], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_offers_commands_and_their_own_flags() -> None:
    assert completed("specmesh", "") == {*commands(), "--version", "--help"}
    assert completed("specmesh", "co") == {"compile", "corpus", "config", "completion"}
    assert completed("specmesh", "chat", "--me") == {"--method"}
    assert completed("specmesh", "chat", "--kv") == set()
    assert completed("specmesh", "up", "--kv") == {"--kv-cache-dtype", "--kv-cache-mb"}
    assert completed("specmesh", "load", "--work") == {"--workload"}
    assert completed("specmesh", "model", "f") == {"fetch"}
    assert completed("specmesh", "run", "w") == {"worker"}
    assert completed("specmesh", "help", "ch") == {"chat"}


def test_flags_of_other_servers_are_not_offered() -> None:
    assert completed("specmesh", "serve", "--max-model") == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_every_word(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for name, (_, words) in words_of(commands()).items():
        assert name in text
        for word, _ in words:
            assert (f"-l {word[2:]}" if shell == "fish" and word.startswith("--") else word) in text
    if shutil.which(shell):
        assert subprocess.run([shell, "-n", "/dev/stdin"], input=text, text=True, check=False).returncode == 0


def test_an_apostrophe_in_a_help_ends_no_string() -> None:
    lines = [line for line in script("fish", commands()).splitlines() if "server's" in line or "server\\'s" in line]
    assert lines and all("server\\'s" in line for line in lines)


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["completion", "tcsh"])
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err

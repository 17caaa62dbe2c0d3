"""`specmesh completion`: scripts for shells, made from the parsers of the commands. Pure: parsers in, text out."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping


def script(shell: str, commands: Mapping[str, argparse.ArgumentParser]) -> str:
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](words_of(commands))


def words_of(commands: Mapping[str, argparse.ArgumentParser]) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """By command: what it does, and the words that may follow, each with its help."""
    return {name: (str(each.description).partition(".")[0], _words(each, commands)) for name, each in commands.items()}


def _words(parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        told = " ".join(str(action.help).replace("%%", "%").split())
        if action.option_strings:
            found += [(flag, told) for flag in action.option_strings if flag.startswith("--")]
        else:
            found += [(str(choice), "") for choice in action.choices or ()]
            found += [(name, "") for name in commands if action.dest == "about"]
    return found


def _bash(words: dict[str, tuple[str, list[tuple[str, str]]]]) -> str:
    cases = "\n".join(f"        {name}) words={_list(each)} ;;" for name, (_, each) in words.items())
    return f"""# In ~/.bashrc: eval "$(specmesh completion bash)"
_specmesh() {{
    local words
    case "${{COMP_WORDS[1]}}" in
{cases}
        *) words= ;;
    esac
    [ "$COMP_CWORD" -eq 1 ] && words={shlex.quote(" ".join([*words, "--version", "--help"]))}
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _specmesh specmesh
"""


def _zsh(words: dict[str, tuple[str, list[tuple[str, str]]]]) -> str:
    cases = "\n".join(f"        {name}) compadd -- {_plain(each)} ;;" for name, (_, each) in words.items())
    commands = " ".join(shlex.quote(f"{name}:{told}") for name, (told, _) in words.items())
    return f"""#compdef specmesh
# In ~/.zshrc, after compinit: eval "$(specmesh completion zsh)"
_specmesh() {{
    local -a commands
    commands=({commands})
    if (( CURRENT == 2 )); then
        _describe command commands
        return
    fi
    case "$words[2]" in
{cases}
    esac
    _files
}}
compdef _specmesh specmesh
"""


def _fish(words: dict[str, tuple[str, list[tuple[str, str]]]]) -> str:
    lines = ["# In ~/.config/fish/config.fish: specmesh completion fish | source"]
    for name, (told, _) in words.items():
        lines.append(f"complete -c specmesh -n __fish_use_subcommand -a {name} -d {_quoted(told)}")
    for name, (_, each) in words.items():
        for word, told in each:
            what = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            about = f" -d {_quoted(told)}" if told else ""
            lines.append(f"complete -c specmesh -n '__fish_seen_subcommand_from {name}' {what}{about}")
    return "\n".join(lines) + "\n"


def _list(words: list[tuple[str, str]]) -> str:
    return shlex.quote(_plain(words))


def _plain(words: list[tuple[str, str]]) -> str:
    return " ".join(word for word, _ in words)


def _quoted(text: str) -> str:
    """Within single quotes fish has two escapes."""
    return "'" + text[:80].replace("\\", "\\\\").replace("'", "\\'") + "'"

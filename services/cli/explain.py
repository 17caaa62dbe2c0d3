"""`specmesh explain`: what a flag, environment name or key of another server is here, and where a setting of ours has
other names. Everything it says comes from the tables by which command lines and settings files are read. Whole commands
are in explain_command.py.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from services.api import foreign_environment, foreign_flags, speculative_config
from services.api.foreign_environment import VARIABLES
from services.api.foreign_flags import SHORT, key_of
from services.api.settings import PREFIX, ROWS, SETTINGS, Setting, accepted, flag_name
from services.cli.explain_command import is_command
from services.cli.explain_command import main as command_main

SERVERS = ("vLLM", "SGLang", "llama.cpp", "FastDeploy", "LMDeploy", "PaddleNLP")
# What names of environment variables begin with: of ours, and of servers that make them from their flags.
PREFIXES = (PREFIX, "LLAMA_ARG_", "LLAMA_", "VLLM_", "SGLANG_", "LMDEPLOY_")
OWN_FLAGS = ("--json", "--from", "--help", "-h")
NEAR = 3
WIDTH = 100


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a table. `row`: our setting, or "" if there is none. `others`: of a setting of ours, its names
    elsewhere."""

    names: tuple[str, ...]
    kind: str
    servers: tuple[str, ...]
    row: str
    here: str
    others: tuple[str, ...] = ()

    @property
    def keys(self) -> set[str]:
        return {_key(name) for name in self.names}

    def as_json(self) -> dict[str, Any]:
        told = {"names": self.names, "kind": self.kind, "servers": self.servers, "here": self.here}
        if self.row:
            told |= {"setting": self.row, "flag": flag_name(self.row), "environment": PREFIX + self.row.upper()}
        return told | ({"elsewhere": self.others} if self.others else {})


def own_flags_first(words: Sequence[str]) -> list[str]:
    """As argparse takes them: names that begin with a dash are no flags of this command."""
    own: list[str] = []
    names: list[str] = []
    value = False
    for word in words:
        flag = word.partition("=")[0]
        (own if value or flag in OWN_FLAGS else names).append(word)
        value = word == "--from"
    return [*own, "--", *names] if names else own


def main(options: argparse.Namespace) -> int:
    server = server_named(options.server) if options.server else ""
    if options.server and not server:
        print(f"specmesh: no server {options.server}; known are {', '.join(SERVERS)}", file=sys.stderr)
        return 2
    if not options.names and not server:
        print("specmesh: name a flag, an environment name or a key, or write --from SERVER", file=sys.stderr)
        return 2
    if is_command(options.names):
        return command_main(options.names, options.parser.commands["up"], options.json)
    found = {name: of_server(named(name), server) for name in options.names}
    if not options.names:
        found = {server: of_server(entries(), server)}
    if options.json:
        print(json.dumps([_as_json(name, each) for name, each in found.items()], indent=2))
    else:
        print("\n\n".join(_told(name, each, brief=not options.names) for name, each in found.items()))
    return 0 if all(found.values()) else 1


# Looking up ---------------------------------------------------------------------------------------------------


@cache
def entries() -> tuple[Entry, ...]:
    """Every row of every table."""
    theirs = [
        Entry(flag.names, "flag", tuple(flag.of.split(", ")), flag.row, foreign_flags.here(flag))
        for flag in foreign_flags.FLAGS
    ]
    for flag, key in speculative_config.FLAGS.items():
        server = "PaddleNLP" if "_" in flag else "LMDeploy"
        row = speculative_config.KEYS.get(key, "")
        theirs.append(Entry((flag,), "flag", (server,), row, speculative_config.here(key)))
    for key in speculative_config.known_keys():
        servers = tuple(speculative_config.server_of(key).split(", "))
        row = speculative_config.KEYS.get(key, "")
        theirs.append(Entry((key,), "key of --speculative-config", servers, row, speculative_config.here(key)))
    theirs += [
        Entry((each.name,), "environment variable", (each.of,), each.row, foreign_environment.here(each))
        for each in VARIABLES.values()
    ]
    return (*theirs, *(_of_setting(row, theirs) for row in SETTINGS))


def named(name: str) -> list[Entry]:
    """Those that have the name as it is written; else those that have it in another spelling."""
    written = [each for each in entries() if name in each.names]
    if written and name.startswith("-"):
        return written
    key = _key(name)
    # A switch may be written as its opposite.
    return having(key) or having(key.removeprefix("no_"))


def having(key: str) -> list[Entry]:
    return [each for each in entries() if key in each.keys]


def of_server(found: Iterable[Entry], server: str) -> list[Entry]:
    """Those that older versions had, too."""
    return [each for each in found if not server or {server, f"older {server}"} & {*each.servers}]


def near(name: str) -> list[str]:
    """Names that are written alike."""
    known: dict[str, str] = {}
    for each in entries():
        for spelled in each.names:
            known.setdefault(_key(spelled), spelled)
    return [known[key] for key in difflib.get_close_matches(_key(name), list(known), n=NEAR, cutoff=0.6)]


def server_named(word: str) -> str:
    plain = word.lower().replace(".", "").replace("-", "").replace("_", "")
    aliases = {"llamaserver": "llama.cpp", "llamacpp": "llama.cpp"}
    return aliases.get(plain) or next((each for each in SERVERS if each.lower() == plain), "")


def _of_setting(row: Setting, theirs: Iterable[Entry]) -> Entry:
    others = tuple(f"{each.names[0]} of {_all(each.servers)}" for each in theirs if each.row == row.name)
    names = (row.name, flag_name(row.name), PREFIX + row.name.upper())
    return Entry(names, "setting", ("specmesh",), row.name, row.help, others)


def _key(name: str) -> str:
    """Without what spellings differ in: dashes, case, a value, the beginning of an environment name."""
    name = name.partition("=")[0]
    if name.isupper() and not name.startswith("-"):
        name = next((name.removeprefix(each) for each in PREFIXES if name.startswith(each)), name)
    return key_of(SHORT.get(name, name)).lower()


# Telling ------------------------------------------------------------------------------------------------------


def _told(name: str, found: list[Entry], brief: bool) -> str:
    if not found:
        alike = near(name)
        return f"{name}: no such flag, environment name or key" + (f"; near: {', '.join(alike)}" if alike else "")
    # A flag and a key that mean the same are told once.
    heads: dict[str, list[str]] = {}
    for each in found:
        heads.setdefault(_meaning(each), []).append(f"{', '.join(each.names)}  ({each.kind} of {_all(each.servers)})")
    parts = ["\n".join([*lines, _indented(meaning)]) for meaning, lines in heads.items()]
    if not brief:
        parts += [_setting(ROWS[row]) for row in dict.fromkeys(each.row for each in found if each.row)]
    return "\n".join(parts)


def _meaning(entry: Entry) -> str:
    """Of a setting of ours the names elsewhere: what it is comes below."""
    if entry.kind != "setting":
        return entry.here
    return f"elsewhere: {'; '.join(entry.others)}" if entry.others else "no other server has a name for it"


def _all(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _setting(row: Setting) -> str:
    default = f", default {row.default}" if row.default not in ("", "{}") else ""
    spelled = f"{flag_name(row.name)}, {PREFIX}{row.name.upper()}, or {row.name} in a settings file"
    return "\n".join([f"here: {spelled}", _indented(row.help), _indented(accepted(row) + default)])


def _indented(text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)


def _as_json(name: str, found: list[Entry]) -> dict[str, Any]:
    told: dict[str, Any] = {"name": name, "found": [each.as_json() for each in found]}
    return told if found else told | {"near": near(name)}

"""Command-line flags made from the settings table. Knows argparse and the table, nothing of commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from services.api.settings import (
    PREFIX,
    ROWS,
    SETTINGS,
    Setting,
    Settings,
    SettingsError,
    accepted,
    did_you_mean,
    flag_name,
    load_settings,
    settings_file,
)
from services.api.speculative_config import FLAGS


class Parser(argparse.ArgumentParser):
    """Refuses unknown flags, suggests the closest one, and never expands a prefix."""

    def __init__(self, *args: object, **more: object) -> None:
        more.setdefault("allow_abbrev", False)
        more.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **more)  # type: ignore[arg-type]

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            leaf: Parser = getattr(options, "parser", self)
            leaf.refuse_unknown(unknown)
        return options

    def refuse_unknown(self, unknown: Sequence[str]) -> NoReturn:
        known = [flag for action in self._actions for flag in action.option_strings]
        told = [word + did_you_mean(word.partition("=")[0], known) for word in unknown]
        self.error("unknown: " + ", ".join(told))


def add_settings(parser: argparse.ArgumentParser) -> None:
    """One flag a row, grouped by the role it matters to; no flag has a default, so that only what was
    given counts."""
    # Fifty flags in brackets would hide how the command is used.
    words = " ".join(
        action.metavar if action.nargs is None else f"[{action.metavar}]"
        for action in parser._actions
        if not action.option_strings and isinstance(action.metavar, str)
    )
    parser.usage = f"{parser.prog} {words} [flags]".replace("  ", " ")
    parser.add_argument("--config", metavar="FILE", help=f"settings file (or {PREFIX}CONFIG; TOML)")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for row in SETTINGS:
        title = f"settings of {'every process' if row.roles == 'all' else row.roles}"
        group = groups.get(title) or groups.setdefault(title, parser.add_argument_group(title))
        _add_row(group, row)
    others = parser.add_argument_group("flags of LMDeploy and PaddleNLP, as keys of --speculative-config")
    for flag, key in FLAGS.items():
        others.add_argument(flag, dest=_dest(flag), metavar="VALUE", help=f"The key {key}")


def _add_row(group: argparse._ArgumentGroup, row: Setting) -> None:
    default = f"default {row.default}" if row.default not in ("", "{}") else ""
    takes = "" if row.kind in ("bool", "path", "str") else accepted(row)
    about = "; ".join(part for part in (takes, default) if part)
    text = (row.help + (f" ({about})" if about else "")).replace("%", "%%")
    flag, dest = flag_name(row.name), _dest(row.name)
    if row.kind == "bool":
        group.add_argument(flag, dest=dest, action="store_const", const="true", help=text)
        group.add_argument("--no-" + flag[2:], dest=dest, action="store_const", const="false", help="The opposite")
    else:
        metavar = {"choice": "NAME", "json": "JSON", "path": "PATH", "str": "TEXT"}.get(row.kind, "N")
        group.add_argument(flag, dest=dest, metavar=metavar, help=text)


def spelled_out(argv: Sequence[str]) -> list[str]:
    """`--flag=true` and `--flag=false` of bool rows as `--flag` and `--no-flag`; argparse would either
    refuse the value or swallow the next word."""
    words = []
    for word in argv:
        flag, equals, value = word.partition("=")
        row = ROWS.get(flag.removeprefix("--").replace("-", "_")) if flag.startswith("--") else None
        if equals and row and row.kind == "bool" and value.lower() in ("true", "false", "1", "0"):
            word = flag if value.lower() in ("true", "1") else "--no-" + flag[2:]
        words.append(word)
    return words


def given_flags(options: argparse.Namespace) -> dict[str, str]:
    """By the names of rows, and other servers' by the flag."""
    values = {name: getattr(options, _dest(name), None) for name in (*ROWS, *FLAGS)}
    return {name: value for name, value in values.items() if value is not None}


def read_settings(options: argparse.Namespace) -> Settings:
    """From file, environment and flags. Raises SettingsError."""
    named = getattr(options, "config", None)
    file = Path(named).expanduser() if named else settings_file(os.environ)
    return load_settings(given_flags(options), os.environ, file)


def settings_or_exit(options: argparse.Namespace) -> Settings:
    """Like read_settings, for commands that need valid settings: prints every problem and exits."""
    try:
        return read_settings(options)
    except SettingsError as error:
        for problem in error.problems:
            print(f"specmesh: {problem}", file=sys.stderr)
        raise SystemExit(2) from None


def _dest(name: str) -> str:
    # Apart from the commands' own options, such as a positional `model`.
    return f"setting_{name}"

"""Command-line flags made from the settings table. Knows argparse and the table, nothing of commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from services.api.foreign_environment import told
from services.api.foreign_flags import FOREIGN, SHORT, key_of
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

# Of `up`: the rows it sets for each process by itself.
OF_ONE_PROCESS = frozenset({"instance", "bind", "advertise", "host_directory"})
# What llama-server takes behind --flash-attn, which may also stand alone.
ON_OFF = frozenset({"on", "off", "auto", "true", "false", "1", "0", "-1", "enabled", "disabled"})
# So many settings need no headings.
FEW = 9
FOREIGN_SHOWN = "Flags of vLLM, SGLang, llama.cpp, FastDeploy, LMDeploy and PaddleNLP: `specmesh explain FLAG`."


class Parser(argparse.ArgumentParser):
    """Refuses unknown flags with the command that has them or the closest one, and never expands a prefix."""

    # Of a command: all commands, by name.
    commands: Mapping[str, Parser]
    # The flags of a command that reads them by itself.
    own_flags: Callable[[], Collection[str]]

    def __init__(self, *args: object, **more: object) -> None:
        more.setdefault("allow_abbrev", False)
        more.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        self.commands = {}
        self.own_flags = list
        super().__init__(*args, **more)  # type: ignore[arg-type]

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            leaf: Parser = getattr(options, "parser", self)
            leaf.refuse_unknown(unknown)
        return options

    def refuse_unknown(self, unknown: Sequence[str]) -> NoReturn:
        self.error("; ".join(self._of_others(word.partition("=")[0]) or self._unknown(word) for word in unknown))

    def _of_others(self, flag: str) -> str:
        if not flag.startswith("-"):
            return ""
        having = [
            name
            for name, each in self.commands.items()
            if flag in each._option_string_actions or flag in each.own_flags()
        ]
        if not having:
            return ""
        return f"{flag} is no flag of `{self.prog}`; it is one of `specmesh {having[0]}`"

    def _unknown(self, word: str) -> str:
        # What is refused anyway is no suggestion.
        refused = {key for key, flag in FOREIGN.items() if not flag.row}
        known = [flag for flag in self._option_string_actions if key_of(flag) not in refused]
        return f"unknown: {word}{did_you_mean(word.partition('=')[0], known)}"


def add_settings(parser: Parser, rows: Collection[str] | None = None) -> None:
    """One flag a row, grouped by the role it matters to; no flag has a default, so that only what was given counts.
    `rows`: only these. With all of them a command takes other servers' flags, too."""
    # Fifty flags in brackets would hide how the command is used.
    words = " ".join(
        action.metavar if action.nargs is None else f"[{action.metavar}]"
        for action in parser._actions
        if not action.option_strings and isinstance(action.metavar, str)
    )
    parser.usage = f"{parser.prog} {words} [flags]".replace("  ", " ")
    parser.add_argument("--config", metavar="FILE", help=f"settings file (or {PREFIX}CONFIG): TOML, or YAML in .yaml")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for row in SETTINGS:
        if rows is not None and row.name not in rows:
            continue
        title = "settings"
        if rows is None or len(rows) > FEW:
            title += f" of {'every process' if row.roles == 'all' else row.roles}"
        group = groups.get(title) or groups.setdefault(title, parser.add_argument_group(title))
        _add_row(group, row)


def add_foreign(parser: Parser) -> None:
    """Other servers' flags, which --help doesn't list: each is taken, or refused with what to write."""
    parser.epilog = FOREIGN_SHOWN
    for flag in FLAGS:
        parser.add_argument(flag, dest=_dest(flag), metavar="VALUE", help=argparse.SUPPRESS)
    for key in FOREIGN:
        if key not in ROWS:
            _add_foreign(parser, key)


def _add_foreign(parser: Parser, key: str) -> None:
    foreign = FOREIGN[key]
    # spelled_out has made dashes of underscores, and two dashes of one.
    spelled = flag_name(key)
    if spelled in parser._option_string_actions:
        # The command's own, such as --temperature of `generate`.
        return
    if foreign.switch:
        off = "--no-" + spelled[2:]
        parser.add_argument(spelled, dest=_dest(key), action="store_const", const="true", help=argparse.SUPPRESS)
        parser.add_argument(off, dest=_dest(key), action="store_const", const="false", help=argparse.SUPPRESS)
    else:
        # One that is refused whatever its values is refused by the table, not for their number.
        count = None if foreign.row or foreign.nothing or foreign.idle else "*"
        parser.add_argument(spelled, dest=_dest(key), metavar="VALUE", nargs=count, help=argparse.SUPPRESS)


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
    """Flags as the parsers know them: with two dashes, and with a value where one may be left out."""
    words: list[str] = []
    is_value = False
    for word, next_word in zip(argv, [*argv, ""][1:], strict=True):
        if is_value:
            is_value = False
            continue
        flag, equals, value = word.partition("=")
        flag = SHORT.get(flag, flag)
        alone = FOREIGN[key].alone if (key := key_of(flag)) in FOREIGN and flag.startswith("--") else ""
        if alone and not equals:
            is_value = next_word.lower() in ON_OFF
            equals, value = "=", next_word if is_value else alone
        words.append(_spelled_out(flag, equals, value))
    return words


def _spelled_out(flag: str, equals: str, value: str) -> str:
    """`--flag=true` and `--flag=false` of switches as `--flag` and `--no-flag`, as argparse would either refuse the
    value or swallow the next word; and underscores within a flag as dashes."""
    if not flag.startswith("--") or flag in FLAGS:
        return flag + equals + value
    key = key_of(flag)
    if key in ROWS or key in FOREIGN or key.removeprefix("no_") in (*ROWS, *FOREIGN):
        flag = flag.replace("_", "-")
    row = ROWS.get(key)
    switch = row.kind == "bool" if row else key in FOREIGN and FOREIGN[key].switch
    if equals and switch and value.lower() in ("true", "false", "1", "0"):
        return flag if value.lower() in ("true", "1") else "--no-" + flag[2:]
    return flag + equals + value


def given_flags(options: argparse.Namespace) -> dict[str, str]:
    """By the names of rows, and other servers' by theirs."""
    given: dict[str, str] = {}
    for name in (*ROWS, *FLAGS, *FOREIGN):
        value = getattr(options, _dest(name), None)
        if value is not None:
            given[name] = " ".join(value) if isinstance(value, list) else value
    if (word := getattr(options, "model_word", None)) and given.setdefault("model", word) != word:
        raise SettingsError([f"two models: {word} and --model {given['model']}; give one of them"])
    return given


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


def tell_notes(settings: Settings, environment: Mapping[str, str] | None = None) -> None:
    """What was given and has no effect; of an `environment`, variables of other servers, too. A process of a mesh has
    that of `up`, which has told them."""
    variables = told(environment, settings.origin) if environment is not None else ()
    for note in (*settings.notes, *variables):
        print(f"specmesh: note: {note}", file=sys.stderr)


def _dest(name: str) -> str:
    # Apart from the commands' own options, such as a positional `model`.
    return f"setting_{name}"

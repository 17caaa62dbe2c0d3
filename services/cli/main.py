"""The command `specmesh`: finds the command that is meant and hands over. What a command does is elsewhere,
and is imported only when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence

from services.api.settings import ROLES
from services.cli.flags import Parser, add_settings, settings_or_exit, spelled_out

Command = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    words = spelled_out(sys.argv[1:] if argv is None else argv)
    # A value that may be left out would swallow the prompt behind it.
    words = ["--show-draft=accepted" if word == "--show-draft" else word for word in words]
    if words[:1] == ["load"]:
        # The load harness reads its own flags.
        from loadtest.cli import main as load

        return load(words[1:])
    options = parser().parse_args(words)
    command: Command = options.command
    try:
        return command(options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # `specmesh config show | head`: nobody reads on, and there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def parser() -> Parser:
    root = Parser(
        prog="specmesh",
        description="Serves language models over an OpenAI-compatible API, faster by speculative decoding.",
        epilog="`specmesh COMMAND --help` tells more.",
    )
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (_up, _run, _chat, _top, _corpus, _model, _keys, _config, _doctor, _load, _version):
        add(commands)
    return root


def _add(
    commands: argparse._SubParsersAction[Parser], name: str, help: str, command: Command, more: str = ""
) -> Parser:
    sub = commands.add_parser(name, help=help, description=f"{help}. {more}".strip())
    sub.set_defaults(command=command, parser=sub)
    return sub


# Serving ------------------------------------------------------------------------------------------------


def _up(commands: argparse._SubParsersAction[Parser]) -> None:
    more = "Ctrl-C drains and leaves no process behind."
    add_settings(_add(commands, "up", "Start the whole mesh on this machine and watch it", _do_up, more))


def _do_up(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    from services.cli.up import main as up

    return up(settings)


def _run(commands: argparse._SubParsersAction[Parser]) -> None:
    more = "For compose, Kubernetes or a second machine; `up` does this for you on one machine."
    sub = _add(commands, "run", "Run one role in this process", _do_run, more)
    sub.add_argument("role", choices=ROLES, metavar="ROLE", help="one of " + ", ".join(ROLES))
    add_settings(sub)


def _do_run(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    from services.runtime.process import run_role

    return run_role(options.role, settings)


# Using --------------------------------------------------------------------------------------------------


def _chat(commands: argparse._SubParsersAction[Parser]) -> None:
    more = "With a prompt it answers once; without one it is a conversation (or reads the prompt from a pipe)."
    sub = _add(commands, "chat", "Talk to a running server", _do_chat, more)
    sub.add_argument("prompt", nargs="?", metavar="PROMPT", help="answer this and end; - reads it from standard input")
    sub.add_argument("--url", help="the server (default: host and port of the settings)")
    sub.add_argument("--name", metavar="MODEL", help="model to ask for (default: the server's first)")
    sub.add_argument("--system", metavar="TEXT", help="system message")
    sub.add_argument("--temperature", type=float, metavar="T", help="default: the server's choice")
    sub.add_argument("--max-tokens", type=int, metavar="N", help="longest answer")
    sub.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same answer")
    sub.add_argument("--stats", action="store_true", help="tell tokens and speed after each answer")
    marked = "mark drafted tokens that stood (accepted, which may be left out), or those that were rejected, too (all)"
    sub.add_argument("--show-draft", choices=("accepted", "all"), metavar="WHICH", help=marked)
    add_settings(sub)


def _do_chat(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    from services.cli.chat import main as chat

    return chat(options, settings)


def _top(commands: argparse._SubParsersAction[Parser]) -> None:
    more = "Refreshes in place until q is pressed; where its output is no terminal, it prints once."
    sub = _add(commands, "top", "Watch the mesh behind a running server", _do_top, more)
    sub.add_argument("--url", help="the server (default: host and port of the settings)")
    sub.add_argument("--once", action="store_true", help="print it once and end, after two looks a second apart")
    sub.add_argument("--every", type=_seconds, default=1.0, metavar="S", help="seconds between two looks (default 1)")
    add_settings(sub)


def _seconds(word: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.2 <= (seconds := float(word)) <= 3600:
            return seconds
    raise argparse.ArgumentTypeError(f"{word} is no number of seconds from 0.2 to 3600")


def _do_top(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    from services.cli.top import main as top

    return top(options, settings)


def _corpus(commands: argparse._SubParsersAction[Parser]) -> None:
    actions = {
        "add": "send files and folders under a name, and wait until they are ready",
        "list": "those there are, and how far they are built (the default)",
        "remove": "forget one",
    }
    more = "Only text files are sent; what is left out is told."
    sub = _add(commands, "corpus", "Give a running server texts to draft from", _do_corpus, more)
    _add_action(sub, actions)
    sub.add_argument("names", nargs="*", metavar="NAME PATH", help="the corpus; to add, behind it files and folders")
    sub.add_argument("--url", help="the server (default: host and port of the settings)")
    sub.add_argument("--api-key", metavar="KEY", help="whose corpora (default: the first of api_keys)")
    sub.add_argument("--namespace", metavar="NAME", help="as in speculation.namespace of requests that draft from it")
    sub.add_argument("--json", action="store_true", help="as JSON")
    add_settings(sub)


def _do_corpus(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    from services.cli.corpus import main as corpus

    return corpus(options, settings)


def _model(commands: argparse._SubParsersAction[Parser]) -> None:
    actions = {
        "list": "models known by name, and those in the cache (the default)",
        "fetch": "bring one into the cache",
        "show": "the facts of one that is here",
        "check": "what is wrong with a folder or file",
    }
    sub = _add(commands, "model", "List, fetch, show or check models", _do_model)
    _add_action(sub, actions)
    sub.add_argument("name", nargs="?", metavar="NAME", help="name, folder, GGUF file or hub id")
    add_settings(sub)


def _do_model(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    from services.cli.model import ACTIONS

    return ACTIONS[options.action or "list"](options.name or settings.model, settings)


def _keys(commands: argparse._SubParsersAction[Parser]) -> None:
    actions = {
        "make": "a pair for the mesh and one for each member; those that exist stay (the default)",
        "show": "which are there, and who is let in",
    }
    more = "Needed wherever the mesh leaves this machine."
    sub = _add(commands, "keys", "Make or show the keys of the mesh", _do_keys, more)
    _add_action(sub, actions)
    sub.add_argument("names", nargs="*", metavar="NAMES", help="members to make keys for (default: every role)")
    add_settings(sub)


def _do_keys(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    from services.cli.keys import ACTIONS

    return ACTIONS[options.action or "make"](options.names, settings)


def _config(commands: argparse._SubParsersAction[Parser]) -> None:
    actions = {
        "show": "every setting, its value and its origin (the default)",
        "path": "the settings file that is read",
    }
    sub = _add(commands, "config", "Show the settings and where they come from", _do_config)
    _add_action(sub, actions)
    sub.add_argument("--json", action="store_true", help="as JSON")
    sub.add_argument("--changed", action="store_true", help="only what isn't at its default")
    add_settings(sub)


def _do_config(options: argparse.Namespace) -> int:
    from services.cli.config import ACTIONS

    return ACTIONS[options.action or "show"](options)


def _add_action(parser: Parser, actions: dict[str, str]) -> None:
    """What to do, as a word; one parser serves all of them, so that flags may stand anywhere."""
    told = "; ".join(f"{name}: {what}" for name, what in actions.items())
    parser.add_argument("action", nargs="?", choices=tuple(actions), metavar="ACTION", help=told)


def _doctor(commands: argparse._SubParsersAction[Parser]) -> None:
    sub = _add(commands, "doctor", "Find what is wrong here, and name the fix", _do_doctor)
    sub.add_argument("--json", action="store_true", help="as JSON")
    add_settings(sub)


def _do_doctor(options: argparse.Namespace) -> int:
    from services.cli.doctor.run import main as doctor

    return doctor(options)


def _load(commands: argparse._SubParsersAction[Parser]) -> None:
    _add(commands, "load", "Load a server and measure it", lambda options: main(["load"]))


def _version(commands: argparse._SubParsersAction[Parser]) -> None:
    _add(commands, "version", "Tell the version", _do_version)


def _do_version(options: argparse.Namespace) -> int:
    from importlib.metadata import PackageNotFoundError, version

    try:
        print(f"specmesh {version('specmesh')}")
    except PackageNotFoundError:
        print("specmesh (not installed: running from its folder)")
    return 0


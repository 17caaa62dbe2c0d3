"""The command `specmesh`: parses the command line and calls a command. Commands are imported only when they
run, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Sequence

from models.heads.table import TRAINED
from services.api.settings import ROLES, ROWS, did_you_mean
from services.cli.field_flags import add_fields
from services.cli.flags import (
    OF_ONE_PROCESS,
    Parser,
    add_foreign,
    add_settings,
    settings_or_exit,
    spelled_out,
    tell_notes,
)

Command = Callable[[argparse.Namespace], int]
# Settings that commands which talk to a server read.
SERVER = ("host", "port", "ssl_certfile", "api_keys", "api_keys_file")
# Settings of where a mesh listens: one that a command starts for itself has a socket of its own.
OF_A_DOOR = frozenset({"host", "port", "uds", "metrics_port", "run_dir"})
EXAMPLES = """examples:
  specmesh up                          start the default model at http://127.0.0.1:8000
  specmesh serve FOLDER --port 8080    another model, another port
  specmesh chat "What is a mesh?"      ask the server that runs
  specmesh doctor                      look for what is wrong here

`specmesh help COMMAND` lists a command's flags; docs/use/quick-start.md goes through all of it."""


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["load"]:
        # The load test reads its own flags: its --warmup takes a number, llama-server's is a switch.
        from loadtest.cli import main as load

        return load(words[1:])
    if words[:1] == ["explain"]:
        from services.cli.explain import own_flags_first

        # Other servers' flags as they are written: they are what is asked about.
        words = ["explain", *own_flags_first(words[1:])]
    else:
        words = spelled_out(words)
    # An optional value would swallow the prompt after it.
    words = ["--show-draft=accepted" if word == "--show-draft" else word for word in words]
    if words[:1] == ["--version"]:
        words = ["version"]
    if words[:2] == ["serve", "api_server"] and len(words) > 2:
        # LMDeploy has a word more.
        del words[1]
    root = parser()
    _check_command(root, words)
    options = root.parse_args(words or ["help"])
    command: Command = options.command
    try:
        return command(options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # `specmesh config show | head`: the reader has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


@functools.cache
def parser() -> Parser:
    root = Parser(
        prog="specmesh",
        description="Serve language models over an OpenAI-compatible API with speculative decoding.",
        epilog=EXAMPLES,
    )
    root.add_argument("--version", action="store_true", help="tell the version")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (_up, _serve, _run, _scale, _down, _chat, _generate, _batch, _run_batch, _top, _status, _roll, _corpus,
                _model, _compile, _capacity, _train, _keys, _config, _explain, _doctor, _load, _clean, _completion,
                _help, _version):  # fmt: skip
        add(commands)
    return root


def _check_command(root: Parser, words: Sequence[str]) -> None:
    (commands,) = [each.choices for each in root._actions if isinstance(each, argparse._SubParsersAction)]
    word = words[0] if words else "help"
    if word not in commands and not word.startswith("-"):
        meant = " (here it is `specmesh load`)" if word == "bench" else did_you_mean(word, commands)
        root.error(f"no command {word}{meant}; `specmesh help` lists them")


def _add(
    commands: argparse._SubParsersAction[Parser], name: str, help: str, command: Command, more: str = ""
) -> Parser:
    sub = commands.add_parser(name, help=help, description=f"{help}. {more}".strip())
    sub.set_defaults(command=command, parser=sub)
    sub.commands = commands.choices
    return sub


# Serving ------------------------------------------------------------------------------------------------


def _up(commands: argparse._SubParsersAction[Parser]) -> None:
    _add_up(commands, "up", "Start all processes of the server on this machine, and restart those that die")


def _serve(commands: argparse._SubParsersAction[Parser]) -> None:
    _add_up(commands, "serve", "The same as up, under the name that vLLM uses")


def _add_up(commands: argparse._SubParsersAction[Parser], name: str, help: str) -> None:
    sub = _add(commands, name, help, _do_up, "Ctrl-C drains and leaves no process behind.")
    sub.add_argument("model_word", nargs="?", metavar="MODEL", help="the same as --model")
    stdin = "end when standard input is closed: for a program that starts a mesh of its own"
    sub.add_argument("--until-stdin-closes", action="store_true", help=stdin)
    where = "machine (the default), or ray: a Ray cluster (docs/operate/cluster.md)"
    sub.add_argument("--on", choices=("machine", "ray"), default="machine", metavar="WHERE", help=where)
    add_settings(sub, ROWS.keys() - OF_ONE_PROCESS)
    add_foreign(sub)


def _do_up(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    tell_notes(settings, os.environ)
    if options.on == "ray":
        from services.cli.on_ray import up as up_on_ray

        return up_on_ray(settings)
    if settings.node_rank:
        from services.cli.node import main as node

        return node(settings)
    from services.cli.up import main as up

    return up(settings, sys.stdin.fileno() if options.until_stdin_closes else None)


def _scale(commands: argparse._SubParsersAction[Parser]) -> None:
    more = "Returns when as many are ready; the others drain first. For a mesh of `up --on ray`."
    sub = _add(commands, "scale", "Change the number of a role's processes on a cluster", _do_scale, more)
    sub.add_argument("role", choices=ROLES, metavar="ROLE", help="one of " + ", ".join(ROLES))
    sub.add_argument("count", type=_count, metavar="N", help="how many there are to be")
    waits = "time to wait for them, in seconds (default 600)"
    sub.add_argument("--wait", type=float, default=600.0, metavar="S", help=waits)
    add_settings(sub, ("run_dir", "ray_address"))


def _count(word: str) -> int:
    if word.isascii() and word.isdigit() and 1 <= int(word) <= 1024:
        return int(word)
    raise argparse.ArgumentTypeError(f"{word} is no whole number from 1 to 1024")


def _do_scale(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    from services.cli.ray_commands import scale

    return scale(options, settings)


def _down(commands: argparse._SubParsersAction[Parser]) -> None:
    more = "For a mesh of `up --on ray`, from any machine of the cluster."
    sub = _add(commands, "down", "Finish running requests and stop all processes on a cluster", _do_down, more)
    sub.add_argument("--now", action="store_true", help="end it without waiting for running requests")
    add_settings(sub, ("run_dir", "ray_address", "drain_timeout"))


def _do_down(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    from services.cli.ray_commands import down

    return down(options, settings)


def _run(commands: argparse._SubParsersAction[Parser]) -> None:
    more = "For compose, Kubernetes or a second machine; `up` does this for you on one machine."
    sub = _add(commands, "run", "Run one role in this process", _do_run, more)
    sub.add_argument("role", choices=ROLES, metavar="ROLE", help="one of " + ", ".join(ROLES))
    add_settings(sub, [name for name, row in ROWS.items() if row.roles != "up"])
    add_foreign(sub)


def _do_run(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    tell_notes(settings)
    if options.role == "worker" and settings.node_rank:
        from services.cli.node import main as node

        return node(settings)
    from services.runtime.process import run_role

    return run_role(options.role, settings)


# Using --------------------------------------------------------------------------------------------------


def _chat(commands: argparse._SubParsersAction[Parser]) -> None:
    more = "With a prompt it answers once; without one it is a conversation (or reads the prompt from a pipe)."
    sub = _add(commands, "chat", "Talk to a running server", _do_chat, more)
    sub.add_argument("prompt", nargs="?", metavar="PROMPT", help="prompt to answer; - reads it from standard input")
    sub.add_argument("--url", help="URL of the server (default: from the settings host and port)")
    named = "name of the model in the API (default: the server's first)"
    sub.add_argument("--model", "--name", dest="name", metavar="NAME", help=named)
    sub.add_argument("--method", metavar="NAME", help="drafting method; naive or off: none (default: the server's)")
    sub.add_argument("--system", metavar="TEXT", help="system message")
    sub.add_argument("--temperature", type=float, metavar="T", help="temperature (default: the server's choice)")
    sub.add_argument("--max-tokens", type=int, metavar="N", help="maximum answer length, in tokens")
    sub.add_argument("--seed", type=int, metavar="N", help="seed; the same seed gives the same answer")
    sub.add_argument("--stats", action="store_true", help="print tokens and speed after each answer")
    marked = "mark accepted draft tokens (accepted, the default) or rejected ones, too (all)"
    sub.add_argument("--show-draft", choices=("accepted", "all"), metavar="WHICH", help=marked)
    add_settings(sub, SERVER)


def _do_chat(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    from services.cli.chat import main as chat

    return chat(options, settings)


def _generate(commands: argparse._SubParsersAction[Parser]) -> None:
    more = "Tells speed and acceptance on standard error. Exit code 1: some prompts are refused; 2: not all are done."
    sub = _add(commands, "generate", "Print the texts that follow a prompt or a file of prompts", _do_generate, more)
    sub.add_argument("prompt", nargs="?", metavar="PROMPT", help="prompt to go on from")
    lines = "prompts, one a line; of .jsonl and .json objects with prompt or src; -: standard input"
    sub.add_argument("--file", metavar="FILE", help=lines)
    sub.add_argument("--url", help="URL of a server that runs (default: a mesh of its own, without ports)")
    sub.add_argument("--chat", action="store_true", help="send each prompt as a user's message, by the chat template")
    sub.add_argument("--json", action="store_true", help="print lines of JSON: src, output, finish_reason")
    longest = "maximum length of a text, in tokens (default 256)"
    sub.add_argument("--max-tokens", "--max-length", type=_tokens, default=256, metavar="N", help=longest)
    add_fields(sub)
    add_settings(sub, ROWS.keys() - OF_ONE_PROCESS - OF_A_DOOR)
    add_foreign(sub)


def _tokens(word: str) -> int:
    if word.isascii() and word.isdigit() and int(word):
        return int(word)
    raise argparse.ArgumentTypeError(f"{word} is no whole number from 1")


def _do_generate(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    tell_notes(settings)
    from services.cli.generate import main as generate

    return generate(options, settings)


def _batch(commands: argparse._SubParsersAction[Parser]) -> None:
    more = (
        "Answers are written as they come; the same command again goes on where it was. Exit code 0: every line has an "
        "answer; 1: some are at fault; 2: not all are done."
    )
    sub = _add(commands, "batch", "Answer the requests of an OpenAI batch file", _do_batch, more)
    sub.add_argument("input", metavar="IN", help="requests: custom_id, method, url and body in a line")
    sub.add_argument("output", metavar="OUT", help="answers, one a line; those that it has already are kept")
    _add_batch(sub)


def _run_batch(commands: argparse._SubParsersAction[Parser]) -> None:
    sub = _add(commands, "run-batch", "The same as batch, as vLLM writes it", _do_batch)
    sub.add_argument("-i", "--input-file", dest="input", required=True, metavar="FILE", help="the same as IN of batch")
    sub.add_argument("-o", "--output-file", dest="output", required=True, metavar="FILE", help="the same as OUT")
    _add_batch(sub)


def _add_batch(sub: Parser) -> None:
    sub.add_argument("--url", help="URL of a server that runs (default: a mesh of its own, without ports)")
    flight = "requests in flight at a time (default 128)"
    sub.add_argument("--concurrency", type=_count, default=128, metavar="N", help=flight)
    add_settings(sub, ROWS.keys() - OF_ONE_PROCESS - OF_A_DOOR)
    add_foreign(sub)


def _do_batch(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    # A mesh of its own has what it tells in a log.
    tell_notes(settings, None if options.url else os.environ)
    from services.cli.batch import main as batch

    return batch(options, settings)


def _top(commands: argparse._SubParsersAction[Parser]) -> None:
    more = "Refreshes until q is pressed; prints once if the output is not a terminal."
    sub = _add(commands, "top", "Show the processes of a running server, live", _do_top, more)
    sub.add_argument("--url", help="URL of the server (default: from the settings host and port)")
    sub.add_argument("--once", action="store_true", help="print once, from two samples a second apart, and end")
    sub.add_argument("--every", type=_seconds, default=1.0, metavar="S", help="refresh interval in seconds (default 1)")
    add_settings(sub, SERVER)


def _status(commands: argparse._SubParsersAction[Parser]) -> None:
    more = "Exit code 0 if requests are served, else 1 with the reason; works while parts are down."
    sub = _add(commands, "status", "Print whether requests are served, and the state of each process", _do_status, more)
    sub.add_argument("--url", help="URL of the server (default: from the settings host and port)")
    sub.add_argument("--json", action="store_true", help="as JSON")
    add_settings(sub, (*SERVER, "run_dir", "ray_address"))


def _do_status(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    from services.cli.status import main as status

    return status(options, settings)


def _seconds(word: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.2 <= (seconds := float(word)) <= 3600:
            return seconds
    raise argparse.ArgumentTypeError(f"{word} is no number of seconds from 0.2 to 3600")


def _do_top(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    from services.cli.top import main as top

    return top(options, settings)


def _roll(commands: argparse._SubParsersAction[Parser]) -> None:
    more = (
        "Each drains and starts again while the others serve; on one machine that takes two workers or more. On Ray "
        "another is ready before one drains, where a machine has room."
    )
    sub = _add(commands, "roll", "Replace the workers one by one, without a failed request", _do_roll, more)
    sub.add_argument("--url", help="URL of the server (default: from the settings host and port)")
    add_settings(sub, (*SERVER, "run_dir", "ray_address", "drain_timeout"))


def _do_roll(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    from services.cli.roll import main as roll

    return roll(options, settings)


def _corpus(commands: argparse._SubParsersAction[Parser]) -> None:
    actions = {
        "add": "send files and folders as a corpus, and wait until it is ready",
        "list": "corpora and their state (the default)",
        "remove": "delete a corpus",
    }
    more = "Only text files are sent; skipped files are listed."
    sub = _add(commands, "corpus", "Add, list and remove texts that a running server drafts from", _do_corpus, more)
    _add_action(sub, actions)
    sub.add_argument("names", nargs="*", metavar="NAME PATH", help="the corpus and, for add, files and folders")
    sub.add_argument("--url", help="URL of the server (default: from the settings host and port)")
    sub.add_argument("--api-key", metavar="KEY", help="API key of the owner (default: the first of api_keys)")
    sub.add_argument("--namespace", metavar="NAME", help="namespace, as in speculation.namespace of requests")
    sub.add_argument("--proposer", metavar="ADDRESS", help="a proposer alone, under vLLM, in the place of a server")
    sub.add_argument("--tokenizer", metavar="FOLDER", help="of --proposer: folder with the model's tokenizer.json")
    sub.add_argument("--json", action="store_true", help="as JSON")
    add_settings(sub, (*SERVER, "keys_dir"))


def _do_corpus(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    from services.cli.corpus import main as corpus

    return corpus(options, settings)


def _model(commands: argparse._SubParsersAction[Parser]) -> None:
    actions = {
        "list": "models known by name and models in the cache (the default)",
        "fetch": "download a model into the cache",
        "show": "properties of a model in the cache",
        "check": "check a model folder, file or hub id for problems",
        "convert": "write the tensors of .bin and .pt files as safetensors, to OUT or beside them; no code is run",
    }
    sub = _add(commands, "model", "List, fetch, show, check or convert models", _do_model)
    _add_action(sub, actions)
    sub.add_argument("name", nargs="?", metavar="NAME", help="name, folder, file or hub id")
    sub.add_argument("out", nargs="?", metavar="OUT", help="of convert: a folder, or a file NAME.safetensors")
    add_settings(sub, ("model", "cache_dir", "dtype", "max_context", "kv_cache_mb"))


def _do_model(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    from services.cli.model import ACTIONS, convert

    if options.action == "convert":
        if options.name is None:
            options.parser.error("convert needs a folder, a file or a hub id")
        return convert(options.name, options.out or "", settings)
    if options.out is not None:
        options.parser.error(f"{options.action} takes one NAME")
    return ACTIONS[options.action or "list"](options.name or settings.model, settings)


def _compile(commands: argparse._SubParsersAction[Parser]) -> None:
    more = "Says where it is kept and how large that is: a start with the same settings compiles nothing then."
    sub = _add(commands, "compile", "Compile what a start would, for an image or a volume to carry", _do_compile, more)
    # The mesh that is started is its own.
    sub.set_defaults(url="")
    sub.add_argument("model_word", nargs="?", metavar="MODEL", help="the same as --model")
    add_settings(sub, ROWS.keys() - OF_ONE_PROCESS - OF_A_DOOR)
    add_foreign(sub)


def _do_compile(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    tell_notes(settings)
    from services.cli.compile import main as compile_

    return compile_(options, settings)


def _capacity(commands: argparse._SubParsersAction[Parser]) -> None:
    more = "Starts a mesh of its own, without ports, and ends it; nothing else should compute meanwhile."
    sub = _add(commands, "capacity", "Measure what this machine can serve, in two minutes", _do_capacity, more)
    sub.set_defaults(url="")
    sub.add_argument("model_word", nargs="?", metavar="MODEL", help="the same as --model")
    prompt = "length of prompts that the advice is for, in tokens (default 400)"
    sub.add_argument("--prompt-tokens", type=_tokens, default=400, metavar="N", help=prompt)
    answer = "length of answers that the advice is for, in tokens (default 200)"
    sub.add_argument("--answer-tokens", type=_tokens, default=200, metavar="N", help=answer)
    spent = "time for each number of streams, in seconds (default 15)"
    sub.add_argument("--seconds", type=_seconds, default=15.0, metavar="S", help=spent)
    sub.add_argument("--json", action="store_true", help="as JSON")
    add_settings(sub, ROWS.keys() - OF_ONE_PROCESS - OF_A_DOOR)
    add_foreign(sub)


def _do_capacity(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    tell_notes(settings)
    from services.cli.capacity.run import main as capacity

    return capacity(options, settings)


def _train(commands: argparse._SubParsersAction[Parser]) -> None:
    more = "The model answers the prompts itself; a run that ended early goes on where it was."
    sub = _add(commands, "train-drafter", "Train a head that drafts for a model", _do_train, more)
    sub.add_argument("--head", "--method", choices=TRAINED, default="eagle3", help="kind of drafter (default eagle3)")
    sub.add_argument("--data", nargs="+", default=[], metavar="FILE", help="prompts: one a line, or .jsonl")
    own = "sample N prompts from the model itself (default 0)"
    sub.add_argument("--own-prompts", type=int, default=0, metavar="N", help=own)
    sub.add_argument("--out", required=True, metavar="DIR", help="folder of the head")
    sub.add_argument("--prompts", type=int, default=0, metavar="N", help="use only the first N of --data (0: all)")
    sub.add_argument("--passes", type=int, default=1, metavar="N", help="times each answer is seen (default 1)")
    sub.add_argument("--answer-tokens", type=int, default=256, metavar="N", help="longest answer (default 256)")
    heat = "temperature of the answers (default 0)"
    sub.add_argument("--answer-temperature", type=float, default=0.0, metavar="T", help=heat)
    words = "tokens in the head's vocabulary, the most frequent ones (default 8192)"
    sub.add_argument("--vocabulary", type=int, default=8192, metavar="N", help=words)
    sub.add_argument("--rate", type=float, default=1e-3, metavar="R", help="learning rate (default 0.001)")
    sub.add_argument("--train-seed", type=int, default=0, metavar="N", help="the same seed gives the same head")
    stored = "dtype of the head's linears in its folder (default bfloat16)"
    sub.add_argument("--head-dtype", choices=("bfloat16", "int8"), default="bfloat16", help=stored)
    lean = "leave out an output head that is the model's: the folder is small, and only specmesh reads it"
    sub.add_argument("--leave-out-head", action="store_true", help=lean)
    add_settings(sub, ("model", "cache_dir", "dtype", "executor", "threads", "cores"))


def _do_train(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    from services.training.command import main as train

    return train(options, settings)


def _keys(commands: argparse._SubParsersAction[Parser]) -> None:
    actions = {
        "make": "make a key pair for the mesh and one for each member; existing ones are kept (the default)",
        "show": "keys in the folder, and the members allowed to join",
    }
    more = "Needed if the mesh spans several machines."
    sub = _add(commands, "keys", "Make or show the keys of the mesh", _do_keys, more)
    _add_action(sub, actions)
    sub.add_argument("names", nargs="*", metavar="NAMES", help="members to make keys for (default: every role)")
    add_settings(sub, ("keys_dir",))


def _do_keys(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    from services.cli.keys import ACTIONS

    return ACTIONS[options.action or "make"](options.names, settings)


def _config(commands: argparse._SubParsersAction[Parser]) -> None:
    actions = {
        "show": "every setting with its value and origin (the default)",
        "path": "the settings file that is read",
    }
    sub = _add(commands, "config", "Show the settings and where they come from", _do_config)
    _add_action(sub, actions)
    sub.add_argument("--json", action="store_true", help="as JSON")
    sub.add_argument("--changed", action="store_true", help="only settings that differ from their defaults")
    add_settings(sub)
    add_foreign(sub)


def _do_config(options: argparse.Namespace) -> int:
    from services.cli.config import ACTIONS

    return ACTIONS[options.action or "show"](options)


def _explain(commands: argparse._SubParsersAction[Parser]) -> None:
    more = "Exit code 1 if a name is unknown."
    help = "Say what a flag, environment name or key of another server is here"
    sub = _add(commands, "explain", help, _do_explain, more)
    told = "flags, environment names, keys of --speculative-config, settings of specmesh, or a whole command in quotes"
    sub.add_argument("names", nargs="*", metavar="NAME", help=told)
    servers = "all names of this server: vLLM, SGLang, llama.cpp, FastDeploy, LMDeploy or PaddleNLP"
    sub.add_argument("--from", dest="server", metavar="SERVER", help=servers)
    sub.add_argument("--json", action="store_true", help="as JSON")


def _do_explain(options: argparse.Namespace) -> int:
    from services.cli.explain import main as explain

    return explain(options)


def _add_action(parser: Parser, actions: dict[str, str]) -> None:
    """The action as a word. One parser for all actions, so that flags may come in any place."""
    told = "; ".join(f"{name}: {what}" for name, what in actions.items())
    parser.add_argument("action", nargs="?", choices=tuple(actions), metavar="ACTION", help=told)


def _doctor(commands: argparse._SubParsersAction[Parser]) -> None:
    sub = _add(commands, "doctor", "Check the machine, the settings and the mesh, and name fixes", _do_doctor)
    sub.add_argument("--json", action="store_true", help="as JSON")
    report = "also write an archive for a bug report: versions, settings, logs, metrics; no texts, no keys"
    sub.add_argument("--bundle", metavar="FILE", help=report)
    sub.add_argument("--url", help="URL of the server that the archive is about (default: from host and port)")
    add_settings(sub)
    add_foreign(sub)


def _do_doctor(options: argparse.Namespace) -> int:
    from services.cli.doctor.run import main as doctor

    return doctor(options)


def _load(commands: argparse._SubParsersAction[Parser]) -> None:
    sub = _add(commands, "load", "Load a server and measure it", lambda options: main(["load"]))
    sub.own_flags = _load_flags


def _load_flags() -> list[str]:
    from loadtest.flags import parser as load

    return list(load()._option_string_actions)


def _clean(commands: argparse._SubParsersAction[Parser]) -> None:
    more = "Lists models, learned text and run files with their sizes; nothing is removed without --yes."
    sub = _add(commands, "clean", "Remove files that an uninstall leaves behind", _do_clean, more)
    sub.add_argument("--yes", action="store_true", help="remove what is listed")
    sub.add_argument("--keep-models", action="store_true", help="leave models where they are")
    add_settings(sub, ("cache_dir", "store_dir", "run_dir"))


def _do_clean(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    from services.cli.clean import main as clean

    return clean(options, settings)


# About the command line ---------------------------------------------------------------------------------


def _completion(commands: argparse._SubParsersAction[Parser]) -> None:
    more = 'For bash: eval "$(specmesh completion bash)" in ~/.bashrc; the script itself says where the others go.'
    sub = _add(commands, "completion", "Print a script that completes commands and flags", _do_completion, more)
    sub.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")


def _do_completion(options: argparse.Namespace) -> int:
    # The parser of `load` is the load test's own.
    from loadtest.flags import parser as load
    from services.cli.completion import script

    print(script(options.shell, {**options.parser.commands, "load": load()}), end="")
    return 0


def _help(commands: argparse._SubParsersAction[Parser]) -> None:
    sub = _add(commands, "help", "Show this list, or the flags of a command", _do_help)
    sub.add_argument("about", nargs="?", metavar="COMMAND", help="a command")


def _do_help(options: argparse.Namespace) -> int:
    if options.about == "load":
        return main(["load", "--help"])
    commands = options.parser.commands
    if options.about and options.about not in commands:
        options.parser.error(f"no command {options.about}{did_you_mean(options.about, commands)}")
    (commands[options.about] if options.about else parser()).print_help()
    return 0


def _version(commands: argparse._SubParsersAction[Parser]) -> None:
    _add(commands, "version", "Print the version", _do_version)


def _do_version(options: argparse.Namespace) -> int:
    from importlib.metadata import PackageNotFoundError, version

    try:
        print(f"specmesh {version('specmesh')}")
    except PackageNotFoundError:
        print("specmesh (not installed: running from its folder)")
    return 0


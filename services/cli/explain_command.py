"""`specmesh explain 'COMMAND'`: a whole command line of another server, with its environment, as one of ours.

What it holds is read by the parser and the tables that read our own command lines; here is only what a command means as
a whole: which program it starts, on how many machines, and what that program does that a server doesn't.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.api.foreign_environment import GPUS, VARIABLES
from services.api.foreign_flags import key_of
from services.api.settings import Settings, SettingsError, flag_name, load_settings
from services.api.settings_file import read_file
from services.api.speculative_config import FLAGS
from services.cli.flags import Parser, given_flags, spelled_out
from services.cli.shell_words import statements

WIDTH = 100


@dataclass(frozen=True, slots=True)
class Program:
    """`behind`: the words that follow its name before its flags. `told`: what it does that a server doesn't."""

    server: str
    behind: tuple[str, ...] = ()
    told: str = ""


_TOPP = "FastDeploy verifies by topp, which changes sampled text: --verify-strategy topp is that rule"
_ANSWERS = (
    "predictor.py answers its prompts and ends; here a server answers: `specmesh chat PROMPT` asks the one that runs,"
    " and `specmesh batch IN OUT` with the same flags answers a file and ends"
)
_ONE_MORE = "SGLang's number of draft tokens includes the model's own: write one less"
_SLOTS = "llama-server's -c is for all slots together, here it is for one request"
# Server -> a setting, whether it must be given, and what is told then.
_DIFFERENT: dict[str, tuple[str, bool, str]] = {
    "FastDeploy": ("verify_strategy", False, _TOPP),
    "SGLang": ("num_speculative_tokens", True, _ONE_MORE),
    "llama.cpp": ("max_context", True, _SLOTS),
}
_EXPORTS = "export_model.py has nothing to do here: the model is served from its own folder, as follows"

PROGRAMS: dict[str, Program] = {
    "fastdeploy.entrypoints.openai.api_server": Program("FastDeploy"),
    "lmdeploy": Program("LMDeploy", ("serve", "api_server")),
    "predictor.py": Program("PaddleNLP", told=_ANSWERS),
    "export_model.py": Program("PaddleNLP", told=_EXPORTS),
    "start_server": Program("PaddleNLP"),
    "start_server.sh": Program("PaddleNLP"),
    "vllm": Program("vLLM", ("serve",)),
    "vllm.entrypoints.openai.api_server": Program("vLLM"),
    "sglang.launch_server": Program("SGLang"),
    "llama-server": Program("llama.cpp"),
}
# What a command begins with that isn't in quotes.
_STARTS = {"python", "python3", "mpirun", "docker", "lmdeploy", "vllm", "llama-server", "start_server"}
_MPI = (
    "mpirun isn't needed: on several machines write the command on each, with --nnodes N --node-rank K"
    " --master-addr FIRST --keys-dir FOLDER, and the GPUs of all as --tensor-parallel-size"
)
_ONE_FOR_BOTH = (
    "one command starts the workers of both phases: leave the other node's out; on two machines"
    " `specmesh run worker --phase NAME` starts one (docs/operate/split.md)"
)
_KEYS = "`specmesh keys make --keys-dir keys` makes the keys once; copy the folder to every machine"
_KEYS_DIR = "keys"
_DEFAULTS = load_settings()


@dataclass(frozen=True, slots=True)
class Translation:
    """`commands`: one a machine. `refused`: what was left out, with what to write."""

    server: str
    commands: tuple[str, ...]
    told: tuple[str, ...]
    refused: tuple[str, ...]


def is_command(names: Sequence[str]) -> bool:
    return any(" " in name.strip() for name in names) or (bool(names) and names[0] in _STARTS)


def main(names: Sequence[str], up: Parser, as_json: bool) -> int:
    text = names[0] if len(names) == 1 else shlex.join(names)
    try:
        found = list(translations(text, up))
    except ValueError as error:
        print(f"specmesh: {error}", file=sys.stderr)
        return 2
    if not found:
        print(f"specmesh: no server is started by this; known are {', '.join(PROGRAMS)}", file=sys.stderr)
        return 1
    if as_json:
        print(json.dumps([_as_json(each) for each in found], indent=2))
    else:
        print("\n\n".join(map(_shown, found)))
    return 1 if any(each.refused for each in found) else 0


def translations(text: str, up: Parser, environment: Mapping[str, str] | None = None) -> Iterator[Translation]:
    """Of each server that it starts; `up` parses our command. Raises ValueError, with what is wrong with the text."""
    for statement in statements(text, environment):
        words = statement.words
        place = next((place for place, word in enumerate(words) if _base(word) in PROGRAMS), None)
        if place is not None:
            yield _translation(words, place, statement.environment, up)
            continue
        # `docker run … -c 'SCRIPT'`
        for word in (word for word in words if " " in word):
            with contextlib.suppress(ValueError):
                yield from translations(word, up, statement.environment)


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _translation(words: Sequence[str], place: int, environment: Mapping[str, str], up: Parser) -> Translation:
    program = PROGRAMS[_base(words[place])]
    rest = list(words[place + 1 :])
    while rest and rest[0] in program.behind:
        del rest[0]
    launcher = _pairs(words[:place])
    unknown, given = _given(rest, up)
    told = [program.told] if program.told else []
    _add_model_of(given, _base(words[place]))
    if "ips" in given:
        launcher["ips"] = given.pop("ips")
    told += _add_environment(given, launcher, environment)
    told += _adapt(given, program.server)
    machines = [each for each in launcher.get("ips", "").split(",") if each]
    _add_ranks(given, launcher, machines)
    if len(machines) > 1:
        told.append(_KEYS)
    elif "mpirun" in words[:place]:
        told.append(_MPI)
    refused = [f"{word}: unknown here" for word in unknown]
    before = {GPUS: environment[GPUS]} if environment.get(GPUS) else {}
    commands: list[str] = []
    for rank in range(max(1, len(machines))):
        own = given | ({"node_rank": str(rank)} if len(machines) > 1 else {})
        settings, left_out = _read(own)
        if rank == 0:
            # What is to be left out asks for nothing that is missing here.
            told += [each for each in left_out if ": leave it out" in each]
            refused += [each for each in left_out if ": leave it out" not in each]
            told += [note.removeprefix("flag ") for note in settings.notes]
            told += _differences(program.server, settings)
        commands.append(_command(settings, own.get("config", ""), before))
    return Translation(program.server, tuple(commands), tuple(told), tuple(refused))


def _given(words: Sequence[str], up: Parser) -> tuple[list[str], dict[str, Any]]:
    """What the parser of `up` doesn't know, and what it has read."""
    options, unknown = up.parse_known_args(spelled_out(words))
    given: dict[str, Any] = given_flags(options)
    if options.config:
        given |= _of_file(options.config, given)
    return unknown, given


def _of_file(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a settings file holds beside what is given; its name, where it can't be read."""
    try:
        found = read_file(Path(name).expanduser())
    except ValueError:
        return {"config": name}
    return {key_of(key): value for key, value in found.items() if key_of(key) not in given}


def _pairs(words: Sequence[str]) -> dict[str, str]:
    """Flags of a launcher with their values."""
    found: dict[str, str] = {}
    for word, following in zip(words, [*words, ""][1:], strict=True):
        flag, equals, value = word.partition("=")
        if flag.startswith("--"):
            found[key_of(flag)] = value if equals else following
    return found


def _add_model_of(given: dict[str, Any], program: str) -> None:
    """start_server takes HUB/NAME[-MTP][-2nodes]/TYPE, of a model that was exported so."""
    if program.startswith("start_server") and (found := str(given.get("model", ""))).count("/") == 2:
        model, _, kind = found.rpartition("/")
        given["model"] = re.sub(r"(-MTP|-\d+nodes)+$", "", model)
        given["quant_type"] = kind.replace("-", "_")


def _add_environment(
    given: dict[str, Any], launcher: dict[str, str], environment: Mapping[str, str]
) -> Iterator[str]:
    """What variables of the server mean, as flags, which go before them. Yields what is told."""
    for name, variable in VARIABLES.items():
        value = environment.get(name, "")
        if not value:
            continue
        if variable.flag == "--ips":
            launcher.setdefault("ips", value)
        elif variable.flag:
            given.setdefault(variable.flag if variable.flag in FLAGS else key_of(variable.flag), value)
        else:
            yield f"{name}: {variable.note}"


def _adapt(given: dict[str, Any], server: str) -> Iterator[str]:
    """Names that mean something else there."""
    if server == "FastDeploy" and "workers" in given:
        given["streamers"] = given.pop("workers")
        yield "--workers: processes for HTTP, here --streamers"
    for name in ("splitwise_role", "disaggregation_mode", "role"):
        if str(given.get(name)).lower() in ("prefill", "decode"):
            del given[name]
            given |= {"prefill_workers": "1", "decode_workers": "1"}
            yield f"{flag_name(name)}: {_ONE_FOR_BOTH}"


def _add_ranks(given: dict[str, Any], launcher: Mapping[str, str], machines: Sequence[str]) -> None:
    """A process for each GPU of each machine."""
    gpus = launcher.get("gpus") or launcher.get("devices") or ""
    if gpus:
        given.setdefault("tensor_parallel_size", str(len(gpus.split(",")) * max(1, len(machines))))
    if len(machines) > 1:
        given |= {"nnodes": str(len(machines)), "keys_dir": _KEYS_DIR}
        given.setdefault("master_addr", machines[0])


def _differences(server: str, settings: Settings) -> list[str]:
    """Of names that are the same, and mean something else."""
    row, is_given, told = _DIFFERENT.get(server, ("", False, ""))
    return [told] if row and (settings.origin(row) != "default") == is_given else []


def _read(given: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    """The settings, and what was left out for them. Raises ValueError where leaving out doesn't help."""
    given = {name: value for name, value in given.items() if name != "config"}
    refused: list[str] = []
    while True:
        try:
            return load_settings(given), refused
        except SettingsError as error:
            left = dict(given)
            for problem in error.problems:
                _leave_out(left, problem)
                refused.append(problem.removeprefix("flag "))
            if left == given:
                raise
            given = left


def _leave_out(given: dict[str, Any], problem: str) -> None:
    """What the problem is about: a flag, or a key of the JSON of one."""
    found = re.match(r"flag (--[\w-]+)(?:, (\w+))?: ", problem)
    name = next((name for name in given if found and key_of(name) == key_of(found[1])), None)
    if found is None or name is None:
        return
    config = given[name]
    if found[2]:
        with contextlib.suppress(ValueError):
            config = json.loads(config)
            config.pop(found[2], None)
            given[name] = json.dumps(config)
            return
    del given[name]


def _command(settings: Settings, file: str, environment: Mapping[str, str]) -> str:
    words = ["specmesh", "up", *(["--config", file] if file else [])]
    for name, value in settings:
        is_default = value == getattr(_DEFAULTS, name) and (name != "node_rank" or settings.nnodes == 1)
        # The rows that the JSON names are there themselves.
        if is_default or name == "speculative_config":
            continue
        flag = flag_name(name)
        if isinstance(value, bool):
            words.append(flag if value else "--no-" + flag[2:])
        else:
            words += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in environment.items()), shlex.join(words)])


# Telling ------------------------------------------------------------------------------------------------------


def _shown(translation: Translation) -> str:
    parts = [f"{translation.server}'s command is here:"]
    for number, command in enumerate(translation.commands):
        parts += [f"on machine {number}:"] if len(translation.commands) > 1 else []
        # Not wrapped: it is to be copied.
        parts.append(f"    {command}")
    parts += _list("what is different, or has no effect:", translation.told)
    parts += _list("left out:", translation.refused)
    return "\n".join(parts)


def _list(title: str, lines: Iterable[str]) -> list[str]:
    # The flags of one kind are told with one reason.
    alike: dict[str, list[str]] = {}
    for line in lines:
        name, colon, reason = line.partition(": ")
        alike.setdefault(reason if colon else "", []).append(name)
    told = [
        textwrap.fill(
            ", ".join(names) + (f": {reason}" if reason else ""),
            WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False, break_long_words=False,
        )
        for reason, names in alike.items()
    ]  # fmt: skip
    return [title, *told] if told else []


def _as_json(translation: Translation) -> dict[str, Any]:
    return {
        "server": translation.server, "commands": translation.commands, "told": translation.told,
        "refused": translation.refused,
    }  # fmt: skip

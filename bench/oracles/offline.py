"""Many prompts at once: tokens a second of `LLM.generate`, of the same requests over HTTP with as many streams, and of
vLLM's `LLM.generate`.

    python -m bench offline --vllm PYTHON        an interpreter that has vllm; without it that side is left out

The sides take turns. A turn has prompts of its own, beginnings of texts that this machine has, so nobody has computed
them before; ours and HTTP ask one mesh, each with a `cache_salt` of its own. Answers are greedy and of one length.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from tokenizers import Tokenizer

from bench import kinds, turns
from bench.oracles.other_python import environment
from bench.running_mesh import ROOT, running_mesh
from bench.shown import Shown
from models.sources import ensure_model
from services.api.settings import Settings, cache_dir
from specmesh.llm import IN_FLIGHT, LLM
from specmesh.sampling_params import SamplingParams

HELP = "many prompts at once: LLM.generate, the same over HTTP, vLLM's LLM.generate (--vllm PYTHON)"
OURS, HTTP, VLLM = "LLM.generate", "HTTP", "vLLM"
# Of our tokens a second to those of the other side.
BARS = {HTTP: 0.97, VLLM: 2.0}
SHORTEST, LONGEST = 16, 64  # tokens of a prompt
SHOWN = (
    Shown("Many prompts at once", "tokens_per_second>*",
          {"": "tokens/s", "/ratio>*>ratio&/ratio>*>low&/ratio>*>high": "ours of it (95 %)",
           "/client_ms>*": "CPU of the client, ms a request"},
          "The same prompts, in turns.", by=("model", "dtype")),
)  # fmt: skip


class Turn(NamedTuple):
    """`client`: CPU seconds of the program that asked; 0: not known."""

    tokens: int
    seconds: float
    client: float = 0.0


# A turn of a side with these prompts; the number is the turn's.
Side = Callable[[Sequence[str], int], Turn]


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2-135m-instruct", help="name, folder, GGUF file or hub id")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--prompts", type=int, default=256, help="of a turn")
    parser.add_argument("--tokens", type=int, default=32, help="of an answer")
    parser.add_argument("--turns", type=int, default=8, help="of every side: an even number, 4 or more")
    parser.add_argument("--pause", type=float, default=turns.PAUSE, help="seconds before a side's turn")
    parser.add_argument("--vllm", default="", metavar="PYTHON", help="an interpreter that has vllm")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    if options.turns % 2 or options.turns < 4:
        raise SystemExit("--turns: an even number, 4 or more")
    figures: dict[str, Any] = {name: getattr(options, name) for name in ("model", "dtype", "prompts", "tokens")}
    folder = ensure_model(options.model, cache_dir(Settings.for_tests()))
    texts = prompts(folder)
    settings = {"model": options.model, "dtype": options.dtype, "served_model_name": "measured"}
    with ExitStack() as stack:
        mesh = stack.enter_context(running_mesh(**settings))
        llm = stack.enter_context(LLM(url=mesh.url))
        sides: dict[str, Side] = {
            OURS: _ours(llm, options.tokens),
            HTTP: stack.enter_context(_http(mesh.url, options.tokens)),
        }
        if options.vllm and Path(options.vllm).exists():
            version, sides[VLLM] = stack.enter_context(_vllm(options.vllm, folder, options))
            figures["vllm"] = version
        else:
            figures["left_out"] = [f"{VLLM}: --vllm names an interpreter that has it"]
        return figures | compared(in_turns(sides, texts, options))


def prompts(folder: Path) -> Iterator[str]:
    """As many as the machine has texts for, of all kinds in turn; no two begin alike."""
    own = Tokenizer.from_file(str(folder / "tokenizer.json"))
    left = [kinds.texts(kind) for kind in kinds.KINDS]
    seen: set[str] = set()
    while left:
        for kind in list(left):
            if (text := next(kind, None)) is None:
                left.remove(kind)
                continue
            for number, at in enumerate(range(0, len(text) - LONGEST, LONGEST)):
                found = own.decode(list(text[at : at + SHORTEST + number % (LONGEST - SHORTEST)])).strip()
                if found and found[:40] not in seen:
                    seen.add(found[:40])
                    yield found


def in_turns(sides: dict[str, Side], texts: Iterator[str], options: argparse.Namespace) -> dict[str, list[Turn]]:
    found: dict[str, list[Turn]] = {name: [] for name in sides}
    names = list(sides)
    for turn in range(options.turns + 1):
        asked = list(islice(texts, options.prompts))
        if len(asked) < options.prompts:
            raise SystemExit(f"this machine's texts are enough for {turn} turns: ask for fewer --prompts or --turns")
        # Whoever is first now is last in the next turn.
        for name in names if turn % 2 else reversed(names):
            time.sleep(options.pause)
            one = sides[name](asked, turn)
            # The first warms up.
            found[name] += [one] * (turn > 0)
            print(f"turn {turn} of {options.turns}: {name} {one.tokens / one.seconds:.0f} tokens/s", flush=True)
    return found


def compared(found: dict[str, list[Turn]]) -> dict[str, Any]:
    rates = {name: [one.tokens / one.seconds for one in seen] for name, seen in found.items()}
    ratios = {name: ratio(rates[OURS], seen) for name, seen in rates.items() if name != OURS}
    clients = {name: sum(one.client for one in seen) / len(seen) for name, seen in found.items()}
    tokens = {name: sum(one.tokens for one in seen) for name, seen in found.items()}
    missed = [each for name, ratio in ratios.items() for each in turns.missed(f"{OURS} of {name}", ratio, BARS[name])]
    if len(set(tokens.values())) > 1:
        missed.append(f"the sides answered with different numbers of tokens: {tokens}")
    return {
        "tokens_per_second": {name: round(statistics.median(seen), 1) for name, seen in rates.items()},
        "ratio": {
            name: {"ratio": round(one.mean, 3), "low": round(one.low, 3), "high": round(one.high, 3)}
            for name, one in ratios.items()
        },
        "client_ms": {name: round(1e3 * seconds, 2) for name, seconds in clients.items() if seconds},
        "missed": missed,
    }


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> turns.Ratio:
    """Whoever is first in a turn may be faster: one ratio for two turns, in which each was first once."""
    each = [one / other for one, other in zip(ours, theirs, strict=True)]
    return turns.of_pairs([math.sqrt(one * next_one) for one, next_one in zip(each[::2], each[1::2], strict=True)])


def _params(tokens: int, salt: str) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, more={"cache_salt": salt})


def _ours(llm: LLM, tokens: int) -> Side:
    def turn(asked: Sequence[str], number: int) -> Turn:
        began, worked = time.perf_counter(), time.process_time()
        outputs = llm.generate(asked, _params(tokens, f"ours {number}"), use_tqdm=False)
        seconds, client = time.perf_counter() - began, time.process_time() - worked
        return Turn(sum(len(each.outputs[0].token_ids) for each in outputs), seconds, client / len(asked))

    return turn


@contextmanager
def _http(url: str, tokens: int) -> Iterator[Side]:
    """A client of its own, with as many connections, which it keeps as an LLM does."""

    async def opened() -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def answered(asked: Sequence[str], fields: dict[str, Any]) -> int:
        left, total = iter(asked), 0

        async def stream() -> None:
            nonlocal total
            for prompt in left:
                body = {"model": "measured", "prompt": prompt, **fields}
                async with session.post(f"{url}/v1/completions", json=body, raise_for_status=True) as answer:
                    total += (await answer.json())["usage"]["completion_tokens"]

        await asyncio.gather(*(stream() for _ in range(min(IN_FLIGHT, len(asked)))))
        return total

    def turn(asked: Sequence[str], number: int) -> Turn:
        fields = _params(tokens, f"http {number}").body(chat=False)
        began, worked = time.perf_counter(), time.process_time()
        total = runner.run(answered(asked, fields))
        return Turn(total, time.perf_counter() - began, (time.process_time() - worked) / len(asked))

    with asyncio.Runner() as runner:
        session = runner.run(opened())
        try:
            yield turn
        finally:
            runner.run(session.close())


@contextmanager
def _vllm(python: str, folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Side]]:
    """Its version, and its side."""
    command = [python, "-m", "bench.oracles.vllm_generate", str(folder), options.dtype]
    with tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment(python), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            text=True,
        )  # fmt: skip
        assert child.stdin is not None and child.stdout is not None
        requests, answers = child.stdin, child.stdout

        def told() -> dict[str, Any]:
            if line := answers.readline():
                return dict(json.loads(line))
            log.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{log.read()[-2000:]}")

        def turn(asked: Sequence[str], number: int) -> Turn:
            print(json.dumps({"prompts": list(asked), "tokens": options.tokens}), file=requests, flush=True)
            return Turn(**told())

        try:
            yield str(told()["version"]), turn
        finally:
            requests.close()
            child.wait()

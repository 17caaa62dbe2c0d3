"""Generates the tables of docs/ from the code: settings, commands, messages, metrics.

Pages are written by hand, except between `<!-- made: NAME -->` and `<!-- end -->`, which this script fills in.
`--check` changes nothing and exits with 1 if a page is out of date.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from prometheus_client import CollectorRegistry  # noqa: E402

from services.api.settings import SETTINGS, Setting  # noqa: E402
from services.api.strategies import Strategy  # noqa: E402

DOCS = ROOT / "docs"
BLOCK = re.compile(r"(<!-- made: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description="Makes the tables of docs/ from the code.")
    parser.add_argument("--check", action="store_true", help="only tell which pages are stale")
    options = parser.parse_args()
    stale = [page for page in pages() if (text := page.read_text()) != remade(text)]
    if options.check:
        for page in stale:
            print(f"{page.relative_to(ROOT)} is behind the code: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for page in stale:
        page.write_text(remade(page.read_text()))
        print(f"wrote {page.relative_to(ROOT)}")
    return 0


def pages() -> list[Path]:
    return [page for page in sorted(DOCS.rglob("*.md")) if BLOCK.search(page.read_text())]


def remade(text: str) -> str:
    return BLOCK.sub(lambda found: found[1] + "\n" + BLOCKS[found[2]]() + "\n" + found[4], text)


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |")
    return "\n".join(lines) + "\n"


# Settings -------------------------------------------------------------------------------------------------


def settings() -> str:
    roles: dict[str, list[Setting]] = {}
    for row in SETTINGS:
        roles.setdefault(row.roles, []).append(row)
    parts = []
    for role, rows in roles.items():
        parts.append(f"### {'Every process' if role == 'all' else f'`{role}`'}\n")
        parts.append(
            table(
                ("setting", "default", "accepted", "meaning"),
                ((f"`{row.name}`", _default(row), _accepted(row), row.help) for row in rows),
            )
        )
    return "\n".join(parts)


def _default(row: Setting) -> str:
    if isinstance(row.default, bool):
        return str(row.default).lower()
    return "" if row.default == "" else f"`{row.default}`"


def _accepted(row: Setting) -> str:
    """As short as in the tables of request fields; an error message says it in a sentence."""
    match row.kind:
        case "bool":
            return "boolean"
        case "json":
            return "JSON object"
        case "choice":
            return ", ".join(row.choices)
        case "int" | "float":
            noun = "integer" if row.kind == "int" else "number"
            return f"{noun} {'above ' * row.above}{row.low:.10g} to {row.high:.10g}"
    return ""


def strategies() -> str:
    from services.api.strategies import STRATEGIES

    def keeps(row: Strategy) -> str:
        return "the text" if row.exact else "its distribution" if row.lossless else "neither"

    return table(
        ("strategy", "rule", "keeps"), ((f"`{row.name}`", row.help, keeps(row)) for row in STRATEGIES.values())
    )


def cards() -> str:
    from deploy.cards import CARDS, rows

    return table(("model", "weights, GB", *CARDS), rows())


# Commands -------------------------------------------------------------------------------------------------


def commands() -> str:
    return table(("command", "does"), ((f"`specmesh {name}`", help) for name, help in subcommands()))


def subcommands() -> Iterator[tuple[str, str]]:
    from services.cli.main import parser

    (action,) = [each for each in parser()._actions if isinstance(each, argparse._SubParsersAction)]
    for choice in action._choices_actions:
        sub = action.choices[choice.dest]
        words = [each.metavar for each in sub._actions if not each.option_strings and isinstance(each.metavar, str)]
        yield " ".join([choice.dest, *words]), str(choice.help)
        for each in sub._actions:
            if each.dest == "action" and isinstance(each.help, str):
                for told in re.split(rf"; (?=(?:{'|'.join(each.choices or ())}): )", each.help):
                    name, _, meaning = told.partition(": ")
                    yield f"{choice.dest} {name}", meaning


# Messages -------------------------------------------------------------------------------------------------


def messages() -> str:
    from services.api import messages as module

    kinds = {struct.__name__: kind for kind, struct in module.KINDS.items()}
    parts = []
    for title, names in sections(inspect.getsource(module)):
        parts.append(f"### {title}\n")
        for name in names:
            struct = getattr(module, name)
            parts += [_message(part, "a map") for part in dataclasses_in(struct)]
            parts.append(_message(struct, f"`{kinds[name]}`" if name in kinds else "a part"))
    return "\n".join(parts)


def _message(struct: type, what: str) -> str:
    """With the first sentence that the code says of it."""
    first, end, _ = _doc(struct).partition(". ")
    return f"**{struct.__name__}** ({what}). {first}{end}".rstrip() + "\n"


def sections(source: str) -> list[tuple[str, list[str]]]:
    """The numbered comments of messages.py and the classes under each, in order."""
    found: list[tuple[str, list[str]]] = []
    for line in source.splitlines():
        if heading := re.match(r"# (\d+[a-z]?\. .*?) -+$", line):
            found.append((heading[1].replace("->", "→"), []))
        elif (struct := re.match(r"class (\w+)\(Message", line)) and found:
            found[-1][1].append(struct[1])
    return found


def dataclasses_in(struct: Any) -> list[type]:
    """Those that a message has as fields."""
    hints = typing.get_type_hints(struct)
    found = [each for hint in hints.values() for each in (hint, *typing.get_args(hint))]
    return [each for each in found if isinstance(each, type) and dataclasses.is_dataclass(each)]


def request_fields() -> str:
    """The fields of a request that are numbers, booleans or texts, from their rows."""
    from services.api.sampling import PARAMETERS
    from services.streamer.openai.request import OF_CHAT, OF_COMPLETION, SHARED
    from services.streamer.responses.body import OF_RESPONSE

    of_one = {"chat": OF_CHAT, "completions": OF_COMPLETION, "responses": OF_RESPONSE}
    rows = {**PARAMETERS, **SHARED}
    for route, its in of_one.items():
        rows |= {f"{name} ({route})": row for name, row in its.items()}
    return table(
        ("field", "accepted", "meaning"),
        ((f"`{row.name}`{name.removeprefix(row.name)}", row.accepted, row.help) for name, row in rows.items()),
    )


def embedding_fields() -> str:
    from services.streamer.openai.embeddings import ALSO, ROWS

    return table(
        ("field", "accepted", "meaning"),
        ((f"`{name}`", row.accepted or _one_of(row.described()), row.help) for name, row in {**ROWS, **ALSO}.items()),
    )


def _one_of(schema: dict[str, Any]) -> str:
    return f"one of {', '.join(schema['enum'])}" if "enum" in schema else str(schema["type"])


def _doc(struct: Any) -> str:
    return " ".join((struct.__dict__.get("__doc__") or "").split())


# Metrics --------------------------------------------------------------------------------------------------


class MetricRecorder(CollectorRegistry):
    """Records registered metrics in order."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def register(self, collector: Any) -> None:
        self.found.append(collector)
        super().register(collector)


def metrics() -> str:
    parts = []
    for title, build in PROCESSES.items():
        parts.append(f"### {title}\n")
        rows = ((f"`{name}`", ", ".join(f"`{label}`" for label in labels if label != "model_name"),
                 f"Histogram: {told}" if kind == "histogram" else told)
                for name, kind, labels, told in families(build))  # fmt: skip
        parts.append(table(("metric", "labels", "what it counts"), rows))
    return "\n".join(parts)


def families(build: Callable[[CollectorRegistry], object]) -> list[tuple[str, str, tuple[str, ...], str]]:
    """(name as scraped, type, labels, help) of everything `build` registers."""
    recorder = MetricRecorder()
    build(recorder)
    found = []
    for collector in recorder.found:
        if hasattr(collector, "_labelnames") and hasattr(collector, "_documentation"):
            labels = {collector._name: tuple(collector._labelnames)}
        else:
            labels = {}
        for family in getattr(collector, "describe", collector.collect)():
            name = family.name + ("_total" if family.type == "counter" else "")
            named = labels.get(family.name, tuple(getattr(family, "_labelnames", ())))
            found.append((name, family.type, named, family.documentation))
    return found


def _bus(registry: CollectorRegistry) -> None:
    from mesh.metrics import BusMetrics

    BusMetrics(registry)


def _standing(registry: CollectorRegistry) -> None:
    from services.runtime.process_metrics import ProcessMetrics

    # Its names are told without anybody being asked.
    ProcessMetrics(registry, None, None)  # type: ignore[arg-type]


def _streamer(registry: CollectorRegistry) -> None:
    from services.streamer.door.metrics import StreamerMetrics
    from services.streamer.extras.audit import Audit

    StreamerMetrics(registry, "m").watch_audit(Audit())


def _tokenizer(registry: CollectorRegistry) -> None:
    import asyncio

    from mesh.clock import SystemClock
    from services.tokenizer.metrics import TokenizerMetrics

    async def build() -> None:
        TokenizerMetrics(registry, SystemClock())

    asyncio.run(build())


def _proposer(registry: CollectorRegistry) -> None:
    from services.proposer.index import IndexStats
    from services.proposer.metrics import ProposerMetrics

    class NoTexts:
        tokens = 0

        def __len__(self) -> int:
            return 0

    class EmptyIndex:
        def stats(self) -> IndexStats:
            return IndexStats(0, 0, [])

    ProposerMetrics(registry, NoTexts(), (), EmptyIndex())


def _worker(registry: CollectorRegistry) -> None:
    from services.worker.metrics import WorkerMetrics
    from services.worker.scheduling.limits import Limits
    from services.worker.scheduling.scheduler import Scheduler
    from services.worker.speculation.controller import Controller
    from services.worker.speculation.guard import GuardedController
    from services.worker.speculation.remote.client import ProposerClient
    from services.worker.speculation.remote.proposers import Proposers

    def none() -> ProposerClient:
        raise LookupError("no proposer")

    scheduler = Scheduler(Limits(vocab_size=1, max_context=1, eos_token_ids=(), page_tokens=1, pages=1))
    controller = Controller(scheduler.limits, Proposers(none))
    WorkerMetrics(registry, "m").watch(scheduler, GuardedController(controller))


PROCESSES: dict[str, Callable[[CollectorRegistry], object]] = {
    "Every process: the bus": _bus,
    "Every process: its standing": _standing,
    "`streamer`": _streamer,
    "`tokenizer`": _tokenizer,
    "`proposer`": _proposer,
    "`worker`": _worker,
}
BLOCKS: dict[str, Callable[[], str]] = {
    "settings": settings,
    "strategies": strategies,
    "cards": cards,
    "commands": commands,
    "messages": messages,
    "embedding_fields": embedding_fields,
    "request_fields": request_fields,
    "metrics": metrics,
}


if __name__ == "__main__":
    sys.exit(main())

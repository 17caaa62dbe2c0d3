"""The metrics of all processes as one page, for /metrics on the port of the API.

    directory ─ members ─▶ ReadMetrics to each (introspection) ─▶ families, each sample labelled role and instance

Rule 1: no process is waited for longer than PATIENCE; one that didn't answer, and a role without a process, are named
        in a comment.
Rule 2: a page is at most FRESH old and is shared: many readers cost one query.
Rule 3: what a process sent is read line by line; a line that is no sample of a known family is dropped.

Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mesh.actor import Home
from mesh.clock import Clock
from mesh.directory.membership import Member
from mesh.errors import MeshError
from services.api.messages import MetricsText, ReadMetrics
from services.api.settings import ROLES
from services.runtime.introspection import INTROSPECTION
from services.streamer.extras.mesh_map import MembersView

FRESH = 0.2  # s
PATIENCE = 0.5  # s
MOST_MEMBERS = 256
OURS, VLLMS = "specmesh:", "vllm:"
# vLLM's benchmark reads these before and after a run and prints its section on speculative decoding from them. It
# takes counters without a value for a server without speculation, so those that count nothing yet are 0.
BENCHMARKED = tuple(
    f"{OURS}spec_decode_num_{name}_total"
    for name in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
)
_ABOUT = re.compile(r"# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.*)")
_LABELS = r'(?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\.)*",?)*'
_SAMPLE = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{({_LABELS})\}})? ([0-9eE+.-]+|[+-]?Inf|NaN)")


@dataclass(slots=True)
class Family:
    """Samples of one name, of all processes. `about`: its HELP and TYPE."""

    about: dict[str, str] = field(default_factory=dict)
    samples: list[str] = field(default_factory=list)


class AllMetrics:
    """One in a process. `own`: the metrics of this one, which needn't ask itself."""

    def __init__(
        self,
        directory: MembersView,
        node: Home,
        own: Callable[[], bytes],
        *,
        instance: str,
        clock: Clock,
        vllm_metric_names: bool = False,
    ) -> None:
        self._directory = directory
        self._node = node
        self._own = own
        self._instance = instance
        self._clock = clock
        self._vllm_metric_names = vllm_metric_names
        self._page = b""
        self._made_at = -FRESH
        self._making: asyncio.Task[bytes] | None = None

    async def page(self) -> bytes:
        if self._clock.now() - self._made_at < FRESH:
            return self._page
        if self._making is None:
            self._making = asyncio.create_task(self._make(), name="all-metrics")
            self._making.add_done_callback(self._made)
        # A reader that disconnects doesn't cancel the query for the others.
        return await asyncio.shield(self._making)

    def close(self) -> None:
        if self._making is not None:
            self._making.cancel()

    def _made(self, task: asyncio.Task[bytes]) -> None:
        self._making = None

    async def _make(self) -> bytes:
        members = self._directory.members()[:MOST_MEMBERS]
        texts = await self._texts([each for each in members if each.instance != self._instance])
        families: dict[str, Family] = {}
        add(families, self._own().decode(), "streamer", self._instance)
        missing = [f"no {role} is known" for role in ROLES[1:] if role not in {each.role for each in members}]
        for member, text in texts:
            if text is None:
                missing.append(f"{member.instance!a} ({member.role!a}) gave no metrics in {PATIENCE:g} s")
            else:
                add(families, text, member.role, member.instance)
        # Making and reading large pages takes some ms each: others get their turn in between.
        await asyncio.sleep(0)
        lines = [*(f"# {each}" for each in missing), *written(families, self._vllm_metric_names), ""]
        self._page, self._made_at = "\n".join(lines).encode(), self._clock.now()
        return self._page

    async def _texts(self, members: list[Member]) -> list[tuple[Member, str | None]]:
        return list(zip(members, await asyncio.gather(*map(self._text, members)), strict=True))

    async def _text(self, member: Member) -> str | None:
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await self._node.ref(member.endpoint, INTROSPECTION).ask(ReadMetrics(), timeout=PATIENCE)
        except (MeshError, TimeoutError):
            return None
        return answer.text.decode(errors="replace") if isinstance(answer, MetricsText) else None


def add(families: dict[str, Family], text: str, role: str, instance: str) -> None:
    """The samples of one process."""
    own = f"role={_quoted(role)},instance={_quoted(instance)}"
    family = ""
    for line in text.split("\n"):
        if (about := _ABOUT.fullmatch(line)) is not None:
            family = about[2]
            families.setdefault(family, Family()).about.setdefault(about[1], about[3])
        elif (sample := _SAMPLE.fullmatch(line)) is not None and family and sample[1].startswith(family):
            labels = f"{own},{sample[2]}" if sample[2] else own
            families[family].samples.append(f"{sample[1]}{{{labels}}} {sample[3]}")


def written(families: dict[str, Family], all_as_vllm: bool) -> Iterator[str]:
    for name, family in families.items():
        yield from _family(name, family)
    for name in families if all_as_vllm else BENCHMARKED:
        if not name.startswith(OURS):
            continue
        theirs = VLLMS + name.removeprefix(OURS)
        family = families.get(name, Family({"HELP": "No worker has reported this metric yet", "TYPE": "counter"}))
        renamed = [VLLMS + sample.removeprefix(OURS) for sample in family.samples]
        if not renamed and name in BENCHMARKED and not name.endswith("_per_pos_total"):
            renamed = [f"{theirs} 0.0"]
        yield from _family(theirs, Family(family.about, renamed))


def _family(name: str, family: Family) -> Iterator[str]:
    if family.samples:
        yield from (f"# {what} {name} {text}" for what, text in family.about.items())
        yield from family.samples


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'

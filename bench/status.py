"""What has run where: one table, made from the rows of bench/results and from the marks of tests.

A test file that shows something says so with `pytestmark = pytest.mark.shows("one of THINGS", "a level")`. What neither
a row nor a mark shows has never run. Pages quote the table with `<!-- rows: status -->` (bench/results_in_pages.py).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from bench.rows import ROOT, Row
from bench.shown import table, wrapped

# The strongest first.
LEVELS = {
    "served": "a server answered over HTTP with real weights",
    "measured": "measured in process, with random weights",
    "tested": "run in tests with the real part, with tiny random weights or on one machine only",
    "interpreted": "the GPU kernels ran in Triton's interpreter, on a CPU",
    "compiled": "the GPU kernels were compiled for it, and never started",
    "never run": "nobody has tried it",
}
NEVER = "never run"
MARK = "shows"


class Evidence(NamedTuple):
    level: str
    # A path of a test, or what a row was measured with.
    test: str = ""
    row: str = ""


class Thing(NamedTuple):
    """`rows`: benchmarks whose rows show it, each with a level, and which of their rows do."""

    name: str
    rows: tuple[tuple[str, str], ...] = ()
    which: Callable[[Row], bool] = lambda row: True


def _cpu(*flags: str) -> Callable[[Row], bool]:
    """Rows of a machine whose processor has just these of the features that choose the loops."""
    named = {"avx512_bf16", "amx_tile"}
    return lambda row: not row["hardware"].get("gpu") and named & set(row["hardware"]["flags"]) == set(flags)


def _gpu(name: str) -> Callable[[Row], bool]:
    """Rows of real runs that came to their end."""
    void = ("dry_run", "ended_early")
    return lambda row: (
        row["hardware"].get("gpu") == f"NVIDIA {name}" and not any(row["figures"].get(each) for each in void)
    )


SERVED = tuple((name, "served") for name in ("never_slower", "speculation", "acceptance"))
THINGS = (
    Thing("CPU with AMX", rows=(*SERVED, ("with_amx", "served")), which=_cpu("avx512_bf16", "amx_tile")),
    Thing("CPU with AVX-512 and bf16", rows=SERVED, which=_cpu("avx512_bf16")),
    Thing("CPU with AVX2 only", rows=SERVED, which=_cpu()),
    Thing("CPU that isn't x86-64"),
    Thing("one NVIDIA H200, SmolLM2 135M", (("gpu_http", "served"),), _gpu("H200")),
    Thing("one NVIDIA H100, SmolLM2 135M", (("gpu_http", "served"),), _gpu("H100 80GB HBM3")),
    Thing("one NVIDIA H200, the shape of Llama 3.1 8B", (("gpu_decode", "measured"),), _gpu("H200")),
    Thing("one NVIDIA H200, a layer in fp8, int8, int4, with experts", (("gpu_layers", "measured"),), _gpu("H200")),
    Thing("other NVIDIA GPUs: sm_80 (A100), sm_100 (B200)"),
    Thing("a model over several GPUs (NCCL)"),
    Thing("quantised models on a GPU (fp8, int4, GPTQ, AWQ)"),
    Thing("compose.gpu.yaml on a machine with a GPU"),
    Thing("SmolLM2 135M Instruct with the heads that come with it", rows=SERVED),
    Thing("Llama, Qwen (hybrids, too), Mistral, DeepSeek, Kimi, GLM, ERNIE, Gemma, gpt-oss families"),
    Thing("hybrid models (Qwen3-Next, Qwen3.5) on a GPU"),
    Thing("published heads of other models"),
    Thing("a worker split over processes of one machine"),
    Thing("prefill and decode workers", rows=(("split", "served"),)),
    Thing("pages over NIXL"),
    Thing("a Ray cluster of three nodes on one machine", rows=(("on_ray", "tested"),)),
    Thing("drafts under vLLM 0.32, on a CPU", rows=(("vllm_drafter", "served"),)),
    Thing("several real machines"),
    Thing("docker compose on CPUs"),
    Thing("Kubernetes"),
)


def status(rows: Mapping[str, list[Row]], tests: Path = ROOT / "tests") -> str:
    """The whole table, with links to the tests from the repository's root."""
    found = evidence(rows, tests)
    lines = [[thing.name, f"**{each.level}**", _shown_by(each)] for thing in THINGS for each in [found[thing.name]]]
    meaning = "; ".join(f"*{level}*: {said}" for level, said in LEVELS.items())
    return f"{wrapped(f'State is the best of these. {meaning}.')}\n\n{table(['', 'state', 'shown by'], lines)}"


def evidence(rows: Mapping[str, list[Row]], tests: Path) -> dict[str, Evidence]:
    """The strongest of each thing."""
    seen: dict[str, list[Evidence]] = {thing.name: [Evidence(NEVER)] for thing in THINGS}
    for thing in THINGS:
        for name, level in thing.rows:
            shown = [row for row in rows.get(name, []) if thing.which(row)]
            seen[thing.name] += [Evidence(level, row=_of_row(name, shown[-1]))] if shown else []
    for thing_name, level, path in marks(tests):
        seen[thing_name].append(Evidence(level, test=path))
    order = list(LEVELS)
    return {name: min(each, key=lambda one: order.index(one.level)) for name, each in seen.items()}


def marks(tests: Path) -> Iterator[tuple[str, str, str]]:
    """(thing, level, path from the repository's root) of every mark in a test file. ValueError: an unknown one."""
    for path in sorted(tests.rglob("*.py")):
        text = path.read_text()
        if f"mark.{MARK}(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == MARK:
                words = [ast.literal_eval(each) for each in node.args]
                place = path.relative_to(tests.parent).as_posix()
                if len(words) != 2 or words[0] not in {thing.name for thing in THINGS} or words[1] not in LEVELS:
                    raise ValueError(f"{place}: mark {MARK}{tuple(words)}: no such thing or level in bench/status.py")
                yield words[0], words[1], place


def _of_row(name: str, row: Row) -> str:
    return f"`python -m bench {name}`, {row['date'][:10]}, `{row['commit'][:7]}`"


def _shown_by(found: Evidence) -> str:
    return f"[{found.test}]({found.test})" if found.test else found.row

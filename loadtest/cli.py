"""`specmesh load`: flags to a plan, a run, a report and an exit code. Everything else is elsewhere."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import platform
import sys
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loadtest.arrivals import Arrivals
from loadtest.client import Origin, ServerUnusable
from loadtest.measure import Figures
from loadtest.outcome import Outcome
from loadtest.report import table, verdict
from loadtest.run import CHAT, COMPLETIONS, Ask, Plan, run
from loadtest.workloads import GENERATORS, BadWorkload, workload

OK, TOO_MANY_ERRORS, BAD_USAGE, NO_SERVER = 0, 1, 2, 3


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    try:
        plan = plan_of(options)
    except (BadWorkload, ValueError) as problem:
        print(f"specmesh load: {problem}", file=sys.stderr)
        return BAD_USAGE
    # Collections in the middle of a stream would show as latency; outcomes hold no cycles worth looking for.
    gc.set_threshold(100_000, 50, 50)
    try:
        figures = run_loop(run(plan, None if options.quiet or not sys.stderr.isatty() else _progress))
    except ServerUnusable as problem:
        print(f"specmesh load: {plan.url}: {problem}", file=sys.stderr)
        return NO_SERVER
    except KeyboardInterrupt:
        return 130
    figures = {"verdict": verdict(figures, plan.arrivals), **_circumstances(options), **figures}
    if options.json:
        _write_json(options.json, figures)
    if not options.quiet:
        print(table(figures))
        print()
    print(figures["verdict"])
    return OK if within(figures, options.max_error_rate) else TOO_MANY_ERRORS


def within(figures: Figures, max_error_rate: float) -> bool:
    return bool(figures["requests"]["sent"]) and figures["requests"]["error_rate"] <= max_error_rate


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specmesh load",
        description="Load an OpenAI-compatible server and measure it.",
        formatter_class=_Defaults,
    )
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000", help="the server")
    _what_is_asked(parser.add_argument_group("what is asked").add_argument)
    _when(parser.add_argument_group("when (a closed loop unless --rate is given)").add_argument)
    _access_and_report(parser.add_argument_group("access and report").add_argument)
    return parser


class _Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults that say something: numbers and words, not empty ones."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default else action.help


def _what_is_asked(flag: Callable[..., object]) -> None:
    names = ", ".join(GENERATORS)
    flag("--workload", default="chat", metavar="NAME|FILE", help=f"{names}, or a .jsonl file")
    flag("--prompt", default="", help="ask this every time instead of a workload")
    flag("--endpoint", choices=("chat", "completions"), default="chat", help="which API")
    flag("--model", default="", help="model name; empty: the first of /v1/models")
    flag("--max-tokens", type=_at_least(1), default=128, metavar="N", help="tokens of an answer at most")
    flag("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy")
    flag("--seed", type=int, default=0, help="of prompts, arrivals, disconnects and sampling")
    flag("--ignore-eos", action="store_true", help="go on to --max-tokens")
    flag("--speculation", type=_json_object, metavar="JSON", help='sent along, e.g. \'{"method":"naive"}\'')
    flag("--extra-body", type=_json_object, default={}, metavar="JSON", help="more fields of the body")


def _when(flag: Callable[..., object]) -> None:
    flag("--concurrency", type=_at_least(1), default=1, metavar="N", help="callers of the closed loop")
    flag("--rate", type=float, default=0.0, metavar="R", help="open loop: requests a second")
    flag("--arrivals", choices=("poisson", "constant"), default="poisson", help="of the open loop")
    flag("--requests", type=_at_least(0), default=0, metavar="N", help="stop after N; 0: no limit")
    flag("--duration", type=float, default=0.0, metavar="S", help="start none after S seconds; 0: no limit")
    flag("--warmup", type=_at_least(0), default=0, metavar="N", help="requests before, not measured")
    flag("--disconnect", type=float, default=0.0, metavar="P", help="share abandoned after a random chunk")
    flag("--timeout", type=float, default=600.0, metavar="S", help="seconds a request may take")


def _access_and_report(flag: Callable[..., object]) -> None:
    flag("--api-key", default="", help="sent as Bearer")
    flag(
        "--metrics-url",
        action="append",
        default=[],
        metavar="URL",
        help="Prometheus page to read; repeatable",
    )
    flag("--json", type=Path, metavar="FILE", help="write all figures; - for the terminal")
    flag("--quiet", action="store_true", help="print the verdict only")
    flag("--max-error-rate", type=float, default=0.0, metavar="X", help="exit 1 above this share of failures")


def plan_of(options: argparse.Namespace) -> Plan:
    if not 0 <= options.disconnect <= 1:
        raise ValueError("--disconnect is a share between 0 and 1")
    if options.rate < 0 or options.duration < 0 or options.timeout <= 0:
        raise ValueError("--rate, --duration and --timeout cannot be negative")
    Origin.of(options.url)
    if not options.requests and not options.duration:
        options.requests = max(16, 4 * options.concurrency)
    ask = Ask(
        path=CHAT if options.endpoint == "chat" else COMPLETIONS,
        model=options.model,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        seed=options.seed,
        ignore_eos=options.ignore_eos,
        speculation=options.speculation,
        extra=options.extra_body,
    )
    arrivals = Arrivals(
        concurrency=options.concurrency,
        rate=options.rate,
        process=options.arrivals,
        requests=options.requests,
        duration=options.duration,
        seed=options.seed,
    )
    return Plan(
        url=options.url,
        ask=ask,
        workload=workload(options.workload, options.seed, options.prompt),
        arrivals=arrivals,
        api_key=options.api_key,
        timeout=options.timeout,
        warmup=options.warmup,
        disconnect=options.disconnect,
        metrics_urls=tuple(options.metrics_url),
    )


def run_loop(work: Coroutine[Any, Any, Figures]) -> Figures:
    """On uvloop where it is installed: half the cost of a read."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def _progress(outcomes: list[Outcome], seconds: float) -> None:
    failed = sum(1 for outcome in outcomes if outcome.error)
    tokens = sum(outcome.completion_tokens or outcome.chunks for outcome in outcomes)
    line = f"{seconds:6.0f} s  {len(outcomes)} ended, {failed} failed, {tokens / seconds:,.0f} tokens/s"
    print(f"\r{line} ", end="", file=sys.stderr, flush=True)


def _circumstances(options: argparse.Namespace) -> Figures:
    shown = {name: value for name, value in vars(options).items() if name not in ("api_key", "json")}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "options": shown,
    }


def _write_json(path: Path, figures: Figures) -> None:
    text = json.dumps(figures, indent=2, default=str) + "\n"
    if str(path) == "-":
        sys.stdout.write(text)
    else:
        path.write_text(text)


def _at_least(low: int) -> Any:
    def whole_number(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}")
        return value

    return whole_number


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as problem:
        raise argparse.ArgumentTypeError(f"not JSON: {problem}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value

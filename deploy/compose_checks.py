"""Checks a mesh started by compose: a streamed answer, accepted drafts, every scrape target up, data in every panel.
Also checks that an alert fires, or ends, while requests are answered.

Standard library only: it knows the published ports and the files of deploy/, nothing of the code.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROLES = {"streamer", "tokenizer", "proposer", "worker"}
ACCEPTED = "specmesh:spec_decode_num_accepted_tokens_total"
# Even a small model continues counting, and n-gram drafts match it.
PROMPT = "one two three four one two three four one two three four one two"
# The default method more often, because some metrics count it only.
METHODS = ("auto", "naive", "auto", "ngram", "auto", "suffix", "prediction", "hybrid")


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks a mesh started by compose.")
    parser.add_argument("--door", help="URL of the published HTTP door")
    parser.add_argument("--prometheus", help="URL of the published Prometheus")
    parser.add_argument("--model-wheel", action="store_true", help="print the default model's requirement and end")
    parser.add_argument("--fires", metavar="ALERT", help="only: under load, wait until it fires")
    parser.add_argument("--ends", metavar="ALERT", help="only: under load, wait until it doesn't")
    options = parser.parse_args()
    if options.model_wheel:
        print(model_requirement())
        return 0
    if alert := options.fires or options.ends:
        with load(options.door) as failed:
            wait_for_alert(options.prometheus, alert, fires=bool(options.fires))
        assert not failed, failed
        return 0
    stream_a_completion(options.door)
    wait_for_targets(options.prometheus)
    wait_for_value(options.prometheus, f"sum({ACCEPTED})")
    with load(options.door) as failed:
        check_dashboards(options.prometheus)
    assert not failed, failed
    return 0


def model_requirement() -> str:
    source = (HERE.parent / "models" / "sources.py").read_text()
    found = re.search(r'requirement="([^"]+)"', source)
    assert found, "models/sources.py names no wheel"
    return found[1]


def stream_a_completion(door: str) -> None:
    model = get(f"{door}/v1/models")["data"][0]["id"]
    body = {
        "model": model, "prompt": PROMPT, "max_tokens": 64, "temperature": 0, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    request = urllib.request.Request(
        f"{door}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    started = time.monotonic()
    lines = [line.decode().strip() for line in urllib.request.urlopen(request, timeout=120)]
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events[-3:]
    chunks = [json.loads(event) for event in events[:-1]]
    text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    usage = next(chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage"))
    assert usage["completion_tokens"] == 64, usage
    assert text.strip(), "an empty answer"
    print(f"   {model}: {len(chunks)} chunks, 64 tokens in {time.monotonic() - started:.1f} s: {text[:60]!r}")


def wait_for_targets(prometheus: str) -> None:
    def up() -> set[str]:
        targets = get(f"{prometheus}/api/v1/targets")["data"]["activeTargets"]
        return {target["labels"].get("role", "") for target in targets if target["health"] == "up"}

    wait("every target up", lambda: up() >= ROLES, lambda: f"up: {sorted(up())}")
    print(f"   Prometheus scrapes {sorted(ROLES)}")


def wait_for_value(prometheus: str, expression: str) -> None:
    value = 0.0

    def positive() -> bool:
        nonlocal value
        found = query(prometheus, expression)
        value = float(found[0]["value"][1]) if found else 0.0
        return value > 0

    wait(expression, positive, lambda: f"{expression} is {value}")
    print(f"   {expression} = {value:.0f}")


def wait_for_alert(prometheus: str, name: str, *, fires: bool) -> None:
    def firing() -> dict[str, str]:
        """Firing alerts and their summaries."""
        fired = [each for each in get(f"{prometheus}/api/v1/alerts")["data"]["alerts"] if each["state"] == "firing"]
        return {each["labels"]["alertname"]: each["annotations"]["summary"] for each in fired}

    what = f"{name} {'fires' if fires else 'is over'}"
    wait(what, lambda: (name in firing()) == fires, firing, 180)
    print(f"   {what}{': ' + firing().get(name, '') if fires else ''}; every request meanwhile was answered")


def check_dashboards(prometheus: str) -> None:
    """Every expression is valid, and gives data unless the panel's description says "may be empty"."""
    asked = dashboard_expressions()
    assert asked, "no dashboard"
    empty = {where: expression for where, expression, may_be_empty in asked if not may_be_empty}

    def all_answer() -> bool:
        for where, expression in list(empty.items()):
            if any(each["value"][1] != "NaN" for each in query(prometheus, expression)):
                del empty[where]
        return not empty

    wait("panels with data", all_answer, lambda: "\n".join(f"{where}: {what}" for where, what in empty.items()), 90)
    for _, expression, _ in asked:
        query(prometheus, expression)
    print(f"   {len(asked)} dashboard expressions answered")


@contextmanager
def load(door: str, at_once: int = 3) -> Iterator[list[str]]:
    """Repeats concurrent completions with every method; failures are added to the list."""
    model = get(f"{door}/v1/models")["data"][0]["id"]
    failed: list[str] = []
    over = threading.Event()

    def ask() -> None:
        for turn, method in enumerate(itertools.cycle(METHODS)):
            if over.is_set():
                return
            body = {"model": model, "prompt": f"{PROMPT} three {turn % 20}", "max_tokens": 48, "ignore_eos": True,
                    "temperature": 0, "stream": bool(turn % 2), "speculation": {"method": method}}  # fmt: skip
            if method in ("prediction", "hybrid"):
                body["prediction"] = {"type": "content", "content": PROMPT}
            request = urllib.request.Request(
                f"{door}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            try:
                urllib.request.urlopen(request, timeout=120).read()
            except urllib.error.HTTPError as error:
                failed.append(f"{error.code} {error.read().decode()[:300]}")
            except OSError as error:
                failed.append(repr(error))

    threads = [threading.Thread(target=ask) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    try:
        yield failed
    finally:
        over.set()
        for thread in threads:
            thread.join()


def dashboard_expressions() -> list[tuple[str, str, bool]]:
    """Each panel's place, its expression, and whether it may be empty."""
    return [
        (f"{file.name}: {number}: {title}", expression, may_be_empty)
        for file in sorted((HERE / "grafana" / "dashboards").glob("*.json"))
        for number, (title, expression, may_be_empty) in enumerate(expressions(json.loads(file.read_text())))
    ]


def expressions(dashboard: dict[str, Any]) -> list[tuple[str, str, bool]]:
    found = []
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"].replace("$__rate_interval", "1m")
            found.append((panel["title"], expression, "may be empty" in panel.get("description", "")))
    return found


def wait(what: str, holds: Any, state: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds:.0f} s: {what}; {state()}")
        time.sleep(1)


def query(prometheus: str, expression: str) -> list[dict[str, Any]]:
    answer = get(f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
    assert answer["status"] == "success", answer
    result: list[dict[str, Any]] = answer["data"]["result"]
    return result


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


if __name__ == "__main__":
    sys.exit(main())

"""Callers without end that a server refuses after it has parsed and encoded their prompts: work for streamer and
tokenizer, none for the target. A process of its own that stands back, so that the server is what is busy.

    python -m bench.callers URL COUNT          until its standard input is closed; then it says how many were answered
"""

from __future__ import annotations

import json
import os
import sys
import threading
import urllib.error
import urllib.request

PROMPT = "The quick brown fox jumps over the lazy dog, again and again. " * 1500


def main(url: str, count: int) -> None:
    os.nice(19)
    body = json.dumps({"model": "any", "prompt": PROMPT, "max_tokens": 1}).encode()
    with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as answer:
        name = json.loads(answer.read())["data"][0]["id"]
    body = body.replace(b'"any"', json.dumps(name).encode())
    answers: list[int] = []

    def call() -> None:
        while True:
            request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    answers.append(answer.status)
            except urllib.error.HTTPError as refusal:
                answers.append(refusal.code)
            except OSError:
                return

    for _ in range(count):
        threading.Thread(target=call, daemon=True).start()
    sys.stdin.read()
    print(json.dumps({"answers": len(answers), "refused": answers.count(400)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

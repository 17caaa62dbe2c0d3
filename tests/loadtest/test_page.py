"""What is written beside the terminal: the page, values by commas, a line a request."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

from aiohttp import web
from scripted_server import DONE, ScriptedServer, chunk, event, usage
from test_cli import load

from loadtest.cli import FAILED, OK
from loadtest.output import COLUMNS

SAID = {
    "num_draft_tokens": 4, "num_accepted_draft_tokens": 3, "num_spec_steps": 2,
    "acceptance_histogram_by_draft_length": {"2": [0, 1, 1]},
}  # fmt: skip


async def drafting(request: web.Request, body: dict[str, Any], out: web.StreamResponse) -> None:
    metrics = {"speculative_decoding": SAID} if "speculation" in body else {}
    for piece in (chunk("a"), chunk("<b>"), chunk(finish="stop"), usage(6, metrics=metrics), DONE):
        await out.write(piece)


async def test_a_comparison_over_loads_is_a_page_that_needs_nothing_else(
    server: ScriptedServer, tmp_path: Path
) -> None:
    server.script = drafting
    page, table, lines, figures = (tmp_path / name for name in ("page.html", "t.csv", "r.jsonl", "f.json"))
    code = await load(
        server.url, "--concurrency=1,2", "--requests=8", "--slo=chat", "--quiet", "--api-key=sk-secret",
        f"--html={page}", f"--csv={table}", f"--records={lines}", f"--json={figures}",
        "--ab", "speculation=off", "speculation=auto",
    )  # fmt: skip
    assert code == OK
    text = page.read_text()
    assert not re.search(r"""(?:src|href)=|url\(|@import|https?://(?!127\.0\.0\.1)""", text)
    assert "sk-secret" not in text + figures.read_text()
    for title in ("Time to the first token", "Throughput and first token", "Times as fast as", "Accepted, by place"):
        assert f">{title}" in text, title
    # Where all chunks of an answer come at one time there is nothing to plot between them.
    assert text.count("<svg") == text.count("</svg>") >= 5 and "prefers-color-scheme: dark" in text
    report = json.loads(figures.read_text())
    assert len(report["runs"]) == 4 and len(report["comparisons"]) == 2 and report["verdict"] in text
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert list(rows[0]) == list(COLUMNS)
    assert [(row["side"], row["concurrency"]) for row in rows] == [
        ("speculation=off", "1"), ("speculation=auto", "1"), ("speculation=off", "2"), ("speculation=auto", "2")
    ]  # fmt: skip
    # Two steps and four drafted tokens are six rows, one of them for nothing.
    assert all(row["sent"] == "8" and row["wasted_rows"] == str(1 / 6) for row in rows)
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len(records) == 4 * 8 and {record["output_tokens"] for record in records} == {6}


async def test_what_a_server_says_is_text_on_the_page(server: ScriptedServer, tmp_path: Path) -> None:
    async def hostile(request: web.Request, body: dict[str, Any], out: web.StreamResponse) -> None:
        await out.write(event({"error": {"message": "<script>alert(1)</script>", "code": "x"}}))

    server.script = hostile
    page = tmp_path / "page.html"
    assert await load(server.url, "--requests=2", "--quiet", f"--html={page}", "--prompt=<i>hi</i>") == FAILED
    text = page.read_text()
    assert "<script" not in text and "<i>" not in text
    assert "&lt;script&gt;" in text and "sse_error" in text

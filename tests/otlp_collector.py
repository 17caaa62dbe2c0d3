"""A collector of OpenTelemetry, as far as it takes traces in JSON; and what holds for each trace that it gets."""

from __future__ import annotations

import asyncio
import json
import re
from types import TracebackType
from typing import Any, Self

from aiohttp import web

# Fields of a span in OTLP's JSON, with the form of those that are texts.
FIELDS = {
    "traceId": r"[0-9a-f]{32}",
    "spanId": r"[0-9a-f]{16}",
    "parentSpanId": r"[0-9a-f]{16}",
    "startTimeUnixNano": r"\d{19}",
    "endTimeUnixNano": r"\d{19}",
    "name": r".+",
}
OTHERS = {"kind", "flags", "attributes", "status"}
VALUES = {"stringValue": str, "doubleValue": float, "intValue": int}


class OtlpCollector:
    """Takes POST /v1/traces at a port of its own."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.spans: list[dict[str, Any]] = []
        self.services: set[str] = set()
        self.keys: set[str | None] = set()  # in the header x-key
        self.got = asyncio.Event()
        self._runner: web.ServerRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/traces"

    async def __aenter__(self) -> Self:
        self._runner = web.ServerRunner(web.Server(self._take))
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _take(self, request: web.BaseRequest) -> web.Response:
        assert (request.method, request.path, request.content_type) == ("POST", "/v1/traces", "application/json")
        body = await request.read()
        self.keys.add(request.headers.get("x-key"))
        self.bodies.append(body)
        for of_resource in json.loads(body)["resourceSpans"]:
            self.services.add(facts(of_resource["resource"])["service.name"])
            self.spans += [span for scope in of_resource["scopeSpans"] for span in scope["spans"]]
        self.got.set()
        return web.json_response({"partialSuccess": {}})


def facts(of: dict[str, Any]) -> dict[str, Any]:
    """Its attributes, each as its type says."""
    found = {}
    for each in of["attributes"]:
        ((kind, value),) = each["value"].items()
        assert isinstance(value, float if kind == "doubleValue" else str), each
        found[each["key"]] = VALUES[kind](value)
    assert len(found) == len(of["attributes"])
    return found


def whole_of(spans: list[dict[str, Any]]) -> dict[str, Any]:
    """The span of the request, where all spans are of one: they are in the form of OTLP, in one trace, its others are
    below it, and within its time."""
    for span in spans:
        assert span.keys() <= FIELDS.keys() | OTHERS
        for name, form in FIELDS.items():
            assert re.fullmatch(form, span.get(name, "") or ("0" * 16 if name == "parentSpanId" else "")), (name, span)
    (whole,) = (span for span in spans if span["kind"] == 2)
    assert {span["traceId"] for span in spans} == {whole["traceId"]}
    assert len({span["spanId"] for span in spans}) == len(spans)
    begin, end = int(whole["startTimeUnixNano"]), int(whole["endTimeUnixNano"])
    for span in spans:
        if span is not whole:
            assert (span["kind"], span["parentSpanId"]) == (1, whole["spanId"])
            assert facts(span)["gen_ai.request.id"] == facts(whole)["gen_ai.request.id"]
        assert begin <= int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) <= end
    return whole

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from services.api.messages import Speculation
from services.api.parameters import LARGEST
from services.api.sampling import OF_MODEL
from services.api.sampling_defaults import SamplingDefaults
from services.streamer.door.http import DOCS_PAGE, ROUTES, find_route
from services.streamer.door.openapi import BODIES, SPECULATION, document
from services.streamer.extras import corpora as corpora_module
from services.streamer.extras import mesh_map
from services.streamer.messages import request as messages_module
from services.streamer.messages import tools as messages_tools_module
from services.streamer.messages.request import parse_count, parse_messages
from services.streamer.openai import embeddings as embeddings_module
from services.streamer.openai import request as request_module
from services.streamer.openai import sampling as sampling_module
from services.streamer.openai import speculation as speculation_module
from services.streamer.openai import structured as structured_module
from services.streamer.openai.embeddings import parse_embeddings
from services.streamer.openai.errors import ApiError
from services.streamer.openai.request import (
    RequestLimits,
    parse_chat,
    parse_completion,
    parse_detokenize,
    parse_tokenize,
)
from services.streamer.responses import body as body_module
from services.streamer.responses import tools as response_tools
from services.streamer.responses import wishes as response_wishes
from services.streamer.responses.body import parse_response
from services.streamer.responses.kept import Bounds, KeptResponses

KEPT = KeptResponses(Bounds(), lambda: 0.0).of("")
PARSERS: dict[str, Any] = {
    "/v1/chat/completions": lambda values: parse_chat(values, RequestLimits()),
    "/v1/completions": lambda values: parse_completion(values, RequestLimits()),
    "/v1/messages": lambda values: parse_messages(values, RequestLimits()),
    "/v1/messages/count_tokens": lambda values: parse_count(values, RequestLimits()),
    "/v1/embeddings": parse_embeddings,
    "/v1/responses": lambda values: parse_response(values, RequestLimits(), KEPT),
    "/tokenize": lambda values: parse_tokenize(values, RequestLimits()),
    "/detokenize": parse_detokenize,
    "/v1/corpora": corpora_module.parse_part,
    "/add_external_corpus": corpora_module.parse_external,
    "/remove_external_corpus": corpora_module.parse_removal,
    "/v1/mesh/kill": mesh_map.parse_kill,
}
MINIMAL: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"model": "m", "prompt": "x"},
    "/v1/messages": {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    "/v1/messages/count_tokens": {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    "/v1/embeddings": {"model": "m", "input": "x"},
    "/v1/responses": {"model": "m", "input": "x"},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
    "/v1/corpora": {"name": "n", "text": "x"},
    "/add_external_corpus": {"documents": ["x"]},
    "/remove_external_corpus": {"corpus_id": "n"},
    "/v1/mesh/kill": {"role": "proposer"},
}
NOBODY = object()


def test_the_document_has_every_route_and_no_other() -> None:
    paths = document(ROUTES, "1")["paths"]
    described = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert described == {(route.method, route.path) for route in ROUTES}


def test_every_array_says_what_is_in_it_and_every_required_field_is_described() -> None:
    """/docs draws neither a list of nothing nor a field that isn't there: it would show no route at all."""
    for place, schema in _within(document(ROUTES, "1")):
        assert schema.get("type") != "array" or "items" in schema, place
        if schema.get("type") == "object":
            assert set(schema.get("required", ())) <= set(schema.get("properties", ())), place


def _within(value: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of a document, with its place."""
    if isinstance(value, dict):
        yield place, value
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _within(each, f"{place}/{key}")


def test_probes_and_metrics_are_described_as_they_answer() -> None:
    paths = document(ROUTES, "1")["paths"]
    for probe in ("/health", "/ping", "/health/ready"):
        assert set(paths[probe]["get"]["responses"]) == {"200", "503"}
    metrics = paths["/metrics"]["get"]["responses"]
    assert set(metrics["200"]["content"]) == {"text/plain"} and "403" in metrics


def test_every_route_is_found_by_its_path() -> None:
    for route in ROUTES:
        assert find_route(route.method, route.path.replace("{model}", "org/name")) is route


def test_every_route_with_a_body_is_described_and_parsed() -> None:
    assert set(BODIES) == {route.path for route in ROUTES if route.method == "POST"} == set(PARSERS)


@pytest.mark.parametrize("path", BODIES)
def test_every_described_field_is_taken(path: str) -> None:
    for name in BODIES[path][0]:
        given = dict(MINIMAL[path])
        if path == "/tokenize" and name not in ("prompt", "add_special_tokens"):
            given = {"messages": MINIMAL["/v1/chat/completions"]["messages"]}
        try:
            PARSERS[path]({**given, name: NOBODY})
        except ApiError as error:
            assert (error.code, error.param) != ("unsupported_parameter", name), path


@pytest.mark.parametrize("path", BODIES)
def test_every_field_that_is_taken_is_described(path: str) -> None:
    modules = (
        request_module, sampling_module, speculation_module, structured_module, corpora_module, messages_module,
        messages_tools_module, embeddings_module, body_module, response_tools, response_wishes,
    )  # fmt: skip
    source = "".join(Path(module.__file__).read_text() for module in modules)
    mentioned = set(re.findall(r'fields\.(?:get|integer|number|boolean|text|choice)\(\s*"(\w+)"', source))
    assert len(mentioned) > 20
    for name in mentioned - set(BODIES[path][0]):
        with pytest.raises(ApiError) as caught:
            PARSERS[path]({**MINIMAL[path], name: NOBODY})
        assert caught.value.code == "unsupported_parameter", f"{path} takes {name} silently"


def test_every_wish_of_speculation_is_described_and_no_other_is_taken() -> None:
    # What the target hears, and what the door makes of other words for it.
    heard = {*Speculation.__struct_fields__} - {"return_drafts"}  # which stands beside the other return_ fields
    assert set(SPECULATION["properties"]) == {*heard, "off", "corpus", "namespace"}
    for name in SPECULATION["properties"]:
        with pytest.raises(ApiError) as caught:
            PARSERS["/v1/completions"]({**MINIMAL["/v1/completions"], "speculation": {name: NOBODY}})
        assert (caught.value.code, caught.value.param) == ("invalid_type", f"speculation.{name}")


@pytest.mark.parametrize("path", BODIES)
def test_what_is_described_as_required_is_missed(path: str) -> None:
    for name in BODIES[path][1]:
        with pytest.raises(ApiError) as caught:
            PARSERS[path]({key: value for key, value in MINIMAL[path].items() if key != name})
        assert caught.value.param == name


def test_the_docs_page_loads_nothing_from_elsewhere() -> None:
    page = DOCS_PAGE.read_text()
    assert not re.search(r"https?://|src=|@import", page)


def test_the_document_tells_the_sampling_of_this_server() -> None:
    sampling = SamplingDefaults(temperature=0.6, top_k=20)
    paths = document(ROUTES, "1", sampling)["paths"]
    for path in ("/v1/completions", "/v1/chat/completions"):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
        assert {name: body[name]["default"] for name in OF_MODEL} == asdict(sampling)
        for name, row in OF_MODEL.items():
            assert body[name]["minimum"] == row.low and body[name].get("maximum", LARGEST) == row.high

"""The HTTP API: every route in one table, and the checks before and after its handler.

    headers ─▶ route ─▶ API key, or Host and Origin (access.py) ─▶ body (bodies.py) ─▶ handler
            ─▶ answer, or the API's error body ─▶ a line of log (request_log.py)

Handlers come in the order of ROUTES, a few lines each. The mesh is behind peers.py and generation.py.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from msgspec import structs
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from mesh.errors import MeshError, RemoteError
from services.api.messages import Encode
from services.api.methods import NAIVE, method_for
from services.streamer.agents.families import Formats
from services.streamer.choice import responses
from services.streamer.choice.admission import Admission, AdmissionTicket
from services.streamer.choice.answer_memory import AnswerMemory
from services.streamer.choice.detokenize import Vocabulary
from services.streamer.choice.embedding import MOST_AT_ONCE, EmbeddingExchange
from services.streamer.choice.encoding import encode, encode_error
from services.streamer.choice.exchange import Exchange
from services.streamer.choice.key_limits import KeyLimits
from services.streamer.choice.namespace import Caller, NamespaceIds
from services.streamer.choice.peers import Peers
from services.streamer.choice.timeline import open_timelines
from services.streamer.choice.turns import Turns
from services.streamer.door import page, request_log
from services.streamer.door.access import Access
from services.streamer.door.answer import OPENAI, AnswerForm
from services.streamer.door.answer_messages import MESSAGES
from services.streamer.door.answer_responses import response_form
from services.streamer.door.bodies import JSON, Bodies
from services.streamer.door.connections import ANSWER_HEADERS, Connection, check_header_size
from services.streamer.door.embeddings import answer_embeddings
from services.streamer.door.health import MeshReadiness
from services.streamer.door.metrics import RequestTimes, StreamerMetrics
from services.streamer.door.openapi import document
from services.streamer.door.pacing import PacedStream, frame_size
from services.streamer.door.paths import no_such_path, shown
from services.streamer.door.request_log import RequestRecord
from services.streamer.door.request_spans import RequestTraces
from services.streamer.door.sse import EventStream
from services.streamer.extras import corpora
from services.streamer.extras.all_metrics import AllMetrics
from services.streamer.extras.audit import without_drafts
from services.streamer.extras.mesh_map import MeshMap, parse_kill
from services.streamer.extras.replays import Replays
from services.streamer.extras.trace_context import TRACEPARENT, trace_of
from services.streamer.messages import errors as messages_errors
from services.streamer.messages.request import parse_count, parse_messages
from services.streamer.openai.embeddings import check_against as check_embeddings
from services.streamer.openai.embeddings import parse_embeddings
from services.streamer.openai.errors import ApiError, unsupported
from services.streamer.openai.request import (
    Request,
    RequestLimits,
    check_against,
    parse_chat,
    parse_completion,
    parse_detokenize,
    parse_tokenize,
)
from services.streamer.responses.body import parse_response
from services.streamer.responses.kept import Bounds, KeptResponses, OwnResponses, no_such_response

log = logging.getLogger("specmesh.streamer")

# Tokens of a text that is only counted or encoded.
MOST_TOKENIZED = 1 << 18

RECORD = web.RequestKey("RECORD", RequestRecord)

Handler = Callable[["HttpApi", web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the table. A path that ends in a name in braces takes one segment more."""

    method: str
    path: str
    handler: Handler
    summary: str
    secured: bool = True


class HttpApi:
    """Everything a handler may use. One in a process."""

    def __init__(
        self,
        *,
        model_name: str,
        limits: RequestLimits,
        bodies: Bodies,
        access: Access,
        vocabulary: Vocabulary,
        peers: Peers,
        mesh_map: MeshMap,
        admission: Admission,
        metrics: StreamerMetrics,
        all_metrics: AllMetrics,
        replays: Replays,
        health: Callable[[], MeshReadiness],
        formats: Formats,
        page_tokens: int = 32,
        shared_namespaces: str = "",
        pace: float = 0.0,
        kept_responses: Bounds | None = None,
        key_limits: KeyLimits | None = None,
        answer_bytes: int = 1 << 29,
        traces: RequestTraces | None = None,
    ) -> None:
        self.model_name = model_name
        self.limits = limits
        self.bodies = bodies
        self.access = access
        self.vocabulary = vocabulary
        self.peers = peers
        self.mesh_map = mesh_map
        self.admission = admission
        self.metrics = metrics
        self.all_metrics = all_metrics
        self.replays = replays
        self.health = health
        self.formats = formats
        self.page_tokens = page_tokens
        self.pace = pace  # seconds between two frames of a stream; 0: as it comes
        self.turns = Turns()
        self.memory = AnswerMemory(answer_bytes)
        self.traces = traces
        self._key_limits = key_limits or KeyLimits(0, 0, time.monotonic)
        self.created = int(time.time())
        self._namespaces = NamespaceIds(shared_namespaces)
        self._responses = KeptResponses(kept_responses or Bounds(), time.monotonic, access.count)

    async def handle(self, http: web.BaseRequest) -> web.StreamResponse:
        """Called by aiohttp for every request; answers all of them."""
        record = request_log.open_record(http.headers.get(request_log.REQUEST_ID), http.method, http.path)
        http[RECORD] = record
        http[ANSWER_HEADERS] = {**self.access.headers(http), request_log.REQUEST_ID: record.id}
        try:
            response = await self._answered(http, record)
        except (ConnectionError, asyncio.CancelledError):
            record.status = request_log.DISCONNECTED
            raise
        finally:
            self.bodies.release(http)
            if record.choices:
                self._count_usage(http, record)
            request_log.write(record)
            if self.traces is not None:
                self.traces.ended(record)
        body_left = not http.content.is_eof()
        if body_left:
            response.force_close()
        assert isinstance(http.protocol, Connection)
        http.protocol.answered(body_left=body_left)
        self.metrics.responded(record.route or "none", response.status)
        return response

    async def _answered(self, http: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        try:
            check_header_size(http)
            response = self.access.preflight(http) or await self._routed(http, record)
        except ApiError as error:
            record.error = error.code or ""
            response = error_response(error, http.path)
        except ConnectionError:
            raise  # the client has disconnected
        except Exception as error:
            log.exception("%s %s", http.method, shown(http.path))
            record.error = (known := _unforeseen(error)).code or ""
            response = error_response(known, http.path)
        record.status = response.status
        return response

    async def _routed(self, http: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        route = find_route(http.method, http.path)
        record.route = route.path
        self.access.check_site(http)
        if route.secured:
            self.access.check_key(http)
        return await route.handler(self, http)

    def admit(self, http: web.BaseRequest, weight: int = 1) -> AdmissionTicket:
        """As a request of its API key."""
        return self.admission.admit(weight, self.access.key(http))

    def check_limits(self, http: web.BaseRequest) -> None:
        """Of its API key; the last check before a request is admitted."""
        if (over := self._key_limits.exceeded(self.access.key(http))) is not None:
            limit, error = over
            self.metrics.over_limit(self.access.name(http), limit)
            raise error

    def _count_usage(self, http: web.BaseRequest, record: RequestRecord) -> None:
        prompt_tokens, tokens = request_log.tokens_of(record.choices)
        self._key_limits.spend(self.access.key(http), prompt_tokens + tokens)
        self.metrics.used(self.access.name(http), prompt_tokens, tokens)

    async def json(self, http: web.BaseRequest) -> dict[str, Any]:
        return await self.bodies.json(http)

    def known_model(self, name: str | None) -> None:
        if name is not None and name != self.model_name:
            message = f"The model {name[:80]!r} does not exist; this server has {self.model_name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def namespace(self, http: web.BaseRequest, cache_salt: str = "", name: str = "") -> str:
        """The id of a namespace of whoever sent this."""
        return self._namespaces.id_of(self.access.key(http), cache_salt, name)

    def caller(self, http: web.BaseRequest, cache_salt: str, name: str) -> Caller:
        key = self.access.key(http)
        named = self._namespaces
        return Caller(named.id_of(key, cache_salt, name), named.salt_of(key, cache_salt, name), named.name_of(key))

    def kept(self, http: web.BaseRequest) -> OwnResponses:
        """The kept responses of the caller of this request."""
        return self._responses.of(self._namespaces.name_of(self.access.key(http)))


# Handlers ---------------------------------------------------------------------------------------------


async def chat_completions(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    return await _answer(api, http, parse_chat)


async def completions(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    return await _answer(api, http, parse_completion)


async def messages(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    return await _answer(api, http, parse_messages, MESSAGES)


async def count_tokens(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    model, message = parse_count(await api.json(http), api.limits)
    api.known_model(model)
    async with api.admit(http):
        return json_response({"input_tokens": len(await _encoded(api, message))})


async def embeddings(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    watch = RequestTimes(api.metrics)
    request = parse_embeddings(await api.json(http))
    api.known_model(request.model)
    count = len(request.prompts)
    lanes = min(count, MOST_AT_ONCE, api.admission.most)
    ticket = api.admit(http, lanes)
    api.check_limits(http)
    answer_id = "embd-" + secrets.token_hex(12)
    record = _record(api, http, answer_id)
    try:
        async with ticket:
            card = await api.peers.card()
            check_embeddings(request, card)
            caller = api.caller(http, request.cache_salt, "")
            exchange = EmbeddingExchange(
                request, answer_id, caller, card, ticket.deadline, api.peers, api.vocabulary, api.turns, lanes
            )
            return await answer_embeddings(exchange, http, watch, record)
    except (asyncio.CancelledError, ConnectionError):
        watch.failed("abort", count)
        raise
    except Exception:
        watch.failed("error", count)
        raise


async def create_response(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    kept = api.kept(http)
    return await _answer(api, http, partial(parse_response, kept=kept), response_form(kept))


async def one_response(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    for name in http.query:
        raise unsupported(shown(name))
    response_id = _response_id(http)
    if (found := api.kept(http).find(response_id)) is None:
        raise no_such_response(response_id)
    return web.Response(body=found.body, content_type=JSON)


async def remove_response(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    response_id = _response_id(http)
    if not api.kept(http).remove(response_id):
        raise no_such_response(response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


def _response_id(http: web.BaseRequest) -> str:
    found = http.path.removeprefix("/v1/responses/")
    if "/" in found:  # such as input_items
        raise no_such_path(http.method, http.path, [(route.method, route.path) for route in ROUTES])
    return found


async def models(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    return json_response({"object": "list", "data": [_model_body(api)]})


async def one_model(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    api.known_model(http.path.removeprefix("/v1/models/"))
    return json_response(_model_body(api))


async def tokenize(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    model, message = parse_tokenize(await api.json(http), api.limits)
    api.known_model(model)
    async with api.admit(http):
        ids = await _encoded(api, message)
        card = api.peers.known_card
    body = {"count": len(ids), "max_model_len": card.max_context if card else None, "tokens": ids}
    return json_response(body)


async def detokenize(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    model, ids = parse_detokenize(await api.json(http))
    api.known_model(model)
    async with api.admit(http):
        try:
            text = await api.peers.decode(ids)
        except RemoteError as error:
            raise encode_error(error, None, None) from error
    return json_response({"prompt": text})


async def add_corpus(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    part = corpora.parse_part(await api.json(http))
    async with api.admit(http):
        card = await corpora.add(part, api.namespace(http, part.cache_salt, part.namespace), api.peers)
    return json_response(corpora.card_body(card), status=202)


async def list_corpora(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    place = corpora.parse_place(http.query)
    async with api.admit(http):
        cards = await corpora.known(api.namespace(http, place.cache_salt, place.namespace), api.peers)
    return json_response(corpora.list_body(cards))


async def remove_corpus(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    name = corpora.check_name(http.path.removeprefix("/v1/corpora/"))
    place = corpora.parse_place(http.query)
    async with api.admit(http):
        await corpora.remove(name, api.namespace(http, place.cache_salt, place.namespace), api.peers)
    return json_response(corpora.removed_body(name))


async def add_external_corpus(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    part = corpora.parse_external(await api.json(http))
    async with api.admit(http):
        card = await corpora.add(part, api.namespace(http), api.peers)
    return json_response(corpora.external_body(card))


async def remove_external_corpus(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    name = corpora.parse_removal(await api.json(http))
    async with api.admit(http):
        await corpora.remove(name, api.namespace(http), api.peers)
    return json_response({"success": True, "message": ""})


async def list_external_corpora(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    async with api.admit(http):
        cards = await corpora.known(api.namespace(http), api.peers)
    return json_response(corpora.external_list_body(cards))


async def mesh(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    return json_response({"model": api.model_name, "version": VERSION, **await api.mesh_map.look()})


async def kill(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    if not api.mesh_map.demo:
        raise ApiError(404, "Nothing is killed here: this server was started without the setting demo", code="no_demo")
    role = parse_kill(await api.json(http))
    return json_response(await api.mesh_map.kill(role), status=202)


async def live(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    return json_response({"status": "live"})


async def ready(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    health = api.health()
    return json_response(health.body(), status=health.status)


async def all_metrics(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    api.access.check_metrics(http)
    page = await api.all_metrics.page()
    return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST, "Cache-Control": "no-store"})


async def show_version(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    return json_response({"version": VERSION})


async def openapi(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    return json_response(document(ROUTES, VERSION, api.limits.sampling))


async def docs(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    # The page's own script and style are all it may load.
    policy = "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"
    headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
    return web.Response(body=DOCS_PAGE.read_bytes(), content_type="text/html", charset="utf-8", headers=headers)


async def home(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    return page.response(page.INDEX, http.headers.get("If-None-Match", ""))


async def page_file(api: HttpApi, http: web.BaseRequest) -> web.StreamResponse:
    return page.response(http.path.removeprefix("/page/"), http.headers.get("If-None-Match", ""))


ROUTES: tuple[Route, ...] = (
    Route("POST", "/v1/chat/completions", chat_completions, "Continue a conversation"),
    Route("POST", "/v1/completions", completions, "Continue a text"),
    Route("POST", "/v1/messages", messages, "Continue a conversation, for clients of Anthropic's API"),
    Route("POST", "/v1/messages/count_tokens", count_tokens, "How many tokens the prompt of such a request has"),
    Route("POST", "/v1/embeddings", embeddings, "Embeddings of texts"),
    Route("POST", "/v1/responses", create_response, "Answer, as OpenAI's Responses API does"),
    Route("GET", "/v1/responses/{response_id}", one_response, "A response that was kept"),
    Route("DELETE", "/v1/responses/{response_id}", remove_response, "Delete a response that was kept"),
    Route("GET", "/v1/models", models, "The models this server answers for"),
    Route("GET", "/v1/models/{model}", one_model, "One model"),
    Route("POST", "/tokenize", tokenize, "Text or a conversation as token ids"),
    Route("POST", "/detokenize", detokenize, "Token ids as text"),
    Route("POST", "/v1/corpora", add_corpus, "Add a corpus of texts to draft from, or a part of one"),
    Route("GET", "/v1/corpora", list_corpora, "The corpora and their state"),
    Route("DELETE", "/v1/corpora/{name}", remove_corpus, "Delete a corpus"),
    Route("POST", "/add_external_corpus", add_external_corpus, "The same for clients of SGLang"),
    Route("POST", "/remove_external_corpus", remove_external_corpus, "The same for clients of SGLang"),
    Route("GET", "/list_external_corpora", list_external_corpora, "The same for clients of SGLang"),
    Route("GET", "/v1/mesh", mesh, "The processes of the mesh, their figures and connections"),
    Route("POST", "/v1/mesh/kill", kill, "With the setting demo: end a proposer as kill -9 would"),
    Route("GET", "/health/live", live, "Whether the process is alive", secured=False),
    Route("GET", "/health/ready", ready, "Whether requests can be served, and if not, why", secured=False),
    Route("GET", "/health", ready, "The same as /health/ready, as other servers have it", secured=False),
    Route("GET", "/ping", ready, "The same, for those who call it so", secured=False),
    Route("GET", "/metrics", all_metrics, "Metrics of all processes, for Prometheus and vLLM's benchmark"),
    Route("GET", "/version", show_version, "The server's version", secured=False),
    Route("GET", "/openapi.json", openapi, "This API, for programs", secured=False),
    Route("GET", "/docs", docs, "This API, for people", secured=False),
    Route("GET", "/", home, "A page to try the model and see its drafts", secured=False),
    Route("GET", "/page/{file}", page_file, "Files of that page", secured=False),
)

DOCS_PAGE = Path(__file__).parent / "docs.html"
try:
    VERSION = version("specmesh")
except PackageNotFoundError:  # run from a checkout that was not installed
    VERSION = "0.0.0"

_EXACT = {(route.method, route.path): route for route in ROUTES if "{" not in route.path}
_PREFIXED = [(route.path.partition("{")[0], route) for route in ROUTES if "{" in route.path]


def find_route(method: str, path: str) -> Route:
    if method == "HEAD":
        method = "GET"  # aiohttp sends the headers alone
    if (found := _EXACT.get((method, path))) is not None:
        return found
    for prefix, route in _PREFIXED:
        # Model names may hold slashes, as hub ids do.
        if path.startswith(prefix) and len(path) > len(prefix) and method == route.method:
            return route
    raise no_such_path(method, path, [(route.method, route.path) for route in ROUTES])


# The steps of an answer -------------------------------------------------------------------------------


async def _answer(
    api: HttpApi,
    http: web.BaseRequest,
    parse: Callable[[dict[str, Any], RequestLimits], Request],
    form: AnswerForm = OPENAI,
) -> web.StreamResponse:
    watch = RequestTimes(api.metrics)
    request = parse(await api.json(http), api.limits)
    api.known_model(request.model)
    ticket = api.admit(http, request.choices)
    api.check_limits(http)
    answer_id = form.new_id(request)
    record = _record(api, http, answer_id, request.stream)
    stream = _stream(api, http, request) if request.stream else None
    try:
        async with ticket:
            exchange = await _exchange(api, http, request, answer_id, ticket.deadline)
            return await _respond(api, http, exchange, stream, watch, form)
    except asyncio.CancelledError:
        watch.failed("abort", request.choices)
        raise
    except ConnectionError:
        watch.failed("abort", request.choices)
        raise
    except Exception as error:
        watch.failed("error", request.choices)
        known = error if isinstance(error, ApiError) else _unforeseen(error)
        if known is not error:
            log.exception("%s", answer_id)
        if stream is not None and stream.started:
            record.error = known.code or ""
            return await stream.fail(form.failure(known))
        raise known from error
    finally:
        record.first_token_s = watch.first_token_s
        if stream is not None:
            stream.close()


def _record(api: HttpApi, http: web.BaseRequest, answer_id: str, stream: bool = False) -> RequestRecord:
    """What the log is to say of it, and its trace. Its id is the answer's, unless the client has given one."""
    record = http[RECORD]
    record.answer_id, record.stream = answer_id, stream
    if api.traces is not None:
        record.trace = trace_of(http.headers.getall(TRACEPARENT, ()))
    if not record.given:
        record.id = http[ANSWER_HEADERS][request_log.REQUEST_ID] = answer_id
    return record


def _stream(api: HttpApi, http: web.BaseRequest, request: Request) -> EventStream:
    if api.pace:
        return PacedStream(http, pace=api.pace, size=frame_size(request, api.pace))
    return EventStream(http)


async def _exchange(
    api: HttpApi, http: web.BaseRequest, request: Request, answer_id: str, deadline: float
) -> Exchange:
    card = await api.peers.card()
    check_against(request, card)
    caller = api.caller(http, request.cache_salt, request.namespace)
    return Exchange(
        request, answer_id, caller, card, deadline, api.peers, api.vocabulary, api.turns, api.memory, api.page_tokens,
        api.formats,
    )  # fmt: skip


async def _respond(
    api: HttpApi, http: web.BaseRequest, exchange: Exchange, stream: EventStream | None, watch: RequestTimes,
    form: AnswerForm,
) -> web.StreamResponse:  # fmt: skip
    request, card = exchange.request, exchange.card
    method = method_for(request.speculation.method, card.speculation.method, bool(request.prediction))
    if method in api.replays.audit.switched_off:
        exchange.request, method = replace(request, speculation=without_drafts(request.speculation)), NAIVE
    encoded_from = time.perf_counter()
    await encode(exchange)
    record = http[RECORD]
    record.choices, record.drafting = exchange.choices, method
    watch.encoded()
    if request.return_timeline or record.trace is not None:
        open_timelines(exchange.choices, watch.started, encoded_from, asked=request.return_timeline)
    try:
        if stream is not None:
            return await form.streamed(exchange, stream, watch)
        return await form.whole(exchange, http, watch)
    finally:
        for choice in exchange.choices:
            api.replays.ended(choice, method, card)


async def _encoded(api: HttpApi, message: Encode) -> list[int]:
    """As long as a context, or longer than most."""
    card = api.peers.known_card
    most = max(MOST_TOKENIZED, card.max_context if card else 0)
    try:
        return await api.peers.encode(structs.replace(message, max_tokens=most))
    except RemoteError as error:
        raise encode_error(error, None, None) from error


def _model_body(api: HttpApi) -> dict[str, Any]:
    return responses.model(api.model_name, api.created, api.peers.known_card)


# HTTP details -----------------------------------------------------------------------------------------


def json_response(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(body), content_type=JSON)


def error_response(error: ApiError, path: str) -> web.Response:
    if messages_errors.speaks_messages(path):
        response = json_response(messages_errors.body(error), messages_errors.status(error))
    else:
        response = json_response(error.body(), error.status)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    if error.final:
        # The clients of OpenAI know this header.
        response.headers["x-should-retry"] = "false"
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _unforeseen(error: Exception) -> ApiError:
    if isinstance(error, MeshError):
        return ApiError(503, "A part of the server cannot be reached; try again", code=error.reason, retry_after=1)
    return ApiError(500, "The server failed", code="internal_error")

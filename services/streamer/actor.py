"""The streamer: the HTTP server of the mesh. It takes no messages; it asks tokenizers and workers.

On start: the model's tokenizer is read, the HTTP API is built, the port is opened. On stop: the port is
closed, running answers are ended with a reason. Knows the parts of the HTTP API, not what they do.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import generate_latest

from mesh.actor import Actor
from mesh.errors import MeshError
from models.sources import ensure_model
from services.api.chat_templates import read_template
from services.api.hosts import AllowedHosts
from services.api.otlp import headers_of, traces_url
from services.api.own_door import has_tls
from services.api.sampling_defaults import SamplingDefaults, sampling_of
from services.api.settings import cache_dir, key_files, served_model_name
from services.runtime.descriptors import make_room_for
from services.runtime.introspection import Figures
from services.streamer.agents.families import formats_of
from services.streamer.choice.admission import Admission
from services.streamer.choice.detokenize import Vocabulary
from services.streamer.choice.key_limits import KeyLimits
from services.streamer.choice.peers import Peers
from services.streamer.choice.retries import FLOOR, RetryBudget
from services.streamer.door.access import Access
from services.streamer.door.api_keys import ApiKeys
from services.streamer.door.bodies import Bodies
from services.streamer.door.connections import Connections
from services.streamer.door.handshake import Certificate, TlsSite
from services.streamer.door.health import DOOR, NEEDED, WISHED, MeshReadiness, readiness
from services.streamer.door.http import HttpApi
from services.streamer.door.metrics import StreamerMetrics
from services.streamer.door.request_spans import RequestTraces
from services.streamer.extras import throughput
from services.streamer.extras.all_metrics import AllMetrics
from services.streamer.extras.audit import Audit
from services.streamer.extras.mesh_map import MeshMap
from services.streamer.extras.probe import Probe
from services.streamer.extras.replays import Replays
from services.streamer.extras.span_export import Collector, SpanExporter, resource
from services.streamer.openai.errors import ApiError
from services.streamer.openai.request import RequestLimits
from services.streamer.responses.kept import Bounds

if TYPE_CHECKING:
    from services.runtime.process import Context

log = logging.getLogger("specmesh.streamer")

LEARN_AGAIN = 1.0  # seconds
END_TIMEOUT = 2.0  # seconds that ended answers have to write their last event


def connections_that_fit(wanted: int) -> int:
    possible = make_room_for(wanted)
    if possible < wanted:
        message = "max_connections is %d, but the limit of open files (ulimit -n) has room for %d"
        log.warning(message, wanted, possible)
    return possible


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What is read of the served model. `template`: the text of its chat template."""

    vocabulary: Vocabulary
    sampling: SamplingDefaults
    template: str = ""


class StreamerActor(Actor):
    def __init__(self, context: Context) -> None:
        self._settings = context.settings
        self._directory = context.directory
        self._metrics = StreamerMetrics(context.registry, served_model_name(context.settings))
        self.connections = Connections(
            limit=connections_that_fit(context.settings.max_connections),
            body_timeout=context.settings.body_timeout,
            write_timeout=context.settings.write_timeout,
        )
        self._instance = context.instance
        settings = context.settings
        self._keys = ApiKeys(settings.own_keys, key_files(settings.api_keys_file))
        self._certificate = Certificate(settings.ssl_certfile, settings.ssl_keyfile) if has_tls(settings) else None
        self._admission = Admission(
            context.settings.max_waiting,
            context.settings.request_timeout,
            self._held_elsewhere,
            lambda: len(self._keys),
        )
        self._peers: Peers | None = None
        self._probe: Probe | None = None
        self._map: MeshMap | None = None
        self._all_metrics: AllMetrics | None = None
        self._runner: web.ServerRunner | None = None
        self._site: web.TCPSite | web.UnixSite | TlsSite | None = None
        self._listens = False
        self._audit = Audit(context.settings.audit_share, context.settings.audit_threshold)
        self._metrics.watch_audit(self._audit)
        self._learning: asyncio.Task[None] | None = None
        self._replaying: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._collector: Collector | None = None
        self._exporter: SpanExporter | None = None
        self._exporting: asyncio.Task[None] | None = None
        self._own_metrics = partial(generate_latest, context.registry)
        self.port = 0

    async def on_start(self) -> None:
        files = await asyncio.to_thread(self.load_model_files)
        retries = RetryBudget(int(FLOOR * self._settings.max_waiting), self._metrics.refused_retry)
        self._peers = Peers(self._directory, self.node, retries)
        self._map = self._mesh_map()
        self._all_metrics = AllMetrics(
            self._directory,
            self.node,
            self._own_metrics,
            instance=self._instance,
            clock=self.node.clock,
            vllm_metric_names=self._settings.vllm_metric_names,
        )
        replays = Replays(self._audit, self._peers, self._admission)
        self._start_traces()
        api = self._http_api(files, self._peers, self._map, self._all_metrics, replays)
        server = self.connections.server(api.handle, max_body_bytes=self._settings.max_body_bytes)
        runner = web.ServerRunner(server, shutdown_timeout=END_TIMEOUT)
        await runner.setup()
        self._runner = runner
        self._site = self._site_of(runner, server)
        await self._site.start()
        self._listens = True
        if not self._settings.uds:
            self.port = self._site.port if isinstance(self._site, TlsSite) else runner.addresses[0][1]
        self._metrics.running.set_function(lambda: self._admission.running)
        self._metrics.connections.set_function(lambda: len(self.connections.open))
        self.connections.start()
        self._learning = asyncio.create_task(self._learn_model(), name="streamer-model-card")
        self._replaying = asyncio.create_task(replays.run(), name="streamer-audit")
        self._probe = Probe(self._peers.unanswered, lambda: self._metrics.arrivals, self.node.clock)
        self._probing = asyncio.create_task(self._probe.run(), name="streamer-probe")
        self._watching = asyncio.create_task(throughput.watch(self._map), name="streamer-throughput")

    def _site_of(self, runner: web.ServerRunner, server: web.Server) -> web.TCPSite | web.UnixSite | TlsSite:
        settings = self._settings
        if settings.uds:
            return web.UnixSite(runner, settings.uds, backlog=1024)
        # Streamers share the port: the kernel gives each of them a part of the new connections.
        several = settings.streamers > 1
        if self._certificate is not None:
            place = {"host": settings.host, "port": settings.port, "reuse_port": several}
            return TlsSite(self.connections, self._certificate, server, **place)
        return web.TCPSite(runner, settings.host, settings.port, backlog=1024, reuse_port=several or None)

    async def on_stop(self) -> None:
        self._end_audit()
        await self._admission.drain(0.0)
        if self._map is not None:
            self._map.close()
        if self._all_metrics is not None:
            self._all_metrics.close()
        for task in (self._learning, self._probing, self._watching):
            if task is not None:
                task.cancel()
        if isinstance(self._site, TlsSite):
            await self._site.stop()
        if self._runner is not None:
            await self._runner.cleanup()
        await self.connections.stop()
        await self._stop_traces()

    def _start_traces(self) -> None:
        settings = self._settings
        if not settings.otlp_traces_endpoint:
            return
        try:
            headers = headers_of(os.environ)
        except ValueError as error:
            log.warning("%s; traces are sent without", error)
            headers = {}
        self._collector = Collector(traces_url(settings.otlp_traces_endpoint), headers)
        described = resource(settings.otlp_service_name, self._instance)
        self._exporter = SpanExporter(self._collector.post, described, self.node.clock, self._metrics.spans)
        self._exporting = asyncio.create_task(self._exporter.run(), name="streamer-traces")

    async def _stop_traces(self) -> None:
        """After the last request has ended."""
        if self._exporting is not None:
            self._exporting.cancel()
        if self._exporter is not None:
            await self._exporter.close()
        if self._collector is not None:
            await self._collector.close()

    # What the process around us asks -------------------------------------------------------------------

    def ready(self) -> list[str]:
        reasons = []
        if not self._listens:
            reasons.append("the HTTP port is not open yet")
        if self._admission.draining:
            reasons.append("draining")
        return reasons

    def progress_age(self) -> float:
        # It has no work of its own: what it waits for is the progress of other roles.
        return 0.0

    def load(self) -> int:
        return self._admission.running

    def figures(self) -> Figures:
        return Figures({"running": self._admission.running, "connections": len(self.connections.open)})

    async def drain(self, timeout: float) -> None:
        """New requests are refused, the running ones go on for at most `timeout` seconds."""
        self._end_audit()
        if self._site is not None and self._settings.streamers > 1:
            # New connections go to the others; a streamer that is alone says that it drains.
            await self._site.stop()
        await self._admission.drain(timeout)

    def _held_elsewhere(self) -> tuple[int, int]:
        """The other streamers, and the choices that they hold, as the directory knows it."""
        others = [each.load for each in self._directory.members("streamer") if each.instance != self._instance]
        return len(others), sum(others)

    def _end_audit(self) -> None:
        self._audit.close()
        if self._replaying is not None:
            self._replaying.cancel()

    # The parts ------------------------------------------------------------------------------------------

    def load_model_files(self) -> ModelFiles:
        folder = ensure_model(self._settings.model, cache_dir(self._settings), dtype=self._settings.dtype)
        sampling = sampling_of(folder, self._settings.generation_config)
        for each in sampling.ignored:
            log.warning("%s", each)
        template = read_template(folder, self._settings.chat_template)
        return ModelFiles(Vocabulary.load(folder), sampling.defaults, "" if template is None else template.shown)

    async def _learn_model(self) -> None:
        """Asks for the model card until a worker answers, so that /v1/models and the first request have it."""
        assert self._peers is not None
        while self._peers.known_card is None:
            try:
                await self._peers.card()
            except (ApiError, MeshError) as error:
                log.info("the model is not known yet: %s", error)
                await asyncio.sleep(LEARN_AGAIN)

    def _mesh_map(self) -> MeshMap:
        settings = self._settings
        return MeshMap(
            self._directory,
            self.node,
            instance=self._instance,
            stale_after=settings.stale_after,
            clock=self.node.clock,
            demo=settings.demo,
            discreet=lambda: len(self._keys) > 1,
        )

    def _http_api(
        self,
        files: ModelFiles,
        peers: Peers,
        mesh_map: MeshMap,
        all_metrics: AllMetrics,
        replays: Replays,
    ) -> HttpApi:
        settings = self._settings
        limits = RequestLimits(
            max_choices=settings.max_choices,
            max_messages=settings.max_messages,
            max_stop_strings=settings.max_stop_strings,
            sampling=files.sampling,
        )
        bodies = Bodies(
            budget=max(settings.body_memory_mb * 2**20, settings.max_body_bytes), max_items=limits.max_items
        )
        self._metrics.body_bytes.set_function(lambda: bodies.held)
        return HttpApi(
            model_name=served_model_name(settings),
            limits=limits,
            bodies=bodies,
            access=Access(
                api_keys=self._keys,
                hosts=AllowedHosts(settings.allowed_hosts, settings.host),
                cors_origins=settings.cors_origins,
                api_metrics=settings.api_metrics,
            ),
            shared_namespaces=settings.shared_namespaces,
            vocabulary=files.vocabulary,
            formats=formats_of(settings.tool_call_parser, settings.reasoning_parser, files.template),
            peers=peers,
            mesh_map=mesh_map,
            admission=self._admission,
            metrics=self._metrics,
            all_metrics=all_metrics,
            replays=replays,
            health=self._health,
            page_tokens=settings.page_tokens,
            pace=settings.pace_ms / 1000,
            answer_bytes=settings.answer_memory_mb * 2**20,
            key_limits=KeyLimits(
                settings.key_requests_per_minute, settings.key_tokens_per_minute, self.node.clock.now
            ),
            kept_responses=Bounds(
                settings.kept_responses,
                settings.kept_responses_mb * 2**20,
                settings.kept_responses_seconds,
            ),
            traces=RequestTraces(served_model_name(settings), self._exporter.add) if self._exporter else None,
        )

    def _health(self) -> MeshReadiness:
        members = {role: self._directory.members(role) for role in (*NEEDED, *WISHED, DOOR)}
        return readiness(
            members,
            draining=self._admission.draining,
            stale_after=self._settings.stale_after,
            silence=self._directory.silence,
            own_reasons=self._probe.reasons if self._probe is not None else (),
            own_name=self._instance,
        )

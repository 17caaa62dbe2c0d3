"""What a target tells Prometheus. Read from the scheduler's and the link's own counts when it is scraped, so
that a step pays for one histogram and nothing else. docs/metrics.md defines each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.worker.audit import RESULTS, Audit
from services.worker.scheduling.events import is_replay
from services.worker.scheduling.limits import NAIVE
from services.worker.scheduling.scheduler import Scheduler
from services.worker.speculation.remote.succession import Succession

# Steps are told apart by the rows they computed, up to each of these.
ROW_CLASSES = (1, 8, 32, 128, 512)
# Sizes of steps whose predicted time is shown.
PREDICTED_ROWS = (1, 8, 16, 64)
PREDICTED_CONTEXT = 1024
# Drafts up to each of these lengths.
LENGTH_CLASSES = (1, 2, 4, 8, 16, 32, 48, 64)
# Fine where steps of small models are: a quantile read between two bounds should be off by a tenth at most.
_SECONDS = (
    0.0005, 0.001, 0.0015, 0.002, 0.0025, 0.003, 0.0035, 0.004, 0.0045, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01, 0.0115,
    0.013, 0.015, 0.0175, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
_SPECULATION = ["model_name", "proposer", "verify_strategy"]


class WorkerMetrics:
    """The observer of a step loop."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._registry = registry
        self._model_name = model_name
        steps = Histogram(
            "specmesh:step_seconds",
            "Time of one step: forward and verification, by rows computed (up to)",
            ["model_name", "rows"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._info = Gauge(
            "specmesh:engine_info",
            "1: what really runs the model, and whether its rows have the same bits in any batch",
            ["model_name", "path", "strict"],
            registry=registry,
        )
        classes = [str(rows) for rows in ROW_CLASSES] + ["+Inf"]
        self._steps = [steps.labels(model_name, rows) for rows in classes]

    def tell_path(self, path: str, strict: bool) -> None:
        self._info.labels(self._model_name, path, str(strict).lower()).set(1)

    def watch(self, scheduler: Scheduler, drafts: Succession, audit: Audit) -> None:
        """Serve the counts of these three from now on."""
        self._registry.register(_Counts(self._model_name, scheduler, drafts, audit))

    def after_step(self, rows: int, seconds: float) -> None:
        self._steps[bisect_left(ROW_CLASSES, rows)].observe(seconds)


class _Counts(Collector):
    def __init__(self, model_name: str, scheduler: Scheduler, drafts: Succession, audit: Audit) -> None:
        self._model_name = model_name
        self._scheduler = scheduler
        self._drafts = drafts
        self._audit = audit

    def collect(self) -> Iterable[Metric]:
        yield from self._of_requests()
        yield from self._of_steps()
        yield from self._of_speculation()
        yield from self._of_sources()
        yield from self._of_lengths()
        yield from self._of_the_link()
        yield from self._of_the_audit()

    def _of_requests(self) -> Iterable[Metric]:
        scheduler, gauge, counter = self._scheduler, self._gauge, self._counter
        pages = scheduler.pages
        running = sum(not is_replay(sequence.stream) for sequence in list(scheduler.running))
        yield gauge("num_requests_running", "Sequences in the batch", running)
        yield gauge("num_requests_waiting", "Requests that wait for a place", len(scheduler.waiting))
        yield gauge("kv_cache_usage_perc", "Part of the KV pages in use, 0 to 1", pages.in_use / pages.total)
        states = GaugeMetricFamily("specmesh:kv_pages", "All KV pages, by state", labels=["model_name", "state"])
        for state, count in (("in_use", pages.in_use), ("cached", pages.cached), ("free", pages.free)):
            states.add_metric([self._model_name, state], count)
        yield states
        yield gauge("prefix_cache_pages", "KV pages that nobody uses and whose text can be found", pages.cached)
        yield counter("prompt_tokens", "Prompt tokens of accepted requests", scheduler.prompt_tokens)
        yield counter("generation_tokens", "Tokens generated", scheduler.generated_tokens)
        yield counter("num_preemptions", "Sequences whose pages went to one before them", scheduler.preemptions)
        sharing = scheduler.planner.sharing
        yield counter("prefix_cache_queries", "Tokens of texts that came to run", sharing.asked_tokens)
        yield counter("prefix_cache_hits", "Those of them that were computed already", sharing.found_tokens)
        yield counter("prefix_cache_evictions", "Pages of cached text given away", sharing.cache.evictions)
        requests = CounterMetricFamily(
            "specmesh:target_requests", "Requests, by how they ended here", labels=["model_name", "end"]
        )
        for end, count in list(scheduler.ends.items()):
            requests.add_metric([self._model_name, end], count)
        yield requests

    def _of_steps(self) -> Iterable[Metric]:
        predicted = GaugeMetricFamily(
            "specmesh:step_seconds_predicted",
            f"What a step would take, as learned from those that were run, at {PREDICTED_CONTEXT} tokens of context",
            labels=["model_name", "rows"],
        )
        for rows in PREDICTED_ROWS:
            seconds = self._scheduler.step_time.predict(rows, PREDICTED_CONTEXT)
            predicted.add_metric([self._model_name, str(rows)], seconds)
        yield predicted

    def _of_speculation(self) -> Iterable[Metric]:
        labels = _SPECULATION
        steps = _by(labels, "spec_decode_num_steps", "Verify steps of sequences, those without a draft among them")
        empty = _by(labels, "spec_decode_num_empty_steps", "Verify steps that had no draft")
        drafts = _by(labels, "spec_decode_num_drafts", "Verify steps that had a draft")
        drafted = _by(labels, "spec_decode_num_draft_tokens", "Tokens drafted and verified")
        accepted = _by(labels, "spec_decode_num_accepted_tokens", "Draft tokens accepted, the target's own not counted")
        per_position = _by(
            [*labels, "position"], "spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by place in the draft, from 0",
        )  # fmt: skip
        for (method, strategy), tally in list(self._scheduler.tallies.items()):
            where = [self._model_name, method, strategy]
            steps.add_metric(where, tally.steps)
            empty.add_metric(where, tally.empty)
            drafts.add_metric(where, tally.drafts)
            drafted.add_metric(where, tally.drafted)
            accepted.add_metric(where, tally.accepted)
            for position, count in enumerate(tally.accepted_at.counts()):
                per_position.add_metric([*where, str(position)], count)
        yield from (steps, empty, drafts, drafted, accepted, per_position)

    def _of_sources(self) -> Iterable[Metric]:
        """By where drafts came from: the names are the proposer's, the first few of them."""
        labels = ["model_name", "source"]
        drafts = _by(labels, "draft_source_drafts", "Drafts verified, by where they came from")
        drafted = _by(labels, "draft_source_tokens", "Tokens of those drafts")
        accepted = _by(labels, "draft_source_accepted_tokens", "Those of them that stood")
        claimed = _by(labels, "draft_source_claimed_tokens", "Those that were to stand, as proposers claimed (auto)")
        expected = _by(labels, "draft_source_expected_tokens", "Those that were to stand, as claims were worth (auto)")
        places = _by(
            [*labels, "position"], "draft_source_accepted_tokens_per_pos", "Draft tokens that stood, by place, from 0"
        )
        for source, counts in list(self._scheduler.drafting.counts.sources.items()):
            where = [self._model_name, source]
            drafts.add_metric(where, counts.drafts)
            drafted.add_metric(where, counts.drafted)
            accepted.add_metric(where, counts.accepted)
            claimed.add_metric(where, counts.claimed)
            expected.add_metric(where, counts.believed)
            for position, count in enumerate(counts.accepted_at.counts()):
                places.add_metric([*where, str(position)], count)
        yield from (drafts, drafted, accepted, claimed, expected, places)

    def _of_lengths(self) -> Iterable[Metric]:
        counts = self._scheduler.drafting.counts
        ways = _by(
            ["model_name", "way"], "drafts_came",
            "Verify steps of sequences that may have drafts, by how theirs came: left of an earlier one (lease), asked"
            " for while the last step ran (ahead), waited for (asked), or not (none)",
        )  # fmt: skip
        for way, count in list(counts.ways.items()):
            ways.add_metric([self._model_name, way], count)
        yield ways
        chosen = HistogramMetricFamily("specmesh:draft_length", "Tokens of drafts verified", labels=["model_name"])
        lengths = list(counts.lengths)
        buckets = [(str(bound), float(sum(lengths[: bound + 1]))) for bound in LENGTH_CLASSES]
        whole = float(sum(lengths))
        tokens = float(sum(length * count for length, count in enumerate(lengths)))
        chosen.add_metric([self._model_name], [*buckets, ("+Inf", whole)], tokens)
        yield chosen
        asking = _by(
            ["model_name", "way"], "draft_asking_seconds",
            "Time of the step thread that questions to the proposer took: ahead of a step, or waited for (asked)",
        )  # fmt: skip
        for kind, seconds in list(counts.asking_seconds.items()):
            asking.add_metric([self._model_name, kind], seconds)
        yield asking
        counter = self._counter
        yield counter("leases_dropped", "Continuations that the text didn't follow to their end", counts.dropped)
        yield counter("drafts_late", "Drafts for what the text had passed, or behind another text", counts.late)
        said = "Time of steps that had drafts, where one without of that size was seen, too"
        yield counter("spec_decode_drafted_seconds", said, counts.drafted_seconds)
        said = "What the tokens of those steps would have taken without drafts, as step times were learned"
        yield counter("spec_decode_naive_seconds", said, counts.naive_seconds)
        yield from self._of_trust()

    def _of_trust(self) -> Iterable[Metric]:
        trust = self._scheduler.drafting.trust
        yield self._gauge("draft_namespaces", "Namespaces whose drafts are judged apart", len(trust))
        purses = trust.purses()
        said = "What drafts may still cost before they have to bring something, of all namespaces"
        yield self._gauge("draft_purse_seconds", said, sum(purses))
        said = "Namespaces whose drafts have cost what they may: until that changes none is verified there"
        yield self._gauge("draft_namespaces_insolvent", said, sum(purse <= 0.0 for purse in purses))

    def _of_the_link(self) -> Iterable[Metric]:
        # A line that takes over begins its counts anew, as a process does.
        link, counter = self._drafts.link, self._counter
        yield counter("draft_requests", "Questions sent to the proposer, one a step", link.asked)
        yield counter("draft_requests_ahead", "Those of them that nobody waited for", link.asked_ahead)
        yield counter("draft_deadline_misses", "Steps that went on without an answer in time", link.missed)
        yield counter("draft_failures", "Questions that could not be sent or were answered badly", link.failed)
        yield counter(
            "drafts_refused", "Drafts that could not be: no chain, ids unknown", self._scheduler.drafting.counts.refused
        )
        said = "Candidates whose drafts took the place of another's"
        yield counter("proposer_takeovers", said, self._drafts.takeovers)
        said = "What a candidate's drafts would bring of those in use, as far as is known; 0: there is no candidate"
        yield self._gauge("proposer_candidate_share", said, self._drafts.share)
        said = "1 once a fault in this target's own drafting code has ended drafting, until it starts anew"
        yield self._gauge("drafting_failed", said, float(self._scheduler.advice.failed))
        yield self._gauge("proposer_given_up", "1 while nobody waits for the proposer's answers", float(link.gave_up))

    def _of_the_audit(self) -> Iterable[Metric]:
        """Whatever never happened is told, too, as 0: the first difference must show as an increase."""
        audit, labels = self._audit, ["model_name", "proposer"]
        replays = CounterMetricFamily(
            "specmesh:audit_replays",
            "Requests taken to be computed again without drafts, by what came of it: same, different, given_up"
            " (interrupted too often, or failed) or dropped (never come to an end)",
            labels=[*labels, "result"],
        )
        off = GaugeMetricFamily(
            "specmesh:proposer_switched_off", "1 once the audit has switched it off, for good", labels=labels
        )
        for method in self._scheduler.limits.methods:
            if method == NAIVE:
                continue
            for result in RESULTS:
                replays.add_metric([self._model_name, method, result], audit.results.get((method, result), 0))
            off.add_metric([self._model_name, method], float(method in audit.switched_off))
        yield replays
        yield self._counter("audit_tokens", "Tokens that replays computed and compared", audit.compared_tokens)
        yield self._gauge("audit_waiting", "Requests that wait for their replay", audit.waiting)
        yield off

    def _gauge(self, name: str, help: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"specmesh:{name}", help, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def _counter(self, name: str, help: str, value: float) -> Metric:
        family = CounterMetricFamily(f"specmesh:{name}", help, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family


def _by(labels: Sequence[str], name: str, help: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"specmesh:{name}", help, labels=labels)

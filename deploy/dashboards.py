"""The dashboards of deploy/grafana in readable form: a dashboard has rows of panels, a panel has a title, a unit and
queries. Writes the JSON that Grafana reads; `--check` writes nothing and exits with 1 if that is out of date.

`[R]` in a query is the interval that Grafana chooses. A panel that has no data in normal operation says so in `quiet`;
all others must have data under load (tests/deploy/test_dashboards.py checks this with a real Prometheus).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent))

from grafana_json import Query, dashboard, graphs, numbers, panel  # noqa: E402

from models.heads.table import HEADS  # noqa: E402

FOLDER = HERE / "grafana" / "dashboards"

# Queries used several times -----------------------------------------------------------------------------------


def rate(metric: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({metric}[R]))"


def quantile(q: float, metric: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket[R])))"


def quantiles(metric: str, *wanted: float) -> Iterator[Query]:
    return ((quantile(q, metric), f"p{q * 100:g}") for q in wanted)


def share(part: str, whole: str, by: str = "") -> str:
    return f"{rate(part, by)} / {rate(whole, by)}"


STEPS = "specmesh:spec_decode_num_steps_total"
EMPTY = "specmesh:spec_decode_num_empty_steps_total"
DRAFTS = "specmesh:spec_decode_num_drafts_total"
DRAFTED = "specmesh:spec_decode_num_draft_tokens_total"
ACCEPTED = "specmesh:spec_decode_num_accepted_tokens_total"
AT_POSITION = "specmesh:spec_decode_num_accepted_tokens_per_pos_total"
SOURCE_DRAFTS = "specmesh:draft_source_drafts_total"
SOURCE_TOKENS = "specmesh:draft_source_tokens_total"
SOURCE_ACCEPTED = "specmesh:draft_source_accepted_tokens_total"
SOURCE_CLAIMED = "specmesh:draft_source_claimed_tokens_total"
SOURCE_EXPECTED = "specmesh:draft_source_expected_tokens_total"
SOURCE_AT_POSITION = "specmesh:draft_source_accepted_tokens_per_pos_total"
OF_HEADS = f'{{source=~"{"|".join(HEADS)}"}}'
ASKING = "specmesh:draft_asking_seconds_total"
STEP = "specmesh:step_seconds"
NAIVE_SECONDS = "specmesh:spec_decode_naive_seconds_total"
DRAFTED_SECONDS = "specmesh:spec_decode_drafted_seconds_total"

# Predicted time of the same tokens without drafts, divided by the actual time.
GAIN = (
    f"({rate(f'{STEP}_sum')} - {rate(DRAFTED_SECONDS)} + {rate(NAIVE_SECONDS)})"
    f" / ({rate(f'{STEP}_sum')} + {rate(ASKING)})"
)
GAIN_WHERE_DRAFTED = f"{rate(NAIVE_SECONDS)} / {rate(DRAFTED_SECONDS)}"
# A row of a verify step is wasted if its draft token was rejected.
WASTED = f"({rate(DRAFTED)} - {rate(ACCEPTED)}) / ({rate(STEPS)} + {rate(DRAFTED)})"
FIRING = panel(
    "Firing alerts", "short", ('count by (alertname) (ALERTS{alertstate="firing"})', "{{alertname}}"),
    note="docs/operate/runbook.md explains each alert.", quiet="nothing is wrong.",
)  # fmt: skip

# The boards ---------------------------------------------------------------------------------------------------

SERVING = (
    numbers(
        "Now",
        panel("Tokens per second", "short", (rate("specmesh:generation_tokens_total"), "generated")),
        panel("Answers per second", "reqps", (rate("specmesh:request_success_total"), "ended")),
        panel("Requests", "short", ("sum(specmesh:num_requests_running)", "running"),
              ("sum(specmesh:num_requests_waiting)", "waiting")),
        panel("Time to first token, p95", "s", (quantile(0.95, "specmesh:time_to_first_token_seconds"), "p95")),
        panel("Gain of speculation", "short",
              (GAIN, "times"), note="1 means as fast as without speculation. See the speculation dashboard."),
        panel("Processes up", "short", ('sum(up{job="specmesh"})', "up")),
    ),
    graphs(
        "Latency",
        panel("Time to first token", "s", *quantiles("specmesh:time_to_first_token_seconds", 0.5, 0.95, 0.99)),
        panel("Time between token messages", "s", *quantiles("specmesh:inter_token_latency_seconds", 0.5, 0.95, 0.99),
              note="A message has all tokens of a verify step."),
        panel("Request duration", "s", *quantiles("specmesh:e2e_request_latency_seconds", 0.5, 0.95, 0.99)),
    ),
    graphs(
        "Throughput",
        panel("Tokens per second", "short", (rate("specmesh:prompt_tokens_total"), "prompt"),
              (rate("specmesh:generation_tokens_total"), "generated")),
        panel("Prompt length, tokens", "short", *quantiles("specmesh:request_prompt_tokens", 0.5, 0.95)),
        panel("Answer length, tokens", "short", *quantiles("specmesh:request_generation_tokens", 0.5, 0.95)),
    ),
    graphs(
        "Results",
        panel("Answers by finish reason", "reqps",
              (rate("specmesh:request_success_total", "finished_reason"), "{{finished_reason}}")),
        panel("HTTP responses", "reqps", (rate("specmesh:http_responses_total", "route, code"), "{{code}} {{route}}")),
        panel("Requests at the worker, by result", "reqps",
              (rate("specmesh:worker_requests_total", "end"), "{{end}}")),
    ),
    graphs(
        "API keys",
        panel("Requests, by key", "reqps", (rate("specmesh:key_requests_total", "key"), "{{key}}")),
        panel("Tokens, by key", "short", (rate("specmesh:key_prompt_tokens_total", "key"), "{{key}}: prompts"),
              (rate("specmesh:key_generation_tokens_total", "key"), "{{key}}: answers")),
        panel("Requests over a key's limit", "reqps",
              (rate("specmesh:key_requests_refused_total", "key, limit"), "{{key}}: {{limit}}"), quiet="none."),
    ),
    graphs(
        "Traces",
        panel("Spans of traces", "short", (rate("specmesh:trace_spans_total", "result"), "{{result}}"), quiet="none."),
    ),
    graphs(
        "Waiting",
        panel("Requests", "short", ("sum(specmesh:door_requests_running)", "admitted"),
              ("sum(specmesh:num_requests_running)", "in the batch"),
              ("sum(specmesh:num_requests_waiting)", "waiting")),
        panel("Prompt encoding time", "s", *quantiles("specmesh:request_encode_time_seconds", 0.5, 0.99)),
        panel("Tokenizer time, p99 by work", "s", (quantile(0.99, "specmesh:tokenizer_seconds", "work"), "{{work}}")),
    ),
    graphs(
        "Steps",
        panel("Step time, p50 by rows", "s", (quantile(0.5, STEP, "rows"), "up to {{rows}}")),
        panel("Predicted step time, by rows", "s", ("max by (rows) (specmesh:step_seconds_predicted)", "{{rows}}"),
              note="With 1024 tokens of context."),
        panel("Share of time in steps", "percentunit", (rate(f"{STEP}_sum", "instance"), "{{instance}}")),
        panel("Steps on a GPU", "ops", (rate("specmesh:gpu_steps_total", "way"), "{{way}}"),
              (rate("specmesh:kernels_compiled_late_total"), "with a kernel compiled under traffic"),
              quiet="no worker runs on a GPU."),
        panel("Share of time in exchanges between ranks", "percentunit",
              (rate("specmesh:rank_exchange_seconds_total", "instance"), "{{instance}}")),
    ),
    graphs(
        "Problems",
        FIRING,
        panel("Requests restarted", "ops", (rate("specmesh:request_retries_total"), "worker lost"),
              (rate("specmesh:request_retries_refused_total"), "worker lost, not restarted: too many were"),
              (rate("specmesh:num_preemptions_total"), "preempted")),
        panel("Refused prompts", "ops", (rate("specmesh:tokenizer_refused_total", "reason"), "{{reason}}"),
              quiet="no prompt was too long or malformed."),
    ),
)

SPECULATION = (
    numbers(
        "Now",
        panel("Gain against no speculation", "short", (GAIN, "times"),
              note="Predicted time of the same tokens without drafts, divided by the actual time."),
        panel("Acceptance rate", "percentunit", (share(ACCEPTED, DRAFTED), "accepted"),
              note="Accepted draft tokens / verified draft tokens."),
        panel("Tokens per step with a draft", "short", (f"1 + {share(ACCEPTED, DRAFTS)}", "tokens")),
        panel("Steps with a draft", "percentunit", (share(DRAFTS, STEPS), "with"), note="Per sequence and step."),
        panel("Wasted rows", "percentunit",
              (WASTED, "wasted"), note="Rows of rejected draft tokens / all rows."),
        panel("Draft request time", "percentunit", (f"{rate(ASKING)} / {rate(f'{STEP}_sum')}", "share of step time")),
    ),
    graphs(
        "Benefit",
        panel("Gain", "short", (GAIN, "all steps"), (GAIN_WHERE_DRAFTED, "steps with a draft")),
        panel("Draft rows", "short", (rate(ACCEPTED), "accepted"), (f"{rate(DRAFTED)} - {rate(ACCEPTED)}", "wasted"),
              note="Per second.", stacked=True),
        panel("Tokens per step, by method", "short", (f"1 + {share(ACCEPTED, STEPS, 'proposer')}", "{{proposer}}"),
              note="Includes steps without a draft."),
        panel("Steps per second", "ops", (rate(DRAFTS), "with a draft"), (rate(EMPTY), "without"), stacked=True),
    ),
    graphs(
        "Acceptance",
        panel("By method", "percentunit",
              
              (share(ACCEPTED, DRAFTED, "proposer, verify_strategy"), "{{proposer}} / {{verify_strategy}}")),
        panel("By source", "percentunit",
              (share(SOURCE_ACCEPTED, SOURCE_TOKENS, "source"), "{{source}}")),
        panel("The head", "percentunit",
              (share(SOURCE_ACCEPTED + OF_HEADS, SOURCE_TOKENS + OF_HEADS, "source"), "{{source}}"),
              note="Acceptance of the head or draft model that is loaded.", quiet="no head or draft model is loaded."),
        panel("By position in the draft", "percentunit",
              (f"{rate(AT_POSITION, 'position')} / ignoring (position) group_left {rate(DRAFTS)}", "{{position}}"),
              note="The share of steps with a draft that accepted the token at this position."),
        panel("By position and source", "percentunit",
              (f"{rate(SOURCE_AT_POSITION, 'source, position')}"
               f" / ignoring (position) group_left {rate(SOURCE_DRAFTS, 'source')}", "{{source}} {{position}}")),
    ),
    graphs(
        "Draft lengths",
        panel("Draft length", "short", (share("specmesh:draft_length_sum", "specmesh:draft_length_count"), "mean"),
              *quantiles("specmesh:draft_length", 0.5, 0.9)),
        panel("Drafts up to each length", "ops", (rate("specmesh:draft_length_bucket", "le"), "{{le}}")),
        panel("Drafts by source", "ops", (rate(SOURCE_DRAFTS, "source"), "{{source}}")),
    ),
    graphs(
        "Expected and accepted (auto)",
        panel("Confidence, expected, accepted", "short", (rate(SOURCE_CLAIMED), "by the drafter's confidence"),
              (rate(SOURCE_EXPECTED), "by measured acceptance"), (rate(SOURCE_ACCEPTED), "accepted, all methods"),
              note="Draft tokens per second expected to be accepted, and accepted."),
        panel("Accepted of expected, by source", "percentunit",
              (f"{rate(SOURCE_ACCEPTED, 'source')} / ({rate(SOURCE_EXPECTED, 'source')} > 0)", "{{source}}"),
              note="1: measured acceptance predicts well. Sources that fixed methods use, too, are higher."),
        panel("Expected of confidence, by source", "percentunit",
              (f"{rate(SOURCE_EXPECTED, 'source')} / ({rate(SOURCE_CLAIMED, 'source')} > 0)", "{{source}}"),
              note="Tokens expected to be accepted, per token by the drafter's confidence."),
    ),
    graphs(
        "Requests for drafts",
        panel("Origin of drafts", "ops", (rate("specmesh:drafts_came_total", "way"), "{{way}}"), stacked=True,
              note="kept: rest of an earlier draft; ahead: requested while a step ran; head: from the worker."),
        panel("Share of step thread time", "percentunit", (rate(ASKING, "way"), "{{way}}")),
        panel("Requests to the proposer", "ops", (rate("specmesh:draft_requests_total"), "all"),
              (rate("specmesh:draft_requests_ahead_total"), "sent ahead")),
        panel("Thread time per request", "s", (f"{rate(ASKING)} / {rate('specmesh:draft_requests_total')}", "mean")),
    ),
    graphs(
        "Unused drafts",
        panel("Failed requests", "ops", (rate("specmesh:draft_deadline_misses_total"), "deadline missed"),
              (rate("specmesh:draft_failures_total"), "failed"), note="Costs speed and never changes the text."),
        panel("Drafts", "ops", (rate("specmesh:drafts_refused_total"), "invalid"),
              (rate("specmesh:drafts_late_total"), "too late"),
              (rate("specmesh:drafts_dropped_total"), "prepared drafts the text left")),
        panel("Drafting off", "short",
              ("max by (instance) (specmesh:proposer_given_up)", "{{instance}}: proposer silent"),
              ("max by (instance) (specmesh:drafting_failed)", "{{instance}}: drafting failed"),
              note="1 while a worker runs without drafts."),
    ),
    graphs(
        "The audit",
        panel("Answers compared", "ops",
              (rate("specmesh:audit_replays_total", "proposer, result"), "{{proposer}}: {{result}}"),
              note="Answers generated again without drafts and compared, by result."),
        panel("Switched off by the audit", "short",
              ("max by (instance, proposer) (specmesh:proposer_switched_off)", "{{proposer}} at {{instance}}"),
              note="1: this streamer sends its requests without drafts."),
        panel("Namespaces", "short", ("sum(specmesh:draft_namespaces)", "with acceptance rates")),
    ),
    graphs(
        "The proposer",
        panel("Time for a batch", "s", *quantiles("specmesh:proposer_batch_seconds", 0.5, 0.99)),
        panel("Drafts by method", "ops", (rate("specmesh:proposer_drafts_total", "proposer"), "{{proposer}}")),
        panel("Draft length sent", "short",
              (f"{rate('specmesh:proposer_draft_tokens_total', 'proposer')}"
               f" / ({rate('specmesh:proposer_drafts_total', 'proposer')} > 0)", "{{proposer}}")),
        panel("Memory", "bytes", ("sum(specmesh:proposer_bytes)", "suffix index"),
              ('sum(process_resident_memory_bytes{role="proposer"})', "resident")),
    ),
    graphs(
        "Drafts for vLLM",
        panel("Draft tokens", "ops", (rate("specmesh:guest_draft_tokens_total", "engine"), "{{engine}}: drafted"),
              (rate("specmesh:guest_accepted_tokens_total", "engine"), "{{engine}}: accepted"),
              note="Of engines of another server that ask this proposer."),
        panel("Thread time per step", "s",
              (f"{rate('specmesh:guest_seconds_total', 'engine')}"
               f" / ({rate('specmesh:guest_steps_total', 'engine')} > 0)", "{{engine}}: all"),
              (f"{rate('specmesh:guest_waited_seconds_total', 'engine')}"
               f" / ({rate('specmesh:guest_steps_total', 'engine')} > 0)", "{{engine}}: waited")),
        panel("Answers", "ops", (rate("specmesh:guest_answers_total", "engine"), "{{engine}}: in time"),
              (rate("specmesh:guest_missed_answers_total", "engine"), "{{engine}}: missed"),
              (rate("specmesh:guest_gave_up_total", "engine"), "{{engine}}: gave up")),
    ),
    graphs(
        "Followed sequences",
        panel("Sequences", "short", ("sum(specmesh:proposer_sequences)", "followed"),
              ("sum(specmesh:proposer_texts_to_learn)", "ended, waiting to be learned")),
        panel("Tokens of text held", "short", ("sum(specmesh:proposer_text_tokens)", "tokens")),
        panel("Resent texts", "ops", (rate("specmesh:proposer_unknown_sequences_total"), "unknown to the proposer")),
        panel("Batches without drafts", "ops", (rate("specmesh:proposer_failures_total", "reason"), "{{reason}}"),
              quiet="no batch failed."),
    ),
    graphs(
        "Learned text",
        panel("Bytes on disk", "bytes",
              ("max(specmesh:store_bytes)", "bytes"), note="Of all proposers that share the folder."),
        panel("Tokens", "short", ("max(specmesh:store_tokens)", "in segments"),
              ("max(specmesh:store_learning_tokens)", "not in a segment yet")),
        panel("Store", "short",
              ("max(specmesh:store_segments)", "segments"),
              ("max(specmesh:store_namespaces)", "namespaces"),
              ("max(specmesh:store_corpora)", "corpora")),
    ),
    graphs(
        "Store maintenance",
        panel("Lost tokens", "ops", (rate("specmesh:store_evicted_tokens_total"), "evicted"),
              (rate("specmesh:store_dropped_tokens_total"), "dropped, came too fast")),
        panel("File errors", "short", ("sum(increase(specmesh:store_failures_total[R]))", "failed writes"),
              ("sum(increase(specmesh:store_damaged_files_total[R]))", "damaged files"),
              ("max(specmesh:store_unwritable)", "1: cannot be written")),
        panel("Refused corpora", "short",
              ("sum(increase(specmesh:corpora_refused_total[R])) by (reason)", "{{reason}}"),
              quiet="no part of a corpus was refused."),
    ),
)  # fmt: skip

MESH = (
    graphs(
        "Processes",
        panel("Ready", "short", ("min by (role, instance) (specmesh:process_ready)", "{{role}} {{instance}}")),
        panel("Members known to the streamer", "short",
              ('sum by (member_role, state) (specmesh:directory_members{role="streamer"}) > 0',
               "{{member_role}} {{state}}")),
        panel("Starts in the last hour", "short",
              ('sum by (role) (changes(process_start_time_seconds{job="specmesh"}[1h]))', "{{role}}")),
        FIRING,
    ),
    graphs(
        "Progress",
        panel("Time since work was completed", "s",
              ("max by (role, instance) (specmesh:process_progress_age_seconds)", "{{role}} {{instance}}"),
              note="While work waits; 0 when idle."),
        panel("Time since a message of the directory", "s",
              ("max by (role, instance) (specmesh:directory_silence_seconds)", "{{role}} {{instance}}"),
              note="It sends about two a second."),
        panel("Running and waiting work", "short",
              ("sum by (role, instance) (specmesh:process_load)", "{{role}} {{instance}}")),
    ),
    graphs(
        "Queues",
        panel("Waiting messages", "short", ("sum by (role, actor) (specmesh:bus_mailbox_depth)", "{{role}} {{actor}}")),
        panel("Waiting requests", "short",
              ("sum by (instance) (specmesh:num_requests_waiting)", "{{instance}}")),
        panel("Unsent bytes", "bytes", ("sum by (role) (specmesh:bus_outbox_bytes)", "{{role}}")),
    ),
    graphs(
        "Streams and credits",
        panel("Credits used", "bytes", ("sum by (role) (specmesh:bus_credits_outstanding_bytes)", "{{role}}"),
              note="Bytes of stream items that are sent but not read."),
        panel("Open streams", "short", ("sum by (role, end) (specmesh:bus_streams_open)", "{{role}} {{end}}")),
        panel("Sessions", "short", ("sum by (role, side) (specmesh:bus_peers)", "{{role}} {{side}}")),
    ),
    graphs(
        "Round trips",
        panel("By message kind, p50", "s", (quantile(0.5, "specmesh:bus_round_trip_seconds", "kind"), "{{kind}}"),
              note="An announcement is answered when something changes, or after half a second."),
        panel("By message kind, p99", "s", (quantile(0.99, "specmesh:bus_round_trip_seconds", "kind"), "{{kind}}")),
        panel("Request to the proposer", "s",
              (f"{rate(ASKING)} / {rate('specmesh:draft_requests_total')}", "thread time in the worker"),
              (quantile(0.99, "specmesh:proposer_batch_seconds"), "p99 in the proposer")),
    ),
    graphs(
        "Traffic",
        panel("Messages sent, by kind", "ops",
              (rate('specmesh:bus_messages_total{direction="sent"}', "kind"), "{{kind}}")),
        panel("Bytes sent, by kind", "Bps", (rate('specmesh:bus_bytes_total{direction="sent"}', "kind"), "{{kind}}")),
        panel("Messages per bundle", "short",
              (share("specmesh:bus_messages_total", "specmesh:bus_bundles_total", "role, direction"),
               "{{role}} {{direction}}")),
    ),
    graphs(
        "Problems",
        panel("Refused", "ops", (rate("specmesh:bus_refused_total", "role, reason"), "{{role}}: {{reason}}"),
              note="From non-members, invalid or too large.", quiet="nothing was refused."),
        panel("Dropped", "ops", (rate("specmesh:bus_dropped_total", "role, reason"), "{{role}}: {{reason}}"),
              note="Duplicates, stale and unsendable records.", quiet="nothing came twice or too late."),
        panel("Losses", "ops", (rate("specmesh:bus_peers_lost_total"), "connections lost"),
              (rate("specmesh:bus_handler_errors_total"), "handlers that failed")),
    ),
    graphs(
        "Machine",
        panel("Cores in use", "short", (rate('process_cpu_seconds_total{job="specmesh"}', "role"), "{{role}}")),
        panel("Resident memory", "bytes",
              ('sum by (role) (process_resident_memory_bytes{job="specmesh"})', "{{role}}")),
        panel("Open files, share of the limit", "percentunit",
              ('max by (role) (process_open_fds{job="specmesh"} / process_max_fds{job="specmesh"})', "{{role}}")),
        panel("HTTP connections", "short", ("sum(specmesh:http_connections)", "open")),
        panel("Bodies of requests in progress", "bytes", ("max(specmesh:http_body_bytes)", "reserved")),
    ),
)  # fmt: skip

CACHE = (
    numbers(
        "Now",
        panel("KV pages in use", "percentunit", ("max(specmesh:kv_cache_usage_perc)", "in use")),
        panel("Prompt tokens found in the cache", "percentunit",
              (share("specmesh:prefix_cache_hits_total", "specmesh:prefix_cache_queries_total"), "found")),
        panel("Free or evictable pages", "short", ('sum(specmesh:kv_pages{state!="in_use"})', "pages")),
        panel("Preemptions", "short",
              ("sum(increase(specmesh:num_preemptions_total[R]))", "for lack of pages")),
    ),
    graphs(
        "Pages",
        panel("KV pages by state", "short", ("sum by (state) (specmesh:kv_pages)", "{{state}}"), stacked=True,
              note="In use, cached (unused, but their text can be found) and free: together all pages."),
        panel("In use, by worker", "percentunit", ("specmesh:kv_cache_usage_perc", "{{instance}}")),
        panel("Cached, by worker", "short", ("specmesh:prefix_cache_pages", "{{instance}}")),
    ),
    graphs(
        "Handed over between workers",
        panel("KV pages", "short", (rate("specmesh:handover_pages_total", "way"), "{{way}}"),
              (rate("specmesh:handover_read_pages_total"), "read by NIXL"), note="Per second."),
        panel("Bytes", "Bps", (rate("specmesh:handover_bytes_total", "way"), "{{way}}")),
        panel("Fetches, by end", "ops", (rate("specmesh:handovers_total", "end"), "{{end}}")),
        panel("Seconds for a fetch", "s",
              (share("specmesh:handover_seconds_total", "specmesh:handovers_total"), "computing included"),
              quiet="no worker fetched pages from another one."),
        panel("Pages computed after all", "short", (rate("specmesh:handover_recomputed_pages_total"), "pages"),
              note="Per second: a prefill worker was to compute them, and they didn't come."),
    ),
    graphs(
        "Prefix cache",
        panel("Tokens of started sequences", "short", (rate("specmesh:prefix_cache_hits_total"), "found"),
              (f"{rate('specmesh:prefix_cache_queries_total')} - {rate('specmesh:prefix_cache_hits_total')}",
               "to compute"),
              note="Per second.", stacked=True),
        panel("Hit rate", "percentunit",
              (share("specmesh:prefix_cache_hits_total", "specmesh:prefix_cache_queries_total", "instance"),
               "{{instance}}")),
        panel("Evicted pages", "ops", (rate("specmesh:prefix_cache_evictions_total", "instance"), "{{instance}}"),
              note="Cached pages evicted to make room."),
    ),
    graphs(
        "Pressure",
        panel("Requests", "short", ("sum(specmesh:num_requests_running)", "in the batch"),
              ("sum(specmesh:num_requests_waiting)", "waiting")),
        panel("Preemptions", "ops", (rate("specmesh:num_preemptions_total", "instance"), "{{instance}}"),
              note="Preempted sequences are computed again, with the same text."),
        panel("Time to first token", "s", *quantiles("specmesh:time_to_first_token_seconds", 0.5, 0.95)),
    ),
)  # fmt: skip

BOARDS = {
    "serving": ("serving", SERVING),
    "speculation": ("speculation", SPECULATION),
    "mesh": ("mesh", MESH),
    "cache": ("KV and prefix cache", CACHE),
}


def files() -> dict[Path, str]:
    made = {name: dashboard(name, title, rows) for name, (title, rows) in BOARDS.items()}
    return {FOLDER / f"{name}.json": json.dumps(each, indent=1) + "\n" for name, each in made.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description="Makes the dashboards that Grafana reads.")
    parser.add_argument("--check", action="store_true", help="only tell which are behind")
    options = parser.parse_args()
    made = files()
    stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    strange = [path for path in FOLDER.glob("*.json") if path not in made]
    for path in [*stale, *strange]:
        if options.check:
            print(f"{path.name} is not what deploy/dashboards.py makes: run it", file=sys.stderr)
        elif path in made:
            path.write_text(made[path])
            print(f"wrote {path.name}")
        else:
            path.unlink()
            print(f"removed {path.name}")
    return 1 if options.check and (stale or strange) else 0


if __name__ == "__main__":
    sys.exit(main())

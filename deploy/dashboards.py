"""The dashboards of deploy/grafana, as a person reads them: boards of rows of panels, a panel a title, a unit and its
queries. Makes the JSON that Grafana reads; `--check` changes nothing and exits 1 when that is behind.

In a query `[R]` is the interval of Grafana's choice. A panel that has no data unless something is wrong says so in
`quiet`; every other has to have data under load (tests/deploy/test_dashboards.py asks a real Prometheus).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from grafana_json import Query, dashboard, graphs, numbers, panel  # noqa: E402

FOLDER = HERE / "grafana" / "dashboards"

# Queries that come again and again ----------------------------------------------------------------------------


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
ASKING = "specmesh:draft_asking_seconds_total"
STEP = "specmesh:step_seconds"
NAIVE_SECONDS = "specmesh:spec_decode_naive_seconds_total"
DRAFTED_SECONDS = "specmesh:spec_decode_drafted_seconds_total"

# What the same tokens would have taken without drafts, over what they took.
GAIN = (
    f"({rate(f'{STEP}_sum')} - {rate(DRAFTED_SECONDS)} + {rate(NAIVE_SECONDS)})"
    f" / ({rate(f'{STEP}_sum')} + {rate(ASKING)})"
)
GAIN_WHERE_DRAFTED = f"{rate(NAIVE_SECONDS)} / {rate(DRAFTED_SECONDS)}"
# A row of a verify step is wasted when its token didn't stand.
WASTED = f"({rate(DRAFTED)} - {rate(ACCEPTED)}) / ({rate(STEPS)} + {rate(DRAFTED)})"
FIRING = panel(
    "Alerts that fire", "short", ('count by (alertname) (ALERTS{alertstate="firing"})', "{{alertname}}"),
    note="What each means: docs/operating.md.", quiet="nothing is wrong.",
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
              (GAIN, "times"), note="1: as fast as without; see the board speculation."),
        panel("Processes up", "short", ('sum(up{job="specmesh"})', "up")),
    ),
    graphs(
        "What a caller waits for",
        panel("Time to first token", "s", *quantiles("specmesh:time_to_first_token_seconds", 0.5, 0.95, 0.99)),
        panel("Between messages of tokens", "s", *quantiles("specmesh:inter_token_latency_seconds", 0.5, 0.95, 0.99),
              note="A message brings all tokens of a verify step."),
        panel("Whole request", "s", *quantiles("specmesh:e2e_request_latency_seconds", 0.5, 0.95, 0.99)),
    ),
    graphs(
        "How much",
        panel("Tokens per second", "short", (rate("specmesh:prompt_tokens_total"), "prompt"),
              (rate("specmesh:generation_tokens_total"), "generated")),
        panel("Tokens of a prompt", "short", *quantiles("specmesh:request_prompt_tokens", 0.5, 0.95)),
        panel("Tokens of an answer", "short", *quantiles("specmesh:request_generation_tokens", 0.5, 0.95)),
    ),
    graphs(
        "How they end",
        panel("Answers by end", "reqps",
              (rate("specmesh:request_success_total", "finished_reason"), "{{finished_reason}}")),
        panel("HTTP responses", "reqps", (rate("specmesh:http_responses_total", "route, code"), "{{code}} {{route}}")),
        panel("At the target, by end", "reqps", (rate("specmesh:target_requests_total", "end"), "{{end}}")),
    ),
    graphs(
        "Where they wait",
        panel("Requests", "short", ("sum(specmesh:door_requests_running)", "admitted"),
              ("sum(specmesh:num_requests_running)", "in the batch"),
              ("sum(specmesh:num_requests_waiting)", "waiting")),
        panel("Until the prompt is tokens", "s", *quantiles("specmesh:request_encode_time_seconds", 0.5, 0.99)),
        panel("Tokenizer, p99 by work", "s", (quantile(0.99, "specmesh:tokenizer_seconds", "work"), "{{work}}")),
    ),
    graphs(
        "The step",
        panel("A step, p50 by rows", "s", (quantile(0.5, STEP, "rows"), "up to {{rows}}")),
        panel("A step as learned, by rows", "s", ("max by (rows) (specmesh:step_seconds_predicted)", "{{rows}}"),
              note="At 1024 tokens of context."),
        panel("Share of the time in steps", "percentunit", (rate(f"{STEP}_sum", "instance"), "{{instance}}")),
    ),
    graphs(
        "What went wrong",
        FIRING,
        panel("Begun again", "ops", (rate("specmesh:request_retries_total"), "after a target was lost"),
              (rate("specmesh:num_preemptions_total"), "after its pages went to another")),
        panel("Prompts refused", "ops", (rate("specmesh:tokenizer_refused_total", "reason"), "{{reason}}"),
              quiet="no prompt was too long or malformed."),
    ),
)

SPECULATION = (
    numbers(
        "Now",
        panel("Gain against no speculation", "short", (GAIN, "times"),
              note="What the same tokens would have taken without drafts, by learned step times, over what they took."),
        panel("Draft tokens accepted", "percentunit", (share(ACCEPTED, DRAFTED), "accepted"),
              note="Of the tokens drafted and verified; the model's own isn't counted."),
        panel("Tokens of a step with a draft", "short", (f"1 + {share(ACCEPTED, DRAFTS)}", "tokens")),
        panel("Steps with a draft", "percentunit", (share(DRAFTS, STEPS), "with"), note="Per sequence and step."),
        panel("Verified rows wasted", "percentunit",
              (WASTED, "wasted"), note="Rows of drafts that didn't stand, of all rows."),
        panel("Time spent asking", "percentunit", (f"{rate(ASKING)} / {rate(f'{STEP}_sum')}", "of the steps' time")),
    ),
    graphs(
        "Does it pay?",
        panel("Gain", "short", (GAIN, "all steps"), (GAIN_WHERE_DRAFTED, "steps with a draft")),
        panel("Rows of drafts", "short", (rate(ACCEPTED), "stood"), (f"{rate(DRAFTED)} - {rate(ACCEPTED)}", "wasted"),
              note="Per second.", stacked=True),
        panel("Tokens of a step, by method", "short", (f"1 + {share(ACCEPTED, STEPS, 'proposer')}", "{{proposer}}"),
              note="Steps without a draft among them."),
        panel("Steps of a sequence", "ops", (rate(DRAFTS), "with a draft"), (rate(EMPTY), "without"), stacked=True),
    ),
    graphs(
        "Acceptance",
        panel("By method", "percentunit",
              
              (share(ACCEPTED, DRAFTED, "proposer, verify_strategy"), "{{proposer}} / {{verify_strategy}}")),
        panel("By where the draft came from", "percentunit",
              (share(SOURCE_ACCEPTED, SOURCE_TOKENS, "source"), "{{source}}")),
        panel("By position in the draft", "percentunit",
              (f"{rate(AT_POSITION, 'position')} / ignoring (position) group_left {rate(DRAFTS)}", "{{position}}"),
              note="Of the steps with a draft, the share in which the token at this position was kept."),
        panel("By position and source", "percentunit",
              (f"{rate(SOURCE_AT_POSITION, 'source, position')}"
               f" / ignoring (position) group_left {rate(SOURCE_DRAFTS, 'source')}", "{{source}} {{position}}")),
    ),
    graphs(
        "Chosen lengths",
        panel("Tokens of a draft", "short", (share("specmesh:draft_length_sum", "specmesh:draft_length_count"), "mean"),
              *quantiles("specmesh:draft_length", 0.5, 0.9)),
        panel("Drafts up to a length", "ops", (rate("specmesh:draft_length_bucket", "le"), "{{le}}")),
        panel("Drafts by source", "ops", (rate(SOURCE_DRAFTS, "source"), "{{source}}")),
    ),
    graphs(
        "Expected and seen (auto)",
        panel("Claimed, expected, seen", "short", (rate(SOURCE_CLAIMED), "claimed by proposers"),
              (rate(SOURCE_EXPECTED), "what claims are worth"), (rate(SOURCE_ACCEPTED), "seen, of all methods"),
              note="Tokens per second that were to stand, and that did."),
        panel("Seen of expected, by source", "percentunit",
              (f"{rate(SOURCE_ACCEPTED, 'source')} / ({rate(SOURCE_EXPECTED, 'source')} > 0)", "{{source}}"),
              note="1: the target knows what drafts are worth. Sources that fixed methods use, too, stand higher."),
        panel("Claims kept, by source", "percentunit",
              (f"{rate(SOURCE_EXPECTED, 'source')} / ({rate(SOURCE_CLAIMED, 'source')} > 0)", "{{source}}"),
              note="How much of what a proposer claims the target believes."),
    ),
    graphs(
        "Asking",
        panel("How drafts came", "ops", (rate("specmesh:drafts_came_total", "way"), "{{way}}"), stacked=True,
              note="Left of an earlier one (lease), asked for while a step ran (ahead), waited for (asked), or none."),
        panel("Share of the time", "percentunit", (rate(ASKING, "way"), "{{way}}"), note="Of the step thread."),
        panel("Questions", "ops", (rate("specmesh:draft_requests_total"), "all"),
              (rate("specmesh:draft_requests_ahead_total"), "nobody waited for")),
        panel("Thread time of a question", "s", (f"{rate(ASKING)} / {rate('specmesh:draft_requests_total')}", "mean")),
    ),
    graphs(
        "Drafts that came to nothing",
        panel("Answers", "ops", (rate("specmesh:draft_deadline_misses_total"), "not in time"),
              (rate("specmesh:draft_failures_total"), "failed"), note="Costs speed, never the text."),
        panel("Drafts", "ops", (rate("specmesh:drafts_refused_total"), "impossible"),
              (rate("specmesh:drafts_late_total"), "for what the text had passed"),
              (rate("specmesh:leases_dropped_total"), "leases that the text left")),
        panel("Without drafts", "short",
              ("max by (instance) (specmesh:proposer_given_up)", "{{instance}}: proposer silent"),
              ("max by (instance) (specmesh:drafting_failed)", "{{instance}}: drafting failed"),
              note="1 while a target does without."),
    ),
    graphs(
        "Trust",
        panel("Purse", "s", ("sum by (instance) (specmesh:draft_purse_seconds)", "{{instance}}"),
              note="What drafts may still cost before they have to bring something, of all namespaces."),
        panel("Namespaces", "short", ("sum(specmesh:draft_namespaces)", "judged apart"),
              ("sum(specmesh:draft_namespaces_insolvent)", "with an empty purse")),
        panel("The audit", "ops",
              (rate("specmesh:audit_replays_total", "proposer, result"), "{{proposer}}: {{result}}"),
              note="Answers computed again without drafts, and compared."),
        panel("Switched off by the audit", "short",
              ("max by (instance, proposer) (specmesh:proposer_switched_off)", "{{proposer}} at {{instance}}")),
    ),
    graphs(
        "Succession",
        panel("A candidate's drafts, of those in use", "percentunit",
              ("max by (instance) (specmesh:proposer_candidate_share)", "{{instance}}"),
              note="0: there is no candidate."),
        panel("Candidates that took over", "short",
              ("sum by (instance) (specmesh:proposer_takeovers_total)", "{{instance}}")),
    ),
    graphs(
        "The proposer",
        panel("Time for a batch", "s", *quantiles("specmesh:proposer_batch_seconds", 0.5, 0.99)),
        panel("Drafts by method", "ops", (rate("specmesh:proposer_drafts_total", "proposer"), "{{proposer}}")),
        panel("Tokens of a draft said", "short",
              (f"{rate('specmesh:proposer_draft_tokens_total', 'proposer')}"
               f" / ({rate('specmesh:proposer_drafts_total', 'proposer')} > 0)", "{{proposer}}")),
        panel("Memory", "bytes", ("sum by (proposer) (specmesh:proposer_bytes)", "{{proposer}}"),
              ('sum(process_resident_memory_bytes{role="proposer"})', "resident")),
    ),
    graphs(
        "What it follows",
        panel("Sequences", "short", ("sum(specmesh:proposer_sequences)", "followed"),
              ("sum(specmesh:proposer_texts_to_learn)", "ended, to be learned")),
        panel("Tokens of text held", "short", ("sum(specmesh:proposer_text_tokens)", "tokens")),
        panel("Texts sent again", "ops", (rate("specmesh:proposer_unknown_sequences_total"), "unknown here")),
        panel("Batches without drafts", "ops", (rate("specmesh:proposer_failures_total", "reason"), "{{reason}}"),
              quiet="no batch failed."),
    ),
    graphs(
        "What it has learned",
        panel("Bytes on disk", "bytes",
              ("max(specmesh:store_bytes)", "bytes"), note="Of all processes that share the folder."),
        panel("Tokens", "short", ("max(specmesh:store_tokens)", "in segments"),
              ("sum(specmesh:store_learning_tokens)", "in none yet")),
        panel("Kept", "short",
              ("max(specmesh:store_segments)", "segments"),
              ("max(specmesh:store_namespaces)", "namespaces"), ("max(specmesh:store_corpora)", "corpora")),
        panel("Would be lost in a crash", "s", ("max(specmesh:store_unwritten_seconds)", "age of the oldest")),
    ),
    graphs(
        "What becomes of that",
        panel("Segments", "ops", (rate("specmesh:store_merges_total"), "merged"),
              (rate("specmesh:store_evicted_segments_total"), "evicted")),
        panel("Tokens that went", "ops", (rate("specmesh:store_evicted_tokens_total"), "evicted"),
              (rate("specmesh:store_dropped_tokens_total"), "came too fast")),
        panel("Trouble with files", "short", ("sum(increase(specmesh:store_failures_total[R]))", "writes that failed"),
              ("sum(increase(specmesh:store_damaged_files_total[R]))", "damaged files")),
    ),
)  # fmt: skip

MESH = (
    graphs(
        "Who is there",
        panel("Ready", "short", ("min by (role, instance) (specmesh:process_ready)", "{{role}} {{instance}}")),
        panel("As the door sees them", "short",
              ('sum by (member_role, state) (specmesh:directory_members{role="streamer"}) > 0',
               "{{member_role}} {{state}}")),
        panel("Starts in the last hour", "short",
              ('sum by (role) (changes(process_start_time_seconds{job="specmesh"}[1h]))', "{{role}}")),
        FIRING,
    ),
    graphs(
        "Do they get on?",
        panel("Since the last piece of work", "s",
              ("max by (role, instance) (specmesh:process_progress_age_seconds)", "{{role}} {{instance}}"),
              note="While work waits; 0 when idle."),
        panel("Heartbeats: since the directory spoke", "s",
              ("max by (role, instance) (specmesh:directory_silence_seconds)", "{{role}} {{instance}}"),
              note="It does about twice a second."),
        panel("Work that runs or waits", "short",
              ("sum by (role, instance) (specmesh:process_load)", "{{role}} {{instance}}")),
    ),
    graphs(
        "Queues",
        panel("Mail waiting", "short", ("sum by (role, actor) (specmesh:bus_mailbox_depth)", "{{role}} {{actor}}")),
        panel("Requests that wait for a place", "short",
              ("sum by (instance) (specmesh:num_requests_waiting)", "{{instance}}")),
        panel("Waiting to be sent", "bytes", ("sum by (role) (specmesh:bus_outbox_bytes)", "{{role}}")),
    ),
    graphs(
        "Streams and credits",
        panel("Credits used", "bytes", ("sum by (role) (specmesh:bus_credits_outstanding_bytes)", "{{role}}"),
              note="Bytes of stream items sent and not yet read."),
        panel("Streams open", "short", ("sum by (role, end) (specmesh:bus_streams_open)", "{{role}} {{end}}")),
        panel("Sessions", "short", ("sum by (role, side) (specmesh:bus_peers)", "{{role}} {{side}}")),
    ),
    graphs(
        "Round trips",
        panel("By kind asked, p50", "s", (quantile(0.5, "specmesh:bus_round_trip_seconds", "kind"), "{{kind}}"),
              note="An announcement is held until something changes: half a second is its rule."),
        panel("By kind asked, p99", "s", (quantile(0.99, "specmesh:bus_round_trip_seconds", "kind"), "{{kind}}")),
        panel("A question to the proposer", "s",
              (f"{rate(ASKING)} / {rate('specmesh:draft_requests_total')}", "thread time at the target"),
              (quantile(0.99, "specmesh:proposer_batch_seconds"), "p99 at the proposer")),
    ),
    graphs(
        "Traffic",
        panel("Messages sent, by kind", "ops",
              (rate('specmesh:bus_messages_total{direction="sent"}', "kind"), "{{kind}}")),
        panel("Bytes sent, by kind", "Bps", (rate('specmesh:bus_bytes_total{direction="sent"}', "kind"), "{{kind}}")),
        panel("Messages of a bundle", "short",
              (share("specmesh:bus_messages_total", "specmesh:bus_bundles_total", "role, direction"),
               "{{role}} {{direction}}")),
    ),
    graphs(
        "What went wrong",
        panel("Refused", "ops", (rate("specmesh:bus_refused_total", "role, reason"), "{{role}}: {{reason}}"),
              note="Strangers, and what doesn't fit.", quiet="nobody sent what is refused."),
        panel("Dropped", "ops", (rate("specmesh:bus_dropped_total", "role, reason"), "{{role}}: {{reason}}"),
              note="Duplicates, stale and unsendable records.", quiet="nothing came twice or too late."),
        panel("Losses", "ops", (rate("specmesh:bus_peers_lost_total"), "peers given up"),
              (rate("specmesh:bus_resent_total"), "records sent again"),
              (rate("specmesh:bus_handler_errors_total"), "handlers that failed")),
    ),
    graphs(
        "The machine",
        panel("Cores in use", "short", (rate('process_cpu_seconds_total{job="specmesh"}', "role"), "{{role}}")),
        panel("Resident memory", "bytes",
              ('sum by (role) (process_resident_memory_bytes{job="specmesh"})', "{{role}}")),
        panel("Open files, of those allowed", "percentunit",
              ('max by (role) (process_open_fds{job="specmesh"} / process_max_fds{job="specmesh"})', "{{role}}")),
        panel("HTTP connections", "short", ("sum(specmesh:http_connections)", "open")),
    ),
)  # fmt: skip

CACHE = (
    numbers(
        "Now",
        panel("KV pages in use", "percentunit", ("max(specmesh:kv_cache_usage_perc)", "in use")),
        panel("Prompt tokens found computed", "percentunit",
              (share("specmesh:prefix_cache_hits_total", "specmesh:prefix_cache_queries_total"), "found")),
        panel("Pages free or given for the asking", "short", ('sum(specmesh:kv_pages{state!="in_use"})', "pages")),
        panel("Sequences interrupted", "short",
              ("sum(increase(specmesh:num_preemptions_total[R]))", "for want of pages")),
    ),
    graphs(
        "Pages",
        panel("KV pages by state", "short", ("sum by (state) (specmesh:kv_pages)", "{{state}}"), stacked=True,
              note="In use, cached (nobody uses them, their text can be found) and free: all of them."),
        panel("In use, by target", "percentunit", ("specmesh:kv_cache_usage_perc", "{{instance}}")),
        panel("Cached, by target", "short", ("specmesh:prefix_cache_pages", "{{instance}}")),
    ),
    graphs(
        "Prefix cache",
        panel("Tokens of texts that came to run", "short", (rate("specmesh:prefix_cache_hits_total"), "found"),
              (f"{rate('specmesh:prefix_cache_queries_total')} - {rate('specmesh:prefix_cache_hits_total')}",
               "to compute"),
              note="Per second.", stacked=True),
        panel("Found, of all", "percentunit",
              (share("specmesh:prefix_cache_hits_total", "specmesh:prefix_cache_queries_total", "instance"),
               "{{instance}}")),
        panel("Pages given away", "ops", (rate("specmesh:prefix_cache_evictions_total", "instance"), "{{instance}}"),
              note="Cached text that went for want of room."),
    ),
    graphs(
        "Pressure",
        panel("Requests", "short", ("sum(specmesh:num_requests_running)", "in the batch"),
              ("sum(specmesh:num_requests_waiting)", "waiting")),
        panel("Sequences interrupted", "ops", (rate("specmesh:num_preemptions_total", "instance"), "{{instance}}"),
              note="Their pages went to one before them; they are computed again, with the same text."),
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

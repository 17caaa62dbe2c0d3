from __future__ import annotations

from loadtest.server_metrics import counted, merged, parse

PAGE = """# HELP specmesh:generation_tokens_total Tokens
# TYPE specmesh:generation_tokens_total counter
specmesh:generation_tokens_total{model_name="a {b}"} 10.0
specmesh:spec_decode_num_draft_tokens_total{model_name="a",proposer="ngram"} 8
specmesh:spec_decode_num_draft_tokens_total{model_name="a",proposer="suffix"} 2
specmesh:spec_decode_num_accepted_tokens_total{model_name="a",proposer="ngram"} 5 1712345678
specmesh:num_requests_running 3
broken line here
other{
"""


def test_samples_are_read_with_their_labels_and_lines_that_do_not_parse_are_skipped() -> None:
    samples = parse(PAGE)
    assert samples["specmesh:generation_tokens_total", 'model_name="a {b}"'] == 10.0
    assert samples["specmesh:num_requests_running", ""] == 3
    assert len(samples) == 5


def test_growth_is_summed_over_labels() -> None:
    after = parse(PAGE.replace(" 10.0", " 25.0").replace(" 8\n", " 18\n"))
    grown = counted(parse(PAGE), after)
    assert grown["generation_tokens_total"] == 15
    assert grown["spec_decode_num_draft_tokens_total"] == 10
    assert "num_requests_running" not in grown


def test_the_same_counters_under_two_prefixes_are_counted_once() -> None:
    twice = parse(PAGE + PAGE.replace("specmesh:", "vllm:"))
    assert counted({}, twice)["generation_tokens_total"] == 10


def test_a_counter_that_fell_has_restarted() -> None:
    assert counted(parse(PAGE), parse(PAGE.replace(" 10.0", " 4.0")))["generation_tokens_total"] == 4


def test_processes_are_added_and_give_an_acceptance_rate() -> None:
    grown = counted({}, parse(PAGE))
    total = merged([grown, grown])
    assert total["generation_tokens_total"] == 20
    assert total["acceptance_rate"] == 0.5


def test_rows_that_were_verified_for_nothing_are_a_share_of_all_rows() -> None:
    drafts = {"spec_decode_num_drafts_total": 4.0, "spec_decode_num_draft_tokens_total": 16.0,
              "spec_decode_num_accepted_tokens_total": 6.0}  # fmt: skip
    assert merged([drafts])["wasted_rows"] == 10 / 20
    # Where steps without a draft are counted they are rows, too.
    assert merged([{**drafts, "spec_decode_num_steps_total": 9.0}])["wasted_rows"] == 10 / 25

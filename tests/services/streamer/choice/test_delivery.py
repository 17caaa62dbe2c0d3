from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizer import END_OF_TEXT, byte_level_tokenizer

from services.api.messages import Run, TokenLogprob
from services.streamer.choice.delivery import Delivery, Piece, TokenOrigin, join, slices
from services.streamer.choice.detokenize import Vocabulary
from services.streamer.choice.stops import NO_STOPS, StopTable

TOKENIZER = byte_level_tokenizer()
VOCABULARY = Vocabulary(TOKENIZER)


def delivery(*stops: str, min_tokens: int = 0, tokens_shown: bool = True, origins_shown: bool = False) -> Delivery:
    detokenizer = VOCABULARY.detokenizer([])
    table = StopTable(stops) if stops else NO_STOPS
    return Delivery(detokenizer, table, min_tokens=min_tokens, tokens_shown=tokens_shown, origins_shown=origins_shown)


def token(text: str) -> int:
    return int(TOKENIZER.token_to_id(text))


def logprobs(ids: list[int]) -> list[TokenLogprob]:
    """Told apart by their values: minus the token's id."""
    return [TokenLogprob(logprob=-float(each)) for each in ids]


def together(pieces: list[Piece]) -> Piece:
    whole = Piece("")
    for piece in pieces:
        whole.text += piece.text
        whole.ids += piece.ids
        whole.logprobs += piece.logprobs
        whole.offsets += piece.offsets
        join(whole.runs, piece.runs)
    return whole


def test_without_stops_and_logprobs_text_is_all_there_is() -> None:
    plain = delivery(tokens_shown=False)
    assert plain.push([104, 105], None) == Piece("hi")
    assert plain.count == 2


def test_a_stop_string_inside_an_accepted_run_trims_text_ids_and_logprobs_together() -> None:
    run = [token("hello"), token("Ġthe"), token("stop"), token("Ġfox")]
    ours = delivery("stop")
    piece = ours.push(run, logprobs(run))
    assert piece.text == "hello the"
    assert piece.ids == run[:2]
    assert [each.logprob for each in piece.logprobs] == [-float(each) for each in run[:2]]
    assert piece.offsets == [0, 5]
    assert ours.stopped_by == "stop"
    # Up to the token that completed the stop string; what came after it in the run was never asked for.
    assert ours.count == 3


def test_a_token_that_is_cut_in_two_is_kept_with_its_first_half() -> None:
    run = [token("hello"), token("Ġworld")]
    piece = delivery(" wor").push(run, None)
    assert (piece.text, piece.ids) == ("hello", run[:1])
    piece = delivery("lo").push(run, None)
    assert (piece.text, piece.ids) == ("hel", run[:1])


def test_tokens_wait_with_the_text_that_may_become_a_stop_string() -> None:
    ours = delivery("STOP")
    first = ours.push([token("hello"), token("ST")], None)
    assert (first.text, first.ids) == ("hello", [token("hello")])
    second = ours.push([token("th")], None)
    assert (second.text, second.ids, second.offsets) == ("STth", [token("ST"), token("th")], [5, 7])


def test_tokens_of_an_unfinished_character_wait_for_it() -> None:
    fox = list("🦊".encode())
    ours = delivery()
    assert ours.push(fox[:2], None) == Piece("")
    assert ours.push(fox[2:], None) == Piece("🦊", ids=fox, offsets=[0, 0, 0, 0])


def test_a_stop_string_of_a_split_character_takes_all_its_tokens() -> None:
    run = [104, *"🦊".encode()]
    piece = delivery("🦊").push(run, None)
    assert (piece.text, piece.ids) == ("h", [104])


def test_the_flush_shows_what_was_held() -> None:
    ours = delivery("STOP")
    ours.push([token("ST")], None)
    assert ours.flush() == Piece("ST", ids=[token("ST")], offsets=[0])


def test_the_flush_shows_half_a_character_as_its_replacement() -> None:
    ours = delivery()
    ours.push([0xF0, 0x9F], None)
    assert ours.flush() == Piece("\ufffd", ids=[0xF0, 0x9F], offsets=[0, 0])


def test_a_stop_string_before_min_tokens_does_not_count() -> None:
    ours = delivery("h", min_tokens=3)
    assert together([ours.push([104], None), ours.push([104, 105], None)]).text == "hhi"
    assert ours.push([104], None).text == ""
    assert (ours.stopped_by, ours.count) == ("h", 4)


def test_a_stop_string_that_the_end_completes_counts_behind_min_tokens_alone() -> None:
    """Half a character becomes its replacement when nothing follows."""
    half = "é".encode()[:1]
    for min_tokens, told in ((1, ("", "\ufffd")), (2, ("\ufffd", None))):
        ours = delivery("\ufffd", min_tokens=min_tokens)
        ours.push([*half], None)
        assert (ours.flush().text, ours.stopped_by) == told


def test_special_tokens_have_no_text_but_are_told() -> None:
    special = token(END_OF_TEXT)
    piece = delivery().push([104, special, 105], None)
    assert (piece.text, piece.ids, piece.offsets) == ("hi", [104, special, 105], [0, 1, 1])


def test_origins_are_told_with_their_tokens() -> None:
    ours = delivery(origins_shown=True)
    run = [token("hello"), token("Ġthe"), token("Ġfox")]
    piece = ours.push(run, None, [Run(length=3, drafted=4, accepted=2, source="suffix", match_length=7)])
    assert piece.runs == [TokenOrigin(1, "suffix", 7, drafted=4, accepted=2, tokens=3)]
    assert ours.push([104], None, [Run(length=1, drafted=0, accepted=0)]).runs == [TokenOrigin(2)]


def test_nothing_is_said_of_origins_unless_it_was_asked_for() -> None:
    assert delivery().push([104], None, [Run(length=1, drafted=1, accepted=0, source="ngram")]).runs == []


def test_a_run_is_cut_where_its_tokens_are_held_back_and_its_parts_add_up() -> None:
    ours = delivery("STOP", tokens_shown=False, origins_shown=True)
    run = Run(length=3, drafted=5, accepted=2, source="ngram", match_length=2)
    first = ours.push([token("hello"), token("ST"), token("th")], None, [run])
    assert first.runs == [TokenOrigin(1, "ngram", 2, drafted=5, accepted=2, tokens=3)]
    first = ours.push([token("hello"), token("th"), token("ST")], None, [run])
    # Both draft tokens leave; the target's own token, and with it what it was put in the place of, waits.
    assert first.runs == [TokenOrigin(2, "ngram", 2, drafted=2, accepted=2, tokens=2)]
    second = ours.flush()
    assert second.runs == [TokenOrigin(2, "ngram", 2, drafted=3, accepted=0, tokens=1)]
    assert together([first, second]).runs == [TokenOrigin(2, "ngram", 2, drafted=5, accepted=2, tokens=3)]


def test_a_run_is_cut_where_a_stop_string_cuts_its_tokens() -> None:
    run = [token("hello"), token("Ġthe"), token("stop"), token("Ġfox")]
    piece = delivery("stop", origins_shown=True).push(run, None, [Run(length=4, drafted=3, accepted=3, source="a")])
    assert piece.ids == run[:2]
    assert piece.runs == [TokenOrigin(1, "a", 0, drafted=2, accepted=2, tokens=2)]


def test_drafts_behind_the_end_of_an_answer_are_told_with_its_last_token() -> None:
    # max_tokens: two of the accepted tokens were wanted.
    piece = delivery(origins_shown=True).push([104, 105], None, [Run(length=2, drafted=6, accepted=2, source="a")])
    assert piece.runs == [TokenOrigin(1, "a", 0, drafted=6, accepted=2, tokens=2)]


def test_tokens_of_a_target_that_says_nothing_of_runs_have_no_source() -> None:
    assert delivery(origins_shown=True).push([104, 105], None).runs == [TokenOrigin(1, tokens=2)]


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_runs_cover_what_is_shown_however_it_is_cut(data: st.DataObject) -> None:
    alphabet = st.sampled_from([97, 98, *"é".encode(), token("ST"), token("OP")])
    stops = data.draw(st.lists(st.sampled_from(["STOP", "ab", "é", "STa"]), max_size=2))
    ours = delivery(*stops, tokens_shown=False, origins_shown=True)
    pieces, sent = [], []
    for _ in range(data.draw(st.integers(0, 5))):
        ids = data.draw(st.lists(alphabet, min_size=1, max_size=5))
        accepted = data.draw(st.integers(max(0, len(ids) - 1), len(ids)))
        sent.append(Run(length=len(ids), drafted=accepted + data.draw(st.integers(0, 3)), accepted=accepted))
        pieces.append(ours.push(ids, None, sent[-1:]))
        if ours.stopped_by is not None:
            break
    if ours.stopped_by is None:
        pieces.append(ours.flush())
    for piece in pieces:
        assert sum(run.tokens for run in piece.runs) == len(piece.ids)
        assert all(0 <= run.accepted <= min(run.drafted, run.tokens) for run in piece.runs)
    whole = together(pieces)
    assert [run.step for run in whole.runs] == list(range(1, len(whole.runs) + 1))
    # All but the last are whole steps; without a stop string that one is, too.
    complete = whole.runs if ours.stopped_by is None else whole.runs[:-1]
    for run, asked in zip(complete, sent, strict=False):
        assert (run.tokens, run.drafted, run.accepted) == (asked.length, asked.drafted, asked.accepted)
    if ours.stopped_by is None:
        assert len(whole.runs) == len(sent)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_how_tokens_are_grouped_into_messages_changes_nothing(data: st.DataObject) -> None:
    alphabet = st.sampled_from([97, 98, 99, *"é".encode(), token("th"), token("ST"), token("OP")])
    ids = data.draw(st.lists(alphabet, max_size=15))
    stops = data.draw(st.lists(st.sampled_from(["STOP", "ab", "é", "T", "OPa", "thST"]), max_size=3))
    min_tokens = data.draw(st.integers(0, 4))

    def run(groups: list[list[int]]) -> tuple[Piece, str | None, int]:
        ours = delivery(*stops, min_tokens=min_tokens)
        pieces = []
        for group in groups:
            pieces.append(ours.push(group, logprobs(group)))
            if ours.stopped_by is not None:
                return together(pieces), ours.stopped_by, ours.count
        return together([*pieces, ours.flush()]), ours.stopped_by, ours.count

    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4)))
    borders = [0, *cuts, len(ids)]
    groups = [ids[start:end] for start, end in pairwise(borders) if end > start]
    one_by_one = run([[each] for each in ids])
    assert run(groups) == one_by_one
    whole = one_by_one[0]
    assert len(whole.ids) == len(whole.logprobs) == len(whole.offsets)
    if one_by_one[1] is None:
        assert whole.text == TOKENIZER.decode(ids)
        assert whole.ids == ids


@given(st.data(), st.integers(1, 7))
def test_slices_of_a_piece_are_the_piece_and_each_has_the_text_of_its_tokens(data: st.DataObject, most: int) -> None:
    ids = data.draw(st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=30))
    origins_shown = data.draw(st.booleans())
    ours = delivery("zz", "\x00\x01", origins_shown=origins_shown)
    pieces = []
    while ids:
        step, ids = ids[: data.draw(st.integers(1, 9))], ids[9:]
        run = Run(length=len(step), drafted=len(step), accepted=len(step) - 1)
        pieces.append(ours.push(step, logprobs(step), [run]))
        if ours.stopped_by is not None:
            break
    else:
        pieces.append(ours.flush())
    for piece in pieces:
        parts = list(slices(piece, most))
        for name in ("ids", "logprobs", "offsets", "runs"):
            assert [each for part in parts for each in getattr(part, name)] == getattr(piece, name)
        assert "".join([part.text for part in parts]) == piece.text
        begin = piece.begin
        for part in parts:
            assert part.begin == begin
            begin += len(part.text)
            assert len(part.ids) <= most or len(part.runs) == 1
            assert sum(run.tokens for run in part.runs) == (len(part.ids) if origins_shown else 0)
        for part, following in pairwise(parts):
            assert part.ids
            assert max(part.offsets) <= following.offsets[0]
            assert part.begin + len(part.text) <= max(following.offsets[0], piece.begin)
    assert [piece.begin for piece in pieces] == [
        sum(len(before.text) for before in pieces[:number]) for number in range(len(pieces))
    ]

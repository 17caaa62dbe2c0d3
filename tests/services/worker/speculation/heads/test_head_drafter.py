"""Drafters with a network of their own, behind the real engine: their drafts are those of the reference over the whole
text, and the text doesn't change."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from driving import request
from head_world import LAYERS, WRITERS, World, features_of, prompt, reference, with_shared
from reference import HIDDEN, VOCABULARY, State
from safetensors.torch import load_file, save_file

from models.batch import Batch
from models.gpu.chain import Chain
from models.weights import Weights
from services.api.draft_tree import depths, walk
from services.api.drafter import Committed, Draft
from services.api.tree_shape import read_shape
from services.worker.running.head import HeadModel
from services.worker.speculation.heads import head_drafter, unread
from services.worker.speculation.heads.head_drafter import Following


@pytest.mark.parametrize("executor", ["plain", "compiled"])
def test_every_draft_of_the_model_itself_is_accepted(executor: str, target: Path) -> None:
    """What a draft model reads in chunks, again after drafts, and from shared pages is what it would read at once."""
    world = World(target, "draft_model", target, executor, max_step_tokens=24)
    common = prompt(40)
    texts = [common, [*common, 5, 6], prompt(9, 1), common[:33]]
    naive = world.run(*(request(each, max_tokens=40, ignore_eos=True, method="naive") for each in texts))
    drafted = world.run(*(request(each, max_tokens=40, ignore_eos=True) for each in texts))
    again = world.run(*(request(each, max_tokens=40, ignore_eos=True) for each in texts))
    assert [each.ids for each in drafted] == [each.ids for each in naive] == [each.ids for each in again]
    for each in (*drafted, *again):
        stats = each.finished.speculation
        assert stats.accepted == stats.drafted > 25
    assert any(each.finished.cached_tokens for each in again)


@pytest.mark.parametrize("trees", [False, True])
def test_a_draft_model_with_the_ids_of_another_tokenizer_drafts_the_same_text(
    trees: bool, target: Path, tmp_path: Path
) -> None:
    """The model itself, whose ids go backwards behind four that only the draft model has."""
    words = {f"w{token}": token for token in range(VOCABULARY)}
    model = _renumbered(target, tmp_path / "model", words, list(range(VOCABULARY)))
    own = {"only": 0, "here": 1, "and": 2, "there": 3} | {f"w{VOCABULARY - 1 - at}": at + 4 for at in range(VOCABULARY)}
    order = [*range(4), *reversed(range(VOCABULARY))]
    draft_model = _renumbered(target, tmp_path / "draft", own, order)
    world = World(model, "draft_model", draft_model, "compiled", trees=trees)
    itself = World(target, "draft_model", target, "compiled", trees=trees)
    for each in (world, itself):
        drafted = each.run(*(request(text, max_tokens=30, ignore_eos=True) for text in (prompt(40), prompt(9, 1))))
        assert all(each.finished.speculation.accepted > 10 for each in drafted)
    drafts = [[(text, draft.tokens, draft.parents) for text, draft in each.kept.drafts] for each in (world, itself)]
    assert drafts[0] == drafts[1]
    sampled = request(prompt(9), max_tokens=20, temperature=1.0, seed=5, strategy="rejection")
    world.kept.drafts.clear()
    world.run(sampled)
    assert all(draft.probs.shape[1] == VOCABULARY for _, draft in world.kept.drafts if draft.tokens)
    assert world.drafts.controller.counts.refused == 0


def _renumbered(target: Path, folder: Path, vocab: dict[str, int], rows: list[int]) -> Path:
    """The model with these rows of its embedding and head, in this order, and a tokenizer of words."""
    tensors = load_file(target / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors[name][rows].contiguous()
    folder.mkdir()
    config = json.loads((target / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": len(rows)}))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_a_preempted_text_is_read_again(target: Path) -> None:
    """Two texts that don't both fit into twelve pages."""
    world = World(target, "draft_model", target, "compiled")
    few = World(target, "draft_model", target, "compiled", prefix_cache=False)
    few.scheduler.planner.pages.take(few.scheduler.pages.total - 12)
    texts = [request(prompt(60, seed), max_tokens=90, ignore_eos=True) for seed in (1, 2)]
    free, tight = world.run(*texts), few.run(*texts)
    assert few.scheduler.preemptions > 0
    assert [each.ids for each in free] == [each.ids for each in tight]
    assert all(each.finished.speculation.accepted == each.finished.speculation.drafted for each in tight)


@pytest.mark.parametrize("executor", ["plain", "compiled"])
@pytest.mark.parametrize("layout", WRITERS)
def test_its_drafts_are_those_of_the_reference_over_the_whole_text(
    layout: str, executor: str, target: Path, tmp_path: Path
) -> None:
    method, write, compute = WRITERS[layout]
    state = with_shared(write(tmp_path), target)
    world = World(target, method, tmp_path, executor, max_step_tokens=16)
    texts = [prompt(30), prompt(7, 1)]
    naive = world.run(*(request(each, max_tokens=24, method="naive") for each in texts))
    drafted = world.run(*(request(each, max_tokens=24) for each in texts))
    assert [each.ids for each in naive] == [each.ids for each in drafted]
    head, checked = world.model.head, 0
    assert isinstance(head, HeadModel)
    for text, draft in world.kept.drafts[::3]:
        # Row p: the token at p + 1 beside the target's value of p; then the draft's own tokens and values.
        values = head.hidden(features_of(target, text[:-1], head.head.taps))
        tokens = torch.tensor(text[1:])
        for token in draft.tokens:
            logits, follows = compute(state, tokens, values)
            place = int(logits[-1].argmax())
            assert token == (place if head.ids is None else int(head.ids[place]))
            tokens, values = torch.cat([tokens, torch.tensor([token])]), torch.cat([values, follows[-1:]])
            checked += 1
    assert checked > 20


@pytest.mark.parametrize("executor", ["plain", "compiled"])
def test_each_of_several_mtp_blocks_drafts_one_token_as_the_reference_does(
    executor: str, target: Path, tmp_path: Path
) -> None:
    """From a prompt in chunks, after rejections, and where a draft is asked for in one step of five."""
    state = reference.write_mtp_blocks(tmp_path, LAYERS, 3)
    world, seldom = (World(target, "mtp", tmp_path, executor, max_step_tokens=16) for _ in range(2))
    _ask_in_one_step_of_five(seldom)
    texts = [prompt(30), prompt(7, 1), prompt(2, 2)]
    naive = world.run(*(request(each, max_tokens=24, ignore_eos=True, method="naive") for each in texts))
    for each in (world, seldom):
        drafted = each.run(*(request(text, max_tokens=24, ignore_eos=True) for text in texts))
        assert [each.ids for each in naive] == [each.ids for each in drafted]
        drafts = [pair for pair in each.kept.drafts if len(pair[1].tokens) == 3]
        assert len(drafts) > 8 and max(len(draft.tokens) for _, draft in each.kept.drafts) == 3
        for text, draft in drafts[::3]:
            values = features_of(target, text[:-1], ("final",))
            assert draft.tokens == reference.mtp_blocks(state, torch.tensor(text), values, LAYERS, 3)


def whole_blocks(world: World, texts: list[list[int]]) -> list[tuple[list[int], Draft]]:
    """Texts are the same without drafts, with them, and again from shared pages. Drafts that are as long as a block,
    with the texts that they follow."""
    naive = world.run(*(request(each, max_tokens=24, method="naive") for each in texts))
    drafted = world.run(*(request(each, max_tokens=24) for each in texts))
    again = world.run(*(request(each, max_tokens=24) for each in texts))
    assert [each.ids for each in naive] == [each.ids for each in drafted] == [each.ids for each in again]
    assert any(each.finished.cached_tokens for each in again)
    assert any(each.finished.speculation.accepted < each.finished.speculation.drafted for each in drafted)
    whole = [(text, draft) for text, draft in world.kept.drafts if len(draft.tokens) == reference.BLOCK]
    assert len(whole) > 40 and max(len(draft.tokens) for _, draft in world.kept.drafts) == reference.BLOCK
    return whole


@pytest.mark.parametrize("executor", ["plain", "compiled"])
def test_a_block_is_that_of_the_reference_over_the_whole_text(executor: str, target: Path, tmp_path: Path) -> None:
    """From a prompt in chunks, after rejections, and from shared pages: in one pass over the text and the masks."""
    state = reference.write_block(tmp_path)
    state["embed_tokens.weight"] = Weights(target).take("model.embed_tokens.weight", VOCABULARY, HIDDEN)
    world = World(target, "block", tmp_path, executor, max_step_tokens=16)
    texts = [prompt(40), prompt(7, 1), prompt(33)]
    whole = whole_blocks(world, texts)
    head = world.model.head
    assert isinstance(head, HeadModel) and head.ids is not None and head.mask_hidden is not None
    for text, draft in whole[::2]:
        masks = len(draft.tokens) - 1
        mask_hidden = state["fc.weight"] @ state["mask_hidden"][0]
        values = head.hidden(features_of(target, text[:-1], head.head.taps))
        tokens = torch.tensor([*text[1:], *[reference.MASK_TOKEN] * masks])
        logits, _ = reference.eagle3(state, tokens, torch.cat([values, mask_hidden.expand(masks, -1)]))
        assert draft.tokens == head.ids[logits[-len(draft.tokens) :].argmax(-1)].tolist()


BLOCKS = {"dflash": reference.write_dflash, "dspark": reference.write_dspark}


@pytest.mark.parametrize("executor", ["plain", "compiled"])
@pytest.mark.parametrize("method", BLOCKS)
def test_a_block_over_the_models_values_is_that_of_the_reference(
    method: str, executor: str, target: Path, tmp_path: Path
) -> None:
    """From a prompt in chunks, after rejections, from shared pages, and up to the end of the context."""
    state = with_shared(BLOCKS[method](tmp_path), target)
    world = World(target, method, tmp_path, executor, max_step_tokens=16)
    texts = [prompt(40), prompt(7, 1), prompt(33), prompt(240, 2)]
    whole = whole_blocks(world, texts)
    head = world.model.head
    assert isinstance(head, HeadModel) and world.kept.drafts
    for text, draft in whole[::4]:
        assert draft.tokens == _of_block(head, state, target, text, len(draft.tokens))


def test_a_block_ends_with_the_context(target: Path, tmp_path: Path) -> None:
    """Whatever is asked for, no row is behind the last position."""
    reference.write_dflash(tmp_path)
    world = World(target, "dflash", tmp_path, "compiled")
    draft = world.kept.draft
    world.kept.draft = lambda asked: draft([dataclasses.replace(each, budget=4) for each in asked])  # type: ignore
    world.run(request(prompt(250), max_tokens=6, ignore_eos=True))
    lengths = {len(text): len(draft.tokens) for text, draft in world.kept.drafts}
    assert lengths == {251: 4, 252: 4, 253: 3, 254: 2, 255: 1}


def _of_block(head: HeadModel, state: State, target: Path, text: list[int], count: int) -> list[int]:
    mixed = features_of(target, text[:-1], head.head.taps) @ state["fc.weight"].T
    masks = count - (head.markov is not None)
    logits = reference.dflash(state, mixed, torch.tensor([text[-1], *[reference.MASK_TOKEN] * masks]))[-count:]
    found: list[int] = []
    for row in logits:
        row = row if head.markov is None else reference.markov(state, row, [text[-1], *found][-1])
        found.append(int(row.argmax()) if head.ids is None else int(head.ids[row.argmax()]))
    return found


def test_a_block_in_the_interpreter_of_the_gpus_kernels_is_that_of_plain_torch(target: Path, tmp_path: Path) -> None:
    reference.write_dspark(tmp_path)
    drafts = []
    for executor in ("plain", "triton"):
        world = World(target, "dspark", tmp_path, executor, max_step_tokens=16)
        world.run(request(prompt(9), max_tokens=6))
        drafts.append([(text, draft.tokens) for text, draft in world.kept.drafts])
    assert drafts[0] == drafts[1] and len(drafts[0]) > 1


def test_no_token_of_a_block_is_left_out_for_its_small_chance(target: Path, tmp_path: Path) -> None:
    """The floor is what one more pass is worth, and there is none."""
    reference.write_block(tmp_path)
    world = World(target, "block", tmp_path)
    draft = world.kept.draft
    world.kept.draft = lambda asked: draft([dataclasses.replace(each, floor=0.9) for each in asked])  # type: ignore
    world.run(request(prompt(20), max_tokens=24, ignore_eos=True))
    drafts = [draft for _, draft in world.kept.drafts]
    assert [len(each.tokens) for each in drafts[:10]] == [reference.BLOCK] * 10
    assert min(each.confidence[0] for each in drafts) < 0.9


def test_sampled_blocks_come_with_the_distributions_that_they_were_drawn_from(target: Path, tmp_path: Path) -> None:
    reference.write_block(tmp_path)
    world = World(target, "block", tmp_path)
    sampled = request(prompt(20), max_tokens=24, temperature=1.0, seed=5, strategy="rejection")
    first = world.run(sampled)[0].ids
    drafts = [draft for _, draft in world.kept.drafts if draft.tokens]
    assert drafts and all(draft.probs.shape == (len(draft.tokens), VOCABULARY) for draft in drafts)
    assert world.run(sampled)[0].ids == first


HEADS: dict[str, Callable[[Path], State]] = {
    "eagle3": reference.write_eagle3, "eagle": reference.write_eagle, "medusa": reference.write_medusa,
    "hydra": reference.write_hydra,
}  # fmt: skip


@pytest.mark.parametrize("method", [*HEADS, "draft_model"])
@pytest.mark.parametrize("floor", [0.0, 0.02])
def test_drafts_are_the_same_where_no_pass_waits_for_the_tokens_of_the_one_before(
    method: str, floor: float, target: Path, tmp_path: Path
) -> None:
    """As on a GPU. Budgets differ, and end drafts at different lengths."""
    if method in HEADS:
        HEADS[method](tmp_path)
    drafts, ids = [], []
    for waits in (True, False):
        world = World(target, method, tmp_path if method in HEADS else target, max_step_tokens=16)
        if not waits:
            without_waits(world)
        draft = world.kept.drafter.draft
        world.kept.drafter.draft = lambda asked, draft=draft: draft(  # type: ignore[method-assign, misc]
            [dataclasses.replace(each, floor=floor) for each in asked]
        )
        texts = [request(prompt(30), max_tokens=24), request(prompt(7, 1), max_tokens=9), request(prompt(9, 2))]
        ids.append([each.ids for each in world.run(*texts)])
        drafts.append(world.kept.drafts)
    assert ids[0] == ids[1]
    assert len(drafts[0]) == len(drafts[1]) > 10
    for (text, one), (same, other) in zip(*drafts, strict=True):
        assert text == same and one.tokens == other.tokens
        assert one.confidence == pytest.approx(other.confidence, rel=1e-5)
    assert len({len(draft.tokens) for _, draft in drafts[0]}) > 1


class OnTheHost:
    """The passes of a chain by an executor that waits for each."""

    def __init__(self, head: HeadModel) -> None:
        self._executor, network = head.executor, head.head.network
        width = network.hidden_size if network.entry else 0
        self._chain = Chain(self._compute, 64, width, head.ids, torch.device("cpu"))
        self.start_chain, self.fetch_chain = self._chain.start, self._chain.fetched

    def follow_chain(self, batch: Batch) -> None:
        self._batch = batch
        self._chain.run(len(batch.tokens))

    def _compute(self, rows: int, tokens: torch.Tensor, hidden: torch.Tensor | None) -> tuple[torch.Tensor, Any]:
        output = self._executor.forward(dataclasses.replace(self._batch, tokens=tokens.numpy()), hidden)
        return output.logits, output.features


def without_waits(world: World) -> None:
    head: Any = world.model.head
    if isinstance(head, HeadModel):
        assert head.chains is None
        head.chains = OnTheHost(head)  # type: ignore[assignment]
    else:
        world.kept.drafter._waits = True


def test_the_passes_of_a_draft_follow_each_other_on_the_device(target: Path, tmp_path: Path) -> None:
    """In Triton's interpreter, through the graphs of a chain."""
    reference.write_eagle3(tmp_path)
    drafts = []
    for executor in ("plain", "triton"):
        world = World(target, "eagle3", tmp_path, executor, max_step_tokens=16)
        world.run(request(prompt(9), max_tokens=6))
        drafts.append(world.kept.drafts)
    head = world.model.head
    assert isinstance(head, HeadModel) and head.chains is head.executor
    assert [(text, draft.tokens) for text, draft in drafts[0]] == [(text, draft.tokens) for text, draft in drafts[1]]
    assert len(drafts[0]) > 1 and max(len(draft.tokens) for _, draft in drafts[0]) > 2


@pytest.mark.parametrize("method", ["medusa", "hydra"])
def test_heads_without_attention_draft_as_the_reference_does(method: str, target: Path, tmp_path: Path) -> None:
    state = {"medusa": reference.write_medusa, "hydra": reference.write_hydra}[method](tmp_path)
    state["model.embed_tokens.weight"] = Weights(target).take("model.embed_tokens.weight", VOCABULARY, HIDDEN)
    world = World(target, method, tmp_path, "compiled", max_step_tokens=16)
    texts = [prompt(30), prompt(7, 1)]
    naive = world.run(*(request(each, max_tokens=24, method="naive") for each in texts))
    drafted = world.run(*(request(each, max_tokens=24) for each in texts))
    assert [each.ids for each in naive] == [each.ids for each in drafted]
    checked = 0
    for text, draft in world.kept.drafts:
        hidden = features_of(target, text[:-1], ("final",))[-1]
        for head, token in enumerate(draft.tokens):
            if method == "medusa":
                logits = reference.medusa(state, hidden, head, 2)
            else:
                logits = reference.hydra(state, hidden, head, [text[-1], *draft.tokens[:head]])
            assert token == int(logits.argmax())
            checked += 1
    assert checked > 40 and max(len(draft.tokens) for _, draft in world.kept.drafts) == 3


@pytest.mark.parametrize("executor", ["plain", "compiled"])
def test_hydra_with_a_prefix_layer_drafts_as_the_reference_does(executor: str, target: Path, tmp_path: Path) -> None:
    """Also behind texts that share pages, and where it is asked in one step of five."""
    state = reference.write_hydra(tmp_path, prefix=True)
    state["model.embed_tokens.weight"] = Weights(target).take("model.embed_tokens.weight", VOCABULARY, HIDDEN)
    world = World(target, "hydra", tmp_path, executor, max_step_tokens=16)
    _ask_in_one_step_of_five(world)
    common = prompt(40)
    texts = [common, prompt(7, 1), [*common[:36], 5]]
    naive = world.run(*(request(each, max_tokens=24, ignore_eos=True, method="naive") for each in texts))
    drafted = world.run(*(request(each, max_tokens=24, ignore_eos=True) for each in texts))
    again = world.run(*(request(each, max_tokens=24, ignore_eos=True) for each in texts))
    assert [each.ids for each in naive] == [each.ids for each in drafted] == [each.ids for each in again]
    assert any(each.finished.cached_tokens for each in again)
    checked = 0
    for text, draft in world.kept.drafts:
        hidden = reference.hydra_prefix(state, features_of(target, text[:-1], ("final",)))[-1]
        for head, token in enumerate(draft.tokens):
            logits = reference.hydra(state, hidden, head, [text[-1], *draft.tokens[:head]], dropouts=True)
            assert token == int(logits.argmax())
            checked += 1
    assert checked > 30


def _ask_in_one_step_of_five(world: World) -> None:
    drafts, steps = world.drafts.draft, 0

    def draft(plan: Any) -> Any:
        nonlocal steps
        steps += 1
        found, budgets = drafts(plan)
        return found, budgets if steps % 5 == 0 else {}

    world.drafts.draft = draft  # type: ignore[method-assign]


def test_a_medusa_folder_in_the_layout_of_vllm_drafts_from_its_own_tokens(target: Path, tmp_path: Path) -> None:
    state = reference.write_medusa(tmp_path / "authors")
    for name in state:
        if name.endswith("bias"):
            state[name] = torch.zeros_like(state[name])
    reference.as_vllm_names_medusa(state, tmp_path / "vllm")
    world = World(target, "medusa", tmp_path / "vllm")
    world.run(request(prompt(12), max_tokens=16))
    for text, draft in world.kept.drafts:
        hidden = features_of(target, text[:-1], ("final",))[-1]
        for head, token in enumerate(draft.tokens):
            logits = reference.medusa(state, hidden, head, 2)
            assert token == 2 * int(logits[::2].argmax())


@pytest.mark.parametrize(("steps_at_once", "most_waiting"), [(64, 8192), (1, 8192), (2, 24)])
@pytest.mark.parametrize("method", ["draft_model", "eagle3", "block", "dflash"])
def test_text_that_no_draft_was_asked_for_is_read_when_one_is(
    method: str, steps_at_once: int, most_waiting: int, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked in one step of five, a drafter drafts there as if it had been asked in all; also where steps are told
    before, and where texts are read because too many rows wait."""
    monkeypatch.setattr(head_drafter, "WAITING_ROWS", most_waiting)
    monkeypatch.setattr(unread, "MOST_STEPS", steps_at_once)
    folder = target
    if method != "draft_model":
        writers = {"eagle3": reference.write_eagle3, "block": reference.write_block, "dflash": reference.write_dflash}
        writers[method](tmp_path)
        folder = tmp_path
    always, seldom = World(target, method, folder, "compiled"), World(target, method, folder, "compiled")
    drafts = seldom.drafts.draft
    steps = 0

    def draft(plan: Any) -> Any:
        nonlocal steps
        steps += 1
        budgets = drafts(plan)[1]
        return {}, budgets if steps % 5 == 0 else {}

    # Neither verifies its drafts, so that both go the same way.
    seldom.drafts.draft = draft  # type: ignore[method-assign]
    all_of_them = always.drafts.draft
    always.drafts.draft = lambda plan: ({}, all_of_them(plan)[1])  # type: ignore[method-assign]
    for world in (always, seldom):
        world.run(request(prompt(40), max_tokens=60, ignore_eos=True))
    expected = {tuple(text): draft.tokens for text, draft in always.kept.drafts}
    assert len(seldom.kept.drafts) >= 10
    assert all(draft.tokens == expected[tuple(text)] for text, draft in seldom.kept.drafts)


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_a_head_reads_steps_that_were_launched_before_the_last_was_committed(
    method: str, target: Path, tmp_path: Path
) -> None:
    """As on a GPU. Where it is asked, now and then, it drafts as if it had been asked in all steps."""
    if method == "eagle3":
        reference.write_eagle3(tmp_path)
    folder = tmp_path if method == "eagle3" else target
    always, seldom = World(target, method, folder, "compiled"), World(target, method, folder, "compiled")
    seldom.model.elsewhere = seldom.engine._overlaps = True
    # A CPU's verifier has nothing that it could begin early.
    seldom.engine._runner._start_verification = lambda items, logits: None  # type: ignore[attr-defined]
    went_on, planned = [], itertools.count()
    for world in (always, seldom):
        # Neither verifies its drafts, so that both go the same way.
        budgets = world.drafts.draft
        world.drafts.draft = lambda plan, budgets=budgets: ({}, budgets(plan)[1])  # type: ignore[method-assign]
    asks, goes_on, rests = seldom.drafts.draft, seldom.scheduler.go_on, itertools.count()
    seldom.drafts.draft = lambda plan: ({}, asks(plan)[1] if next(planned) % 2 else {})  # type: ignore[method-assign]
    seldom.drafts.rest = lambda: next(rests) % 6 > 0  # type: ignore[method-assign]
    seldom.scheduler.go_on = lambda result: went_on.append(goes_on(result)) or went_on[-1]  # type: ignore[method-assign]
    texts = [prompt(40), prompt(9, 1), prompt(23, 2)]
    asked = [request(each, max_tokens=60 - 9 * place, ignore_eos=True) for place, each in enumerate(texts)]
    assert [each.ids for each in seldom.run(*asked)] == [each.ids for each in always.run(*asked)]
    assert len([each for each in went_on if each]) > 25
    expected = {tuple(text): draft.tokens for text, draft in always.kept.drafts}
    assert len(seldom.kept.drafts) > 10
    assert all(draft.tokens == expected[tuple(text)] for text, draft in seldom.kept.drafts)


@pytest.mark.parametrize(
    ("tokens", "start", "pages", "read"),
    [
        ([7, 8, 9, 4], 2, [3], 3), ([7, 8, 9, 4], 2, [3, 5], 3),
        ([7, 8, 9], 2, [3], 2),  # the last one for its logits
        ([7, 8, 1, 4], 2, [3], 2), ([7, 1, 9, 4], 2, [3], 1),  # the rest of the draft was rejected
        ([7, 8, 9, 4], 2, [4], 0),  # another sequence's pages, after a preemption
        ([8, 9, 4], 3, [3], 0),
    ],
)  # fmt: skip
def test_what_a_draft_model_need_not_read_again_is_its_accepted_draft_in_the_same_pages(
    tokens: list[int], start: int, pages: list[int], read: int
) -> None:
    following = Following()
    following.wait(0, [5, 6, 7], None)
    following.pages = [3]
    following.rows(1)
    for token in (8, 9):
        following.next_row(token)
        following.read.append(token)
    assert following.already_read(Committed(1, start, tokens, pages=pages), tokens) == read


def test_sampled_drafts_come_with_their_distribution_over_all_tokens(target: Path, tmp_path: Path) -> None:
    reference.write_eagle3(tmp_path)
    world = World(target, "eagle3", tmp_path)
    sampled = request(prompt(20), max_tokens=24, temperature=1.0, seed=5, strategy="rejection")
    first = world.run(sampled)[0].ids
    drafts = [draft for _, draft in world.kept.drafts if draft.tokens]
    assert drafts and all(draft.probs.shape == (len(draft.tokens), VOCABULARY) for draft in drafts)
    assert isinstance(world.model.head, HeadModel) and world.model.head.ids is not None
    allowed = set(world.model.head.ids.tolist())
    for draft in drafts:
        torch.testing.assert_close(draft.probs.sum(-1), torch.ones(len(draft.tokens)))
        assert set(draft.tokens) <= allowed and set(draft.probs[0].nonzero().flatten().tolist()) <= allowed
    # The same seed gives the same drafts, and so the same text.
    assert world.run(sampled)[0].ids == first
    # Rules that accept the target's own choice get the most probable tokens.
    world.kept.drafts.clear()
    world.run(request(prompt(20), max_tokens=24, temperature=1.0, seed=5, strategy="target_match"))
    assert all(draft.probs is None for _, draft in world.kept.drafts)


@pytest.mark.parametrize("executor", ["plain", "compiled"])
@pytest.mark.parametrize("layout", WRITERS)
def test_each_node_of_a_tree_is_what_the_reference_drafts_behind_its_path(
    layout: str, executor: str, target: Path, tmp_path: Path
) -> None:
    method, write, compute = WRITERS[layout]
    state = with_shared(write(tmp_path), target)
    world = World(target, method, tmp_path, executor, max_step_tokens=16, trees=True)
    texts = [prompt(30), prompt(13, 1)]
    naive = world.run(*(request(each, max_tokens=24, method="naive") for each in texts))
    drafted = world.run(*(request(each, max_tokens=24) for each in texts))
    assert [each.ids for each in naive] == [each.ids for each in drafted]
    head, checked = world.model.head, 0
    assert isinstance(head, HeadModel)
    trees = [(text, draft) for text, draft in world.kept.drafts if draft.parents]
    assert len(trees) > 5
    for text, draft in trees[::4]:
        values = head.hidden(features_of(target, text[:-1], head.head.taps))
        for node in range(0, len(draft.tokens), 3):
            path = _path(draft, node)
            tokens, hidden = torch.tensor(text[1:]), values
            for token in path[:-1]:
                follows = compute(state, tokens, hidden)[1]
                tokens, hidden = torch.cat([tokens, torch.tensor([token])]), torch.cat([hidden, follows[-1:]])
            probs = compute(state, tokens, hidden)[0][-1].softmax(-1)
            place = path[-1] if head.ids is None else head.ids.tolist().index(path[-1])
            assert draft.confidence[node] == pytest.approx(float(probs[place]), rel=1e-3)
            assert float(probs[place]) >= float(probs.topk(4).values[-1]) - 1e-6
            checked += 1
    assert checked > 20


def _path(draft: Draft, node: int) -> list[int]:
    found: list[int] = []
    while node >= 0:
        found.append(draft.tokens[node])
        node = draft.parents[node]
    return found[::-1]


def test_a_tree_of_the_model_itself_is_accepted_to_its_depth(target: Path) -> None:
    """The first path is the model's own text, though others are computed beside it in the same pass."""
    world = World(target, "draft_model", target, "compiled", trees=True)
    texts = [prompt(40), prompt(9, 1)]
    naive = world.run(*(request(each, max_tokens=40, ignore_eos=True, method="naive") for each in texts))
    drafted = world.run(*(request(each, max_tokens=40, ignore_eos=True) for each in texts))
    assert [each.ids for each in naive] == [each.ids for each in drafted]
    trees = [(text, draft) for text, draft in world.kept.drafts if draft.parents]
    assert len(trees) > 5
    for text, draft in trees:
        own = next(each.ids for each, start in zip(naive, texts, strict=True) if text[: len(start)] == start)
        said = [*next(each for each in texts if text[: len(each)] == each), *own][len(text) :]
        assert walk(draft.tokens, draft.parents, said), "the model's own next token is in its tree"


def test_a_tree_without_pages_for_its_branches_stops_growing(target: Path, tmp_path: Path) -> None:
    reference.write_eagle3(tmp_path)
    world = World(target, "eagle3", tmp_path, "compiled", trees=True)
    naive = world.run(request(prompt(30), max_tokens=16, method="naive"))[0].ids
    drafter = world.kept.drafter
    drafter._branch_pages = range(drafter._branch_pages.start, drafter._branch_pages.start)
    assert world.run(request(prompt(30), max_tokens=16))[0].ids == naive
    depths_seen = {max(depths(len(draft.tokens), draft.parents)) for _, draft in world.kept.drafts if draft.tokens}
    assert depths_seen == {1}


@pytest.mark.parametrize("method", ["medusa", "hydra"])
def test_trees_of_heads_without_attention_have_what_each_head_says_behind_a_path(
    method: str, target: Path, tmp_path: Path
) -> None:
    state = {"medusa": reference.write_medusa, "hydra": reference.write_hydra}[method](tmp_path)
    state["model.embed_tokens.weight"] = Weights(target).take("model.embed_tokens.weight", VOCABULARY, HIDDEN)
    world = World(target, method, tmp_path, "compiled", trees=True)
    world.kept.drafter._shape = read_shape("[[0], [1], [0, 0], [1, 1], [1, 1, 0]]")
    naive = world.run(request(prompt(30), max_tokens=24, method="naive"))
    assert world.run(request(prompt(30), max_tokens=24))[0].ids == naive[0].ids
    checked = 0
    for text, draft in world.kept.drafts[::3]:
        hidden = features_of(target, text[:-1], ("final",))[-1]
        ranks = []
        for node in range(len(draft.tokens)):
            path = _path(draft, node)
            head = len(path) - 1
            if method == "medusa":
                logits = reference.medusa(state, hidden, head, 2)
            else:
                logits = reference.hydra(state, hidden, head, [text[-1], *path[:head]])
            ranks.append(logits.topk(2).indices.tolist().index(path[-1]))
            checked += 1
        if len(draft.tokens) == 5:
            assert sorted(ranks) == [0, 0, 0, 1, 1]
    assert checked > 20

"""A head is trained as it drafts, a run that was killed goes on to the same bits, and what is written drafts."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_folder import write_tiny_model

sys.path.insert(0, str(Path(__file__).parents[2] / "models" / "heads"))

import reference

from models.batch import Stretch
from models.config import read_network
from models.heads.folder import read_head
from models.heads.head import Head
from models.heads.sources import ensure_head
from models.heads.table import HEADS, TRAINED
from models.spec import Attention, Experts, LatentAttention, Linear, Part, Rope, RopeScaling
from models.weights import Weights
from services.api.sampling import Sampling
from services.cli.main import main
from services.training import answers
from services.training.answers import ModelAnswer
from services.training.job import Job, check
from services.training.loop import Training, TrainingPlan, TrainingProgress
from services.training.measure import Measured
from services.training.nets import net_of
from services.training.nets.net import Net
from services.training.nets.passes import ROUNDS, PassesNet
from services.training.target import Target
from services.training.train import train
from services.worker.running.head import ResidualModel
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.torch_runner import TorchRunner

WANTED = Wanted(dtype="float32", executor="compiled", threads=1, page_tokens=16, kv_cache_mb=8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny")


def prompts(count: int, seed: int = 1) -> list[str]:
    source = random.Random(seed)
    return [" ".join(f"w{source.randrange(5, 200)}" for _ in range(8)) for _ in range(count)]


def texts(count: int = 6, length: int = 24) -> list[ModelAnswer]:
    source = random.Random(2)
    return [ModelAnswer(number, 4, [source.randrange(1, 304) for _ in range(length)]) for number in range(count)]


def target_of(method: str, model: Path, vocabulary: int = 304) -> Target:
    _, head = HEADS[method].made(read_network(model), vocabulary)
    return Target(model, head.taps, WANTED)


def randomize(net: Net) -> None:
    with torch.no_grad():
        for part in net.parts.values():
            # Also those that begin as zeros or as an identity.
            part.add_(torch.randn_like(part) * 0.1)
            part.copy_(part.to(torch.bfloat16).float())
        net.model_output.copy_(net.model_output.to(torch.bfloat16).float())


def written(method: str, model: Path, folder: Path) -> tuple[Net, Target, dict[str, torch.Tensor]]:
    """A net with random numbers, as it is written (in bfloat16), with the tensors of its folder."""
    torch.manual_seed(0)
    target = target_of(method, model)
    net = net_of(method, target, torch.arange(0, 304, 2))
    randomize(net)
    net.save(folder)
    return net, target, {name: value.float() for name, value in _all(folder).items()}


@pytest.mark.parametrize("method", ["eagle3", "mtp"])
def test_each_round_computes_what_the_drafter_will(method: str, model: Path, tmp_path: Path) -> None:
    """Round r at position t: the text up to t with the model's values, then r tokens with the head's own."""
    net, target, state = written(method, model, tmp_path)
    ids = torch.tensor(texts(1)[0].ids)
    features, _ = target.features(ids.tolist())
    rounds = net.logits(ids, features)
    if method == "eagle3":
        state["embed_tokens.weight"] = target.embedding
        hidden, compute = torch.nn.functional.linear(features, state["fc.weight"]), reference.eagle3
    else:
        state["model.layers.2.embed_tokens.weight"] = target.embedding
        hidden, compute = features, functools.partial(reference.mtp, name="model.layers.2.")
    for start in (0, 5, 13):
        values, tokens = hidden[: start + 1], ids[1 : start + 2]
        for turn in range(ROUNDS):
            logits, follows = _reference(compute, state, tokens, values)
            torch.testing.assert_close(rounds[turn][start], logits[-1], rtol=1e-3, atol=1e-3)
            tokens = torch.cat([tokens, ids[start + 2 + turn : start + 3 + turn]])
            values = torch.cat([values, follows[-1:]])


def _all(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    found: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    return found


def _reference(
    compute: Any, state: dict[str, torch.Tensor], tokens: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"HEAD_DIM": 16, "HEADS": 4, "KV_HEADS": 2, "EPSILON": 1e-5, "THETA": 10000.0}.items():
            patch.setattr(reference, name, value)
        found: tuple[torch.Tensor, torch.Tensor] = compute(state, tokens, values)
        return found


def test_each_place_of_a_block_computes_what_its_drafter_will(model: Path, tmp_path: Path) -> None:
    """The text up to a position with the model's values, then masks, all at once."""
    net, target, state = written("block", model, tmp_path)
    state["embed_tokens.weight"] = target.embedding
    ids = torch.tensor(texts(1)[0].ids)
    features, _ = target.features(ids.tolist())
    found = net.logits(ids, features)
    hidden = torch.nn.functional.linear(features, state["fc.weight"])
    mask_hidden = torch.nn.functional.linear(state["mask_hidden"], state["fc.weight"])
    read = read_head("block", tmp_path, target.network)
    assert isinstance(read, Head) and read.mask is not None and read.mask.block == len(found) == 5
    for start in (0, 5, 13):
        masks = len(found) - 1
        tokens = torch.cat([ids[1 : start + 2], torch.full((masks,), read.mask.token)])
        values = torch.cat([hidden[: start + 1], mask_hidden.expand(masks, -1)])
        logits, _ = _reference(reference.eagle3, state, tokens, values)
        for place in range(len(found)):
            torch.testing.assert_close(found[place][start], logits[start + place], rtol=1e-3, atol=1e-3)


def test_each_head_of_hydra_computes_what_its_drafter_will(model: Path, tmp_path: Path) -> None:
    net, target, _ = written("hydra", model, tmp_path)
    ids = texts(1)[0].ids
    features, _ = target.features(ids)
    found = net.logits(torch.tensor(ids), features)
    head = load_torch_model(model, WANTED, head=("hydra", tmp_path)).head
    assert isinstance(head, ResidualModel) and len(head) == len(found) == 4
    for place, logits in enumerate(found):
        rows = len(ids) - 1 - place
        read = torch.tensor([ids[row + 1 : row + place + 2] for row in range(rows)])
        torch.testing.assert_close(logits, head.logits(place, features[:rows], read), rtol=1e-3, atol=1e-3)
    assert head.ids is not None and head.ids.tolist() == list(range(0, 304, 2))


@pytest.mark.parametrize("tied", [True, False])
def test_a_draft_model_computes_what_the_executor_will(tied: bool, model: Path, tmp_path: Path) -> None:
    target = Target(model, (), WANTED)
    torch.manual_seed(0)
    target.embedding = target.head = target.embedding.to(torch.bfloat16).float()
    if not tied:
        target.head = torch.randn_like(target.head).to(torch.bfloat16).float()
        own = Linear((Part("lm_head", 304),), 64)
        target.network = dataclasses.replace(target.network, head=own)
    net = net_of("draft_model", target, torch.arange(0, 304, 2))
    randomize(net)
    net.save(tmp_path)
    assert ("lm_head.weight" in _all(tmp_path)) is not tied
    shutil.copyfile(model / "tokenizer.json", tmp_path / "tokenizer.json")
    ids = texts(1)[0].ids
    features, _ = target.features(ids)
    assert features.shape == (len(ids), 0)
    [found] = net.logits(torch.tensor(ids), features)
    drafter = load_torch_model(tmp_path, WANTED)
    output = drafter.forward([Stretch(ids, 0, list(range(-(-len(ids) // 16))), 0)])
    torch.testing.assert_close(found, output.logits[1:, ::2].float(), rtol=1e-3, atol=1e-3)


def test_a_draft_model_begins_with_layers_of_the_model_and_has_its_tokenizer(model: Path, tmp_path: Path) -> None:
    weights, target = Weights(model), Target(model, (), WANTED)
    layers = target.network.layers
    target.network = dataclasses.replace(target.network, layers=layers[:1] * 5 + layers[1:])
    net = net_of("draft_model", target, torch.arange(304))
    assert isinstance(net, PassesNet) and net.places() == [0, 5]
    net.start(weights)
    for place in range(2):
        name = f"model.layers.{place}.mlp.down_proj.weight"
        assert torch.equal(net.parts[name], weights.take(name, 64, 128).float())
    data = tmp_path / "prompts.txt"
    data.write_text("\n".join(prompts(4)))
    train(Job("draft_model", str(model), (data,), tmp_path / "head", tmp_path / "cache", max_tokens=4, wanted=WANTED))
    own, other = ((folder / "tokenizer.json").read_bytes() for folder in (tmp_path / "head", model))
    assert own == other and ensure_head("draft_model", str(tmp_path / "head"), model, tmp_path) == tmp_path / "head"


def test_a_head_with_the_whole_vocabulary_shares_the_head_of_the_model(model: Path, tmp_path: Path) -> None:
    net_of("mtp", target_of("mtp", model), torch.arange(304)).save(tmp_path)
    assert not any("shared_head.head" in name or name == "d2t" for name in _all(tmp_path))
    assert load_torch_model(model, WANTED, head=("mtp", tmp_path)).head is not None


@pytest.mark.parametrize("method", ["eagle3", "mtp"])
def test_a_head_has_a_plain_rope_whatever_the_rope_of_the_model_is(method: str, model: Path) -> None:
    """Its config says no scaling, so it isn't trained with one."""
    target = Target(model, ("final",), WANTED)
    layer = target.network.layers[0]
    assert isinstance(layer.attention, Attention)
    scaled = Rope(16, 10000.0, RopeScaling("linear", 4.0), interleaved=True)
    attention = dataclasses.replace(layer.attention, rope=scaled, scale=1.0)
    network = dataclasses.replace(target.network, layers=(dataclasses.replace(layer, attention=attention),) * 2)
    found = []
    for each in (target.network, network):
        target.network = each
        torch.manual_seed(3)
        net = net_of(method, target, torch.arange(304))
        features = torch.ones(6, 64 * (2 if method == "eagle3" else 1))
        found.append(torch.cat(net.logits(torch.arange(6), features)))
    assert torch.equal(*found)


@pytest.mark.parametrize("method", ["eagle3", "block", "mtp"])
def test_a_layer_begins_as_the_last_one_of_the_model(method: str, model: Path) -> None:
    weights = Weights(model)
    net = net_of(method, Target(model, ("final",), WANTED), torch.arange(304))
    net.start(weights)
    layer, norm = {"mtp": ("model.layers.2.", "model.layers.2.shared_head.norm")}.get(method, ("midlayer.", "norm"))
    theirs = {
        name: weights.take(f"model.layers.1.{name}.weight", *shape).float()
        for name, shape in {
            "self_attn.q_proj": (64, 64), "self_attn.v_proj": (32, 64), "self_attn.o_proj": (64, 64),
            "mlp.gate_proj": (128, 64), "mlp.up_proj": (128, 64), "mlp.down_proj": (64, 128),
            "post_attention_layernorm": (64,),
        }.items()
    }  # fmt: skip
    for name, weight in theirs.items():
        own = net.parts[f"{layer}{name}.weight"]
        # The hidden value comes last of what a wider one reads; the token's embedding counts nothing yet.
        assert torch.equal(own[..., -weight.shape[-1] :], weight) and not own[..., : -weight.shape[-1]].any()
    assert torch.equal(net.parts[f"{norm}.weight"], weights.take("model.norm.weight", 64).float())


@pytest.mark.parametrize("method", ["eagle3", "mtp"])
def test_a_head_with_a_layer_is_refused_by_name_where_the_model_has_no_plain_layers(method: str, model: Path) -> None:
    network = read_network(model)
    latent = object.__new__(LatentAttention)
    experts = object.__new__(Experts)
    for change, said in (({"attention": latent}, "latent attention"), ({"mlp": experts}, "experts")):
        layer = dataclasses.replace(network.layers[0], **change)
        with pytest.raises(ValueError, match=said):
            HEADS[method].made(dataclasses.replace(network, layers=(layer,)), 304)
    HEADS["medusa"].made(dataclasses.replace(network, layers=(layer,)), 304)


class Killed(Exception):
    pass


@pytest.mark.parametrize("method", TRAINED)
def test_a_run_that_was_killed_goes_on_to_the_same_bits(method: str, model: Path, tmp_path: Path) -> None:
    target = target_of(method, model)
    plan = TrainingPlan(passes=3, texts_a_step=2, warm_up=2, checkpoint_every=2, seed=5)

    def run(file: Path, kill_at: int = 0) -> dict[str, torch.Tensor]:
        def told(progress: TrainingProgress) -> None:
            if progress.step == kill_at:
                raise Killed

        torch.manual_seed(1)
        net = net_of(method, target, torch.arange(300))
        Training(net, target, texts(), plan, file).run(told)
        return {name: part.detach().clone() for name, part in net.parts.items()}

    whole = run(tmp_path / "whole.safetensors")
    for kill_at in (1, 5, 8):
        with pytest.raises(Killed):
            run(tmp_path / f"{kill_at}.safetensors", kill_at)
        again = run(tmp_path / f"{kill_at}.safetensors")
        assert all(torch.equal(again[name], whole[name]) for name in whole)


def test_answers_that_are_written_are_not_made_again(model: Path, tmp_path: Path) -> None:
    asked = [[5, 6, 7], [8, 9], [10, 11, 12, 13], [14]]

    def make(file: Path) -> list[int]:
        runner = TorchRunner(load_torch_model(model, WANTED))
        done = {text.number for text in answers.read(file)}
        lacking = {number: prompt for number, prompt in enumerate(asked) if number not in done}
        sampling = Sampling(max_tokens=12, temperature=1.0, seed=3)
        return [each.number for each in answers.make(runner, lacking, file, sampling)]

    whole = tmp_path / "whole.jsonl"
    assert sorted(make(whole)) == [0, 1, 2, 3]
    lines = whole.read_bytes().splitlines(keepends=True)
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(b"".join(lines[:2]) + lines[2][:7])
    made = make(cut)
    assert len(made) == 2
    order = lambda text: text.number  # noqa: E731
    assert sorted(answers.read(cut), key=order) == sorted(answers.read(whole), key=order)


def test_a_prompt_that_cannot_be_answered_is_told(model: Path, tmp_path: Path) -> None:
    """The engine refuses a prompt as long as the context."""
    runner = TorchRunner(load_torch_model(model, WANTED))
    with pytest.raises(ValueError, match="prompt 7 can't be answered: 256 prompt tokens"):
        list(answers.make(runner, {3: [5, 6], 7: [5] * 256}, tmp_path / "file", Sampling(max_tokens=300)))


@pytest.mark.parametrize("line", ['{"messages": "x"}', '{"messages": []}', "[]", "{", '{"prompt": 3}'])
def test_a_line_that_is_no_prompt_is_refused_with_the_name_of_its_file(line: str, model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(line + "\n")
    with pytest.raises(ValueError, match=r"data.jsonl: line 1 is neither"):
        train(Job("medusa", str(model), (data,), tmp_path / "head", tmp_path / "cache", wanted=WANTED))


PASSES = {"medusa": 2, "hydra": 2, "block": 6}


@contextmanager
def one_thread() -> Iterator[None]:
    """Matrices of 64 columns take twice as long by two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trained(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Job, Measured]]:
    """Each kind of head once, of the same answers: a job that is done, and what came of it."""
    place = tmp_path_factory.mktemp("trained")
    data = place / "prompts.txt"
    data.write_text("\n".join(prompts(40)))

    @functools.cache
    def one(method: str, vocabulary: int) -> tuple[Job, Measured]:
        out = place / f"{method} {vocabulary}"
        plan = TrainingPlan(passes=PASSES.get(method, 4), warm_up=5)
        job = Job(
            method, str(model), (data,), out, place / "cache", vocabulary=vocabulary, max_tokens=40, plan=plan,
            wanted=WANTED,
        )  # fmt: skip
        if answered := next(iter(place.glob("*/work/answers.jsonl")), None):
            (out / "work").mkdir(parents=True)
            shutil.copyfile(answered, out / "work" / "answers.jsonl")
        with one_thread():
            return job, train(job)

    return lambda method, vocabulary=304: one(method, vocabulary)


def again(job: Job, tmp_path: Path, **changes: Any) -> Job:
    """For a copy of its folder, in which everything is there already."""
    shutil.copytree(job.out, tmp_path / "head")
    return dataclasses.replace(job, out=tmp_path / "head", **changes)


@pytest.mark.parametrize("method", TRAINED)
def test_a_trained_head_drafts_what_the_model_says(
    method: str, trained: Callable[..., tuple[Job, Measured]], tmp_path: Path
) -> None:
    job, found = trained(method)
    # A tiny model repeats itself, which a head can learn from a few answers.
    assert found.tokens_per_step > 1.3 and found.accepted[0] > 0.2
    card = (job.out / "README.md").read_text()
    assert f"{found.tokens_per_step:.2f} tokens per step" in card and "prompts.txt" in card
    said = json.loads((job.out / "training.json").read_text())
    assert said["tokens_per_step"] == round(found.tokens_per_step, 3) and said["method"] == method
    tokens = [point[0] for point in said["curve"]]
    assert tokens == sorted(tokens) and len(tokens) == len(set(tokens)) > 4 and "| tokens seen |" in card
    # Once more: everything is there already.
    once_more = again(job, tmp_path)
    assert train(once_more) == found
    assert (once_more.out / "README.md").read_text() == card


@pytest.mark.parametrize("method", ["draft_model", "eagle3", "medusa", "mtp"])
def test_a_head_in_8_bits_is_half_as_large_and_drafts_as_well(
    method: str, trained: Callable[..., tuple[Job, Measured]], model: Path, tmp_path: Path
) -> None:
    whole, found = trained(method)
    job = again(whole, tmp_path, eight_bits=True)
    weights = job.out / "model.safetensors"
    before, size = _all(job.out), weights.stat().st_size
    small = train(job)
    # A draft model keeps its embedding as it is.
    assert weights.stat().st_size < (0.8 if method == "draft_model" else 0.7) * size
    assert small.tokens_per_step > 0.95 * found.tokens_per_step
    head = read_head(method, job.out, read_network(model))
    stored = Weights(job.out)
    linear = head.network.layers[0].mlp.down if isinstance(head, Head) else head.output
    [part] = linear.parts
    dense, original = stored.linear(linear).dense(torch.float32), before[f"{part.name}.weight"].float()
    worst = original.abs().amax(1, keepdim=True) / 127
    assert ((dense - original).abs() <= 0.51 * worst + 0.005 * original.abs()).all()


# Medusa's heads and Hydra's are written alike.
@pytest.mark.parametrize(("method", "vocabulary"), [("hydra", 304), ("medusa", 152), ("mtp", 152), ("mtp", 304)])
def test_a_folder_without_the_output_head_of_the_model_drafts_the_same(
    method: str, vocabulary: int, trained: Callable[..., tuple[Job, Measured]], tmp_path: Path
) -> None:
    """The rows of its vocabulary are read from the model's head."""
    job, found = trained(method, vocabulary)
    whole = _all(job.out)
    left = again(job, tmp_path, leaves_out_head=True)
    assert train(left) == found and found.accepted[0] > 0.1
    left_out = set(whole) - set(_all(left.out))
    if method == "mtp" and vocabulary == 304:
        assert not left_out, "it never has the head"
    else:
        (name,) = left_out
        assert whole[name].shape == (vocabulary, 64)


def test_what_cannot_be_trained_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    job = Job("eagle", "no model", (tmp_path / "none.txt",), tmp_path / "out", tmp_path)
    with pytest.raises(ValueError, match="eagle heads can't be trained"):
        check(job)


def test_the_weights_of_the_target_are_those_of_its_folder(model: Path) -> None:
    target = Target(model, ("final",), WANTED)
    table = Weights(model).take("model.embed_tokens.weight", 304, 64)
    assert torch.equal(target.embedding, table.float()) and torch.equal(target.head, table.float())
    features, final = target.features([3, 4, 5])
    assert torch.equal(features, final) and features.shape == (3, 64)


def test_the_command_of_docs_research_training_md_trains_and_says_how_to_serve(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("\n".join(prompts(12)))
    command = ["train-drafter", "--head", "eagle3", "--data", "prompts.txt", "--out", "my-head"]
    small = ["--answer-tokens", "12", "--vocabulary", "100", "--model", str(model), "--dtype", "float32"]
    assert main([*command, *small]) == 0
    assert f"specmesh up --model {model} --draft-model my-head" in capsys.readouterr().out
    assert main([*command[:-1], "other", *small, "--data", "gone.txt"]) == 1
    assert "gone.txt is no file" in capsys.readouterr().err

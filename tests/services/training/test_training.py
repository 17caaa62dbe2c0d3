"""A head is trained as it drafts, a run that was killed goes on to the same bits, and what is written drafts."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import torch
from tiny_folder import write_tiny_model

sys.path.insert(0, str(Path(__file__).parents[2] / "models" / "heads"))

import reference

from models.config import read_network
from models.weights import Weights
from services.api.messages import Sampling
from services.cli.main import main
from services.training import answers
from services.training.answers import Text
from services.training.loop import Plan, Progress, Training
from services.training.nets import Eagle3Net, MedusaNet
from services.training.target import Target
from services.training.train import Job, check, train
from services.worker.running.torch_model import Wanted, load_torch_model
from services.worker.running.torch_runner import TorchRunner

WANTED = Wanted(dtype="float32", executor="compiled", threads=1, page_tokens=16, kv_cache_mb=8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny")


def prompts(count: int, seed: int = 1) -> list[str]:
    source = random.Random(seed)
    return [" ".join(f"w{source.randrange(5, 200)}" for _ in range(8)) for _ in range(count)]


def texts(count: int = 6, length: int = 24) -> list[Text]:
    source = random.Random(2)
    return [Text(number, 4, [source.randrange(1, 304) for _ in range(length)]) for number in range(count)]


def net_for(model: Path, target: Target) -> Eagle3Net:
    torch.manual_seed(0)
    return Eagle3Net(read_network(model), target.embedding, target.head, torch.arange(0, 304, 2))


def test_each_round_of_eagle3_computes_what_its_drafter_will(model: Path, tmp_path: Path) -> None:
    """Round r at position t: the text up to t with the model's values, then r tokens with the head's own."""
    target = Target(model, Eagle3Net.taps(read_network(model)), WANTED)
    net = net_for(model, target)
    net.save(tmp_path)
    state = {name: value.float() for name, value in _all(tmp_path).items() if name != "d2t"}
    # As it is written, in bfloat16.
    with torch.no_grad():
        for part in net.parameters():
            part.copy_(part.to(torch.bfloat16).float())
    state["embed_tokens.weight"] = target.embedding
    ids = torch.tensor(texts(1)[0].ids)
    features, _ = target.features(ids.tolist())
    rounds = net.logits(ids, features)
    hidden = torch.nn.functional.linear(features, state["fc.weight"])
    for start in (0, 5, 13):
        values, tokens = hidden[: start + 1], ids[1 : start + 2]
        for turn in range(net.ROUNDS):
            logits, follows = _reference(state, tokens, values)
            torch.testing.assert_close(rounds[turn][start], logits[-1], rtol=1e-3, atol=1e-3)
            tokens = torch.cat([tokens, ids[start + 2 + turn : start + 3 + turn]])
            values = torch.cat([values, follows[-1:]])


def _all(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    found: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    return found


def _reference(
    state: dict[str, torch.Tensor], tokens: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"HEAD_DIM": 16, "HEADS": 4, "KV_HEADS": 2, "EPSILON": 1e-5, "THETA": 10000.0}.items():
            patch.setattr(reference, name, value)
        return reference.eagle3(state, tokens, values)


class Killed(Exception):
    pass


@pytest.mark.parametrize("kind", [MedusaNet, Eagle3Net])
def test_a_run_that_was_killed_goes_on_to_the_same_bits(
    kind: type[MedusaNet] | type[Eagle3Net], model: Path, tmp_path: Path
) -> None:
    network = read_network(model)
    target = Target(model, kind.taps(network), WANTED)
    plan = Plan(passes=3, texts_a_step=2, warm_up=2, checkpoint_every=2, seed=5)

    def run(file: Path, kill_at: int = 0) -> dict[str, torch.Tensor]:
        def told(progress: Progress) -> None:
            if progress.step == kill_at:
                raise Killed

        torch.manual_seed(1)
        net = kind(network, target.embedding, target.head, torch.arange(300))
        Training(net, target, texts(), plan, file).run(told)
        return {name: part.detach().clone() for name, part in net.named_parameters()}

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
    with pytest.raises(ValueError, match=r"data.jsonl: a line is neither"):
        train(Job("medusa", str(model), (data,), tmp_path / "head", tmp_path / "cache", wanted=WANTED))


@pytest.mark.parametrize("method", ["medusa", "eagle3"])
def test_a_trained_head_drafts_what_the_model_says(method: str, model: Path, tmp_path: Path) -> None:
    data = tmp_path / "prompts.txt"
    data.write_text("\n".join(prompts(40)))
    job = Job(
        method, str(model), (data,), tmp_path / "head", tmp_path / "cache", vocabulary=304, max_tokens=40,
        plan=Plan(passes=20 if method == "eagle3" else 2, warm_up=5), wanted=WANTED,
    )  # fmt: skip
    found = train(job)
    # A tiny model repeats itself, which a head can learn from a few answers.
    assert found.tokens_per_step > 1.3 and found.accepted[0] > 0.2
    card = (tmp_path / "head" / "README.md").read_text()
    assert f"{found.tokens_per_step:.2f} tokens per step" in card and "prompts.txt" in card
    # Once more: everything is there already.
    assert train(job) == found


def test_what_cannot_be_trained_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    job = Job("mtp", "no model", (tmp_path / "none.txt",), tmp_path / "out", tmp_path)
    with pytest.raises(ValueError, match="mtp heads can't be trained"):
        check(job)


def test_the_weights_of_the_target_are_those_of_its_folder(model: Path) -> None:
    target = Target(model, ("final",), WANTED)
    table = Weights(model).take("model.embed_tokens.weight", 304, 64)
    assert torch.equal(target.embedding, table.float()) and torch.equal(target.head, table.float())
    features, final = target.features([3, 4, 5])
    assert torch.equal(features, final) and features.shape == (3, 64)


def test_the_command_of_docs_heads_md_trains_and_says_how_to_serve(
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

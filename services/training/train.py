"""specmesh train-drafter: prompts ─▶ the model's own answers ─▶ a head that drafts them ─▶ its acceptance on held-out
prompts.

Everything is in one folder, and a run that ended early goes on where it was: answers that are written aren't made
again, and training begins at its last checkpoint.

    OUT/config.json, model.safetensors     the head, in its published layout
    OUT/README.md, training.json           what it was trained on, and its acceptance
    OUT/work/                              prompts, answers and checkpoint; may be deleted afterwards
"""

from __future__ import annotations

import functools
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from models.config import read_network
from models.heads.table import HEADS
from models.sources import ensure_model
from models.weights import Weights
from services.api.sampling import Sampling
from services.training import answers
from services.training.answers import TOLD_EVERY_S, ModelAnswer
from services.training.card import Curve, card, told
from services.training.eight_bits import store_in_8_bits
from services.training.job import Job
from services.training.loop import Training, TrainingProgress
from services.training.measure import Measured, measure
from services.training.nets import net_of
from services.training.prompts import OWN_PROMPTS, Asking, from_files
from services.training.target import Target
from services.worker.running.load_torch_model import load_torch_model
from services.worker.running.torch_runner import TorchRunner


def train(job: Job) -> Measured:
    """Raises `ModelError` or `ValueError` with a message for the user."""
    torch.manual_seed(job.plan.seed)
    folder = ensure_model(job.model, job.cache)
    network = read_network(folder)
    form, head = HEADS[job.method].made(network, min(job.vocabulary, network.vocab_size))
    work = job.out / "work"
    work.mkdir(parents=True, exist_ok=True)
    texts, held_out = _texts(job, folder, work)
    texts = [text for text in texts if len(text.ids) > text.prompt_tokens + 1]
    if not texts:
        raise ValueError("the model answered none of the prompts with more than a token")
    target = Target(folder, head.taps, job.wanted)
    net = net_of(job.method, target, _vocabulary(texts, job.vocabulary, network.vocab_size))
    net.start(Weights(folder))
    training = Training(net, target, texts, job.plan, work / f"{job.method}.safetensors")
    began = time.monotonic()
    curve = Curve(work / "curve.jsonl", training.steps)
    tell = _teller()

    def progressed(progress: TrainingProgress) -> None:
        curve.add(progress)
        tell(progress)

    training.run(progressed)
    net.leaves_out_head = job.leaves_out_head
    net.save(job.out)
    for name in form.files:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, job.out / name)
    if job.eight_bits:
        store_in_8_bits(job.out)
    del target, training
    print(f"trained in {time.monotonic() - began:.0f} s; measuring on held-out prompts", flush=True)
    found = measure(folder, job.method, job.out, held_out, job.wanted, job.max_tokens)
    said = told(job, net, texts, found, curve.points())
    (job.out / "README.md").write_text(card(job, said), "utf-8")
    (job.out / "training.json").write_text(json.dumps(said, indent=1) + "\n", "utf-8")
    return found


def _texts(job: Job, folder: Path, work: Path) -> tuple[list[ModelAnswer], list[list[int]]]:
    """The model's answers, and the prompts that are held out."""
    load = functools.cache(lambda: TorchRunner(load_torch_model(folder, job.wanted)))
    asking = Asking(folder)
    from_data = from_files(job.data)
    chosen, held_out = asking.split(dict(enumerate(from_data)))
    chosen = dict(enumerate(list(chosen.values())[: job.most_prompts or None]))
    if job.own_prompts:
        opening = asking.opening()
        todo = dict.fromkeys(range(job.own_prompts), opening.ids)
        written = answers.all_of("prompts", load, todo, work / "prompts.jsonl", opening.sampling(job.plan.seed))
        own = asking.own(written, opening, from_data)
        more, more_held_out = asking.split({OWN_PROMPTS + number: text for number, text in own.items()})
        chosen, held_out = chosen | more, held_out + more_held_out
        print(f"{len(own)} of {len(written)} prompts of the model's own can be used", flush=True)
    if not chosen:
        raise ValueError("there are no prompts to train on")
    if not held_out:
        held_out = [list(chosen.values())[-1]]
        if len(chosen) > 1:
            chosen.popitem()
    held_out = held_out[: job.held_out]
    print(f"{len(chosen)} prompts to train on, {len(held_out)} held out", flush=True)
    sampling = Sampling(max_tokens=job.max_tokens, temperature=job.temperature, seed=job.plan.seed)
    return answers.all_of("answers", load, chosen, work / "answers.jsonl", sampling), held_out


def _vocabulary(texts: Sequence[ModelAnswer], most: int, whole: int) -> torch.Tensor:
    """The ids that answers have most often, rising; filled up with the first ids of the vocabulary."""
    counts = Counter(token for text in texts for token in text.ids[text.prompt_tokens :])
    found = [token for token, _ in counts.most_common(most)]
    seen = set(found)
    found += [token for token in range(whole) if token not in seen][: min(most, whole) - len(found)]
    return torch.tensor(sorted(found))


def _teller() -> Callable[[TrainingProgress], None]:
    last = 0.0

    def tell(progress: TrainingProgress) -> None:
        nonlocal last
        if time.monotonic() - last > TOLD_EVERY_S or progress.step == progress.steps:
            last = time.monotonic()
            hits = " ".join(f"{hit:.3f}" for hit in progress.hits)
            print(
                f"step {progress.step} of {progress.steps}, {progress.tokens} tokens, loss {progress.loss:.3f}, "
                f"most probable token right by position: {hits}",
                flush=True,
            )

    return tell

"""specmesh train-drafter: prompts ─▶ the model's own answers ─▶ a head that drafts them ─▶ its acceptance on held-out
prompts.

Everything is in one folder, and a run that ended early goes on where it was: answers that are written aren't made
again, and training begins at its last checkpoint.

    OUT/config.json, model.safetensors     the head, in its published layout
    OUT/README.md                          what it was trained on, and its acceptance
    OUT/work/                              answers and checkpoint; may be deleted afterwards
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from models.config import read_network
from models.errors import ModelError
from models.sources import ensure_model
from services.api.messages import Sampling
from services.tokenizer.chat_template import ChatTemplate, read_template
from services.tokenizer.encode import Encoder
from services.training import answers
from services.training.answers import Text
from services.training.loop import Plan, Progress, Training
from services.training.measure import Measured, measure
from services.training.nets import NETS, Net
from services.training.target import Target
from services.worker.running.torch_model import Wanted, load_torch_model
from services.worker.running.torch_runner import TorchRunner

# One prompt of this many is held out, by the hash of its text: the same ones in every run.
HELD_OUT_OF = 20
MOST_PROMPT_TOKENS = 1024
TOLD_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Job:
    """What train-drafter is asked for."""

    method: str
    model: str
    data: tuple[Path, ...]
    out: Path
    cache: Path
    vocabulary: int = 8192
    max_tokens: int = 256
    temperature: float = 0.0
    most_prompts: int = 0  # 0: all
    held_out: int = 40  # at most
    plan: Plan = field(default_factory=Plan)
    wanted: Wanted = field(default_factory=Wanted)


def train(job: Job) -> Measured:
    """Raises `ModelError` or `ValueError` with a message for the user."""
    torch.manual_seed(job.plan.seed)
    folder = ensure_model(job.model, job.cache)
    network = read_network(folder)
    work = job.out / "work"
    work.mkdir(parents=True, exist_ok=True)
    prompts, held_out = _prompts(job, folder)
    print(f"{len(prompts)} prompts to train on, {len(held_out)} held out", flush=True)
    texts = _answered(job, folder, dict(enumerate(prompts)), work / "answers.jsonl")
    texts = [text for text in texts if len(text.ids) > text.prompt_tokens + 1]
    if not texts:
        raise ValueError("the model answered none of the prompts with more than a token")
    kind = NETS[job.method]
    target = Target(folder, kind.taps(network), job.wanted)
    net = kind(network, target.embedding, target.head, _vocabulary(texts, job.vocabulary, network.vocab_size))
    training = Training(net, target, texts, job.plan, work / f"{job.method}.safetensors")
    began = time.monotonic()
    training.run(_teller())
    net.save(job.out)
    del target, training
    print(f"trained in {time.monotonic() - began:.0f} s; measuring on held-out prompts", flush=True)
    found = measure(folder, job.method, job.out, held_out, job.wanted, job.max_tokens)
    (job.out / "README.md").write_text(_card(job, net, texts, found))
    return found


def _answered(job: Job, folder: Path, prompts: Mapping[int, Sequence[int]], file: Path) -> list[Text]:
    """By number. Those in the file aren't made again."""
    texts = {text.number: text for text in answers.read(file)}
    if lacking := {number: prompt for number, prompt in prompts.items() if number not in texts}:
        runner = TorchRunner(load_torch_model(folder, job.wanted))
        sampling = Sampling(max_tokens=job.max_tokens, temperature=job.temperature, seed=job.plan.seed)
        made, last = 0, 0.0
        for text in answers.make(runner, lacking, file, sampling):
            texts[text.number] = text
            made += len(text.ids) - text.prompt_tokens
            if time.monotonic() - last > TOLD_EVERY_S:
                last = time.monotonic()
                print(f"answers: {len(texts)} of {len(prompts)}, {made} new tokens", flush=True)
    return [text for _, text in sorted(texts.items())]


def _vocabulary(texts: Sequence[Text], most: int, whole: int) -> torch.Tensor:
    """The ids that answers have most often, rising; filled up with the first ids of the vocabulary."""
    counts = Counter(token for text in texts for token in text.ids[text.prompt_tokens :])
    found = [token for token, _ in counts.most_common(most)]
    seen = set(found)
    found += [token for token in range(whole) if token not in seen][: min(most, whole) - len(found)]
    return torch.tensor(sorted(found))


def _teller() -> Callable[[Progress], None]:
    last = 0.0

    def tell(progress: Progress) -> None:
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


# Prompts ------------------------------------------------------------------------------------------------------


def _prompts(job: Job, folder: Path) -> tuple[list[list[int]], list[list[int]]]:
    """To train on, and held out; as the model is asked: through its chat template where it has one."""
    encoder = Encoder.from_folder(folder)
    source = read_template(folder)
    template = None if source is None else ChatTemplate(source, 1 << 20)
    most = min(MOST_PROMPT_TOKENS, read_network(folder).max_context - 1)
    chosen: list[list[int]] = []
    held: list[list[int]] = []
    for prompt in dict.fromkeys(_texts(job.data)):
        text = prompt
        if template is not None:
            text = template.render([{"role": "user", "content": prompt}], True)
        ids = encoder.encode(text, add_special_tokens=template is None)
        if not 0 < len(ids) <= most:
            continue
        out = int(hashlib.sha256(prompt.encode()).hexdigest(), 16) % HELD_OUT_OF == 0
        (held if out else chosen).append(ids)
    if job.most_prompts:
        chosen = chosen[: job.most_prompts]
    if not chosen:
        raise ValueError("the data hold no prompts")
    if not held:
        held, chosen = chosen[-1:], chosen[:-1] or chosen
    return chosen, held[: job.held_out]


def _texts(files: Sequence[Path]) -> Iterator[str]:
    """A prompt a line: text, or JSON with `prompt` or `messages` (the first of the user counts)."""
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            if not line.strip():
                continue
            if file.suffix != ".jsonl":
                yield line
                continue
            try:
                yield _prompt_of(json.loads(line))
            except (ValueError, KeyError, TypeError, StopIteration) as error:
                raise ValueError(f"{file}: a line is neither {{'prompt': ...}} nor {{'messages': ...}}") from error


def _prompt_of(line: object) -> str:
    if not isinstance(line, dict):
        raise TypeError("no object")
    if isinstance(prompt := line.get("prompt"), str):
        return prompt
    messages = line["messages"]
    if not isinstance(messages, list):
        raise TypeError("messages is no list")
    return str(next(each["content"] for each in messages if each["role"] == "user"))


# The card -----------------------------------------------------------------------------------------------------


def _card(job: Job, net: Net, texts: Sequence[Text], found: Measured) -> str:
    tokens = sum(len(text.ids) - text.prompt_tokens for text in texts)
    shares = ", ".join(f"{share:.2f}" for share in found.accepted)
    data = ", ".join(path.name for path in job.data)
    numbers = sum(part.numel() for part in net.parameters())
    return f"""# {job.method} head for {job.model}

Made by `specmesh train-drafter --method {job.method} --model {job.model} --seed {job.plan.seed}`.

- Trained on {len(texts)} of the model's own answers ({tokens} tokens, temperature {job.temperature:g}) to prompts from
  {data}.
- {job.plan.passes} passes, {numbers} trained numbers, a draft vocabulary of {len(net.tokens)} tokens.
- On {found.prompts} held-out prompts (greedy, {found.tokens} tokens): {found.tokens_per_step:.2f} tokens per step;
  share of drafted tokens accepted by position: {shares}.
"""


def check(job: Job) -> None:
    """What can be refused before anything is loaded. Raises ValueError or ModelError."""
    if job.method not in NETS:
        raise ValueError(f"{job.method} heads can't be trained; those of {', '.join(NETS)} can")
    for path in job.data:
        if not path.is_file():
            raise ModelError(f"{path} is no file", "give files with a prompt a line, or .jsonl")

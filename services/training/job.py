"""What train-drafter is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from models.errors import ModelError
from models.heads.table import TRAINED
from services.training.loop import TrainingPlan
from services.worker.running.load_torch_model import Wanted


@dataclass(frozen=True, slots=True)
class Job:
    method: str
    model: str
    data: tuple[Path, ...]
    out: Path
    cache: Path
    vocabulary: int = 8192
    max_tokens: int = 256
    temperature: float = 0.0
    most_prompts: int = 0  # of the data; 0: all
    own_prompts: int = 0  # as many are sampled, and fewer kept
    eight_bits: bool = False  # how the head is stored
    leaves_out_head: bool = False  # an output head that is the model's, for which other servers ask
    held_out: int = 40  # at most
    plan: TrainingPlan = field(default_factory=TrainingPlan)
    wanted: Wanted = field(default_factory=Wanted)


def check(job: Job) -> None:
    """What can be refused before anything is loaded. Raises ValueError or ModelError."""
    if job.method not in TRAINED:
        raise ValueError(f"{job.method} heads can't be trained; those of {', '.join(TRAINED)} can")
    if job.own_prompts < 0:
        raise ValueError(f"--own-prompts is {job.own_prompts}: give a number of 0 or more")
    if not job.data and not job.own_prompts:
        raise ValueError("there are no prompts: give --data FILE or --own-prompts N")
    for path in job.data:
        if not path.is_file():
            raise ModelError(f"{path} is no file", "give files with a prompt a line, or .jsonl")

"""The command `specmesh train-drafter`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from services.api.settings import cache_dir
from services.runtime.refusal import refuse

if TYPE_CHECKING:
    from services.api.settings import Settings


def main(options: argparse.Namespace, settings: Settings) -> int:
    from models.errors import ModelError
    from services.runtime.cpu_placement import threads_of
    from services.training.job import Job, check
    from services.training.loop import TrainingPlan
    from services.training.train import train
    from services.worker.running.load_torch_model import Wanted

    threads = threads_of("worker", settings.cores, settings.threads)
    job = Job(
        method=options.head,
        model=settings.model,
        data=tuple(map(Path, options.data)),
        out=Path(options.out),
        cache=cache_dir(settings),
        vocabulary=options.vocabulary,
        max_tokens=options.answer_tokens,
        temperature=options.answer_temperature,
        most_prompts=options.prompts,
        own_prompts=options.own_prompts,
        eight_bits=options.head_dtype == "int8",
        leaves_out_head=options.leave_out_head,
        plan=TrainingPlan(passes=options.passes, seed=options.train_seed, rate=options.rate),
        wanted=Wanted(dtype=settings.dtype, executor=settings.executor, threads=threads, kv_cache_mb=512),
    )
    try:
        check(job)
        found = train(job)
    except (ModelError, ValueError, OSError) as error:
        return refuse(error)
    print(f"{job.out}: {found.tokens_per_step:.2f} tokens per step on {found.prompts} held-out prompts")
    print(f"serve it: specmesh up --model {job.model} --draft-model {job.out}")
    return 0

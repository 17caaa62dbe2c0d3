"""A model in this process, without a mesh, a thread and a proposer: for tests and trainings.

    engine = Engine("smollm2-135m-instruct", dtype="float32")
    [output] = engine.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))

It runs what a worker runs, so a text is the same from here and from a server with the same settings. Drafts come from a
head (`method="eagle3"`), or there are none. Importing this puts the folder of specmesh's own packages first on the path
(rooms.py).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from specmesh import rooms
from specmesh.outputs import CompletionOutput, RequestOutput
from specmesh.sampling_params import SamplingParams

rooms.put_first()

from models.sources import ensure_model  # noqa: E402
from services.api.methods import METHODS, NAIVE  # noqa: E402
from services.api.parameters import LARGEST, SEEDS  # noqa: E402
from services.api.sampling import Sampling  # noqa: E402
from services.api.sampling_defaults import SamplingDefaults  # noqa: E402
from services.api.settings import cache_dir, load_settings, settings_file  # noqa: E402
from services.streamer.openai.errors import ApiError  # noqa: E402
from services.streamer.openai.fields import BodyFields  # noqa: E402
from services.streamer.openai.sampling import read_sampling  # noqa: E402
from services.tokenizer.encode import Encoder  # noqa: E402
from services.worker.in_process import EndedAnswer, InProcessEngine  # noqa: E402
from services.worker.loading import load_runner  # noqa: E402

GREEDY = SamplingParams(temperature=0.0)


class Engine:
    def __init__(self, model: str = "", **settings: Any) -> None:
        """`settings`: those of `specmesh up` that are about the model and its head (docs/operate/settings.md). Raises
        ValueError or ModelError if they can't be had."""
        given = {"method": NAIVE, **({"model": model} if model else {}), **settings}
        own = load_settings(given, os.environ, settings_file(os.environ))
        if own.method != NAIVE and METHODS[own.method].runs != "worker":
            raise ValueError(f"method {own.method} drafts in a process of its own: use LLM, or a head")
        self._encoder = Encoder.from_folder(ensure_model(own.model, cache_dir(own), dtype=own.dtype))
        self._engine = InProcessEngine(load_runner(own), own.method)

    def generate(
        self, prompts: str | Sequence[str | Sequence[int]], sampling_params: SamplingParams = GREEDY
    ) -> list[RequestOutput]:
        """The answers to texts or lists of token ids, in their order. The seed of a prompt is that of the parameters
        plus its place. Raises ValueError for parameters that only a server knows, such as `stop`."""
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        asked = {place: self.encode(each) if isinstance(each, str) else each for place, each in enumerate(texts)}
        ended = {each.number: each for each in self._engine.run(asked, _sampling(sampling_params))}
        return [self._output(ended[place], texts[place], asked[place]) for place in asked]

    def encode(self, text: str) -> list[int]:
        return self._encoder.encode(text, add_special_tokens=True)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._encoder.decode(token_ids, skip_special_tokens=True)

    def _output(self, ended: EndedAnswer, prompt: str | Sequence[int], prompt_ids: Sequence[int]) -> RequestOutput:
        drafts, end = ended.finished.speculation, ended.finished
        answer = CompletionOutput(0, self.decode(ended.ids), ended.ids, end.reason, end.stop_token)
        return RequestOutput(
            request_id=str(ended.number),
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=list(prompt_ids),
            outputs=[answer],
            num_cached_tokens=end.cached_tokens,
            acceptance={"num_draft_tokens": drafts.drafted, "num_accepted_draft_tokens": drafts.accepted},
        )


def _sampling(params: SamplingParams) -> Sampling:
    """Read as a server reads it."""
    fields = BodyFields(params.body(chat=False))
    try:
        fields.only("n", 1)
        most, seed = fields.integer("max_tokens", 0, LARGEST), fields.integer("seed", *SEEDS)
        sampling = read_sampling(fields, most, -1, SamplingDefaults())
        fields.nothing_else()
    except ApiError as error:
        raise ValueError(str(error)) from None
    return dataclasses.replace(sampling, max_tokens=LARGEST if most is None else most, seed=seed or 0)

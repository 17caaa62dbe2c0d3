"""The names of LMDeploy's Python API: `pipeline(model, …)(prompts)`. A script of theirs runs with its import line
changed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

from specmesh.llm import LLM, Message
from specmesh.outputs import RequestOutput
from specmesh.sampling_params import SamplingParams

# A user's message, or a whole conversation.
Asked: TypeAlias = str | Sequence[Message]


def _means(setting: str, default: Any = None) -> Any:
    """A field of LMDeploy's, and the setting of `specmesh up` that it is; "": it has no meaning here."""
    return field(default=default, metadata={"ours": setting})


@dataclass
class PytorchEngineConfig:
    dtype: str | None = _means("dtype")
    tp: int | None = _means("tensor_parallel_size")
    session_len: int | None = _means("max_context")
    max_batch_size: int | None = _means("max_sequences")
    block_size: int | None = _means("page_tokens")
    max_prefill_token_num: int | None = _means("max_step_tokens")
    enable_prefix_caching: bool | None = _means("prefix_cache")
    download_dir: str | None = _means("cache_dir")
    cache_max_entry_count: float | None = _means("")
    prefill_interval: int | None = _means("")
    num_cpu_blocks: int | None = _means("")
    num_gpu_blocks: int | None = _means("")
    eager_mode: bool | None = _means("")
    device_type: str | None = _means("")
    quant_policy: int | None = _means("")
    distributed_executor_backend: str | None = _means("")
    thread_safe: bool | None = _means("")

    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None:
                continue
            if each.metadata["ours"]:
                found[each.metadata["ours"]] = value
            else:
                warnings.warn(f"{each.name} has no meaning here, and is left out", stacklevel=3)
        return found


@dataclass
class SpeculativeConfig:
    """`method`: as LMDeploy names it (eagle, eagle3, deepseek_mtp), or one of specmesh's."""

    method: str
    model: str = ""
    num_speculative_tokens: int = 1

    def settings(self) -> dict[str, Any]:
        config: dict[str, Any] = {"method": self.method, "num_speculative_tokens": self.num_speculative_tokens}
        return {"speculative_config": config | ({"model": self.model} if self.model else {})}


@dataclass
class GenerationConfig:
    """LMDeploy's defaults: without do_sample the most probable token is taken."""

    n: int = 1
    max_new_tokens: int = 512
    do_sample: bool = False
    top_p: float = 1.0
    top_k: int = 50
    min_p: float = 0.0
    temperature: float = 0.8
    repetition_penalty: float = 1.0
    ignore_eos: bool = False
    random_seed: int | None = None
    stop_words: list[str] | None = None
    bad_words: list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_new_tokens: int | None = None
    logprobs: int | None = None
    response_format: dict[str, Any] | None = None

    def params(self) -> SamplingParams:
        drawn = self.do_sample
        return SamplingParams(
            n=self.n,
            max_tokens=self.max_new_tokens,
            min_tokens=self.min_new_tokens or 0,
            temperature=self.temperature if drawn else 0.0,
            top_p=self.top_p if drawn else 1.0,
            top_k=self.top_k if drawn else 0,
            min_p=self.min_p if drawn else 0.0,
            repetition_penalty=self.repetition_penalty,
            ignore_eos=self.ignore_eos,
            seed=self.random_seed,
            stop=self.stop_words,
            bad_words=self.bad_words,
            stop_token_ids=self.stop_token_ids,
            logprobs=self.logprobs,
            more={"response_format": self.response_format} if self.response_format else {},
        )


@dataclass
class Response:
    text: str
    generate_token_len: int
    input_token_len: int
    finish_reason: str | None
    token_ids: list[int]
    logprobs: list[dict[int, float]] | None = None
    index: int = 0


class Pipeline:
    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    def __call__(
        self, prompts: Asked | Sequence[Asked], gen_config: GenerationConfig | None = None, **more: Any
    ) -> Response | list[Response]:
        """One answer to a prompt, or a list of them to a list. `more`: fields of gen_config."""
        if isinstance(prompts, str) or _is_conversation(prompts):
            return self._answers([prompts], gen_config, more)[0]  # type: ignore[list-item]
        return self._answers(list(prompts), gen_config, more)  # type: ignore[arg-type]

    infer = __call__

    def stream_infer(
        self, prompts: Asked | Sequence[Asked], gen_config: GenerationConfig | None = None, **more: Any
    ) -> Iterator[Response]:
        """The answers as they come, one prompt behind the other; `index` says whose."""
        one = isinstance(prompts, str) or _is_conversation(prompts)
        params = _config(gen_config, more).params()
        for index, each in enumerate([prompts] if one else prompts):
            count = 0
            for piece in self.llm.stream(_conversation(each), params):  # type: ignore[arg-type]
                count += len(piece.token_ids)
                yield Response(piece.text, count, 0, piece.finish_reason, piece.token_ids, index=index)

    def _answers(
        self, prompts: list[Asked], gen_config: GenerationConfig | None, more: dict[str, Any]
    ) -> list[Response]:
        outputs = self.llm.chat([_conversation(each) for each in prompts], _config(gen_config, more).params())
        return [_response(output, index) for index, output in enumerate(outputs)]

    def close(self) -> None:
        self.llm.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def pipeline(
    model_path: str,
    backend_config: PytorchEngineConfig | None = None,
    speculative_config: SpeculativeConfig | None = None,
    **settings: Any,
) -> Pipeline:
    """`settings`: further ones of `specmesh up`."""
    given = {} if backend_config is None else backend_config.settings()
    if speculative_config is not None:
        given |= speculative_config.settings()
    return Pipeline(LLM(model_path, **given, **settings))


def _config(given: GenerationConfig | None, more: dict[str, Any]) -> GenerationConfig:
    config = given or GenerationConfig()
    return replace(config, **more)


def _is_conversation(asked: Any) -> bool:
    return bool(asked) and not isinstance(asked[0], str) and hasattr(asked[0], "keys")


def _conversation(asked: Asked) -> Sequence[Message]:
    return [{"role": "user", "content": asked}] if isinstance(asked, str) else asked


def _response(output: RequestOutput, index: int) -> Response:
    first = output.outputs[0]
    told = first.logprobs
    return Response(
        text=first.text,
        generate_token_len=len(first.token_ids),
        input_token_len=len(output.prompt_token_ids),
        finish_reason=first.finish_reason,
        token_ids=first.token_ids,
        logprobs=None if told is None else [{token: each.logprob for token, each in row.items()} for row in told],
        index=index,
    )

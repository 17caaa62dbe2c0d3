"""Answers from Python: `LLM("model").generate(prompts)`, under the names of vLLM's class.

    LLM(model, …)          starts a mesh of its own, which ends with this program (own_mesh.py)
    LLM(url=…)             uses a server that runs
    LLM(run_dir=…)         uses the mesh of `specmesh up` with this run_dir on this machine

What it sends and gets is the HTTP API, so a text is the same from here and from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from specmesh.connection import Connection, RequestFailed, in_parallel
from specmesh.outputs import EmbeddingRequestOutput, RequestOutput, Streamed, embedding_of, output_of
from specmesh.own_mesh import OwnMesh
from specmesh.progress import EVERY_S, Progress, shown_for
from specmesh.sampling_params import SamplingParams
from specmesh.tokenizer import Tokenizer

T = TypeVar("T")
R = TypeVar("R")

# A text, token ids, or vLLM's {"prompt": text} and {"prompt_token_ids": ids}.
Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
Message: TypeAlias = Mapping[str, Any]
Params: TypeAlias = SamplingParams | Sequence[SamplingParams] | None

# Answers that are asked for at a time: twice what the worker computes at once by default, and below what a server
# takes in all.
IN_FLIGHT = 128
# Looks for the model's length, and seconds between two.
CARD_LOOKS, CARD_PAUSE = 100, 0.1
# Written by `up` into its run_dir.
DOOR = "door"
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
# Keys of a prompt that is a dict.
OF_PROMPT = {"prompt", "prompt_token_ids", "cache_salt"}
# Of vLLM's class, with what to do here.
NOT_HERE = {
    "encode": "use embed, or get_tokenizer().encode",
    "score": "no such models are served",
    "classify": "no such models are served",
    "reward": "no such models are served",
    "beam_search": "SamplingParams(n=...) draws several answers",
    "get_metrics": "LLM(metrics_port=...) serves /metrics",
    "sleep": "close the LLM, and make another one",
}


class LLM:
    """Close it, or use it in a with statement; a mesh of its own ends with the program in any case."""

    def __init__(
        self, model: str = "", *, url: str = "", run_dir: str = "", api_key: str = "", startup_timeout: float = 900.0,
        **settings: Any,
    ) -> None:  # fmt: skip
        """`settings`: those of `specmesh up` (docs/operate/settings.md) or vLLM's, as keywords; speculative_config may
        be a dict. Raises StartFailed with the mesh's own words if they are refused."""
        self._mesh: OwnMesh | None = None
        if (url or run_dir) and (model or settings):
            given = ", ".join([*(["model"] if model else []), *settings])
            raise ValueError(f"a server that runs has its model and settings: leave out {given}")
        if url or run_dir:
            door = url or _door_of(run_dir)
            self._connection = _connected(door, api_key)
        else:
            self._mesh = OwnMesh(model, settings)
            self._connection = Connection("http://localhost", self._mesh.socket, api_key)
        try:
            check = self._mesh.check if self._mesh is not None else _nothing
            self._connection.run(self._connection.ready(startup_timeout, check))
            card = self._connection.run(self._card())
        except BaseException:
            self.close()
            raise
        self.model: str = card["id"]
        self.max_model_len: int = card.get("max_model_len", 0)

    async def _card(self) -> dict[str, Any]:
        """A streamer that is ready may still have to ask a worker of its model; other servers tell no length."""
        card: dict[str, Any] = {}
        for _ in range(CARD_LOOKS):
            card = (await self._connection.get("/v1/models"))["data"][0]
            if "max_model_len" in card:
                break
            await asyncio.sleep(CARD_PAUSE)
        return card

    def close(self) -> None:
        """Repeat-safe."""
        self._connection.close()
        if self._mesh is not None:
            self._mesh.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer(self._connection, self.model)

    if not TYPE_CHECKING:  # a checker would take any name

        def __getattr__(self, name: str) -> Any:
            hint = f" here: {NOT_HERE[name]}" if name in NOT_HERE else ""
            raise AttributeError(f"LLM has no attribute {name!r}{hint}")

    # Answers --------------------------------------------------------------------------------------------

    def generate(
        self, prompts: Prompt | Iterable[Prompt], sampling_params: Params = None, *, use_tqdm: bool = True, **more: Any
    ) -> list[RequestOutput]:
        """The answers to all prompts, in their order. Without parameters the model's own are used, and an answer has at
        most 16 tokens. `use_tqdm`: show the progress, on a terminal or in a notebook. `more`: further fields of the
        requests."""
        asked = _as_list(prompts)
        progress = shown_for(asked) if use_tqdm else None
        return self._run(self._generate(asked, sampling_params, _given(**more), progress), progress)

    async def agenerate(
        self, prompts: Prompt | Iterable[Prompt], sampling_params: Params = None, **more: Any
    ) -> list[RequestOutput]:
        """As `generate`, from a coroutine."""
        return await self._connection.awaited(self._generate(_as_list(prompts), sampling_params, _given(**more)))

    def chat(
        self, messages: Sequence[Message] | Sequence[Sequence[Message]], sampling_params: Params = None, *,
        use_tqdm: bool = True, tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None, **more: Any,
    ) -> list[RequestOutput]:  # fmt: skip
        """The answers to one conversation, or to several. `more`: further fields of the requests."""
        asked = _conversations(messages)
        fields = _given(tools=tools, chat_template_kwargs=chat_template_kwargs, **more)
        progress = shown_for(asked) if use_tqdm else None
        return self._run(self._chat(asked, sampling_params, fields, progress), progress)

    async def achat(
        self, messages: Sequence[Message] | Sequence[Sequence[Message]], sampling_params: Params = None, **more: Any
    ) -> list[RequestOutput]:
        """As `chat`, from a coroutine. `more`: further fields of the requests, such as tools."""
        asked = _conversations(messages)
        return await self._connection.awaited(self._chat(asked, sampling_params, _given(**more)))

    def embed(
        self, prompts: Prompt | Iterable[Prompt], *, use_tqdm: bool = True, **more: Any
    ) -> list[EmbeddingRequestOutput]:
        """The embeddings of all prompts, in their order. `more`: fields of the requests: pooling, dimensions,
        normalize."""
        asked = _as_list(prompts)
        progress = shown_for(asked) if use_tqdm else None
        return self._run(self._embed(asked, _given(**more), progress), progress)

    async def aembed(self, prompts: Prompt | Iterable[Prompt], **more: Any) -> list[EmbeddingRequestOutput]:
        """As `embed`, from a coroutine."""
        return await self._connection.awaited(self._embed(_as_list(prompts), _given(**more)))

    def stream(
        self, prompt: Prompt | Sequence[Message], sampling_params: SamplingParams | None = None
    ) -> Iterator[Streamed]:
        """The answer to a prompt or a conversation, as it comes, with the source of its tokens."""
        return self._connection.iterate(self._streamed(prompt, sampling_params))

    async def astream(
        self, prompt: Prompt | Sequence[Message], sampling_params: SamplingParams | None = None
    ) -> AsyncIterator[Streamed]:
        """As `stream`, from a coroutine."""
        loop = asyncio.get_running_loop()
        items = self.stream(prompt, sampling_params)
        while (item := await loop.run_in_executor(None, next, items, None)) is not None:
            yield item

    # In the connection's thread -------------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, T], progress: Progress | None) -> T:
        if progress is None:
            return self._connection.run(work)
        try:
            return self._connection.run(work, progress.show, EVERY_S)
        finally:
            progress.end()

    async def _generate(
        self, prompts: Iterable[Prompt], params: Params, more: dict[str, Any], progress: Progress | None = None
    ) -> list[RequestOutput]:
        bodies = ((_completion(each) | more, own) for each, own in _with_params(prompts, params))
        return await self._all(COMPLETIONS, bodies, progress)

    async def _chat(
        self, conversations: Iterable[Any], params: Params, more: dict[str, Any], progress: Progress | None = None
    ) -> list[RequestOutput]:
        bodies = (({"messages": list(each), **more}, own) for each, own in _with_params(conversations, params))
        return await self._all(CHATS, bodies, progress)

    async def _all(
        self, path: str, bodies: Iterable[tuple[dict[str, Any], SamplingParams | None]], progress: Progress | None
    ) -> list[RequestOutput]:
        async def one(item: tuple[dict[str, Any], SamplingParams | None]) -> RequestOutput:
            body, params = item
            asked = self._asked(path, body, params) | {"return_token_ids": True, "return_tokens_as_token_ids": True}
            prompt = body.get("prompt")
            output = output_of(await self._connection.post(path, asked), prompt if isinstance(prompt, str) else None)
            if progress is not None:
                progress.add(sum(len(each.token_ids) for each in output.outputs), output.acceptance)
            return output

        return await _each(bodies, one)

    async def _embed(
        self, prompts: Iterable[Prompt], more: dict[str, Any], progress: Progress | None = None
    ) -> list[EmbeddingRequestOutput]:
        async def one(item: tuple[int, Prompt]) -> EmbeddingRequestOutput:
            place, prompt = item
            fields = _completion(prompt)
            asked = {"model": self.model, "input": fields.pop("prompt"), "encoding_format": "base64", **fields, **more}
            output = embedding_of(await self._connection.post(EMBEDDINGS, asked), str(place))
            if progress is not None:
                progress.add(output.num_prompt_tokens, {})
            return output

        return await _each(enumerate(prompts), one)

    def _asked(self, path: str, body: dict[str, Any], params: SamplingParams | None) -> dict[str, Any]:
        fields = {} if params is None else params.body(path == CHATS)
        return {"model": self.model, **body, **fields}

    async def _streamed(
        self, prompt: Prompt | Sequence[Message], params: SamplingParams | None
    ) -> AsyncIterator[Streamed]:
        chat = not isinstance(prompt, str | Mapping) and bool(prompt) and isinstance(prompt[0], Mapping)
        path = CHATS if chat else COMPLETIONS
        body = {"messages": list(prompt)} if chat else _completion(prompt)  # type: ignore[arg-type]
        asked = self._asked(path, body, params) | {"return_token_ids": True, "return_provenance": True}
        async for event in self._connection.events(path, asked):
            for choice in event["choices"]:
                delta = choice.get("delta", choice)
                text = delta.get("content", delta.get("text")) or ""
                ids, end = choice.get("token_ids") or [], choice.get("finish_reason")
                if text or ids or end:
                    reasoning = delta.get("reasoning_content") or ""
                    yield Streamed(choice["index"], text, ids, choice.get("runs") or [], end, reasoning)


def _connected(door: str, api_key: str) -> Connection:
    if door.startswith("unix:"):
        return Connection("http://localhost", door.removeprefix("unix:"), api_key)
    url, _, certificate = door.partition("\n")
    return Connection(url, api_key=api_key, certificate=certificate)


def _door_of(run_dir: str) -> str:
    try:
        return (Path(run_dir) / DOOR).read_text("utf-8").strip()
    except OSError:
        raise ValueError(f"no mesh of `specmesh up` serves in {run_dir}") from None


def _nothing() -> None: ...


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _as_list(prompts: Prompt | Iterable[Prompt]) -> Iterable[Prompt]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if isinstance(prompts, Sequence) and prompts and isinstance(prompts[0], int):
        return [prompts]
    return prompts  # type: ignore[return-value]


def _conversations(messages: Any) -> Any:
    return [messages] if messages and isinstance(messages[0], Mapping) else messages


def _completion(prompt: Prompt) -> dict[str, Any]:
    if not isinstance(prompt, Mapping):
        return {"prompt": prompt if isinstance(prompt, str) else list(prompt)}
    if unknown := prompt.keys() - OF_PROMPT:
        raise ValueError(f"a prompt has no {', '.join(sorted(unknown))} here")
    given = prompt["prompt_token_ids"] if "prompt_token_ids" in prompt else prompt["prompt"]
    return {**_completion(given), **_given(cache_salt=prompt.get("cache_salt"))}


def _with_params(items: Iterable[Any], params: Params) -> Iterator[tuple[Any, SamplingParams | None]]:
    if params is None or isinstance(params, SamplingParams):
        for each in items:
            yield each, params
        return
    if len(params) != len(items := list(items)):
        raise ValueError(f"{len(items)} prompts have {len(params)} sampling_params")
    yield from zip(items, params, strict=True)


async def _each(items: Iterable[T], work: Callable[[T], Coroutine[Any, Any, R]]) -> list[R]:
    try:
        return await in_parallel(items, work, IN_FLIGHT)
    except ExceptionGroup as errors:
        raise _first(errors) from None


def _first(errors: BaseExceptionGroup) -> BaseException:
    """What the server said, rather than the cancellations that followed."""
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = next((each for each in found.exceptions if isinstance(each, RequestFailed)), found.exceptions[0])
    return found

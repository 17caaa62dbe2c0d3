"""Answers from Python: `LLM("model").generate(prompts)`, under the names of vLLM's class.

    LLM(model, …)          starts a mesh of its own, which ends with this program (own_mesh.py)
    LLM(url=…)             uses a server that runs
    LLM(run_dir=…)         uses the mesh of `specmesh up` with this run_dir on this machine

What it sends and gets is the HTTP API, so a text is the same from here and from there.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from specmesh.connection import Connection, RequestFailed, in_parallel
from specmesh.outputs import RequestOutput, Streamed, output_of
from specmesh.own_mesh import OwnMesh
from specmesh.sampling_params import SamplingParams

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
_SHOW_EVERY = 0.2


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

    # Answers --------------------------------------------------------------------------------------------

    def generate(
        self, prompts: Prompt | Iterable[Prompt], sampling_params: Params = None, *, use_tqdm: bool = True
    ) -> list[RequestOutput]:
        """The answers to all prompts, in their order. Without parameters the model's own are used, and an answer has at
        most 16 tokens. `use_tqdm`: show the progress, on a terminal."""
        return self._connection.run(self._generate(prompts, sampling_params, use_tqdm))

    async def agenerate(
        self, prompts: Prompt | Iterable[Prompt], sampling_params: Params = None
    ) -> list[RequestOutput]:
        """As `generate`, from a coroutine."""
        return await self._connection.awaited(self._generate(prompts, sampling_params, False))

    def chat(
        self, messages: Sequence[Message] | Sequence[Sequence[Message]], sampling_params: Params = None, *,
        use_tqdm: bool = True, tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:  # fmt: skip
        """The answers to one conversation, or to several."""
        more = _given(tools=tools, chat_template_kwargs=chat_template_kwargs)
        return self._connection.run(self._chat(messages, sampling_params, more, use_tqdm))

    async def achat(
        self, messages: Sequence[Message] | Sequence[Sequence[Message]], sampling_params: Params = None, **more: Any
    ) -> list[RequestOutput]:
        """As `chat`, from a coroutine. `more`: further fields of the request, such as tools."""
        return await self._connection.awaited(self._chat(messages, sampling_params, _given(**more), False))

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

    async def _generate(
        self, prompts: Prompt | Iterable[Prompt], params: Params, shown: bool
    ) -> list[RequestOutput]:
        bodies = ((_completion(each), own) for each, own in _with_params(_as_list(prompts), params))
        return await self._all(COMPLETIONS, bodies, shown)

    async def _chat(self, messages: Any, params: Params, more: dict[str, Any], shown: bool) -> list[RequestOutput]:
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        bodies = (({"messages": list(each), **more}, own) for each, own in _with_params(conversations, params))
        return await self._all(CHATS, bodies, shown)

    async def _all(
        self, path: str, bodies: Iterable[tuple[dict[str, Any], SamplingParams | None]], shown: bool
    ) -> list[RequestOutput]:
        progress = _Progress() if shown and sys.stderr.isatty() else None

        async def one(item: tuple[dict[str, Any], SamplingParams | None]) -> RequestOutput:
            body, params = item
            asked = self._asked(path, body, params) | {"return_token_ids": True, "return_tokens_as_token_ids": True}
            prompt = body.get("prompt")
            output = output_of(await self._connection.post(path, asked), prompt if isinstance(prompt, str) else None)
            if progress is not None:
                progress.add(output)
            return output

        try:
            return await in_parallel(bodies, one, IN_FLIGHT)
        except ExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            if progress is not None:
                progress.end()

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


def _completion(prompt: Prompt) -> dict[str, Any]:
    if isinstance(prompt, Mapping):
        prompt = prompt["prompt_token_ids"] if "prompt_token_ids" in prompt else prompt["prompt"]
    return {"prompt": prompt if isinstance(prompt, str) else list(prompt)}


def _with_params(items: Iterable[Any], params: Params) -> Iterator[tuple[Any, SamplingParams | None]]:
    if params is None or isinstance(params, SamplingParams):
        for each in items:
            yield each, params
        return
    if len(params) != len(items := list(items)):
        raise ValueError(f"{len(items)} prompts have {len(params)} sampling_params")
    yield from zip(items, params, strict=True)


def _first(errors: BaseExceptionGroup) -> BaseException:
    """What the server said, rather than the cancellations that followed."""
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = next((each for each in found.exceptions if isinstance(each, RequestFailed)), found.exceptions[0])
    return found


class _Progress:
    """A line on the terminal: answers, tokens a second, and the share of draft tokens that was accepted."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._answers = self._tokens = self._drafted = self._accepted = 0
        self._show_at = 0.0

    def add(self, output: RequestOutput) -> None:
        self._answers += 1
        self._tokens += sum(len(each.token_ids) for each in output.outputs)
        self._drafted += output.acceptance.get("num_draft_tokens", 0)
        self._accepted += output.acceptance.get("num_accepted_draft_tokens", 0)
        if time.monotonic() >= self._show_at:
            self._show_at = time.monotonic() + _SHOW_EVERY
            self._show("\r")

    def _show(self, before: str) -> None:
        took = max(1e-9, time.monotonic() - self._began)
        accepted = f", {self._accepted / self._drafted:.0%} of drafts accepted" if self._drafted else ""
        line = f"{self._answers} answers, {self._tokens / took:.0f} tokens/s{accepted}"
        print(f"{before}{line}\033[K", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        self._show("\r")
        print(file=sys.stderr)

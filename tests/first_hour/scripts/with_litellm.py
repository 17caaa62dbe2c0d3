"""LiteLLM, as its pages use it for servers of OpenAI's API. Prints what it got as one JSON object."""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm

# It would print advice beside the JSON.
litellm.suppress_debug_info = True
URL, MODEL = sys.argv[1:]
HI = [{"role": "user", "content": "hi"}]


def main() -> dict[str, Any]:
    answer = ask(max_tokens=8, temperature=0)
    chunks = list(ask(max_tokens=8, temperature=0, stream=True, stream_options={"include_usage": True}))
    seeded = [ask(max_tokens=8, temperature=1, seed=7).choices[0].message.content for _ in range(2)]
    likely = ask(max_tokens=4, logprobs=True, top_logprobs=2)
    completion = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}", api_base=URL + "/v1", api_key="none", prompt="one two three one two",
        max_tokens=8, temperature=0,
    )  # fmt: skip
    text = answer.choices[0].message.content
    return {
        "text": text,
        "usage": answer.usage.model_dump(include={"prompt_tokens", "completion_tokens", "total_tokens"}),
        "finish_reason": answer.choices[0].finish_reason,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
        "streamed_usage": [chunk.usage.completion_tokens for chunk in chunks if getattr(chunk, "usage", None)],
        "seeded": seeded,
        "choices": len(ask(max_tokens=4, n=2, temperature=1).choices),
        "logprobs": [each.model_dump() for each in likely.choices[0].logprobs.content],
        "completion": completion.choices[0].text,
        "stopped": ask(max_tokens=8, temperature=0, stop=[text[1:2]]).choices[0].message.content,
        # The provider for servers like vLLM, by its own name.
        "hosted": ask(provider="hosted_vllm", max_tokens=8, temperature=0).choices[0].message.content,
        "too_long": refused(lambda: ask(max_tokens=10**6)),
        "model": refused(lambda: ask(name="gpt-4o", max_tokens=4)),
        "method": ask(max_tokens=4, extra_body={"speculation": {"method": "ngram"}}).choices[0].message.content,
    }


def ask(name: str = MODEL, provider: str = "openai", **more: Any) -> Any:
    return litellm.completion(
        model=f"{provider}/{name}", api_base=URL + "/v1", api_key="none", messages=HI, max_retries=0, **more
    )


def refused(ask: Any) -> str:
    try:
        ask()
    except (litellm.exceptions.BadRequestError, litellm.exceptions.NotFoundError) as error:
        return f"{error.status_code} {error}"
    return "taken"


json.dump(main(), sys.stdout)

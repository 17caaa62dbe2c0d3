"""LangChain's client, as its pages use it. Prints what it got as one JSON object. Runs where langchain-openai is."""

from __future__ import annotations

import json
import sys
from typing import Any

import openai
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI, OpenAI

URL, MODEL = sys.argv[1:]
SERVER: dict[str, Any] = {"model": MODEL, "base_url": URL + "/v1", "api_key": "none", "max_retries": 0}


def main() -> dict[str, Any]:
    chat = ChatOpenAI(**SERVER, max_tokens=8, temperature=0, stream_usage=True)
    answer = chat.invoke("hi")
    chunks = list(chat.stream("hi"))
    seeded = ChatOpenAI(**SERVER, max_tokens=8, temperature=1, seed=7)
    several = ChatOpenAI(**SERVER, max_tokens=4, n=2, temperature=1).generate([[HumanMessage("hi")]])
    likely = ChatOpenAI(**SERVER, max_tokens=4, logprobs=True, top_logprobs=2).invoke("hi")
    text = OpenAI(**SERVER, max_tokens=8, temperature=0)
    drafted = ChatOpenAI(**SERVER, max_tokens=4, extra_body={"speculation": {"method": "ngram"}})
    return {
        "text": answer.content,
        "usage": answer.usage_metadata,
        "finish_reason": answer.response_metadata["finish_reason"],
        "streamed": "".join(str(chunk.content) for chunk in chunks),
        "with_a_system_message": chat.invoke([("system", "Be brief."), ("human", "hi")]).content,
        "streamed_usage": [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata],
        "seeded": [seeded.invoke("hi").content for _ in range(2)],
        "choices": len(several.generations[0]),
        "logprobs": likely.response_metadata["logprobs"]["content"],
        "batch": [each.content for each in chat.batch(["hi", "hi"])],
        "completion": text.invoke("one two three one two"),
        "completion_streamed": "".join(text.stream("one two three one two")),
        "tools": chat.bind_tools([look_up]).invoke("hi").content,
        "model": refused(lambda: ChatOpenAI(**{**SERVER, "model": "gpt-4o"}).invoke("hi")),
        "stopped": chat.invoke("hi", stop=[str(answer.content)[1:2]]).content,
        "method": drafted.invoke("hi").content,
    }


def look_up(word: str) -> str:
    """Looks a word up."""
    return word


def refused(ask: Any) -> str:
    try:
        ask()
    except openai.APIStatusError as error:
        return f"{error.status_code} {error}"
    return "taken"


json.dump(main(), sys.stdout)

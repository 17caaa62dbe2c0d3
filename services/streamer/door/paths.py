"""What a client is told that asked for a path which isn't served: the one that was meant, or what there is.

Pure. Knows the paths as text, and no handlers.
"""

from __future__ import annotations

from collections.abc import Collection

from services.streamer.openai.errors import ApiError

LONGEST_SHOWN = 80
BASE = "/v1"
# Paths of other servers, and what does the same here.
SUCCESSORS = {
    "/generate": "POST /v1/completions, with the text as prompt and the sampling parameters beside it",
    "/generate_stream": "POST /v1/completions with stream: true",
    "/embedding": "POST /v1/embeddings, with input for content",
    "/pooling": "POST /v1/embeddings",
    "/completion": "POST /v1/completions, with max_tokens for n_predict",
    "/apply-template": "POST /tokenize with messages, which gives the prompt as token ids",
    "/props": "GET /v1/models",
    "/slots": "GET /v1/mesh",
    "/get_model_info": "GET /v1/models",
    "/server_info": "GET /v1/mesh",
}
# Paths of other servers, and what they are for, which nothing here does.
NOT_SERVED = {
    "/infill": "filling in between two texts",
    "/score": "scores of documents",
    "/v1/score": "scores of documents",
    "/v2/rerank": "scores of documents",
    "/classify": "classes of texts",
    "/rerank": "scores of documents",
    "/v1/rerank": "scores of documents",
    "/reranking": "scores of documents",
    "/v1/reranking": "scores of documents",
    "/lora-adapters": "LoRA adapters",
}


def no_such_path(method: str, path: str, known: Collection[tuple[str, str]]) -> ApiError:
    """`known`: method and path of every route. 405 if only the method is wrong."""
    allowed = sorted({each for each, served in known if served == path})
    if allowed:
        return ApiError(405, f"{path} takes {', '.join(allowed)}", code="method_not_allowed")
    paths = sorted({served for _, served in known if not served.startswith("/page/") and served != "/"})
    return ApiError(404, f"There is nothing at {shown(path)}. {_hint(path, paths)}", code="not_found")


def _hint(path: str, paths: list[str]) -> str:
    bare = "/" + path.strip("/")
    if bare == BASE:
        return f"It is the base URL for clients of OpenAI's API; below it are {', '.join(_below(paths))}"
    if bare in SUCCESSORS:
        return f"Use {SUCCESSORS[bare]}"
    if bare in NOT_SERVED:
        return f"Not served: {NOT_SERVED[bare]}"
    if bare in paths:
        return f"Did you mean {bare}?"
    if (outside := bare.removeprefix(BASE)) in paths:
        return f"Did you mean {outside}?"
    # A base URL without /v1, or with it twice, or with what comes behind it.
    for served in sorted(_below(paths), key=len, reverse=True):
        if bare.endswith(served.removeprefix(BASE)):
            return f"Did you mean {served}? The base URL of clients of OpenAI's API ends in {BASE}, once"
    return f"Served here: {', '.join(paths)}"


def _below(paths: list[str]) -> list[str]:
    return [each for each in paths if each.startswith(BASE + "/") and "{" not in each]


def shown(path: str) -> str:
    """As text on one line, whatever was sent."""
    return ascii(path[:LONGEST_SHOWN])[1:-1]

"""What a client of Anthropic's Messages API is told when its request cannot be served: its statuses and its body."""

from __future__ import annotations

from typing import Any

from services.streamer.messages.events import event
from services.streamer.openai.errors import ApiError

PATH = "/v1/messages"
# What has no row is an invalid_request_error.
KIND_OF_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    421: "permission_error",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
# That API has a status of its own for a server that can't take the request now.
OVERLOADED = {503: 529}


def speaks_messages(path: str) -> bool:
    """Whether errors at this path are those of the Messages API."""
    return path == PATH or path.startswith(PATH + "/")


def status(error: ApiError) -> int:
    return OVERLOADED.get(error.status, error.status)


def body(error: ApiError) -> dict[str, Any]:
    kind = KIND_OF_STATUS.get(status(error), "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def failure(error: ApiError) -> bytes:
    """The last event of a stream."""
    return event(body(error))

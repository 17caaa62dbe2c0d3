"""What a client is told when its request cannot be served, in OpenAI's error body.

Knows status codes and their names; knows neither HTTP parsing nor the mesh (generation.py maps its errors here).
"""

from __future__ import annotations

from typing import Any

KIND_OF_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    421: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """Ends a request with `status` and the body {"error": {message, type, param, code}}."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        final: bool = False,
    ) -> None:
        """`final`: clients that repeat server errors by themselves are asked not to."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.final = final

    def body(self) -> dict[str, Any]:
        kind = KIND_OF_STATUS.get(self.status, "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def bad_value(param: str, message: str, code: str = "invalid_value") -> ApiError:
    return ApiError(400, f"{param}: {message}", param=param, code=code)


def unsupported(param: str, message: str = "is not supported by this server") -> ApiError:
    return ApiError(400, f"{param} {message}", param=param, code="unsupported_parameter")

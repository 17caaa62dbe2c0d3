"""Where traces are sent to, and the environment variables of OpenTelemetry that say it.

These names belong to no server: each program that sends traces reads them. So they are read here, too, below everything
that is said to specmesh alone, and one that doesn't fit is told and ignored: it may be meant for others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

TRACES = "/v1/traces"
# Where collectors take OTLP over gRPC, and over HTTP.
GRPC_PORT, HTTP_PORT = 4317, 4318
ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
# Headers for the collector, often with a key: no setting, so that no page and no `config show` has them. The first one
# that is set counts.
HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+=[^\x00-\x1f\x7f]*")
VARIABLES = {ENDPOINT: "otlp_traces_endpoint", "OTEL_SERVICE_NAME": "otlp_service_name"}


def traces_url(endpoint: str) -> str:
    """The URL that spans are posted to; "": none. Raises ValueError with what to write instead."""
    if not endpoint:
        return ""
    example = f"http://127.0.0.1:{HTTP_PORT}{TRACES}"
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"{endpoint!r} is no URL: write one such as {example}") from None
    if parts.scheme == "grpc" or port == GRPC_PORT:
        raise ValueError(f"{endpoint!r} is for gRPC; traces are sent by HTTP: write http://{host}:{HTTP_PORT}{TRACES}")
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(f"{endpoint!r} is no URL of a collector: write one such as {example}")
    return endpoint if parts.path.strip("/") else parts._replace(path=TRACES).geturl()


def origin_of_standard(setting: str) -> str:
    (name,) = (each for each, row in VARIABLES.items() if row == setting)
    return f"environment {name}"


def standard(environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Settings from OpenTelemetry's variables, by the variables' names, and what to tell of those that don't fit."""
    given = {name: value for name in VARIABLES if (value := environment.get(name, ""))}
    try:
        traces_url(given.get(ENDPOINT, ""))
    except ValueError as error:
        del given[ENDPOINT]
        return given, [f"environment {ENDPOINT}: not used: {error}"]
    return given, []


def headers_of(environment: Mapping[str, str]) -> dict[str, str]:
    """What each POST of spans has besides. Raises ValueError, which names no value, for what can't be sent."""
    name = next((each for each in HEADERS if environment.get(each)), HEADERS[0])
    found = {}
    for number, entry in enumerate(filter(str.strip, environment.get(name, "").split(",")), start=1):
        entry = unquote(entry.strip())
        if not _HEADER.fullmatch(entry):
            raise ValueError(f"environment {name}: entry {number} is no header: write name=value,name=value")
        key, _, value = entry.partition("=")
        found[key] = value.strip()
    return found

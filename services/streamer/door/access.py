"""Who may send a request: API keys, Host and Origin, CORS, and who may read the metrics of all processes.

    Origin in cors_origins ─▶ preflights are answered, and answers may be read by that page
    keys ─▶ the key decides          no keys ─▶ Host and Origin decide (services/api/hosts.py)

Knows no routes.
"""

from __future__ import annotations

import ipaddress
import re
import socket

from aiohttp import web

from services.api.hosts import EVERY, AllowedHosts, origins_of, refusal
from services.streamer.door.api_keys import ApiKeys
from services.streamer.openai.errors import ApiError

KEY = web.RequestKey("KEY", bytes)
METHODS = "GET, POST, DELETE"
# Of clients in a browser; OpenAI's adds some of its own, which a preflight names.
PREFLIGHT_LASTS = "600"  # s
MOST_HEADERS_ASKED = 32
API_KEY = "x-api-key"
_HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")
# Headers of proxies: their client isn't on this machine, although the proxy may be.
FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")


class Access:
    """The checks of one server. `api_metrics`: the setting."""

    def __init__(
        self, *, api_keys: ApiKeys, hosts: AllowedHosts, cors_origins: str = "", api_metrics: str = "local"
    ) -> None:
        self._keys = api_keys
        self._hosts = hosts
        self._origins = origins_of(cors_origins)
        self._api_metrics = api_metrics

    def count(self) -> int:
        """Of keys, now."""
        return len(self._keys)

    def check_site(self, http: web.BaseRequest) -> None:
        """Without keys a request is told from one of another site's page by what the browser says of the page."""
        if self._keys:
            return
        host, origin = http.headers.get("Host", ""), http.headers.get("Origin")
        if not self._hosts.serves(host):
            raise ApiError(421, refusal(host), code="host_not_allowed")
        if http.method in ("GET", "HEAD") or origin is None or self._may_read(origin):
            return
        if not self._hosts.same_origin(origin, host):
            message = f"Pages of {origin[:80]!r} are not served without API keys: list its host in allowed_hosts"
            raise ApiError(403, message, code="origin_not_allowed")

    def check_key(self, http: web.BaseRequest) -> None:
        if not self._keys:
            return
        if (known := next((key for key in _sent_keys(http) if self._keys.know(key)), None)) is None:
            raise ApiError(401, "The API key is missing or wrong", code="invalid_api_key")
        http[KEY] = known

    def name(self, http: web.BaseRequest) -> str:
        """Of its key, for metrics."""
        return self._keys.name(self.key(http))

    def check_metrics(self, http: web.BaseRequest) -> None:
        """After check_key. With `local` nobody reads what the health ports, bound to this machine, didn't tell him."""
        if self._api_metrics == "callers":
            return
        if self._api_metrics == "local" and len(self._keys) < 2 and _is_local(http):
            return
        several = "with several API keys " if self._api_metrics == "local" and len(self._keys) > 1 else ""
        message = (
            f"{several}metrics are not served to this client here: read the health ports (metrics_host, metrics_port),"
            " or set api_metrics to callers"
        )
        raise ApiError(403, message[0].upper() + message[1:], code="metrics_not_allowed")

    def key(self, http: web.BaseRequest) -> bytes:
        """After check_key: the key that was known then, also if it has been removed since. A key sent to a server
        without keys makes no separate caller."""
        known: bytes = http.get(KEY, b"")
        return known

    # CORS -----------------------------------------------------------------------------------------------------

    def preflight(self, http: web.BaseRequest) -> web.Response | None:
        """The answer to a browser that asks before it sends; None: this is no such question, or CORS is off. It has
        no key yet, and learns nothing but whether its page's origin is listed."""
        if not self._origins or http.method != "OPTIONS" or "Access-Control-Request-Method" not in http.headers:
            return None
        if not self._keys and not self._hosts.serves(host := http.headers.get("Host", "")):
            raise ApiError(421, refusal(host), code="host_not_allowed")
        origin = http.headers.get("Origin", "")
        if not self._may_read(origin):
            raise ApiError(403, f"cors_origins has no {origin[:80]!r}", code="origin_not_allowed")
        asked = http.headers.get("Access-Control-Request-Headers", "").split(",", MOST_HEADERS_ASKED)
        names = [name for each in asked[:MOST_HEADERS_ASKED] if _HEADER_NAME.fullmatch(name := each.strip())]
        headers = {
            "Access-Control-Allow-Methods": METHODS,
            "Access-Control-Allow-Headers": ", ".join(names or ("authorization", "content-type")),
            "Access-Control-Max-Age": PREFLIGHT_LASTS,
        }
        if http.headers.get("Access-Control-Request-Private-Network") == "true":
            headers["Access-Control-Allow-Private-Network"] = "true"
        return web.Response(status=204, headers=headers)

    def headers(self, http: web.BaseRequest) -> dict[str, str]:
        """For every answer. Never Allow-Credentials: keys come in a header, and there are no cookies."""
        if not self._origins:
            return {}
        origin = http.headers.get("Origin", "")
        if not self._may_read(origin):
            return {"Vary": "Origin"}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": "x-request-id, retry-after, x-should-retry",
            "Vary": "Origin",
        }

    def _may_read(self, origin: str) -> bool:
        return bool(origin) and (EVERY in self._origins or origin.lower() in self._origins)


def _is_local(http: web.BaseRequest) -> bool:
    if any(name in http.headers for name in FORWARDED):
        return False
    connection = None if http.transport is None else http.transport.get_extra_info("socket")
    if connection is not None and connection.family == socket.AF_UNIX:
        return True
    try:
        address = ipaddress.ip_address(http.remote or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _sent_keys(http: web.BaseRequest) -> list[bytes]:
    """As OpenAI's clients send one, and as Anthropic's do."""
    scheme, _, key = http.headers.get("Authorization", "").partition(" ")
    keys = [key] if scheme.lower() == "bearer" else []
    if API_KEY in http.headers:
        keys.append(http.headers[API_KEY])
    return [each.strip().encode(errors="surrogateescape") for each in keys]

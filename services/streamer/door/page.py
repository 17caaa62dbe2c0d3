"""The page at `/`: a few files, read once and filled in with the methods and sources of services/api/methods.py.

index.html loads the rest from /page/; nothing comes from elsewhere, and the policy it is served with says so to the
browser. It asks the server what any client may ask. Knows no request and no mesh.
"""

from __future__ import annotations

import hashlib
import html
import json
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from services.api.methods import METHODS, NAIVE, PREDICTION, SOURCES, Method
from services.streamer.openai.errors import ApiError

FOLDER = Path(__file__).parents[1] / "page"
INDEX = "index.html"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

# No script, style, frame or request but this server's own, and no site may frame the page.
POLICY = "; ".join(
    ("default-src 'self'", "object-src 'none'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'")
)


@dataclass(frozen=True, slots=True)
class Asset:
    body: bytes
    content_type: str
    etag: str


def filled(text: str) -> str:
    """The text with its marks replaced by what they name."""
    drafting = [method for method in METHODS.values() if method.name != NAIVE]
    sources = [
        {"id": source.name, "name": source.label, "says": source.help} | ({"head": True} if source.head else {})
        for source in SOURCES.values()
    ]
    made = {
        "<!-- made: methods -->": "\n".join(_option(method) for method in drafting),
        "<!-- made: methods without prediction -->": "\n".join(
            _option(method) for method in drafting if method.name != PREDICTION
        ),
        "// made: sources": "\n".join(f"{json.dumps(source)}," for source in sources),
    }
    for mark, part in made.items():
        text = text.replace(mark, part)
    return text


def _option(method: Method) -> str:
    return f'<option value="{method.name}" title="{html.escape(method.help)}">{method.name}</option>'


def read(folder: Path) -> dict[str, Asset]:
    """By name. Only these are served, so a path can lead nowhere else."""
    assets = {}
    for file in sorted(folder.iterdir()):
        if file.suffix in TYPES:
            body = filled(file.read_text("utf-8")).encode()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            assets[file.name] = Asset(body, TYPES[file.suffix], etag)
    return assets


ASSETS = read(FOLDER)


def response(name: str, known: str) -> web.Response:
    """`known`: the header If-None-Match. A browser asks each time and gets 304 for what it already has."""
    asset = ASSETS.get(name)
    if asset is None:
        raise ApiError(404, "There is nothing at this path", code="not_found")
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": POLICY,
        "ETag": asset.etag,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    if asset.etag in [each.strip().removeprefix("W/") for each in known.split(",")]:
        return web.Response(status=304, headers=headers)
    return web.Response(body=asset.body, content_type=asset.content_type, charset="utf-8", headers=headers)

"""`specmesh config`: the settings, and where each comes from."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from typing import Any

from services.api.settings import default_file, settings_file
from services.cli.flags import settings_or_exit, tell_notes


def show(options: argparse.Namespace) -> int:
    settings = settings_or_exit(options)
    tell_notes(settings, os.environ)
    rows = [
        (name, settings.shown(name), settings.origin(name))
        for name, _ in settings
        if not options.changed or settings.origin(name) != "default"
    ]
    if options.json:
        print(json.dumps({name: {"value": value, "origin": origin} for name, value, origin in rows}, indent=2))
        return 0
    if not rows:
        print("nothing is changed: every setting has its default; `specmesh config show` lists them")
    texts = [(name, _text(value), origin) for name, value, origin in rows]
    width = max((len(name) for name, _, _ in texts), default=0)
    # One long path must not push every origin off the screen.
    wide = min(32, max((len(value) for _, value, _ in texts), default=0))
    for name, value, origin in texts:
        print(f"{name:<{width}}  {value:<{wide}}  {origin}")
    return 0


def path(options: argparse.Namespace) -> int:
    file = options.config or settings_file(os.environ)
    print(file or f"{default_file(os.environ)} (does not exist; nothing is read)")
    return 0


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value) if value != "" else '""'


ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {"show": show, "path": path}

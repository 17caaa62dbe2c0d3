"""`specmesh status`: one screen about a mesh, for people and (--json) for scripts; also while parts of it are down.

Asks the server for /health/ready and /v1/mesh, and on Ray the keeper for what runs where (ray_status.py). Exit code 0:
requests are served; 1: they aren't, and a sentence says why.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from typing import Any

from services.api.settings import Settings, run_dir
from services.cli.chat import ChatError, Conversation, answer_of, colours, server_of
from services.cli.top import look
from services.cli.top_view import FAINT, GREEN, RED, YELLOW, Body, Column, TableCell, TableLine, age, number, table
from services.cli.top_view import in_order as by_role
from services.cli.which_mesh import is_on_ray, supervisor_of

STATES = {"ready": GREEN, "starting": YELLOW, "draining": YELLOW, "gone": FAINT}
# What the directory says of a member that serves something else than the others.
REFUSED = "refused: "
LONGEST_LINE = 4096


def main(options: argparse.Namespace, settings: Settings) -> int:
    server = server_of(options.url, settings)
    found = asyncio.run(ask(server))
    # --url may name another mesh than the one of this machine.
    if is_on_ray(settings) and (settings.ray_address or not options.url):
        from services.cli import ray_status

        found = ray_status.added(found, settings)
    elif not found["members"] and not options.url:
        found["reasons"].append(_supervisor(settings))
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        width = shutil.get_terminal_size((120, 24)).columns
        # Printed once: a long reason goes on in the next line, where `top` would cut it.
        print("\n".join(line.drawn(LONGEST_LINE, colours=colours(sys.stdout)) for line in screen(found, width)))
    return 0 if found["ready"] else 1


def _supervisor(settings: Settings) -> str:
    try:
        return f"`specmesh up` runs (process {supervisor_of(run_dir(settings))}); its logs: {run_dir(settings)}/logs"
    except ChatError as error:
        return str(error)


async def ask(server: Conversation) -> Body:
    """What there is to say; `reasons` has what keeps requests from being served, `degraded` what slows them down."""
    found: Body = {"url": server.url, "ready": False, "reasons": [], "degraded": [], "members": []}
    try:
        health = await _health(server)
        found["ready"] = health.get("status") in ("ready", "degraded")
        found |= {name: health.get(name, []) for name in ("reasons", "degraded")}
        seen = await look(server)
    except ChatError as error:
        found["reasons"].append(str(error))
        return found
    about = {name: seen.get(name, "") for name in ("model", "version")}
    return found | about | {"members": [_told(each) for each in by_role(seen["members"])]}


async def _health(server: Conversation) -> dict[str, Any]:
    """Raises ChatError where no streamer answers."""
    async with answer_of(server, "/health/ready") as response:
        try:
            body = await response.json(content_type=None)
        except ValueError:
            body = None
        if not isinstance(body, dict) or "status" not in body:
            raise ChatError(f"{server.url} is no specmesh server: /health/ready answers {response.status}")
        return body


def _told(member: Body) -> Body:
    """One row; figures that this server doesn't tell are left out."""
    reasons = member["reasons"]
    refused = next((each.removeprefix(REFUSED) for each in reasons if each.startswith(REFUSED)), "")
    kept = {name: member[name] for name in ("role", "instance", "pid", "restarts", "load", "phase") if name in member}
    return kept | {
        "state": "refused" if refused else member["state"],
        "since_s": member["since_s"],
        "waiting": member["queue"],
        "serves": member.get("serves", ""),
        "reasons": [refused] if refused else reasons,
    }


# What is shown ----------------------------------------------------------------------------------------------------


def _count(name: str, style: str = "") -> Any:
    def cell(member: Body) -> TableCell:
        value = member.get(name)
        return TableCell("" if value is None else number(value), style if value else "")

    return cell


COLUMNS = (
    Column("ROLE", 9, lambda m: TableCell(m["role"]), right=False),
    Column("INSTANCE", 8, lambda m: TableCell(m["instance"]), right=False),
    Column("PHASE", 5, lambda m: TableCell(m.get("phase", "")), right=False),
    Column("STATE", 10, lambda m: TableCell(m["state"], STATES.get(m["state"], RED)), right=False),
    Column("MACHINE", 7, lambda m: TableCell(m.get("machine", "")), right=False),
    Column("SINCE", 4, lambda m: TableCell(age(m["since_s"]))),
    Column("LOAD", 7, _count("load")),
    Column("WAITING", 6, _count("waiting")),
    Column("RESTARTS", 3, _count("restarts", YELLOW)),
    Column("PID", 1, lambda m: TableCell(str(m["pid"]))),
    Column("SERVES", 2, lambda m: TableCell(m["serves"]), right=False),
)


def screen(found: Body, width: int) -> list[TableLine]:
    lines = [_head(found)]
    lines += [TableLine((TableCell("  "), TableCell(each, RED))) for each in found["reasons"]]
    lines += [TableLine((TableCell("  "), TableCell(each, YELLOW))) for each in found["degraded"]]
    if found["members"]:
        lines += [TableLine((TableCell(""),)), *table(COLUMNS, found["members"], width)]
    if on_ray := found.get("ray"):
        lines += [TableLine((TableCell(""),)), *(TableLine((TableCell(each),)) for each in on_ray["lines"])]
    because = [member for member in found["members"] if member["reasons"]]
    if because:
        lines.append(TableLine((TableCell(""),)))
    for member in because:
        said = f"{member['instance']} is {member['state']}: {'; '.join(member['reasons'])}"
        lines.append(TableLine((TableCell(said),)))
    return lines


def _head(found: Body) -> TableLine:
    version = f"version {found['version']}" if found.get("version") else ""
    named = ", ".join(filter(None, [found.get("model", ""), version]))
    said, style = ("serves requests", GREEN) if found["ready"] else ("doesn't serve requests", RED)
    if found["ready"] and found["degraded"]:
        said, style = "serves requests, more slowly than it could", YELLOW
    about = TableCell(f" ({named})" if named else "")
    return TableLine((TableCell(f"{found['url']}: "), TableCell(said, style), about))

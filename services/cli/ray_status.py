"""What `specmesh status` says of a mesh on Ray: on which machine each process is, what waits for room, what workers are
replaced, and what autoscaling did last. Asks the keeper; without it the rest is shown all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mesh.supervisor.decide import number_of
from services.api.settings import Settings
from services.cli.ray_commands import Status, keeper_of
from services.cli.top_view import Body, age
from services.placement.plan import Machine, told
from services.placement.ray_cluster import NoRay, machines

# Of a machine's id, where several have one address.
SHORT = 6


def added(found: Body, settings: Settings) -> Body:
    try:
        with keeper_of(settings) as link:
            status, there = link.status(), machines()
    except (NoRay, OSError) as error:
        return {**found, "ray": {"lines": [f"Ray: {str(error).splitlines()[0]}"]}}
    if status is None:
        return {**found, "ray": {"lines": ["Ray: the keeper doesn't answer now; Ray starts it anew"]}}
    return with_placement(found, status, there)


def with_placement(found: Body, status: Status, there: Sequence[Machine]) -> Body:
    names = machine_names(status)
    members = [
        {**each, "machine": names[each["instance"]]} if names.get(each["instance"]) else each
        for each in found["members"]
    ]
    on_ray = {
        "machines": names, "waiting": [each for each in status["watchers"] if each["needs"]],
        "replacing": status["old"], "autoscaling": status["autoscaling"], "wanted": status["desired"],
        "lines": [*_waiting(status, there), *_replacing(status), *_scaling(status)],
    }  # fmt: skip
    return {**found, "members": members, "ray": on_ray}


def machine_names(status: Status) -> dict[str, str]:
    """By instance: the machine's address, with the beginning of Ray's id of it where several have that address."""
    machines_at: dict[str, set[str]] = {}
    for each in status["watchers"]:
        machines_at.setdefault(each["address"], set()).add(each["machine"])
    return {
        each["instance"]: each["address"]
        + (f"/{each['machine'][:SHORT]}" if len(machines_at[each["address"]]) > 1 else "")
        for each in status["watchers"]
        if each["address"]
    }


def _waiting(status: Status, there: Sequence[Machine]) -> Iterator[str]:
    for each in status["watchers"]:
        if each["waits_s"] is None:
            continue
        if not each["needs"]:
            yield f"{each['instance']} is being placed ({age(each['waits_s'])})"
            continue
        needs = each["needs"]
        fits = any(needs["CPU"] <= machine.cpus and needs.get("GPU", 0.0) <= machine.gpus for machine in there)
        why = "those that have as many are taken" if fits else "no machine has as many"
        yield f"{each['instance']} waits for {told(needs)} on one machine ({age(each['waits_s'])}): {why}"


def _replacing(status: Status) -> Iterator[str]:
    if status["old"]:
        yield f"being replaced one by one, still to come: {', '.join(sorted(status['old'], key=number_of))}"


def _scaling(status: Status) -> Iterator[str]:
    scaling: Mapping[str, Any] | None = status["autoscaling"]
    if scaling is None:
        return
    wanted, queue = status["desired"].get("worker", 0), scaling["queue_s"]
    waits = "" if queue is None else f"; requests wait {queue:.1f} s"
    last = f"; {age(scaling['last_s_ago'])} ago {scaling['last']}" if scaling["last"] else "; no change so far"
    yield f"autoscaling: {scaling['least']} to {scaling['most']} workers, {wanted} wanted{waits}{last}"

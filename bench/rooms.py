"""The size of each room of the code: files, lines, functions, imports between rooms, import circles, repeated names.

    python -m bench rooms              the working tree
    python -m bench rooms COMMIT       a commit, and the working tree below it
    python -m bench rooms OLD NEW      two commits

Python files only. A line is a line of the file, comments and blank lines included. Lines of tests belong to the room
that their path under tests/ names; laws, flow and the like test the whole mesh and are counted apart. Class names are
compared among the rooms of the server.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from bench import import_graph
from bench.checkout import read_archive, resolve
from bench.rows import ROOT
from bench.section import table

HELP = "how large each room of the code is; a commit beside the working tree"
HERE = "working tree"
WORKER, SPECULATION = "services/worker", "services/worker/speculation"
ROOMS = (
    "mesh", "kernels", "models", "services/api", "services/runtime", "services/cli", "services/streamer",
    "services/tokenizer", "services/proposer", WORKER, SPECULATION, "loadtest", "bench", "deploy",
)  # fmt: skip
# What ships; a class name of a benchmark confuses nobody.
SERVER = tuple(room for room in ROOMS if room not in ("loadtest", "bench", "deploy"))
WHOLE_MESH = "tests of the whole mesh"
LONGEST_FUNCTION = 80

# Where files of older commits lay: the worker's role was called target, and services/ had its shared files at the top.
OLD_SPECULATION = (
    "advice", "choosing", "draft_length", "drafting", "ended_texts", "lease", "practice", "proposer_link", "rehearsal",
    "speculation_counts", "stage", "step_time", "succession", "tree", "trust", "weighing",
)  # fmt: skip
OLD_API = ("drafts", "messages", "names", "config", "speculative_config", "texts")
OLD_RUNTIME = ("standing", "side_door", "window", "warm_parent", "process", "standing_metrics")

HEAD = (
    "room", "files", "lines", "lines of tests", "median function", "longest function", "imports of other rooms",
    "files in circles", "repeated class names",
)  # fmt: skip


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench rooms", description=HELP)
    parser.add_argument("commits", nargs="*", metavar="COMMIT", help="at most two; one is shown beside the files here")
    parser.add_argument("--json", action="store_true", help="print figures, not tables")
    options = parser.parse_args(argv)
    if len(options.commits) > 2:
        parser.error("at most two commits")
    trees = {name: of_commit(name) for name in options.commits}
    if len(options.commits) < 2:
        trees[HERE] = of_working_tree()
    seen = {name: measured(files) for name, files in trees.items()}
    print(json.dumps(seen, indent=2) if options.json else "\n\n".join(tables(seen)))
    return 0


# Reading --------------------------------------------------------------------------------------------------


def of_commit(name: str) -> dict[str, str]:
    files = read_archive(resolve(name))
    return {path: data.decode() for path, data in files.items() if path.endswith(".py")}


def of_working_tree() -> dict[str, str]:
    """What git tracks or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.py"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = sorted(set(filter(None, told.split("\0"))))
    return {path: (ROOT / path).read_text() for path in paths if (ROOT / path).exists()}


def room_of(path: str) -> str:
    """Of a module, or of the module that a test's path mirrors; "" for a file in no room."""
    parts = [part.removeprefix("test_") for part in PurePosixPath(path).with_suffix("").parts]
    is_test = parts[0] == "tests"
    parts = parts[is_test:]
    if parts[0] in ROOMS:
        return parts[0]
    if parts[0] != "services" or len(parts) < 2:
        return WHOLE_MESH if is_test else ""
    return _service_room(parts[1:])


def _service_room(parts: list[str]) -> str:
    if parts[0] == "target":
        return SPECULATION if parts[1] in OLD_SPECULATION else WORKER
    if parts[0] == "worker":
        return SPECULATION if parts[1] == "speculation" else WORKER
    if f"services/{parts[0]}" in ROOMS:
        return f"services/{parts[0]}"
    if parts[0] == "conftest":
        return WHOLE_MESH
    if parts[0] in OLD_API or parts[0] == "__init__":
        return "services/api"
    return "services/runtime" if parts[0] in OLD_RUNTIME else "services/cli"


# Measuring ------------------------------------------------------------------------------------------------


def measured(files: dict[str, str]) -> dict[str, Any]:
    """`rooms`: figures by room; the rest counts the whole tree."""
    code = {path: text for path, text in files.items() if not path.startswith("tests/") and room_of(path)}
    rooms = {path: room_of(path) for path in code}
    modules = {path: import_graph.read(path, text) for path, text in code.items()}
    edges = import_graph.edges(modules)
    circles = import_graph.circles(edges)
    in_circles = {path for circle in circles for path in circle}
    repeated = import_graph.repeated_classes({path: modules[path] for path in code if rooms[path] in SERVER})
    found = {}
    for room in ROOMS:
        paths = [path for path in code if rooms[path] == room]
        functions = [length for path in paths for length in modules[path].functions.values()]
        found[room] = {
            "files": len(paths),
            "lines": sum(_lines(code[path]) for path in paths),
            "test_lines": _test_lines(files, room),
            "median_function": round(statistics.median(functions)) if functions else 0,
            "longest_function": max(functions, default=0),
            "imports_of_other_rooms": sum(rooms[target] != room for path in paths for target in edges[path]),
            "files_in_circles": sum(path in in_circles for path in paths),
            "repeated_class_names": len({name for name, at in repeated.items() if set(at) & set(paths)}),
        }
    return {
        "rooms": found,
        "whole_mesh_test_lines": _test_lines(files, WHOLE_MESH),
        "circles": [sorted(circle) for circle in circles],
        "repeated_classes": sorted(repeated),
        "long_functions": {
            f"{path}:{name}": length
            for path, module in modules.items()
            for name, length in module.functions.items()
            if length > LONGEST_FUNCTION and rooms[path] != "kernels"
        },
    }


def _test_lines(files: dict[str, str], room: str) -> int:
    return sum(_lines(text) for path, text in files.items() if path.startswith("tests/") and room_of(path) == room)


def _lines(text: str) -> int:
    return text.count("\n")


# Showing --------------------------------------------------------------------------------------------------


def tables(seen: dict[str, dict[str, Any]]) -> list[str]:
    head = [HEAD[0], "commit", *HEAD[1:]]
    lines = []
    for room in [*ROOMS, "all"]:
        for name, tree in seen.items():
            figures = tree["rooms"].get(room) or _whole(tree)
            lines.append([room, name, *map(str, figures.values())])
    sums = [[what, *(str(_sums(tree)[what]) for tree in seen.values())] for what in _sums(next(iter(seen.values())))]
    return [table(head, lines), table(["whole tree", *seen], sums), *_named(seen)]


def _sums(tree: dict[str, Any]) -> dict[str, int]:
    return {
        "lines of the worker with speculation": tree["rooms"][WORKER]["lines"] + tree["rooms"][SPECULATION]["lines"],
        "lines of tests of the whole mesh": tree["whole_mesh_test_lines"],
        "import circles": len(tree["circles"]),
        "class names defined more than once": len(tree["repeated_classes"]),
        f"functions over {LONGEST_FUNCTION} lines outside kernels": len(tree["long_functions"]),
    }


def _whole(tree: dict[str, Any]) -> dict[str, Any]:
    """Sums of the rooms, with the longest function of all; a median of medians would say nothing."""
    rooms = list(tree["rooms"].values())
    whole = {name: sum(room[name] for room in rooms) for name in rooms[0]}
    whole["test_lines"] += tree["whole_mesh_test_lines"]
    whole["longest_function"] = max(room["longest_function"] for room in rooms)
    whole["repeated_class_names"] = len(tree["repeated_classes"])
    return whole | {"median_function": "–"}


def _named(seen: dict[str, dict[str, Any]]) -> list[str]:
    """The circles and long functions of the newest tree by name: what is left to do."""
    name, tree = list(seen.items())[-1]
    circles = [f"- circle of {len(circle)}: {', '.join(circle)}" for circle in tree["circles"]]
    functions = [f"- {length} lines: {where}" for where, length in sorted(tree["long_functions"].items())]
    return ["\n".join([f"{name}:", *circles, *functions])] if circles or functions else []

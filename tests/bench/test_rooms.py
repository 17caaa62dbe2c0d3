"""What is counted of each room, from source text made up here; and a real commit has all rooms."""

from __future__ import annotations

import pytest

from bench import rooms
from bench.rooms import SPECULATION, WHOLE_MESH, WORKER, measured, room_of, tables

FILES = {
    "mesh/a.py": "from mesh import b\n\n\ndef f():\n    return 1\n",
    "mesh/b.py": "import mesh.a\nclass Stream:\n    def g(self): ...\n",
    "services/worker/engine.py": "from mesh.a import f\nfrom services.worker.speculation import drafter\n",
    "services/worker/speculation/drafter.py": "class Stream:\n    pass\n",
    "services/streamer/door/http.py": "def long():\n" + "    x = 1\n" * 80 + "    return x\n",
    "bench/x.py": "class Stream: ...\n",
    "tests/mesh/test_a.py": "1\n2\n3\n",
    "tests/services/worker/speculation/test_drafter.py": "1\n2\n",
    "tests/laws/test_law.py": "1\n",
    "tests/conftest.py": "1\n",
    "setup.py": "1\n",
}


@pytest.mark.parametrize(
    ("path", "room"),
    [
        ("mesh/transport/zmq.py", "mesh"),
        ("tests/kernels/linear/test_cpu.py", "kernels"),
        ("services/worker/engine.py", WORKER),
        ("services/worker/scheduling/planning.py", WORKER),
        ("services/worker/speculation/remote/client.py", SPECULATION),
        ("tests/services/worker/speculation/test_tree.py", SPECULATION),
        ("tests/services/cli/test_up.py", "services/cli"),
        ("tests/laws/test_law_1_every_request_ends_once.py", WHOLE_MESH),
        ("tests/services/conftest.py", WHOLE_MESH),
        ("setup.py", ""),
        # Of commits before the rooms were named.
        ("services/target/lease.py", SPECULATION),
        ("services/target/verify/block.py", WORKER),
        ("tests/services/target/test_lease.py", SPECULATION),
        ("tests/services/target/test_scheduler.py", WORKER),
        ("services/messages.py", "services/api"),
        ("services/side_door.py", "services/runtime"),
        ("tests/services/test_side_door.py", "services/runtime"),
        ("services/doctor_mesh.py", "services/cli"),
    ],
)
def test_every_file_has_one_room(path: str, room: str) -> None:
    assert room_of(path) == room


def test_a_room_has_files_lines_functions_and_its_tests() -> None:
    mesh = measured(FILES)["rooms"]["mesh"]
    assert (mesh["files"], mesh["lines"], mesh["test_lines"]) == (2, 8, 3)
    # Functions of two lines and of one.
    assert (mesh["median_function"], mesh["longest_function"]) == (2, 2)
    assert measured(FILES)["rooms"][SPECULATION]["test_lines"] == 2
    assert measured(FILES)["whole_mesh_test_lines"] == 2


def test_imports_of_other_rooms_and_circles_are_counted() -> None:
    seen = measured(FILES)
    assert seen["rooms"][WORKER]["imports_of_other_rooms"] == 2
    assert seen["rooms"]["mesh"]["imports_of_other_rooms"] == 0
    assert seen["circles"] == [["mesh/a.py", "mesh/b.py"]] and seen["rooms"]["mesh"]["files_in_circles"] == 2


def test_a_class_name_is_repeated_only_among_what_ships() -> None:
    seen = measured(FILES)
    assert seen["repeated_classes"] == ["Stream"]
    assert [seen["rooms"][room]["repeated_class_names"] for room in ("mesh", SPECULATION, "bench")] == [1, 1, 0]


def test_long_functions_are_named() -> None:
    assert list(measured(FILES)["long_functions"].values()) == [82]


def test_two_trees_stand_side_by_side() -> None:
    smaller = {path: text for path, text in FILES.items() if path != "mesh/b.py"}
    by_room, whole, left = tables({"old": measured(FILES), "new": measured(smaller)})
    assert "| mesh | old | 2 | 8 | 3 |" in by_room and "| mesh | new | 1 | 5 | 3 |" in by_room
    assert "| import circles | 1 | 0 |" in whole
    assert left.startswith("new:") and "services/streamer/door/http.py" in left and "circle" not in left


def test_this_tree_has_files_in_every_room() -> None:
    seen = measured(rooms.of_working_tree())
    assert all(room["files"] for room in seen["rooms"].values())
    assert seen["rooms"]["bench"]["files_in_circles"] == 0


def test_at_most_two_commits(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        rooms.main(["a", "b", "c"])
    assert "at most two" in capsys.readouterr().err

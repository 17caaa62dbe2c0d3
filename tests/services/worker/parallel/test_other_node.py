"""A worker's ranks on two nodes, each a process tree of its own: the bits of one machine, and an end for all when one
of them ends."""

from __future__ import annotations

import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from other_nodes import OtherNode, other_node
from running_mesh import has_ended, until
from test_ranks import loaded, said
from tiny_folder import write_tiny_model

from bench.running_mesh import free_ports
from mesh.security import make_keys
from models import group
from models.errors import ModelError
from models.group import distant_meeting_place, open_meeting_place
from services.api.settings import Settings
from services.worker.parallel.meeting import Meeting, meeting_of
from services.worker.parallel.processes import RankProcesses
from services.worker.parallel.rank import Start
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.torch_model import TorchModel

HERE = "127.0.0.1"


def there(folder: Path, port: int, ranks: int = 2, **more: Any) -> dict[str, Any]:
    """Flags of the other node."""
    return {
        "model": folder, "tensor_parallel_size": ranks, "nnodes": 2, "master_addr": f"{HERE}:{port}",
        "dtype": "float32", "threads": 2, **more,
    }  # fmt: skip


def meeting(port: int, secret: bytes = b"") -> Meeting:
    return Meeting(HERE, port, 2, secret)


def bits(model: TorchModel) -> list[torch.Tensor]:
    """Of a text's logits, with a prompt in two chunks."""
    found: list[torch.Tensor] = []
    forward = model.forward

    def kept(rows: Any) -> Any:
        output = forward(rows)
        found.append(output.logits.clone())
        return output

    model.forward = kept  # type: ignore[method-assign]
    said(model)
    return found


# One rank on each is what tests/flow/test_nodes.py has.
ONE_ON_EACH = pytest.param("plain", 2, marks=pytest.mark.slow)


@pytest.mark.parametrize(("executor", "ranks"), [ONE_ON_EACH, ("compiled", 4)])
def test_ranks_on_two_nodes_compute_the_bits_of_as_many_on_one(executor: str, ranks: int, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    with torch.inference_mode():
        with loaded(model, executor=executor, ranks=ranks) as (one, _):
            expected, path = bits(one), one.facts.path
        port = free_ports(1)
        with (
            other_node(tmp_path / "node.log", **there(model, port, ranks)) as node,
            loaded(model, executor=executor, ranks=ranks, meeting=meeting(port)) as (two, own),
        ):
            assert own is not None
            assert len(node.ranks()) == ranks // 2 and len(own.processes.running) == ranks // 2 - 1
            assert two.facts.path == path
            found = bits(two)
    assert len(found) == len(expected) and all(map(torch.equal, found, expected))


class Held:
    """A worker that loads in a thread, as it does in its process."""

    def __init__(self, model: Path, port: int, secret: bytes = b"") -> None:
        self.lost: list[str] = []
        self.noticed, self.over, self.ready = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(model, meeting(port, secret)), daemon=True)
        self._thread.start()

    def _note(self, reason: str) -> None:
        self.lost.append(reason)
        self.noticed.set()

    def _run(self, model: Path, where: Meeting) -> None:
        with torch.inference_mode(), loaded(model, self._note, executor="plain", ranks=2, meeting=where) as (made, _):
            self.text = said(made)
            self.ready.set()
            assert self.over.wait(300)

    def close(self) -> None:
        self.over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_another_model_a_wrong_number_and_other_keys_are_refused_by_name_and_the_right_one_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, other = write_tiny_model(tmp_path / "tiny"), write_tiny_model(tmp_path / "other", num_hidden_layers=3)
    make_keys(tmp_path / "keys", ["worker"])
    port = free_ports(1)
    wrong = {
        "another model: other beside tiny, with another config.json": {"model": other},
        "tensor_parallel_size 4, and node 0 with 2": {"tensor_parallel_size": 4},
        "nnodes 3, and node 0 with 2": {"nnodes": 3, "tensor_parallel_size": 3},
    }
    worker = Held(model, port)
    try:
        for told, flags in wrong.items():
            node = OtherNode(tmp_path / "wrong.log", **{**there(model, port), **flags})
            assert node.process.wait(120) == 1
            assert told in node.text() and told in caplog.text
        with other_node(tmp_path / "keys.log", **there(model, port, keys_dir=tmp_path / "keys")) as node:
            node.wait_for("it has")
            until(lambda: "it has other keys" in caplog.text, 60.0, why=lambda: caplog.text)
            assert node.stop() == 0
        assert caplog.text.count("it has other keys") == 1
        assert not worker.ready.is_set()
        with other_node(tmp_path / "right.log", **there(model, port)):
            assert worker.ready.wait(120)
            worker.close()
    finally:
        worker.over.set()
    assert worker.lost == []


def test_a_node_outlives_workers_and_ranks_joins_the_next_worker_and_ends_when_asked(tmp_path: Path) -> None:
    model, port = write_tiny_model(tmp_path / "tiny"), free_ports(1)
    keys = tmp_path / "keys"
    make_keys(keys, ["worker"])
    found = meeting_of(Settings.for_tests(nnodes=2, tensor_parallel_size=2, master_addr=HERE, keys_dir=str(keys)))
    assert found is not None and found.secret
    secret = found.secret
    with other_node(tmp_path / "node.log", **there(model, port, keys_dir=keys)) as node:
        node.wait_for(f"waiting for the worker at {HERE}:{port}")

        def joined() -> tuple[Held, int]:
            worker = Held(model, port, secret)
            assert worker.ready.wait(120)
            (rank,) = node.ranks()
            return worker, rank

        worker, first = joined()
        worker.close()
        until(lambda: has_ended(first), 30.0, why=node.text)
        assert worker.lost == []

        worker, second = joined()
        assert second != first
        os.kill(second, signal.SIGKILL)
        assert worker.noticed.wait(60)
        worker.close()
        assert len(worker.lost) == 1 and worker.lost[0].startswith(f"node 1 ({HERE})")
        assert "rank 1 ended with -9" in worker.lost[0]

        worker, _ = joined()
        assert node.stop() == 0
        assert worker.noticed.wait(60) and "node 1" in worker.lost[0]
        worker.close()


def test_a_node_that_is_killed_is_noticed_without_a_request(tmp_path: Path) -> None:
    model, port = write_tiny_model(tmp_path / "tiny"), free_ports(1)
    worker = Held(model, port)
    with other_node(tmp_path / "node.log", **there(model, port)) as node:
        assert worker.ready.wait(120)
        (rank,) = node.ranks()
        os.kill(node.process.pid, signal.SIGKILL)
        assert worker.noticed.wait(60)
        until(lambda: has_ended(rank), 30.0, why=node.text)
    worker.close()
    assert len(worker.lost) == 1 and worker.lost[0].startswith(f"node 1 ({HERE})")
    assert "ended with" not in worker.lost[0]


def test_a_rank_of_an_older_worker_joins_no_newer_one(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    store, port = open_meeting_place(HERE, "newer")
    nobody = store.num_keys()
    options = {
        "dtype": "float32", "pages": 4, "page_tokens": 16, "max_context": 64, "threads": 1, "strict": True,
        "branch_pages": 0, "kv_dtype": "", "graph_rows": 1,
    }  # fmt: skip
    lost: list[str] = []
    stale = RankProcesses(lost.append)
    stale.start(
        Start(os.getpid(), 1, 2, 0, HERE, port, "older", HERE, str(model), "plain", "none", False, options)
    )
    try:
        # It has come first, and has said where it is.
        until(lambda: store.num_keys() > nobody, 60.0, why=lambda: lost)
        with ThreadPoolExecutor() as pool:
            first = pool.submit(group.join, store, 0, 2, True)
            second = pool.submit(group.join, distant_meeting_place(HERE, port, "newer"), 1, 2, True)
            one, two = first.result(60), second.result(60)
            words = torch.arange(3)
            told = pool.submit(one.tell, words)
            heard = torch.zeros(3, dtype=torch.int64)
            two.tell(heard)
            told.result(60)
        assert heard.equal(words) and lost == []
    finally:
        stale.end()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ModelError, match=f"{HERE}:{port}, where the nodes are to meet, can't be had") as error:
            load_torch_model(model, Wanted(ranks=2, threads=1, executor="plain", meeting=meeting(port)))
    assert "master_port" in error.value.fix

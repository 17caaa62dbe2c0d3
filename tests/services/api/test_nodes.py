"""Settings of a worker on several nodes: what goes together, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from services.api.nodes import meeting_address, ranks_of
from services.api.settings import Settings, SettingsError, endpoint, load_settings

TWO = {"nnodes": 2, "tensor_parallel_size": 4, "master_addr": "10.0.0.1", "keys_dir": "keys"}


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("10.0.0.1", ("10.0.0.1", 29501)),
        ("10.0.0.1:5000", ("10.0.0.1", 5000)),
        ("node-0.workers", ("node-0.workers", 29501)),
        ("fd00::1", ("fd00::1", 29501)),
        ("[fd00::1]:5000", ("fd00::1", 5000)),
    ],
)
def test_an_address_may_have_its_port(address: str, found: tuple[str, int]) -> None:
    assert meeting_address(address, 29501) == found


WRONG = ["a:", "a:0", "a:65536", "a:b", "0.0.0.0", "0.0.0.0:5000", "::", "[::]:5000", "a:b:5000", "[a:b]:5000"]


@pytest.mark.parametrize("address", WRONG)
def test_what_is_no_address_of_a_node_is_refused(address: str) -> None:
    with pytest.raises(SettingsError, match="flag --master-addr: "):
        Settings.for_tests(**{**TWO, "master_addr": address})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"node_rank": 1}, "node-rank: 1 is none of 0 to 0: nnodes is 1"),
        ({**TWO, "node_rank": 2}, "node-rank: 2 is none of 0 to 1"),
        ({**TWO, "tensor_parallel_size": 3}, "nnodes: tensor_parallel_size of 3 can't be shared out evenly"),
        ({**TWO, "tensor_parallel_size": 1}, "set it to a multiple of 2"),
        ({**TWO, "master_addr": ""}, "nnodes: set master_addr, too"),
        ({**TWO, "keys_dir": ""}, "nnodes: set keys_dir, too: .*specmesh keys make"),
        ({**TWO, "phase": "prefill", "prefill_tensor_parallel_size": 2}, "with several nodes set tensor_parallel_size"),
        ({**TWO, "workers": 2}, "workers: a worker over several nodes is the only one"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Settings.for_tests(**given)


def test_the_flags_of_others_mean_the_same() -> None:
    for flags in (
        {"tensor_parallel_size": "4", "nnodes": "2", "node_rank": "1", "master_addr": "a", "master_port": "5000"},
        {"tp": "4", "nnodes": "2", "node_rank": "1", "dist_init_addr": "a:5000"},
        {"tp_size": "4", "nnodes": "2", "node_rank": "1", "nccl_init_addr": "a:5000"},
    ):
        found = load_settings({**flags, "keys_dir": "keys"})
        assert (found.tensor_parallel_size, found.nnodes, found.node_rank) == (4, 2, 1)
        assert meeting_address(found.master_addr, found.master_port) == ("a", 5000)
    with pytest.raises(SettingsError, match="--nnodes M --node-rank K --master-addr FIRST"):
        load_settings({"ips": "10.0.0.1,10.0.0.2"})


def test_ranks_are_shared_out_in_order() -> None:
    assert [ranks_of(node, 2, 6) for node in (0, 1)] == ["ranks 0 to 2", "ranks 3 to 5"]
    assert ranks_of(2, 3, 3) == "rank 2"


def test_the_directory_of_all_nodes_is_at_the_address_of_the_first() -> None:
    named = {**TWO, "master_addr": "localhost:5000"}
    # Node 0 binds it, and the others may dial a name.
    assert endpoint(Settings.for_tests(**named), "directory") == "tcp://127.0.0.1:5000"
    assert endpoint(Settings.for_tests(**named, node_rank=1), "directory") == "tcp://localhost:5000"
    for address in ("::1", "[::1]:29501"):
        assert endpoint(Settings.for_tests(**{**TWO, "master_addr": address}), "directory") == "tcp://[::1]:29501"
    elsewhere = "tcp://10.0.0.9:7000"
    assert endpoint(Settings.for_tests(**named, directory=elsewhere), "directory") == elsewhere
    with pytest.raises(ValueError, match=r"master_addr: nowhere\.invalid isn't known here"):
        endpoint(Settings.for_tests(**{**TWO, "master_addr": "nowhere.invalid"}), "directory")


def test_one_node_needs_no_address() -> None:
    assert load_settings({"nnodes": "1", "tp": "3"}).master_addr == ""

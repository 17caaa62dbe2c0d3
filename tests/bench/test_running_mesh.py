"""Ports for meshes of tests and benchmarks that run beside each other."""

from __future__ import annotations

import socket
import subprocess
import sys

from bench.running_mesh import PORTS, ROOT, free_ports

ASK = """
from bench.running_mesh import free_ports
print([free_ports(8) for _ in range(20)], flush=True)
input()
"""


def test_runs_of_ports_follow_each_other() -> None:
    first, second = free_ports(8), free_ports(8)
    assert abs(second - first) >= 8
    assert PORTS[0] <= min(first, second) and max(first, second) + 8 <= PORTS[1]


def test_a_port_that_something_listens_at_is_passed_over() -> None:
    first = free_ports(1)
    with socket.create_server(("127.0.0.1", first + 1)):
        assert free_ports(1) != first + 1


def test_no_two_processes_that_run_at_once_get_the_same_ports() -> None:
    command = [sys.executable, "-c", ASK]
    asked = [subprocess.Popen(command, cwd=ROOT, stdin=-1, stdout=-1, text=True) for _ in range(3)]
    try:
        given = [{port + k for port in numbers(process.stdout.readline()) for k in range(8)} for process in asked]  # type: ignore[union-attr]
    finally:
        for process in asked:
            process.communicate("\n")
    mine = {free_ports(1) for _ in range(3)}
    assert [len(each) for each in given] == [160] * 3
    assert len(set.union(mine, *given)) == 3 * 160 + 3


def numbers(line: str) -> list[int]:
    return [int(word) for word in line.strip().strip("[]").split(",")]

"""`specmesh up` with a model that cannot be run: it says what and how to mend it, ends, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_folder import CONFIG, read_safetensors, write_safetensors, write_tiny_model

from bench.running_mesh import free_ports

ROOT = Path(__file__).resolve().parents[3]
# Of a whole start and end on a busy machine; what is tested takes less than one second before, ten after it.
LONG = 120.0


@dataclass
class Ended:
    code: int
    said: str
    run_dir: Path
    ports: list[int]


def up(folder: Path, model: str | Path, **settings: object) -> Ended:
    """Runs until it ends by itself; whatever is left of its process group then is an error."""
    port, metrics = free_ports(1), free_ports(4)
    flags = {"model": model, "port": port, "metrics_port": metrics, "run_dir": folder / "run", **settings}
    argv = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    env = {name: value for name, value in os.environ.items() if not name.startswith("SPECMESH_")}
    with (folder / "output").open("w+b") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "services.cli", "up", *argv],
            cwd=ROOT, env=env | {"SPECMESH_CONFIG": ""}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(LONG)
            left = group_members(process.pid)
        finally:
            for pid in group_members(process.pid):
                os.kill(pid, 9)
        output.seek(0)
        said = output.read().decode()
    assert left == [], said
    return Ended(code, said, folder / "run", [port, *range(metrics, metrics + 4)])


def group_members(group: int) -> list[int]:
    """Living processes of a session's group."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            state, _, member_of = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(member_of) == group and state != "Z":
            found.append(int(entry.name))
    return found


def assert_nothing_is_left(ended: Ended, *kept: str) -> None:
    """But for files of `kept`."""
    assert ended.code == 1
    assert {path.name for path in ended.run_dir.iterdir()} == {*kept, "up.lock"}
    for port in ended.ports:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", port))


def cut_short(model: Path) -> None:
    os.truncate(model / "model.safetensors", 5000)


def wrong_shape(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(CONFIG | {"intermediate_size": 96}))


def no_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").unlink()


def unknown_family(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(CONFIG | {"architectures": ["MambaForCausalLM"]}))


def unknown_format(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": {"quant_method": "hqq"}}))


def overlapping(model: Path) -> None:
    header, values = read_safetensors(model / "model.safetensors")
    header["model.norm.weight"]["data_offsets"] = [0, 256]
    write_safetensors(model / "model.safetensors", header, values)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (cut_short, "model.safetensors is cut short: 5000 of"),
        (wrong_shape, "mlp.gate_proj.weight has shape (128, 64), config.json asks for (96, 64)"),
        (no_tokenizer, "tokenizer.json is missing"),
        (unknown_family, "architecture MambaForCausalLM is not supported"),
        (unknown_format, "quantization_config.quant_method is 'hqq'"),
        (overlapping, "overlaps another"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_before_anything_is_started(
    damage: Callable[[Path], None], named: str, tiny_model: Path, tmp_path: Path
) -> None:
    damage(tiny_model)
    ended = up(tmp_path, tiny_model)
    assert named in ended.said and "  fix: " in ended.said and "Traceback" not in ended.said
    assert "worker-1" not in ended.said
    assert_nothing_is_left(ended)


def test_a_context_beyond_the_models_is_said_before_anything_is_started(tiny_model: Path, tmp_path: Path) -> None:
    ended = up(tmp_path, tiny_model, max_context=257)
    assert "max_context is 257, and the model was made for 256 tokens" in ended.said
    assert_nothing_is_left(ended)


def test_a_tokenizer_that_is_none_ends_the_start_at_once_by_its_name(tiny_model: Path, tmp_path: Path) -> None:
    (tiny_model / "tokenizer.json").write_text("{}")
    ended = up(tmp_path, tiny_model)
    assert "tokenizer-1 cannot run: what it was given is wrong" in ended.said
    assert "tokenizer.json holds no tokenizer" in ended.said and "Traceback" not in ended.said
    assert "starting again" not in ended.said
    # The worker, which makes it, may have begun or not when the tokenizer ends the start.
    secret = ["pages.secret"] if (ended.run_dir / "pages.secret").exists() else []
    assert_nothing_is_left(ended, "epoch", "logs", *secret)


def test_memory_for_no_page_ends_the_start_at_once_by_its_numbers(tiny_model: Path, tmp_path: Path) -> None:
    """Only the target knows the size of a page; it is not started again and again."""
    write_tiny_model(tiny_model, hollow=True, head_dim=8192)
    ended = up(tmp_path, tiny_model, kv_cache_mb=1, page_tokens=256)
    assert "worker-1 cannot run: what it was given is wrong" in ended.said
    assert "page" in ended.said and "starting again" not in ended.said
    assert_nothing_is_left(ended, "epoch", "logs", "pages.secret")


def test_a_head_for_another_model_ends_the_start_before_anything_runs(tmp_path: Path) -> None:
    """Most of the draft model's tokens are none of the model's."""
    model, draft = (write_tiny_model(tmp_path / name) for name in ("model", "draft"))
    tokenizer = json.loads((draft / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = {f"x{text}": token for text, token in tokenizer["model"]["vocab"].items()}
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
    ended = up(tmp_path, model, draft_model=draft)
    assert f"{draft} has another tokenizer than {model}: " in ended.said
    assert "fix: use a draft model with the same tokenizer, or a similar one" in ended.said
    assert_nothing_is_left(ended)

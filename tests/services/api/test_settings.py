"""Settings: where values come from, what is refused, and the places that follow from them."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from services.api.methods import METHODS
from services.api.settings import (
    ROWS,
    SETTINGS,
    Settings,
    SettingsError,
    accepted,
    cache_dir,
    endpoint,
    load_settings,
    mesh_metrics_port,
    metrics_port,
    parse_value,
    run_dir,
    served_model_name,
    settings_file,
    to_environment,
)
from services.api.strategies import ACCEPT_POLICIES, LONGEST_WINDOW, MOST_CANDIDATES, STRATEGIES, Verification


def refused(
    flags: dict[str, Any] | None = None, env: dict[str, str] | None = None, file: Path | None = None
) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, env, file)
    return str(caught.value)


def write(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


PAGES_NEED_IT = "leave it out: the prefix cache hands pages over"


# Order of the sources


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prefill_workers": 1}, "prefill_workers and decode_workers come together"),
        ({"decode_workers": 2}, "prefill_workers and decode_workers come together"),
        ({"phase": "decode", "prefix_cache": False}, PAGES_NEED_IT),
        ({"prefill_workers": 1, "decode_workers": 1, "prefix_cache": False}, PAGES_NEED_IT),
        ({"prefill_tensor_parallel_size": 2}, "there are no phases"),
    ],
)
def test_phases_that_hand_nothing_over_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Settings.for_tests(**given)


def test_every_row_is_an_attribute_and_starts_with_its_default() -> None:
    settings = load_settings()
    for row in SETTINGS:
        value = getattr(settings, row.name)
        assert (json.dumps(value) if row.kind == "json" else value) == row.default
        assert settings.origin(row.name) == "default"


def test_environment_beats_file_and_a_flag_beats_both(tmp_path: Path) -> None:
    file = write(tmp_path, "port = 1\nmax_sequences = 2\nkv_cache_mb = 3\n")
    env = {"SPECMESH_PORT": "10", "SPECMESH_MAX_SEQUENCES": "20", "HOME": "/x"}
    settings = load_settings({"port": "100"}, env, file)
    assert (settings.port, settings.max_sequences, settings.kv_cache_mb) == (100, 20, 3)
    assert settings.origin("port") == "flag --port"
    assert settings.origin("max_sequences") == "environment SPECMESH_MAX_SEQUENCES"
    assert settings.origin("kv_cache_mb") == f"file {file}, key kv_cache_mb"


def test_file_keys_and_flags_may_be_written_with_hyphens(tmp_path: Path) -> None:
    settings = load_settings({"--max-sequences": "3"}, {}, write(tmp_path, "kv-cache-mb = 5\n"))
    assert (settings.max_sequences, settings.kv_cache_mb) == (3, 5)


def test_an_empty_environment_value_counts_as_not_set() -> None:
    assert load_settings({}, {"SPECMESH_PORT": "", "SPECMESH_MODEL": ""}).port == 8000


def test_the_file_is_named_by_the_environment_or_found_in_the_users_configuration(tmp_path: Path) -> None:
    assert settings_file({"SPECMESH_CONFIG": "/x/y.toml"}) == Path("/x/y.toml")
    assert settings_file({"SPECMESH_CONFIG": "", "XDG_CONFIG_HOME": str(tmp_path)}) is None
    assert settings_file({"XDG_CONFIG_HOME": str(tmp_path)}) is None
    (tmp_path / "specmesh").mkdir()
    own = write(tmp_path / "specmesh", "")
    assert settings_file({"XDG_CONFIG_HOME": str(tmp_path)}) == own


# Refusals


def test_an_unknown_flag_is_refused_with_the_name_that_was_probably_meant() -> None:
    assert refused({"max_contxt": "5"}) == "flag --max-contxt: no such setting (did you mean max_context?)"


def test_an_unknown_environment_name_is_refused_with_a_suggestion() -> None:
    message = refused({}, {"SPECMESH_KV_CACHE": "5"})
    assert message == "environment SPECMESH_KV_CACHE: no such setting (did you mean SPECMESH_KV_CACHE_MB?)"


def test_an_unknown_file_key_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    assert "key prt: no such setting (did you mean port?)" in refused(file=write(tmp_path, "prt = 5\n"))


@pytest.mark.parametrize(
    ("name", "value", "range_"),
    [
        ("port", "80000", "a whole number from 0 to 65535"),
        ("port", "-1", "a whole number from 0 to 65535"),
        ("port", "eight", "a whole number from 0 to 65535"),
        ("port", True, "a whole number from 0 to 65535"),
        ("port", 8000.5, "a whole number from 0 to 65535"),
        ("drain_timeout", "nan", "a number from 0 to 3600"),
        ("drain_timeout", "inf", "a number from 0 to 3600"),
        ("method", "lookahead", f"one of {', '.join(METHODS)}"),
        ("host_directory", "maybe", "true or false"),
        ("mock_profile", "[1]", "a JSON object; names and texts in it have double quotes"),
        ("mock_profile", "{", "a JSON object; names and texts in it have double quotes"),
        ("model", "", "text"),
        ("host", 5, "text"),
        ("cache_dir", "a\0b", "a path"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_the_accepted_range(
    name: str, value: Any, range_: str
) -> None:
    message = refused({name: value})
    assert f"--{name.replace('_', '-')}" in message
    assert message.endswith(f"is not {range_}")


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"port": "x"}, {"SPECMESH_NOPE": "1"}, write(tmp_path, "max_sequences = -1\n"))
    assert len(caught.value.problems) == 3


def test_a_file_that_is_missing_or_not_toml_is_refused_by_path(tmp_path: Path) -> None:
    assert "nowhere.toml: cannot be read" in refused(file=tmp_path / "nowhere.toml")
    assert "is not TOML" in refused(file=write(tmp_path, "port = = 3"))


def test_numbers_take_their_bounds() -> None:
    for row in SETTINGS:
        if row.low is not None:
            if not row.above:
                assert parse_value(row, str(row.low if row.kind == "float" else int(row.low))) == row.low
            assert parse_value(row, str(row.high if row.kind == "float" else int(row.high or 0))) == row.high


def test_every_row_has_help_a_known_kind_and_an_acceptable_default() -> None:
    for row in SETTINGS:
        assert row.help and accepted(row)
        assert row.kind in ("bool", "int", "float", "str", "path", "choice", "json")
        parse_value(row, row.default)
        assert (row.low is None) == (row.high is None)


@pytest.mark.parametrize("text", ["true", "1", "YES", "on"])
def test_words_for_true_are_understood(text: str) -> None:
    assert load_settings({}, {"SPECMESH_HOST_DIRECTORY": text}).host_directory is True


def test_tables_of_the_file_fill_json_rows(tmp_path: Path) -> None:
    file = write(tmp_path, "[mock_profile]\nstep_ms = 2\n[speculative_config]\nmethod = 'naive'\n")
    settings = load_settings({}, {}, file)
    assert settings.mock_profile == {"step_ms": 2}
    assert settings.method == "naive"


@pytest.mark.parametrize("name", ["typical_epsilon", "typical_delta"])
def test_a_row_whose_lowest_value_is_out_says_so(name: str) -> None:
    assert getattr(load_settings({name: "1e-6"}), name) == 1e-6
    assert getattr(load_settings({name: "1"}), name) == 1.0
    for wrong in ("0", "1.01", "nan"):
        assert f"{wrong!r} is not a number above 0 and up to 1" in refused({name: wrong})


def test_every_strategy_is_a_choice_and_nothing_else_but_auto() -> None:
    assert ROWS["verify_strategy"].choices == ("auto", *STRATEGIES)
    assert ROWS["accept_policy"].choices == ACCEPT_POLICIES


def test_the_rows_of_verification_have_the_defaults_and_bounds_of_a_verification() -> None:
    settings, verification = load_settings(), Verification()
    for name in ("accept_policy", "max_candidate_len", "verify_window", "typical_epsilon", "typical_delta"):
        assert getattr(settings, name) == getattr(verification, name)
    assert settings.verify_strategy == verification.strategy
    assert settings.allow_lossy is False
    assert (ROWS["max_candidate_len"].high, ROWS["verify_window"].high) == (MOST_CANDIDATES, LONGEST_WINDOW)


# --speculative-config


def test_the_keys_of_other_servers_are_mapped_onto_the_rows() -> None:
    config = {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 3,
        "verify_strategy": "target_match",
        "accept_policy": "reject_all",
    }
    settings = load_settings({"speculative_config": json.dumps(config)})
    assert (settings.method, settings.num_speculative_tokens) == ("ngram", 5)
    assert (settings.max_ngram_size, settings.min_ngram_size) == (4, 3)
    assert (settings.verify_strategy, settings.accept_policy) == ("target_match", "reject_all")
    assert settings.origin("max_ngram_size") == "flag --speculative-config, prompt_lookup_max"


def test_inference_with_reference_is_ngram_under_another_name() -> None:
    config = '{"method": "inference_with_reference", "max_ngram_size": 3, "min_ngram_size": 1}'
    settings = load_settings({"speculative_config": config})
    assert (settings.method, settings.max_ngram_size, settings.min_ngram_size) == ("ngram", 3, 1)


def test_a_method_or_key_not_served_yet_is_refused_by_name() -> None:
    message = refused(
        {"speculative_config": '{"method": "mlp_speculator", "quantization": "mxfp4", "verify_strategy": "synthetic"}'}
    )
    assert "method: 'mlp_speculator' needs the network of MLP speculators, which isn't served" in message
    assert "quantization: not served: making 'mxfp4' of a drafter" in message
    assert "verify_strategy: 'synthetic' is not one of auto, greedy, target_match, rejection, block" in message


def test_an_unknown_key_of_the_json_is_refused_with_a_suggestion() -> None:
    message = refused({"speculative_config": '{"num_speculative_token": 2}'})
    assert "num_speculative_token: no such key (did you mean num_speculative_tokens?)" in message


def test_a_bad_value_in_the_json_is_refused_with_key_and_range() -> None:
    message = refused({"speculative_config": '{"num_speculative_tokens": 100}'})
    assert "num_speculative_tokens: 100 is not a whole number from -1 to 64" in message


def test_a_flag_that_contradicts_the_json_beside_it_is_refused() -> None:
    message = refused({"method": "naive", "speculative_config": '{"method": "ngram"}'})
    assert "contradicts 'naive' of flag --method" in message


def test_two_keys_for_one_row_that_disagree_are_refused() -> None:
    assert "contradicts" in refused({"speculative_config": '{"prompt_lookup_max": 3, "max_ngram_size": 4}'})


def test_a_flag_beats_the_json_of_the_environment() -> None:
    settings = load_settings({"method": "naive"}, {"SPECMESH_SPECULATIVE_CONFIG": '{"method": "ngram"}'})
    assert settings.method == "naive"


def test_when_one_ngram_bound_is_given_the_other_follows_it() -> None:
    assert load_settings({"max_ngram_size": 1}).min_ngram_size == 1
    assert load_settings({"min_ngram_size": 9}).max_ngram_size == 9
    assert "is more than" in refused({"min_ngram_size": 4, "max_ngram_size": 3})


# The object


def test_settings_cannot_change_after_start() -> None:
    settings = Settings.for_tests()
    with pytest.raises(AttributeError, match="frozen"):
        settings.port = 1
    with pytest.raises(AttributeError, match="did you mean port"):
        _ = settings.prt


def test_for_tests_reads_neither_environment_nor_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECMESH_PORT", "1")
    assert Settings.for_tests(engine="mock", mock_profile={"step_ms": 0}).port == 8000


def test_keys_are_not_shown() -> None:
    settings = Settings.for_tests(api_keys="secret")
    assert "secret" not in repr(settings)
    assert settings.shown("api_keys") == "(hidden)"
    assert settings.api_keys == "secret"


def test_a_file_adds_its_keys(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("two\nthree, one\n\n")
    settings = load_settings({}, {"SPECMESH_API_KEYS": "one", "SPECMESH_API_KEYS_FILE": f"{tmp_path}/keys"}, None)
    assert settings.api_keys == "one,two,three"
    assert "two" not in repr(settings) and settings.origin("api_keys").endswith(f"file {tmp_path}/keys")
    # Another reading of the file could give other keys, or none.
    (tmp_path / "keys").unlink()
    assert settings.replaced(port=1).api_keys == "one,two,three"
    assert settings.replaced(port=1).own_keys == copy.deepcopy(settings).own_keys == ("one",)


def test_several_files_add_their_keys_and_each_must_have_some(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n")
    (tmp_path / "b").write_text("two\n")
    assert Settings.for_tests(api_keys_file=f"{tmp_path}/a, {tmp_path}/b").api_keys == "one,two"
    (tmp_path / "b").write_text("\n")
    with pytest.raises(SettingsError, match="b has no key"):
        Settings.for_tests(api_keys_file=f"{tmp_path}/a,{tmp_path}/b")


@pytest.mark.parametrize("text", [None, "", " ,\n", b"\xff\xfe"])
def test_a_file_without_keys_ends_the_start_and_opens_nothing(tmp_path: Path, text: str | bytes | None) -> None:
    if text is not None:
        (tmp_path / "keys").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SettingsError, match="--api-keys-file: "):
        load_settings({"api_keys": "one", "api_keys_file": f"{tmp_path}/keys"}, {}, None)


def test_secrets_do_not_travel_in_an_environment() -> None:
    assert "secret" not in str(to_environment(Settings.for_tests(api_keys="secret")))


def test_replaced_changes_some_rows_and_checks_them() -> None:
    settings = Settings.for_tests(port=1)
    assert settings.replaced(instance="worker-2").instance == "worker-2"
    assert settings.replaced(instance="worker-2").port == 1
    with pytest.raises(SettingsError):
        settings.replaced(port=-1)


def test_settings_travel_to_a_child_through_its_environment() -> None:
    settings = Settings.for_tests(
        port=9,
        vllm_metric_names=True,
        mock_profile={"seed": 3},
        drain_timeout=1.5,
        speculative_config='{"method": "naive"}',
        model="/m/x",
    )
    environment = to_environment(settings)
    child = load_settings({}, environment, settings_file(environment))
    assert {n: v for n, v in child if n != "speculative_config"} == {
        n: v for n, v in settings if n != "speculative_config"
    }


def test_settings_survive_pickling_and_compare_by_value() -> None:
    settings = Settings.for_tests(port=9)
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301
    assert hash(settings) == hash(Settings.for_tests(port=9))
    assert settings != Settings.for_tests()


# Places


def test_places_follow_the_settings_then_the_session_then_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert run_dir(Settings.for_tests(run_dir="/r")) == Path("/r")
    assert run_dir(Settings.for_tests()) == Path("/run/user/7/specmesh")
    assert cache_dir(Settings.for_tests()) == Path("/c/specmesh")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert str(run_dir(Settings.for_tests())).startswith("/tmp/specmesh-")


def test_endpoints_are_sockets_in_the_run_dir_unless_an_address_is_set() -> None:
    settings = Settings.for_tests(run_dir="/r")
    assert endpoint(settings, "worker", "worker-1") == "ipc:///r/worker-1.sock"
    assert endpoint(settings, "directory") == "ipc:///r/directory.sock"
    assert endpoint(settings.replaced(bind="tcp://127.0.0.1:5"), "worker", "worker-1") == "tcp://127.0.0.1:5"
    assert endpoint(settings.replaced(directory="tcp://d:5"), "directory") == "tcp://d:5"


def test_a_run_dir_too_long_for_a_socket_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="run_dir"):
        endpoint(Settings.for_tests(run_dir="/" + "x" * 120), "worker", "worker-1")


def test_metrics_ports_differ_by_role_and_instance() -> None:
    settings = Settings.for_tests()
    assert [metrics_port(settings, role) for role in ("streamer", "tokenizer", "proposer", "worker")] == [
        9100,
        9101,
        9102,
        9103,
    ]
    assert mesh_metrics_port(settings, "tokenizer", 1) == 9111
    assert metrics_port(settings.replaced(metrics_port=5), "worker") == 5
    assert mesh_metrics_port(settings.replaced(metrics_port=5), "worker") == 8


def test_the_served_name_is_never_a_path() -> None:
    assert served_model_name(Settings.for_tests(model="/home/me/llama")) == "llama"
    assert served_model_name(Settings.for_tests(served_model_name="m")) == "m"
    assert set(ROWS) == {row.name for row in SETTINGS}

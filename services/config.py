"""The one table of settings: flags, SPECMESH_* names, file keys and docs/settings.md are made from it.

Values never change after start; what is learned at start-up (page count, eos ids) lives elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """A row. `kind` is bool, int, float, str, path, choice or json; `low`/`high` bound numbers, inclusive."""

    name: str
    default: Any
    help: str
    kind: str
    roles: str = "all"
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()


def _row(name: str, default: Any, help: str, **more: Any) -> Setting:
    kind = more.pop("kind", None) or {bool: "bool", int: "int", float: "float", str: "str"}[type(default)]
    return Setting(name, default, help, kind, **more)


SETTINGS: tuple[Setting, ...] = (
    # The model
    _row("model", "smollm2-135m-instruct", "Model: the embedded default's name, a Hugging Face folder, a GGUF file or a hub id", roles="all"),
    _row("served_model_name", "", "Name clients use for the model; empty: the folder's name", roles="streamer"),
    _row("cache_dir", "", "Where models are kept; empty: $XDG_CACHE_HOME/specmesh or ~/.cache/specmesh", kind="path"),
    _row("dtype", "auto", "Weights and activations", kind="choice", choices=("auto", "bfloat16", "float32"), roles="target"),
    _row("engine", "torch", "torch runs the model; mock invents tokens by profile, for tests and for measuring the mesh", kind="choice", choices=("torch", "mock"), roles="target"),
    _row("mock_profile", "{}", "Mock engine: step_ms, row_us, acceptance, fail_every, eos_every, vocab_size, seed", kind="json", roles="target"),
    # The door
    _row("host", "127.0.0.1", "Address of the HTTP door", roles="streamer"),
    _row("port", 8000, "Port of the HTTP door", low=0, high=65535, roles="streamer"),
    _row("api_keys", "", "Comma-separated keys clients must send as Bearer; empty: none asked", roles="streamer"),
    _row("max_waiting", 256, "Requests admitted and not yet finished; more are answered 429", low=1, high=100000, roles="streamer"),
    _row("request_timeout", 600.0, "Seconds a request may take in all", low=0.1, high=86400.0, roles="streamer"),
    _row("body_timeout", 10.0, "Seconds a client may take to send headers and body", low=0.1, high=600.0, roles="streamer"),
    _row("write_timeout", 30.0, "Seconds a client may stall while we write to it", low=0.1, high=600.0, roles="streamer"),
    _row("max_body_bytes", 4194304, "Largest request body", low=1024, high=1073741824, roles="streamer"),
    _row("max_choices", 8, "Largest n", low=1, high=128, roles="streamer"),
    _row("max_messages", 1024, "Most messages in a chat", low=1, high=100000, roles="streamer"),
    _row("max_stop_strings", 16, "Most stop strings", low=0, high=256, roles="streamer"),
    _row("vllm_metric_names", False, "Also serve the metrics under the vllm: prefix, for existing dashboards"),
    # Speculation
    _row("speculative_config", "{}", "JSON with the keys FastDeploy and vLLM use: method, num_speculative_tokens, verify_strategy, accept_policy, prompt_lookup_max/min, max_ngram_size/min_ngram_size, ...", kind="json"),
    _row("method", "ngram", "Proposer used when a request names none", kind="choice", choices=("naive", "ngram")),
    _row("num_speculative_tokens", 8, "Longest draft", low=0, high=64),
    _row("verify_strategy", "auto", "auto: greedy at temperature 0, target_match otherwise", kind="choice", choices=("auto", "greedy", "target_match")),
    _row("accept_policy", "normal", "accept_all and reject_all are for debugging: accept_all changes the text", kind="choice", choices=("normal", "accept_all", "reject_all")),
    _row("max_ngram_size", 5, "Longest n-gram looked up", low=1, high=32),
    _row("min_ngram_size", 2, "Shortest n-gram looked up", low=1, high=32),
    _row("draft_deadline_ms", 20.0, "How long a step waits for drafts before it goes on without them", low=0.1, high=10000.0, roles="target"),
    # The target's memory and batch
    _row("max_sequences", 64, "Sequences in the running batch", low=1, high=1024, roles="target"),
    _row("max_step_tokens", 512, "Rows of one forward pass, prefill chunks among them", low=16, high=65536, roles="target"),
    _row("max_context", 0, "Longest prompt + answer; 0: what the model was trained for", low=0, high=1048576, roles="target"),
    _row("page_tokens", 32, "Tokens in a KV page", low=8, high=256, roles="target"),
    _row("kv_cache_mb", 1024, "Memory for KV pages", low=1, high=1048576, roles="target"),
    _row("threads", 0, "Compute threads of the target; 0: one per core", low=0, high=1024, roles="target"),
    # The mesh
    _row("run_dir", "", "Where ipc sockets and pid files live; empty: $XDG_RUNTIME_DIR/specmesh or /tmp/specmesh-UID", kind="path"),
    _row("instance", "", "Name of this instance; empty: role-pid", roles="all"),
    _row("bind", "", "Mesh endpoint of this process, ipc://... or tcp://host:port; empty: ipc in run_dir"),
    _row("advertise", "", "Endpoint told to others, where it differs from bind"),
    _row("directory", "", "Endpoint of the directory; empty: ipc in run_dir"),
    _row("host_directory", False, "This process hosts the directory (the supervisor does on one machine)"),
    _row("keys_dir", "", "CURVE keys made by `specmesh keys`; needed for every address that is not ipc", kind="path"),
    _row("metrics_host", "127.0.0.1", "Address of /metrics and /health of a process"),
    _row("metrics_port", 0, "Port of /metrics and /health; 0: 9100 streamer, 9101 tokenizer, 9102 proposer, 9103 target (up adds 10 per further instance)", low=0, high=65535),
    _row("tokenizers", 1, "Tokenizer processes started by up", low=1, high=16, roles="up"),
    _row("drain_timeout", 30.0, "Seconds running streams may go on after SIGTERM", low=0.0, high=3600.0),
    _row("stale_after", 2.0, "Seconds without progress after which an instance counts as stuck", low=0.2, high=600.0),
    _row("log_level", "info", "How much is logged", kind="choice", choices=("debug", "info", "warning", "error")),
)

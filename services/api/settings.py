"""The one table of settings: flags, SPECMESH_* names, file keys and docs/operate/settings.md are made from it.

Values never change after start; what is learned at start-up (page count, eos ids) lives elsewhere.
Below the table: how values are read (file < environment < flags) and the places that follow from them.
The JSON of --speculative-config is translated in services/api/speculative_config.py.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.api.answer_parsers import AUTO as PARSER_AUTO
from services.api.answer_parsers import NONE as PARSER_NONE
from services.api.answer_parsers import REASONING_PARSERS, TOOL_CALL_PARSERS
from services.api.cores import cores_of
from services.api.foreign_flags import FOREIGN, key_of, meant
from services.api.hosts import origins_of
from services.api.methods import AUTO, COMPILED, HYBRID_FIRST, HYBRID_THEN, METHODS, PARTS, PLAIN, lengths_of_heads
from services.api.nodes import WORKER_NODE, meeting_endpoint, problems_of
from services.api.otlp import VARIABLES, origin_of_standard, standard, traces_url
from services.api.page_transport import NIXL, TRANSPORTS
from services.api.phases import ALL, PHASES
from services.api.pooling import POOLINGS
from services.api.sampling_defaults import API_ONLY
from services.api.settings_file import read_file
from services.api.speculative_config import FLAGS, translate, unread
from services.api.strategies import ACCEPT_POLICIES, STRATEGIES
from services.api.tree_shape import read_shape


@dataclass(frozen=True, slots=True)
class Setting:
    """A row. `kind` is bool, int, float, str, path, choice or json; `low`/`high` bound numbers, inclusive (with
    `above`, `low` itself is out)."""

    name: str
    default: Any
    help: str
    kind: str
    roles: str = "all"
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    above: bool = False


def _row(name: str, default: Any, help: str, **more: Any) -> Setting:
    kind = more.pop("kind", None) or {bool: "bool", int: "int", float: "float", str: "str"}[type(default)]
    return Setting(name, default, help, kind, **more)


# Of metrics_port: the health servers aren't started.
NO_PORT = -1

SETTINGS: tuple[Setting, ...] = (
    # The model
    _row("model", "smollm2-135m-instruct", "Target model: the embedded default's name, a Hugging Face folder, a GGUF file or a hub id", roles="all"),
    _row("served_model_name", "", "Name of the model in the API; empty: the folder's name", roles="streamer"),
    _row("cache_dir", "", "Folder of downloaded and converted models; empty: $XDG_CACHE_HOME/specmesh or ~/.cache/specmesh", kind="path"),
    _row("dtype", "auto", "Type of weights and activations; auto: bfloat16, or bfloat16 weights with float32 arithmetic on processors without instructions for it; int8: weights and inputs of linear layers in 8 bits, the rest as auto", kind="choice", choices=("auto", "bfloat16", "float32", "int8"), roles="worker"),
    _row("quantization", "none", "Quantises a dense model at load; wint8: 8 bits with a scale for each output; wint4: 4 bits in groups of 128. On a CPU wint8 is computed as dtype int8, and wint4 saves no memory", kind="choice", choices=("none", "wint8", "wint4"), roles="worker"),
    _row("kv_cache_dtype", "auto", "Type of keys and values in KV pages; auto: that of the model; fp8: 8 bits (e4m3, without scales), on a GPU, for twice as many tokens; it changes the text", kind="choice", choices=("auto", "fp8"), roles="worker"),
    _row("executor", "auto", "Implementation of the forward pass: triton (GPU), compiled (CPU) or plain (PyTorch); auto: the first that the machine supports", kind="choice", choices=("auto", "triton", "compiled", "plain"), roles="worker"),
    _row("determinism", "strict", "strict: a row's bits depend neither on its batch nor on prompt chunks; portable: nor on the CPU, of those with AVX2 or more (compiled loops only); fast: they may, where that is faster", kind="choice", choices=("strict", "portable", "fast"), roles="worker"),
    _row("amx", True, "On a CPU with AMX its tiles compute bfloat16 and int8; false: the loops for other processors, for comparison", roles="worker"),
    _row("engine", "torch", "torch runs the model; mock makes up tokens by mock_profile, for tests and for measuring the mesh", kind="choice", choices=("torch", "mock"), roles="worker"),
    _row("pooling", AUTO, "Default pooling of embeddings; last: the hidden state of the last token; mean: the mean of all; auto: as 1_Pooling/config.json in the model's folder says, else last", kind="choice", choices=(AUTO, *POOLINGS), roles="worker"),
    _row("mock_profile", "{}", "Profile of the mock engine as JSON: step_ms, row_us, acceptance, fail_every, eos_every, vocab_size, seed", kind="json", roles="worker"),
    _row("generation_config", AUTO, "Default sampling; auto: temperature, top_p, top_k, min_p and repetition_penalty of the model's generation_config.json; vllm: temperature 1, ignoring that file", kind="choice", choices=(AUTO, API_ONLY), roles="streamer"),
    # The HTTP server
    _row("host", "127.0.0.1", "Address of the HTTP server", roles="streamer"),
    _row("port", 8000, "Port of the HTTP server; 0: any free port", low=0, high=65535, roles="streamer"),
    _row("uds", "", "Unix socket of the HTTP server, instead of host and port, for programs on this machine; one streamer", kind="path", roles="streamer"),
    _row("ssl_certfile", "", "File with the certificate (PEM) of the HTTP server, and its issuers behind it: https at host and port instead of http; read again when it changes; empty: no TLS", kind="path", roles="streamer"),
    _row("ssl_keyfile", "", "File with the private key (PEM, without a passphrase) of ssl_certfile; empty: in the same file", kind="path", roles="streamer"),
    _row("api_keys", "", "Comma-separated API keys that clients send as Bearer tokens or in x-api-key; empty: no key is needed", roles="streamer"),
    _row("api_keys_file", "", "Files of further API keys, comma-separated; in a file one key a line, or comma-separated, each with name=NAME behind it if its usage is to be told apart in metrics; read again when they change; empty: none", kind="path", roles="streamer"),
    _row("key_requests_per_minute", 0, "Maximum number of requests that run the model, for each API key and streamer, a minute; further ones get status 429; 0: no limit", low=0, high=1000000000, roles="streamer"),
    _row("key_tokens_per_minute", 0, "Maximum number of tokens of prompts and answers, for each API key and streamer, a minute; counted when a request ends, then further ones get status 429; 0: no limit", low=0, high=1000000000000, roles="streamer"),
    _row("allowed_hosts", "", "Comma-separated names that Host headers may have on a server without api_keys and on metrics ports, besides IP addresses, names without a dot and this machine's; pages of these hosts may send requests; *: any", roles="all"),
    _row("cors_origins", "", "Comma-separated origins, such as https://chat.example.com, whose pages may send requests and read the answers (CORS); *: any; empty: none", roles="streamer"),
    _row("api_metrics", "local", "Who may read /metrics of all processes on the API port; local: programs on this machine, with the API key if there is one, nobody if there are several; callers: everyone who may send requests; none: nobody", kind="choice", choices=("local", "callers", "none"), roles="streamer"),
    _row("max_itl_ms", 1000, "Longest time of a step on a CPU, in milliseconds, by what steps took: prompts are cut into chunks that take no longer, so that running streams get their tokens meanwhile", low=10, high=60_000, roles="worker"),
    _row("max_waiting", 256, "Maximum number of choices in the mesh, admitted and not yet finished; further requests get status 429", low=1, high=100000, roles="streamer"),
    _row("request_timeout", 600.0, "Maximum duration of a request, in seconds", low=0.1, high=86400.0, roles="streamer"),
    _row("body_timeout", 10.0, "Maximum time for receiving a request's headers and body, in seconds", low=0.1, high=600.0, roles="streamer"),
    _row("write_timeout", 30.0, "Maximum time a client may take to accept 64 KiB that wait for it, or all of it, in seconds", low=0.1, high=600.0, roles="streamer"),
    _row("max_body_bytes", 4194304, "Maximum size of a request body, in bytes", low=1024, high=1073741824, roles="streamer"),
    _row("body_memory_mb", 64, "Maximum size of the bodies of all requests in progress, in MiB, and at least max_body_bytes; further requests get status 429", low=1, high=1048576, roles="streamer"),
    _row("answer_memory_mb", 512, "Maximum size of all answers that are kept until they are whole, in MiB; more get status 429, an answer that is larger alone 413", low=1, high=1048576, roles="streamer"),
    _row("max_connections", 2048, "Maximum number of open HTTP connections, fewer if the limit of open files is lower; idle ones are closed first, then new ones get status 503", low=1, high=1000000, roles="streamer"),
    _row("max_choices", 8, "Maximum value of n in a request", low=1, high=128, roles="streamer"),
    _row("max_messages", 1024, "Maximum number of messages in a chat request", low=1, high=100000, roles="streamer"),
    _row("max_stop_strings", 16, "Maximum number of stop strings in a request", low=0, high=256, roles="streamer"),
    _row("kept_responses", 256, "Maximum number of answers of /v1/responses kept for an API key; 0: none", low=0, high=1000000, roles="streamer"),
    _row("kept_responses_mb", 64, "Maximum memory for kept answers and their conversations, in MiB, shared equally by the API keys", low=1, high=1048576, roles="streamer"),
    _row("kept_responses_seconds", 3600.0, "Time that such an answer is kept, in seconds", low=0.1, high=31536000.0, roles="streamer"),
    _row("vllm_metric_names", False, "Also serve the metrics with the prefix vllm:, for existing dashboards"),
    _row("otlp_traces_endpoint", "", "URL of an OpenTelemetry collector for traces of requests (docs/operate/operating.md), such as http://127.0.0.1:4318/v1/traces; empty: none", roles="streamer"),
    _row("otlp_service_name", "specmesh", "Name of this server in traces", roles="streamer"),
    _row("chat_template", "", "File with the chat template, in Jinja; empty: the one in the model's folder", kind="path"),
    _row("tool_call_parser", PARSER_AUTO, "Format in which the model calls tools; auto: by its chat template, hermes if that shows none; none: calls stay in the text", kind="choice", choices=(PARSER_AUTO, PARSER_NONE, *TOOL_CALL_PARSERS), roles="streamer"),
    _row("reasoning_parser", PARSER_AUTO, "Format in which the model's reasoning precedes its answer; auto: by its chat template; none: reasoning stays in the text", kind="choice", choices=(PARSER_AUTO, PARSER_NONE, *REASONING_PARSERS), roles="streamer"),
    _row("template_timeout", 2.0, "Maximum run time of the model's chat template, in seconds", low=0.01, high=60.0, roles="tokenizer"),
    # Speculation
    _row("speculative_config", "{}", "Speculation settings as JSON, with the keys of FastDeploy and vLLM, such as method, num_speculative_tokens, prompt_lookup_max, posterior_threshold", kind="json"),
    _row("method", AUTO, "Drafting method of requests that name none", kind="choice", choices=tuple(METHODS)),
    _row("draft_model", "", "Hugging Face folder or hub id of a draft model or head, which method auto uses, too; own: the model's own folder, for mtp (its default); empty: the head that comes with specmesh, if there is one for the model; none: no head", roles="worker"),
    _row("num_model_steps", 0, "Maximum number of tokens that a head or draft model drafts at once; 0: as many as the draft may have, and with method auto twice its default length", low=0, high=64, roles="worker"),
    _row("draft_dtype", "auto", "dtype of the draft model or head; auto: int8 where compiled loops run a model in bfloat16, else that of the model", kind="choice", choices=("auto", "bfloat16", "float32", "int8"), roles="worker"),
    _row("draft_trees", False, "Drafts of a head may be trees, with several tokens for one position, in requests that don't set it; always on for auto", roles="worker"),
    _row("draft_tree_shape", "", "Fixed shape of the trees of heads: a JSON list of paths, each of ranks, such as [[0], [1], [0, 0]]; empty: the most probable tokens", roles="worker"),
    _row("num_speculative_tokens", -1, f"Maximum draft length in tokens; -1: 48 for auto, 8 for text drafters, {lengths_of_heads()}", low=-1, high=64),
    _row("verify_strategy", "auto", "Rule by which draft tokens are accepted; auto: greedy at temperature 0, else target_match; typical and topp change the text", kind="choice", choices=(AUTO, *STRATEGIES)),
    _row("accept_policy", "normal", "For debugging: accept_all accepts every draft token and changes the text, reject_all accepts none", kind="choice", choices=ACCEPT_POLICIES),
    _row("allow_lossy", False, "Allow requests to name strategies and policies that change the text or its distribution; the server's own is always allowed", roles="worker"),
    _row("max_candidate_len", 5, "topp: accept a draft token if it is among this number of most probable tokens of the top-p set", low=1, high=1024, roles="worker"),
    _row("verify_window", 2, "topp: also accept the second most probable token if this number of most probable tokens follow it; 0: off", low=0, high=64, roles="worker"),
    _row("typical_epsilon", 0.09, "typical: accept a draft token of at least this probability", low=0.0, high=1.0, above=True, roles="worker"),
    _row("typical_delta", 0.3, "typical: also accept a draft token of at least this value times exp(-entropy)", low=0.0, high=1.0, above=True, roles="worker"),
    _row("max_ngram_size", 5, "Longest n-gram to look up, in tokens", low=1, high=32),
    _row("min_ngram_size", 2, "Shortest n-gram to look up, in tokens", low=1, high=32),
    _row("suffix_decoding_max_tree_depth", 64, "suffix: longest context to look up, in tokens", low=1, high=1024, roles="proposer"),
    _row("suffix_decoding_max_cached_requests", -1, "suffix: 0: no answers are learned; any other number: they are, limited by store_tokens and store_mb", low=-1, high=100000000, roles="proposer"),
    _row("suffix_decoding_max_spec_factor", 1.0, "suffix: maximum draft length as a multiple of the length of the matched context", low=0.0, high=64.0, roles="proposer"),
    _row("suffix_decoding_max_spec_offset", 0.0, "suffix: tokens added to that maximum", low=-64.0, high=64.0, roles="proposer"),
    _row("suffix_decoding_min_token_prob", 0.1, "suffix: a draft ends before a token that is less probable than this by its counts", low=0.0, high=1.0, roles="proposer"),
    _row("suffix_decoding_learn_prompts", False, "suffix: learn prompts too, not only answers", roles="proposer"),
    _row("model_answers", True, "Also draft from answers of the default model that come with specmesh, for models with its tokenizer", roles="proposer"),
    _row("hybrid_first", HYBRID_FIRST, "hybrid: the method that drafts first", kind="choice", choices=PARTS, roles="proposer"),
    _row("hybrid_then", HYBRID_THEN, "hybrid: the method that continues that draft, or drafts at the same place", kind="choice", choices=PARTS, roles="proposer"),
    _row("hybrid_rule", "continue", "hybrid: continue: the second method continues the first one's draft; better: the draft with more expected tokens is used", kind="choice", choices=("continue", "better"), roles="proposer"),
    _row("proposer_index", COMPILED, "Form of the text drafters; compiled: compiled loops, and plain Python until they are ready; plain: plain Python, which gives the same drafts some hundred times slower", kind="choice", choices=(COMPILED, PLAIN), roles="proposer"),
    _row("shared_namespaces", "", "Comma-separated names of namespaces whose texts all callers share when their requests name them; empty: callers share no texts", roles="streamer"),
    _row("store_dir", "", "Folder of what proposers have learned; empty: store in cache_dir; none: keep it in memory only", roles="proposer"),
    _row("store_mb", 1024, "Maximum disk space and memory for learned text, in MiB", low=1, high=1048576, roles="proposer"),
    _row("store_tokens", 100000000, "Maximum number of learned tokens in a namespace; the oldest are evicted first", low=10000, high=2000000000, roles="proposer"),
    _row("pace_ms", 0.0, "Fixed interval between SSE chunks of a stream, in ms, with chunks of equal size; 0: each step's tokens are sent at once", low=0.0, high=10000.0, roles="streamer"),
    _row("record_steps", "", "File for each step's work and result, for `bench step --replay`; it holds token ids of prompts and answers", roles="worker"),
    _row("draft_deadline_ms", 20.0, "Maximum time that a step waits for drafts, in ms", low=0.1, high=10000.0, roles="worker"),
    _row("audit_share", 0.0, "Share of requests that are sent again in idle time, without drafts, to compare the texts (docs/internals/architecture.md)", low=0.0, high=1.0, roles="streamer"),
    _row("audit_threshold", 3, "Number of differing answers after which the audit switches a method off; 0: never", low=0, high=1000000, roles="streamer"),
    _row("proposer_tokens", 1000000, "Maximum number of tokens of running sequences that a proposer keeps, about 350 bytes each", low=1000, high=1000000000, roles="proposer"),
    # Memory and batch of the worker
    _row("max_sequences", 0, "Maximum number of sequences in a batch; 0: 256 on a GPU, 64 on a CPU", low=0, high=1024, roles="worker"),
    _row("max_step_tokens", 0, "Maximum number of rows in a forward pass, prompt chunks and draft tokens included; 0: 512 on a CPU; 2048 on a GPU, halved until it takes at most 1/16 of its memory", low=0, high=65536, roles="worker"),
    _row("max_context", 0, "Maximum length of prompt and answer together, in tokens; 0: the length the model was trained for", low=0, high=1048576, roles="worker"),
    _row("page_tokens", 32, "Size of a KV page, in tokens", low=8, high=256, roles="worker"),
    _row("kv_cache_mb", -1, "Memory for KV pages, in MiB; 0: 60 % of the memory that is free after loading the model; -1: by gpu_memory_utilization on a GPU, 1024 on a CPU", low=-1, high=1048576, roles="worker"),
    _row("gpu_memory_utilization", 0.9, "Share of the GPU's memory that the worker may use; KV pages get what weights and the largest step leave of it", low=0.0, high=1.0, above=True, roles="worker"),
    _row("tensor_parallel_size", 1, "Number of processes that a worker's model is split over, on a GPU each or sharing the worker's cores (docs/operate/parallel.md)", low=1, high=64, roles="worker"),
    _row("prefill_tensor_parallel_size", 0, "tensor_parallel_size of workers with phase prefill; 0: as tensor_parallel_size. If it differs from that of decode workers, the text may change (docs/operate/split.md)", low=0, high=64, roles="worker"),
    _row("decode_tensor_parallel_size", 0, "tensor_parallel_size of workers with phase decode; 0: as tensor_parallel_size", low=0, high=64, roles="worker"),
    _row("nnodes", 1, "Number of machines that a worker's ranks are spread over evenly; each is given the same command with its own node_rank (docs/operate/parallel.md)", low=1, high=64, roles="worker"),
    _row("node_rank", 0, "With nnodes: the number of this machine; 0 serves, the others only compute", low=0, high=63, roles="worker"),
    _row("master_addr", "", "With nnodes: address of node 0, HOST or HOST:PORT; the directory of the mesh is there unless directory is set", roles="worker"),
    _row("master_port", 29501, "With nnodes: port of master_addr, where that has none; a node joins only a worker with the same", low=1, high=65535, roles="worker"),
    _row("threads", 0, "Number of compute threads of the worker, of all its ranks together; 0: one per core", low=0, high=1024, roles="worker"),
    _row("prefix_cache", True, "Keep the KV pages of finished texts and reuse them for requests with the same beginning", roles="worker"),
    _row("phase", ALL, "Work that streamers give this worker; prefill: long prompts, whose KV pages it hands to others; decode: requests, whose long prompts others compute; all: whole requests", kind="choice", choices=PHASES, roles="worker"),
    _row("handover_min_tokens", 128, "Missing prompt tokens from which a worker asks another one for KV pages, instead of computing them", low=1, high=1048576, roles="worker"),
    _row("pull_pages", True, "Fetch KV pages that another worker of the mesh has, where that is faster than computing them", roles="worker"),
    _row("page_transport", "mesh", "How KV pages come from another worker; mesh: as messages; nixl: NIXL reads them from the other worker's memory where both have it. NIXL's connections are neither encrypted nor authenticated: for private networks", kind="choice", choices=TRANSPORTS, roles="worker"),
    _row("priority_seconds", 5.0, "Waiting time that one level of priority equals, in seconds", low=0.0, high=60.0, roles="worker"),
    # Cores
    _row("cores", "", "Cores that a role may use, such as worker=0-5;streamer=6,7; roles not named may use all"),
    _row("niceness", 10, "Niceness of the streamer and tokenizer processes; 0: that of the parent process", low=0, high=19, roles="streamer, tokenizer"),
    # The mesh
    _row("demo", False, "POST /v1/mesh/kill ends a proposer as kill -9 would; with several api_keys, /v1/mesh shows every caller the figures of all", roles="streamer, proposer"),
    _row("run_dir", "", "Folder of ipc sockets and pid files; empty: $XDG_RUNTIME_DIR/specmesh or /tmp/specmesh-UID", kind="path"),
    _row("instance", "", "Name of this instance; empty: the role, the host's name and the pid", roles="all"),
    _row("bind", "", "Mesh endpoint of this process, ipc://... or tcp://host:port; empty: a socket in run_dir"),
    _row("advertise", "", "Endpoint that other processes connect to, if it differs from bind"),
    _row("directory", "", "Endpoint of the directory, or file:///PATH of a file that holds it and is read again while no directory answers; empty: a socket in run_dir"),
    _row("host_directory", False, "This process hosts the directory; under `specmesh up` the supervisor does"),
    _row("keys_dir", "", "Folder of CURVE keys made by `specmesh keys`; needed for every endpoint that is not ipc", kind="path"),
    _row("metrics_host", "127.0.0.1", "Address of the HTTP server for /metrics and /health"),
    _row("metrics_port", 0, "Port of /metrics and /health; 0: 9100 streamer, 9101 tokenizer, 9102 proposer, 9103 worker; under `specmesh up` the first of the four, plus 10 for each further instance; -1: no port", low=NO_PORT, high=65535),
    _row("workers", 1, "Number of worker processes, each with a copy of the model; they share the cores, or have a GPU each (FastDeploy's workers are streamers here)", low=1, high=64, roles="up"),
    _row("prefill_workers", 0, "Number of workers with phase prefill, with decode_workers and instead of workers", low=0, high=64, roles="up"),
    _row("decode_workers", 0, "Number of workers with phase decode", low=0, high=64, roles="up"),
    _row("streamers", 1, "Number of streamer processes; all of them listen on the one port", low=1, high=64, roles="up, streamer"),
    _row("tokenizers", 1, "Number of tokenizer processes", low=1, high=64, roles="up"),
    _row("proposers", 1, "Number of proposer processes; each drafts for some of the namespaces", low=1, high=64, roles="up"),
    _row("min_workers", 1, "With --on ray: least number of workers", low=1, high=1024, roles="up"),
    _row("max_workers", 0, "With --on ray: largest number of workers; started by how long requests wait in queues; 0: no autoscaling", low=0, high=1024, roles="up"),
    _row("scale_down_after", 60.0, "With --on ray: time without a queue after which a worker is removed, in seconds", low=1.0, high=86400.0, roles="up"),
    _row("worker_cpus", 1.0, "With --on ray: CPUs reserved for a worker, at least one a rank, and its compute threads unless threads is set", low=0.1, high=1024.0, roles="up"),
    _row("ray_address", "", "With --on ray: address of a Ray cluster, such as auto or HOST:6379; empty: a Ray of this machine alone", roles="up"),
    _row("drain_timeout", 30.0, "Time that running requests may continue after SIGTERM, in seconds", low=0.0, high=3600.0),
    _row("kill_stuck_after", 30.0, "Time without progress after which `specmesh up` kills and restarts a process, in seconds; 0: never", low=0.0, high=3600.0, roles="up"),
    _row("stale_after", 2.0, "Time without progress after which an instance counts as stuck, in seconds", low=0.2, high=600.0),
    _row("log_level", "info", "Least severe level that is logged", kind="choice", choices=("debug", "info", "warning", "error")),
    _row("log_format", "text", "Form of the log on stderr; json: one object a line", kind="choice", choices=("text", "json")),
)

ROWS: dict[str, Setting] = {row.name: row for row in SETTINGS}
PREFIX = "SPECMESH_"
# Names a SPECMESH_* variable may have without being a row: where the file is (empty: read none).
FILE_VARIABLE = "SPECMESH_CONFIG"
SECRET = frozenset({"api_keys"})
TRUE, FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


class SettingsError(ValueError):
    """Everything wrong with the settings at once: the start ends here."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class Settings:
    """One attribute per row, frozen. Rows of kind json are dicts, paths are str with ~ expanded."""

    __slots__ = ("_origins", "_values", "notes", "own_keys")

    _values: dict[str, Any]
    _origins: dict[str, str]
    # What was given and has no effect, for the user to read.
    notes: tuple[str, ...]
    # Of api_keys, those that no file has given; files may give others later.
    own_keys: tuple[str, ...]

    def __init__(
        self,
        values: Mapping[str, Any],
        origins: Mapping[str, str],
        notes: Iterable[str] = (),
        own_keys: Iterable[str] = (),
    ) -> None:
        object.__setattr__(self, "_values", dict(values))
        object.__setattr__(self, "_origins", dict(origins))
        object.__setattr__(self, "notes", tuple(notes))
        object.__setattr__(self, "own_keys", tuple(own_keys))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"no setting {name!r}{did_you_mean(name, ROWS)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"settings are frozen: {name} cannot change after start")

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self._values.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self._values == other._values

    def __hash__(self) -> int:
        return hash(json.dumps(self._values, sort_keys=True))

    def __repr__(self) -> str:
        told = {name: self.shown(name) for name in self._values if self.origin(name) != "default"}
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in told.items())})"

    def __reduce__(self) -> tuple[type[Settings], tuple[Any, ...]]:
        return Settings, (self._values, self._origins, (), self.own_keys)

    def origin(self, name: str) -> str:
        """Where the value came from: default, a file, an environment name, a flag."""
        return self._origins[name]

    def shown(self, name: str) -> Any:
        """The value, fit for a screen or a log."""
        value = self._values[name]
        return "(hidden)" if name in SECRET and value else value

    def replaced(self, **overrides: Any) -> Settings:
        """A copy with some rows changed (a supervisor gives each child its own instance and port)."""
        values, origins = dict(self._values), dict(self._origins)
        given, problems = _read_layer(overrides, lambda name: f"override {name}", [])
        for name, (value, origin) in given.items():
            values[name], origins[name] = value, origin
        own_keys = keys_of(values["api_keys"]) if "api_keys" in given else self.own_keys
        return _checked(values, origins, problems, own_keys=own_keys)

    @classmethod
    def for_tests(cls, **overrides: Any) -> Settings:
        """The defaults and what the test says, and nothing from the environment or a file."""
        # What a test learns is its own.
        return load_settings({"store_dir": "none", **overrides}, {}, None)


# Reading ------------------------------------------------------------------------------------------------


def load_settings(
    flags: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    file_path: str | os.PathLike[str] | None = None,
) -> Settings:
    """OpenTelemetry's variables < file < environment < flags. `env` and `file_path` are taken as given: None reads
    nothing.
    Raises SettingsError with every problem found."""
    values = {row.name: _default(row) for row in SETTINGS}
    origins = {row.name: "default" for row in SETTINGS}
    problems: list[str] = []
    named, unknown = _environment(env or {})
    problems += unknown
    of_otel, notes = standard(env or {})
    layers: list[tuple[Mapping[str, Any], Any]] = [
        ({VARIABLES[name]: value for name, value in of_otel.items()}, origin_of_standard),
        (named, lambda name: f"environment {PREFIX}{name.upper()}"),
        (flags or {}, lambda name: f"flag {flag_name(name)}"),
    ]
    if file_path is not None:
        try:
            layers.insert(1, (read_file(Path(file_path)), lambda name: f"file {file_path}, key {name}"))
        except ValueError as error:
            problems.append(str(error))
    for layer, origin_of in layers:
        given, wrong = _read_layer(layer, origin_of, notes)
        problems += wrong
        for name, (value, origin) in given.items():
            values[name], origins[name] = value, origin
    own_keys = keys_of(values["api_keys"])
    for path in key_files(values["api_keys_file"]):
        problems += _add_keys_of_file(path, values, origins)
    return _checked(values, origins, problems, notes, own_keys)


def settings_file(env: Mapping[str, str]) -> Path | None:
    """The file to read: SPECMESH_CONFIG names it (and it must exist; empty: none), else the user's own."""
    if FILE_VARIABLE in env:
        return Path(env[FILE_VARIABLE]).expanduser() if env[FILE_VARIABLE] else None
    path = default_file(env)
    return path if path.is_file() else None


def default_file(env: Mapping[str, str]) -> Path:
    return Path(env.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "specmesh" / "config.toml"


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def parse_value(row: Setting, value: Any) -> Any:
    """The typed value of a row, from text or what a file gives. Raises ValueError with the accepted range."""
    match row.kind:
        case "bool":
            parsed: Any = _bool(value)
        case "int":
            parsed = _int(value)
        case "float":
            parsed = _float(value)
        case "json":
            parsed = _object(value)
        case _:
            parsed = value if isinstance(value, str) and "\0" not in value else None
            if row.kind == "choice" and parsed not in row.choices:
                # Other servers write EAGLE3 or WARNING.
                parsed = parsed.lower() if parsed is not None and parsed.lower() in row.choices else None
            if parsed == "" and row.default:
                parsed = None
            if parsed and row.kind == "path":
                parsed = str(Path(parsed).expanduser())
    out_of_range = isinstance(parsed, int | float) and not isinstance(parsed, bool) and (
        (row.low is not None and (parsed < row.low or (row.above and parsed == row.low)))
        or (row.high is not None and parsed > row.high)
    )
    if parsed is None or out_of_range:
        hint = "; names and texts in it have double quotes" if row.kind == "json" else ""
        raise ValueError(f"{_quoted(value)} is not {accepted(row)}{hint}")
    return parsed


def accepted(row: Setting) -> str:
    """What a row takes, in words: for error messages, --help and docs/operate/settings.md."""
    match row.kind:
        case "bool":
            return "true or false"
        case "int" | "float":
            noun = "a whole number" if row.kind == "int" else "a number"
            if row.low is None:
                return noun
            first = f"above {row.low:.10g} and up" if row.above else f"from {row.low:.10g}"
            return f"{noun} {first} to {row.high:.10g}"
        case "choice":
            return "one of " + ", ".join(row.choices)
        case "json":
            return "a JSON object"
        case "path":
            return "a path"
    return "text" if row.default else "text (may be empty)"


# FastDeploy's flag of that name beside another of its own.
HTTP_WORKERS = (
    "write --streamers N for N processes of the HTTP server, as with {} beside it; here --workers N starts N copies of"
    " the model"
)


def _is_of_fastdeploy(name: str) -> bool:
    return name in FOREIGN and name not in ROWS and FOREIGN[name].of == "FastDeploy"


# Names of other servers' flags for speculation, as keys of a file are written -> key of --speculative-config.
_SPECULATION = {key_of(flag): key for flag, key in FLAGS.items()}


def _read_layer(
    layer: Mapping[str, Any], origin_of: Callable[[str], str], notes: list[str]
) -> tuple[dict[str, tuple[Any, str]], list[str]]:
    """One source's rows, typed; with the rows of its speculative_config and of other servers' flags. What has no effect
    is added to `notes`."""
    given: dict[str, tuple[Any, str]] = {}
    problems: list[str] = []
    if "workers" in layer and (theirs := [key_of(key) for key in layer if _is_of_fastdeploy(key_of(key))]):
        problems.append(f"{origin_of('workers')}: {HTTP_WORKERS.format(flag_name(theirs[0]))}")
    for key, value in layer.items():
        name = key_of(key)
        if name in _SPECULATION:
            continue
        if name not in ROWS and name not in FOREIGN:
            problems.append(f"{origin_of(key)}: no such setting{did_you_mean(name, ROWS)}")
            continue
        row = name
        if name in FOREIGN:
            try:
                asked = meant(name, value)
            except ValueError as error:
                problems.append(f"{origin_of(name)}: {error}")
                continue
            row, value = asked.row, asked.value
            notes += [f"{origin_of(name)}: {asked.note}"] if asked.note else []
        if row:
            problems += _add(given, row, value, origin_of(name))
    if "speculative_config" in given:
        config, origin = given["speculative_config"]
        problems += _add_translated(given, config, lambda key: f"{origin}, {key}")
        notes += [f"{origin}, {key}: {note}" for key, note in unread(config)]
    origins = {_SPECULATION[name]: key for key in layer if (name := key_of(key)) in _SPECULATION}
    config = {meaning: layer[key] for meaning, key in origins.items()}

    def origin_of_key(meaning: str) -> str:
        key = origins[meaning]
        return f"flag {key}" if key.startswith("--") else origin_of(key)

    problems += _add_translated(given, config, origin_of_key)
    notes += [f"{origin_of_key(key)}: {note}" for key, note in unread(config)]
    return given, problems


def _add_translated(
    given: dict[str, tuple[Any, str]], config: Mapping[str, Any], origin_of: Callable[[str], str]
) -> list[str]:
    """Rows that the keys name count as if given beside them."""
    rows, wrong = translate(config)
    problems = [f"{origin_of(key)}: {problem}" for key, problem in wrong]
    for name, (key, value) in rows.items():
        problems += _add(given, name, value, origin_of(key))
    return problems


def _add(given: dict[str, tuple[Any, str]], row: str, value: Any, origin: str) -> list[str]:
    """What is wrong with it. Two names for one row are taken if they agree."""
    try:
        parsed = parse_value(ROWS[row], value)
    except ValueError as error:
        return [f"{origin}: {error}"]
    if row in given and given[row][0] != parsed:
        return [f"{origin}: {parsed!r} contradicts {given[row][0]!r} of {given[row][1]}"]
    given.setdefault(row, (parsed, origin))
    return []


def _add_keys_of_file(path: str, values: dict[str, Any], origins: dict[str, str]) -> list[str]:
    """The file's keys become part of api_keys."""
    try:
        keys = keys_in(path)
    except ValueError as error:
        return [f"{origins['api_keys_file']}: {error}"]
    sources = [f"file {path}"] if not values["api_keys"] else [origins["api_keys"], f"file {path}"]
    values["api_keys"] = ",".join(dict.fromkeys([*keys_of(values["api_keys"]), *keys]))
    origins["api_keys"] = ", ".join(sources)
    return []


def key_files(named: str) -> list[str]:
    """The files of the setting api_keys_file."""
    return [str(Path(path).expanduser()) for each in named.split(",") if (path := each.strip())]


def keys_in(path: str) -> dict[str, str]:
    """The keys of a file, and the name of each ("": it has none). Raises ValueError where there are no keys: such a
    file would open the server to everyone."""
    try:
        keys = dict(_named(each, path) for each in keys_of(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text") from None
    if not keys:
        raise ValueError(f"{path} has no key")
    return keys


def _named(entry: str, path: str) -> tuple[str, str]:
    key, *words = entry.split()
    if not words:
        return key, ""
    name = re.fullmatch(r"name=([A-Za-z0-9._-]{1,64})", words[0]) if len(words) == 1 else None
    if name is None:
        # Nothing of the entry is told: it may be a key.
        raise ValueError(f"{path}: behind a key comes nothing, or name= and up to 64 letters, digits, '.', '_' or '-'")
    return key, name[1]


def keys_of(text: str) -> list[str]:
    """The API keys in `text`, comma-separated or one a line."""
    return [key for each in text.replace("\n", ",").split(",") if (key := each.strip())]


def _checked(
    values: dict[str, Any],
    origins: dict[str, str],
    problems: list[str],
    notes: Iterable[str] = (),
    own_keys: Iterable[str] = (),
) -> Settings:
    """What no row can say alone."""
    shortest, longest = values["min_ngram_size"], values["max_ngram_size"]
    if shortest > longest:
        # Only one of the two was given: the other follows it.
        if origins["min_ngram_size"] == "default":
            values["min_ngram_size"] = longest
        elif origins["max_ngram_size"] == "default":
            values["max_ngram_size"] = shortest
        else:
            problems.append(
                f"{origins['min_ngram_size']}: {shortest} is more than the max_ngram_size"
                f" of {longest} ({origins['max_ngram_size']})"
            )
    try:
        cores_of("", values["cores"])
    except ValueError as error:
        problems.append(f"{origins['cores']}: {error}")
    try:
        origins_of(values["cors_origins"])
    except ValueError as error:
        problems.append(f"{origins['cors_origins']}: {error}")
    try:
        traces_url(values["otlp_traces_endpoint"])
    except ValueError as error:
        problems.append(f"{origins['otlp_traces_endpoint']}: {error}")
    try:
        read_shape(values["draft_tree_shape"])
    except ValueError as error:
        problems.append(f"{origins['draft_tree_shape']}: {error}")
    if values["ssl_keyfile"] and not values["ssl_certfile"]:
        problems.append(f"{origins['ssl_keyfile']}: a key without a certificate: set ssl_certfile, too")
    if values["uds"] and values["streamers"] > 1:
        problems.append(f"{origins['uds']}: streamers share a port, but no Unix socket: leave streamers at 1")
    if bool(values["prefill_workers"]) != bool(values["decode_workers"]):
        given = "prefill_workers" if values["prefill_workers"] else "decode_workers"
        problems.append(f"{origins[given]}: prefill_workers and decode_workers come together: set both, or none")
    if not values["prefix_cache"] and (values["phase"] != ALL or values["prefill_workers"]):
        problems.append(f"{origins['prefix_cache']}: leave it out: the prefix cache hands pages over to the other phase")
    for name in ("prefill_tensor_parallel_size", "decode_tensor_parallel_size"):
        if values[name] and values["phase"] == ALL and not values["prefill_workers"]:
            problems.append(f"{origins[name]}: there are no phases: set tensor_parallel_size, or prefill_workers")
    problems += [f"{origins[name]}: {problem}" for name, problem in problems_of(values)]
    ranks = ("tensor_parallel_size", "prefill_tensor_parallel_size", "decode_tensor_parallel_size")
    if values["page_transport"] == NIXL and any(values[name] > 1 for name in ranks):
        problems.append(
            f"{origins['page_transport']}: a process of a split model has a part of every page: leave tensor_parallel_size"
            " at 1, or page_transport at mesh"
        )
    if problems:
        raise SettingsError(problems)
    return Settings(values, origins, notes, own_keys)


def _environment(env: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """SPECMESH_* of the environment. An empty value counts as not set: compose files write `${X:-}`."""
    named: dict[str, str] = {}
    problems: list[str] = []
    for variable, value in env.items():
        if not variable.startswith(PREFIX) or variable == FILE_VARIABLE:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if variable != PREFIX + name.upper() or name not in ROWS:
            row = FOREIGN[name].row if name in FOREIGN else ""
            here = f" (here it is {PREFIX}{row.upper()})" if row else ""
            close = here or did_you_mean(name, ROWS, lambda row: PREFIX + row.upper())
            problems.append(f"environment {variable}: no such setting{close}")
        elif value != "":
            named[name] = value
    return named, problems


def _default(row: Setting) -> Any:
    return json.loads(row.default) if row.kind == "json" else row.default


def _bool(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    text = value.lower() if isinstance(value, str) else ""
    return True if text in TRUE else False if text in FALSE else None


def _int(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return int(value)
    except ValueError:
        return None


def _float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _object(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return dict(value) if isinstance(value, Mapping) else None


def _quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def did_you_mean(name: str, known: Iterable[str], spell: Any = str) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {spell(close[0])}?)" if close else ""


# What follows from the settings -------------------------------------------------------------------------

ROLES = ("streamer", "tokenizer", "proposer", "worker")
FIRST_METRICS_PORT = 9100
LONGEST_HOST = 20
LONGEST_ENDPOINT = 512
# sockaddr_un holds 108 bytes with the closing zero.
LONGEST_SOCKET_PATH = 107


def run_dir(settings: Settings) -> Path:
    """Where sockets and pid files live. Not created here."""
    if settings.run_dir:
        return Path(settings.run_dir)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "specmesh" if runtime else Path(f"/tmp/specmesh-{os.getuid()}")


def cache_dir(settings: Settings) -> Path:
    """Where models are kept. Not created here."""
    if settings.cache_dir:
        return Path(settings.cache_dir)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specmesh"


def store_dir(settings: Settings) -> Path | None:
    """Where what proposers learn is kept; None: in memory. Not created here."""
    if settings.store_dir == "none":
        return None
    return Path(settings.store_dir) if settings.store_dir else cache_dir(settings) / "store"


def instance_name(settings: Settings, role: str) -> str:
    """Containers and machines have process ids in common, but no names."""
    return settings.instance or f"{role}-{socket.gethostname()[:LONGEST_HOST]}-{os.getpid()}"


def endpoint(settings: Settings, role: str, instance: str = "") -> str:
    """Where a process of the mesh binds. The directory is a role with one well-known endpoint."""
    if role == "directory":
        return settings.directory or _meeting(settings) or _socket(settings, "directory")
    return settings.bind or _socket(settings, instance or instance_name(settings, role))


def directory_of(settings: Settings) -> Callable[[], str]:
    """Where the directory is found. Raises OSError or ValueError when it can't be read."""
    at = endpoint(settings, "directory")
    return lambda: read_endpoint(Path(at.removeprefix("file://"))) if at.startswith("file://") else at


def _meeting(settings: Settings) -> str:
    """Where the nodes of a split worker find each other; "": there is but one."""
    if settings.nnodes == 1:
        return ""
    return meeting_endpoint(settings.master_addr, settings.master_port, settings.node_rank)


def read_endpoint(file: Path) -> str:
    with file.open(encoding="ascii") as opened:
        return opened.read(LONGEST_ENDPOINT).strip()


def _socket(settings: Settings, name: str) -> str:
    path = str((run_dir(settings) / f"{name}.sock").absolute())
    if len(path.encode()) > LONGEST_SOCKET_PATH:
        raise SettingsError([f"run_dir: {path} is longer than the {LONGEST_SOCKET_PATH} bytes of a socket"])
    return f"ipc://{path}"


def sockets_in(folder: Path) -> list[Path]:
    """The sockets of the processes of a mesh."""
    return sorted(folder.glob("*.sock"))


def metrics_port(settings: Settings, role: str) -> int:
    """Port of this process's health server; a port that was set is used as it is. NO_PORT: it has none."""
    return settings.metrics_port or FIRST_METRICS_PORT + (*ROLES, WORKER_NODE).index(role)


def mesh_metrics_port(settings: Settings, role: str, index: int = 0) -> int:
    """Port of the health server of the role's instance `index` under `up`; a port that was set is the first of all."""
    if settings.metrics_port == NO_PORT:
        return NO_PORT
    return (settings.metrics_port or FIRST_METRICS_PORT) + ROLES.index(role) + 10 * index


def served_model_name(settings: Settings) -> str:
    """What clients call the model; never a path of this machine."""
    return settings.served_model_name or Path(settings.model).name


def to_environment(settings: Settings) -> dict[str, str]:
    """The settings for a child process: it reads nothing else and finds the same values. Left out are secrets,
    because an environment can be read from outside, and speculative_config, because its rows are in."""
    environment = {FILE_VARIABLE: "", **dict.fromkeys(VARIABLES, "")}
    for name, value in settings:
        row = ROWS[name]
        if name == "speculative_config" or name in SECRET or value == _default(row):
            continue
        text = json.dumps(value) if row.kind == "json" else str(value)
        environment[PREFIX + name.upper()] = text
    return environment

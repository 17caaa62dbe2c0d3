"""Flags of other servers, and what each is here: one of our settings, nothing to do, or refused with what to write.

The one table for command lines, keys of settings files and docs/migrating.md. Flags for speculation that are keys of
--speculative-config, too, are in speculative_config.py. Ranges are checked by the settings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Foreign:
    """A flag by its spellings. Taken as `row`, taken without effect if its value is among `nothing`, else refused with
    `why`. With `values` and `why`, only these values are taken."""

    names: tuple[str, ...]
    of: str
    row: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    nothing: tuple[str, ...] = ()
    why: str = ""
    # Said where it is taken: what is different here.
    note: str = ""
    switch: bool = False
    reads: Callable[[str], str] | None = None


@dataclass(frozen=True, slots=True)
class Meaning:
    """Our setting and its value; no row: there is nothing to set. `note`: what the user should know."""

    row: str = ""
    value: Any = None
    note: str = ""


_SUFFIXES = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _number(text: str) -> str:
    """As vLLM writes numbers: 8k is 8000, 8K is 8192. What is no number stays, for the setting to refuse."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)([kKmMgG]?)", text)
    return str(int(float(found[1]) * _SUFFIXES[found[2]])) if found else text


def _length(text: str) -> str:
    return "0" if text.lower() in ("auto", "-1", "none") else _number(text)


def _mebibytes(text: str) -> str:
    number = _number(text)
    return str(int(number) >> 20) if number.isdecimal() else text


def _origins(text: str) -> str:
    """vLLM writes a JSON list."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return ",".join(map(str, found)) if isinstance(found, list) else text


def _kv_role(text: str) -> str:
    """Of vLLM's JSON. What is none stays, for the setting to refuse."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    role = found.get("kv_role") if isinstance(found, dict) else None
    return {"kv_producer": "prefill", "kv_consumer": "decode", "kv_both": "all"}.get(str(role), text)


def _flag(names: str, of: str, row: str = "", **more: Any) -> Foreign:
    return Foreign(tuple(names.split()), of, row, **more)


def _switch(names: str, of: str, row: str = "", **more: Any) -> Foreign:
    return _flag(names, of, row, switch=True, **more)


ON, OFF = ("true",), ("false",)
OPPOSITE = {"true": "false", "false": "true"}
ALL = "vLLM, SGLang, FastDeploy, LMDeploy"
ONE_DEVICE = "write --tensor-parallel-size N to split the model, or --workers N for several copies of it"
EXPERTS = "leave it out: --tensor-parallel-size N shares experts out whole"
KV_MEMORY = "write --gpu-memory-utilization SHARE (of the GPU's memory, that the worker may use), or --kv-cache-mb N"
FROM_FOLDER = "leave it out: a quantised folder is read as its config.json says (docs/quantization.md);"
FORMATS = f"{FROM_FOLDER} --quantization wint8 or wint4 codes a dense one at load, --dtype int8 also its inputs"
ONE_ENGINE = "leave it out, or write --executor triton (GPU), compiled (CPU) or plain (PyTorch)"
GRAPHS = "leave it out: a GPU's graphs are captured where they serve; --executor plain runs without any"
NO_TOOLS = "not served: tools and functions"
NO_THINKING = "not served: parting the reasoning from the answer"
NO_LORA = "not served: LoRA adapters; merge them into the model's folder"
NO_GRAMMAR = "not served: answers bound to a grammar or a JSON schema"
NO_IMAGES = "not served: images, audio and video"
NO_OFFLOAD = "not served: weights or KV pages in another memory than the device's"
PAGES = "leave it out: KV pages travel over the mesh's own sockets, or with --page-transport nixl (docs/split.md)"
UP_STARTS_BOTH = "specmesh up starts all workers: --prefill-workers N --decode-workers M"
SPLIT = {"prefill": "prefill", "decode": "decode"}
IN_MODEL_FOLDER = "leave it out: tokenizer and chat template are read from the model's folder"
NO_TLS = "not served: TLS; put a proxy in front (docs/security.md)"
SOCKETS = "leave it out: processes of one machine talk through sockets in --run-dir"
IN_REQUESTS = "leave it out: each request has its own"

FLAGS: tuple[Foreign, ...] = (
    # The model and its names
    _flag("--model", ALL, "model", note="or the first argument: a folder, a GGUF file or a hub id"),
    _flag("--model-path", "SGLang", "model"),
    _flag("--model_name_or_path", "PaddleNLP", "model"),
    _flag("--served-model-name", "vLLM, SGLang, FastDeploy", "served_model_name", note="one name"),
    _flag("--model-name", "LMDeploy", "served_model_name"),
    _flag("--download-dir", "vLLM, SGLang, LMDeploy", "cache_dir"),
    _flag("--dtype", f"{ALL}, PaddleNLP", "dtype",
          values={"auto": "auto", "bfloat16": "bfloat16", "bf16": "bfloat16", "float32": "float32", "float": "float32",
                  "int8": "int8"},
          why="write --dtype bfloat16 (or auto, float32, int8): float16 isn't computed and takes the same memory"),
    _flag("--quantization", "vLLM, SGLang, FastDeploy", "quantization",
          values={"int8": "wint8", "wint8": "wint8", "wint4": "wint4"}, nothing=("", "none"), why=FORMATS),
    _flag("--quant_type", "PaddleNLP", "quantization",
          values={"weight_only_int8": "wint8", "weight_only_int4": "wint4"}, nothing=("", "none"), why=FORMATS),
    _flag("--model-format", "LMDeploy", nothing=("hf",), why=FORMATS),
    _flag("--load-format", "vLLM, SGLang", nothing=("auto", "safetensors"),
          why="not served: files but safetensors and GGUF"),
    _flag("--kv-cache-dtype", "vLLM, SGLang", "kv_cache_dtype",
          values={"auto": "auto", "fp8": "fp8", "fp8_e4m3": "fp8"},
          why="write --kv-cache-dtype fp8: e4m3, without scales"),
    _flag("--quant-policy", "LMDeploy", nothing=("0",),
          why="write --kv-cache-dtype fp8: keys and values in whole numbers aren't served"),
    _flag("--tokenizer", "vLLM, FastDeploy", why=IN_MODEL_FOLDER),
    _flag("--tokenizer-path", "SGLang", why=IN_MODEL_FOLDER),
    _flag("--tokenizer-mode", "vLLM, SGLang", nothing=("auto",), why=IN_MODEL_FOLDER),
    _flag("--chat-template", ALL, why=IN_MODEL_FOLDER),
    _flag("--revision", ALL, why="write --model FOLDER, with that revision in the folder"),
    _switch("--trust-remote-code", ALL, nothing=("true", "false"),
            note="without effect: code of a model's folder is never run"),
    _flag("--generation-config", "vLLM", "generation_config", values={"auto": "auto", "vllm": "vllm"},
          why="write --generation-config auto or --generation-config vllm: another folder's file isn't read"),
    _flag("--sampling-defaults", "SGLang", "generation_config", values={"model": "auto", "openai": "vllm"},
          why="write --generation-config auto or --generation-config vllm"),
    _flag("--override-generation-config", "vLLM", why=IN_REQUESTS),
    _flag("--seed", "vLLM", nothing=("0",), why=IN_REQUESTS),
    _flag("--random-seed", "SGLang", nothing=("0",), why=IN_REQUESTS),
    _flag("--task", "vLLM", nothing=("auto", "generate"), why="not served: embeddings, scores and classes"),
    _flag("--runner", "vLLM", nothing=("auto", "generate"), why="not served: embeddings, scores and classes"),
    # The HTTP server
    _flag("--host", "vLLM, SGLang, FastDeploy", "host", note="default 127.0.0.1"),
    _flag("--port", "vLLM, SGLang, FastDeploy", "port", note="default 8000"),
    _flag("--server-name", "LMDeploy", "host"),
    _flag("--server-port", "LMDeploy", "port"),
    _flag("--api-key", "vLLM, SGLang, FastDeploy", "api_keys", note="several are separated by commas"),
    _flag("--allowed-origins", "vLLM", "cors_origins", reads=_origins, note="a JSON list, or separated by commas"),
    _flag("--allow-origins", "LMDeploy", "cors_origins", reads=_origins, note="separated by commas"),
    _flag("--api-keys", "LMDeploy", "api_keys", note="separated by commas"),
    _flag("--metrics-port", "FastDeploy", "metrics_port", note="the first of four ports"),
    _flag("--max-concurrent-requests", "LMDeploy", "max_waiting"),
    _flag("--max-concurrency", "FastDeploy", why="write --max-waiting N for requests or --max-connections N"),
    _flag("--max-queued-requests", "SGLang", why="write --max-waiting N: it counts running requests, too"),
    _flag("--max-waiting-time", "FastDeploy", why="write --request-timeout S: the longest duration of a request"),
    _flag("--timeout-graceful-shutdown", "FastDeploy", "drain_timeout"),
    _flag("--watchdog-timeout", "SGLang", "kill_stuck_after"),
    _flag("--log-level", "SGLang, LMDeploy", "log_level"),
    _flag("--uvicorn-log-level", "vLLM", why="write --log-level NAME: it is for every process"),
    _switch("--disable-log-requests", "vLLM", nothing=ON, why="not served: prompts are never logged"),
    _switch("--enable-log-requests", "vLLM", nothing=OFF, why="not served: prompts are never logged"),
    _switch("--enable-metrics", "SGLang", nothing=ON, why="leave it out: there are always metrics"),
    _flag("--ssl-keyfile --ssl-certfile", "vLLM, SGLang", why=NO_TLS),
    _switch("--ssl", "LMDeploy", nothing=OFF, why=NO_TLS),
    # Memory and batch
    _flag("--max-model-len", "vLLM, FastDeploy", "max_context", reads=_length),
    _flag("--context-length", "SGLang", "max_context", reads=_length),
    _flag("--session-len", "LMDeploy", "max_context", reads=_length),
    _flag("--total_max_length", "PaddleNLP", "max_context", reads=_length),
    _flag("--max-num-seqs", "vLLM, FastDeploy", "max_sequences"),
    _flag("--max-running-requests", "SGLang", "max_sequences"),
    _flag("--max-batch-size", "LMDeploy", "max_sequences"),
    _flag("--batch_size", "PaddleNLP", "max_sequences"),
    _flag("--max-num-batched-tokens", "vLLM, FastDeploy", "max_step_tokens", reads=_number,
          note="counts draft tokens, too"),
    _flag("--chunked-prefill-size", "SGLang", why="write --max-step-tokens N: it counts draft tokens, too"),
    _flag("--max-prefill-tokens", "SGLang", why="write --max-step-tokens N: it counts draft tokens, too"),
    _flag("--max-prefill-token-num", "LMDeploy", why="write --max-step-tokens N: it counts draft tokens, too"),
    _flag("--block-size", "vLLM, FastDeploy", "page_tokens"),
    _flag("--page-size", "SGLang", "page_tokens"),
    _flag("--cache-block-seq-len", "LMDeploy", "page_tokens"),
    _flag("--kv-cache-memory-bytes", "vLLM", "kv_cache_mb", reads=_mebibytes, note="bytes, rounded down to MiB"),
    _flag("--gpu-memory-utilization", "vLLM, FastDeploy", "gpu_memory_utilization"),
    _flag("--mem-fraction-static", "SGLang", why=KV_MEMORY),
    _flag("--cache-max-entry-count", "LMDeploy", why=KV_MEMORY),
    _flag("--kv-cache-ratio", "FastDeploy", why=KV_MEMORY),
    _flag("--num-gpu-blocks-override", "vLLM, FastDeploy", why=KV_MEMORY),
    _flag("--swap-space", "vLLM, FastDeploy", nothing=("0",), why=NO_OFFLOAD),
    _flag("--cpu-offload-gb", "vLLM, SGLang", nothing=("0",), why=NO_OFFLOAD),
    _switch("--enable-prefix-caching", "vLLM, FastDeploy, LMDeploy", "prefix_cache", note="on by default"),
    _switch("--disable-radix-cache", "SGLang", "prefix_cache", values=OPPOSITE),
    _switch("--enable-chunked-prefill", "vLLM, FastDeploy", nothing=ON,
            why="write --max-step-tokens N: prompts are always computed in chunks, beside answers"),
    _switch("--enable-mixed-chunk", "SGLang", nothing=ON, why="leave it out: it is always on"),
    _flag("--scheduling-policy", "vLLM", nothing=("fcfs", "priority"), why="leave it out: by priority, then arrival"),
    _flag("--schedule-policy", "SGLang", nothing=("fcfs",), why="leave it out: by priority, then arrival"),
    # Devices and processes
    _flag("--tensor-parallel-size -tp", "vLLM, SGLang, FastDeploy", "tensor_parallel_size"),
    _flag("--tp", "SGLang, LMDeploy", "tensor_parallel_size"),
    _flag("--tp-size", "SGLang", "tensor_parallel_size"),
    _flag("--pipeline-parallel-size -pp", "vLLM, SGLang", nothing=("1",), why=ONE_DEVICE),
    _flag("--data-parallel-size -dp", "vLLM, SGLang, FastDeploy", "workers"),
    _flag("--dp --dp-size", "SGLang, LMDeploy", "workers"),
    _flag("--ep --ep-size", "SGLang, LMDeploy", nothing=("1",), why=EXPERTS),
    _switch("--enable-expert-parallel", "vLLM, FastDeploy", nothing=("true", "false"),
            note="without effect: --tensor-parallel-size shares experts out whole"),
    _flag("--nnodes", "vLLM, SGLang, LMDeploy", "nnodes"),
    _flag("--node-rank", "vLLM, SGLang, LMDeploy", "node_rank"),
    _flag("--master-addr", "vLLM", "master_addr", note="no default: it is not 127.0.0.1"),
    _flag("--master-port", "vLLM", "master_port"),
    _flag("--dist-init-addr --nccl-init-addr", "SGLang", "master_addr"),
    _switch("--headless", "vLLM", nothing=("true", "false"),
            note="without effect: `--node-rank 0` serves, other nodes never do"),
    _flag("--ips", "FastDeploy",
          why="write on each machine --nnodes N --node-rank K --master-addr FIRST; K is its place in the list, from 0"),
    _switch("--disable-custom-all-reduce", "vLLM, SGLang, FastDeploy", nothing=ON,
            why="leave it out: sums are gloo's or NCCL's"),
    _flag("--distributed-executor-backend", "vLLM", nothing=("mp", "uni"), why=ONE_DEVICE),
    _flag("--api-server-count", "vLLM", "streamers",
          note="FastDeploy's `--workers`, too: here these have a model each"),
    _flag("--engine-worker-queue-port --cache-queue-port", "FastDeploy", why=SOCKETS),
    _flag("--splitwise-role", "FastDeploy", "phase", values={"mixed": "all", **SPLIT}, note=UP_STARTS_BOTH),
    _flag("--disaggregation-mode", "SGLang", "phase", values={"null": "all", **SPLIT}, note=UP_STARTS_BOTH),
    _flag("--role", "LMDeploy", "phase", values={"hybrid": "all", **SPLIT}, note=UP_STARTS_BOTH),
    _flag("--kv-transfer-config", "vLLM", "phase", reads=_kv_role,
          note="its `kv_role`: `kv_producer` is `prefill`, `kv_consumer` is `decode`, `kv_both` is `all`. Its"
               " `kv_connector` isn't read: `--page-transport nixl` for `NixlConnector`, without its side channel"),
    _flag("--disaggregation-transfer-backend", "SGLang", "page_transport", values={"nixl": "nixl"}, why=PAGES),
    _flag("--disaggregation-bootstrap-port --disaggregation-ib-device", "SGLang", why=PAGES),
    _flag("--cache-transfer-protocol --pd-comm-port --rdma-comm-ports", "FastDeploy", why=PAGES),
    _flag("--migration-backend", "LMDeploy", why=PAGES),
    _flag("--device", "vLLM, SGLang, LMDeploy", "executor",
          values={"auto": "auto", "cuda": "triton", "cpu": "compiled"}, why=ONE_ENGINE),
    _flag("--backend", "LMDeploy", why=ONE_ENGINE),
    _flag("--attention-backend", "vLLM, SGLang", why=ONE_ENGINE),
    _switch("--enforce-eager", "vLLM", nothing=OFF, why=GRAPHS),
    _switch("--disable-cuda-graph", "SGLang", nothing=OFF, why=GRAPHS),
    _switch("--eager-mode", "LMDeploy", nothing=OFF, why=GRAPHS),
    _switch("--use-cudagraph", "FastDeploy", nothing=ON, why=GRAPHS),
    _flag("--compilation-config", "vLLM", why=GRAPHS),
    _flag("--graph-optimization-config", "FastDeploy", why=GRAPHS),
    _flag("--load-choices", "FastDeploy", why="leave it out: there is one way of loading"),
    _switch("--async-scheduling", "vLLM", nothing=OFF, why="leave it out: there is one way of scheduling"),
    # Speculation, beside --speculative-config and its keys
    _flag("--speculative-config", "vLLM, FastDeploy", "speculative_config", note="the same JSON"),
    _flag("--num-speculative-tokens", "older vLLM", "num_speculative_tokens"),
    _flag("--speculative-model", "older vLLM", "draft_model"),
    _flag("--ngram-prompt-lookup-max", "older vLLM", "max_ngram_size"),
    _flag("--ngram-prompt-lookup-min", "older vLLM", "min_ngram_size"),
    _flag("--speculative-disable-by-batch-size", "older vLLM",
          why="write --method auto: it drafts less in large batches"),
    _flag("--speculative-draft-model-path", "SGLang", "draft_model"),
    _flag("--speculative-num-steps", "SGLang", "num_model_steps"),
    _flag("--speculative-eagle-topk", "SGLang", nothing=("1",),
          why="write --draft-trees: trees of the most probable tokens, or --draft-tree-shape JSON for a fixed one"),
    _flag("--speculative-token-map", "SGLang", why="leave it out: a head's own vocabulary is read from its folder"),
    _flag("--speculative-draft-model-revision", "SGLang", nothing=("main",),
          why="write --draft-model FOLDER, with that revision in the folder"),
    _flag("--speculative-draft-load-format", "SGLang", nothing=("auto", "safetensors"),
          why="not served: heads in other files than safetensors"),
    _flag("--speculative-draft-model-quantization", "SGLang", "draft_dtype", values={"w8a8_int8": "int8"},
          nothing=("unquant", "none"),
          why="write --draft-dtype int8, or leave it out: a folder's own format is read"),
    _flag("--speculative-accept-threshold-single --speculative-accept-threshold-acc", "SGLang", nothing=("1.0", "1"),
          why="write --verify-strategy typical: it accepts by thresholds, too, and changes the text"),
    _switch("--speculative-use-rejection-sampling", "SGLang", "verify_strategy", values={"true": "rejection"},
            nothing=OFF),
    _switch("--speculative-adaptive", "SGLang", nothing=OFF,
            why="write --method auto: its drafts are as long as pays"),
    _flag("--speculative-adaptive-config", "SGLang", why="leave it out: --method auto measures what pays"),
    _switch("--enable-multi-layer-eagle", "SGLang", nothing=("true", "false"),
            note="without effect: a head has the layers that its folder has"),
    _flag("--speculative-dflash-block-size", "SGLang", why="not served: heads of DFlash; --method block is like it"),
    _flag("--speculative-draft-window-size", "SGLang", why="not served: a drafter that reads the end of a text only"),
    _flag("--speculative-attention-mode", "SGLang", nothing=("prefill",),
          why="leave it out: prompts and drafts are rows of one pass"),
    _flag("--speculative-draft-attention-backend", "SGLang", why=ONE_ENGINE),
    _flag("--speculative-moe-runner-backend", "SGLang", nothing=("auto",), why=ONE_ENGINE),
    _flag("--speculative-moe-a2a-backend", "SGLang", nothing=("none",), why=ONE_DEVICE),
    _flag("--speculative-ngram-max-match-window-size", "SGLang", "max_ngram_size"),
    _flag("--speculative-ngram-min-match-window-size", "SGLang", "min_ngram_size"),
    _flag("--speculative-ngram-max-trie-depth", "SGLang", "max_ngram_size"),
    _flag("--speculative-ngram-match-type", "SGLang", "ngram_prefers", values={"bfs": "recent", "prob": "frequent"},
          why="write --ngram-prefers recent or --ngram-prefers frequent"),
    _flag("--speculative-ngram-min-bfs-breadth --speculative-ngram-max-bfs-breadth --speculative-ngram-branch-length",
          "SGLang", nothing=("1",), why="leave it out: a draft from text is a chain"),
    _flag("--speculative-ngram-capacity", "SGLang", why="write --store-mb N: MiB for learned text"),
    _flag("--speculative-ngram-external-corpus-path", "SGLang",
          why="leave it out: a running server takes it from `specmesh corpus add NAME PATH`"),
    _flag("--speculative-ngram-external-corpus-max-tokens --speculative-ngram-external-sam-budget", "SGLang",
          nothing=("0",), why="leave it out: a caller's corpora may take a quarter of store_mb"),
    # What isn't served
    _switch("--enable-lora", "vLLM, SGLang", nothing=OFF, why=NO_LORA),
    _flag("--lora-modules --lora-paths --adapters", "vLLM, SGLang, LMDeploy", why=NO_LORA),
    _switch("--enable-auto-tool-choice", "vLLM", nothing=OFF, why=NO_TOOLS),
    _flag("--tool-call-parser", ALL, why=NO_TOOLS),
    _flag("--reasoning-parser", ALL, why=NO_THINKING),
    _flag("--guided-decoding-backend", "vLLM, FastDeploy", nothing=("auto", "off"), why=NO_GRAMMAR),
    _flag("--grammar-backend", "SGLang", nothing=("none",), why=NO_GRAMMAR),
    _flag("--limit-mm-per-prompt --mm-processor-kwargs", "vLLM, FastDeploy", why=NO_IMAGES),
    _switch("--enable-mm --enable-multimodal", "FastDeploy, SGLang", nothing=OFF, why=NO_IMAGES),
)  # fmt: skip


def key_of(flag: str) -> str:
    """As settings are named: no dashes before it, underscores within."""
    return flag.lstrip("-").replace("-", "_")


FOREIGN: dict[str, Foreign] = {key_of(name): flag for flag in FLAGS for name in flag.names}
# -tp is --tp.
SPELLED: dict[str, list[str]] = {
    key: [name for flag in FLAGS for name in flag.names if key_of(name) == key] for key in FOREIGN
}


def meant(key: str, value: Any) -> Meaning:
    """What a key of FOREIGN asks for. Raises ValueError with what to write instead, or what is missing."""
    flag = FOREIGN[key]
    text = _text(value)
    if text.lower() in flag.nothing or (value is None and not flag.row):
        return Meaning(note="" if text == "false" else flag.note)
    if text.lower() in flag.values:
        return Meaning(flag.row, flag.values[text.lower()])
    if flag.why:
        raise ValueError(flag.why)
    return Meaning(flag.row, flag.reads(text) if flag.reads else value)


def here(flag: Foreign) -> str:
    """What it is here, in words, for docs/migrating.md."""
    said = []
    if flag.row:
        values = ", ".join(f"`{theirs}` is `{ours}`" for theirs, ours in flag.values.items() if theirs != ours)
        said.append(f"`--{flag.row.replace('_', '-')}`" + (f": {values}" if values else ""))
    if flag.nothing:
        values = " or ".join(f"`{value}`" if value else "empty" for value in flag.nothing)
        said.append("taken" if {*flag.nothing} == {"true", "false"} else f"taken if it is {values}")
    if flag.note:
        said.append(flag.note)
    if flag.why:
        said.append(("otherwise refused: " if said else "refused: ") + flag.why)
    return "; ".join(said)


def _text(value: Any) -> str:
    """As it would be written on a command line; a switch of a file is true or false."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)

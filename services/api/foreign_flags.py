"""Flags of other servers, and what each is here: one of our settings, nothing to do, or refused with what to write.

The one table for command lines, keys of settings files and `specmesh explain`. Flags for speculation that are keys of
--speculative-config, too, are in speculative_config.py. Ranges are checked by the settings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from services.api.methods import AUTO, METHODS, NAIVE


@dataclass(frozen=True, slots=True)
class Foreign:
    """A flag by its spellings. Taken as `row`, taken without effect if its value is among `nothing`, else refused with
    `why`. With `values` and `why`, only these values are taken. `idle`: all other values are taken without effect."""

    names: tuple[str, ...]
    of: str
    row: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    nothing: tuple[str, ...] = ()
    idle: bool = False
    why: str = ""
    # Said where it is taken: what is different here.
    note: str = ""
    # Value -> what is told at the start where it is taken.
    notes: Mapping[str, str] = field(default_factory=dict)
    switch: bool = False
    # The value where none is written.
    alone: str = ""
    # Raises ValueError with what to write instead.
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


def _sequences(text: str) -> str:
    """PaddleNLP's flag. llama-server's of that name counts tokens, 2048 by default. A number that may be either is
    refused."""
    if text.isdecimal() and int(text) >= 256:
        raise ValueError(
            "write --max-sequences N for that number of sequences (as in PaddleNLP), or leave it out: as a number of"
            " tokens (as in llama-server) it has no effect here"
        )
    return text


def _one_name(text: str) -> str:
    if "," in text:
        raise ValueError("write --served-model-name NAME: a model has one name")
    return text


def _drafter(text: str) -> str:
    if text.lower().endswith(".gguf"):
        raise ValueError("write --draft-model FOLDER: drafters are read from safetensors, not from GGUF files")
    return text


def _template_file(text: str) -> str:
    """vLLM also takes the template itself."""
    if "{" in text:
        raise ValueError("write --chat-template FILE, with the template in that file")
    return text


# llama-server's methods: aliases of ours, and none.
SPEC_TYPES = {"none": NAIVE} | {
    alias: method.name
    for method in METHODS.values()
    for alias in method.aliases
    if alias.startswith(("draft-", "ngram-"))
}


def _spec_type(text: str) -> str:
    """llama-server takes several; a method that asks several drafters is `auto`, which uses a model's own MTP block
    only if it is set as the draft model. What is unknown stays, for the setting to refuse."""
    types = {*text.lower().split(",")}
    if len(types) < 2 or not types <= {*SPEC_TYPES} - {"none"}:
        return text
    if "draft-mtp" in types:
        raise ValueError("write --method auto, and --draft-model own for the model's MTP block")
    return AUTO


def _flag(names: str, of: str, row: str = "", **more: Any) -> Foreign:
    return Foreign(tuple(names.split()), of, row, **more)


def _switch(names: str, of: str, row: str = "", **more: Any) -> Foreign:
    return _flag(names, of, row, switch=True, **more)


ON, OFF = ("true",), ("false",)
OPPOSITE = {"true": "false", "false": "true"}
ALL = "vLLM, SGLang, FastDeploy, LMDeploy"
LLAMA, OLDER_LLAMA = "llama.cpp", "older llama.cpp"
ONE_DEVICE = "write --tensor-parallel-size N to split the model, or --workers N for several copies of it"
EXPERTS = "leave it out: with --tensor-parallel-size N each process has a part of the experts, each expert whole"
KV_MEMORY = "write --gpu-memory-utilization SHARE (the share of the GPU's memory to use), or --kv-cache-mb N"
FROM_FOLDER = "leave it out: a quantised folder is read as its config.json says (docs/use/quantization.md);"
FORMATS = (
    f"{FROM_FOLDER} --quantization wint8 or wint4 quantises the weights of a dense one while it is loaded,"
    " --dtype int8 weights and activations"
)
ONE_ENGINE = "leave it out, or write --executor triton (GPU), compiled (CPU) or plain (PyTorch)"
GRAPHS = "leave it out: on a GPU, steps up to a certain size are CUDA graphs; --executor plain uses none"
NO_TOOLS = "not served: tools that the server runs; requests bring tools, and clients run them (docs/use/tools.md)"
# Names of other servers for the formats of tool calls and of reasoning.
TOOL_FORMATS = {
    "qwen": "hermes", "qwen25": "hermes", "qwen2d5": "hermes", "qwen3": "hermes", "qwen3_xml": "qwen3_coder",
    "llama3": "llama3_json", "deepseekv3": "deepseek_v3", "deepseekv31": "deepseek_v31", "ernie-x1": "ernie45",
    "ernie_x1": "ernie45", "ernie-45-vl-thinking": "ernie45", "glm": "glm45", "glm47": "glm45", "gpt-oss": "openai",
}  # fmt: skip
REASONING_FORMATS = {
    "deepseek-r1": "deepseek_r1", "deepseek-v3": "qwen3", "deepseek_v3": "qwen3", "qwen-qwq": "deepseek_r1",
    "qwen3-thinking": "deepseek_r1", "ernie-x1": "ernie45", "ernie_x1": "ernie45", "ernie-45-vl": "ernie45",
    "ernie-45-vl-thinking": "ernie45", "glm45": "qwen3", "glm47": "qwen3", "kimi_k2": "qwen3",
    "gpt-oss": "openai_gptoss",
}  # fmt: skip
NO_LORA = "not served: LoRA adapters; merge them into the model's folder"
NO_GRAMMAR = "not served: a grammar or schema for all answers; requests bring their own (docs/use/structured-output.md)"
LLGUIDANCE = "leave it out: llguidance compiles the grammars of requests (docs/use/structured-output.md)"
NO_IMAGES = "not served: images, audio and video"
NO_OFFLOAD = "not served: weights or KV pages outside of the device's memory"
PAGES = "leave it out: KV pages travel over the mesh, or with --page-transport nixl (docs/operate/split.md)"
PAGES_TRAVEL = "without effect: KV pages travel over the mesh, or with --page-transport nixl"
UP_STARTS_BOTH = "`specmesh up` starts workers of both phases: `--prefill-workers N --decode-workers M`"
SPLIT = {"prefill": "prefill", "decode": "decode"}
IN_A_MESH_OF_ITS_OWN = (
    "knows no workers of another `specmesh up`, and computes all by itself; one command starts both phases:"
    " --prefill-workers 1 --decode-workers 1"
)
OF_ONE_PHASE = dict.fromkeys(SPLIT, IN_A_MESH_OF_ITS_OWN)
NO_REDIS = "without effect: streamers share requests out among the workers of their mesh, without Redis"
ON_EACH_MACHINE = (
    "write --nnodes M --node-rank K --master-addr FIRST --keys-dir FOLDER --tensor-parallel-size N on each of M"
    " machines: K is its place, from 0, FIRST the address of the first, N the GPUs of all (docs/operate/parallel.md)"
)
READ_IN_FP8 = "a folder in fp8 is read as its config.json says; a dense one stays dense"
LENGTH_OF_ANSWERS = "without effect: requests set the length of their answers (max_tokens)"
KERNELS = "without effect: an executor has one kernel for each operation"
IN_MODEL_FOLDER = "leave it out: the tokenizer is read from the model's folder"
BY_PRIORITY = "leave it out: requests run by priority, then by arrival"
SOCKETS = "without effect: the processes of a machine use sockets in --run-dir, no ports"
IN_REQUESTS = "leave it out: set it in each request"
EMBEDDINGS = "without effect: /v1/embeddings is served beside generation"
NO_SCORES = "not served: scores and classes; /v1/embeddings needs no flag"
DOWNLOADED = "write --model FILE, with the file downloaded"
ROPE = "leave it out: rope is read from the GGUF file or config.json"
WITH_THE_MODEL = "without effect: a drafter runs on the model's device, with its threads"
BY_AUTO = "without effect: --method auto drafts as many tokens as pay, by measured acceptance"
HAS_CORES = "write --threads N for the number of threads, or set the cores of each role with --cores"

ROPE_FLAGS = (
    "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor"
    " --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast"
)

FLAGS: tuple[Foreign, ...] = (
    # The model and its names
    _flag("--model -m", f"{ALL}, {LLAMA}", "model", note="or the first argument: a folder, a GGUF file or a hub id"),
    _flag("--model-path", "SGLang", "model"),
    _flag("--model_name_or_path", "PaddleNLP", "model"),
    _flag("--served-model-name", "vLLM, SGLang, FastDeploy", "served_model_name", note="one name"),
    _flag("--model-name", "LMDeploy", "served_model_name"),
    _flag("--download-dir", "vLLM, SGLang, LMDeploy", "cache_dir"),
    _flag("--dtype", f"{ALL}, PaddleNLP", "dtype",
          values={"auto": "auto", "bfloat16": "bfloat16", "bf16": "bfloat16", "float32": "float32", "float": "float32",
                  "int8": "int8"},
          why="write --dtype bfloat16 (or auto, float32, int8): float16 isn't supported, and takes the same memory"),
    _flag("--quantization", "vLLM, SGLang, FastDeploy", "quantization",
          values={"int8": "wint8", "wint8": "wint8", "wint4": "wint4"}, nothing=("", "none"), why=FORMATS),
    _flag("--quant_type", "PaddleNLP", "quantization",
          values={"weight_only_int8": "wint8", "weight_only_int4": "wint4", "a8w8_fp8": "none"},
          notes={"a8w8_fp8": READ_IN_FP8}, nothing=("", "none"), why=FORMATS),
    _flag("--model-format", "LMDeploy", nothing=("hf",), why=FORMATS),
    _flag("--load-format", "vLLM, SGLang", nothing=("auto", "safetensors"),
          why="not served: files other than safetensors and GGUF; specmesh model convert reads .bin and .pt"),
    _flag("--kv-cache-dtype", "vLLM, SGLang", "kv_cache_dtype",
          values={"auto": "auto", "fp8": "fp8", "fp8_e4m3": "fp8"},
          why="write --kv-cache-dtype fp8: it is e4m3, without scales"),
    _flag("--quant-policy", "LMDeploy", nothing=("0",),
          why="write --kv-cache-dtype fp8: keys and values in int8 or int4 aren't served"),
    _flag("--tokenizer", "vLLM, FastDeploy", why=IN_MODEL_FOLDER),
    _flag("--tokenizer-path", "SGLang", why=IN_MODEL_FOLDER),
    _flag("--tokenizer-mode", "vLLM, SGLang", nothing=("auto",), why=IN_MODEL_FOLDER),
    _flag("--chat-template", f"{ALL}, {LLAMA}", "chat_template", reads=_template_file, note="a file with the template"),
    _flag("--revision", ALL, why="write --model FOLDER, with that revision in the folder"),
    _switch("--trust-remote-code", ALL, nothing=("true", "false"),
            note="without effect: code of a model's folder is never run"),
    _flag("--generation-config", "vLLM", "generation_config", values={"auto": "auto", "vllm": "vllm"},
          why="write --generation-config auto or --generation-config vllm: another folder's file isn't read"),
    _flag("--sampling-defaults", "SGLang", "generation_config", values={"model": "auto", "openai": "vllm"},
          why="write --generation-config auto or --generation-config vllm"),
    _flag("--override-generation-config", "vLLM", why=IN_REQUESTS),
    _flag("--seed -s", "vLLM, llama.cpp", nothing=("0", "-1"), why=IN_REQUESTS),
    _flag("--random-seed", "SGLang", nothing=("0",), why=IN_REQUESTS),
    _flag("--task", "vLLM", nothing=("auto", "generate", "embed", "embedding"), why=NO_SCORES),
    _flag("--runner", "vLLM", nothing=("auto", "generate", "pooling"), why=NO_SCORES),
    _switch("--is-embedding", "SGLang", nothing=("true", "false"), note=EMBEDDINGS),
    # The HTTP server
    _flag("--host", "vLLM, SGLang, FastDeploy, llama.cpp", "host", note="default 127.0.0.1"),
    _flag("--port", "vLLM, SGLang, FastDeploy, llama.cpp", "port", note="default 8000"),
    _flag("--server-name", "LMDeploy", "host"),
    _flag("--server-port", "LMDeploy", "port"),
    _flag("--api-key", "vLLM, SGLang, FastDeploy, llama.cpp", "api_keys", note="several are separated by commas"),
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
    _switch("--disable-log-requests", "vLLM", nothing=ON, why="not served: prompts in the log"),
    _switch("--enable-log-requests", "vLLM", nothing=OFF, why="not served: prompts in the log"),
    _switch("--enable-metrics", "SGLang, LMDeploy", nothing=ON, why="leave it out: there are always metrics"),
    _flag("--otlp-traces-endpoint --oltp-traces-endpoint", "vLLM, SGLang", "otlp_traces_endpoint",
          note="over HTTP: http://HOST:4318/v1/traces"),
    _flag("--collect-detailed-traces", "vLLM", idle=True, note="without effect: a trace has each phase of its request"),
    _switch("--enable-trace", "SGLang", nothing=("true", "false"),
            note="without effect: --otlp-traces-endpoint is enough"),
    _flag("--ssl-certfile", "vLLM, SGLang", "ssl_certfile"),
    _flag("--ssl-keyfile", "vLLM, SGLang", "ssl_keyfile"),
    _flag("--ssl-keyfile-password", "vLLM, SGLang", why="write the key to a file without a passphrase (mode 0600)"),
    _flag("--ssl-ca-certs", "vLLM, SGLang", why="not served: certificates of clients; give them API keys"),
    _flag("--ssl-cert-reqs", "vLLM", nothing=("0",), why="not served: certificates of clients; give them API keys"),
    _switch("--enable-ssl-refresh", "vLLM, SGLang", nothing=ON,
            why="leave it out: the certificate is read again when it changes"),
    _switch("--ssl", "LMDeploy", nothing=OFF, why="write --ssl-certfile FILE --ssl-keyfile FILE"),
    # Memory and batch
    _flag("--max-model-len", "vLLM, FastDeploy", "max_context", reads=_length),
    _flag("--context-length", "SGLang", "max_context", reads=_length),
    _flag("--session-len", "LMDeploy", "max_context", reads=_length),
    _flag("--total_max_length", "PaddleNLP", "max_context", reads=_length),
    _flag("--max-num-seqs", "vLLM, FastDeploy", "max_sequences"),
    _flag("--max-running-requests", "SGLang", "max_sequences"),
    _flag("--max-batch-size", "LMDeploy", "max_sequences"),
    _flag("--batch_size", "PaddleNLP", "max_sequences", reads=_sequences,
          note="below 256; llama-server's `--batch-size` is `-b` here"),
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
    _flag("--kv-cache-ratio", "FastDeploy", idle=True, note="without effect: prompts and answers share all KV pages"),
    _flag("--num-gpu-blocks-override", "vLLM, FastDeploy", why=KV_MEMORY),
    _flag("--swap-space", "vLLM, FastDeploy", nothing=("0",), why=NO_OFFLOAD),
    _flag("--cpu-offload-gb", "vLLM, SGLang", nothing=("0",), why=NO_OFFLOAD),
    _switch("--enable-prefix-caching", "vLLM, FastDeploy, LMDeploy", "prefix_cache", note="on by default"),
    _switch("--disable-radix-cache", "SGLang", "prefix_cache", values=OPPOSITE),
    _switch("--enable-chunked-prefill", "vLLM, FastDeploy", nothing=ON,
            why="write --max-step-tokens N: prompts are always computed in chunks, beside answers"),
    _switch("--enable-mixed-chunk", "SGLang", nothing=ON, why="leave it out: it is always on"),
    _flag("--scheduling-policy", "vLLM", nothing=("fcfs", "priority"), why=BY_PRIORITY),
    _flag("--schedule-policy", "SGLang", nothing=("fcfs",), why=BY_PRIORITY),
    # Devices and processes
    _flag("--tensor-parallel-size -tp", "vLLM, SGLang, FastDeploy", "tensor_parallel_size"),
    _flag("--tp", "SGLang, LMDeploy", "tensor_parallel_size"),
    _flag("--tp-size", "SGLang", "tensor_parallel_size"),
    _flag("--pipeline-parallel-size -pp", "vLLM, SGLang", nothing=("1",), why=ONE_DEVICE),
    _flag("--data-parallel-size -dp", "vLLM, SGLang, FastDeploy", "workers"),
    _flag("--dp --dp-size", "SGLang, LMDeploy", "workers"),
    _flag("--ep --ep-size", "SGLang, LMDeploy", nothing=("1",), why=EXPERTS),
    _switch("--enable-expert-parallel", "vLLM, FastDeploy", nothing=("true", "false"),
            note="without effect: --tensor-parallel-size always divides experts so, each one whole"),
    _flag("--nnodes", "vLLM, SGLang, LMDeploy", "nnodes"),
    _flag("--node-rank", "vLLM, SGLang, LMDeploy", "node_rank"),
    _flag("--master-addr", "vLLM", "master_addr", note="has no default (vLLM's is 127.0.0.1)"),
    _flag("--master-port", "vLLM", "master_port"),
    _flag("--dist-init-addr --nccl-init-addr", "SGLang", "master_addr"),
    _switch("--headless", "vLLM", nothing=("true", "false"),
            note="without effect: only the node with `--node-rank 0` serves HTTP"),
    _flag("--ips", "FastDeploy, PaddleNLP", why=ON_EACH_MACHINE),
    _flag("--gpus", "PaddleNLP",
          why="write --tensor-parallel-size N for that number of GPUs; CUDA_VISIBLE_DEVICES says which"),
    _switch("--disable-custom-all-reduce", "vLLM, SGLang, FastDeploy", nothing=ON,
            why="leave it out: all-reduce is always that of gloo or NCCL"),
    _flag("--distributed-executor-backend", "vLLM", nothing=("mp", "uni"), why=ONE_DEVICE),
    _flag("--api-server-count", "vLLM", "streamers",
          note="so is FastDeploy's `--workers`: here `--workers N` starts N copies of the model"),
    _flag("--engine-worker-queue-port --cache-queue-port", "FastDeploy", idle=True, note=SOCKETS),
    _flag("--scheduler-name --scheduler-host --scheduler-port --scheduler-db --scheduler-password --scheduler-topic"
          " --scheduler-ttl", "FastDeploy", idle=True, note=NO_REDIS),
    _flag("--splitwise-role", "FastDeploy", "phase", values={"mixed": "all", **SPLIT}, note=UP_STARTS_BOTH,
          notes=OF_ONE_PHASE),
    _flag("--disaggregation-mode", "SGLang", "phase", values={"null": "all", **SPLIT}, note=UP_STARTS_BOTH,
          notes=OF_ONE_PHASE),
    _flag("--role", "LMDeploy", "phase", values={"hybrid": "all", **SPLIT}, note=UP_STARTS_BOTH, notes=OF_ONE_PHASE),
    _flag("--kv-transfer-config", "vLLM", "phase", reads=_kv_role,
          note="its `kv_role`: `kv_producer` is `prefill`, `kv_consumer` is `decode`, `kv_both` is `all`. Its"
               " `kv_connector` isn't read: for `NixlConnector` write `--page-transport nixl`, which needs no side"
               " channel"),
    _flag("--disaggregation-transfer-backend", "SGLang", "page_transport", values={"nixl": "nixl"}, why=PAGES),
    _flag("--disaggregation-bootstrap-port --disaggregation-ib-device", "SGLang", why=PAGES),
    _flag("--cache-transfer-protocol --pd-comm-port --rdma-comm-ports", "FastDeploy", idle=True, note=PAGES_TRAVEL),
    _flag("--migration-backend", "LMDeploy", why=PAGES),
    _flag("--device -dev", "vLLM, SGLang, LMDeploy, llama.cpp", "executor",
          values={"auto": "auto", "cuda": "triton", "cpu": "compiled", "none": "compiled"}, why=ONE_ENGINE),
    _flag("--backend", "LMDeploy", idle=True,
          note="without effect: --executor chooses the implementation, by default the fastest that runs here"),
    _flag("--attention-backend", "vLLM, SGLang", why=ONE_ENGINE),
    _switch("--enforce-eager", "vLLM", nothing=OFF, why=GRAPHS),
    _switch("--disable-cuda-graph", "SGLang", nothing=OFF, why=GRAPHS),
    _switch("--eager-mode", "LMDeploy", nothing=OFF, why=GRAPHS),
    _switch("--use-cudagraph", "FastDeploy", nothing=ON, why=GRAPHS),
    _flag("--compilation-config", "vLLM", why=GRAPHS),
    _flag("--graph-optimization-config", "FastDeploy", why=GRAPHS),
    # PaddleNLP's predictor.py and export_model.py
    _flag("--mode", "PaddleNLP", nothing=("dynamic",), note="without effect: a model is served from its folder",
          why="not served: static graphs; name the folder that the model was exported from, and leave this out"),
    _flag("--inference_model --append_attn --block_attn --mla_use_matrix_absorption", "PaddleNLP", idle=True,
          alone="true", note=KERNELS),
    _flag("--weight_block_size", "PaddleNLP", why="leave it out: the size of blocks is read from config.json"),
    _flag("--max_length", "PaddleNLP", idle=True, note=LENGTH_OF_ANSWERS),
    _flag("--output_path", "PaddleNLP", why="leave it out: nothing is exported; a model is served from its folder"),
    _flag("--load-choices", "FastDeploy", why="leave it out: there is only one way to load a model"),
    _switch("--async-scheduling", "vLLM", nothing=OFF, why="leave it out: there is only one scheduler"),
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
    _flag("--speculative-token-map", "SGLang", why="leave it out: the map is read from the head's folder"),
    _flag("--speculative-draft-model-revision", "SGLang", nothing=("main",),
          why="write --draft-model FOLDER, with that revision in the folder"),
    _flag("--speculative-draft-load-format", "SGLang", nothing=("auto", "safetensors"),
          why="not served: heads in other files than safetensors; specmesh model convert reads .bin and .pt"),
    _flag("--speculative-draft-model-quantization", "SGLang", "draft_dtype", values={"w8a8_int8": "int8"},
          nothing=("unquant", "none"),
          why="write --draft-dtype int8, or leave it out: a folder's own format is read"),
    _flag("--speculative-accept-threshold-single --speculative-accept-threshold-acc", "SGLang", nothing=("1.0", "1"),
          why="write --verify-strategy typical: it accepts by thresholds, too, and changes the text"),
    _switch("--speculative-use-rejection-sampling", "SGLang", "verify_strategy", values={"true": "rejection"},
            nothing=OFF),
    _switch("--speculative-adaptive", "SGLang", nothing=OFF,
            why="write --method auto: it adapts the draft length"),
    _flag("--speculative-adaptive-config", "SGLang",
          why="leave it out: --method auto adapts the draft length by what it measures"),
    _switch("--enable-multi-layer-eagle", "SGLang", nothing=("true", "false"),
            note="without effect: a head has the layers that its folder has"),
    _flag("--speculative-dflash-block-size", "SGLang", why="leave it out: a head's folder says it"),
    _flag("--speculative-draft-window-size", "SGLang", why="not served: a drafter that reads only the end of a text"),
    _flag("--speculative-attention-mode", "SGLang", nothing=("prefill",),
          why="leave it out: prompts and drafts are computed in the same forward pass"),
    _flag("--speculative-draft-attention-backend", "SGLang", why=ONE_ENGINE),
    _flag("--speculative-moe-runner-backend", "SGLang", nothing=("auto",), why=ONE_ENGINE),
    _flag("--speculative-moe-a2a-backend", "SGLang", nothing=("none",), why=ONE_DEVICE),
    _flag("--speculative-ngram-max-match-window-size", "SGLang", "max_ngram_size"),
    _flag("--speculative-ngram-min-match-window-size", "SGLang", "min_ngram_size"),
    _flag("--speculative-ngram-max-trie-depth", "SGLang", "max_ngram_size"),
    _flag("--speculative-ngram-match-type", "SGLang", nothing=("bfs",),
          why="write --method suffix: it drafts what followed most often"),
    _flag("--speculative-ngram-min-bfs-breadth --speculative-ngram-max-bfs-breadth --speculative-ngram-branch-length",
          "SGLang", nothing=("1",), why="leave it out: a draft of the method ngram is a chain, never a tree"),
    _flag("--speculative-ngram-capacity", "SGLang", why="write --store-mb N: MiB for learned text"),
    _flag("--speculative-ngram-external-corpus-path", "SGLang",
          why="leave it out: add it to the running server with `specmesh corpus add NAME PATH`"),
    _flag("--speculative-ngram-external-corpus-max-tokens --speculative-ngram-external-sam-budget", "SGLang",
          nothing=("0",), why="leave it out: a caller's corpora may take a quarter of store_mb"),
    # What isn't served
    _switch("--enable-lora", "vLLM, SGLang", nothing=OFF, why=NO_LORA),
    _flag("--lora-modules --lora-paths --adapters", "vLLM, SGLang, LMDeploy", why=NO_LORA),
    _switch("--enable-auto-tool-choice", "vLLM", nothing=("true", "false"),
            note="without effect: a request with tools may always call them"),
    _flag("--tool-call-parser", ALL, "tool_call_parser", values=TOOL_FORMATS),
    _flag("--reasoning-parser", ALL, "reasoning_parser", values=REASONING_FORMATS),
    _flag("--guided-decoding-backend", "vLLM, FastDeploy", nothing=("auto", "off", "guidance"), why=LLGUIDANCE),
    _flag("--grammar-backend", "SGLang", nothing=("none", "llguidance"), why=LLGUIDANCE),
    _flag("--limit-mm-per-prompt --mm-processor-kwargs", "vLLM, FastDeploy", why=NO_IMAGES),
    _switch("--enable-mm --enable-multimodal", "FastDeploy, SGLang", nothing=OFF, why=NO_IMAGES),
    # llama.cpp's llama-server, beside what is above. Names of its README at commit 00dc805, and those before them
    _flag("-mu --model-url -dr --docker-repo -hff --hf-file", LLAMA, why=DOWNLOADED),
    _flag("-hf -hfr --hf-repo", LLAMA,
          why="write --model FILE, with its GGUF file downloaded, or --model NAME, the hub id of its safetensors"),
    _flag("-hft --hf-token", LLAMA, why="leave it out: set HF_TOKEN in the environment"),
    _flag("-a --alias", LLAMA, "served_model_name", reads=_one_name, note="one name"),
    _flag("-c --ctx-size", LLAMA, "max_context", reads=_length,
          note="of one request; there of all slots together, unless --kv-unified is on"),
    _flag("-np --parallel", LLAMA, "max_sequences", values={"-1": "0"}),
    _switch("-kvu --kv-unified", LLAMA, nothing=("true", "false"),
            note="without effect: all requests share one set of KV pages"),
    _flag("-b", LLAMA, idle=True, note="without effect: only --max-step-tokens (-ub) bounds a step"),
    _flag("-ub --ubatch-size", LLAMA, "max_step_tokens", reads=_number, note="counts draft tokens, too"),
    _switch("-cb --cont-batching", LLAMA, nothing=ON, why="leave it out: it is always on"),
    _flag("-ngl --gpu-layers --n-gpu-layers", LLAMA, "executor", values={"0": "compiled"},
          nothing=("auto", "all"), idle=True, note="without effect: all layers are on the GPU, or none"),
    _switch("-kvo --kv-offload", LLAMA, nothing=ON, why=NO_OFFLOAD),
    _switch("-cmoe --cpu-moe", LLAMA, nothing=OFF, why=NO_OFFLOAD),
    _flag("-ncmoe --n-cpu-moe -ncffn --n-cpu-ffn", LLAMA, nothing=("0",), why=NO_OFFLOAD),
    _flag("-ot --override-tensor", LLAMA, why=NO_OFFLOAD),
    _flag("-sm --split-mode", LLAMA, nothing=("none",), why=f"leave it out, or {ONE_DEVICE}"),
    _flag("-ts --tensor-split", LLAMA, why="write --tensor-parallel-size N: all its parts are of one size"),
    _flag("-mg --main-gpu", LLAMA, nothing=("0",), why="leave it out: set CUDA_VISIBLE_DEVICES in the environment"),
    _flag("--rpc", LLAMA, why=ON_EACH_MACHINE),
    _flag("-fit --fit -fitt --fit-target -fitc --fit-ctx", LLAMA, nothing=("on",), idle=True,
          note="without effect: KV pages get what weights and the largest step leave of --gpu-memory-utilization"),
    _flag("-fa --flash-attn", LLAMA, nothing=("auto",), idle=True, alone="on",
          note="without effect: an executor has one kernel for attention"),
    _flag("-ctk --cache-type-k -ctv --cache-type-v", LLAMA, nothing=("f16", "bf16"),
          why="write --kv-cache-dtype fp8 for 8 bits on a GPU, or leave it out: KV pages have the model's dtype"),
    _switch("--swa-full", LLAMA, nothing=("true", "false"),
            note="without effect: KV pages hold the whole text of every layer"),
    _switch("--mmap", LLAMA, nothing=("true", "false"),
            note="without effect: weights are read into memory once (docs/use/models.md)"),
    _switch("--mlock", LLAMA, nothing=("true", "false"), note="without effect: memory isn't locked"),
    _flag("-lm --load-mode", LLAMA, idle=True,
          note="without effect: weights are read into memory once (docs/use/models.md)"),
    _switch("--repack", LLAMA, nothing=("true", "false"),
            note="without effect: the compiled executor always reorders weights"),
    _flag("-t --threads", LLAMA, "threads", values={"-1": "0"}),
    _flag("-tb --threads-batch", LLAMA, idle=True, note="without effect: --threads is for prompts and answers"),
    _flag("--threads-http", LLAMA, idle=True, note="without effect: --streamers N starts N processes for HTTP"),
    _flag("--numa -C --cpu-mask -Cr --cpu-range --cpu-strict -Cb --cpu-mask-batch -Crb --cpu-range-batch"
          " --cpu-strict-batch", LLAMA, why=HAS_CORES),
    _flag("--prio --prio-batch --poll --poll-batch", LLAMA, idle=True,
          note="without effect: priority and waiting of threads are fixed"),
    _switch("--cache-prompt", LLAMA, "prefix_cache"),
    _flag("-cram --cache-ram", LLAMA, nothing=("0",),
          why="write --kv-cache-mb N: pages of finished texts stay in it until others need them"),
    _flag("--cache-reuse", LLAMA, nothing=("0",), idle=True,
          note="without effect: only equal beginnings of texts are reused, no later parts"),
    _flag("-sps --slot-prompt-similarity", LLAMA, idle=True,
          note="without effect: there are no slots; equal beginnings are found among all KV pages"),
    _switch("--context-shift --ctx-shift", LLAMA, nothing=OFF, why="not served: answers longer than the context"),
    _flag("--keep", LLAMA, nothing=("0",), why="not served: answers longer than the context"),
    _flag("-dt --defrag-thold", LLAMA, idle=True, note="without effect: pages need no defragmentation"),
    _flag(ROPE_FLAGS, LLAMA, why=ROPE),
    _switch("--warmup", LLAMA, nothing=("true", "false"), note="without effect: there is no warm-up run"),
    _switch("--check-tensors", LLAMA, nothing=OFF, why="leave it out: `specmesh model check` checks a model"),
    _flag("--api-key-file", LLAMA, "api_keys_file", note="here a line with # is a key, too"),
    _switch("--metrics", LLAMA, nothing=ON, why="leave it out: there are always metrics"),
    _switch("--slots", LLAMA, nothing=("true", "false"),
            note="without effect: /slots isn't served; `specmesh top` and GET /v1/mesh show what runs"),
    _switch("--props", LLAMA, nothing=OFF, why="not served: changing a running server's settings"),
    _flag("--slot-save-path", LLAMA, why="not served: KV pages in files"),
    _switch("--ui --webui", LLAMA, nothing=ON, why="leave it out: there is always a page to try the model, at /"),
    _flag("--path --api-prefix", LLAMA, why="not served: files and paths of your own; put a proxy in front"),
    _flag("--ssl-cert-file", LLAMA, "ssl_certfile"),
    _flag("--ssl-key-file", LLAMA, "ssl_keyfile"),
    _flag("-to --timeout", LLAMA,
          why="write --write-timeout S for slow clients, or --request-timeout S for the duration of a request"),
    _flag("--models-dir --models-preset --models-max", LLAMA, why="write --model FOLDER: a mesh serves one model"),
    _flag("--sleep-idle-seconds", LLAMA, nothing=("-1",), why="not served: unloading an idle model"),
    _switch("-v --verbose --log-verbose", LLAMA, "log_level", values={"true": "debug", "false": "info"}),
    _flag("-lv --verbosity --log-verbosity", LLAMA, "log_level",
          values={"0": "error", "1": "error", "2": "warning", "3": "info", "4": "debug", "5": "debug"},
          why="write --log-level NAME"),
    _switch("--log-disable", LLAMA, nothing=OFF, why="write --log-level error"),
    _flag("--log-file", LLAMA, why="leave it out: the log is on stderr"),
    _switch("--log-jsonl", LLAMA, "log_format", values={"true": "json", "false": "text"}),
    _switch("--log-prefix --log-timestamps", LLAMA, nothing=("true", "false"),
            note="without effect: lines have both"),
    _flag("--log-colors", LLAMA, nothing=("auto",), idle=True, alone="on",
          note="without effect: the log has colours in a terminal, and nowhere else"),
    _switch("--perf", LLAMA, nothing=("true", "false"), note="without effect: times are in the metrics"),
    # Its speculation
    _flag("-md --model-draft --spec-draft-model", LLAMA, "draft_model", reads=_drafter,
          note="a folder or hub id; a GGUF file is refused"),
    _flag("-hfd -hfrd --hf-repo-draft --spec-draft-hf", LLAMA, why="write --draft-model NAME, the hub id of a folder"),
    _flag("--draft --draft-n --draft-max", OLDER_LLAMA, "num_speculative_tokens"),
    _flag("--spec-draft-n-max --spec-ngram-mod-n-max", LLAMA, "num_speculative_tokens"),
    _flag("--draft-min --draft-n-min", OLDER_LLAMA, nothing=("0",), idle=True, note=BY_AUTO),
    _flag("--spec-draft-n-min --spec-ngram-mod-n-min", LLAMA, nothing=("0",), idle=True, note=BY_AUTO),
    _flag("--draft-p-min --spec-draft-p-min", LLAMA, nothing=("0", "0.0"), idle=True, note=BY_AUTO),
    _flag("--draft-p-split --spec-draft-p-split", LLAMA, idle=True,
          note="without effect: --draft-trees and method auto branch where it pays"),
    _flag("-cd --ctx-size-draft", OLDER_LLAMA, idle=True, note="without effect: a drafter has the model's context"),
    _flag("-td --threads-draft --spec-draft-threads -tbd --threads-batch-draft --spec-draft-threads-batch", LLAMA,
          idle=True, note=WITH_THE_MODEL),
    _flag("-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl -devd --device-draft --spec-draft-device",
          LLAMA, idle=True, note=WITH_THE_MODEL),
    _flag("-ctkd --cache-type-k-draft --spec-draft-type-k -ctvd --cache-type-v-draft --spec-draft-type-v", LLAMA,
          idle=True, note="without effect: a drafter's keys and values are in the model's KV pages"),
    _flag("--spec-draft-sampling", LLAMA, "verify_strategy", values={"probabilistic": "rejection"},
          nothing=("greedy",), why="write --verify-strategy rejection, or leave it out"),
    _flag("--spec-type", LLAMA, "method", values=SPEC_TYPES, reads=_spec_type,
          note="several, with commas: `auto`, but refused with `draft-mtp` among them"),
    _switch("--spec-default", LLAMA, nothing=("true", "false"), note="without effect: speculation is on by default"),
    _flag("--spec-ngram-simple-size-n --spec-ngram-map-k-size-n --spec-ngram-map-k4v-size-n", LLAMA, "max_ngram_size",
          note="the longest length; there the only one"),
    _flag("--spec-ngram-size-n", OLDER_LLAMA, "max_ngram_size", note="the longest length; there the only one"),
    _flag("--spec-ngram-mod-n-match", LLAMA, "suffix_decoding_max_tree_depth",
          note="the longest length; there the only one"),
    _flag("--spec-ngram-simple-size-m --spec-ngram-map-k-size-m --spec-ngram-map-k4v-size-m", LLAMA,
          "num_speculative_tokens"),
    _flag("--spec-ngram-size-m", OLDER_LLAMA, "num_speculative_tokens"),
    _flag("--spec-ngram-simple-min-hits --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-min-hits", LLAMA,
          nothing=("1",), idle=True, note=BY_AUTO),
    _flag("--spec-ngram-min-hits --spec-ngram-check-rate", OLDER_LLAMA, nothing=("1",), idle=True, note=BY_AUTO),
    _flag("-lcs --lookup-cache-static", LLAMA,
          why="leave it out: add its texts to the running server with `specmesh corpus add NAME PATH`"),
    _flag("-lcd --lookup-cache-dynamic", LLAMA, why="write --store-dir FOLDER: text that drafters learn is kept there"),
    # Its sampling, which has defaults of the server there
    _flag("-n --predict --n-predict", LLAMA, nothing=("-1",), why=IN_REQUESTS),
    _flag("--temp --temperature --top-k --top-p --min-p --repeat-penalty --presence-penalty --frequency-penalty"
          " -l --logit-bias -r --reverse-prompt", LLAMA, why=IN_REQUESTS),
    _switch("--ignore-eos", LLAMA, nothing=OFF, why=IN_REQUESTS),
    _flag("--samplers --sampler-seq --sampling-seq --typical --typical-p --top-nsigma --top-n-sigma --mirostat"
          " --mirostat-lr --mirostat-ent --xtc-probability --xtc-threshold --dry-multiplier --dry-base"
          " --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker --adaptive-target --adaptive-decay"
          " --dynatemp-range --dynatemp-exp --repeat-last-n", LLAMA,
          why="not served: this sampler; requests have temperature, top_p, top_k, min_p and penalties"),
    # Its templates, and what isn't served
    _switch("--jinja", LLAMA, nothing=ON, why="leave it out: chat templates are always in Jinja"),
    _flag("--chat-template-file", LLAMA, "chat_template", reads=_template_file),
    _flag("--chat-template-kwargs", LLAMA, why=IN_REQUESTS),
    _flag("--reasoning-format", LLAMA, "reasoning_parser",
          values={"none": "none", "auto": "auto", "deepseek": "auto"}),
    _flag("--reasoning-budget", LLAMA, nothing=("-1",), why=f"{IN_REQUESTS} (thinking_token_budget)"),
    _flag("--grammar --grammar-file -j --json-schema -jf --json-schema-file", LLAMA, why=NO_GRAMMAR),
    _flag("--lora --lora-scaled", LLAMA, why=NO_LORA),
    _flag("--control-vector --control-vector-scaled --control-vector-layer-range", LLAMA,
          why="not served: control vectors"),
    _switch("--embedding --embeddings", LLAMA, nothing=("true", "false"), note=EMBEDDINGS),
    _switch("--rerank --reranking", LLAMA, nothing=OFF, why=NO_SCORES),
    _flag("--pooling", LLAMA, "pooling", values={"auto": "auto", "last": "last", "mean": "mean"},
          nothing=("none",),
          why="write --pooling last or --pooling mean"),
    _flag("-mm --mmproj -mmu --mmproj-url", LLAMA, why=NO_IMAGES),
    _switch("--mmproj-auto --no-mmproj", LLAMA, nothing=("true", "false"),
            note="without effect: there is no projector"),
    _flag("--tools --mcp-servers-config", LLAMA, why=NO_TOOLS),
)  # fmt: skip


def key_of(flag: str) -> str:
    """As settings are named: no dashes before it, underscores within."""
    return flag.lstrip("-").replace("-", "_")


def _with_two_dashes(name: str, names: tuple[str, ...]) -> str:
    """llama-server's -ngl stands before its long spellings, vLLM's -tp behind."""
    long = [each for each in (*names[names.index(name) :], *reversed(names)) if each.startswith("--")]
    return long[0] if long else "-" + name


# Written with one dash -> with two. A parser that knew -c would read -cfoo as -c foo, and keys of settings files have
# no short names.
SHORT: dict[str, str] = {
    name: _with_two_dashes(name, flag.names) for flag in FLAGS for name in flag.names if not name.startswith("--")
} | {"-nocb": "--no-cont-batching", "-nkvo": "--no-kv-offload", "-no-kvu": "--no-kv-unified", "-nr": "--no-repack"}
FOREIGN: dict[str, Foreign] = {key_of(SHORT.get(name, name)): flag for flag in FLAGS for name in flag.names}


def meant(key: str, value: Any) -> Meaning:
    """What a key of FOREIGN asks for. Raises ValueError with what to write instead, or what is missing."""
    flag = FOREIGN[key]
    text = _text(value)
    told = flag.notes.get(text.lower(), "")
    if text.lower() in flag.nothing or (value is None and not flag.row):
        # The note of an idle one is for its other values.
        return Meaning(note=told if text == "false" or flag.idle else told or flag.note)
    if text.lower() in flag.values:
        return Meaning(flag.row, flag.values[text.lower()], told)
    if flag.idle:
        return Meaning(note=flag.note)
    if flag.why:
        raise ValueError(flag.why)
    return Meaning(flag.row, flag.reads(text) if flag.reads else value)


def here(flag: Foreign) -> str:
    """What it is here, in words, for `specmesh explain`."""
    said = []
    if flag.row:
        values = ", ".join(f"`{theirs}` is `{ours}`" for theirs, ours in flag.values.items() if theirs != ours)
        said.append(f"`--{flag.row.replace('_', '-')}`" + (f": {values}" if values else ""))
    if flag.idle:
        said.append("otherwise taken" if said else "taken")
    elif flag.nothing:
        values = " or ".join(f"`{value}`" if value else "empty" for value in flag.nothing)
        said.append("taken" if {*flag.nothing} == {"true", "false"} else f"taken if it is {values}")
    if flag.note:
        said.append(flag.note)
    for value, told in flag.notes.items():
        said.append(f"`{value}`: {told}")
    if flag.why:
        said.append(("otherwise refused: " if said else "refused: ") + flag.why)
    return "; ".join(said)


def _text(value: Any) -> str:
    """As it would be written on a command line; a switch of a file is true or false."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)

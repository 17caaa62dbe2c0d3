"""Flags that people type for other servers: taken, or refused with what to type, which is then typed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from player import MODEL, Ended, Start, asked, corrected, typed
from running_mesh import MOCK

from bench.running_mesh import free_ports

pytestmark = pytest.mark.slow

VLLM = """
--model smollm2-135m-instruct
--served-model-name small
--max-model-len 4096
--max-model-len 8k
--max-num-seqs 16
--max-num-batched-tokens 2048
--gpu-memory-utilization 0.9
--tensor-parallel-size 1
--tensor-parallel-size 2
-tp 1
--dtype bfloat16
--dtype half
--enforce-eager
--trust-remote-code
--enable-prefix-caching
--no-enable-prefix-caching
--enable-chunked-prefill
--generation-config vllm
--generation-config ./elsewhere
--kv-cache-dtype fp8
--quantization awq
--swap-space 4
--api-key secret
--disable-log-requests
--enable-auto-tool-choice --tool-call-parser hermes
--reasoning-parser deepseek_r1
--chat-template ./chat.jinja
--uvicorn-log-level warning
--num-speculative-tokens 5
--headless
--nnodes 1
"""
SGLANG = """
--model-path smollm2-135m-instruct
--context-length 4096
--mem-fraction-static 0.85
--tp 1
--tp-size 2
--max-running-requests 32
--chunked-prefill-size 4096
--disable-radix-cache
--disable-cuda-graph
--attention-backend flashinfer
--sampling-defaults openai
--speculative-algorithm NGRAM
--speculative-num-draft-tokens 8
--speculative-eagle-topk 4
--speculative-eagle-topk 1
--speculative-draft-model-path ./head
--speculative-draft-model-revision v2
--speculative-draft-load-format auto
--speculative-draft-model-quantization fp8
--speculative-accept-threshold-single 0.9
--speculative-use-rejection-sampling
--speculative-adaptive
--speculative-attention-mode decode
--speculative-draft-attention-backend fa3
--speculative-ngram-max-trie-depth 18
--speculative-ngram-match-type PROB
--speculative-ngram-max-bfs-breadth 10
--speculative-ngram-capacity 1000000
--speculative-ngram-external-corpus-path ./corpus.jsonl
--enable-multi-layer-eagle
--enable-metrics
--schedule-policy fcfs
"""
FASTDEPLOY = """
--max-concurrency 64
--kv-cache-ratio 0.75
--splitwise-role shared
--use-cudagraph
--num-gpu-blocks-override 1024
--workers 4
--ips 10.0.0.1,10.0.0.2
--metrics-port 24400
--workers 2 --engine-worker-queue-port 8182
--scheduler-name splitwise --scheduler-host 127.0.0.1 --scheduler-password secret
--splitwise-role prefill
"""
LMDEPLOY = """
--session-len 4096
--cache-max-entry-count 0.5
--server-port 23333
--model-format awq
--max-batch-size 32
--quant-policy 8
--backend turbomind
--backend pytorch
--enable-metrics
"""
PADDLENLP = """
--model_name_or_path smollm2-135m-instruct
--total_max_length 4096
--batch_size 8
--speculate_max_draft_token_num 5
--quant_type weight_only_int8
--quant_type a8w8_fp8
--inference_model --dtype float16
--mode dynamic --append_attn 1
--mode static
--max_length 1024
--gpus 0,1,2,3
"""
LLAMA_SERVER = """
-m smollm2-135m-instruct
-c 4096
-np 8
-ngl 99
-fa on
-b 2048
-ub 512
--batch-size 2048
--cache-type-k q8_0
--tensor-split 3,1
--timeout 600
--temp 0.7
--jinja
--no-mmap
--draft-max 16
--draft-p-min 0.75
--spec-type ngram-mod
--model-draft ./draft.gguf
--alias small,tiny
--log-disable
"""
SERVERS = {"vLLM": VLLM, "SGLang": SGLANG, "FastDeploy": FASTDEPLOY, "LMDeploy": LMDEPLOY, "PaddleNLP": PADDLENLP,
           "llama.cpp": LLAMA_SERVER}  # fmt: skip
TRIED = [(server, line) for server, lines in SERVERS.items() for line in lines.strip().splitlines()]


def test_there_are_more_than_forty(ended: Ended) -> None:
    assert len(TRIED) > 40
    ended("worked")


@pytest.mark.parametrize(("server", "line"), TRIED, ids=[f"{server}: {line}" for server, line in TRIED])
def test_a_flag_is_taken_or_what_to_type_is(server: str, line: str, ended: Ended) -> None:
    words = shlex.split(line)
    first = typed("config", "show", "--changed", *words)
    if first.code == 0:
        ended("worked")
        return
    again = corrected(words, first.text)
    assert again != words, first.text
    second = typed("config", "show", "--changed", *again)
    assert second.code == 0, f"{first.text}{second.text}"
    ended("said what to do")


# As their pages write them, less what the refusals above take out; the speculation of each is among them.
COMMANDS = {
    "vLLM": f"serve {MODEL} --max-model-len 4k --max-num-seqs 16 -tp 1 --trust-remote-code --generation-config auto"
    """ --speculative-config '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'""",
    "SGLang": f"serve --model-path {MODEL} --context-length 4096 --tp 1 --max-running-requests 16 --enable-metrics"
    " --speculative-algorithm NGRAM --speculative-num-draft-tokens 8",
    "LMDeploy": f"serve api_server {MODEL} --session-len 4096 --max-batch-size 16 --tp 1",
    "FastDeploy": f"up --model {MODEL} --max-model-len 4096 --max-num-seqs 16 --tensor-parallel-size 1"
    """ --speculative-config '{"method": "ngram_match", "num_speculative_tokens": 1}'""",
    "PaddleNLP": f"up --model_name_or_path {MODEL} --total_max_length 4096 --batch_size 8"
    " --speculate_method inference_with_reference --speculate_max_draft_token_num 5",
    "llama.cpp": f"serve -m {MODEL} -c 4096 -np 8 -ngl 99 -fa on -t 2 -b 2048 -ub 512 -cb --jinja --metrics"
    " --spec-type ngram-mod --spec-draft-n-max 8",
}


@pytest.mark.parametrize("server", COMMANDS)
def test_a_whole_command_starts_a_server_that_answers(server: str, tmp_path: Path, ended: Ended) -> None:
    ports = free_ports(8)
    own = ["--engine", "mock", "--mock-profile", MOCK, "--run-dir", str(tmp_path), "--store-dir", "none"]
    start = Start(tmp_path, *shlex.split(COMMANDS[server]), *own, f"--port={ports}", f"--metrics-port={ports + 1}")
    try:
        assert start.ready(), start.text
        status, text = asked(start.url(), "POST", "/v1/completions", {"model": MODEL, "prompt": "1 2 3"})
        assert status == 200, text
    finally:
        start.stop()
    assert start.process.returncode == 0, start.text[-2000:]
    ended("worked")

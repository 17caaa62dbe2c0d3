"""vLLM's side: the class that it makes for `"method": "custom_class"`, and what it says of the engine.

What vLLM 0.32 promises of it, as its source has it: the class is made with the VllmConfig in the process of each
worker of the last pipeline stage; after each step, and in its thread, `propose` is called with the tokens sampled for
each row ([]: the row's prompt isn't computed yet), the rows' lengths and their tokens, without names of requests. The
scheduler takes the drafts of the first tensor-parallel rank alone, and shares them out: the others needn't draft. A
draft may be shorter than num_speculative_tokens, or empty. Async scheduling is off with a class of one's own.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from typing import Any

from specmesh.vllm.drafting import Drafting
from specmesh.vllm.options import Options, vocabulary_of
from specmesh.vllm.questions import Questions
from specmesh.vllm.wire import Connection, load_keys

log = logging.getLogger("vllm.specmesh")

# Seconds without a call after which no request runs; and between two lines in the log.
REST_AFTER, LOG_EVERY = 2.0, 60.0
# Of the keys.
KEY_NAME = "vllm"


class Drafter:
    def __init__(self, vllm_config: Any) -> None:
        options = Options.of(os.environ)
        self._is_first = vllm_config.parallel_config.rank % vllm_config.parallel_config.tensor_parallel_size == 0
        if not self._is_first:
            return
        model = vllm_config.model_config
        namespace = options.namespace or _served_name(model)
        vocabulary = vocabulary_of(str(model.tokenizer), str(getattr(model, "tokenizer_revision", None) or "main"))
        epoch = time.time_ns() // 1000
        # Containers may have their host's name and process id in common.
        name = f"vllm-{socket.gethostname()[:40]}-{os.getpid()}-{epoch % 100_000}"
        keys = load_keys(options.keys_dir, KEY_NAME) if options.keys_dir else None
        connection = Connection(options.address, name, epoch, keys)
        self.drafting = Drafting(
            connection,
            Questions(name, epoch, namespace, vocabulary),
            most=vllm_config.speculative_config.num_speculative_tokens,
            longest_text=model.max_model_len,
            deadline=options.deadline,
            now=time.monotonic,
            debug=options.debug,
        )
        self._failed = False
        # The engine's thread and the one that tidies up take turns.
        self._turn = threading.Lock()
        self._called = self._logged = time.monotonic()
        self._rested = True
        threading.Thread(target=self._tidy, name="specmesh-tidy", daemon=True).start()
        log.info("specmesh drafts from %s, namespace %s, vocabulary %s", options.address, namespace, vocabulary or "?")

    def load_model(self, *_arguments: Any, **_more: Any) -> None:
        """There is none."""

    def propose(
        self, sampled_token_ids: list[list[int]], num_tokens_no_spec: Any, token_ids_cpu: Any, **_more: Any
    ) -> list[list[int]]:
        if not self._is_first or self._failed:
            return [[] for _ in sampled_token_ids]
        with self._turn:
            self._called, self._rested = time.monotonic(), False
            try:
                return self.drafting.propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
            # The engine must live on, whatever it is.
            except Exception:
                log.exception("specmesh drafts no more in this process")
                self._failed = True
                return [[] for _ in sampled_token_ids]

    def _tidy(self) -> None:
        while not self._failed:
            time.sleep(REST_AFTER / 4)
            now = time.monotonic()
            with self._turn:
                if not self._rested and now - self._called > REST_AFTER:
                    self._rested = self.drafting.rest()
            if now - self._logged >= LOG_EVERY:
                self._logged = now
                self._say()

    def _say(self) -> None:
        figures = self.drafting.figures
        if figures.steps:
            log.info(
                "specmesh: %d steps, %d tokens drafted, %d accepted; a step took %.2f ms here, of which %.2f ms it"
                " waited; %d answers, %d missed",
                figures.steps, figures.drafted, figures.accepted, 1000 * figures.seconds / figures.steps,
                1000 * figures.waited_seconds / figures.steps, figures.answered, figures.missed,
            )  # fmt: skip


def _served_name(model: Any) -> str:
    """What clients call the model."""
    name = model.served_model_name or model.model
    return str(name if isinstance(name, str) else name[0])

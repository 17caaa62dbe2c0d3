"""arctic-inference's suffix cache behind bench/replay.py's loops, called as its own serving code calls it.

Run by the interpreter of a virtual environment that has arctic-inference and numpy, and imported by nothing:

    PYTHON -m bench.oracles.arctic < job.json        the answer is JSON, too
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np
from arctic_inference.suffix_decoding import SuffixDecodingCache

from bench.replay import ReplayGuess, Text, figures_of

LONGEST_TEXT = 1 << 17


class ArcticGuesser:
    """A row of int32 for each running text, as an engine has it; patterns are lists of its end."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._depth: int = job["depth"]
        self._longest: int = job["longest"]
        self._factor: float = job["factor"]
        self._least: float = job["min_token_prob"]
        self._cache = SuffixDecodingCache(self._depth, -1)
        self._rows: dict[int, Any] = {}
        self._lengths: dict[int, int] = {}
        self._new: dict[int, list[int]] = {}

    def begin(self, key: int, prompt: Text) -> None:
        self._rows[key] = np.empty(LONGEST_TEXT, np.int32)
        self._rows[key][: len(prompt)] = prompt
        self._lengths[key] = len(prompt)
        self._cache.start_request(key, list(prompt))

    def take(self, key: int, tokens: Text) -> None:
        known = self._lengths[key]
        self._rows[key][known : known + len(tokens)] = tokens
        self._lengths[key] = known + len(tokens)
        self._new[key] = list(tokens)

    def learn(self, key: int) -> None:
        self._cache.add_active_response(key, self._new.pop(key))

    def guess(self, keys: Sequence[int]) -> list[Any]:
        for key in keys:
            if new := self._new.pop(key, None):
                self._cache.add_active_response(key, new)
        found = []
        for key in keys:
            known = self._lengths[key]
            pattern = self._rows[key][max(0, known - self._depth) : known].tolist()
            how = {"max_spec_factor": self._factor, "max_spec_offset": 0.0, "min_token_prob": self._least}
            found.append(self._cache.speculate(key, pattern, max_spec_tokens=self._longest, **how))
        return found

    def told(self, keys: Sequence[int], guesses: list[Any]) -> list[ReplayGuess]:
        return [ReplayGuess(draft.token_ids, draft.probs) for draft in guesses]

    def end(self, key: int) -> None:
        # The last tokens of a text bring no guess any more.
        if key in self._new:
            self.learn(key)
        self._cache.stop_request(key)
        del self._rows[key], self._lengths[key]

    def held_bytes(self) -> int:
        # Its own count, of the tree that stays.
        return int(self._cache._global_tree.estimate_memory())


def main() -> None:
    figures = [figures_of(ArcticGuesser, job) for job in json.load(sys.stdin)]
    json.dump({"version": metadata.version("arctic-inference"), "figures": figures}, sys.stdout)


if __name__ == "__main__":
    main()

"""A model with a small vocabulary of letters, for grammars: the logits behind a token are random, and its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from fixed_model import FixedModel

from models.batch import Stretch
from models.executor import Output
from services.worker.running.mock import BRANCH_PAGES
from services.worker.running.runner import Facts
from tests.services.tokenizer.conftest import make_tokenizer

END = 1
TOKENIZER = make_tokenizer()
SIZE = TOKENIZER.get_vocab_size()


class AnyModel(FixedModel):
    def __init__(self) -> None:
        super().__init__()
        self.facts = Facts(SIZE, 256, (END,), 4, 512, branch_pages=BRANCH_PAGES)
        self._logits = torch.from_numpy(np.random.default_rng(5).normal(0, 2, (SIZE, SIZE)).astype(np.float32))

    def forward(self, rows: Sequence[Stretch]) -> Output:
        return Output(self._logits[[token for row in rows for token in row.tokens[row.logits_from :]]], None)

"""The oracle of law 3: what the mesh says in float32 is what Hugging Face transformers says, token for token.

256 new tokens for ten prompts; with n-gram drafts and without, alone and eight at a time. And seeded sampling,
which has no oracle elsewhere, with drafts against without.
"""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from running_mesh import RunningMesh
from sse_client import Answer, body, complete

pytestmark = [pytest.mark.slow, pytest.mark.model]

NEW_TOKENS = 256
PROMPTS = [
    "The history of the lighthouse begins with",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "List the planets: Mercury, Venus, Earth,",
    "Once upon a time, in a village by the sea, there lived",
    "Repeat after me: red green blue red green blue red green blue",
    "The theory of relativity says that",
    "Q: What is the capital of France?\nA:",
    "In 1969, the first people walked on the moon. In 1970,",
    "Dear Sir or Madam,\n\nI am writing to you about",
    "1, 2, 4, 8, 16, 32,",
]
NAIVE = {"method": "naive"}
NGRAM = {"method": "ngram", "num_speculative_tokens": 8}


@pytest.fixture(scope="module")
def expected() -> list[str]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from models.sources import ensure_model
    from services.api.settings import Settings, cache_dir

    folder = ensure_model("smollm2-135m-instruct", cache_dir(Settings.for_tests()), dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    texts = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt")
        with torch.inference_mode():
            out = model.generate(**ids, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
        texts.append(tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))
    return texts


async def ask(mesh: RunningMesh, at_a_time: int, **more: object) -> list[Answer]:
    gate = asyncio.Semaphore(at_a_time)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1800)) as session:

        async def one(prompt: str) -> Answer:
            async with gate:
                return await complete(session, mesh.url, body(prompt, max_tokens=NEW_TOKENS, **more))

        answers = await asyncio.gather(*map(one, PROMPTS))
    assert all(a.completed for a in answers), [a.error for a in answers]
    return answers


@pytest.mark.parametrize("speculation", [NAIVE, NGRAM], ids=["naive", "ngram"])
@pytest.mark.parametrize("at_a_time", [1, 8])
async def test_greedy_text_equals_transformers(
    float32_mesh: RunningMesh, expected: list[str], speculation: dict[str, object], at_a_time: int
) -> None:
    answers = await ask(float32_mesh, at_a_time, speculation=speculation)
    assert [a.text for a in answers] == expected
    assert sum((a.usage or {})["completion_tokens"] for a in answers) > NEW_TOKENS * len(PROMPTS) * 0.5


async def test_seeded_text_is_the_same_with_drafts_and_without(float32_mesh: RunningMesh) -> None:
    sampled = {"temperature": 0.9, "top_p": 0.95, "seed": 42}
    plain = [a.text for a in await ask(float32_mesh, 1, speculation=NAIVE, **sampled)]
    assert [a.text for a in await ask(float32_mesh, 8, speculation=NGRAM, **sampled)] == plain

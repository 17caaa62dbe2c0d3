"""Makes the answers that come with specmesh (models/answers/) again: what the default model answers, greedily, to the
prompts that its EAGLE-3 head was trained with.

    python deploy/answers.py [--prompts N] [--out FILE]

Takes twenty minutes on two cores; a run that ended early goes on where it was (.specmesh/answers/).
"""

from __future__ import annotations

import argparse
import gzip
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from models.heads.shipped import shipped_heads  # noqa: E402
from models.shipped_answers import FOLDER, SUFFIX, write_answers  # noqa: E402
from models.sources import ensure_model  # noqa: E402
from services.api.messages import Sampling  # noqa: E402
from services.api.settings import Settings, cache_dir  # noqa: E402
from services.training import answers  # noqa: E402
from services.training.prompts import Asking  # noqa: E402
from services.worker.running.load_torch_model import Wanted, load_torch_model, vocabulary_of  # noqa: E402
from services.worker.running.torch_runner import TorchRunner  # noqa: E402

MODEL = "smollm2-135m-instruct"
WORK = ROOT / ".specmesh" / "answers"
PROMPTS, LONGEST, CONTEXT = 2228, 224, 1024


def main() -> int:
    parser = argparse.ArgumentParser(description="answers of the default model that come with specmesh")
    parser.add_argument("--prompts", type=int, default=PROMPTS, help=f"number of prompts (default {PROMPTS})")
    parser.add_argument("--out", type=Path, default=FOLDER / f"{MODEL}{SUFFIX}", help="the file to write")
    options = parser.parse_args()
    folder = ensure_model(MODEL, cache_dir(Settings.for_tests()))
    packed = (shipped_heads(MODEL)["eagle3"] / "prompts.txt.gz").read_bytes()
    asking = Asking(folder)
    prompts = gzip.decompress(packed).decode().splitlines()[: options.prompts]
    asked = {number: asking.ids(text) for number, text in enumerate(prompts)}
    wanted = Wanted(dtype="float32", page_tokens=32, kv_cache_mb=1024, max_context=CONTEXT)
    WORK.mkdir(parents=True, exist_ok=True)
    texts = answers.all_of(
        "answers", lambda: TorchRunner(load_torch_model(folder, wanted)), asked, WORK / "answers.jsonl",
        Sampling(max_tokens=LONGEST),
    )  # fmt: skip
    said = [text.ids[text.prompt_tokens :] for text in texts]
    write_answers(options.out, vocabulary_of(folder), said)
    print(f"{options.out}: {sum(map(len, said))} tokens, {options.out.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Makes the heads that come with specmesh (models/heads/trained/) again, from nothing but the models themselves.

    python deploy/heads.py [MODEL ...]

Takes an hour or two on two cores; a run that ended early goes on where it was (.specmesh/heads/). The prompts of a head
stand beside it, so that a test can compare them with those that are held out for measurements.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".specmesh" / "heads"
SHIPPED = ROOT / "models" / "heads" / "trained"
PROMPTS = "prompts.txt.gz"
FILES = ("config.json", "model.safetensors", "README.md", "training.json")
# Model -> flags of train-drafter.
HEADS: dict[str, tuple[str, ...]] = {
    "smollm2-135m-instruct": (
        "--head", "eagle3", "--own-prompts", "12000", "--answer-tokens", "224", "--dtype", "int8",
        "--head-dtype", "int8",
    ),
}  # fmt: skip


def main(models: list[str]) -> int:
    for model in models or HEADS:
        out = WORK / model
        command = ["specmesh", "train-drafter", "--model", model, *HEADS[model], "--out", str(out)]
        subprocess.run([str(Path(sys.executable).parent / command[0]), *command[1:]], check=True, cwd=ROOT)
        ship(model, out)
    return 0


def ship(model: str, out: Path) -> None:
    folder = SHIPPED / model
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(out / name, folder / name)
    lines = "".join(" ".join(text.split()) + "\n" for text in prompts(model, out / "work"))
    # No time of writing in it: the same prompts are the same bytes.
    (folder / PROMPTS).write_bytes(gzip.compress(lines.encode(), mtime=0))


def prompts(model: str, work: Path) -> list[str]:
    """Those that the head was trained on."""
    from models.sources import ensure_model
    from services.api.settings import Settings, cache_dir
    from services.training import answers
    from services.training.prompts import Asking

    asking = Asking(ensure_model(model, cache_dir(Settings.for_tests())))
    own = asking.own(answers.read(work / "prompts.jsonl"), asking.opening(), ())
    chosen, _ = asking.split(own)
    return [own[number] for number in sorted(chosen)]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))

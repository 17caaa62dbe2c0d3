"""Makes the heads that come with specmesh (models/heads/trained/) again, from nothing but the models themselves.

    python deploy/heads.py [MODEL/METHOD ...]

Takes two hours or three on two cores; a run that ended early goes on where it was (.specmesh/heads/). The heads of a
model learn from the same prompts and answers, which are made once. The prompts of a head stand beside it, so that a
test can compare them with those that are held out for measurements.
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
# Model/method -> flags of train-drafter. The first of a model makes prompts and answers for the others, too.
COMMON = ("--answer-tokens", "224", "--dtype", "int8", "--head-dtype", "int8")
HEADS: dict[str, tuple[str, ...]] = {
    "smollm2-135m-instruct/eagle3": ("--own-prompts", "12000"),
    "smollm2-135m-instruct/mtp": ("--own-prompts", "2000", "--leave-out-head"),
    "smollm2-135m-instruct/medusa": ("--own-prompts", "4000", "--leave-out-head"),
}


def main(names: list[str]) -> int:
    for name in names or HEADS:
        model, method = name.split("/")
        out = WORK / name
        _share(model, out / "work")
        command = ["specmesh", "train-drafter", "--model", model, "--head", method, *HEADS[name], *COMMON]
        subprocess.run(
            [str(Path(sys.executable).parent / command[0]), *command[1:], "--out", str(out)], check=True, cwd=ROOT
        )
        ship(name, out)
    return 0


def _share(model: str, work: Path) -> None:
    """Prompts and answers of the model's first head; later ones take what they need of them."""
    first = next(name for name in HEADS if name.startswith(f"{model}/"))
    for name in ("prompts.jsonl", "answers.jsonl"):
        file = WORK / first / "work" / name
        if file.exists() and not (work / name).exists():
            work.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, work / name)


def ship(name: str, out: Path) -> None:
    folder = SHIPPED / name
    folder.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        shutil.copyfile(out / file, folder / file)
    lines = "".join(" ".join(text.split()) + "\n" for text in prompts(name, out / "work"))
    # No time of writing in it: the same prompts are the same bytes.
    (folder / PROMPTS).write_bytes(gzip.compress(lines.encode(), mtime=0))


def prompts(name: str, work: Path) -> list[str]:
    """Those that the head was trained on."""
    from models.sources import ensure_model
    from services.api.settings import Settings, cache_dir
    from services.training import answers
    from services.training.prompts import Asking

    model, _ = name.split("/")
    asking = Asking(ensure_model(model, cache_dir(Settings.for_tests())))
    most = int(HEADS[name][HEADS[name].index("--own-prompts") + 1])
    written = {text.number: text for text in answers.read(work / "prompts.jsonl") if text.number < most}
    own = asking.own([written[number] for number in sorted(written)], asking.opening(), ())
    chosen, _ = asking.split(own)
    return [own[number] for number in sorted(chosen)]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))

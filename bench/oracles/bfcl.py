"""Scores a running server on questions of the Berkeley Function Calling Leaderboard, with its own data and checker:
once with drafts and once without. The answers have to be the same, so the scores are.

Run by the interpreter of a virtual environment that has bfcl-eval (without its dependencies: `pip install --no-deps`),
and imported by nothing:

    PYTHON -m bench.oracles.bfcl http://127.0.0.1:8000 [--categories simple_python parallel] [--limit 50]

Calls are asked for (`tool_choice: required`), one where a question has one answer. Knows HTTP, and the data's files.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import types
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CATEGORIES = ("simple_python", "parallel")
WITHOUT_DRAFTS = {"speculation": {"off": True}}
AT_ONCE = 4
MOST_TOKENS = 512


class NoModels(types.ModuleType):
    """Stands for the package's table of the models it can call, which needs the clients of all their makers. The
    checker asks it only whether a model has dots of names written as underscores."""

    MODEL_CONFIG_MAPPING: Any = None


class _DotsStay(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        return types.SimpleNamespace(underscore_to_dot=False)


def package() -> Path:
    """Where the data is; the checker can be imported from then on."""
    found = importlib.util.find_spec("bfcl_eval")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("bfcl-eval is not installed here: pip install --no-deps bfcl-eval")
    module = NoModels("bfcl_eval.constants.model_config")
    module.MODEL_CONFIG_MAPPING = _DotsStay()
    sys.modules[module.__name__] = module
    return Path(found.submodule_search_locations[0])


def questions(folder: Path, category: str, limit: int) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Each with its possible answers."""
    name = f"BFCL_v4_{category}.json"
    asked = (folder / "data" / name).read_text().splitlines()
    right = (folder / "data" / "possible_answer" / name).read_text().splitlines()
    for question, answer in list(zip(asked, right, strict=True))[:limit]:
        yield json.loads(question), json.loads(answer)["ground_truth"]


def as_schema(described: Any, types_of: dict[str, str]) -> Any:
    """The data names types as Python does."""
    if isinstance(described, list):
        return [as_schema(each, types_of) for each in described]
    if not isinstance(described, dict):
        return described
    found = {key: as_schema(each, types_of) for key, each in described.items()}
    if isinstance(kind := described.get("type"), str):
        found["type"] = types_of.get(kind, kind)
    return found


def body_of(question: dict[str, Any], category: str, types_of: dict[str, str], **fields: Any) -> dict[str, Any]:
    tools = [
        {"type": "function", "function": {**each, "parameters": as_schema(each["parameters"], types_of)}}
        for each in question["function"]
    ]
    return {
        "messages": question["question"][0], "tools": tools, "tool_choice": "required",
        "parallel_tool_calls": "parallel" in category, "temperature": 0, "max_tokens": MOST_TOKENS, **fields,
    }  # fmt: skip


def called(url: str, body: dict[str, Any]) -> list[dict[str, Any]] | str:
    """The calls, as the checker reads them; or why there are none."""
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            message = json.load(answer)["choices"][0]["message"]
        return [
            {each["function"]["name"]: json.loads(each["function"]["arguments"])}
            for each in message.get("tool_calls") or ()
        ]
    except urllib.error.HTTPError as refused:
        return f"{refused.code} {json.load(refused)['error']['message']}"
    except ValueError:
        return "cut off"


def figures(url: str, model: str, folder: Path, category: str, limit: int) -> dict[str, Any]:
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker

    asked = list(questions(folder, category, limit))

    def answers(**fields: Any) -> list[Any]:
        bodies = [body_of(each, category, GORILLA_TO_OPENAPI, model=model, **fields) for each, _ in asked]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda body: called(url, body), bodies))

    def right(said: Any, question: dict[str, Any], possible: list[Any]) -> bool:
        if isinstance(said, str):
            return False
        return bool(ast_checker(question["function"], said, possible, Language.PYTHON, category, "any")["valid"])

    told = {"with drafts": answers(), "without": answers(**WITHOUT_DRAFTS)}
    scores = {
        name: sum(right(each, *about) for each, about in zip(said, asked, strict=True)) for name, said in told.items()
    }
    pairs = list(zip(told["with drafts"], told["without"], strict=True))
    return {
        "category": category, "questions": len(asked), "right": scores,
        "different": [about[0]["id"] for (one, other), about in zip(pairs, asked, strict=True) if one != other],
        "cut_off": sum(each == "cut off" for each in told["without"]),
        "refused": sorted({each for said in told.values() for each in said if isinstance(each, str)} - {"cut off"}),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of the server, without /v1")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--categories", nargs="+", default=CATEGORIES)
    parser.add_argument("--limit", type=int, default=10_000, help="questions of a category")
    words = parser.parse_args()
    folder, different = package(), 0
    for category in words.categories:
        found = figures(words.url, words.model, folder, category, words.limit)
        print(json.dumps(found), flush=True)
        different += len(found["different"])
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())

"""The API in OpenAPI's words, made from the table of routes and the fields below. Pure.

A test holds it to the truth: every route is here, and every field is one that request.py takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from services.api.messages import LONGEST_SALT, MOST_PRIORITY
from services.api.names import NAME
from services.streamer.corpora import MAX_TEXTS
from services.streamer.mesh_map import KILLED_ROLES
from services.streamer.request import MAX_LOGPROBS, MAX_STOP_CHARACTERS, ROLES, WITHOUT_EFFECT
from services.streamer.sampling import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORD_CHARACTERS,
    MAX_BAD_WORD_TEXTS,
)
from services.streamer.speculation import MAX_CORPORA
from services.worker.running.sampling import LONGEST_BAD_WORD, MAX_BAD_WORDS
from services.worker.verify.policy import ACCEPT_POLICIES, AUTO, LONGEST_WINDOW, MOST_CANDIDATES
from services.worker.verify.registry import STRATEGIES

Schema = dict[str, Any]


class RouteRow(Protocol):
    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def secured(self) -> bool: ...


def number(help: str, low: float, high: float, default: float | None = None) -> Schema:
    schema: Schema = {"type": "number", "minimum": low, "maximum": high, "description": help}
    return schema if default is None else {**schema, "default": default}


def integer(help: str, low: int | None = None, high: int | None = None) -> Schema:
    bounds = {"minimum": low, "maximum": high}
    given = {name: value for name, value in bounds.items() if value is not None}
    return {"type": "integer", "description": help, **given}


def boolean(help: str) -> Schema:
    return {"type": "boolean", "default": False, "description": help}


def list_of(items: Schema, help: str) -> Schema:
    return {"type": "array", "items": items, "description": help}


TEXT: Schema = {"type": "string"}
ABOVE_0: Schema = {"exclusiveMinimum": 0}
IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
NAMED: Schema = {"type": "string", "pattern": f"^{NAME.pattern}$"}
CONTENT: Schema = {
    "description": "Text, or text parts that are joined",
    "oneOf": [
        TEXT,
        list_of(
            {
                "type": "object",
                "required": ["type", "text"],
                "properties": {"type": {"const": "text"}, "text": TEXT},
            },
            "Text parts",
        ),
    ],
}

SPECULATION: Schema = {
    "type": "object",
    "description": "How drafts are made and checked for this request, within what the server allows",
    "additionalProperties": False,
    "properties": {
        "off": boolean("No drafts: the method naive, in other words"),
        "method": {"type": "string", "description": "A proposer; naive, or off: no drafts"},
        "num_speculative_tokens": integer("Longest draft", 0),
        "verify_strategy": {
            "type": "string",
            "enum": [AUTO, *STRATEGIES],
            "description": "What makes a drafted token stand; auto: the server's choice. greedy and target_match keep "
            "the text, rejection and block its distribution; those that change it only where the server allows it: "
            + ", ".join(name for name, each in STRATEGIES.items() if not each.lossless),
        },
        "accept_policy": {
            "type": "string",
            "enum": list(ACCEPT_POLICIES),
            "description": "For debugging; accept_all changes the text, so only where the server allows it",
        },
        "max_candidate_len": integer("topp: how many of the likeliest tokens count", 1, MOST_CANDIDATES),
        "verify_window": integer(
            "topp: so many likeliest tokens in a row let the second likeliest before them stand", 0, LONGEST_WINDOW
        ),
        "typical_epsilon": {**number("typical: a probability that suffices", 0, 1), **ABOVE_0},
        "typical_delta": {**number("typical: the factor of exp(-entropy) that does", 0, 1), **ABOVE_0},
        "trees": {
            "type": "boolean",
            "description": "Drafts may be trees: several guesses for one place. Default: the server's choice",
        },
        "corpus": {**NAMED, "description": "The corpus drafts may come from. Default: all of the namespace"},
        "corpora": {
            **list_of(NAMED, "The same for several; empty: from none"),
            "maxItems": MAX_CORPORA,
        },
        "namespace": {
            **NAMED,
            "description": "Drafts come from what was answered in it, and it learns from the answer. A part of the "
            "caller's own, or of everybody's where the server's setting shared_namespaces lists the name",
        },
        "learn": {
            "type": "boolean",
            "default": True,
            "description": "Whether later requests of the namespace may be drafted from this answer",
        },
    },
}
PREDICTION: Schema = {
    "type": "object",
    "description": "What the answer is expected to be like; it changes how soon it comes, never what it is. usage says "
    "how many of its tokens were drafted and stand, or do not",
    "required": ["type", "content"],
    "additionalProperties": False,
    "properties": {"type": {"const": "content"}, "content": CONTENT},
}
STREAM_OPTIONS: Schema = {
    "type": "object",
    "description": "Only with stream: true",
    "additionalProperties": False,
    "properties": {
        "include_usage": boolean("A last chunk with the usage and no choices"),
        "continuous_usage_stats": boolean("With include_usage: each chunk tells its choice's usage so far, too"),
    },
}
MESSAGE: Schema = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"type": "string", "enum": list(ROLES), "description": "developer is passed on as system"},
        "content": CONTENT,
        "name": TEXT,
    },
}
MESSAGES = {**list_of(MESSAGE, "The conversation so far"), "minItems": 1}
MODEL: Schema = {"type": "string", "description": "A name that /v1/models gives"}

SHARED: dict[str, Schema] = {
    "model": MODEL,
    "stream": boolean("Answer with server-sent events"),
    "stream_options": STREAM_OPTIONS,
    "n": integer("Answers to each prompt", 1),
    "stop": {
        "description": f"Up to 16 strings of at most {MAX_STOP_CHARACTERS} characters. The answer ends before "
        "the one that is completed first; usage counts the token that completed it",
        "oneOf": [TEXT, list_of(TEXT, "Several")],
    },
    "max_tokens": integer(
        "Longest answer; must fit the context. Default: 16 for completions, what is left of the context for chat", 1
    ),
    "min_tokens": integer("No end of text and no stop string before this many tokens", 0),
    "temperature": number("0: always the likeliest token, ties to the lowest id", 0, 2, 1.0),
    "top_p": number("Greater than 0", 0, 1, 1.0),
    "top_k": integer("0 or -1: off", -1),
    "min_p": number("Against the likeliest token's probability", 0, 1, 0.0),
    "seed": integer("The same request gives the same text in any batch. Answer i of n has a seed of its own"),
    "presence_penalty": number("Of tokens that were generated", -2, 2, 0.0),
    "frequency_penalty": number("Of tokens, as often as they were generated", -2, 2, 0.0),
    "repetition_penalty": number("Greater than 0; of tokens in the prompt and the answer", 0, 10, 1.0),
    "logit_bias": {
        "type": "object",
        "description": "Token id to a number in -100..100 added to its logit",
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    },
    "ignore_eos": boolean("Go on after the end of text"),
    "stop_token_ids": {**IDS, "description": "Further tokens that end the answer; not part of its text"},
    "bad_words": {
        **list_of({**TEXT, "minLength": 1, "maxLength": MAX_BAD_WORD_CHARACTERS}, ""),
        "maxItems": MAX_BAD_WORD_TEXTS,
        "description": "Words that are not said, neither as they begin a text nor as they follow a space: the last "
        "token of one isn't chosen behind its others. Other divisions into tokens may spell them",
    },
    "bad_words_token_ids": {
        **list_of({"oneOf": [{"type": "integer", "minimum": 0}, {**IDS, "maxItems": LONGEST_BAD_WORD}]}, ""),
        "maxItems": MAX_BAD_WORDS,
        "description": "The same in token ids; a single id is a word of one token",
    },
    "allowed_token_ids": {
        **IDS,
        "minItems": 1,
        "maxItems": MAX_ALLOWED_TOKEN_IDS,
        "description": "No other token is chosen, not even the end of text",
    },
    "speculation": SPECULATION,
    "prediction": PREDICTION,
    "priority": integer(
        "The lower goes first; each level is worth some seconds of waiting, so nobody waits for ever",
        -MOST_PRIORITY,
        MOST_PRIORITY,
    ),
    "cache_salt": {
        "type": "string",
        "maxLength": LONGEST_SALT,
        "description": "Computed text is shared only with requests that have the same salt. Empty: with all without",
    },
    "return_token_ids": boolean("Adds token_ids and prompt_token_ids to the answer"),
    "return_provenance": boolean(
        "Adds runs to every choice and chunk: of the tokens that one step gave their source, match_length, how many "
        "were drafted and accepted, and their number"
    ),
    "return_drafts": boolean(
        "Adds runs as return_provenance does, each with its step's number, the offsets (in characters) at which its "
        "tokens begin in the answer's text, and the text of each token that was drafted and rejected"
    ),
    "return_speculation_steps": boolean("Adds per_step_accepted and per_step_drafted to metrics.speculative_decoding"),
    "return_speculate_metrics": boolean("Adds FastDeploy's speculate_metrics to every choice that has ended"),
    "return_timeline": boolean("Adds metrics.timeline to the body, or to a stream's last chunk: what was when, in ms"),
    **{name: {"description": "Taken and without effect on the answer"} for name in WITHOUT_EFFECT},
}
CHAT: dict[str, Schema] = {
    "messages": MESSAGES,
    **SHARED,
    "max_completion_tokens": integer("The newer name of max_tokens", 1),
    "logprobs": boolean("With the log-probability of each token"),
    "top_logprobs": integer("And those of the likeliest; needs logprobs: true", 0, MAX_LOGPROBS),
}
COMPLETION: dict[str, Schema] = {
    "prompt": {
        "description": "A text, several, token ids, or several lists of them",
        "oneOf": [TEXT, list_of(TEXT, "Texts"), IDS, list_of(IDS, "Lists of token ids")],
    },
    **SHARED,
    "logprobs": integer("The log-probabilities of each token and of this many of the likeliest", 0, MAX_LOGPROBS),
    "best_of": integer("Not greater than n", 1),
}
TOKENIZE: dict[str, Schema] = {
    "model": MODEL,
    "prompt": TEXT,
    "add_special_tokens": {"type": "boolean", "default": True, "description": "Of a prompt"},
    "messages": {**MESSAGES, "description": "A conversation, in place of a prompt"},
    "add_generation_prompt": {"type": "boolean", "default": True, "description": "Of messages"},
}
DETOKENIZE: dict[str, Schema] = {"model": MODEL, "tokens": IDS}

# Whose corpora, beside the API key.
PLACE: dict[str, Schema] = {
    "namespace": {**NAMED, "description": "As in speculation.namespace of the requests that draft from it"},
    "cache_salt": {"type": "string", "maxLength": LONGEST_SALT, "description": "As in those requests"},
}
CORPUS: dict[str, Schema] = {
    "name": {**NAMED, "description": "What was there under this name is replaced when the last part is in"},
    "text": TEXT,
    "texts": {**list_of(TEXT, "In place of a text"), "maxItems": MAX_TEXTS},
    "part": {**integer("Its number, from 0, when a corpus comes in several requests", 0), "default": 0},
    "last": {"type": "boolean", "default": True, "description": "Whether no part comes after this one"},
    **PLACE,
}
EXTERNAL_CORPUS: dict[str, Schema] = {
    "corpus_id": {**NAMED, "description": "Its name. Default: one is made"},
    "documents": {**list_of(TEXT, "Texts; file_path is not taken"), "maxItems": MAX_TEXTS},
    "token_chunks": {**list_of(IDS, "The same as token ids"), "maxItems": MAX_TEXTS},
}

BODIES: dict[str, tuple[dict[str, Schema], list[str]]] = {
    "/v1/chat/completions": (CHAT, ["model", "messages"]),
    "/v1/completions": (COMPLETION, ["model", "prompt"]),
    "/tokenize": (TOKENIZE, []),
    "/detokenize": (DETOKENIZE, ["tokens"]),
    "/v1/corpora": (CORPUS, ["name"]),
    "/add_external_corpus": (EXTERNAL_CORPUS, []),
    "/remove_external_corpus": ({"corpus_id": NAMED}, ["corpus_id"]),
    "/v1/mesh/kill": ({"role": {"type": "string", "enum": list(KILLED_ROLES)}}, ["role"]),
}
STREAMS = ("/v1/chat/completions", "/v1/completions")

ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": TEXT,
                "type": TEXT,
                "param": {"type": ["string", "null"], "description": "The field at fault"},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
PROBLEMS = {
    "400": "The request is wrong; param names the field",
    "401": "The API key is missing or wrong",
    "404": "No such model or path",
    "405": "The path takes another method",
    "408": "The request did not arrive in time",
    "413": "The body is too large",
    "415": "The body is not application/json",
    "429": "As many requests as the server can hold; see Retry-After",
    "503": "Draining, or a part of the server is missing; see Retry-After",
    "504": "The request took longer than the server allows",
}


def document(routes: Sequence[RouteRow], version: str) -> Schema:
    paths: dict[str, dict[str, Schema]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "specmesh",
            "version": version,
            "description": "Fields that are not listed are refused with a 400 that names them; null means not given.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: RouteRow) -> Schema:
    operation: Schema = {"summary": route.summary, "responses": _responses(route)}
    if "{model}" in route.path:
        operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": TEXT}]
    if route.path.startswith("/v1/corpora") and route.method != "POST":
        named = [{"name": "name", "in": "path", "required": True, "schema": NAMED}] if "{name}" in route.path else []
        operation["parameters"] = named + [{"name": name, "in": "query", "schema": PLACE[name]} for name in PLACE]
    if route.path in BODIES and route.method == "POST":
        properties, required = BODIES[route.path]
        schema: Schema = {"type": "object", "properties": properties, "required": required}
        schema["additionalProperties"] = False
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if route.secured:
        operation["security"] = [{"key": []}, {}]  # keys are asked for only where the server has some
    return operation


def _responses(route: RouteRow) -> Schema:
    if route.path == "/":
        return {"307": {"description": "To /docs"}}
    kinds = ["text/html"] if route.path == "/docs" else ["application/json"]
    if route.path in STREAMS:
        kinds.append("text/event-stream")
    done = {"description": "Done", "content": {kind: {} for kind in kinds}}
    # A corpus is taken, and built later; a process is told to die, and does.
    later = (route.method, route.path) in (("POST", "/v1/corpora"), ("POST", "/v1/mesh/kill"))
    responses: Schema = {"202" if later else "200": done}
    problems = PROBLEMS if route.path in BODIES else {}
    if route.path == "/v1/models/{model}":
        problems = {"404": PROBLEMS["404"]}
    if route.path == "/health/ready":
        responses["503"] = {"description": "Not ready; the body says why", "content": {"application/json": {}}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return responses | {code: {"description": text, "content": error} for code, text in problems.items()}

"""The OpenAPI document, made from the table of routes and the fields below. Pure.

Tests check that every route is in it and that every field is one that request.py reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from services.api.messages import LONGEST_SALT
from services.api.methods import METHODS, OFF
from services.api.names import NAME
from services.api.parameters import Parameter
from services.api.sampling import IDS, PARAMETERS
from services.api.sampling_defaults import SamplingDefaults
from services.api.strategies import ACCEPT_POLICIES, LONGEST_WINDOW, MOST_CANDIDATES, STRATEGIES
from services.api.strategies import AUTO as STRATEGY_AUTO
from services.streamer.door.access import API_KEY
from services.streamer.extras.corpora import MAX_TEXTS
from services.streamer.extras.mesh_map import KILLED_ROLES
from services.streamer.messages import errors as messages_errors
from services.streamer.messages import schema as messages_schema
from services.streamer.messages.request import SAME
from services.streamer.openai.conversation import EFFORTS, MAX_KWARGS, ROLES
from services.streamer.openai.embeddings import ALSO as ALSO_OF_EMBEDDING
from services.streamer.openai.embeddings import MAX_INPUTS, MAX_TOKENS_IN_ALL
from services.streamer.openai.embeddings import ROWS as OF_EMBEDDING
from services.streamer.openai.embeddings import WITHOUT_EFFECT as WITHOUT_EFFECT_ON_EMBEDDINGS
from services.streamer.openai.request import (
    MAX_STOP_CHARACTERS,
    OF_CHAT,
    OF_COMPLETION,
    SHARED,
    WITHOUT_EFFECT,
)
from services.streamer.openai.sampling import (
    MAX_BAD_WORD_CHARACTERS,
    MAX_BAD_WORD_TEXTS,
)
from services.streamer.openai.speculation import MAX_CORPORA
from services.streamer.openai.structural_tags import KINDS
from services.streamer.openai.structured import FORMATS, MAX_CHOICES
from services.streamer.openai.tools import ALLOWED, AUTO, MAX_CALLS, MAX_TOOLS, NONE, REQUIRED, TOOL_NAME
from services.streamer.responses import described
from services.streamer.responses.body import OF_RESPONSE, SHARED_HERE

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
    "description": "How drafts are made and verified for this request, within what the server allows",
    "additionalProperties": False,
    "properties": {
        "off": boolean("No drafts; the same as method naive"),
        "method": {
            "type": "string",
            "enum": [*METHODS, OFF],
            "description": "How drafts are made; naive and off: no drafts. Default: the server's choice",
        },
        "num_speculative_tokens": integer("Maximum draft length, in tokens", 0),
        "verify_strategy": {
            "type": "string",
            "enum": [STRATEGY_AUTO, *STRATEGIES],
            "description": "Rule that accepts draft tokens; auto: the server's choice. greedy and target_match keep "
            "the text, rejection and block its distribution; these change it and need the server's allow_lossy: "
            + ", ".join(name for name, each in STRATEGIES.items() if not each.lossless),
        },
        "accept_policy": {
            "type": "string",
            "enum": list(ACCEPT_POLICIES),
            "description": "For debugging; accept_all changes the text and needs the server's allow_lossy",
        },
        "max_candidate_len": integer(
            "topp: accept a draft token if it is among this number of most probable tokens", 1, MOST_CANDIDATES
        ),
        "verify_window": integer(
            "topp: accept the second most probable token if this number of most probable ones follow", 0, LONGEST_WINDOW
        ),
        "typical_epsilon": {**number("typical: accept a draft token of at least this probability", 0, 1), **ABOVE_0},
        "typical_delta": {
            **number("typical: also accept one of at least this value times exp(-entropy)", 0, 1),
            **ABOVE_0,
        },
        "trees": {
            "type": "boolean",
            "description": "A head may draft trees, with several tokens for one position. Default: the server's choice",
        },
        "corpus": {**NAMED, "description": "The corpus to draft from. Default: all of the namespace"},
        "corpora": {
            **list_of(NAMED, "Several corpora to draft from; empty: none"),
            "maxItems": MAX_CORPORA,
        },
        "namespace": {
            **NAMED,
            "description": "Name of the namespace whose earlier answers drafts come from, and which learns from this "
            "answer. It belongs to the caller alone, unless the setting shared_namespaces lists the name",
        },
        "learn": {
            "type": "boolean",
            "default": True,
            "description": "Whether drafts of later requests in the namespace may come from this answer",
        },
    },
}
PREDICTION: Schema = {
    "type": "object",
    "description": "The expected answer. It can make the answer faster and never changes it; usage counts its draft "
    "tokens that were accepted and rejected",
    "required": ["type", "content"],
    "additionalProperties": False,
    "properties": {"type": {"const": "content"}, "content": CONTENT},
}
STREAM_OPTIONS: Schema = {
    "type": "object",
    "description": "Only with stream: true",
    "additionalProperties": False,
    "properties": {
        "include_usage": boolean("Send a last chunk with the usage and no choices"),
        "continuous_usage_stats": boolean("With include_usage: every chunk has the usage of its choice so far"),
        "include_obfuscation": {"const": False, "description": "For OpenAI's clients: chunks are never padded"},
    },
}
JSON_SCHEMA: Schema = {"type": ["object", "boolean", "string"], "description": "A JSON schema, or its JSON as text"}
CHOICES: Schema = {**list_of(TEXT, "The answer is one of these texts"), "minItems": 1, "maxItems": MAX_CHOICES}
REGEX: Schema = {"type": "string", "description": "The whole answer matches it; without look-around and references"}
GRAMMAR: Schema = {
    "type": "string",
    "description": "A grammar in Lark, as llguidance reads it, with a rule start; or in GBNF or EBNF, with a rule root",
}
WHITESPACE: Schema = {"type": "string", "description": "A regular expression for the white space of JSON"}
STRUCTURES: Schema = list_of(
    {
        "type": "object",
        "required": ["begin", "end"],
        "additionalProperties": False,
        "properties": {"begin": TEXT, "schema": JSON_SCHEMA, "end": TEXT},
    },
    "Of a structural tag: JSON between two texts",
)
# xgrammar's; those in it are of the same shape.
TAG_FORMAT: Schema = {
    "type": "object",
    "description": "Of a structural tag: what the answer is, in place of structures and triggers",
    "required": ["type"],
    "properties": {"type": {"type": "string", "enum": list(KINDS)}},
}
RESPONSE_FORMAT: Schema = {
    "type": "object",
    "description": "What the answer is: JSON, JSON of a schema, or text with such in it. Whether drafts are used "
    "changes nothing",
    "required": ["type"],
    "properties": {
        "type": {"type": "string", "enum": list(FORMATS)},
        "structures": STRUCTURES,
        "triggers": list_of(TEXT, "Texts at which one of the structures begins"),
        "format": TAG_FORMAT,
        "json_schema": {
            "type": "object",
            "required": ["schema"],
            "properties": {
                "schema": JSON_SCHEMA,
                "name": TEXT,
                "description": TEXT,
                "strict": {"type": "boolean", "description": "Without effect: the schema always holds"},
            },
        },
    },
}
STRUCTURED_OUTPUTS: Schema = {
    "type": "object",
    "description": "vLLM's field: exactly one of json, regex, choice, grammar, structural_tag and json_object",
    "properties": {
        "json": JSON_SCHEMA,
        "regex": REGEX,
        "choice": CHOICES,
        "grammar": GRAMMAR,
        "structural_tag": {"type": ["object", "string"], "description": "As in response_format, or its JSON as text"},
        "json_object": boolean("Any JSON object"),
        "whitespace_pattern": WHITESPACE,
        "disable_any_whitespace": boolean("JSON without white space"),
    },
}
FUNCTION: Schema = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "pattern": f"^{TOOL_NAME.pattern}$"},
        "description": TEXT,
        "parameters": {"type": "object", "description": "JSON schema of the arguments"},
        "strict": {"type": "boolean", "description": "Arguments follow their schema, also with tool_choice auto"},
    },
}
TOOLS: Schema = {
    "type": "array",
    "maxItems": MAX_TOOLS,
    "description": "Functions that the answer may call",
    "items": {
        "type": "object",
        "required": ["type", "function"],
        "additionalProperties": False,
        "properties": {"type": {"const": "function"}, "function": FUNCTION},
    },
}
TOOL_CALL: Schema = {
    "type": "object",
    "required": ["function"],
    "properties": {
        "id": TEXT,
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": TEXT, "arguments": {**TEXT, "description": "A JSON object as text"}},
        },
    },
}
MESSAGE: Schema = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"type": "string", "enum": list(ROLES), "description": "developer is passed on as system"},
        "content": CONTENT,
        "name": TEXT,
        "tool_calls": {**list_of(TOOL_CALL, "Of the assistant: calls; they need no content"), "maxItems": MAX_CALLS},
        "tool_call_id": {**TEXT, "description": "Of a tool's result: the call that it answers"},
        "reasoning_content": {**TEXT, "description": "Of the assistant: its reasoning, for templates that read it"},
    },
}
NAMED_FUNCTION: Schema = {
    "type": "object",
    "required": ["function"],
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "required": ["name"], "properties": {"name": TEXT}},
    },
}
TEMPLATE_FIELDS: dict[str, Schema] = {
    "tools": TOOLS,
    "tool_choice": {
        "description": "auto: the model decides whether to call a tool; none: it is told of no tools; required, or an "
        "object that names a function: it calls one, with arguments of the schema",
        "default": AUTO,
        "oneOf": [
            {"enum": [NONE, AUTO, REQUIRED]},
            NAMED_FUNCTION,
            {
                "type": "object",
                "description": "Among these tools alone, of which the model is told",
                "required": ["type", ALLOWED],
                "properties": {
                    "type": {"const": ALLOWED},
                    ALLOWED: {
                        "type": "object",
                        "required": ["mode", "tools"],
                        "properties": {
                            "mode": {"enum": [AUTO, REQUIRED]},
                            "tools": {**list_of(NAMED_FUNCTION, "By name"), "maxItems": MAX_TOOLS},
                        },
                    },
                },
            },
        ],
    },
    "parallel_tool_calls": {
        "type": "boolean",
        "default": True,
        "description": "false: calls after the first are left out of the answer",
    },
    "chat_template_kwargs": {
        "type": "object",
        "maxProperties": MAX_KWARGS,
        "description": "Variables of the chat template, such as enable_thinking",
    },
    "reasoning_effort": {
        "enum": list(EFFORTS),
        "description": "Of the chat template, as its variables reasoning_effort and enable_thinking (false with none)",
    },
}
MESSAGES = {**list_of(MESSAGE, "The conversation so far"), "minItems": 1}
MODEL: Schema = {"type": "string", "description": "A name that /v1/models gives"}

def rows(*tables: Mapping[str, Parameter]) -> dict[str, Schema]:
    return {name: row.described() for table in tables for name, row in table.items()}


# Beside the rows of the sampling parameters (services/api/sampling.py) and of request.py: what is no number, boolean or
# text.
BOTH: dict[str, Schema] = {
    "model": MODEL,
    "stream_options": STREAM_OPTIONS,
    "n": integer("Number of answers to each prompt", 1),
    "stop": {
        "description": f"Up to 16 strings of at most {MAX_STOP_CHARACTERS} characters. The answer ends before "
        "the one that is completed first; usage counts the token that completed it",
        "oneOf": [TEXT, list_of(TEXT, "Several")],
    },
    "bad_words": {
        **list_of({**TEXT, "minLength": 1, "maxLength": MAX_BAD_WORD_CHARACTERS}, ""),
        "maxItems": MAX_BAD_WORD_TEXTS,
        "description": "Forbidden words, at the start of a text and after a space: the last token of a word isn't "
        "generated after its other tokens. Other token sequences may still spell them",
    },
    "response_format": RESPONSE_FORMAT,
    "structured_outputs": STRUCTURED_OUTPUTS,
    "guided_json": JSON_SCHEMA,
    "guided_regex": REGEX,
    "guided_choice": CHOICES,
    "guided_grammar": GRAMMAR,
    "guided_json_object": boolean("Any JSON object"),
    "guided_whitespace_pattern": {**WHITESPACE, "description": "With guided_json: of its white space"},
    "speculation": SPECULATION,
    "prediction": PREDICTION,
    "return_drafts": boolean(
        "Adds runs as return_provenance does, each with its step's number, the offsets of its tokens in the answer's "
        "text (in characters), and the text of each rejected draft token"
    ),
    **{name: {"description": "Accepted, without effect on the answer"} for name in WITHOUT_EFFECT},
}
CHAT: dict[str, Schema] = {
    "messages": MESSAGES,
    **TEMPLATE_FIELDS,
    "include_reasoning": {
        "type": "boolean",
        "default": True,
        "description": "false: the reasoning before an answer is left out",
    },
    **BOTH,
    **rows(SHARED, PARAMETERS, OF_CHAT),
}
COMPLETION: dict[str, Schema] = {
    "prompt": {
        "description": "A text, a list of texts, token ids, or a list of lists of them",
        "oneOf": [TEXT, list_of(TEXT, "Texts"), IDS, list_of(IDS, "Lists of token ids")],
    },
    "text": {**TEXT, "description": "PaddleNLP's name of prompt, in its place"},
    **BOTH,
    **rows(SHARED, PARAMETERS, OF_COMPLETION),
    "best_of": integer("Not greater than n", 1),
}
EMBEDDINGS: dict[str, Schema] = {
    "model": MODEL,
    "input": {
        "description": f"A text, a list of texts, token ids, or a list of lists of them: at most {MAX_INPUTS}, of "
        f"{MAX_TOKENS_IN_ALL} tokens in all",
        "oneOf": [TEXT, list_of(TEXT, "Texts"), IDS, list_of(IDS, "Lists of token ids")],
    },
    **rows(OF_EMBEDDING, ALSO_OF_EMBEDDING),
    **{name: BOTH[name] for name in WITHOUT_EFFECT_ON_EMBEDDINGS},
}
# As in chats.
ALSO_OF_RESPONSES = (
    "model", "stop", "bad_words", "speculation", "prediction", "user", "safety_identifier", "parallel_tool_calls",
    "chat_template_kwargs", "thinking_token_budget",
)  # fmt: skip
RESPONSE: dict[str, Schema] = {
    **described.FIELDS,
    **{name: CHAT[name] for name in ALSO_OF_RESPONSES},
    **rows(SHARED_HERE, PARAMETERS, OF_RESPONSE),
}
TOKENIZE: dict[str, Schema] = {
    "model": MODEL,
    "prompt": TEXT,
    "add_special_tokens": {"type": "boolean", "default": True, "description": "Applies to prompt"},
    "messages": {**MESSAGES, "description": "A conversation, instead of a prompt"},
    "add_generation_prompt": {"type": "boolean", "default": True, "description": "Applies to messages"},
    **TEMPLATE_FIELDS,
}
DETOKENIZE: dict[str, Schema] = {"model": MODEL, "tokens": IDS}

# Whose corpora, beside the API key.
PLACE: dict[str, Schema] = {
    "namespace": {**NAMED, "description": "As in speculation.namespace of the requests that draft from it"},
    "cache_salt": {"type": "string", "maxLength": LONGEST_SALT, "description": "As in those requests"},
}
CORPUS: dict[str, Schema] = {
    "name": {**NAMED, "description": "An existing corpus of this name is replaced when the last part has arrived"},
    "text": TEXT,
    "texts": {**list_of(TEXT, "Several texts, instead of text"), "maxItems": MAX_TEXTS},
    "part": {**integer("Number of the part, from 0, if the corpus is sent in several requests", 0), "default": 0},
    "last": {"type": "boolean", "default": True, "description": "Whether this is the last part"},
    **PLACE,
}
EXTERNAL_CORPUS: dict[str, Schema] = {
    "corpus_id": {**NAMED, "description": "Name of the corpus. Default: a new one"},
    "documents": {**list_of(TEXT, "Texts; file_path is not supported"), "maxItems": MAX_TEXTS},
    "token_chunks": {**list_of(IDS, "The same as token ids"), "maxItems": MAX_TEXTS},
}

BODIES: dict[str, tuple[dict[str, Schema], list[str]]] = {
    "/v1/chat/completions": (CHAT, ["model", "messages"]),
    "/v1/completions": (COMPLETION, ["model", "prompt"]),
    "/v1/messages": (messages_schema.create({name: CHAT[name] for name in SAME}), ["model", "messages", "max_tokens"]),
    "/v1/messages/count_tokens": (messages_schema.PROMPT, ["model", "messages"]),
    "/v1/embeddings": (EMBEDDINGS, ["model", "input"]),
    "/v1/responses": (RESPONSE, ["model", "input"]),
    "/tokenize": (TOKENIZE, []),
    "/detokenize": (DETOKENIZE, ["tokens"]),
    "/v1/corpora": (CORPUS, ["name"]),
    "/add_external_corpus": (EXTERNAL_CORPUS, []),
    "/remove_external_corpus": ({"corpus_id": NAMED}, ["corpus_id"]),
    "/v1/mesh/kill": ({"role": {"type": "string", "enum": list(KILLED_ROLES)}}, ["role"]),
}
STREAMS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")

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
    "403": "A page of another site asks, and the server has no API keys",
    "404": "No such model, response or path",
    "405": "The path takes another method",
    "408": "The request did not arrive in time",
    "413": "The body is too large",
    "415": "The body is not application/json",
    "421": "The Host header is not in allowed_hosts, and the server has no API keys",
    "429": "The server has as many requests as it can hold; see Retry-After",
    "503": "Draining, or a part of the server is missing; see Retry-After",
    "504": "The request took longer than the server allows",
}


def document(routes: Sequence[RouteRow], version: str, sampling: SamplingDefaults | None = None) -> Schema:
    """`sampling`: the defaults of this server."""
    defaults = asdict(sampling or SamplingDefaults())
    paths: dict[str, dict[str, Schema]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, defaults)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "specmesh",
            "version": version,
            "description": "Fields that are not listed are refused with a 400 that names them; null means not given.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR, "MessagesError": messages_schema.ERROR},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "x_api_key": {"type": "apiKey", "in": "header", "name": API_KEY},
            },
        },
    }


def _operation(route: RouteRow, defaults: Mapping[str, float]) -> Schema:
    operation: Schema = {"summary": route.summary, "responses": _responses(route)}
    for name in ("model", "response_id"):
        if f"{{{name}}}" in route.path:
            operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": TEXT}]
    if route.path.startswith("/v1/corpora") and route.method != "POST":
        named = [{"name": "name", "in": "path", "required": True, "schema": NAMED}] if "{name}" in route.path else []
        operation["parameters"] = named + [{"name": name, "in": "query", "schema": PLACE[name]} for name in PLACE]
    if route.path in BODIES and route.method == "POST":
        properties, required = BODIES[route.path]
        if "temperature" in properties:
            of_server = {name: value for name, value in defaults.items() if name in properties}
            properties = properties | {name: {**properties[name], "default": each} for name, each in of_server.items()}
        schema: Schema = {"type": "object", "properties": properties, "required": required}
        schema["additionalProperties"] = False
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if route.secured:
        # Keys are asked for only where the server has some.
        operation["security"] = [{"key": []}, {"x_api_key": []}, {}]
    return operation


def _responses(route: RouteRow) -> Schema:
    kinds = [{"/": "text/html", "/docs": "text/html", "/metrics": "text/plain"}.get(route.path, "application/json")]
    if route.path in STREAMS:
        kinds.append("text/event-stream")
    done = {"description": "Done", "content": {kind: {} for kind in kinds}}
    # A corpus is accepted and built later; a kill is accepted and happens later.
    later = (route.method, route.path) in (("POST", "/v1/corpora"), ("POST", "/v1/mesh/kill"))
    responses: Schema = {"202" if later else "200": done}
    problems = PROBLEMS if route.path in BODIES else {}
    if route.path in ("/v1/models/{model}", "/v1/responses/{response_id}"):
        problems = {"404": PROBLEMS["404"]}
    if route.path == "/metrics":
        problems = {"403": "The setting api_metrics doesn't show them to this client"}
    if route.path in ("/health", "/health/ready", "/ping"):
        responses["503"] = {"description": "Not ready; the body says why", "content": {"application/json": {}}}
    of_messages = messages_errors.speaks_messages(route.path)
    if of_messages:
        problems = {str(messages_errors.OVERLOADED.get(int(code), code)): text for code, text in problems.items()}
    named = "MessagesError" if of_messages else "Error"
    error = {"application/json": {"schema": {"$ref": f"#/components/schemas/{named}"}}}
    return responses | {code: {"description": text, "content": error} for code, text in problems.items()}

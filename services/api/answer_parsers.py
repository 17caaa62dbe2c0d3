"""Names of the parsers that a server may be told to use: of tool calls, and of reasoning. services/streamer/agents has
them."""

from __future__ import annotations

AUTO = "auto"  # by the model's chat template
NONE = "none"

TOOL_CALL_PARSERS = (
    "hermes", "qwen3_coder", "llama3_json", "pythonic", "mistral", "deepseek_v3", "deepseek_v31", "ernie45",
    "glm45", "kimi_k2", "openai",
)  # fmt: skip
REASONING_PARSERS = ("deepseek_r1", "qwen3", "ernie45", "openai_gptoss")

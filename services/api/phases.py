"""Phases of workers: which part of a request's work one takes. It says what streamers send a worker, and nothing about
what it can do: each can compute prompts and generate, so those of one phase replace lost ones of another."""

from __future__ import annotations

ALL, PREFILL, DECODE = "all", "prefill", "decode"
PHASES = (ALL, PREFILL, DECODE)

"""specmesh's drafts under vLLM (docs/use/vllm.md):

    vllm serve MODEL --speculative-config \\
        '{"method": "custom_class", "model": "specmesh.vllm.Drafter", "num_speculative_tokens": 16}'

Imports nothing of ours but this folder, and of others' pyzmq and msgspec, which vLLM needs itself.
"""

from specmesh.vllm.drafter import Drafter as Drafter

__all__ = ["Drafter"]

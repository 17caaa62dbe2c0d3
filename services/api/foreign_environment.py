"""Environment variables that other servers read, and what each is here. None of them is read: settings come from flags,
SPECMESH_* and a file. Those that are set are told at the start, with what to write instead.

The one table for starts and `specmesh explain`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from services.api.foreign_flags import FOREIGN, KERNELS, LENGTH_OF_ANSWERS, SOCKETS, key_of
from services.api.speculative_config import FLAGS, KEYS

GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Variable:
    """Means the same as `flag`, or has no effect, as `note` says. `common`: other programs have the name, too, so that
    it counts only beside one that they don't have."""

    name: str
    of: str
    flag: str = ""
    note: str = ""
    common: bool = False

    @property
    def row(self) -> str:
        """Our setting, or ""."""
        if self.flag in FLAGS:
            return KEYS[FLAGS[self.flag]]
        key = key_of(self.flag)
        return FOREIGN[key].row if key in FOREIGN else key


PADDLENLP, FASTDEPLOY = "PaddleNLP", "FastDeploy"
_HTTP_ONLY = "without effect: clients use HTTP, there is no gRPC"
_HEALTH = "without effect: /health is served at --port, and by each process at its --metrics-port"
_PAGES = "without effect: KV pages get what weights and steps leave of --gpu-memory-utilization"
_LOG = "without effect: the log is on stderr"

VARIABLES: dict[str, Variable] = {
    row.name: row
    for row in (
        Variable("SPECULATE_METHOD", PADDLENLP, "--speculate_method"),
        Variable("SPECULATE_MODEL_PATH", PADDLENLP, "--draft_model_name_or_path"),
        Variable("SPECULATE_MODEL_QUANT_TYPE", PADDLENLP, "--draft_model_quant_type"),
        Variable("SPECULATE_MAX_DRAFT_TOKEN_NUM", PADDLENLP, "--speculate_max_draft_token_num"),
        Variable("SPECULATE_VERIFY_USE_TOPK", PADDLENLP,
                 note="without effect: drafts don't change the text; --verify-strategy topp is the rule it turns off"),
        Variable("MP_NUM", PADDLENLP, "--tensor-parallel-size"),
        Variable("MP_NNODE", PADDLENLP, "--nnodes"),
        Variable("POD_IPS", PADDLENLP, "--ips"),
        Variable("POD_0_IP", PADDLENLP, "--master-addr"),
        Variable("SERVICE_HTTP_PORT", PADDLENLP, "--port"),
        Variable("PUSH_MODE_HTTP_PORT", PADDLENLP, "--port"),
        Variable("METRICS_HTTP_PORT", PADDLENLP, "--metrics-port"),
        Variable("PUSH_MODE_HTTP_WORKERS", PADDLENLP, "--streamers"),
        Variable("MAX_CACHED_TASK_NUM", PADDLENLP, "--max-waiting"),
        Variable("HEALTH_HTTP_PORT", PADDLENLP, note=_HEALTH),
        Variable("SERVICE_GRPC_PORT", PADDLENLP, note=_HTTP_ONLY),
        Variable("INTER_PROC_PORT", PADDLENLP, note=SOCKETS),
        Variable("BLOCK_BS", PADDLENLP, note=_PAGES),
        Variable("BLOCK_RATIO", PADDLENLP, note=_PAGES),
        Variable("FLAGS_mla_use_tensorcore", PADDLENLP, note=KERNELS),
        Variable("FLAGS_cascade_attention_max_partition_size", PADDLENLP, note=KERNELS),
        Variable("BATCH_SIZE", PADDLENLP, "--max-sequences", common=True),
        Variable("MAX_SEQ_LEN", PADDLENLP, "--max-context", common=True),
        Variable("MAX_DEC_LEN", PADDLENLP, note=LENGTH_OF_ANSWERS, common=True),
        Variable("MODEL_DIR", PADDLENLP, "--model", common=True),
        Variable("FD_LOG_DIR", FASTDEPLOY, note=_LOG),
    )
}  # fmt: skip
NO_GPU = "without effect: there is no GPU here"


def told(environment: Mapping[str, str], origin: Callable[[str], str], devices: Path = Path("/dev")) -> Iterator[str]:
    """What to say of the variables that are set. `origin` of a setting: one that was given in another way needs no
    hint."""
    found = [VARIABLES[name] for name, value in environment.items() if name in VARIABLES and _is_theirs(value)]
    for each in found if any(not each.common for each in found) else ():
        if not each.flag:
            yield f"environment {each.name}: {each.note}"
        elif origin("nnodes" if each.flag == "--ips" else each.row) == "default":
            yield f"environment {each.name}: not read: {instead(each, environment[each.name])}"
    if environment.get(GPUS, "") not in ("", "-1", "none") and not any(devices.glob("nvidia[0-9]*")):
        yield f"environment {GPUS}: {NO_GPU}"


def instead(variable: Variable, value: str) -> str:
    """What to write for it."""
    refused = FOREIGN[key_of(variable.flag)].why if variable.flag == "--ips" else ""
    return refused or f"write {variable.flag} {value}"


def here(variable: Variable) -> str:
    """What it is here, in words, for `specmesh explain`."""
    return f"not read: {instead(variable, 'VALUE')}" if variable.flag else variable.note


def _is_theirs(value: str) -> bool:
    """Kubernetes sets NAME_PORT=tcp://… for each service."""
    return value != "" and "://" not in value

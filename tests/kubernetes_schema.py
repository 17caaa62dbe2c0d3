"""The part of Kubernetes' object schemas that deploy/kubernetes and deploy/kuberay use. A field that isn't here is a
mistake, or has to be added with its type.

A type is a Python type, a set of words, a compiled pattern, [type] for a list, {str: type} for a map of any keys, or
`Fields`: names with types, of which those ending in ! are needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
QUANTITY = re.compile(r"\d+(\.\d+)?(m|Ki|Mi|Gi|Ti)?$")
IMAGE = re.compile(r"[a-z0-9./-]+:[a-zA-Z0-9._-]+$")
PATH = re.compile(r"/[\w./-]*$")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*$")
PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9-]{1,15}$")


class Fields(dict[str, Any]):
    pass


META = Fields({"name!": NAME, "namespace": NAME, "labels": {str: str}, "annotations": {str: str}})
LABELS = Fields({"matchLabels!": {str: str}})
PORT = object()  # a name of a port, or its number
HTTP_GET = Fields({"path!": PATH, "port!": PORT})
PROBE = Fields(
    {
        "httpGet": HTTP_GET, "tcpSocket": Fields({"port!": PORT}), "exec": Fields({"command!": [str]}),
        "periodSeconds": int, "timeoutSeconds": int, "failureThreshold": int, "initialDelaySeconds": int,
    }
)  # fmt: skip
ENV = Fields(
    {
        "name!": VARIABLE, "value": str,
        "valueFrom": Fields({"fieldRef": Fields({"fieldPath!": {"status.podIP", "metadata.name"}})}),
    }
)  # fmt: skip
RESOURCES = Fields({"requests": {str: QUANTITY}, "limits": {str: QUANTITY}})
CONTAINER = Fields(
    {
        "name!": NAME, "image!": IMAGE, "command": [str], "args": [str], "env": [ENV],
        "envFrom": [Fields({"configMapRef!": Fields({"name!": NAME})})],
        "ports": [Fields({"name!": PORT_NAME, "containerPort!": int})],
        "securityContext!": Fields(
            {
                "allowPrivilegeEscalation!": bool, "readOnlyRootFilesystem!": bool,
                "capabilities!": Fields({"drop!": [str]}),
            }
        ),
        "startupProbe": PROBE, "readinessProbe": PROBE, "livenessProbe": PROBE, "resources!": RESOURCES,
        "volumeMounts": [Fields({"name!": NAME, "mountPath!": PATH, "readOnly": bool})],
    }
)  # fmt: skip
SECRET_VOLUME = Fields(
    {"secretName!": NAME, "defaultMode": int, "items": [Fields({"key!": str, "path!": str})]}
)
VOLUME = Fields(
    {"name!": NAME, "emptyDir": Fields({"medium": {"Memory"}, "sizeLimit": QUANTITY}), "secret": SECRET_VOLUME}
)
SPREAD = Fields(
    {
        "maxSkew!": int, "topologyKey!": str, "whenUnsatisfiable!": {"ScheduleAnyway", "DoNotSchedule"},
        "labelSelector!": LABELS,
    }
)  # fmt: skip
POD = Fields(
    {
        "automountServiceAccountToken!": bool, "terminationGracePeriodSeconds!": int,
        "securityContext!": Fields(
            {
                "runAsNonRoot!": bool, "runAsUser!": int, "runAsGroup!": int, "fsGroup!": int,
                "seccompProfile!": Fields({"type!": {"RuntimeDefault"}}),
            }
        ),
        "topologySpreadConstraints": [SPREAD], "initContainers": [CONTAINER], "containers!": [CONTAINER],
        "volumes": [VOLUME],
        "tolerations": [Fields({"key!": str, "operator!": {"Exists"}, "effect!": {"NoSchedule"}})],
    }
)  # fmt: skip
TEMPLATE = Fields({"metadata!": Fields({"labels!": {str: str}, "annotations": {str: str}}), "spec!": POD})
STRATEGY = Fields(
    {"type!": {"Recreate", "RollingUpdate"}, "rollingUpdate": Fields({"maxSurge!": int, "maxUnavailable!": int})}
)
CLAIM = Fields(
    {
        "metadata!": META,
        "spec!": Fields({"accessModes!": [str], "resources!": Fields({"requests!": {str: QUANTITY}})}),
    }
)
PEER = Fields({"podSelector": LABELS, "namespaceSelector": LABELS})
RULE = Fields({"from": [PEER], "ports": [Fields({"protocol": {"TCP"}, "port!": PORT})]})
RAY_PARAMS = {str: str}

SPECS: dict[tuple[str, str], Fields] = {
    ("v1", "Namespace"): Fields({}),
    ("v1", "ConfigMap"): Fields({"data!": {VARIABLE: str}}),
    ("v1", "Service"): Fields(
        {
            "spec!": Fields(
                {
                    "selector!": {str: str}, "clusterIP": {"None"}, "publishNotReadyAddresses": bool,
                    "ports!": [Fields({"name!": PORT_NAME, "port!": int, "targetPort!": PORT})],
                }
            )
        }
    ),
    ("apps/v1", "Deployment"): Fields(
        {"spec!": Fields({"replicas!": int, "selector!": LABELS, "strategy!": STRATEGY, "template!": TEMPLATE})}
    ),
    ("apps/v1", "StatefulSet"): Fields(
        {
            "spec!": Fields(
                {
                    "replicas!": int, "selector!": LABELS, "serviceName!": NAME, "template!": TEMPLATE,
                    "volumeClaimTemplates": [CLAIM],
                }
            )
        }
    ),
    ("policy/v1", "PodDisruptionBudget"): Fields(
        {"spec!": Fields({"maxUnavailable!": int, "selector!": LABELS})}
    ),
    ("networking.k8s.io/v1", "NetworkPolicy"): Fields(
        {"spec!": Fields({"podSelector!": LABELS, "policyTypes!": [str], "ingress!": [RULE]})}
    ),
    ("ray.io/v1", "RayCluster"): Fields(
        {
            "spec!": Fields(
                {
                    "rayVersion!": str, "authOptions!": Fields({"mode!": {"token"}}),
                    "headGroupSpec!": Fields(
                        {"serviceType": {"ClusterIP"}, "rayStartParams!": RAY_PARAMS, "template!": TEMPLATE}
                    ),
                    "workerGroupSpecs!": [
                        Fields(
                            {
                                "groupName!": NAME, "replicas!": int, "minReplicas!": int, "maxReplicas!": int,
                                "rayStartParams!": RAY_PARAMS, "template!": TEMPLATE,
                            }
                        )
                    ],
                }
            )
        }
    ),
}  # fmt: skip


def problems_of(document: dict[str, Any]) -> list[str]:
    """What is wrong with an object; empty: nothing."""
    kind = (document.get("apiVersion"), document.get("kind"))
    if kind not in SPECS:
        return [f"unknown kind {kind}"]
    schema = Fields({"apiVersion!": str, "kind!": str, "metadata!": META, **SPECS[kind]})  # type: ignore[index]
    return list(_check(document, schema, str(document.get("metadata", {}).get("name"))))


def _check(value: Any, schema: Any, at: str) -> Iterator[str]:
    if isinstance(schema, Fields):
        yield from _check_fields(value, schema, at)
    elif isinstance(schema, dict):
        ((key, of),) = schema.items()
        if not isinstance(value, dict):
            yield f"{at}: a map is needed"
            return
        for name, each in value.items():
            yield from _check(name, key, f"{at}.{name} (its name)")
            yield from _check(each, of, f"{at}.{name}")
    elif isinstance(schema, list):
        if not isinstance(value, list) or not value:
            yield f"{at}: a list is needed"
            return
        for number, each in enumerate(value):
            yield from _check(each, schema[0], f"{at}[{number}]")
    elif not _is(value, schema):
        yield f"{at}: {value!r}"


def _check_fields(value: Any, schema: Fields, at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at}: fields are needed"
        return
    types = {name.rstrip("!"): each for name, each in schema.items()}
    yield from (f"{at}: no {name[:-1]}" for name in schema if name.endswith("!") and name[:-1] not in value)
    for name, each in value.items():
        if name not in types:
            yield f"{at}: unknown field {name}"
        else:
            yield from _check(each, types[name], f"{at}.{name}")


def _is(value: Any, schema: Any) -> bool:
    if schema is PORT:
        return isinstance(value, int) or bool(isinstance(value, str) and PORT_NAME.match(value))
    if isinstance(schema, set):
        return value in schema
    if isinstance(schema, re.Pattern):
        return isinstance(value, str) and bool(schema.match(value))
    return isinstance(value, schema) and not (schema is int and isinstance(value, bool))

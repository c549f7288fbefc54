"""The value of ``TF_CONFIG``, checked key by key.

TensorFlow takes what it finds and fails much later, in terms of its own (or waits for a worker that will
never come).  Here every error names the key, what was found there, what was expected, and the cure.  No
TensorFlow in this module, so that a launcher can check a cluster before it starts one.

References:
    ``tf.distribute.cluster_resolver.TFConfigClusterResolver`` of TensorFlow 2.21 reads the same keys:
    ``cluster``, ``task``, ``rpc_layer``, ``session_master``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tf_preempt.errors import ClusterConfigError

__all__ = ["TFConfig", "checked_task", "parse_tf_config"]

_EXAMPLE = '{"cluster": {"worker": ["host0:12345", "host1:12345"]}, "task": {"type": "worker", "index": 0}}'
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):(?P<port>[0-9]{1,5})")
_JSON_NAMES = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


@dataclass(frozen=True, kw_only=True)
class TFConfig:
    """What ``TF_CONFIG`` says.

    Args:
        cluster: job names to addresses; empty for a single worker.
        task_type: job name of this task; None without a cluster.
        task_id: index of this task in its job; None without a cluster.
        rpc_layer: protocol between the tasks; None if not given.
        session_master: connection string that overrides all addresses; None if not given.
    """

    cluster: Mapping[str, tuple[str, ...]]
    task_type: str | None = None
    task_id: int | None = None
    rpc_layer: str | None = None
    session_master: str | None = None


def parse_tf_config(text: str | None) -> TFConfig:
    """Reads and checks the value of ``TF_CONFIG``.

    Args:
        text: value of the variable; None if it is unset.

    Returns:
        The cluster and this task's place in it.  A variable that is unset, empty or ``{}`` describes a single
        worker.  In a cluster of one task, ``task`` may be left out.

    Raises:
        ClusterConfigError: the value is not JSON or not an object; ``cluster`` is missing, or is not an
            object of non-empty lists of different ``host:port`` strings; ``task`` is missing in a cluster of
            several tasks, or names none of them; another key that is used has a value of a wrong type.
    """
    if text is None or not text.strip():
        return TFConfig(cluster={})
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        around = text[max(0, error.pos - 10) : error.pos + 10]
        raise _wrong(
            "TF_CONFIG", f"is not JSON: {error.msg} at position {error.pos} (near {around!r})", _EXAMPLE
        ) from error
    if not isinstance(value, dict):
        raise _wrong("TF_CONFIG", _found(value), "an object", example=_EXAMPLE)
    if not value:
        return TFConfig(cluster={})
    cluster = _cluster(value)
    task_type, task_id = _task(value, cluster)
    return TFConfig(
        cluster=cluster,
        task_type=task_type,
        task_id=task_id,
        rpc_layer=_optional_text(value, "rpc_layer"),
        session_master=_optional_text(value, "session_master"),
    )


def _cluster(value: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    key = 'TF_CONFIG["cluster"]'
    if "cluster" not in value:
        raise _wrong(key, f"is missing (keys found: {sorted(value)})", "an object", example=_EXAMPLE)
    jobs = value["cluster"]
    if not isinstance(jobs, dict) or not jobs:
        raise _wrong(key, _found(jobs), "an object with at least one job", example=_EXAMPLE)
    cluster = {job: _addresses(f'{key}["{job}"]', tasks) for job, tasks in jobs.items()}
    if len(cluster.get("chief", ())) > 1:
        raise _wrong(f'{key}["chief"]', f"has {len(cluster['chief'])} tasks", "one, there is one chief")
    _refuse_duplicates(cluster)
    return cluster


def _addresses(key: str, tasks: Any) -> tuple[str, ...]:
    if not isinstance(tasks, list) or not tasks:
        raise _wrong(key, _found(tasks), 'a non-empty list of "host:port" strings')
    for index, address in enumerate(tasks):
        match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
        if not match:
            raise _wrong(
                f"{key}[{index}]",
                _found(address),
                'a string "host:port" without a protocol (an IPv6 host in brackets)',
            )
        if not 1 <= int(match["port"]) <= 65_535:
            raise _wrong(f"{key}[{index}]", _found(address), "a port between 1 and 65535")
    return tuple(tasks)


def _refuse_duplicates(cluster: Mapping[str, tuple[str, ...]]) -> None:
    seen: dict[str, str] = {}
    for job, addresses in cluster.items():
        for index, address in enumerate(addresses):
            key = f'TF_CONFIG["cluster"]["{job}"][{index}]'
            if address in seen:
                raise _wrong(
                    key, f"is {address!r}, as is {seen[address]}", "an address of its own for each task"
                )
            seen[address] = key


def _task(value: dict[str, Any], cluster: Mapping[str, tuple[str, ...]]) -> tuple[str | None, int | None]:
    tasks = [(job, index) for job, addresses in cluster.items() for index in range(len(addresses))]
    key = 'TF_CONFIG["task"]'
    if "task" not in value:
        if len(tasks) == 1:
            return tasks[0]
        raise _wrong(
            key, f"is missing, although the cluster has {len(tasks)} tasks", "which of them this process is"
        )
    task = value["task"]
    if not isinstance(task, dict):
        raise _wrong(key, _found(task), 'an object such as {"type": "worker", "index": 0}')
    for name in ("type", "index"):
        if name not in task:
            raise _wrong(
                f'{key}["{name}"]', f"is missing (keys found: {sorted(task)})", "both type and index"
            )
    origin = {"type": f'{key}["type"]', "index": f'{key}["index"]'}
    return checked_task(task["type"], task["index"], cluster, origin=origin)


def checked_task(
    task_type: Any, task_id: Any, cluster: Mapping[str, tuple[str, ...]], *, origin: Mapping[str, str]
) -> tuple[str, int]:
    """Checks that a cluster has a task.

    Args:
        task_type: its job name.
        task_id: its index; a decimal string is taken too, as TensorFlow does.
        cluster: job names to addresses.  ``evaluator`` need not be among them: TensorFlow lets an evaluator
            stand outside the cluster that it watches.
        origin: what to call the two in an error, under the keys ``type`` and ``index``.

    Returns:
        The job name and the index as a number.

    Raises:
        ClusterConfigError: the job is not in the cluster, or has no such index.
    """
    if not isinstance(task_type, str) or (task_type not in cluster and task_type != "evaluator"):
        raise _wrong(origin["type"], _found(task_type), f"a job of the cluster: {sorted(cluster)}")
    if isinstance(task_id, str) and re.fullmatch("[0-9]{1,9}", task_id):
        task_id = int(task_id)
    count = len(cluster.get(task_type, ("",)))
    if isinstance(task_id, bool) or not isinstance(task_id, int) or not 0 <= task_id < count:
        expected = f"a whole number from 0 to {count - 1}, as {task_type!r} has {count} task(s)"
        raise _wrong(origin["index"], _found(task_id), expected)
    return task_type, task_id


def _optional_text(value: dict[str, Any], name: str) -> str | None:
    found = value.get(name)
    if found is not None and not isinstance(found, str):
        raise _wrong(f'TF_CONFIG["{name}"]', _found(found), "a string, or to be left out")
    return found


def _found(value: Any) -> str:
    text = json.dumps(value)
    shown = text if len(text) <= 80 else f"{text[:80]}..."
    return f"is {shown} ({_JSON_NAMES.get(type(value), type(value).__name__)})"


def _wrong(key: str, found: str, expected: str, *, example: str | None = None) -> ClusterConfigError:
    such_as = f", for example {example}" if example else ""
    return ClusterConfigError(
        f"{key} {found}; expected {expected}{such_as}.",
        hint="Correct it where the job is started, let `tf-preempt launch` set TF_CONFIG, or unset the "
        "variable to train with a single worker.",
    )

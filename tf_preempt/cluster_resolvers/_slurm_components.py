"""How a step over several components of a heterogeneous job is laid out, as Slurm's controller knows it.

Each component has nodes and a distribution of its own; ranks are laid over one component after the other.
No variable tells each component's distribution: ``SLURM_DISTRIBUTION`` is that of one of them, and not always
of the same one in all tasks.  So it has no part in deciding whether to ask: all tasks ask, or none does.

References:
    scontrol(1), ``show job``, ``show step``; answers of Slurm 22.05.8: ``tests/data/slurm_show_step/``.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tf_preempt._hostlist import expand_hostlist
from tf_preempt._slurm import SlurmJob
from tf_preempt._slurm_control import SlurmControl, jobs_in, parse_fields
from tf_preempt.cluster_resolvers._slurm_layout import COMPONENTS_CURE
from tf_preempt.errors import SlurmError

__all__ = [
    "Component",
    "StepComponents",
    "component_jobs",
    "is_ambiguous",
    "read_component",
    "with_components",
]

_LOG = logging.getLogger("tf_preempt")
# What stands before the step's name, which may say anything, and the last thing of which that is not so.
_BEFORE_NAME = re.compile(
    r"StepId=(\S+)\s(?:.*?\s)?NodeList=(\S+)\s(?:.*?\s)?Tasks=([0-9]{1,9})\s", re.DOTALL
)
_DISTRIBUTION = re.compile(r"\sDist=([A-Za-z]+)")


@dataclass(frozen=True, kw_only=True)
class Component:
    """A component's part of a step.

    Args:
        nodes: names of its nodes, in Slurm's order.
        tasks: number of its tasks.
        distribution: how they are laid over its nodes: ``block``, ``cyclic``, ``plane`` and so on.
    """

    nodes: tuple[str, ...]
    tasks: int
    distribution: str


def is_ambiguous(job: SlurmJob) -> bool:
    """Whether the variables leave open where a heterogeneous step has its ranks; alike in all its tasks.

    Args:
        job: the step.

    Returns:
        True if several components may be in it, and it is not known which nodes are whose, or one of them has
        several nodes and a node with several tasks, so that its distribution matters.
    """
    counts = job.tasks_per_node
    if job.step_id is None or job.het_size == 1 or len(job.nodes) == 1 or counts is None:
        return False
    if not job.group_nodes:
        return True
    ends = list(itertools.accumulate(job.group_nodes))
    parts = [counts[end - size : end] for end, size in zip(ends, job.group_nodes, strict=True)]
    return len(parts) > 1 and any(len(part) > 1 and max(part) > 1 for part in parts)


def component_jobs(text: str, job: SlurmJob) -> list[int]:
    """Reads ``scontrol show job -o``: each component is a job with a number of its own.

    Args:
        text: the answer.
        job: the step.

    Returns:
        Numbers of the components that the step has nodes of, in Slurm's order.

    Raises:
        SlurmError: there is none.
    """
    found = []
    for fields, rest in jobs_in(text):
        nodes = expand_hostlist(parse_fields(rest).get("NodeList", "(null)"))
        if str(job.job_id) in (fields["JobId"], fields.get("HetJobId")) and set(nodes) & set(job.nodes):
            found.append((int(fields.get("HetJobOffset", "0")), int(fields["JobId"])))
    if not found:
        raise SlurmError(f"`scontrol show job` tells nothing about the nodes of job {job.job_id}.")
    return [number for _, number in sorted(found)]


def read_component(text: str, step: str) -> Component:
    """Reads ``scontrol show step -o``.

    Args:
        text: the answer.
        step: number of the step in the component's job, such as ``13.0``.

    Raises:
        SlurmError: it does not tell the nodes, tasks and distribution of that step.
    """
    before, last = _BEFORE_NAME.match(text), _DISTRIBUTION.findall(text)
    if not before or before[1] != step or not last:
        raise SlurmError(f"`scontrol show step {step}` does not tell its layout: {text.strip()[:200]!r}.")
    # BCyclic, CBlock: how tasks are laid over the nodes is the first letter, sockets and cores the rest.
    name = {"B": "block", "C": "cyclic"}.get(last[-1][0], last[-1].lower())
    return Component(nodes=tuple(expand_hostlist(before[2])), tasks=int(before[3]), distribution=name)


def with_components(job: SlurmJob, components: Sequence[Component]) -> SlurmJob:
    """Adds what the controller says to what the variables say.

    Args:
        job: the step, with the number of tasks on each node.
        components: those that the step has nodes of, in Slurm's order.

    Returns:
        `job`, its nodes in the order of the components, with these components' sizes and distributions.

    Raises:
        SlurmError: the two contradict each other about nodes or tasks.
    """
    counts = dict(zip(job.nodes, job.tasks_per_node or (), strict=True))
    nodes = tuple(node for component in components for node in component.nodes)
    told = [sum(counts.get(node, 0) for node in component.nodes) for component in components]
    if sorted(nodes) != sorted(job.nodes) or told != [component.tasks for component in components]:
        raise SlurmError(
            f"`scontrol show step` has {[component.tasks for component in components]} tasks on "
            f"{[list(component.nodes) for component in components]}, but Slurm's variables "
            f"{list(job.tasks_per_node or ())} on {list(job.nodes)}."
        )
    return dataclasses.replace(
        job,
        nodes=nodes,
        tasks_per_node=tuple(counts[node] for node in nodes),
        group_nodes=tuple(len(component.nodes) for component in components),
        group_distributions=tuple(component.distribution for component in components),
    )


class StepComponents:
    """What the controller says about the components of steps; asked once about each, if variables do not do.

    Args:
        control: the controller.
    """

    def __init__(self, control: SlurmControl) -> None:
        self._control = control
        self._known: dict[tuple[object, ...], list[Component]] = {}

    def settle(self, job: SlurmJob) -> SlurmJob:
        """Adds the components where the variables are ambiguous.

        Where the controller does not tell, a warning says so, once, and `job` comes back as it is: with all
        components taken to have the distribution that the variables name.  If that is wrong, the tasks of the
        component for which it is wrong notice it (`check_own_placement`).

        Args:
            job: the step, with the number of tasks on each node.

        Returns:
            `job`, with the components if they were asked for.
        """
        if not is_ambiguous(job):
            return job
        key = (job.job_id, job.step_id, job.nodes, job.tasks_per_node)
        if key not in self._known:
            self._known[key] = self._ask(job)
        return with_components(job, self._known[key]) if self._known[key] else job

    def _ask(self, job: SlurmJob) -> list[Component]:
        """The step's components, which fit the variables; none if the controller does not tell."""
        try:
            said = self._control.ask("scontrol", "show", "job", "-o", str(job.job_id))
            steps = [f"{number}.{job.step_id}" for number in component_jobs(said, job)]
            components = [
                read_component(self._control.ask("scontrol", "show", "step", "-o", step), step)
                for step in steps
            ]
            with_components(job, components)
        except SlurmError as error:
            _LOG.warning(
                "How each component of this heterogeneous step is laid out could not be asked; all are taken "
                "to have the distribution %s (SLURM_DISTRIBUTION), in the order of their nodes: %s HINT: %s",
                job.distribution or "block",
                str(error).splitlines()[0],
                COMPONENTS_CURE,
            )
            return []
        return components

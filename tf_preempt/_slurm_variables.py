"""Typed access to environment variables that Slurm writes; every error names the variable and its value.

Which variables there are, and what they mean, only `_slurm` knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tf_preempt._hostlist import expand_hostlist
from tf_preempt.errors import SlurmError

__all__ = ["SlurmVariables"]

_PORTS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


class SlurmVariables:
    """Environment variables, read as what they stand for.

    Args:
        environ: the variables.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def text(self, name: str) -> str | None:
        """Value without surrounding white space; None if unset, empty, or Slurm's ``(null)``."""
        value = self._environ.get(name, "").strip()
        return value if value not in ("", "(null)") else None

    def integer(self, *names: str, minimum: int = 0) -> int | None:
        """The first of `names` that is set."""
        for name in names:
            value = self.text(name)
            if value is None:
                continue
            if not re.fullmatch("[0-9]{1,18}", value) or int(value) < minimum:
                raise self.malformed(name, f"a whole number of at least {minimum}")
            return int(value)
        return None

    def integers(self, name: str) -> tuple[int, ...]:
        """A list such as ``0,3,4``."""
        value = self.text(name)
        if value is None:
            return ()
        if not re.fullmatch("[0-9]{1,18}(,[0-9]{1,18})*", value):
            raise self.malformed(name, "whole numbers separated by commas")
        return tuple(int(item) for item in value.split(","))

    def hosts(self, name: str) -> tuple[str, ...]:
        """An expanded host list without duplicates; empty if unset."""
        value = self.text(name)
        if value is None:
            return ()
        try:
            hosts = tuple(expand_hostlist(value))
        except SlurmError as error:
            raise self.malformed(name, "a host list such as node[1-4]", error) from error
        if len(set(hosts)) != len(hosts):
            raise self.malformed(name, "each node once")
        return hosts

    def ports(self, name: str) -> tuple[int, ...]:
        """TCP ports: ``12000-12003,12010``, with or without brackets."""
        value = self.text(name)
        if value is None:
            return ()
        ports: list[int] = []
        for item in value.strip("[]").split(","):
            match = _PORTS.fullmatch(item)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
            if not 1 <= first <= last <= 65_535:
                raise self.malformed(name, "ports between 1 and 65535 such as 12000-12003")
            ports.extend(range(first, last + 1))
        return tuple(ports)

    def missing(self, name: str, meaning: str) -> SlurmError:
        return SlurmError(
            f"{name} is not set, although SLURM_STEP_ID is: {meaning} is unknown.",
            hint="Start the program with srun and let it see Slurm's variables; containers may hide them.",
        )

    def malformed(self, name: str, expected: str, cause: SlurmError | None = None) -> SlurmError:
        detail = f" {str(cause).splitlines()[0]}" if cause else ""
        return SlurmError(
            f"{name}={self._environ.get(name, '')!r} is malformed: expected {expected}.{detail}",
            hint=f"Slurm sets {name} itself; remove what overwrites it in the job script.",
        )

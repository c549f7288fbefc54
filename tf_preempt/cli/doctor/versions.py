"""Whether the installed packages are those that this one works with.

Read from the packages' metadata: importing TensorFlow takes seconds, and might be what does not work.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
from collections.abc import Callable, Mapping

from tf_preempt._version import __version__
from tf_preempt.cli.doctor.finding import Finding, Status

__all__ = ["OLDEST", "check_versions", "installed_versions"]

OLDEST = {"tensorflow": (2, 18), "keras": (3, 10)}
"""The oldest versions that are supported, as ``pyproject.toml`` has them."""

# Names under which TensorFlow is distributed, the usual one first.
_DISTRIBUTIONS = {
    "tensorflow": (
        "tensorflow",
        "tensorflow-cpu",
        "tensorflow-intel",
        "tensorflow-macos",
        "tensorflow-rocm",
        "tf-nightly",
        "tf-nightly-cpu",
    ),
    "keras": ("keras", "keras-nightly"),
}
_REASONS = {
    "tensorflow": "it has not what the strategies need",
    "keras": "in 3.8 and 3.9 the epoch logs of several replicas are wrong, and Keras 2 is another package",
}


def installed_versions(
    version_of: Callable[[str], str] = importlib.metadata.version,
    is_importable: Callable[[str], bool] = lambda name: importlib.util.find_spec(name) is not None,
) -> dict[str, str | None]:
    """The versions of TensorFlow and Keras, without importing them.

    Args:
        version_of: gives the version of a distribution, as ``importlib.metadata.version`` does.
        is_importable: says whether there is such a package at all.

    Returns:
        Name to version: None if it is not installed, empty if it is there and no metadata say which it is.
    """
    versions: dict[str, str | None] = {}
    for package, names in _DISTRIBUTIONS.items():
        versions[package] = next(filter(None, (_version(name, version_of) for name in names)), None)
        if versions[package] is None and is_importable(package):
            versions[package] = ""
    return versions


def _version(name: str, version_of: Callable[[str], str]) -> str | None:
    try:
        return version_of(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_versions(
    versions: Mapping[str, str | None], python: str = platform.python_version()
) -> list[Finding]:
    """Compares what is installed with what is supported.

    Args:
        versions: as `installed_versions` gives them.
        python: this interpreter's version.
    """
    findings = [trouble for name in OLDEST if (trouble := _trouble(name, versions[name]))]
    said = ", ".join(
        f"{name} {versions[name] or 'of unknown version'}" for name in OLDEST if versions[name] is not None
    )
    return [
        Finding(
            Status.INFO if findings else Status.OK,
            "versions",
            ", ".join(filter(None, [f"tf_preempt {__version__}", said, f"Python {python}"])),
            values={"tf_preempt": __version__, "python": python, **versions},
        ),
        *findings,
    ]


def _trouble(package: str, version: str | None) -> Finding | None:
    oldest = ".".join(map(str, OLDEST[package]))
    install = f"pip install '{package}>={oldest}'"
    if version is None:
        return Finding(Status.ERROR, "versions", f"{package} is not installed in this Python.", install)
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        return Finding(
            Status.WARNING,
            "versions",
            f"Which version of {package} is installed cannot be told from its metadata ({version!r}).",
            f"see to it that it is {oldest} or newer",
        )
    if (int(match[1]), int(match[2])) >= OLDEST[package]:
        return None
    message = f"{package} {version} is older than {oldest}: {_REASONS[package]}."
    return Finding(Status.ERROR, "versions", message, install)

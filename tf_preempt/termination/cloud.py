"""Whose machine this is, from its firmware and the environment, without the network.

References (seen 2026-11):
    https://cloud.google.com/compute/docs/instances/detect-compute-engine (product name)
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/identify_ec2_instances.html (system vendor of Nitro
    instances; Xen instances have "amazon" in the version of their BIOS)
    https://github.com/canonical/cloud-init/blob/main/cloudinit/sources/helpers/azure.py (chassis asset tag of
    all Azure VMs)
"""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Mapping

from tf_preempt.errors import ConfigError

__all__ = ["CLOUD_VARIABLE", "DMI_DIRECTORY", "Cloud", "Firmware", "detect_cloud"]

CLOUD_VARIABLE = "TF_PREEMPT_CLOUD"
DMI_DIRECTORY = "/sys/class/dmi/id"

_NONE = "none"
_GCE_PRODUCT_NAME = "Google Compute Engine"
_AWS_VENDOR = "Amazon EC2"
_AWS_XEN_BIOS = "amazon"
_AZURE_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"


class Cloud(str, enum.Enum):
    """Whose virtual machine a process runs on, whatever scheduler has started it."""

    GCE = "gce"
    AWS = "aws"
    AZURE = "azure"

    def __str__(self) -> str:
        return self.value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Firmware:
    """What the firmware (DMI) says of the machine; empty where it says nothing.

    Args:
        product_name: of the machine.
        sys_vendor: who made it.
        bios_version: of its firmware.
        chassis_asset_tag: what its owner has stuck on it.
    """

    product_name: str = ""
    sys_vendor: str = ""
    bios_version: str = ""
    chassis_asset_tag: str = ""

    @classmethod
    def read(cls, directory: str | os.PathLike[str] = DMI_DIRECTORY) -> Firmware:
        """Reads the files of a directory; those that are not there (ARM boards, macOS) count as empty."""
        return cls(
            **{
                field.name: read_line(os.path.join(directory, field.name))
                for field in dataclasses.fields(cls)
            }
        )


def read_line(path: str | os.PathLike[str]) -> str:
    """The text of a file of the firmware without blanks around it; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def detect_cloud(environ: Mapping[str, str], firmware: Firmware) -> Cloud | None:
    """Tells whose machine this is.

    Args:
        environ: the environment variables.
        firmware: what DMI says.

    Returns:
        None if it is nobody's cloud.

    Environment:
        TF_PREEMPT_CLOUD: ``gce``, ``aws``, ``azure`` or ``none``, whatever the firmware says.

    Raises:
        ConfigError: TF_PREEMPT_CLOUD is something else.
    """
    named = environ.get(CLOUD_VARIABLE, "").strip()
    if named == _NONE:
        return None
    if named:
        try:
            return Cloud(named)
        except ValueError:
            raise ConfigError(
                f"{CLOUD_VARIABLE}={named!r} (an environment variable); expected one of "
                f"{', '.join(cloud.value for cloud in Cloud)} or {_NONE}.",
                hint=f"Unset {CLOUD_VARIABLE}: the machine's firmware tells.",
            ) from None
    if firmware.product_name == _GCE_PRODUCT_NAME:
        return Cloud.GCE
    if firmware.sys_vendor == _AWS_VENDOR or _AWS_XEN_BIOS in firmware.bios_version.lower():
        return Cloud.AWS
    if firmware.chassis_asset_tag == _AZURE_ASSET_TAG:
        return Cloud.AZURE
    return None

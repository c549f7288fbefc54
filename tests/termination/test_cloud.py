"""Whose machine this is follows from its firmware, unless somebody says it."""

from __future__ import annotations

import pytest

from tf_preempt.errors import ConfigError
from tf_preempt.termination.cloud import Cloud, Firmware, detect_cloud

AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"


@pytest.mark.parametrize(
    ("firmware", "cloud"),
    [
        ({"product_name": "Google Compute Engine", "sys_vendor": "Google"}, Cloud.GCE),
        ({"product_name": "Google Pixelbook", "sys_vendor": "Google"}, None),
        ({"product_name": "p4d.24xlarge", "sys_vendor": "Amazon EC2"}, Cloud.AWS),
        ({"product_name": "HVM domU", "sys_vendor": "Xen", "bios_version": "4.11.amazon"}, Cloud.AWS),
        ({"product_name": "HVM domU", "sys_vendor": "Xen", "bios_version": "4.11"}, None),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": AZURE_TAG}, Cloud.AZURE),
        ({"sys_vendor": "Microsoft Corporation", "product_name": "Virtual Machine"}, None),
        ({}, None),
    ],
    ids=["gce", "chromebook", "nitro", "ec2 on xen", "xen", "azure", "hyper-v", "no firmware"],
)
def test_firmware(firmware, cloud):
    assert detect_cloud({}, Firmware(**firmware)) is cloud


@pytest.mark.parametrize(
    ("named", "cloud"),
    [("gce", Cloud.GCE), ("aws", Cloud.AWS), ("azure", Cloud.AZURE), ("none", None), (" ", Cloud.GCE)],
)
def test_what_somebody_says_counts(named, cloud):
    firmware = Firmware(product_name="Google Compute Engine")
    assert detect_cloud({"TF_PREEMPT_CLOUD": named}, firmware) is cloud


def test_what_nobody_knows_is_refused():
    with pytest.raises(
        ConfigError, match=r"TF_PREEMPT_CLOUD='ibm'.*one of gce, aws, azure or none"
    ) as caught:
        detect_cloud({"TF_PREEMPT_CLOUD": "ibm"}, Firmware())
    assert caught.value.hint


def test_firmware_is_read_from_its_directory(tmp_path):
    (tmp_path / "sys_vendor").write_text("Amazon EC2\n")
    (tmp_path / "chassis_asset_tag").write_bytes(b"\xff\n")
    assert Firmware.read(tmp_path) == Firmware(sys_vendor="Amazon EC2", chassis_asset_tag="\ufffd")


def test_a_machine_without_firmware_has_an_empty_one(tmp_path):
    assert Firmware.read(tmp_path / "missing") == Firmware()


def test_a_cloud_prints_as_its_name():
    assert f"{Cloud.GCE}" == str(Cloud.GCE) == "gce"

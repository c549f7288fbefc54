"""The kernel's range of ports for clients."""

import pytest

from tf_preempt.cluster_resolvers._client_ports import client_ports


def test_reads_first_and_last(tmp_path):
    (tmp_path / "range").write_text("1024\t65535\n", encoding="ascii")
    assert client_ports(str(tmp_path / "range")) == range(1024, 65_536)


@pytest.mark.parametrize("content", ["", "1024", "low high", "1 2 3", "\xe9 1"])
def test_other_content_is_the_default(tmp_path, content):
    (tmp_path / "range").write_bytes(content.encode("latin-1"))
    assert client_ports(str(tmp_path / "range")) == range(32_768, 61_000)


def test_no_file_is_the_default(tmp_path):
    assert client_ports(str(tmp_path / "none")) == range(32_768, 61_000)

"""The ports that this host's kernel gives to clients, where a server's port may be taken at any time."""

from __future__ import annotations

__all__ = ["client_ports"]

_LINUX_DEFAULT = range(32_768, 61_000)


def client_ports(path: str = "/proc/sys/net/ipv4/ip_local_port_range") -> range:
    """Reads the range of ports that the kernel hands out to clients.

    Args:
        path: file with the first and the last of them.

    Returns:
        The range; Linux's default if the file cannot be read or has other content.

    References:
        Linux kernel, ``Documentation/networking/ip-sysctl.rst``, ``ip_local_port_range``.
    """
    try:
        with open(path, encoding="ascii") as file:
            first, last = map(int, file.read().split())
    except (OSError, ValueError):
        return _LINUX_DEFAULT
    return range(first, last + 1)

"""Hosts of a small network on this machine: network namespaces with an address, a name and a cable of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

# A process of a host has the host's name, and knows the others by theirs, without asking a name server.
ENTER = """
set -e
hostname "$1"
for file in hosts resolv.conf; do mount --bind "$2/$file" "/etc/$file"; done
shift 2
exec "$@"
"""


class Host:
    def __init__(self, name: str, address: str, etc: Path) -> None:
        self.name, self.address, self._etc = name, address, etc
        self.namespace = f"scm-{os.getpid()}-{name}"

    def start(self, command: Sequence[str], environment: Mapping[str, str], output: Path) -> subprocess.Popen:
        """Its output is appended to the file."""
        enter = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", ENTER, "sh"]
        with output.open("a") as file:
            return subprocess.Popen(
                [*enter, self.name, str(self._etc), *command],
                env=dict(environment),
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=Path(__file__).parent.parent,
            )

    def processes(self) -> list[int]:
        return [int(number) for number in ip("netns", "pids", self.namespace).split()]

    def lose_power(self) -> None:
        """Nobody is told: the cable goes first."""
        self.cable("down")
        self.kill()

    def kill(self) -> None:
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def cable(self, state: str) -> None:
        ip("-n", self.namespace, "link", "set", "eth0", state)


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def two_hosts(first: str, second: str, folder: Path) -> Iterator[tuple[Host, Host]]:
    """Two hosts with one cable between them; skips where there cannot be any."""
    hosts = Host(first, "10.77.0.1", folder), Host(second, "10.77.0.2", folder)
    lines = "".join(f"{host.address} {host.name}\n" for host in hosts)
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{lines}")
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    try:
        _connect(*hosts)
        yield hosts
    finally:
        for host in hosts:
            if shutil.which("ip") and host.namespace in ip("netns", "list"):
                host.kill()
                ip("netns", "delete", host.namespace)


def _connect(first: Host, second: Host) -> None:
    try:
        for host in (first, second):
            ip("netns", "add", host.namespace)
        ip("link", "add", "eth0", "netns", first.namespace,
           "type", "veth", "peer", "name", "eth0", "netns", second.namespace)  # fmt: skip
        for host in (first, second):
            ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
            ip("-n", host.namespace, "link", "set", "lo", "up")
            host.cable("up")
        ip("netns", "exec", first.namespace, "unshare", "--uts", "true")
    except FileNotFoundError:
        pytest.skip("network namespaces are not allowed here: there is no `ip` (iproute2)")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not allowed here: {error.stderr.strip()}")

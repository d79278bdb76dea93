"""Sockets that a command may open, and attempts through other system call ABIs.

The conformance check `network.socket-families` tries every family through the native one.
"""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from proofbox import Sandboxes
from proofbox.sandbox.contract import Network

# Each line: the ABI, and 1 if a socket of AF_VSOCK (40) was opened. i386 numbers: 102 socketcall, 359 socket.
FOREIGN = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static long i386(long number, long a, long b, long c) {
    long answer;
    __asm__ volatile("int $0x80"
                     : "=a"(answer)
                     : "a"(number), "b"(a), "c"(b), "d"(c)
                     : "memory", "r8", "r9", "r10", "r11");
    return (int)answer;
}

int main(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED; /* an address that i386 can hold */
    unsigned *low = mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (low == MAP_FAILED) return 1;
    low[0] = 40, low[1] = 1, low[2] = 0;
    printf("native %d\n", syscall(41, 40, 1, 0) >= 0);
    printf("upper half set %d\n", syscall(41, 40L | 1L << 32, 1, 0) >= 0);
    printf("x32 %d\n", syscall(0x40000000 | 41, 40, 1, 0) >= 0);
    printf("i386 socket %d\n", i386(359, 40, 1, 0) >= 0);
    printf("i386 socketcall %d\n", i386(102, 1, (long)low, 0) >= 0);
    return 0;
}
"""
USABLE = """
import socket
socket.if_nameindex()
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            with socket.socket(family, kind) as s:
                s.bind((address, 0))
        except OSError as error:
            if family == socket.AF_INET or "assign" not in str(error):
                raise
print(sorted({each[4][0] for each in socket.getaddrinfo("localhost", 80, socket.AF_INET)}))
socket.socketpair()[0].close()
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
    s.bind((0, 0))
print("usable")
"""


@pytest.mark.needs("bubblewrap", "cc")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the other system call ABIs exist only on x86_64")
def test_foreign_abis_cannot_open_denied_sockets(tmp_path: Path) -> None:
    (tmp_path / "foreign.c").write_text(FOREIGN)
    subprocess.run(["cc", "-O1", "-static", "-o", tmp_path / "foreign", tmp_path / "foreign.c"], check=True)
    with Sandboxes(tmp_path) as boxes:
        shown = boxes.exec(["./foreign"], provider="bubblewrap").stdout.splitlines()
    assert len(shown) == 5
    assert [line for line in shown if not line.endswith(" 0")] == []


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("network", ["none", "full"])
def test_common_socket_families_work(tmp_path: Path, network: Network) -> None:
    with Sandboxes(tmp_path) as boxes, boxes.start_session(provider="bubblewrap", network=network) as session:
        if session.exec(["sh", "-c", "command -v python3"]).exit_code:
            pytest.skip("the box has no python3")
        result = session.exec(["python3", "-c", USABLE], timeout=60)
    assert result.stdout.splitlines()[-1:] == ["usable"], result.stderr

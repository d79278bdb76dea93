"""A signal takes effect whenever it arrives, even if it does not interrupt a system call."""

from __future__ import annotations

import subprocess
import sys

# The main thread blocks in a call while the signal arrives in another thread, so that the call is not interrupted. A
# signal right before the call has the same effect, but can't be timed.
ELSEWHERE = """
import os, signal, sys, threading
from proofbox.sandbox.client.signals import exiting_on, handling_signals

inbound, outbound = os.pipe()

def elsewhere():
    sys.stdin.readline()
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    sys.stdin.readline()

threading.Thread(target=elsewhere, daemon=True).start()
with {block}:
    print("waiting", flush=True)
    os.read(inbound, 1)
print("done")
"""


def ended(block: str) -> tuple[int, str]:
    program = [sys.executable, "-c", ELSEWHERE.format(block=block)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.stdin.write("now\n")
        process.stdin.flush()
        try:
            process.wait(60)
        finally:
            process.kill()
        return process.returncode, process.stdout.read()


def test_signal_ends_a_waiting_block() -> None:
    assert ended("exiting_on([signal.SIGTERM])") == (143, "")


def test_signal_handler_runs_while_the_block_waits() -> None:
    assert ended("handling_signals([signal.SIGTERM], lambda number: os.write(outbound, b'x'))") == (0, "done\n")


def test_outer_block_wakes_a_nested_block() -> None:
    inner = "handling_signals([signal.SIGWINCH], print)"
    assert ended(f"exiting_on([signal.SIGTERM]), {inner}") == (143, "")
    assert ended(f"{inner}, exiting_on([signal.SIGTERM])") == (143, "")

"""The channel is proven by what the process finds about itself, and the confinement by what the driver measures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from proofbox.probes.channel import ChannelCheck, Confinement, confinement, parse_status, sandbox_signs
from proofbox.sandbox.host.binaries import program
from proofbox.sandbox.probing.lanes import parse_answers

OBSERVE = """
import signal, sys
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.SIG_DFL)
import msgspec
from proofbox.probes.channel import observe_channel
sys.stdout.buffer.write(msgspec.json.encode(observe_channel()))
"""
FREE = {
    "Seccomp": "0",
    "NoNewPrivs": "0",
    "UserNs": "user:[4026531837]",
    "LandlockLayers": "0",
    "CapEff": "000001ffffffffff",
}


def observed(shell: str = "", **options: Any) -> ChannelCheck:
    line = [sys.executable, "-c", OBSERVE]
    argv = ["sh", "-c", f'{shell}\nunset PWD OLDPWD SHLVL _\nexec "$@"', "sh", *line] if shell else line
    options = {"start_new_session": True, "env": {"PATH": os.environ["PATH"]}, **options}
    run = subprocess.run(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=True, timeout=60, **options)
    return msgspec.json.decode(run.stdout, type=ChannelCheck)


def test_a_process_made_for_the_measurement_is_clean() -> None:
    found = observed()
    assert (found.clean, found.faults) == (True, ())


@pytest.mark.parametrize(
    ("shell", "options", "fault"),
    [
        ("", {"start_new_session": False}, "it does not lead a session"),
        ("exec 7</dev/null", {}, "it has inherited descriptors"),
        ("trap '' HUP", {}, "it ignores signals"),
        ("export TOKEN=x", {}, "it has inherited variables"),
    ],
)
def test_each_inheritance_is_a_fault(shell: str, options: dict[str, Any], fault: str) -> None:
    assert observed(shell, **options).faults == (fault,)


def test_a_blocked_signal_is_a_fault() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        assert observed().blocked_signals == (signal.SIGUSR1,)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_names_of_private_variables_are_not_recorded() -> None:
    found = observed(env={"PATH": os.environ["PATH"], "ACME_TOKEN": "x"})
    assert (found.variables, found.other_variables) == (("LC_CTYPE", "PATH"), 1)


@pytest.mark.parametrize(
    ("change", "sign"),
    [
        ({"Seccomp": "2"}, "seccomp is 2"),
        ({"NoNewPrivs": "1"}, "no_new_privs is true"),
        ({"UserNs": "user:[4026532178]"}, "its user namespace is user:[4026532178]"),
        ({"LandlockLayers": "1"}, "its Landlock rulesets are 1"),
        ({"LandlockLayers": "-1"}, "its Landlock rulesets are unknown"),
        ({"Seccomp": ""}, "seccomp is unknown"),
    ],
)
def test_every_confinement_of_the_measuring_process_is_a_sign(change: dict[str, str], sign: str) -> None:
    assert sandbox_signs(confinement(FREE)) == []
    assert sandbox_signs(confinement({**FREE, **change})) == [sign]


def test_a_status_that_is_missing_is_a_sign() -> None:
    assert len(sandbox_signs(confinement({}))) == 4


LANDLOCKED = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
rules = ctypes.create_string_buffer(struct.pack("Q", 1 << 11))
ruleset = libc.syscall(444, rules, 8, 0)
if ruleset < 0:
    sys.exit(77)
assert libc.prctl(38, 1, 0, 0, 0) == 0
for _ in range(int(sys.argv[1])):
    assert libc.syscall(446, ruleset, 0) == 0
os.execv(sys.argv[2], [sys.argv[2], "5"])
"""


def status_of_driver(layers: int) -> Confinement:
    argv = [sys.executable, "-c", LANDLOCKED, str(layers), str(program("boxprobe"))]
    run = subprocess.run(argv, input=b"me\tself-status\n", stdout=subprocess.PIPE, check=False, timeout=60)
    if run.returncode == 77:
        pytest.skip("this kernel has no Landlock")
    return confinement(parse_status(parse_answers(run.stdout, {"me"})["me"].value))


@pytest.mark.parametrize("layers", [0, 1, 5, 16])
def test_landlock_rulesets_are_counted(layers: int) -> None:
    assert status_of_driver(layers).landlock_layers == layers

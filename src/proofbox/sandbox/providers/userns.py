"""Explain why this machine refuses user namespaces, with the exact fix, so that users don't turn the sandbox off."""

from __future__ import annotations

from pathlib import Path

_SIGNS = ("namespace", "uid map", "Operation not permitted", "No space left")
_APPARMOR = (
    "allow bwrap in AppArmor: write to /etc/apparmor.d/bwrap"
    " 'abi <abi/4.0>, profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }'"
    " and run: sudo apparmor_parser -r /etc/apparmor.d/bwrap"
)
_KNOBS = (
    ("kernel/unprivileged_userns_clone", "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
    ("user/max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces=15000"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", _APPARMOR),
)


def forbidding_settings(system: Path = Path("/")) -> list[str]:
    """Return the fix for each kernel setting that forbids user namespaces here."""
    return [
        fix
        for knob, bad, fix in _KNOBS
        if (path := system / "proc/sys" / knob).exists() and path.read_text().strip() == bad
    ]


def explain(stderr: str, *, system: Path = Path("/")) -> tuple[str, list[str]]:
    """Derive a reason and hints from the stderr of bubblewrap or boxlaunch and from the machine's settings."""
    message = stderr.splitlines()[-1] if stderr else "it ended without a message"
    if not any(sign in stderr for sign in _SIGNS):
        return message, []
    if hints := forbidding_settings(system):
        return f"this machine forbids user namespaces ({message})", hints
    if (system / ".dockerenv").exists() or (system / "run/.containerenv").exists():
        fix = "run the container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
        return f"this container can't create namespaces ({message})", [fix, "or run proofbox on the host"]
    return message, ["check user.max_user_namespaces and the machine's security modules"]

"""Kernel settings and secrets that namespaces do not separate: a box can neither change nor read them."""

from __future__ import annotations

from proofbox.sandbox.conformance.check import FILESYSTEM, ProviderChecks, expect
from proofbox.sandbox.conformance.context import CheckContext

subject = ProviderChecks("kernel")
check = subject.check

# Opens each file for appending and writes nothing: the kernel checks permission when opening, and nothing is changed if
# it is granted. Files that can't be listed are tried by name.
OPEN_SETTINGS = """
true > control
{
    echo control
    for f in core_pattern modprobe hotplug poweroff_cmd sysrq; do echo /proc/sys/kernel/$f; done
    for f in register status; do echo /proc/sys/fs/binfmt_misc/$f; done
    for f in kernel/uevent_helper power/state power/disk; do echo /sys/$f; done
    for d in acpi bus driver fs irq mtrr scsi sys sysrq-trigger tty; do echo /proc/$d; done | while read -r d; do
        find "$d" ! -type d ! -type l
    done
    find /sys ! -type d ! -type l
} 2>/dev/null | while IFS= read -r f; do
    { true >> "$f"; } 2>/dev/null && echo "$f"
done
rm -f control
"""
_READ_SECRETS = """
for f in kcore keys kmsg latency_stats sched_debug timer_list timer_stats; do
    [ "$(head -c 1 /proc/$f 2>/dev/null | wc -c)" -gt 0 ] && echo /proc/$f
done
for d in acpi asound scsi; do
    ls /proc/$d/* 2>/dev/null
done
"""


@check(FILESYSTEM)
def settings(context: CheckContext) -> None:
    """No kernel setting can be opened for writing, such as core_pattern or any other that affects the host."""
    for network in ("none", "full"):
        session = context.session(network="none" if network == "none" else "full")
        context.fence(session)
        opened = context.sh(session, OPEN_SETTINGS).stdout.split()
        session.stop()
        expect(
            opened[:1] == ["control"], "a file of the project can't be opened for writing, so the check proves nothing"
        )
        expect(not opened[1:], f"with network {network}, opened for writing: {', '.join(opened[1:6])}")


@check(FILESYSTEM)
def secrets(context: CheckContext) -> None:
    """The files in /proc that expose kernel memory, timers and keys are masked, as in container runtimes."""
    seen = context.sh(context.session(), _READ_SECRETS).stdout.split()
    expect(not seen, f"a command could read {', '.join(seen[:6])}")

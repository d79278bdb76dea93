"""Command lines of other sandboxes, ready to be measured: `--adapter NAME`.

Each is a careful use of the tool as its manual suggests, not its default. `{command}` stands for the driver and its
arguments, `{project}` for the project's directory. Your own command lines can use the same placeholders.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_SRT_SETTINGS: Final = (
    '{"network":{"allowedDomains":[],"deniedDomains":[]},'
    '"filesystem":{"denyRead":[],"allowWrite":["."],"denyWrite":[]}}'
)
_WITH_SETTINGS: Final = 'printf %s "$1" > .srt.json && shift && exec srt --settings .srt.json "$@"'
ADAPTERS: Final[dict[str, str]] = {
    "bwrap": (
        "bwrap --unshare-all --unshare-user --uid 1000 --gid 1000 --die-with-parent --new-session --clearenv"
        " --setenv PATH /usr/bin:/bin --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib"
        " --symlink usr/lib64 /lib64 --proc /proc --dev /dev --bind {project} {project} --chdir {project} {command}"
    ),
    "docker-run": (
        "docker run --rm -i --network none --cap-drop ALL --security-opt no-new-privileges --read-only"
        " -v {project}:{project} -w {project} {image} {command}"
    ),
    "firejail": (
        "firejail --quiet --noprofile --net=none --caps.drop=all --nonewprivs --seccomp --whitelist={project} {command}"
    ),
    "srt": f"sh -c {shlex.quote(_WITH_SETTINGS)} sh {shlex.quote(_SRT_SETTINGS)} {{command}}",
    "systemd-run": (
        "systemd-run --quiet --pipe --wait --collect -p PrivateNetwork=yes -p ProtectSystem=strict -p PrivateTmp=no"
        " -p NoNewPrivileges=yes -p ReadWritePaths={project} -p WorkingDirectory={project} {command}"
    ),
}


def command_line(adapter: str, image: str | None) -> str:
    """Return the command line of a named adapter, or the given one itself."""
    return ADAPTERS.get(adapter, adapter).replace("{image}", image or "debian:stable-slim")


def adapted(template: str, driver: Sequence[str], *, project: Path, mounted: Path) -> list[str]:
    """Return the command line that runs the driver in a foreign sandbox."""
    values = {"{project}": str(project), "{mounted}": str(mounted), "{command}": shlex.join(driver)}
    argv: list[str] = []
    for word in shlex.split(template):
        for name, value in values.items() if word != "{command}" else ():
            word = word.replace(name, value)
        argv += driver if word == "{command}" else [word]
    return argv

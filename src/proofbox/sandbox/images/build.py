"""Build an image from a distribution's signed packages, with mmdebstrap.

Two builds from the same state of the mirror give the same digest: times are cut to the date of the mirror's release
files, and what mmdebstrap takes from the host (its name, its resolver, its mirror) is replaced. apt verifies the
packages with the distribution's keys. Their installation scripts run on this machine in a chroot; if root builds, as
root.
"""

from __future__ import annotations

import email.utils
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from proofbox.core.files.locks import locked
from proofbox.core.files.programs import SYSTEM_PATH, distrust, find_program
from proofbox.core.nearest import nearest
from proofbox.core.text import printable
from proofbox.errors import ImageBuildFailed, ImageUnknown, UsageError
from proofbox.sandbox.images.catalogue import resolve_default_image
from proofbox.sandbox.images.image import architecture, images_dir
from proofbox.sandbox.images.local import keep, new_archive
from proofbox.sandbox.images.pull import PulledImage, check_lock, lock_image
from proofbox.sandbox.images.recipes import DEBIAN_ARCHITECTURES, DEFAULT, KERNEL, PRESETS, RECIPES, Recipe
from proofbox.sandbox.paths import resolve_project

OnLine = Callable[[str], None]
"""Called with a line that says what the build does."""

PUBLIC_MIRROR = "http://deb.debian.org/debian"
BUILD_SECONDS = 3600.0
_RELEASE_LIMIT = 4 << 20
_LINES_SHOWN = 12
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._~/-]*)?")
# Files that no program needs: a third of the archive. Licences stay.
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/lintian/*")
_KEPT = ("/usr/share/doc/*/copyright", "/usr/share/locale/locale.alias")


def build_image(
    name: str = DEFAULT,
    *,
    project_root: str | os.PathLike[str] | None = ".",
    mirror: str | None = None,
    update: bool = False,
    on_line: OnLine | None = None,
) -> PulledImage:
    """Build a built-in image on this machine, and lock the project to it.

    For example:

        proofbox.build_image("debian-12-python", project_root=".")

    `mirror` is the address of a Debian mirror; by default, the one that this machine's apt uses.
    With `update`, a lock with another digest is replaced; otherwise it is an error. With `project_root=None`, no
    project is locked. The names `minimal`, `python`, `node` and `build` stand for the images of the default release,
    Debian 12. The name `kernel` stands for the kernel for virtual machines, which no project is locked to.
    """
    project = None if project_root is None else resolve_project(project_root)
    distrust(() if project is None else [project])
    if name == KERNEL:
        from proofbox.sandbox.machines.kernel import build_kernel

        image = build_kernel(on_line)
        return PulledImage(image, image.archive, True)
    name = PRESETS.get(name, name)
    recipe = _recipe(name)
    arch = architecture()
    if arch not in DEBIAN_ARCHITECTURES:
        known = ", ".join(DEBIAN_ARCHITECTURES)
        raise ImageUnknown(f"{name} can't be built for {arch}", op="images build", fix_hints=[f"known: {known}"])
    mirrors = _mirrors(recipe, mirror)
    images_dir().mkdir(mode=0o700, exist_ok=True)
    with locked(images_dir() / f"{name}.lock"), new_archive() as archive:
        epoch = max(_released(f"{url}/dists/{suite}/InRelease") for url, suite in mirrors.suites(recipe.suite))
        _run(_command(recipe, mirrors, arch, archive), epoch, on_line)
        record = keep(
            archive,
            name,
            arch,
            source="build",
            origin=f"{recipe.suite} from {mirrors.main}, {email.utils.formatdate(epoch, usegmt=True)}",
            description=recipe.description,
        )
    image = msgspec.structs.replace(record.image(), default=name == resolve_default_image(arch).name)
    if project is not None:
        if not update:
            check_lock(project, image)
        lock_image(project, image)
    return PulledImage(image, image.archive, True)


def _recipe(name: str) -> Recipe:
    found = RECIPES.get(name)
    if found is None:
        raise ImageUnknown(
            f"there is no built-in image {name[:80]!r}",
            op="images build",
            fix_hints=[
                *(each for each in [nearest(name, (*RECIPES, *PRESETS, KERNEL))] if not each.startswith("known")),
                f"known: {', '.join((*RECIPES, KERNEL))}; short names: {', '.join(PRESETS)}",
            ],
            details={"image": name[:80]},
        )
    return found


class Mirrors(NamedTuple):
    """Where the packages of a suite are."""

    main: str
    security: str

    def suites(self, suite: str) -> Iterator[tuple[str, str]]:
        """Yield the mirror and the name of each suite that a build uses."""
        yield from ((self.main, suite), (self.main, f"{suite}-updates"), (self.security, f"{suite}-security"))


def _mirrors(recipe: Recipe, given: str | None) -> Mirrors:
    """Return the mirrors to use: the given one, or those that this machine's apt uses for the suite.

    A mirror whose security suite is unknown is assumed to have it beside the others, as Debian's have.
    """
    if given is not None:
        if not _URL.fullmatch(given):
            raise UsageError(
                f"{given[:200]!r} is not the address of a mirror",
                op="images build",
                fix_hints=[f"such as {PUBLIC_MIRROR}"],
            )
        main = given.rstrip("/")
        return Mirrors(main, f"{main}-security")
    known = _apt_sources()
    main = known.get(recipe.suite, PUBLIC_MIRROR)
    return Mirrors(main, known.get(f"{recipe.suite}-security", f"{main}-security"))


def _apt_sources() -> dict[str, str]:
    """Return the mirror of each suite in apt's sources, in any format.

    apt knows the code name of a suite such as `stable` only after an update; its sources name the others.
    """
    apt, found = find_program("apt-get"), dict[str, str]()
    if apt is None:
        return found
    for suite, options in (("$(CODENAME)", ()), ("$(RELEASE)", ("--no-release-info",))):
        listed = subprocess.run(
            [apt, "indextargets", *options, "--format", f"$(SITE) {suite} $(COMPONENT)", "Created-By: Packages"],
            env={**os.environ, "PATH": SYSTEM_PATH},
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=60,
        )
        for line in listed.stdout.splitlines():
            site, name, component = (*line.split(), "", "", "")[:3]
            if component == "main" and _URL.fullmatch(site):
                found.setdefault(name, site.rstrip("/"))
    return found


def _released(url: str) -> int:
    """Return the date of a release file, in seconds since 1970. It decides nothing but the times of files."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 (http or https, checked)
            text = answer.read(_RELEASE_LIMIT).decode("utf-8", "replace")
    except (OSError, urllib.error.URLError, ValueError) as error:
        raise ImageBuildFailed(
            f"the mirror can't be read: {url}: {getattr(error, 'reason', error)}",
            op="images build",
            fix_hints=["check the network, or name another mirror: --mirror URL"],
            details={"url": url},
        ) from None
    found = re.search(r"^Date: (.+)$", text, re.MULTILINE)
    moment = email.utils.parsedate_to_datetime(found[1]) if found else None
    if moment is None:
        raise ImageBuildFailed(f"{url} is not a release file: it has no date", op="images build")
    return int(moment.timestamp())


def _command(recipe: Recipe, mirrors: Mirrors, arch: str, archive: Path) -> list[str]:
    program = find_program("mmdebstrap")
    if program is None:
        raise ImageBuildFailed(
            "mmdebstrap is not installed",
            op="images build",
            fix_hints=[
                "Debian, Ubuntu: sudo apt-get install mmdebstrap",
                "or import one: proofbox images import --help",
            ],
        )
    by = f"[signed-by={_KEYRING}] " if Path(_KEYRING).exists() else ""
    suite = recipe.suite
    sources = [f"deb {by}{url} {name} main" for url, name in mirrors.suites(suite)]
    public = "\\n".join(
        f"deb {url} {name} main" for url, name in Mirrors(PUBLIC_MIRROR, f"{PUBLIC_MIRROR}-security").suites(suite)
    )
    hooks = (
        f"printf '{public}\\n' > \"$1/etc/apt/sources.list\"",
        'rm -rf "$1"/etc/apt/sources.list.d/* "$1"/var/cache/debconf/*-old "$1"/var/log/*',
        'rm -f "$1/etc/resolv.conf" && : > "$1/etc/resolv.conf"',
        'echo box > "$1/etc/hostname"',
        'mkdir -p "$1/var/tmp" "$1/etc/apt/sources.list.d"',
    )
    return [
        program,
        "--variant=essential",
        "--format=tar",
        f"--architectures={DEBIAN_ARCHITECTURES[arch]}",
        f"--include={','.join(recipe.packages)}",
        *(f"--dpkgopt=path-exclude={each}" for each in _LEFT_OUT),
        *(f"--dpkgopt=path-include={each}" for each in _KEPT),
        "--aptopt=APT::Install-Recommends false",
        *(f"--customize-hook={hook}" for hook in hooks),
        suite,
        str(archive),
        *sources,
    ]


def _run(words: list[str], epoch: int, on_line: OnLine | None) -> None:
    """Run a build. Whatever ends it (an error, Ctrl-C), its processes end too."""
    env = {
        "PATH": SYSTEM_PATH,
        "HOME": "/root" if os.geteuid() == 0 else os.environ.get("HOME", "/"),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "DEBIAN_FRONTEND": "noninteractive",
        "SOURCE_DATE_EPOCH": str(epoch),
    }
    env |= {
        name: os.environ[name] for name in ("http_proxy", "https_proxy", "no_proxy", "TMPDIR") if name in os.environ
    }
    last: deque[str] = deque(maxlen=_LINES_SHOWN)
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=env,
        cwd="/",
        start_new_session=True,
    ) as process:
        try:
            for line in process.stderr or ():
                text = printable(line.strip())[:500]
                last.append(text)
                if on_line is not None and text.startswith("I: "):
                    on_line(text.removeprefix("I: "))
            code = process.wait(BUILD_SECONDS)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)  # mmdebstrap then unmounts and removes its directory
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if code != 0:
        raise ImageBuildFailed(
            f"mmdebstrap failed with exit code {code}: {last[-1] if last else 'it printed nothing'}",
            op="images build",
            details={"exit_code": code, "output": list(last)},
        )

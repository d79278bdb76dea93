"""A Python interpreter that may use Virtualization.framework.

macOS lets a program create machines only if it is signed with the entitlement `com.apple.security.virtualization`. An
ad hoc signature is enough, but proofbox must not sign the user's own interpreter again: a copy of it is signed, once.
"""

from __future__ import annotations

import hashlib
import os
import plistlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from proofbox.core.dirs import cache_dir
from proofbox.core.interpreter import interpreter_path, module_child
from proofbox.core.text import printable
from proofbox.errors import ProviderUnavailable
from proofbox.sandbox.images.unused_files import MAKING

ENTITLEMENT = "com.apple.security.virtualization"
CODESIGN = "/usr/bin/codesign"
SIGN_SECONDS = 60.0


def interpreter() -> Path:
    """Return the program that runs Python code.

    In a framework build, `python3` only starts the program in `Python.app`, which would not have the copy's signature.
    """
    if sysconfig.get_config_var("PYTHONFRAMEWORK"):
        return Path(sys.base_prefix, "Resources/Python.app/Contents/MacOS/Python")
    return Path(os.path.realpath(interpreter_path()))


def signed_interpreter() -> Path:
    """Return the signed copy of this interpreter. It is made at the first use, and again after a Python update."""
    source = interpreter()
    try:
        digest = hashlib.sha256(source.read_bytes() + os.fsencode(sys.base_prefix)).hexdigest()
        folder = cache_dir() / "apple-vm"
        folder.mkdir(mode=0o700, exist_ok=True)
        place = folder / digest
        if not (place / "bin/python3").exists():
            with tempfile.TemporaryDirectory(prefix=MAKING, dir=folder) as work:
                made = Path(work, "made")
                _sign_copy(source, made)
                if not place.exists():
                    made.rename(place)
    except OSError as error:
        raise _unsigned(str(error)) from error
    return place / "bin/python3"


def helper_command(python: Path, module: str) -> list[str]:
    """Return the command that runs a module in the signed copy, with this process's packages and no other variable.

    The copy finds its standard library by PYTHONHOME, which `-I` would ignore.
    """
    isolated = ["/usr/bin/env", "-i", f"PYTHONHOME={sys.base_prefix}", str(python), "-s", "-P", "-B"]
    return module_child(module, python=isolated).argv


def _sign_copy(source: Path, made: Path) -> None:
    copy = made / "bin/python3"
    copy.parent.mkdir(parents=True)
    shutil.copyfile(source, copy)
    copy.chmod(0o755)
    (made / "lib").symlink_to(Path(sys.base_prefix, "lib"))  # some builds look for their library beside the program
    entitlements = made / "entitlements.plist"
    entitlements.write_bytes(plistlib.dumps({ENTITLEMENT: True}))
    command = [CODESIGN, "--sign", "-", "--force", "--entitlements", str(entitlements), str(copy)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SIGN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _unsigned(f"codesign did not end within {SIGN_SECONDS:g} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"codesign ended with exit code {done.returncode}"]
        raise _unsigned(printable(lines[-1])[:500])


def _unsigned(reason: str) -> ProviderUnavailable:
    return ProviderUnavailable(
        f"a copy of Python can't be signed for virtualization: {reason}",
        op="start",
        fix_hints=[
            "install Apple's command line tools: xcode-select --install",
            "use a Python from python.org, Homebrew or uv: /usr/bin/python3 can't be signed again",
            "or use --provider docker",
        ],
        details={"python": str(interpreter()), "entitlement": ENTITLEMENT},
    )

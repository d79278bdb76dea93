"""Lists what a suite requests beyond the user's settings: everything that widens a box or leaves the suite's directory.

The baseline is the user's `config.toml`, and `--provider` on the command line. Literal values of variables
(`env = ["NAME=value"]`, `verify.env`, `solution_env`) take nothing from this host and are not listed; the suite's
commands could set them as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from proofbox.agents.environment import is_allowed
from proofbox.config import consent
from proofbox.config.consent import Widening
from proofbox.config.settings import Settings
from proofbox.lab.suite.checks import capabilities_of
from proofbox.lab.suite.files import SuiteFiles
from proofbox.lab.suite.reading import Suite
from proofbox.lab.suite.spec import Mission, verifiers_of
from proofbox.sandbox.providers import ALIASES
from proofbox.workspace.capabilities.compiling import network_of


def widenings(suite: Suite, files: SuiteFiles, users: Settings, *, provider: str | None) -> tuple[Widening, ...]:
    """Return every request of a suite in canonical order. `provider` is the one given on the command line, if any."""
    found = {
        Widening(text, mission.id) for mission in suite.missions for text in _requests(mission, files, users, provider)
    }
    return tuple(sorted(found))


def require_consent(
    suite: Suite, files: SuiteFiles, users: Settings, *, name: str, provider: str | None, trust: bool, command: str
) -> None:
    """Raise `ConsentRequired` unless the user has consented to all requests of the suite; `trust` is that consent.

    `name` is the suite's file as the user named it, and `command` the command line that records the consent.
    """
    requests = widenings(suite, files, users, provider=provider)
    if not requests:
        return
    file = files.base / Path(name).name
    path = file if file.is_file() else files.base  # a directory of tasks
    if trust:
        consent.agree(path, requests)
    consent.require(path, requests, command=command)


def _requests(mission: Mission, files: SuiteFiles, users: Settings, provider: str | None) -> Iterator[str]:
    named = None if mission.provider is None else ALIASES.get(mission.provider, mission.provider)
    limits = mission.limits
    yield from Settings(
        provider=None if provider is not None else named,
        network=mission.network,
        cpus=limits.cpus,
        memory=limits.memory_mb,
        pids=limits.pids,
    ).widening(users)
    if mission.image is not None and mission.image != users.image:
        yield f"image = {_quoted(mission.image)}"
    for name in mission.env:
        if "=" not in name and name not in users.env and not is_allowed(name):
            yield f"env = [{_quoted(name)}]"
    for field, verify in verifiers_of(mission):
        place = ".".join(map(str, field))
        yield from (f"{place}.{each}" for each in Settings(network=verify.network).widening(users))
    grants = capabilities_of(mission, files)
    if grants is not None:
        allowed = Settings(network=network_of(grants.network)).widening(users)
        yield from (f"capabilities = {_quoted(mission.capabilities)} with {each}" for each in allowed)
    for field, found in files.named_by(mission):
        if found.outside:
            what = ", with everything it allows," if field == ("capabilities",) else ""
            yield f"{'.'.join(map(str, field))} = {_quoted(str(found.real))}{what} outside the suite's directory"


def _quoted(value: str | None) -> str:
    return msgspec.json.encode(value).decode()

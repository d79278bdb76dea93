"""The built-in plans: one corpus of probes, and for each provider its profiles and exceptions.

A plan's file lists the profiles of a provider and its exceptions: the probes with another expected result, each with
its reason. Probes of profiles that a provider lacks are left out.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from proofbox.core.digest import sha256_file
from proofbox.sandbox.probing.operations import skipped
from proofbox.sandbox.probing.plan import PlanFields, Probe, ProbePlan, Profile, Text

CORPUS: Final = "corpus"


class ProbeException(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Probes whose expected result differs for this provider."""

    probes: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    """Their ids; `call.*` stands for all that begin with `call.`."""
    expect: Literal["allow", "deny", "baseline", "skip"]
    """`baseline`: the same as without a sandbox, where there is a baseline. `skip`: leave them out."""
    reason: Text


class _BuiltIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    plan: PlanFields
    profile: tuple[Profile, ...]
    include: tuple[str, ...] = ("*",)
    """The probes of the corpus that belong to the plan."""
    exception: tuple[ProbeException, ...] = ()
    probe: tuple[Probe, ...] = ()
    """Probes of the plan's own."""


class _Corpus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    probe: tuple[Probe, ...]


def built_in_plans() -> list[str]:
    """Return the ids of the built-in plans."""
    names = (each.stem for each in _directory().glob("*.toml"))
    return sorted(name for name in names if name != CORPUS)


@cache
def built_in_plan(name: str) -> ProbePlan:
    """Return a built-in plan with all of its probes."""
    found = msgspec.convert(_read(name), _BuiltIn)
    profiles = {profile.id for profile in found.profile}
    probes = []
    for probe in (*corpus_probes(*found.include), *found.probe):
        other = next((each for each in found.exception if any(_names(text, probe.id) for text in each.probes)), None)
        wanted = tuple(id for id in probe.profiles if id in profiles)
        left_out = other is not None and (other.expect == "skip" or (other.expect == "baseline" and skipped(probe)))
        if (probe.profiles and not wanted) or left_out:
            continue
        probe = msgspec.structs.replace(probe, profiles=wanted)
        if other is not None and other.expect != "skip":
            probe = msgspec.structs.replace(probe, expect=other.expect, reason=other.reason)
        probes.append(probe)
    return ProbePlan(plan=found.plan, profile=found.profile, probe=tuple(probes))


def built_in_digests(name: str) -> dict[str, str]:
    """Return the SHA-256 of each file that a built-in plan consists of."""
    return {file: sha256_file(_directory() / file)[0] for file in (f"{name}.toml", f"{CORPUS}.toml")}


def corpus_probes(*names: str) -> list[Probe]:
    """Return probes of the corpus; a name that ends with `*` stands for all that begin with it.

    Raises `LookupError` for a name that stands for no probe.
    """
    for text in names:
        if not any(_names(text, probe.id) for probe in _corpus()):
            raise LookupError(f"the corpus has no probe {text}")
    return [probe for probe in _corpus() if any(_names(text, probe.id) for text in names)]


@cache
def _corpus() -> tuple[Probe, ...]:
    return msgspec.convert(_read(CORPUS), _Corpus).probe


def _names(text: str, probe: str) -> bool:
    return probe.startswith(text[:-1]) if text.endswith("*") else probe == text


def _read(name: str) -> object:
    return tomllib.loads((_directory() / f"{name}.toml").read_text("utf-8"))


def _directory() -> Path:
    return Path(str(files("proofbox.sandbox.probing"))) / "plans"

"""Policies: a box states its policy in each result, and refuses unsupported options by name before it starts."""

from __future__ import annotations

from pathlib import Path

from proofbox.errors import PathRefused, PolicyRefused, RequestInvalid
from proofbox.sandbox.conformance.check import (
    CPUS,
    DETACHED,
    DISK,
    HIDDEN,
    MEMORY,
    MOUNTS,
    NETWORK,
    OVERLAY,
    PIDS,
    READ_ONLY,
    Need,
    NotApplicable,
    ProviderChecks,
    expect,
)
from proofbox.sandbox.conformance.context import CheckContext
from proofbox.sandbox.contract import Mount
from proofbox.sandbox.options import PolicyOptions

subject = ProviderChecks("policy")
check = subject.check


@check()
def refusals(context: CheckContext) -> None:
    """A provider refuses every option that it does not enforce, with a reason; it never ignores one silently."""
    requests: list[tuple[Need, PolicyOptions]] = [
        (NETWORK, {"network": "none"}),
        (READ_ONLY, {"access": "ro"}),
        (OVERLAY, {"access": "overlay"}),
        (DISK, {"access": "overlay", "disk": 16}),
        (MOUNTS, {"mounts": [f"{context.outside}:/mnt/outside:ro"]}),
        (HIDDEN, {"hidden": ["some"]}),
        (MEMORY, {"memory": 256}),
        (CPUS, {"cpus": 0.5}),
        (PIDS, {"pids": 64}),
    ]
    unmet = [(need, options) for need, options in requests if not need.met(context.enforcement)]
    for need, options in unmet:
        error = context.refused(PolicyRefused, need.gap, context.session, **options)
        expect(need.gap in error.message, f"{need.gap}: the refusal does not name it: {error.message}")
        expect(context.enforcement.gaps.get(need.gap), f"{need.gap}: no reason is given")
        expect(error.fix_hints, f"{need.gap}: no fix hint is given")
    if not context.enforcement.detached:
        unmet.append((DETACHED, {}))
        context.refused(
            PolicyRefused, DETACHED.gap, context.boxes.start_session, provider=context.provider, detached=True
        )
    if not unmet:
        raise NotApplicable(f"{context.provider} enforces every policy here, so it refuses none")


@check()
def invalid_values(context: CheckContext) -> None:
    invalid: list[PolicyOptions] = [
        {"memory": 0},
        {"memory": -5},
        {"cpus": 0.0},
        {"cpus": float("nan")},
        {"pids": 0},
        {"disk": 0, "access": "overlay"},
        {"disk": 5},
    ]
    for options in invalid:
        context.refused(RequestInvalid, str(options), context.session, **options)


@check()
def reported_policy(context: CheckContext) -> None:
    """The result states the policy that was enforced, including defaults."""
    policy = context.once("true").policy
    expect(policy.network in ("none", "full"), f"the result states the network {policy.network!r}")
    expect(policy.access in ("rw", "ro", "overlay"), f"the result states the access {policy.access!r}")
    if context.enforcement.network_none:
        expect(policy.network == "none", "the default network is not `none`")


@check(MOUNTS)
def mounts(context: CheckContext) -> None:
    """A host directory appears at the requested path, read-only unless the mount says rw."""
    shown, _ = context.secret("shown")
    open_dir = context.scratch / "open"
    open_dir.mkdir()
    session = context.session(
        mounts=[f"{context.outside}:/mnt/seen", f"{open_dir}:/mnt/open:rw", f"{shown}:/mnt/one:ro"]
    )
    result = context.sh(
        session, "cat /mnt/seen/shown /mnt/one; echo x > /mnt/seen/new; echo y >> /mnt/one; echo z > /mnt/open/new"
    )
    expect(result.stdout == shown.read_text() * 2, f"the mounted files contain {result.stdout!r}: {result.stderr!r}")
    expect(not (context.outside / "new").exists(), "a read-only mount was written to")
    expect("y" not in shown.read_text().split("\n"), "a file mounted read-only was written to")
    expect((open_dir / "new").exists(), f"a writable mount was not writable: {result.stderr!r}")


@check(MOUNTS)
def mounted_project(context: CheckContext) -> None:
    """If the project is mounted at another path, commands start there, and relative directories are below it."""
    (context.project / "below").mkdir()
    session = context.session(mounts=[Mount(context.project, "/place/of/it", writable=True)])
    result = context.sh(session, "pwd; echo made > made")
    expect(result.stdout == "/place/of/it\n", f"commands start in {result.stdout!r}: {result.stderr!r}")
    expect((context.project / "made").exists(), "a file written there is not in the project")
    below = session.exec(["pwd"], cwd="below").stdout
    expect(below == "/place/of/it/below\n", f"a command with cwd `below` starts in {below!r}")


@check(MOUNTS)
def mounts_refused(context: CheckContext) -> None:
    for mount in ("nothing", f"{context.scratch}/missing:/mnt/x", "/:/mnt/host", "/proc:/mnt/p",
    f"{context.outside}:/proc/x",
                  f"{context.outside}:relative", f"{context.outside}:/mnt/../etc", f"{context.outside}:/"):  # fmt: skip
        context.refused(PathRefused, f"mount {mount!r}", context.session, mounts=[mount])


@check(MOUNTS)
def swapped_mounts_refused(context: CheckContext) -> None:
    """A link that a box put at a mount's source, or on the path to its target, is refused by the next box."""
    (context.project / "data").mkdir()
    context.once(f"mv data moved && ln -s {context.outside} data")
    for name in ("data", "data/deep"):
        (context.outside / "deep").mkdir(exist_ok=True)
        mount = f"{context.project}/{name}:/mnt/data:rw"
        context.refused(PathRefused, f"the link {name} as a source", context.session, mounts=[mount])
    mount = f"{context.scratch}/outside:{context.project}/data/new:rw"
    context.refused(PathRefused, "a link on the path to the target", context.session, mounts=[mount])
    expect(not (context.outside / "new").exists(), "a directory was created outside the project")


@check()
def projects_refused(context: CheckContext) -> None:
    (context.project / "file").write_text("")
    for project in (context.scratch / "missing", context.project / "file", Path("/"), Path("/etc"), Path("/proc")):
        context.refused(PathRefused, f"project {project}", context.session, context.over(project))

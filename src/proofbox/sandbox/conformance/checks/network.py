"""With network `none`, a box has no interface, no route and no access to the host's sockets of any family.

The attacks are probes of the corpus. Their listeners are on this host's 127.0.0.1 and in its abstract socket namespace.
"""

from __future__ import annotations

import time

from proofbox.sandbox.conformance.check import NETWORK, NotChecked, ProviderChecks, expect
from proofbox.sandbox.conformance.context import CheckContext
from proofbox.sandbox.conformance.probing import probed, run_probes
from proofbox.sandbox.probing.decoys import new_decoys

subject = ProviderChecks("network")
check = subject.check


@check(NETWORK)
def no_interface(context: CheckContext) -> None:
    """The box has only its own loopback interface and no routes."""
    session = context.session(network="none")
    interfaces, routes = _interfaces_and_routes(context, "none")
    expect(interfaces <= {"lo"}, f"the box has the interfaces {sorted(interfaces)}")
    expect(not routes, f"the box has routes: {routes}")
    expect(context.sh(session, "true").policy.network == "none", "the result does not state the network policy")


for _name, _probe in (
    ("tcp", "network.tcp"),
    ("udp", "network.udp"),
    ("abstract-socket", "network.abstract"),
    ("socket-by-path", "network.socket"),
    ("own-loopback", "network.own-loopback"),
):
    subject.add(_name, NETWORK, probed(_probe, network="none"))


@check(NETWORK)
def abstract_socket_names(context: CheckContext) -> None:
    """The names of the host's abstract sockets are not listed."""
    with new_decoys() as decoys:
        listed = context.once('cat /proc/net/unix | grep -c "$1"', decoys.listeners.abstract, network="none")
    expect(listed.stdout.strip() == "0", "the host's abstract sockets are listed in /proc/net/unix")


@check(NETWORK)
def name_resolution(context: CheckContext) -> None:
    """Name resolution fails, and soon: the box reaches neither a resolver on the network nor a socket of one on the
    host."""
    interfaces, routes = _interfaces_and_routes(context, "none")
    if not interfaces <= {"lo"} or routes:
        raise NotChecked("the box has a network: a DNS query would leave this machine")
    run_probes(context, "network.dns", "service.*", network="none")
    session = context.session(network="none")
    context.alive(session)  # a virtual machine has to boot
    began = time.monotonic()
    seen = context.sh(session, 'command -v getent && getent hosts "$1"', "conformance.proofbox.example")
    took = time.monotonic() - began
    expect("conformance" not in seen.stdout, f"a name was resolved: {seen.stdout}")
    expect(took < 9, f"name resolution took {took:.1f} s to fail")


@check(NETWORK)
def socket_families(context: CheckContext) -> None:
    """With any network policy, only common socket families can be opened. Others, such as AF_VSOCK, bypass the network
    namespace or are rarely used parts of the kernel."""
    run_probes(context, "socket.*", "call.io-uring-setup", network="none")
    run_probes(context, "socket.*", "call.io-uring-setup", network="full")


@check(NETWORK)
def full_network(context: CheckContext) -> None:
    """With network `full`, the box has more interfaces or routes than with `none`, and the result states the policy."""
    session = context.session(network="full")
    expect(context.sh(session, "true").policy.network == "full", "the result does not state the network policy")
    if _interfaces_and_routes(context, "full") == _interfaces_and_routes(context, "none"):
        raise NotChecked("this machine has no network")


def _interfaces_and_routes(context: CheckContext, network: str) -> tuple[set[str], list[str]]:
    script = "cat /proc/net/dev; echo ---; cat /proc/net/route /proc/net/ipv6_route 2>/dev/null"
    session = context.session(network="none" if network == "none" else "full")
    devices, _, routes = context.sh(session, script).stdout.partition("---")
    session.stop()
    names = {line.partition(":")[0].strip() for line in devices.splitlines() if ":" in line}
    # Ignore the header (Iface…) and routes through lo, which lead nowhere.
    return names, [
        line for line in routes.splitlines() if line and not line.startswith("Iface") and not line.endswith("lo")
    ]

"""With network `none`, a box has no interface, no route and no access to the host's sockets of any family.

The listeners are on this host's 127.0.0.1 and in its abstract socket namespace. As a control, the same attempt is made
with `off`, so that an attempt that fails for another reason does not pass as isolation.
"""

from __future__ import annotations

import socket
import time

from proofbox.config.settings import Settings
from proofbox.errors import ProofboxError
from proofbox.sandbox.conformance.check import NETWORK, NotChecked, ProviderChecks, expect
from proofbox.sandbox.conformance.context import COMMAND_TIMEOUT, CheckContext
from proofbox.sandbox.conformance.probing import SystemCalls, connect, listeners
from proofbox.sandbox.service import Sandboxes

subject = ProviderChecks("network")
check = subject.check

LAST_FAMILY = 63  # well beyond the highest family in Linux
LAST_NETLINK = 31
SOCK_PACKET = 10
IPPROTO_SMC, IPPROTO_MPTCP = 256, 262
_ROOM = "x" * 63  # buffer for a call's output
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
_KINDS = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET)
_PROTOCOLS = (socket.IPPROTO_SCTP, socket.IPPROTO_UDPLITE, IPPROTO_SMC, IPPROTO_MPTCP)


@check(NETWORK)
def no_interface(context: CheckContext) -> None:
    """The box has only its own loopback interface and no routes."""
    session = context.session(network="none")
    interfaces, routes = _interfaces_and_routes(context, "none")
    expect(interfaces <= {"lo"}, f"the box has the interfaces {sorted(interfaces)}")
    expect(not routes, f"the box has routes: {routes}")
    expect(context.sh(session, "true").policy.network == "none", "the result does not state the network policy")


def _add_unreachable_check(name: str, kind: str) -> None:
    def run(context: CheckContext) -> None:
        with listeners(context) as by_kind:
            way, listener = by_kind[kind]
            _control(context, way)
            expect(listener.visited(), f"the control with `off` did not reach the {kind} listener")
            seen = connect(context, context.session(network="none"), way)
            expect(not listener.visited(), f"the box reached a {kind} listener of the host ({seen})")
            expect(not seen.startswith("reached"), f"the box reports {seen!r} for the {kind} listener")

    subject.add(name, NETWORK, run)


for _name, _kind in (("tcp", "tcp"), ("udp", "udp"), ("abstract-socket", "abstract"), ("socket-by-path", "path")):
    _add_unreachable_check(_name, _kind)


@check(NETWORK)
def abstract_socket_names(context: CheckContext) -> None:
    """The names of the host's abstract sockets are not listed."""
    with listeners(context):
        listed = context.once('cat /proc/net/unix | grep -c "$1"', context.marker, network="none")
    expect(listed.stdout.strip() == "0", "the host's abstract sockets are listed in /proc/net/unix")


@check(NETWORK)
def name_resolution(context: CheckContext) -> None:
    """Name resolution fails, and soon: the box reaches neither a resolver on the network nor a socket of one on the
    host."""
    interfaces, routes = _interfaces_and_routes(context, "none")
    if not interfaces <= {"lo"} or routes:
        raise NotChecked("the box has a network: a DNS query would leave this machine")
    session = context.session(network="none")
    began = time.monotonic()
    seen = connect(context, session, "name=conformance.proofbox.example")
    took = time.monotonic() - began
    expect(not seen.startswith("reached"), f"a name was resolved: {seen}")
    expect(took < 9, f"name resolution took {took:.1f} s to fail")
    services = (
        "/run/nscd /var/run/nscd /run/systemd/resolve /run/dbus /run/docker.sock /var/run/docker.sock /run/avahi-daemon"
    )
    found = context.sh(session, f"ls -d {services} 2>/dev/null").stdout.split()
    expect(not found, f"services of the host are reachable: {', '.join(found)}")


@check(NETWORK)
def own_loopback(context: CheckContext) -> None:
    """A server and its client in the same box can connect over loopback, which is separate from the host's."""
    with listeners(context) as by_kind:
        way, _ = by_kind["tcp"]
        port = way.partition("=")[2]
        session = context.session(network="none")
        script = f"""
import socket, threading
s = socket.create_server(("127.0.0.1", {port}))
threading.Thread(target=lambda: s.accept()[0].sendall(b"inside"), daemon=True).start()
print(socket.create_connection(("127.0.0.1", {port}), 10).recv(16).decode())
"""
        if not context.sh(session, "command -v python3").stdout:
            raise NotChecked("the box has no python3 for the server and the client")
        result = session.exec(["python3", "-c", script], timeout=COMMAND_TIMEOUT)
        expect(result.stdout == "inside\n", f"the box's loopback does not work: {result.stderr[-300:]!r}")


@check(NETWORK)
def socket_families(context: CheckContext) -> None:
    """With any network policy, only common socket families can be opened. Others, such as AF_VSOCK, bypass the network
    namespace or are rarely used parts of the kernel."""
    allowed = {f"family {family:d}" for family in _FAMILIES} | {"netlink 0", "pair 1"}
    families = range(LAST_FAMILY + 1)
    calls = [
        *(
            (f"family {family}", "socket", family, int(kind), 0)
            for family in families
            for kind in _KINDS
            if family != 16
        ),
        *((f"netlink {number}", "socket", 16, int(socket.SOCK_RAW), number) for number in range(LAST_NETLINK + 1)),
        *((f"pair {family}", "socketpair", family, int(kind), 0, _ROOM) for family in families for kind in _KINDS),
        *((f"protocol {each:d}", "socket", 2, int(kind), int(each)) for each in _PROTOCOLS for kind in _KINDS),
        ("AF_INET with SOCK_PACKET", "socket", 2, SOCK_PACKET, 0),
        ("io_uring", "io_uring_setup", 1, _ROOM * 2),
    ]
    for network in ("none", "full"):
        session = context.session(network="none" if network == "none" else "full")
        opened = set(SystemCalls(context, session).allowed(*calls))
        session.stop()
        expect(not opened - allowed, f"with network {network}, opened: {', '.join(sorted(opened - allowed))}")
        expect({"family 1", "family 2", "pair 1"} <= opened, f"with network {network}, only {sorted(opened)} opened")


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


def _control(context: CheckContext, way: str) -> None:
    try:
        with Sandboxes(context.project, settings=Settings()) as boxes, boxes.start_session(provider="off") as session:
            seen = connect(context, session, way)
    except (ProofboxError, NotChecked) as error:
        raise NotChecked(f"the control with `off` could not be run: {error}") from None
    expect(not seen.startswith("blocked"), f"the control with `off` was {seen}")

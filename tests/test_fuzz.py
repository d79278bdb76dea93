"""Every parser of received material returns a document or refuses it with its own error, in bounded time and memory.

The seeds in tests/corpus are mutated by their structure. `scripts/test` runs a short, repeatable sample of each parser,
and `scripts/soak` runs thousands of new examples.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from capabilities import ROOT
from conftest import SOAK
from forging import rebuild
from fuzzing import Mutation, mutate_json, mutate_lines, mutate_toml, mutated
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pacing import limited_time

from proofbox.agents.funnel import wire as funnel_wire
from proofbox.agents.gateway.traffic import Exchange, StreamReader, read_body
from proofbox.agents.jsonrpc.messages import MessageSplitter, Notification
from proofbox.agents.runtimes.codex.decoder import CodexDecoder
from proofbox.agents.runtimes.process.dialects import dialect_named
from proofbox.agents.runtimes.scripted.script import read_script
from proofbox.config.settings import load
from proofbox.core.archives.unpack import ArchiveLimits, ArchiveRefused, unpack
from proofbox.core.chain import verify_chain
from proofbox.delivery.client.calls import BackendCall, BackendResponse, parse
from proofbox.delivery.client.settings import BackendSettings
from proofbox.delivery.client.wire import AppSpec, RepoManifest
from proofbox.delivery.mission import mission_from_spec
from proofbox.delivery.source.tree import open_source
from proofbox.errors import InternalError, ProofboxError, UsageError
from proofbox.evidence.attest.keys import load_private_key, load_public_key, new_key
from proofbox.evidence.bundle.paths import INDEX, STATUS, read_latest
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.evidence.documents.outcome import Outcome, Verdict
from proofbox.evidence.documents.tree import TreeEntry, tree_manifest
from proofbox.evidence.promotion.emit import emit_promotion
from proofbox.evidence.verify.verifier import verify, verify_packet
from proofbox.lab.campaign.reading import read_campaign
from proofbox.lab.suite.harbor.tasks import read_tasks
from proofbox.lab.suite.reading import parse_suite, read_suite
from proofbox.probes.reading import load_plan
from proofbox.sandbox.client import wire
from proofbox.sandbox.egress import proxy
from proofbox.sandbox.images.catalogue import read_catalogue
from proofbox.sandbox.images.image import Image
from proofbox.sandbox.images.pull import check_lock
from proofbox.sandbox.probing.lanes import parse_answers
from proofbox.workspace.capabilities.grants import load as load_grants
from proofbox.workspace.tools.environments import patch

CORPUS = ROOT / "tests/corpus"
LIMITS = ArchiveLimits(files=1000, size=1 << 20)
MEMORY = 300 << 20
"""How much the process may grow during one test. A parser's own limits are far lower."""

REPEATABLE = settings(
    max_examples=5000 if SOAK else 12,
    derandomize=not SOAK,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < MEMORY


def survives(read: Callable[[], Any], *refusals: type[Exception]) -> None:
    """Call a parser. Only its result, an error with a code and the parser's own refusals are right."""
    accepted: tuple[type[Exception], ...] = (ProofboxError, *refusals)
    refusal: Exception | None = None
    try:
        with limited_time():
            read()
    except accepted as error:
        refusal = error
    assert not isinstance(refusal, InternalError), refusal


Parser = Callable[[bytes, Path], Any]


def fuzz(seed: Path, parser: Parser, place: Path, ways: tuple[Mutation, ...], *refusals: type[Exception]) -> None:
    content = seed.read_bytes()
    survives(lambda: parser(content, place))

    @REPEATABLE
    @given(st.data())
    def run(data: st.DataObject) -> None:
        example = mutated(content, data, *ways)
        survives(lambda: parser(example, place), *refusals)

    run()


def written(name: str, read: Callable[[Path], Any]) -> Parser:
    """A parser of a file of that name."""

    def parser(content: bytes, place: Path) -> Any:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return read(path)

    return parser


# Settings, suites and tasks


def read_lock(path: Path) -> None:
    check_lock(path.parents[1], Image(name="small", arch="x86_64", url="https://example.org/x", sha256="0" * 64))


def read_dotenv(path: Path) -> None:
    BackendSettings.from_environment({}, project=path.parent)


TABLES: dict[str, tuple[str, Parser]] = {
    "suite": ("suite.toml", written("suite.toml", read_suite)),
    "campaign": ("campaign.toml", written("campaign.toml", read_campaign)),
    "plan": ("plan.toml", written("plan.toml", lambda path: load_plan(str(path)))),
    "config": ("config.toml", written(".proofbox/config.toml", lambda path: load(path.parents[1]))),
    "catalogue": ("images.toml", written("images.toml", read_catalogue)),
    "capabilities": ("capabilities.toml", written("capabilities.toml", load_grants)),
    "script": ("script.toml", written("script.toml", lambda path: read_script(str(path)))),
    "dotenv": ("env", written(".env", read_dotenv)),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str, tmp_path: Path) -> None:
    seed, parser = TABLES[name]
    (tmp_path / "prepare.sh").touch()
    shutil.copy(CORPUS / "suite.toml", tmp_path)  # a campaign refers to it
    fuzz(CORPUS / seed, parser, tmp_path, (mutate_toml,))


def test_suite_as_json(tmp_path: Path) -> None:
    suite = parse_suite((CORPUS / "suite.toml").read_text(), base=tmp_path)
    document = {"suite": suite.fields, "mission": suite.missions}
    (tmp_path / "seed.json").write_bytes(msgspec.json.encode(document))
    fuzz(tmp_path / "seed.json", written("suite.json", read_suite), tmp_path, (mutate_json,))


@pytest.mark.parametrize("name", ["task.toml", "environment/Dockerfile", "instruction.md"])
def test_harbor_tasks(name: str, tmp_path: Path) -> None:
    shutil.copytree(CORPUS / "task", tmp_path / "task")
    parser = written(f"task/{name}", lambda _: read_tasks(tmp_path / "task", host_root=True))
    fuzz(CORPUS / "task" / name, parser, tmp_path, (mutate_toml if name == "task.toml" else mutate_lines,))


def test_images_lock(tmp_path: Path) -> None:
    fuzz(CORPUS / "images.lock", written(".proofbox/images.lock", read_lock), tmp_path, (mutate_json,))


# Evidence


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a bundle `run`, a packet, a signed packet and a key. They name the machine, so it can't be a
    seed.
    """
    place = tmp_path_factory.mktemp("evidence")
    with BundleWriter.create(place / "out") as bundle:
        bundle.write_json("outcome.json", Outcome(Verdict("passed", "me", "so")).as_json())
        bundle.write_json("tree_manifest.json", tree_manifest([TreeEntry(b"a.txt", "100644", 3, "0" * 64)]))
        with bundle.open_log("events.jsonl") as log:
            for number in range(3):
                log.append({"n": number})
    new_key(place / "key")
    (place / "out" / str(read_latest(place / "out"))).rename(place / "run")
    emit_promotion(place / "run", output=place / "packet.json")
    emit_promotion(place / "run", output=place / "envelope.json", sign=place / "key")
    return place


def read_run(path: Path) -> None:
    verify(str(path.parent))
    load_bundle(path.parent)


@pytest.mark.parametrize("name", [INDEX, STATUS, "outcome.json", "tree_manifest.json", "events.jsonl"])
def test_files_of_a_bundle(name: str, evidence: Path, tmp_path: Path) -> None:
    shutil.copytree(evidence / "run", tmp_path / "run")
    ways = (mutate_lines,) if name.endswith(".jsonl") else (mutate_json,)
    fuzz(evidence / "run" / name, written(f"run/{name}", read_run), tmp_path, ways)


def test_rebuilt_bundles(evidence: Path, tmp_path: Path) -> None:
    """With an index that matches the mutated document, the checks of its content are reached."""

    def read(path: Path) -> None:
        rebuild(path.parent)
        read_run(path)
        packet = path.parent.with_name("packet.json")
        packet.unlink(missing_ok=True)
        emit_promotion(path.parent, output=packet)

    shutil.copytree(evidence / "run", tmp_path / "run")
    fuzz(evidence / "run/outcome.json", written("run/outcome.json", read), tmp_path, (mutate_json,))
    fuzz(evidence / "run/tree_manifest.json", written("run/tree_manifest.json", read), tmp_path, (mutate_json,))


def test_chained_log(evidence: Path, tmp_path: Path) -> None:
    parser = written("log.jsonl", lambda path: verify_chain(path, "run/events.jsonl"))
    fuzz(evidence / "run/events.jsonl", parser, tmp_path, (mutate_lines,))


@pytest.mark.parametrize("name", ["packet.json", "envelope.json"])
def test_packets(name: str, evidence: Path, tmp_path: Path) -> None:
    shutil.copytree(evidence, tmp_path / "evidence")
    key = str(evidence / "key.pub")
    parser = written(f"evidence/{name}", lambda path: [verify_packet(str(path)), verify_packet(str(path), key=key)])
    fuzz(evidence / name, parser, tmp_path, (mutate_json,))


@pytest.mark.parametrize("name", ["key", "key.pub"])
def test_key_files(name: str, evidence: Path, tmp_path: Path) -> None:
    def read(path: Path) -> None:
        survives(lambda: load_private_key(path))
        load_public_key(path)

    fuzz(evidence / name, written("key", read), tmp_path, (mutate_lines,))


# Archives, patches and documents of a backend


@pytest.mark.parametrize("name", ["archive.zip", "archive-pax.tar", "archive-gnu.tar", "archive.tar.gz"])
def test_archives(name: str, tmp_path: Path) -> None:
    def read(path: Path) -> None:
        shutil.rmtree(tmp_path / "into", ignore_errors=True)
        (tmp_path / "into").mkdir()
        unpack(path, tmp_path / "into", LIMITS)

    fuzz(CORPUS / name, written(name, read), tmp_path, (), ArchiveRefused)
    assert sorted(os.listdir(tmp_path)) == sorted([name, "into"])


def test_source_archive(tmp_path: Path) -> None:
    def read(path: Path) -> None:
        with open_source(path) as tree:
            assert tree.tree_sha256

    fuzz(CORPUS / "archive.zip", written("source.zip", read), tmp_path, ())


def test_patches(tmp_path: Path) -> None:
    def read(content: bytes, _: Path) -> None:
        for each in patch.parse(content.decode("utf-8", "surrogateescape")):
            survives(lambda each=each: patch.apply_hunks(b"one\ntwo\nthree\nfour\n", each))  # type: ignore[misc]

    fuzz(CORPUS / "change.patch", read, tmp_path, (mutate_lines,))


@pytest.mark.parametrize(("name", "kind"), [("app_spec.json", AppSpec), ("repo_manifest.json", RepoManifest)])
def test_documents_of_a_backend(name: str, kind: type[Any], tmp_path: Path) -> None:
    def read(content: bytes, _: Path) -> None:
        found = parse(BackendCall("op", "GET", "/", kind), BackendResponse(200, content))
        if isinstance(found, AppSpec):
            survives(lambda: parse_suite(mission_from_spec(found), base=tmp_path))

    fuzz(CORPUS / name, read, tmp_path, (mutate_json,))


# Streams


def read_frames(content: bytes, _: Path) -> None:
    parsers: dict[str, Callable[[bytes], Any]] = {
        "HELLO": wire.parse_hello,
        "STDOUT": wire.parse_chunk,
        "STDERR": wire.parse_chunk,
        "EXIT": wire.parse_exit,
        "FAILED": wire.parse_failed,
        "CREDIT": wire.parse_count,
    }
    for kind, _id, payload in wire.FrameDecoder().feed(content):
        survives(lambda: parsers.get(kind.name, len)(payload))  # noqa: B023 (called at once)


def read_proxy_request(content: bytes, _: Path) -> None:
    head, _separator, rest = content.partition(b"\r\n\r\n")
    _host, _port, _head, body = proxy._parse_head(head)
    if body is not None:
        proxy._part_of(body, rest)


def read_rpc(content: bytes, _: Path) -> None:
    splitter, decoder = MessageSplitter(), CodexDecoder()
    for message in [*splitter.feed(content), *splitter.close()]:
        if isinstance(message, Notification):
            decoder.decode(message.method, message.params)
    decoder.abandon()


def read_events(content: bytes, _: Path) -> None:
    exchange = Exchange(number=1, at_ms=0.0, method="POST", path="/v1/responses")
    reader = StreamReader(exchange, lambda _exchange, _call: None)
    for line in content.split(b"\n"):
        reader.line(line)
    reader.finish()
    read_body(exchange, content)
    json.dumps(msgspec.to_builtins(exchange))


def read_answers(content: bytes, _: Path) -> None:
    msgspec.json.encode(parse_answers(content, {"read", "write"}))


def read_dialect(name: Any) -> Parser:
    def read(content: bytes, _: Path) -> None:
        dialect = dialect_named(name)
        assert dialect is not None
        events = [event for line in content.split(b"\n") for event in dialect.translate(line)]
        msgspec.json.encode([*events, *dialect.end(stopped=False)])

    return read


STREAMS: dict[str, tuple[str, Parser, tuple[type[Exception], ...]]] = {
    "box agent": ("frames.bin", read_frames, ()),
    "funnel": (
        "funnel_request.bin",
        lambda content, _: funnel_wire.parse_request(content),
        (funnel_wire.MalformedFrame,),
    ),
    "proxy, body": ("proxy_request.http", read_proxy_request, (proxy.Refused,)),
    "proxy, connect": ("proxy_connect.http", read_proxy_request, (proxy.Refused,)),
    "proxy, chunks": ("proxy_chunked.http", read_proxy_request, (proxy.Refused,)),
    "JSON-RPC": ("rpc.jsonl", read_rpc, ()),
    "codex app-server": ("codex_app_server.jsonl", read_rpc, ()),
    "model's events": ("stream.sse", read_events, ()),
    "own events": ("own.jsonl", read_dialect("jsonl"), ()),
    "codex exec": ("codex_exec.jsonl", read_dialect("codex_exec"), ()),
    "answers of a driver": ("answers.jsonl", read_answers, ()),
    "claude": ("claude.jsonl", read_dialect("claude_stream"), ()),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams(name: str, tmp_path: Path) -> None:
    seed, parser, refusals = STREAMS[name]
    fuzz(CORPUS / seed, parser, tmp_path, (mutate_lines,), *refusals)


def test_every_seed_is_used() -> None:
    text = Path(__file__).read_text()
    unused = [path.name for path in CORPUS.iterdir() if path.is_file() and f'"{path.name}"' not in text]
    assert unused == []


def test_another_exception_is_not_accepted() -> None:
    with pytest.raises(ZeroDivisionError):
        survives(lambda: 1 // 0)
    with pytest.raises(AssertionError):
        survives(lambda: refuse(InternalError("a bug", op="test")))
    survives(lambda: refuse(UsageError("refused", op="test")))


def refuse(error: Exception) -> None:
    raise error

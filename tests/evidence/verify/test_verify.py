"""The auditor's command: on plain Python, it verifies bundles, packets and signatures."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import proofbox
from proofbox import BundleWriter, verify
from proofbox.cli import main
from proofbox.errors import BundleNotFound, KeyInvalid, UsageError
from proofbox.evidence.attest.keys import new_key
from proofbox.evidence.promotion.emit import emit_promotion
from proofbox.evidence.verify.verifier import main as verify_main

SRC = Path(proofbox.__file__).parent.parent


def write(out: Path, **options: Any) -> BundleWriter:
    with BundleWriter.create(out, **options) as run:
        run.write_json("results.json", {"passed": True})
        with run.open_log("trace.jsonl") as log:
            log.append({"event": "started"})
        with run.nested("attempts/a-1") as attempt, attempt.open_log("steps.jsonl") as log:
            log.append({"n": 1})
    return run


def codes(path: Path, **options: Any) -> list[str]:
    return [finding.code for finding in verify(path, **options).findings]


def test_valid_run_reports_how_much_was_checked(tmp_path: Path) -> None:
    run = write(tmp_path)
    result = verify(tmp_path)
    assert result.ok
    assert (result.run_id, result.status) == (run.run_id, "ok")
    output = result.as_json()["checked"]
    size = sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file())
    own = (run.path / "artifact_index.json").stat().st_size
    assert output == {"files": 6, "bytes": size - own, "bundles": 2, "chains": 2}
    assert result.line().startswith(f"valid: {run.run_id} (ok): 6 files")


def test_notes_mention_newer_failed_runs(tmp_path: Path) -> None:
    good = write(tmp_path)
    with pytest.raises(ValueError, match="broken"), BundleWriter.create(tmp_path) as failed:
        raise ValueError("broken")
    dry = write(tmp_path, dry=True)
    unfinished = BundleWriter.create(tmp_path)
    result = verify(tmp_path)
    assert result.ok
    assert result.notes == [
        f"LATEST names {good.run_id}",
        f"the newer run {failed.run_id} is failed",
        f"the newer run {dry.run_id} is dry",
        f"the newer run {unfinished.run_id} is in_progress",
    ]
    assert verify(good.path).notes == []
    assert codes(unfinished.path) == ["in_progress"]


def test_a_broken_chain_is_found_although_every_digest_fits(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path) as run:
        with run.open_log("trace.jsonl") as log:
            log.extend([{"n": 1}, {"n": 2}])
        path = run.path / "trace.jsonl"
        path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    assert codes(tmp_path) == ["chain_wrong_count", "chain_wrong_head"]


def test_log_of_another_run_is_detected(tmp_path: Path) -> None:
    other = write(tmp_path / "other")
    with BundleWriter.create(tmp_path / "out") as run:
        log = run.open_log("trace.jsonl")
        log.append({"event": "started"})
        log.close()
        (run.path / "trace.jsonl").write_bytes((other.path / "trace.jsonl").read_bytes())
    assert codes(tmp_path / "out") == ["chain_wrong_prev", "chain_wrong_head"]


def test_nothing_to_check_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BundleNotFound):
        verify(tmp_path / "absent")
    with pytest.raises(BundleNotFound):
        verify(tmp_path)
    write(tmp_path)
    with pytest.raises(KeyInvalid):
        verify(tmp_path, key=str(tmp_path / "absent.pub"))


# The forger, who may rewrite everything but does not hold the key


def test_recomputed_bundle_is_detected_only_by_the_signature(tmp_path: Path) -> None:
    new_key(tmp_path / "key")
    key = str(tmp_path / "key.pub")
    out = tmp_path / "out"
    write(out, run_id="run-1")
    emit_promotion(out, sign=tmp_path / "key")
    assert codes(out, key=key) == []
    # The same run, rewritten to say something else, and consistent in itself.
    import shutil

    shutil.rmtree(out / "run-1")
    with BundleWriter.create(out, run_id="run-1") as run:
        run.write_json("results.json", {"passed": "of course"})
    packet = out / "run-1.promotion.json"
    signed = packet.read_bytes()
    assert "packet_mismatch" in codes(out, key=key)
    packet.unlink()
    assert codes(out) == [], "without a packet a forgery is consistent: that is why there are signatures"
    emit_promotion(out)
    assert codes(out, key=key) == ["signature_absent"]
    new_key(tmp_path / "forged")
    packet.unlink()
    emit_promotion(out, sign=tmp_path / "forged")
    assert codes(out, key=key) == ["signature_wrong"]
    assert codes(out, key=str(tmp_path / "forged.pub")) == []
    packet.write_bytes(signed)
    assert "packet_mismatch" in codes(out, key=key)


def test_a_key_given_for_a_run_without_a_packet_is_a_finding(tmp_path: Path) -> None:
    new_key(tmp_path / "key")
    write(tmp_path / "out")
    assert codes(tmp_path / "out", key=str(tmp_path / "key.pub")) == ["signature_absent"]


# On bare Python

BARE = """
import sys
sys.path[:] = [p for p in sys.path if "site-packages" not in p]
sys.path.insert(0, {src!r})
{allow}
import runpy
sys.argv = ["verify", *{argv!r}]
try:
    runpy.run_module("proofbox.evidence.verify", run_name="__main__")
finally:
    known = set(sys.stdlib_module_names) | {{"proofbox", "cryptography", "_cffi_backend", "__main__", "cython_runtime"}}
    strange = sorted(n for n in sys.modules if n.split(".")[0] not in known and not n.startswith("_"))
    assert not strange, strange
"""

# A finder for cryptography alone, so that nothing else of site-packages can be imported.
ALLOW = """
import importlib.machinery, importlib.util
class Only:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("cryptography", "_cffi_backend"):
            return importlib.machinery.PathFinder.find_spec(name, {places!r})
sys.meta_path.insert(0, Only)
"""


def audit(*argv: str, cryptography: bool) -> subprocess.CompletedProcess[str]:
    places = [path for path in sys.path if path.endswith("site-packages")]
    allow = ALLOW.format(places=places) if cryptography else ""
    program = BARE.format(src=str(SRC), allow=allow, argv=list(argv))
    return subprocess.run([sys.executable, "-I", "-S", "-B", "-c", program], capture_output=True, text=True)


def test_a_bundle_is_audited_with_the_standard_library_alone(tmp_path: Path) -> None:
    run = write(tmp_path)
    done = audit(str(tmp_path), cryptography=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"valid: {run.run_id}")
    (run.path / "results.json").write_bytes(b'{"passed":truE}')
    done = audit(str(tmp_path), "--json", cryptography=False)
    assert done.returncode == 1, done.stderr
    output = json.loads(done.stdout)
    assert [(each["code"], each["path"]) for each in output["findings"]] == [("digest_mismatch", "results.json")]
    assert output["error"]["code"] == "BUNDLE_CORRUPT"


def test_a_signed_packet_is_audited_with_cryptography_alone(tmp_path: Path) -> None:
    new_key(tmp_path / "key")
    write(tmp_path / "out")
    packet = emit_promotion(tmp_path / "out", sign=tmp_path / "key").path
    done = audit(packet, "--key", str(tmp_path / "key.pub"), cryptography=True)
    assert done.returncode == 0, done.stderr
    assert "signed by" in done.stdout
    new_key(tmp_path / "other")
    done = audit(packet, "--key", str(tmp_path / "other.pub"), cryptography=True)
    assert done.returncode == 1, done.stderr
    assert "signature_wrong" in done.stdout


def test_the_file_runs_as_documented(tmp_path: Path) -> None:
    write(tmp_path)
    argv = [sys.executable, "-I", "-S", str(SRC / "proofbox/evidence/verify"), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run([*argv[:-1], str(tmp_path / "absent")], capture_output=True, text=True)
    assert done.returncode == 2


# The command


def test_the_command_exits_1_on_any_finding(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    run = write(tmp_path)
    assert main(["verify", str(tmp_path), "--json"]) == 0
    document = json.loads(capfdbinary.readouterr().out)
    assert (document["schema"], document["ok"], document["findings"]) == ("proofbox.verification/1", True, [])
    (run.path / "stray\x1b[31m").touch()
    assert main(["verify", str(tmp_path), "--json"]) == 1
    document = json.loads(capfdbinary.readouterr().out)
    assert document["ok"] is False
    assert [finding["code"] for finding in document["findings"]] == ["unlisted"]
    assert document["error"]["code"] == "BUNDLE_CORRUPT"
    assert main(["bundle", "verify", str(tmp_path)]) == 1
    output = capfdbinary.readouterr().out
    assert b"INVALID" in output
    assert b"\x1b" not in output
    assert main(["verify", str(tmp_path / "absent"), "--json"]) == 2
    assert json.loads(capfdbinary.readouterr().out)["error"]["code"] == "BUNDLE_NOT_FOUND"


def test_list_and_show(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    run = write(tmp_path)
    with pytest.raises(ValueError, match="broken"), BundleWriter.create(tmp_path):
        raise ValueError("broken")
    assert main(["bundle", "list", str(tmp_path), "--json"]) == 0
    first, second = json.loads(capfdbinary.readouterr().out)["bundles"]
    assert (first["run_id"], first["latest"], first["status"]) == (run.run_id, True, "ok")
    assert (second["state"], second["latest"], second["status"]) == ("failed", False, "failed")
    (run.path / "results.json").unlink()
    assert main(["bundle", "show", str(tmp_path), "--json"]) == 0
    shown = json.loads(capfdbinary.readouterr().out)
    assert shown["missing"] == ["results.json"]
    assert len(shown["artifacts"]) == 4
    assert main(["bundle", "show", str(tmp_path)]) == 0
    assert b"finding: missing results.json" in capfdbinary.readouterr().out
    assert main(["bundle", "list", str(tmp_path / "absent"), "--json"]) == 2


def test_copy_with_another_name_is_noted(tmp_path: Path) -> None:
    run = write(tmp_path / "out")
    shutil.copytree(run.path, tmp_path / "copy")
    (tmp_path / "link").symlink_to(run.path)
    for place in (run.path, tmp_path / "link", run.path / "attempts/a-1"):
        assert verify(place).notes == []
    result = verify(tmp_path / "copy")
    assert result.ok
    assert result.notes == [f"the directory is called copy; the run in it is {run.run_id}"]


def test_a_bundle_is_not_verified_with_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, other = write(tmp_path / "out"), write(tmp_path / "other")
    for place in (run.path, tmp_path / "out"):
        with pytest.raises(UsageError, match="is a bundle itself"):
            verify(place, bundle=str(other.path))
        assert verify_main([str(place), "--bundle", str(other.path)]) == 2
        assert "is a bundle itself" in capsys.readouterr().err

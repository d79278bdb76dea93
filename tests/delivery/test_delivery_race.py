"""Replacing a bundle or packet while it is read never makes an unsigned tree proven."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_delivery_proof import attempt

from proofbox.core.digest import sha256_file
from proofbox.delivery.proof import Proof, examine
from proofbox.delivery.source.tree import open_source
from proofbox.errors import ProofboxError
from proofbox.evidence.attest.keys import new_key


def put(place: Path, target: Path) -> None:
    """Make `place` a link to a directory, or a copy of a file, in one step."""
    beside = place.with_name(place.name + ".new")
    if target.is_dir():
        beside.symlink_to(target)
    else:
        beside.write_bytes(target.read_bytes())
    beside.rename(place)


def flipped_at(
    monkeypatch: pytest.MonkeyPatch, when: int, flip: Callable[[], None], work: Callable[[], Proof | None]
) -> tuple[Proof | None, int]:
    """Run `work` with `flip` just before its open call number `when`; return the result and the number of opens."""
    opened = 0
    really_open = os.open

    def counted_open(*args: Any, **options: Any) -> int:
        nonlocal opened
        opened += 1
        if opened == when:
            flip()
        return really_open(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", counted_open)
        return work(), opened


@pytest.mark.parametrize("begins", ["signed", "forged"])
@pytest.mark.parametrize("flipped", ["bundle", "packet", "both"])
def test_replacing_files_never_proves_an_unsigned_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: str, flipped: str
) -> None:
    new_key(tmp_path / "release")
    places: dict[str, tuple[Path, Path]] = {}
    for name in ("signed", "forged"):
        app = tmp_path / f"{name}-app"
        app.mkdir()
        (app / "main.py").write_text(f"print({name!r})\n")
        sign = tmp_path / "release" if name == "signed" else None
        promotion = attempt(app, tmp_path / f"{name}-out", sign=sign)
        places[name] = next((tmp_path / f"{name}-out").glob("run-*/")), Path(promotion.path)
    bundle, packet = tmp_path / "bundle", tmp_path / "packet.json"
    moving = {"bundle": (bundle,), "packet": (packet,), "both": (bundle, packet)}[flipped]

    def place(name: str, links: tuple[Path, ...]) -> None:
        for link in links:
            put(link, places[name][0 if link == bundle else 1])

    def flip() -> None:
        place("forged" if begins == "signed" else "signed", moving)

    for source in ("signed", "forged"):
        with open_source(tmp_path / f"{source}-app") as tree:

            def work(tree: Any = tree) -> Proof | None:
                try:
                    return examine(packet, bundle, tree, key=tmp_path / "release.pub")
                except ProofboxError:
                    return None

            when, total, proven = 1, 1, 0
            while when <= total + 1:
                place("signed", (bundle, packet))
                place(begins, moving)
                proof, total = flipped_at(monkeypatch, when, flip, work)
                when += 1
                if proof is not None and not proof.problems:
                    proven += 1
                    assert source == "signed", f"a flip before open {when - 1} of {total}"
                    assert proof.packet_sha256 == sha256_file(places["signed"][1])[0]
            assert proven or source == "forged" or begins == "forged"

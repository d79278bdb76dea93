"""The guard's decisions are enforced on the path that is actually opened. The checks use `fixture.SecretGuard`."""

from __future__ import annotations

import os

from proofbox.errors import CapabilityDenied, FileAbsent
from proofbox.workspace.tools.conformance.fixture import (
    ToolFixture,
    found_in,
    guarded,
    host_of,
    paths_of,
    refused,
    same,
)


@guarded
def denied_files_are_not_opened(fixture: ToolFixture) -> None:
    env = fixture.env
    for attempt in (env.read_file, env.remove_file):
        refused(CapabilityDenied, attempt, "a/secret")
        refused(CapabilityDenied, attempt, "a/./secret")
    refused(CapabilityDenied, env.write_file, "secret/x", "x")
    refused(CapabilityDenied, env.write_file, "fixed/x", "x")
    refused(CapabilityDenied, env.list_directory, "secret")
    refused(CapabilityDenied, env.search_text, "x", "secret")
    refused(CapabilityDenied, env.apply_patch, "--- /dev/null\n+++ b/fixed/n\n@@ -0,0 +1 @@\n+x\n")
    refused(FileAbsent, env.read_file, "fixed/x")


@guarded
def hidden_files_are_neither_listed_nor_found(fixture: ToolFixture) -> None:
    host = host_of(fixture)
    for name in ("a/secret", "a/plain", "secret/deep"):
        os.makedirs(os.path.dirname(f"{host}/{name}"), exist_ok=True)
        with open(f"{host}/{name}", "w") as file:
            file.write("needle\n")
    os.symlink("secret", f"{host}/link")
    os.symlink("a/secret", f"{host}/to")
    env = fixture.env
    same(paths_of(env.list_files_recursive()), ["a/plain", "link", "to"])
    same(found_in(env.search_text("needle")), [("a/plain", 1)])
    refused(CapabilityDenied, env.read_file, "link/deep")
    refused(CapabilityDenied, env.read_file, "to")
    refused(CapabilityDenied, env.write_file, "to", "x")

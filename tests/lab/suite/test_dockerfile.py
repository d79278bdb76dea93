"""Reading of Dockerfiles, without guessing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proofbox.lab.suite.harbor.dockerfile import Copy, read_dockerfile

TEXT = """\
# syntax=docker/dockerfile:1
FROM golang AS build
WORKDIR /build
COPY . .
FROM python:3.12
ENV A=1 B="2"
ENV OLD style of it
WORKDIR /srv
workdir app
COPY --chown=me:me a.txt b.txt ./
COPY ["with space.txt", "/srv/app/x"]
COPY one \\
     # a comment in between
     two
ADD https://example.org/x /x
COPY --from=build /build/x /usr/bin/
RUN apt-get update && \\
    apt-get install -y curl
RUN <<EOF
COPY not/this /here
EOF
COPY $WHERE /y
"""
WORDS = ("FROM", "COPY", "WORKDIR", "ENV", "RUN", " ", "\\\n", "\n", "<<X", "[", "..", "/", "a=b")


def test_last_stage_is_used() -> None:
    found = read_dockerfile(TEXT)
    assert found.workdir == "/srv/app"
    assert found.env == {"A": "1", "B": "2", "OLD": "style of it"}
    assert found.copies == (
        Copy(("a.txt", "b.txt"), "/srv/app/"),
        Copy(("with space.txt",), "/srv/app/x"),
        Copy(("one",), "/srv/app/two"),
    )
    assert found.unread == (
        "ADD https://example.org/x /x",
        "COPY --from=build /build/x /usr/bin/",
        "RUN apt-get update && apt-get install -y curl",
        "RUN <<EOF",
        "COPY $WHERE /y",
    )


@given(st.lists(st.sampled_from(WORDS)))
def test_any_text_is_read(words: list[str]) -> None:
    found = read_dockerfile(" ".join(words))
    assert found.workdir.startswith("/")
    assert all(copy.dest.startswith("/") and copy.sources for copy in found.copies)

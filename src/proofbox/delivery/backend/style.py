"""The style of HTML pages: a base that the viewer shares (`base.css`), and what only the backend's pages use."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

_BACKEND = """
main { max-width: 68rem; }
.meta { color: var(--soft); font-size: .9rem; overflow-wrap: anywhere; }
.list { list-style: none; margin: 0; padding: 0; border: 1px solid var(--line); border-radius: 10px;
  background: var(--paper); }
.list li { padding: .8rem 1rem; overflow-wrap: anywhere; }
.list li + li { border-top: 1px solid var(--line); }
.name:hover { text-decoration: underline; }
.badge { display: inline-block; padding: .05rem .6rem; border-radius: 1rem; font-size: .83rem; font-weight: 600;
  color: var(--unverified); background: var(--unverified-ground); }
.badge.open { color: var(--passed); background: var(--passed-ground); }
.badge.merged { color: var(--infra); background: var(--infra-ground); }
.badge.closed { color: var(--failed); background: var(--failed-ground); }
.actions { display: flex; gap: .6rem; margin: 1rem 0; }
button.merge, .sign-in button { background: var(--accent); border-color: var(--accent); color: var(--paper); }
button.merge:hover, .sign-in button:hover { color: var(--paper); text-decoration: underline; }
.pane { max-height: none; }
.pane.diff .file { border-top: 1px solid var(--line); padding-top: .4rem; margin-top: .4rem; }
.pane.diff .file:first-child { border-top: 0; padding-top: 0; margin-top: 0; }
.body { padding: .3rem 1rem; overflow-wrap: anywhere; background: var(--paper); border: 1px solid var(--line);
  border-radius: 10px; }
.body h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
.body ul { padding-left: 1.2rem; }
.sha { font: 12.5px/1.5 var(--mono); color: var(--soft); }
.evidence { margin: 1rem 0; }
.sign-in { max-width: 24rem; padding: 1.5rem; background: var(--paper); border: 1px solid var(--line);
  border-radius: 10px; display: grid; gap: 1rem; }
.sign-in label { display: grid; gap: .4rem; font-size: .9rem; color: var(--soft); }
"""


@cache
def base_style() -> str:
    """Return the style that all pages share."""
    return (files("proofbox.delivery.backend") / "base.css").read_text()


def backend_style() -> str:
    """Return the style of the backend's pages."""
    return base_style() + _BACKEND

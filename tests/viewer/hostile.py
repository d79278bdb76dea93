"""Text that an agent could write to attack the reader of a page."""

from __future__ import annotations

MARKER = "pwned"
SCRIPTS = (
    "<script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    '"><svg onload=window.pwned=1>',
    "</script><script>window.pwned=1</script>",
    "</pre></main><iframe srcdoc='<script>parent.pwned=1</script>'></iframe>",
    "{{ 7*7 }}{% raw %}",
    "javascript:window.pwned=1",
    "<a href='http://192.0.2.1/x' hx-get='http://192.0.2.1/y' hx-trigger='load'>x</a>",
    "<meta http-equiv=refresh content='0;url=http://192.0.2.1/'>",
)
TERMINAL = "\x1b[31mred\x1b[0m \x1b[2J\x1b]0;title\x07 \x1b[1;38;5;9mbright\x1b[m \x9b31m \x07\x00 end"
BIDI = "abc \u202eexe.txt\u202c \u2066hidden\u2069 zero\u200bwidth \u00a0nbsp \ufeffbom \U000e0041tag"
TEXT = "\n".join([*SCRIPTS, TERMINAL, BIDI])
NAME = "<b onmouseover=alert(1)>\u202ename"
LINE = "x" * (1 << 20)

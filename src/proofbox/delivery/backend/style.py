"""The style sheet of the pages: light or dark by the browser's preference, without external fonts or images."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5c6878; --line: #dfe4ea; --ground: #f7f8fa;
  --paper: #fff; --accent: #2457c5; --good: #1a7f4b; --good-ground: #e3f5ea; --bad: #b3261e; --bad-ground: #fdeceb;
  --done: #6b3fa0; --done-ground: #f1eafa; --hunk: #eef3ff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #98a3b3; --line: #2c3440; --ground: #12161c;
  --paper: #191f27; --accent: #85a9ff; --good: #6fd19c; --good-ground: #14301f; --bad: #ff9d94; --bad-ground: #3a1a18;
  --done: #c6a5f0; --done-ground: #2b2040; --hunk: #1d2740; } }
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--ground); }
header { padding: .8rem 1.5rem; background: var(--paper); border-bottom: 1px solid var(--line); color: var(--soft); }
.brand { font-weight: 700; color: var(--ink); text-decoration: none; margin-right: .5rem; }
main { max-width: 68rem; margin: 0 auto; padding: 1.5rem; }
nav { color: var(--soft); min-height: 1.5rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .3rem 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; }
a { color: var(--accent); }
code, pre, .path, .sha { font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
code { overflow-wrap: anywhere; }
.meta { color: var(--soft); font-size: .9rem; }
.list { list-style: none; margin: 0; padding: 0; border: 1px solid var(--line); border-radius: 10px;
  background: var(--paper); }
.list li { padding: .8rem 1rem; overflow-wrap: anywhere; }
.list li + li { border-top: 1px solid var(--line); }
.name { font-weight: 600; text-decoration: none; }
.name:hover { text-decoration: underline; }
.badge { display: inline-block; padding: 0 .6rem; border-radius: 1rem; font-size: .8rem; font-weight: 600;
  color: var(--soft); background: var(--ground); border: 1px solid var(--line); }
.badge.open { color: var(--good); background: var(--good-ground); border-color: transparent; }
.badge.merged { color: var(--done); background: var(--done-ground); border-color: transparent; }
.badge.closed { color: var(--bad); background: var(--bad-ground); border-color: transparent; }
.actions { display: flex; gap: .6rem; margin: 1rem 0; }
button { font: inherit; font-weight: 600; padding: .45rem 1.1rem; border-radius: 8px; border: 1px solid var(--line);
  background: var(--paper); color: var(--ink); cursor: pointer; }
button.merge, .sign-in button { background: var(--accent); border-color: transparent; color: var(--paper); }
button:hover { filter: brightness(1.08); }
button:focus-visible, a:focus-visible, input:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
pre { margin: 0; padding: 1rem; overflow-x: auto; background: var(--paper); border: 1px solid var(--line);
  border-radius: 10px; }
.body { padding: .3rem 1rem; overflow-wrap: anywhere; background: var(--paper); border: 1px solid var(--line);
  border-radius: 10px; }
.body h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
.body ul { padding-left: 1.2rem; }
.diff { padding: .6rem 0; }
.diff span { display: block; padding: 0 1rem; white-space: pre; width: max-content; min-width: 100%; }
.diff .add { background: var(--good-ground); color: var(--good); }
.diff .del { background: var(--bad-ground); color: var(--bad); }
.diff .hunk { background: var(--hunk); color: var(--soft); }
.diff .file { font-weight: 700; border-top: 1px solid var(--line); padding-top: .6rem; margin-top: .6rem; }
table { width: 100%; border-collapse: collapse; background: var(--paper); border: 1px solid var(--line); }
th, td { text-align: left; padding: .3rem .8rem; border-top: 1px solid var(--line); font-size: .9rem; }
td.path { overflow-wrap: anywhere; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.sha { color: var(--soft); }
.notice { padding: .7rem 1rem; border-radius: 10px; border: 1px solid var(--line); background: var(--paper);
  color: var(--soft); margin: 1rem 0; }
.notice.bad { color: var(--bad); background: var(--bad-ground); border-color: transparent; }
.evidence { margin: 1rem 0; }
summary { cursor: pointer; font-weight: 600; margin-bottom: .5rem; }
.empty { text-align: center; padding: 3rem 1rem; color: var(--soft); }
.sign-in { max-width: 24rem; padding: 1.5rem; background: var(--paper); border: 1px solid var(--line);
  border-radius: 10px; display: grid; gap: 1rem; }
.sign-in label { display: grid; gap: .4rem; font-size: .9rem; color: var(--soft); }
.sign-in input { font: inherit; padding: .5rem .7rem; border: 1px solid var(--line); border-radius: 8px;
  background: var(--ground); color: var(--ink); }
"""

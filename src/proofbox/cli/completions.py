"""Completion scripts for bash, zsh and fish. They are static: completing a word does not start proofbox.

Every script offers the commands, the options of the typed command, the choices of an option, and files where a path is
expected or after `--`.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from proofbox.cli import COMMANDS, GROUPS
from proofbox.cli.app import function_of
from proofbox.cli.parameters import CommandInput, CommandSignature

BASH = """\
# bash completion for proofbox
_proofbox() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} word typed=${{COMP_WORDS[1]}} offered=
  COMPREPLY=()
  if [[ $cur == = ]]; then
    cur=
  elif [[ $prev == = ]]; then
    prev=${{COMP_WORDS[COMP_CWORD - 2]}}
  fi
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD - 1}}"; do
    if [[ $word == -- ]]; then
      compopt -o default 2> /dev/null
      return
    fi
  done
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W {names} -- "$cur"))
    return
  fi
  case $typed in
{groups}
  esac
  case "$typed ${{COMP_WORDS[2]}}" in
{nested}
  esac
  if [[ -n $offered ]]; then
    if ((COMP_CWORD == 2)); then
      COMPREPLY=($(compgen -W "$offered" -- "$cur"))
      return
    fi
    typed+=" ${{COMP_WORDS[2]}}"
  fi
  case "$typed $prev" in
{values}
  esac
  if [[ $cur == -* ]]; then
    case $typed in
{options}
    esac
    COMPREPLY=($(compgen -W "$offered" -- "$cur"))
    return
  fi
  case $typed in
{arguments}
  esac
}}
complete -F _proofbox proofbox
"""

# As a file `_proofbox` on the fpath, the script is the body of a function of that name and must complete itself. When
# sourced, it registers the completion function.
ZSH = """\
#compdef proofbox
_proofbox() {{
  local -a commands
  if ((CURRENT == 2)); then
    commands=(
{names}
    )
    _describe -t commands command commands
    return
  fi
  if ((CURRENT == 3)); then
    case $words[2] in
{groups}
    esac
    if (($#commands)); then
      _describe -t commands command commands
      return
    fi
  fi
  case "$words[2] $words[3]" in
{options}
  esac
}}
if [[ $funcstack[1] = _proofbox ]]; then
  _proofbox "$@"
else
  compdef _proofbox proofbox
fi
"""

FISH = """\
# fish completion for proofbox
function __proofbox_typed # the words before the cursor are exactly these
    set -l words (commandline -opc)
    set -e words[1]
    test "$words" = "$argv"
end
function __proofbox_in # the command line starts with this command
    set -l words (commandline -opc)
    set -e words[1]
    contains -- -- $words; and return 1
    set -l depth (count $argv)
    test (count $words) -ge $depth; or return 1
    test "$words[1..$depth]" = "$argv"
end
complete -c proofbox -f
complete -c proofbox -n 'contains -- -- (commandline -opc)' -F
{lines}
"""


def completion_script(shell: str) -> str:
    signatures = {command.path: CommandSignature(function_of(command)) for command in COMMANDS}
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](signatures)


def _options(signature: CommandSignature) -> list[CommandInput]:
    return [each for each in signature.inputs if each.kind == "flag"]


def _first_words() -> dict[str, str]:
    """Return what can be typed after `proofbox`, with summaries."""
    found: dict[str, str] = {}
    for command in COMMANDS:
        name, _, rest = command.path.partition(" ")
        if name not in found:
            found[name] = GROUPS[name] if rest else command.summary
    return found


def _members(group: str) -> dict[str, str]:
    named = {command.path.partition(" "): command.summary for command in COMMANDS}
    return {rest: summary for (name, _, rest), summary in named.items() if name == group}


def _nested() -> list[str]:
    """Return the commands whose first word is itself a command: `report parity`."""
    paths = [command.path for command in COMMANDS]
    return [path for path in paths if " " in path and path.partition(" ")[0] in paths]


def _bash(signatures: dict[str, CommandSignature]) -> str:
    groups = [f"    {group}) offered={quote(' '.join(_members(group)))} ;;" for group in GROUPS]
    options: list[str] = []
    values: dict[str, list[str]] = {}
    arguments: dict[str, list[str]] = {}
    for path, signature in signatures.items():
        names = [name for each in _options(signature) for name in each.declared.names]
        options.append(f"      {quote(path)}) offered={quote(' '.join([*names, '--help']))} ;;")
        for each in signature.inputs:
            if each.kind == "argument":
                arguments.setdefault(_bash_action(each), []).append(quote(path))
            elif each.kind == "flag" and each.type != "switch":
                typed = [quote(f"{path} {name}") for name in each.declared.names]
                values.setdefault(_bash_action(each), []).extend(typed)
    return BASH.format(
        names=quote(" ".join(_first_words())),
        groups="\n".join(groups),
        nested=f'    {" | ".join(map(quote, _nested()))}) typed+=" ${{COMP_WORDS[2]}}" ;;',
        values="\n".join(f"    {' | '.join(typed)}) {action} return ;;" for action, typed in values.items()),
        options="\n".join(options),
        arguments="\n".join(f"    {' | '.join(paths)}) {action} ;;" for action, paths in arguments.items() if action),
    )


def _bash_action(each: CommandInput) -> str:
    if each.choices:
        return f'COMPREPLY=($(compgen -W {quote(" ".join(each.choices))} -- "$cur"));'
    return "compopt -o default 2> /dev/null;" if each.type == "path" else ""


def _zsh(signatures: dict[str, CommandSignature]) -> str:
    def described(names: dict[str, str], indent: str) -> str:
        lines = [quote(f"{name}:{summary}") for name, summary in names.items()]
        return "\n".join(indent + line for line in lines)

    groups = [
        f"      {group})\n        commands=(\n{described(_members(group), ' ' * 10)}\n        )\n        ;;"
        for group in GROUPS
    ]
    options = []
    # The first pattern that matches wins: `report parity` before `report` with any argument.
    for path, signature in sorted(signatures.items(), key=lambda each: -len(each[0].split())):
        depth = len(path.split())
        pattern = quote(path) if depth == 2 else f"{quote(path + ' ')}*"
        lines = [
            f"    {pattern})",
            f"      shift {depth} words",
            f"      ((CURRENT -= {depth}))",
            "      _arguments -S \\",
        ]
        specs = [*_zsh_options(signature), *_zsh_arguments(signature), "'--help[Show this help.]'"]
        options.append(
            "\n".join([*lines, *(f"        {spec} \\" for spec in specs[:-1]), f"        {specs[-1]}", "      ;;"])
        )
    return ZSH.format(names=described(_first_words(), " " * 6), groups="\n".join(groups), options="\n".join(options))


def _zsh_options(signature: CommandSignature) -> Iterator[str]:
    for each in _options(signature):
        value = "" if each.type == "switch" else f":{each.type}:{_zsh_action(each)}"
        for name in each.declared.names:
            prefix = "*" if each.repeated else f"({' '.join(each.declared.names)})"
            yield quote(f"{prefix}{name}[{_zsh_text(each.declared.help)}]{value}")


def _zsh_arguments(signature: CommandSignature) -> Iterator[str]:
    number = 0
    for each in signature.inputs:
        number += each.kind != "flag"
        if each.kind == "argument":
            yield quote(f"{number}:{each.key}:{_zsh_action(each)}")
        elif each.kind == "command":
            yield quote(f"{number}:command:_command_names -e")
            yield quote("*::arguments:_normal")


def _zsh_action(each: CommandInput) -> str:
    return f"({' '.join(each.choices)})" if each.choices else "_files" if each.type == "path" else ""


def _zsh_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")


def _fish(signatures: dict[str, CommandSignature]) -> str:
    lines = [_fish_word("__proofbox_typed", name, summary) for name, summary in _first_words().items()]
    for group in GROUPS:
        lines += [_fish_word(f"__proofbox_typed {group}", name, text) for name, text in _members(group).items()]
    for path, signature in signatures.items():
        start = f"complete -c proofbox -n {quote(f'__proofbox_in {path}')}"
        for each in signature.inputs:
            if each.kind == "flag":
                names = [
                    f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in each.declared.names
                ]
                value = "" if each.type == "switch" else " -r -F" if each.type == "path" else " -x"
                value += f" -a {quote(' '.join(each.choices))}" if each.choices else ""
                lines.append(f"{start} {' '.join(names)}{value} -d {_fish_text(each.declared.help)}")
            elif each.type == "path":
                lines.append(f"{start} -F")
            elif each.choices:
                lines.append(f"{start} -a {quote(' '.join(each.choices))}")
        lines.append(f"{start} -l help -d 'Show this help.'")
    return FISH.format(lines="\n".join(lines))


def _fish_word(condition: str, name: str, summary: str) -> str:
    return f"complete -c proofbox -n {quote(condition)} -a {name} -d {_fish_text(summary)}"


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

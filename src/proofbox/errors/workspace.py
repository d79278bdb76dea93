"""Directories with history, and the tools by which an agent works on one."""

from __future__ import annotations

from proofbox.errors.base import ProofboxError


class WorkspaceError(ProofboxError):
    """Anything that goes wrong with a directory's history."""

    code = "WORKSPACE_FAILED"
    hints = ("check what is stored: proofbox workspace verify DIR",)


class WorkspaceUnknown(WorkspaceError):
    """The directory is not a workspace of this user."""

    code = "WORKSPACE_UNKNOWN"
    exit_code = 2
    hints = ("make it one: proofbox workspace init DIR",)


class WorkspaceExists(WorkspaceError):
    """The directory is a workspace already."""

    code = "WORKSPACE_EXISTS"
    exit_code = 2
    hints = ("use it as it is: proofbox workspace status DIR",)


class WorkspaceReplaced(WorkspaceError):
    """The directory was removed or moved away, and another one is at its path. Its history is not the other's."""

    code = "WORKSPACE_REPLACED"
    exit_code = 2
    hints = ("keep its history: proofbox workspace adopt DIR, or drop it: proofbox workspace forget DIR",)


class WorkspacePathRefused(WorkspaceError):
    """A directory that can't be a workspace, or a fork's destination that is taken."""

    code = "WORKSPACE_PATH_REFUSED"
    exit_code = 2
    hints = ("name another directory",)


class SnapshotUnknown(WorkspaceError):
    """No snapshot of this workspace has that id, prefix or name, or several have that prefix."""

    code = "WORKSPACE_SNAPSHOT_UNKNOWN"
    exit_code = 2
    hints = ("list them: proofbox workspace log DIR",)


class WorkspaceCorrupt(WorkspaceError):
    """Stored history is not what its digests say."""

    code = "WORKSPACE_CORRUPT"
    exit_code = 1
    hints = ("see what is damaged: proofbox workspace verify DIR",)


class WorkspaceChanging(WorkspaceError):
    """The files kept changing while they were put back. The rollback is finished at the next open."""

    code = "WORKSPACE_CHANGING"
    retryable = True
    hints = ("stop what is writing there, and open the workspace again",)


class RollbackUnfinished(WorkspaceError):
    """The files could not all be put back: the disk is full, say. The next open tries again."""

    code = "WORKSPACE_ROLLBACK_UNFINISHED"
    retryable = True
    hints = ("put right what it says and open the workspace again, or roll back anew, to that snapshot or another",)


class CapabilityDenied(WorkspaceError):
    """A capability says no. `details["rule"]` is the rule that decided, `details["kind"]` what was asked for."""

    code = "WORKSPACE_CAPABILITY_DENIED"
    exit_code = 3
    hints = ("work without it, or ask for it to be added to the capabilities",)


class CapabilitiesInvalid(WorkspaceError):
    """The capabilities can't be read: no preset has that name, or a rule that means nothing."""

    code = "WORKSPACE_CAPABILITIES_INVALID"
    exit_code = 2
    hints = ("see docs/workspace-tools.md for the presets and the rules",)


class CapabilitiesRefused(WorkspaceError):
    """The capabilities can't be enforced on commands by this box, so no command runs under them."""

    code = "WORKSPACE_CAPABILITIES_REFUSED"
    exit_code = 3
    hints = ("change the rules as it says, or allow no commands",)


class ToolError(WorkspaceError):
    """Anything that keeps a tool from doing what it was called for."""

    code = "WORKSPACE_TOOL_FAILED"
    hints = ("try again, or use another tool",)


class ToolUnknown(ToolError):
    """No tool has that name."""

    code = "WORKSPACE_TOOL_UNKNOWN"
    exit_code = 2
    hints = ("list the tools: proofbox workspace tools DIR",)


class ArgumentsInvalid(ToolError):
    """The arguments are not what the tool's schema says."""

    code = "WORKSPACE_TOOL_ARGUMENTS_INVALID"
    exit_code = 2
    hints = ("give what the tool's schema asks for: proofbox workspace tools DIR --json",)


class ToolPathRefused(ToolError):
    """A path that leads outside the workspace, or can't be one."""

    code = "WORKSPACE_TOOL_PATH_REFUSED"
    exit_code = 2
    hints = ("give a path inside the workspace, relative to its root",)


class FileAbsent(ToolError):
    """There is no such file or directory in the workspace."""

    code = "WORKSPACE_FILE_ABSENT"
    exit_code = 2
    hints = ("list what is there: list_directory",)


class FileKindRefused(ToolError):
    """Something is there, and of another kind than the tool works on; or it can't be opened."""

    code = "WORKSPACE_FILE_KIND_REFUSED"
    exit_code = 2
    hints = ("list what is there: list_directory",)


class FileTooLarge(ToolError):
    """The file is larger than the tool works on."""

    code = "WORKSPACE_FILE_TOO_LARGE"
    exit_code = 2
    hints = ("use a command for files of that size",)


class EditRefused(ToolError):
    """The text to replace is not there, or there more than once. Nothing was changed."""

    code = "WORKSPACE_EDIT_REFUSED"
    exit_code = 1
    hints = ("read the file, and give more of the text around the place",)


class PatchRefused(ToolError):
    """The patch can't be read, or does not fit the files. Nothing was changed."""

    code = "WORKSPACE_PATCH_REFUSED"
    exit_code = 1
    hints = ("make it from the files as they are now (read_file), in the form of git diff",)


class PatternRefused(ToolError):
    """The pattern is not in the dialect that every search understands."""

    code = "WORKSPACE_PATTERN_REFUSED"
    exit_code = 2
    hints = ("escape what is meant as a character with a backslash, or search literally (literal: true)",)


class SearchTimedOut(ToolError):
    """The search took longer than it may, and was ended."""

    code = "WORKSPACE_SEARCH_TIMED_OUT"
    hints = ("search a directory below, choose files by a glob, or simplify the pattern",)


class CommandsUnavailable(ToolError):
    """This environment has no commands."""

    code = "WORKSPACE_COMMANDS_UNAVAILABLE"
    exit_code = 3
    hints = ("use the file tools, or a workspace on a disk, with a sandbox",)


class McpUnavailable(ToolError):
    """The tools could be served over MCP, and its SDK is not installed here."""

    code = "WORKSPACE_MCP_UNAVAILABLE"
    exit_code = 3
    hints = ("pip install 'proofbox[mcp]'",)


class CheckFailed(ToolError):
    """The check command failed after a change, and the files were rolled back to the last good state."""

    code = "WORKSPACE_CHECK_FAILED"
    exit_code = 1
    hints = ("change the approach: the check must pass after every change",)


class ToolNudged(ToolError):
    """The tool was not run: the calls go in circles. The message says what to do instead."""

    code = "WORKSPACE_TOOL_NUDGED"
    exit_code = 1
    hints = ("make a change, run a command, or say that you are done",)

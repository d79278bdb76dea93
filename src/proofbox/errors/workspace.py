"""Errors of workspaces and of the tools that agents use in them."""

from __future__ import annotations

from proofbox.errors.base import ProofboxError


class WorkspaceError(ProofboxError):
    """An operation on a workspace failed."""

    code = "WORKSPACE_FAILED"
    hints = ("check the stored history: proofbox workspace verify DIR",)


class WorkspaceUnknown(WorkspaceError):
    """The directory is not one of this user's workspaces."""

    code = "WORKSPACE_UNKNOWN"
    exit_code = 2
    hints = ("create a workspace: proofbox workspace init DIR",)


class WorkspaceExists(WorkspaceError):
    """The directory is already a workspace."""

    code = "WORKSPACE_EXISTS"
    exit_code = 2
    hints = ("use the existing workspace: proofbox workspace status DIR",)


class WorkspaceReplaced(WorkspaceError):
    """The workspace was removed or moved. Its history does not belong to the directory that is now at its path."""

    code = "WORKSPACE_REPLACED"
    exit_code = 2
    hints = ("keep the history: proofbox workspace adopt DIR; or delete it: proofbox workspace forget DIR",)


class WorkspacePathRefused(WorkspaceError):
    """The directory can't be a workspace, or a fork's destination already exists."""

    code = "WORKSPACE_PATH_REFUSED"
    exit_code = 2
    hints = ("choose another directory",)


class SnapshotUnknown(WorkspaceError):
    """No snapshot of this workspace has that id, prefix or name, or the prefix is ambiguous."""

    code = "WORKSPACE_SNAPSHOT_UNKNOWN"
    exit_code = 2
    hints = ("list the snapshots: proofbox workspace log DIR",)


class WorkspaceCorrupt(WorkspaceError):
    """The stored history does not match its digests."""

    code = "WORKSPACE_CORRUPT"
    exit_code = 1
    hints = ("see what is damaged: proofbox workspace verify DIR",)


class WorkspaceChanging(WorkspaceError):
    """The files kept changing during a rollback. The next open completes the rollback."""

    code = "WORKSPACE_CHANGING"
    retryable = True
    hints = ("stop the processes that write there, and open the workspace again",)


class RollbackUnfinished(WorkspaceError):
    """Some files could not be restored, for example because the disk is full. The next open tries again."""

    code = "WORKSPACE_ROLLBACK_UNFINISHED"
    retryable = True
    hints = ("fix the cause and open the workspace again, or roll back to that or another snapshot",)


class CapabilityDenied(WorkspaceError):
    """A capability rule denied the request. `details["rule"]` is the rule, `details["kind"]` the kind of request."""

    code = "WORKSPACE_CAPABILITY_DENIED"
    exit_code = 3
    hints = ("continue without it, or ask the user to add it to the capabilities",)


class CapabilitiesInvalid(WorkspaceError):
    """The capabilities are invalid: an unknown preset or a malformed rule."""

    code = "WORKSPACE_CAPABILITIES_INVALID"
    exit_code = 2
    hints = ("see docs/workspace-tools.md for the presets and the rules",)


class CapabilitiesRefused(WorkspaceError):
    """This box can't enforce the capabilities on commands, so no command runs."""

    code = "WORKSPACE_CAPABILITIES_REFUSED"
    exit_code = 3
    hints = ("change the rules as the message says, or do not allow commands",)


class ToolError(WorkspaceError):
    """A tool call failed."""

    code = "WORKSPACE_TOOL_FAILED"
    hints = ("try again, or use another tool",)


class ToolUnknown(ToolError):
    """No tool has that name."""

    code = "WORKSPACE_TOOL_UNKNOWN"
    exit_code = 2
    hints = ("list the tools: proofbox workspace tools DIR",)


class ArgumentsInvalid(ToolError):
    """The arguments do not match the tool's schema."""

    code = "WORKSPACE_TOOL_ARGUMENTS_INVALID"
    exit_code = 2
    hints = ("follow the tool's schema: proofbox workspace tools DIR --json",)


class ToolPathRefused(ToolError):
    """The path leads outside the workspace or is invalid."""

    code = "WORKSPACE_TOOL_PATH_REFUSED"
    exit_code = 2
    hints = ("use a path inside the workspace, relative to its root",)


class FileAbsent(ToolError):
    """The file or directory does not exist in the workspace."""

    code = "WORKSPACE_FILE_ABSENT"
    exit_code = 2
    hints = ("list the directory: list_directory",)


class FileKindRefused(ToolError):
    """The file is of a kind that the tool does not support, or it can't be opened."""

    code = "WORKSPACE_FILE_KIND_REFUSED"
    exit_code = 2
    hints = ("list the directory: list_directory",)


class FileTooLarge(ToolError):
    """The file is larger than the tool supports."""

    code = "WORKSPACE_FILE_TOO_LARGE"
    exit_code = 2
    hints = ("use a command for large files",)


class EditRefused(ToolError):
    """The text to replace was not found, or was found more than once. Nothing was changed."""

    code = "WORKSPACE_EDIT_REFUSED"
    exit_code = 1
    hints = ("read the file, and include more of the surrounding text",)


class PatchRefused(ToolError):
    """The patch is malformed or does not apply to the files. Nothing was changed."""

    code = "WORKSPACE_PATCH_REFUSED"
    exit_code = 1
    hints = ("create the patch from the current files (read_file), in git diff format",)


class PatternRefused(ToolError):
    """The pattern uses syntax that not every search engine supports."""

    code = "WORKSPACE_PATTERN_REFUSED"
    exit_code = 2
    hints = ("escape special characters with a backslash, or search for literal text (literal: true)",)


class SearchTimedOut(ToolError):
    """The search timed out."""

    code = "WORKSPACE_SEARCH_TIMED_OUT"
    hints = ("search a subdirectory, select files with a glob, or simplify the pattern",)


class CommandsUnavailable(ToolError):
    """This environment can't run commands."""

    code = "WORKSPACE_COMMANDS_UNAVAILABLE"
    exit_code = 3
    hints = ("use the file tools, or a workspace on disk with a sandbox",)


class McpUnavailable(ToolError):
    """The MCP SDK is not installed, so the tools can't be served over MCP."""

    code = "WORKSPACE_MCP_UNAVAILABLE"
    exit_code = 3
    hints = ("pip install 'proofbox[mcp]'",)


class CheckFailed(ToolError):
    """The check command failed after a change, so the files were rolled back to the last good state."""

    code = "WORKSPACE_CHECK_FAILED"
    exit_code = 1
    hints = ("try another approach: the check must pass after every change",)


class ToolNudged(ToolError):
    """The tool was not run because the calls repeat without progress. The message says what to do instead."""

    code = "WORKSPACE_TOOL_NUDGED"
    exit_code = 1
    hints = ("make a change, run a command, or say that you are done",)

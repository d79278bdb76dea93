"""Serve a registry's tools over the Model Context Protocol on stdio, with the official SDK (the extra `mcp`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec

from proofbox.errors import McpUnavailable
from proofbox.workspace.tools.registry import ToolRegistry

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

NAME = "proofbox"


def serve(registry: ToolRegistry, version: str, instructions: str = "") -> None:
    """Serve until the client closes stdin. Raises McpUnavailable if the SDK is not installed."""
    server = make_server(registry, version, instructions)

    async def run() -> None:
        from mcp.server.stdio import stdio_server

        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(run)


def make_server(registry: ToolRegistry, version: str, instructions: str = "") -> Server[Any]:
    try:
        from mcp import types
        from mcp.server.lowlevel import Server
    except ImportError:
        raise McpUnavailable("the MCP SDK is not installed", op="mcp serve") from None

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    description=tool.description,
                    input_schema=tool.schema,
                    annotations=types.ToolAnnotations(read_only_hint=tool.read_only),
                )
                for tool in registry.tools.values()
            ]
        )

    async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        # In a thread: tools are synchronous, and a command may take minutes while other tools are called.
        # If the client disconnects, we do not wait for it: the box is stopped, and the command with it.
        answer = await anyio.to_thread.run_sync(
            registry.answer, params.name, params.arguments or {}, abandon_on_cancel=True
        )
        return types.CallToolResult(
            content=[types.TextContent(text=answer.text)],
            structured_content={"error": answer.error} if answer.error else msgspec.to_builtins(answer.result),
            is_error=not answer.ok,
        )

    return Server(
        NAME, version=version, instructions=instructions or None, on_list_tools=list_tools, on_call_tool=call_tool
    )

"""The server: who may see the pages, their addresses, and live updates."""

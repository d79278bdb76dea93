"""JSON-RPC over lines: messages without I/O, and a peer that sends and answers requests."""

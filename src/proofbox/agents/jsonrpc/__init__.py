"""JSON-RPC over newline-delimited JSON: parsing without I/O, and a peer that sends and answers requests."""

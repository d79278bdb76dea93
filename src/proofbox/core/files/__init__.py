"""Files and directories: atomic writes, safe removal, reads that never block, locks."""

"""What `proofbox demo` plays with: a suite of three missions, the files they begin with, and tests no agent sees."""

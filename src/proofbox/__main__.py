from proofbox.cli import entry

entry()

"""The checks of the conformance suite, one module per subject."""

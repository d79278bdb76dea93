"""The built-in agent runtimes, one package or module each."""

"""Finding text in many files: one pattern dialect, one way of choosing files, two engines with the same results.

`dialect` says what a pattern may be, `finder` goes through the files, `engines` knows ripgrep and the fallback in pure
Python (`worker`). The content that is matched, and shown, was always read by the caller's own handles.
"""

from proofbox.workspace.search.engines import Engine, PythonEngine, RipgrepEngine, best_engine
from proofbox.workspace.search.finder import Found, Line, Search, Source, search

__all__ = ["Engine", "Found", "Line", "PythonEngine", "RipgrepEngine", "Search", "Source", "best_engine", "search"]

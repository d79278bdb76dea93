"""Finding text in many files: one pattern dialect, one way of choosing files, two engines with the same results.

`dialect` says what a pattern may be, `finder` goes through the files, `engines` knows ripgrep and the fallback in pure
Python (`worker`). The content that is matched, and shown, was always read by the caller's own handles.
"""

from proofbox.workspace.search.engines import PythonEngine, RipgrepEngine, SearchEngine, best_engine
from proofbox.workspace.search.finder import MatchedLine, Search, SearchHits, SearchSource, search

__all__ = [
    "MatchedLine",
    "PythonEngine",
    "RipgrepEngine",
    "Search",
    "SearchEngine",
    "SearchHits",
    "SearchSource",
    "best_engine",
    "search",
]

"""Search for text in many files, with one pattern dialect and two engines that give the same results.

`dialect` defines the patterns, `finder` selects and reads the files, and `engines` runs ripgrep or the fallback in pure
Python (`worker`). `indexed` has ripgrep search a packed copy of the text of many files (`packed`). Matched and
displayed content is always read through the caller's own file descriptors.
"""

"""The reference backend: the API of `wire` on real bare git repositories, for local development and tests.

`git` runs git, `ledger` remembers, `repositories` makes one promise of the two, `api` and `pages` speak HTTP.
"""

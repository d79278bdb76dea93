"""The reference backend: the API of `wire` on bare git repositories, for local development and tests.

`git` runs git, `ledger` stores the state, `repositories` combines both, and `api` and `pages` serve HTTP.
"""

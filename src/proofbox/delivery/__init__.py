"""From promoted evidence to a repository or a pull request.

One way, from here to the backend: the backend alone holds Git credentials, and what is sent is what evidence supports.
`client` talks to a backend (`aclient` has the operations, `sending` the attempts), `source` and `patchset` decide what
is sent, `proof` whether it may be, `deliver` does it, and `backend/` is a whole backend on local bare repositories, for
development and tests.
"""

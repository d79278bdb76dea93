"""Deliver promoted evidence to a repository or as a pull request.

Data flows only from here to the backend, which alone holds Git credentials. Only trees backed by evidence are sent.
`client/` talks to a backend, `source/` and `patch/` decide what is sent, `proof` whether it may be, `deliver` sends it,
and `backend/` is a whole backend on local bare repositories, for development and tests.
"""

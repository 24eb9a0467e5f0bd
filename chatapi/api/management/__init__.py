"""The management API of an organization, for admin keys with a role, in OpenAI's shapes ("Administration").

`operations.py` says what an operation is, `route.py` checks, reads and answers, `pages.py` makes pages;
`objects.py` and `requests.py` have the types. The routes are in a file for each noun. `openapi.py` documents
all of them.
"""

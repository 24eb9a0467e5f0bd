"""Workload identity: programs that exchange a token of their platform for one of a service account.

`jwks.py` reads sets of public keys, `signing_keys.py` fetches and caches those of issuers, `federation.py`
changes providers and their federation rules, `exchange.py` verifies tokens and answers with access tokens.
"""

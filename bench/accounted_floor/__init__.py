"""The floor with the packages and the commits that the service cannot do without, and nothing else.

    python -m bench.accounted_floor.web --port 27103
    python -m bench.accounted_floor.worker --upstream-url http://127.0.0.1:27100/v1
    python -m bench.accounted_floor.books                                              verifies them

The packages: Daphne and Channels in the web process (by chatapi's server, which costs less than Daphne's),
Celery from web to worker (with chatapi's pool and transport, which cost less than Celery's), Django's
connection. The commits, in chatapi's groups: a hold before the request is queued, the claim before the first
token, the charge before the usage. There are no keys, limits, prices, checks of requests, retries, leases or
logs of answers. The settings, CHATAPI_STATE_DIR and REDIS_URL among them, are chatapi's.

Where two ways are possible, this takes the faster one: the request travels inside its Celery message, and the
upstream is called while the claim is being committed. Events are parsed as the floor parses them, or with
msgspec (`--msgspec`): the first shows what packages and commits add to the floor, the second how little CPU
time they leave to a program that parses faster.
"""

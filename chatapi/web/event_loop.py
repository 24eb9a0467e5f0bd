"""Runs Twisted on uvloop: the one place that decides on the process's event loop.

Twisted keeps the first reactor that is installed, and `daphne.server` installs one of its own when it is
imported. Whoever needs the reactor or Daphne's server takes them from here, so that ours comes first.
"""

import uvloop
from twisted.internet import asyncioreactor

loop = uvloop.new_event_loop()
asyncioreactor.install(loop)

from daphne import server as _daphne_server  # noqa: E402
from twisted.internet import reactor  # noqa: E402

_daphne_server.twisted_loop.close()  # the loop that Daphne made for its own reactor; nobody will run it
DaphneServer = _daphne_server.Server

__all__ = ["DaphneServer", "loop", "reactor"]

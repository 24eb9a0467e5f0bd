"""Recognizes browsers and systems in a User-Agent header; the first pattern that matches counts."""

import re

# Most browsers also claim to be those below them.
_BROWSERS = {
    "Edg(A|iOS)?/": "Edge",
    "OPR/": "Opera",
    "SamsungBrowser/": "Samsung Internet",
    "Firefox/|FxiOS/": "Firefox",
    "Chrome/|CriOS/": "Chrome",
    "Safari/": "Safari",
}
_SYSTEMS = {
    "iPhone|iPad": "iOS",
    "Android": "Android",
    "Windows": "Windows",
    "Mac OS X": "macOS",
    "CrOS": "ChromeOS",
    "Linux": "Linux",
}


def browser_of(user_agent: str) -> str:
    """Return a name such as "Firefox on Linux"; the text itself if it names no known browser."""
    browser, system = (
        next((name for pattern, name in known.items() if re.search(pattern, user_agent)), "")
        for known in (_BROWSERS, _SYSTEMS)
    )
    return f"{browser} on {system}" if browser and system else browser or user_agent

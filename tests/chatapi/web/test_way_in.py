"""How much of our own code is between a request and the statements that admit it."""

import asyncio
import json
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from django.db.backends.signals import connection_created

from chatapi.asgi import application
from chatapi.web.services import Services
from tests.cast import Person

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).parents[3]
MOST_FILES = 15
MOST_FILES_RUN = 55
MOST_FRAMES = 12
MOST_FRAMES_TOGETHER = 22
MOST_FRAMES_OF_A_MONTHS_FIRST = 15
WRITER = "group-commit"
BODY = {"model": "small", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
Stack = list[tuple[str, str]]


class Recorder:
    """Notes our frames at each statement of the books' writer: its own, and those of the tasks that wait.

    Until the generation is inserted, it also notes the files with a function that the writer or the event
    loop has called.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.begin()
        sys.setprofile(self._note_call)

    def begin(self) -> None:
        """Forget what was noted."""
        self.of_writer: list[Stack] = []
        self.of_tasks: list[Stack] = []
        self._called: set[str] = set()
        self.has_inserted = asyncio.Event()
        self._tasks_before = asyncio.all_tasks()

    def watch(self, connection: Any, **_: object) -> None:
        """Have the writer's statements noted, when it connects (a receiver of `connection_created`)."""
        if threading.current_thread().name == WRITER:
            connection.execute_wrappers.append(self._note)
            sys.setprofile(self._note_call)

    def files_run(self) -> set[str]:
        """Return our files with a function that was called before the generation was inserted."""
        return {path for name in self._called if (path := _own_path(name))}

    def _note_call(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and not self.has_inserted.is_set():
            self._called.add(frame.f_code.co_filename)

    def _note(self, execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        self.of_writer.append(_own(_frames(sys._getframe())))
        if "INSERT INTO usage_generation" in sql.replace('"', ""):
            # The request's tasks stand still meanwhile: they wait for this transaction.
            asyncio.run_coroutine_threadsafe(self._note_tasks(), self._loop).result(timeout=10)
        return execute(sql, *rest)

    async def _note_tasks(self) -> None:
        tasks = asyncio.all_tasks() - self._tasks_before - {asyncio.current_task()}
        self.of_tasks = [_own(_awaiting(task.get_coro())) for task in tasks]
        self.has_inserted.set()


def _own(frames: Iterator[FrameType]) -> Stack:
    """Return file and function of the frames of our packages."""
    codes = [frame.f_code for frame in frames]
    return [(path, code.co_qualname) for code in codes if (path := _own_path(code.co_filename))]


def _own_path(name: str) -> str | None:
    """Return the path of a file of our packages within the project."""
    path = Path(name)
    if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ("accounts", "usage", "chatapi"):
        return str(path.relative_to(ROOT))
    return None


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _awaiting(coroutine: Any) -> Iterator[FrameType]:
    """Yield the frames of a coroutine that waits, from the outermost one."""
    while coroutine is not None:
        for kind, inner in (("cr", "cr_await"), ("ag", "ag_await"), ("gi", "gi_yieldfrom")):
            if frame := getattr(coroutine, f"{kind}_frame", None):
                yield frame
                coroutine = getattr(coroutine, inner)
                break
        else:
            return


@pytest.fixture
async def recorder() -> AsyncIterator[Recorder]:
    before = sys.getprofile()
    found = Recorder()
    connection_created.connect(found.watch)
    yield found
    sys.setprofile(before)
    connection_created.disconnect(found.watch)


@pytest.mark.usefixtures("small")
async def test_few_of_our_files_and_frames_are_between_a_request_and_its_admission(
    alice: Person, services: Services, recorder: Recorder
) -> None:
    await _admit(alice, recorder)  # the first one of a month makes the row of its budget, too
    first = [*recorder.of_writer, *recorder.of_tasks]
    assert [each for each in first if len(each) > MOST_FRAMES_OF_A_MONTHS_FIRST] == []
    while services._background:  # the first one's generation is cancelled
        await asyncio.gather(*services._background)
    recorder.begin()
    await _admit(alice, recorder)
    stacks = [*recorder.of_writer, *recorder.of_tasks]
    assert {"GroupCommit.write", "complete", "GroupCommit._run"} <= {
        name for each in stacks for _, name in each
    }
    assert [each for each in stacks if len(each) > MOST_FRAMES] == []
    assert sum(map(len, recorder.of_tasks)) + max(map(len, recorder.of_writer)) <= MOST_FRAMES_TOGETHER
    section = re.split(r"^## ", (ROOT / "docs/architecture.md").read_text(), flags=re.MULTILINE)[2]
    named = {*re.findall(r"`((?:accounts|usage|chatapi)/[\w/]+\.py)`", section)}
    assert section.startswith("One request")
    assert {path for each in stacks for path, _ in each} - named == set(), "the page names all of them"
    assert len(named) <= MOST_FILES
    assert len(recorder.files_run()) <= MOST_FILES_RUN
    assert f"at most {MOST_FILES_RUN}" in section


async def _admit(person: Person, recorder: Recorder) -> None:
    """Ask until the request is admitted, and leave."""
    asking = asyncio.create_task(_ask(person))
    try:
        async with asyncio.timeout(30):
            await recorder.has_inserted.wait()
    finally:
        asking.cancel()
        await asyncio.wait([asking])


async def _ask(person: Person) -> None:
    """Send a chat to the application, as a server does."""
    body = json.dumps(BODY).encode()
    headers = {
        "host": "localhost",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "authorization": f"Bearer {person.key}",
    }
    scope: Any = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("192.0.2.7", 1),
        "server": ("localhost", 80),
    }
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200, message

    await application(scope, receive, send)

"""`/v1/responses` in a whole installation: the answer and the books, state, background, cancellation."""

import json
from datetime import datetime
from typing import Any

import pytest

from chatapi.wire.sse import Parser
from tests.chatapi.http_client import Answer, Client
from tests.installation import Installation, wait_for

MAX_STATES_BYTES = 32 << 20
pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}


@pytest.fixture(scope="module")
def strangers(installation: Installation, keys: dict[str, str]) -> dict[str, Client]:
    secrets = {
        "a test key": installation.keys["test"],
        "another organization": keys["stranger"],
        "another project": installation.create_key("--organization", "Tests", "--project", "other"),
    }
    return {name: Client(installation.url, secret) for name, secret in secrets.items()}


def ask(client: Client, path: str = "", **members: Any) -> Answer:
    headers = {name: members.pop(name) for name in ("prefer", "idempotency_key") if name in members}
    body = {"model": "five", "input": "hello"} | members
    return client.send("POST", f"/v1/responses{path}", json.dumps(body).encode(), **headers)


def get(client: Client, response_id: str, rest: str = "") -> Answer:
    return client.send("GET", f"/v1/responses/{response_id}{rest}")


def events(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer.body
    return [json.loads(event.data) for event in Parser().feed(answer.body)]


def text_of(response: dict[str, Any]) -> str:
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


def messages(installation: Installation, model: str = "five") -> list[tuple[str, Any]]:
    """Return the messages of the upstream's last request."""
    body = installation.calls(model)[-1]["body"]
    return [(message["role"], message.get("content")) for message in body["messages"]]


def settled_at(receipt: dict[str, Any]) -> int:
    return int(datetime.fromisoformat(receipt["timings"]["settled_at"]).timestamp())


# ---- the answer, and the books


def test_one_object(client: Client, installation: Installation) -> None:
    answer = ask(client)
    response = answer.json
    assert (answer.status, response["object"], response["status"]) == (200, "response", "completed")
    assert response["id"] == answer.headers["x-generation-id"]
    assert response["store"] is True
    receipt = installation.receipt(response["id"])
    assert (receipt["endpoint"], receipt["outcome"]) == ("responses", "completed")
    assert response["usage"]["input_tokens"] == receipt["usage"]["prompt_tokens"]
    assert response["usage"]["output_tokens"] == receipt["usage"]["completion_tokens"]
    assert response["completed_at"] == max(settled_at(receipt), response["created_at"])
    assert get(client, response["id"]).json["completed_at"] == response["completed_at"]


def test_a_stream_ends_with_the_ledgers_usage(client: Client, installation: Installation) -> None:
    answer = ask(client, stream=True)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    (*_, last) = found = events(answer)
    assert [event["sequence_number"] for event in found] == [*range(len(found))]
    assert last["type"] == "response.completed"
    receipt = installation.receipt(last["response"]["id"])
    assert last["response"]["usage"]["total_tokens"] == receipt["usage"]["total_tokens"]
    assert last["response"]["completed_at"] == max(settled_at(receipt), last["response"]["created_at"])
    assert [event["response"]["completed_at"] for event in found[:2]] == [None, None]
    assert b"[DONE]" not in answer.body


def test_a_replay_has_the_same_numbers(client: Client) -> None:
    answer = ask(client, stream=True)
    response_id = answer.headers["x-generation-id"]
    assert get(client, response_id, "?stream=true").body == answer.body
    rest = events(get(client, response_id, "?stream=true&starting_after=4"))
    assert rest == events(answer)[5:]
    refused = get(client, response_id, "?stream=true&starting_after=1000000000")
    assert (refused.status, refused.error["param"]) == (400, "starting_after")
    assert refused.error["message"].endswith("expected an integer from 0 to 999999999.")


def test_a_failure_before_the_first_byte_has_a_status(client: Client) -> None:
    refused = ask(client, input="[sandbox error=rate_limit]", model="sandbox", stream=True)
    assert refused.status == 429
    assert refused.error["code"] == "upstream_rate_limited"


def test_a_failure_in_mid_stream_is_an_event(client: Client) -> None:
    prompt = "[sandbox tokens=4 error=server_error after=2]"
    (*_, error, failed) = events(ask(client, model="sandbox", input=prompt, stream=True))
    assert (error["type"], failed["type"]) == ("error", "response.failed")
    failed_response = get(client, failed["response"]["id"]).json
    assert (failed_response["status"], failed_response["usage"]) == ("failed", None)
    assert failed_response["completed_at"] is None


def test_a_cut_upstream_still_brings_a_terminal_event(client: Client) -> None:
    """Codex repeats a turn without a terminal event five times."""
    (*_, last) = events(ask(client, model="breaks-by-close", stream=True))
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert events(get(client, last["response"]["id"], "?stream=true"))[-1] == last


def test_an_invalid_parameter_is_named(client: Client) -> None:
    assert ask(client, tools=[{"type": "file_search"}]).error["param"] == "tools[0].type"


def test_what_is_not_forwarded_is_listed(client: Client) -> None:
    answer = ask(client, client_metadata={}, seed=1)
    assert answer.headers["x-chatapi-ignored"] == "client_metadata, seed"


def test_the_list_of_what_is_not_forwarded_is_short_enough_for_proxies(client: Client) -> None:
    searches = [{"type": "web_search_call", "id": "ws"}] * 400
    answer = ask(client, input=[*searches, {"role": "user", "content": "hi"}])
    listed = answer.headers["x-chatapi-ignored"]
    assert listed.startswith("input[0], input[1], ")
    assert listed.endswith("], and others")
    assert len(listed) < 1_100


# ---- state


def test_a_stored_response_is_read_again(client: Client) -> None:
    response = ask(client, instructions="Be brief.", metadata={"a": "b"}).json
    assert get(client, response["id"]).json == response


def test_a_conversation_goes_on(client: Client, installation: Installation) -> None:
    first = ask(client, input="one", instructions="Be brief.").json
    second = ask(client, input="two", previous_response_id=first["id"]).json
    assert second["previous_response_id"] == first["id"]
    ask(client, input="three", previous_response_id=second["id"])
    said = text_of(first)
    assert messages(installation) == [
        *(("user", "one"), ("assistant", said)),
        *(("user", "two"), ("assistant", said)),
        ("user", "three"),
    ]


def test_a_tool_loop_by_references(client: Client, installation: Installation) -> None:
    """The AI SDK sends references from its second step on."""
    first = ask(client, model="calls-tools", input="look", tools=[TOOL]).json
    calls = [item for item in first["output"] if item["type"] == "function_call"]
    references = [{"type": "item_reference", "id": call["id"]} for call in calls]
    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": "seen"} for call in calls
    ]
    again = [{"role": "user", "content": "look"}, *references, *outputs]
    assert ask(client, model="calls-tools", input=again, tools=[TOOL]).status == 200
    sent = installation.calls("calls-tools")[-1]["body"]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", *["tool"] * len(calls)]
    assert len(sent[1]["tool_calls"]) == len(calls)


def test_a_tool_loop_with_a_custom_tool(client: Client, installation: Installation) -> None:
    """As Codex does. The upstream knows functions only."""
    tools = [{"type": "custom", "name": "apply_patch", "format": {"type": "text"}}]
    found = events(ask(client, model="patches", input="patch", tools=tools, stream=True))
    (call,) = found[-1]["response"]["output"]
    assert (call["type"], call["name"], call["input"]) == (
        "custom_tool_call",
        "apply_patch",
        "*** Begin\nPatch",
    )
    pieces = [event["delta"] for event in found if event["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(pieces) == call["input"]
    asked = installation.calls("patches")[-1]["body"]["tools"]
    assert [tool["type"] for tool in asked] == ["function"]
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"}
    replayed = [{"role": "user", "content": "patch"}, call, output]
    for request in (
        {"input": replayed},
        {"input": [output], "previous_response_id": found[-1]["response"]["id"]},
    ):
        assert text_of(ask(client, model="patches", tools=tools, **request).json)
        _, turn, _ = installation.calls("patches")[-1]["body"]["messages"]
        (sent,) = turn["tool_calls"]
        assert (sent["type"], json.loads(sent["function"]["arguments"])) == (
            "function",
            {"input": call["input"]},
        )


def test_a_large_conversation_goes_on(client: Client, installation: Installation) -> None:
    first = ask(client, input="a" * 100_000).json
    assert ask(client, input="two", previous_response_id=first["id"]).status == 200
    assert ("user", "a" * 100_000) in messages(installation)


def test_a_conversation_goes_on_where_bodies_are_small(client: Client, installation: Installation) -> None:
    with installation.another_web(CHATAPI_MAX_BODY_BYTES="100000") as web:
        small = Client(web.url, client.key)
        first = ask(small, input="one").json
        second = ask(small, input="x" * 70_000, previous_response_id=first["id"])
        assert second.status == 200, second.body
        assert ask(small, input="two", previous_response_id=second.json["id"]).status == 200
        too_long = ask(small, input="x" * 50_000, previous_response_id=second.json["id"])
        assert (too_long.status, too_long.error["code"]) == (413, "request_too_large"), too_long.body


def test_input_items(client: Client) -> None:
    first = ask(client, input="one").json
    second = ask(client, input=[{"role": "user", "content": "two"}], previous_response_id=first["id"]).json
    page = get(client, second["id"], "/input_items?order=asc&limit=2").json
    assert [item["role"] for item in page["data"]] == ["user", "assistant"]
    assert page["data"][0]["content"] == [{"type": "input_text", "text": "one"}]
    assert (page["object"], page["has_more"], page["last_id"]) == ("list", True, page["data"][1]["id"])
    rest = get(client, second["id"], f"/input_items?order=asc&after={page['last_id']}").json
    assert [item["content"][0]["text"] for item in rest["data"]] == ["two"]
    newest_first = get(client, second["id"], "/input_items").json["data"]
    assert [item["id"] for item in newest_first[1:]] == [item["id"] for item in page["data"][::-1]]


def test_every_input_item_has_an_id_of_its_own(client: Client) -> None:
    first = ask(client, input="one").json
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    given = [reference, *({"id": "msg_1", "role": "user", "content": text} for text in ("two", "three"))]
    second = ask(client, input=given, previous_response_id=first["id"]).json
    whole = get(client, second["id"], "/input_items?order=asc").json["data"]
    assert len({item["id"] for item in whole}) == len(whole) == 5
    pages, after = [], ""
    for _ in whole:
        page = get(client, second["id"], f"/input_items?order=asc&limit=1&after={after}").json
        pages += page["data"]
        after = page["last_id"]
    assert (pages, page["has_more"]) == (whole, False)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("order=up", "order"),
        ("after=msg_1", "after"),
        ("order=asc&order=desc", "order"),
    ],
)
def test_wrong_queries_are_refused(client: Client, query: str, param: str) -> None:
    response = ask(client).json
    assert get(client, response["id"], f"/input_items?{query}").error["param"] == param


@pytest.mark.parametrize("value", ["maybe", "1", "TRUE", ""])
def test_a_query_that_does_not_say_whether_to_stream_is_refused(client: Client, value: str) -> None:
    refused = get(client, ask(client).json["id"], f"?stream={value}")
    assert (refused.status, refused.error["code"], refused.error["param"]) == (400, "invalid_value", "stream")
    assert "expected 'true' or 'false'" in refused.error["message"]


def test_a_deleted_response_is_gone(client: Client) -> None:
    response_id = ask(client).json["id"]
    deleted = client.send("DELETE", f"/v1/responses/{response_id}")
    assert deleted.json == {"id": response_id, "object": "response", "deleted": True}
    assert get(client, response_id).status == 404
    assert_no_previous(ask(client, previous_response_id=response_id), response_id)


def test_what_was_not_stored_is_not_found(client: Client) -> None:
    response = ask(client, store=False).json
    assert response["store"] is False
    missing = get(client, response["id"])
    assert missing.status == 404
    assert "5m0s" in missing.error["message"]


@pytest.mark.parametrize("item_id", ["msg_" + "0" * 34, "x"])
def test_an_unknown_item_is_named(client: Client, item_id: str) -> None:
    refused = ask(client, input=[{"type": "item_reference", "id": item_id}])
    assert (refused.status, refused.error["param"]) == (404, "input[0].id")


@pytest.mark.parametrize("path", ["", "/input_tokens"])
@pytest.mark.parametrize("response_id", ["resp_" + "0" * 32, "other"])
def test_an_unknown_previous_response_has_the_answer_that_clients_look_for(
    client: Client, response_id: str, path: str
) -> None:
    for stream in (False, True):
        refused = ask(client, path, previous_response_id=response_id, stream=stream)
        assert_no_previous(refused, response_id)
        assert "Responses are kept for 5m0s after their end" in refused.error["message"]


@pytest.mark.parametrize("stranger", ["another organization", "another project", "a test key"])
def test_no_stranger_sees_it(client: Client, strangers: dict[str, Client], stranger: str) -> None:
    other = strangers[stranger]
    response = ask(client, background=True).json
    response_id = response["id"]
    item = wait_until(client, response_id, "completed")["output"][0]["id"]
    path = f"/v1/responses/{response_id}"
    for method, rest in [("GET", ""), ("GET", "?stream=true"), ("GET", "/input_items"), ("DELETE", "")]:
        assert_unknown(other.send(method, path + rest), response_id)
    assert_unknown(other.send("POST", path + "/cancel"), response_id)
    assert_no_previous(ask(other, previous_response_id=response_id), response_id)
    assert_unknown(ask(other, input=[{"type": "item_reference", "id": item}]), item)
    assert_no_previous(ask(other, "/input_tokens", previous_response_id=response_id), response_id)
    assert get(client, response_id).status == 200


def assert_unknown(answer: Answer, name: str) -> None:
    """Check that the answer is the one to an id that does not exist."""
    assert (answer.status, answer.error["code"]) == (404, "not_found")
    assert name in answer.error["message"]


def assert_no_previous(answer: Answer, response_id: str) -> None:
    """Check that the answer is the one to a response that does not exist and can't be continued.

    Clients send the whole conversation again if they see OpenAI's status and code.
    """
    error = answer.error
    assert (answer.status, error["code"], error["param"], error["type"]) == (
        400,
        "previous_response_not_found",
        "previous_response_id",
        "invalid_request_error",
    )
    assert error["message"].startswith(f"Previous response with id '{response_id}' not found.")


def test_a_failed_response_is_not_continued(client: Client) -> None:
    prompt = "[sandbox tokens=4 error=server_error after=2]"
    failed = events(ask(client, model="sandbox", input=prompt, stream=True))[-1]["response"]
    refused = ask(client, previous_response_id=failed["id"])
    assert (refused.status, refused.error["code"]) == (400, "response_not_completed")


def test_the_state_expires_with_the_log(client: Client, installation: Installation) -> None:
    generation = ask(client).json["id"].removeprefix("resp_")
    with installation.open_valkey() as redis:
        (state,) = redis.keys(f"*state:{generation}")
        (log,) = redis.keys(f"*log:{generation}")
        assert 0 < redis.pttl(state) <= 300_000
        assert abs(redis.pttl(state) - redis.pttl(log)) < 1_000


def test_an_answer_that_cannot_be_read_now_has_not_failed(client: Client, installation: Installation) -> None:
    response_id = ask(client).json["id"]
    installation.receipt(response_id)
    with installation.open_valkey() as redis:
        logs = [name for name in redis.scan_iter() if b"log:" in name and response_id[5:].encode() in name]
        assert redis.delete(*logs) == 1
    for answer in (get(client, response_id), ask(client, previous_response_id=response_id)):
        assert (answer.status, answer.error["code"]) == (503, "stream_unavailable")


def test_an_organization_stores_so_many_bytes(client: Client, installation: Installation) -> None:
    first = ask(client, background=True, idempotency_key="responses-2")
    logged = len(installation.log("web"))
    with installation.open_valkey() as redis:
        counters = redis.keys("*states:*")
        for counter in counters:
            redis.incrby(counter, MAX_STATES_BYTES)
        try:
            response = ask(client).json
            refused = ask(client, background=True)
            again = ask(client, background=True, idempotency_key="responses-2")
        finally:
            for counter in counters:
                redis.decrby(counter, MAX_STATES_BYTES)
    assert (response["status"], response["store"]) == ("completed", False)
    assert get(client, response["id"]).status == 404
    assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
    assert f"{MAX_STATES_BYTES} bytes of input in 5m0s" in refused.error["message"]
    assert again.status == 200, again.body
    assert again.json["id"] == first.json["id"]
    assert "Traceback" not in installation.log("web")[logged:], "a refusal is no error of ours"


def test_a_repeated_request_gets_the_first_ones_answer_and_stores_nothing(
    client: Client, installation: Installation
) -> None:
    first = ask(client, idempotency_key="responses-1")
    with installation.open_valkey() as redis:
        stored = {counter: redis.get(counter) for counter in redis.keys("*states:*")}
        again = ask(client, idempotency_key="responses-1")
        assert {counter: redis.get(counter) for counter in stored} == stored
    assert again.headers["idempotent-replayed"] == "true"
    assert again.body == first.body


# ---- in the background


def wait_until(client: Client, response_id: str, status: str) -> dict[str, Any]:
    wait_for(lambda: get(client, response_id).json["status"] == status, status)
    found: dict[str, Any] = get(client, response_id).json
    return found


def test_a_response_in_the_background(client: Client) -> None:
    accepted = ask(client, background=True, metadata={"a": "b"})
    queued = accepted.json
    assert (accepted.status, queued["status"], queued["background"]) == (200, "queued", True)
    assert (queued["metadata"], queued["output"], queued["usage"]) == ({"a": "b"}, [], None)
    done = wait_until(client, queued["id"], "completed")
    assert text_of(done)
    assert (queued["completed_at"], done["completed_at"] >= done["created_at"]) == (None, True)
    assert done["metadata"] == {"a": "b"}
    (first, *_) = events(get(client, queued["id"], "?stream=true"))
    assert (first["type"], first["response"]["status"]) == ("response.created", "queued")


def test_a_failure_in_the_background_is_told_the_same_by_either_way(client: Client) -> None:
    failing = {"model": "sandbox", "input": "[sandbox error=server_error]"}
    response_id = ask(client, background=True, metadata={"a": "b"}, **failing).json["id"]
    failed = wait_until(client, response_id, "failed")
    assert (failed["background"], failed["store"], failed["metadata"]) == (True, True, {"a": "b"})
    assert events(get(client, response_id, "?stream=true"))[-1]["response"] == failed


def test_a_stream_in_the_background_outlives_its_client(client: Client) -> None:
    body = json.dumps({"model": "sandbox", "input": "[sandbox tokens=6 delay_ms=100]"} | BACKGROUND).encode()
    with client.exchange("POST", "/v1/responses", body, {}) as exchange:
        response_id = exchange.response.headers["x-generation-id"]
        exchange.response.readline()
    done = wait_until(client, response_id, "completed")
    assert len(text_of(done).split()) == 6


BACKGROUND = {"background": True, "stream": True}


def test_a_response_in_the_background_is_cancelled(client: Client, installation: Installation) -> None:
    response_id = ask(client, model="steady", background=True).json["id"]
    wait_until(client, response_id, "in_progress")
    cancelled = client.send("POST", f"/v1/responses/{response_id}/cancel")
    assert (cancelled.status, cancelled.json["status"]) == (200, "cancelled")
    assert cancelled.json["completed_at"] is None
    assert events(get(client, response_id, "?stream=true"))[-1]["type"] == "response.incomplete"
    receipt = installation.receipt(response_id)
    assert receipt["outcome"] == "client_cancelled"
    assert cancelled.json["usage"]["output_tokens"] == receipt["usage"]["completion_tokens"]
    again = client.send("POST", f"/v1/responses/{response_id}/cancel")
    assert again.json == cancelled.json


def test_the_answer_of_a_response_that_was_deleted_while_it_ran_is_forgotten(
    client: Client, installation: Installation
) -> None:
    response = ask(client, model="begins-late", background=True).json
    assert client.send("DELETE", f"/v1/responses/{response['id']}").json["deleted"] is True
    stream = f"/v1/generations/{response['id']}/stream"
    assert b"response.completed" in client.send("GET", stream).body
    wait_for(lambda: client.send("GET", stream).status == 410, "the end of the log")
    with installation.open_valkey() as redis:  # the deletion is remembered
        assert redis.get(f"chatapi:state:{response['id'].removeprefix('resp_')}") == b""


def test_a_synchronous_response_is_not_cancelled(client: Client) -> None:
    refused = client.send("POST", f"/v1/responses/{ask(client).json['id']}/cancel")
    assert (refused.status, refused.error["code"]) == (400, "not_cancellable")


def test_a_running_response_shows_its_complete_items(client: Client) -> None:
    response_id = ask(client, model="steady", background=True).json["id"]
    running = wait_until(client, response_id, "in_progress")
    assert (running["output"], running["usage"]) == ([], None)
    assert ask(client, previous_response_id=response_id).error["code"] == "response_not_completed"
    client.send("POST", f"/v1/responses/{response_id}/cancel")


# ---- counting


def test_input_tokens_are_those_that_a_response_has(client: Client, installation: Installation) -> None:
    body: dict[str, Any] = {
        "model": "sandbox",
        "input": "Count me.",
        "instructions": "Be brief.",
        "tools": [TOOL],
    }
    counted = ask(client, "/input_tokens", **body)
    assert counted.json["object"] == "response.input_tokens"
    assert counted.json["input_tokens"] == ask(client, **body).json["usage"]["input_tokens"]


def test_the_input_of_a_conversation_is_counted(client: Client) -> None:
    first = ask(client, input="one " * 100).json
    counted = ask(client, "/input_tokens", input="two", previous_response_id=first["id"]).json
    assert counted["input_tokens"] > 100

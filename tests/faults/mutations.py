"""Breaks a copy of the code on purpose, one mistake at a time, and checks that a test fails.

make mutations                                         all of them, about two minutes
.ci/with-postgres .venv/bin/python -m tests.faults.mutations "the end is published before the commit"
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[2]
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "var", "__pycache__", ".*_cache", ".hypothesis")
NOTHING_RAN = (2, 3, 4, 5)
"""pytest's exit codes for a test that could not be collected, or does not exist."""


@dataclass(frozen=True)
class Mutation:
    """One mistake: text that occurs once in the file, its replacement, and tests of which one must fail."""

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]
    needs_postgres: bool = False

    def apply(self, copy: Path) -> None:
        """Make the mistake; raises ValueError when the code is not what it was."""
        path = copy / self.file
        text = path.read_text()
        if text.count(self.right) != 1:
            raise ValueError(
                f"{self.name}: {self.file} has {text.count(self.right)} times {self.right!r}, wanted once"
            )
        path.write_text(text.replace(self.right, self.wrong))


MUTATIONS = (
    Mutation(
        "a member of one project reads the rows of the organization",
        "chatapi/console/tenancy.py",
        "        if self.limit is None:\n            return access.belonging_to",
        "        if True:\n            return access.belonging_to",
        (
            "tests/chatapi/test_limited_members.py::test_rows_of_another_project_look_like_rows_that_never_were",
        ),
    ),
    Mutation(
        "a member of one project may open pages that know of no limits",
        "chatapi/console/tenancy.py",
        "if not console.may(permission) or (console.limit is not None and not keeps_to_projects):",
        "if not console.may(permission):",
        (
            "tests/chatapi/test_limited_members.py::test_pages_of_the_whole_organization_are_closed_and_not_in_the_menu",
        ),
    ),
    Mutation(
        "a membership of one project counts for the whole organization",
        "accounts/access.py",
        "(found.limited_roles if each.is_limited else found.roles)[each.organization_id] = each.role",
        "found.roles[each.organization_id] = each.role",
        ("tests/chatapi/test_limited_members.py::test_the_general_door_shows_a_limited_member_nothing",),
    ),
    Mutation(
        "a group gives a project of another organization",
        "accounts/access.py",
        "group__organization=of_organization, group__projects__organization=of_organization\n",
        "group__projects__isnull=False\n",
        (
            "tests/accounts/test_member_groups.py::test_a_group_reaches_no_other_organization",
            "tests/chatapi/test_limited_members.py::test_a_project_of_another_organization_shows_nothing",
        ),
    ),
    Mutation(
        "an access token needs no signature",
        "accounts/authentication.py",
        "(token_ends_at is not None and not row.digest)",
        "not row.digest",
        ("tests/chatapi/test_workload_identity.py::test_a_changed_access_token_opens_nothing",),
    ),
    Mutation(
        "a program's token for another audience is exchanged",
        "accounts/workload_identity/exchange.py",
        "audience=provider.audience,",
        'audience=jwt.decode(subject_token, options={"verify_signature": False}).get("aud"),',
        ("tests/chatapi/test_workload_identity.py::test_a_wrong_token_is_refused",),
    ),
    Mutation(
        "each token with an unknown key id makes the service ask the issuer",
        "accounts/workload_identity/signing_keys.py",
        "if time.monotonic() - cached.asked_at < REFETCH_S:",
        "if cached.asked_at > time.monotonic():",
        ("tests/chatapi/test_workload_identity.py::test_unknown_key_ids_cause_few_fetches",),
    ),
    Mutation(
        "a holder with an old fence may settle",
        "usage/books/settlement.py",
        "if row is None or row.fence != item.fence:",
        "if row is None:",
        ("tests/usage/test_ledger.py::test_the_reaper_fences_off_a_worker_whose_lease_ran_out",),
    ),
    Mutation(
        "a holder with an old fence may publish",
        "chatapi/transports/redis_stream/scripts.py",
        "local key, name = prefix .. 'log:' .. id, string.format('%d-%d', fence, seq)",
        "local key, name = prefix .. 'log:' .. id, '*'",
        (
            "tests/chatapi/test_delta_stream.py::test_a_sealed_log_refuses_the_old_fence_and_nothing_of_it_reaches_the_client",
        ),
    ),
    Mutation(
        "a settled generation may be settled again",
        "usage/books/settlement.py",
        "AND state = 'running' ORDER BY id",
        "ORDER BY id",
        ("tests/usage/test_ledger.py",),
    ),
    Mutation(
        "a holder with an old fence may switch to another model",
        "usage/books/candidates.py",
        "state=State.RUNNING, fence=item.fence)",
        "state=State.RUNNING)",
        ("tests/usage/test_fallbacks.py::test_only_the_holder_of_the_newest_fence_can_switch",),
    ),
    Mutation(
        "another model is asked before the books know it",
        "chatapi/worker/fallbacks.py",
        "        await retry(write, SWITCH_RETRY_S, (DatabaseUnavailable,))\n",
        "        pass\n",
        ("tests/faults/test_fallbacks.py::test_the_reaper_charges_the_model_that_produced_the_tokens",),
    ),
    Mutation(
        "only the requested model is held for",
        "usage/books/admission.py",
        "            most = max(most, cost)\n",
        "            pass\n",
        ("tests/usage/test_fallbacks.py",),
    ),
    Mutation(
        "the end is published before the commit",
        "chatapi/worker/generate.py",
        "        settled_at, charge = await _settle(services, settlement)\n",
        "        now, tokens = datetime.now().astimezone(), settlement.tokens\n"
        "        terminal = run_usage.terminal(end, run.usage, tokens, run.claimed.choices_count, now)\n"
        "        run.publish(publisher, terminal)\n"
        "        await publisher.flushed(run)\n"
        "        settled_at, charge = await _settle(services, settlement)\n",
        (
            "tests/faults/test_failpoints.py::test_the_books_are_right_wherever_it_strikes[settle.in_tx-kill9-stream]",
        ),
    ),
    Mutation(
        "a budget is read, and then written",
        "usage/books/budgets.py",
        "            AND b.posted_nanodollars + b.pending_nanodollars > l.limit_nanodollars - hold.amount)\n",
        "            AND false)\n",
        ("tests/usage/test_overdraft.py",),
        needs_postgres=True,
    ),
    Mutation(
        "a hold stays when its request is settled",
        "usage/books/budgets.py",
        "SET pending_nanodollars = b.pending_nanodollars - change.released,",
        "SET pending_nanodollars = b.pending_nanodollars,",
        ("tests/usage/test_ledger.py",),
    ),
    Mutation(
        "a request that one budget refuses stays held on the others",
        "usage/books/budgets.py",
        "    _release({budget_id: amounts[budget_id] for (budget_id,) in held})\n",
        "",
        ("tests/usage/test_ledger.py",),
    ),
    Mutation(
        "an idempotency key is looked up, and then claimed",
        "usage/books/idempotency.py",
        '    insert("usage_idempotencykey", columns, rows, "ON CONFLICT DO NOTHING")\n',
        "    known = _holders(now, [(api_key_id, key.digest) for api_key_id, key in keyed.values()])\n"
        "    if unknown := [row for row in rows if row[:2] not in known]:\n"
        '        insert("usage_idempotencykey", columns, unknown)\n',
        ("tests/usage/test_idempotency_keys.py",),
    ),
    Mutation(
        "a refused request keeps its idempotency key",
        "usage/books/admission.py",
        "    idempotency.release(item.id for item in refused if item.idempotency)\n",
        "",
        ("tests/chatapi/test_idempotency.py::test_what_was_refused_may_be_tried_again",),
    ),
    Mutation(
        "a failure that cost nothing keeps its idempotency key",
        "usage/books/settlement.py",
        "        idempotency.release(posting.row.id for posting in postings if posting.frees_its_key)\n",
        "",
        ("tests/usage/test_idempotency_keys.py",),
    ),
    Mutation(
        "the thresholds of limits are not looked for",
        "usage/books/settlement.py",
        "EXISTS (SELECT 1 FROM usage_budgetlimit)",
        "FALSE",
        ("tests/usage/test_events.py",),
    ),
    Mutation(
        "the threshold of credit is not looked for",
        "usage/books/settlement.py",
        "EXISTS (SELECT 1 FROM usage_credit)",
        "FALSE",
        ("tests/usage/test_events.py",),
    ),
    Mutation(
        "the event of a threshold is written after the transaction that crosses it",
        "usage/books/settlement.py",
        "    outbox.write_crossed(now, changes, *posted)\n",
        "    connection.on_commit(lambda: outbox.write_crossed(now, changes, *posted))\n",
        ("tests/usage/test_events.py::test_events_are_in_the_transaction_that_crosses_their_thresholds",),
    ),
    Mutation(
        "the thresholds of weeks are not looked for",
        "usage/books/settlement.py",
        "weeks.read_posted(changes) if any(each.row.has_weeks for each in moving) else []",
        "[]",
        ("tests/usage/test_weeks_of_budgets.py::test_each_threshold_is_one_event_of_a_week",),
    ),
    Mutation(
        "a dead worker's answer may cost more than was held for it",
        "chatapi/worker/reaper/reaper.py",
        "completion = counted_completion(usage, orphan.completion_tokens_cap)",
        "completion = counted_completion(usage, 1 << 30)",
        ("tests/chatapi/worker/test_reaper.py",),
    ),
    Mutation(
        "output that a dead worker had published is not charged",
        "chatapi/worker/reaper/reaper.py",
        "    usage.add(sealed.deltas)\n",
        "",
        ("tests/chatapi/worker/test_reaper.py",),
    ),
    Mutation(
        "the unused part of a rate limit's reservation is never released",
        "accounts/rate_limits.lua",
        "math.min(bucket.reserved, took * bucket.scale / tonumber(scale))",
        "0",
        ("tests/accounts/test_rate_limits.py",),
    ),
    Mutation(
        "requests release more than is still reserved",
        "accounts/rate_limits.lua",
        "if bucket.reserved > bucket.debt then",
        "if false then",
        ("tests/accounts/test_rate_limits.py",),
    ),
    Mutation(
        "an end that is in no log has an id",
        "chatapi/web/resumption.py",
        "batch[: follower.seq - seq]",
        "batch",
        ("tests/chatapi/web/test_resumption.py",),
    ),
    Mutation(
        "a process that stops leaves resumed streams without an end",
        "chatapi/web/relay.py",
        "    if services.is_closing and ",
        "    if False and ",
        ("tests/chatapi/web/test_resumption.py::test_a_process_that_closes_ends_its_followers",),
    ),
    Mutation(
        "a batch that came twice is returned twice",
        "chatapi/web/following/follower.py",
        "deltas.decode(frame.batch)[self.seq + 1 - frame.first_seq :]",
        "deltas.decode(frame.batch)",
        (
            "tests/chatapi/test_delta_stream.py::test_a_batch_that_repeats_known_deltas_adds_only_the_new_ones",
        ),
    ),
    Mutation(
        "the log of a generation whose settler died is never deleted",
        "chatapi/worker/reaper/garbage_collection.py",
        "            await stream.forget(left_ms)\n",
        "            pass\n",
        ("tests/chatapi/test_canaries.py",),
    ),
    Mutation(
        "the last entry stays in an inbox that was read",
        "chatapi/transports/redis_stream/presence.py",
        "                pipe.xdel(self._inbox, read_up_to)\n",
        "",
        ("tests/chatapi/test_delta_stream.py::test_nothing_stays_in_an_inbox_that_has_been_read",),
    ),
    Mutation(
        "a late web process counts as dead",
        "chatapi/worker/absences.py",
        "silent - signs.connected",
        "silent",
        ("tests/chatapi/test_presence.py::test_a_connected_process_is_dead_only_after_a_long_silence",),
    ),
    Mutation(
        "a key may be used from every address on the hot routes",
        "chatapi/web/services.py",
        "        caller.require_ip(address)\n",
        "",
        ("tests/chatapi/test_allowed_ips_end_to_end.py::test_every_hot_route_refuses_another_address[chat]",),
    ),
    Mutation(
        "a key may be used from every address on Django's routes",
        "accounts/api.py",
        "        caller.require_ip(ip)\n",
        "",
        ("tests/accounts/test_allowed_ips.py::test_a_trusted_proxy_names_the_address",),
    ),
    Mutation(
        "a client without an address may use every key",
        "accounts/allowed_ips.py",
        "address is not None and any(",
        "address is None or any(",
        ("tests/accounts/test_allowed_ips.py::test_a_key_is_for_the_listed_addresses",),
    ),
)


def main(arguments: Sequence[str]) -> int:
    """Run the command line; exit status 1 when a mistake went unnoticed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="; ".join(mutation.name for mutation in MUTATIONS)
    )
    names = parser.parse_args(arguments).names
    if unknown := set(names) - {mutation.name for mutation in MUTATIONS}:
        parser.error(f"no such mutation: {', '.join(sorted(unknown))}")
    noticed = [notices(mutation) for mutation in MUTATIONS if not names or mutation.name in names]
    return 0 if all(noticed) else 1


def notices(mutation: Mutation) -> bool:
    """Return whether one of its tests fails on a copy with the mistake, and print which."""
    if mutation.needs_postgres and "DATABASE_URL" not in os.environ:
        print(f"not tried: {mutation.name} (SQLite has one writer at a time; run it by .ci/with-postgres)")
        return True
    with tempfile.TemporaryDirectory(prefix="chatapi-mutation-") as folder:
        copy = Path(folder) / "chatapi"
        shutil.copytree(PROJECT, copy, ignore=NOT_COPIED)
        mutation.apply(copy)
        environment = {**os.environ, "FAULTS": "all"}
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            *mutation.tests,
        ]
        ran = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
    if ran.returncode in NOTHING_RAN:
        sys.exit(f"{mutation.name}: its tests did not run\n{ran.stdout}{ran.stderr}")
    failed = [
        line.removeprefix("FAILED ").partition(" - ")[0]
        for line in ran.stdout.splitlines()
        if line.startswith("FAILED ")
    ]
    print(
        f"noticed: {mutation.name}: {', '.join(failed)}" if failed else f"UNNOTICED: {mutation.name}",
        flush=True,
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

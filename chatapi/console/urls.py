"""The console's routes; those of one organization begin with its number."""

from django.urls import include, path

from chatapi.console import (
    audit_page,
    budget_pages,
    key_pages,
    live_page,
    member_pages,
    model_pages,
    overview,
    playground,
    projects,
    rate_limit_pages,
    request_pages,
    sign_in,
    start,
    statement_pages,
)

app_name = "console"

_of_organization = [
    path("", sign_in.home_of, name="home_of"),
    path("start", start.start_page, name="start"),
    path("overview", overview.overview_page, name="overview"),
    path("requests", request_pages.list_page, name="requests"),
    path("requests/<str:generation_id>", request_pages.receipt_page, name="request"),
    path("live", live_page.live_page, name="live"),
    path("live/stop-key", live_page.stop_key, name="live_stop_key"),
    path("live/<str:generation_id>/stop", live_page.stop, name="live_stop"),
    path("keys", key_pages.list_page, name="keys"),
    path("keys/new", key_pages.new_page, name="new_key"),
    path("keys/<int:key_id>", key_pages.key_page, name="key"),
    path("keys/<int:key_id>/revoke", key_pages.revoke, name="revoke_key"),
    path("projects/new", projects.new_project, name="new_project"),
    path("budgets", budget_pages.list_page, name="budgets"),
    path("budgets/new", budget_pages.new_page, name="new_budget"),
    path("budgets/<int:limit_id>", budget_pages.budget_page, name="budget"),
    path("budgets/<int:limit_id>/remove", budget_pages.remove, name="remove_budget"),
    path("budgets/rate-limits", rate_limit_pages.list_page, name="rate_limits"),
    path("budgets/rate-limits/new", rate_limit_pages.new_page, name="new_rate_limit"),
    path("budgets/rate-limits/<int:limit_id>", rate_limit_pages.change_page, name="rate_limit"),
    path("budgets/rate-limits/<int:limit_id>/remove", rate_limit_pages.remove, name="remove_rate_limit"),
    path("models", model_pages.list_page, name="models"),
    path("models/<path:model>", model_pages.model_page, name="model"),
    path("playground", playground.playground_page, name="playground"),
    path("playground/key", playground.new_key, name="playground_key"),
    path("playground/code", playground.request_code, name="playground_code"),
    path("statements", statement_pages.list_page, name="statements"),
    path("statements/<str:period>.<str:file_format>", statement_pages.statement_file, name="statement_file"),
    path("statements/<str:period>", statement_pages.statement_page, name="statement"),
    path("members", member_pages.list_page, name="members"),
    path("members/invite", member_pages.invite, name="invite"),
    path("members/<int:member_id>/invitation", member_pages.invitation, name="invitation"),
    path("members/<int:member_id>/role", member_pages.change_role, name="change_role"),
    path("members/<int:member_id>/remove", member_pages.remove, name="remove_member"),
    path("audit", audit_page.list_page, name="audit"),
]
urlpatterns = [
    path("", sign_in.home, name="home"),
    path("sign-in", sign_in.SignIn.as_view(), name="sign_in"),
    path("sign-out", sign_in.sign_out, name="sign_out"),
    path("<int:organization_id>/", include(_of_organization)),
]

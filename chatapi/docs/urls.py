"""The routes of /docs."""

from django.urls import path
from django.views.generic import RedirectView

from chatapi.docs import views

app_name = "docs"
urlpatterns = [
    path("docs", views.index, name="index"),
    path("docs/reference", views.operations, name="operations"),
    path("docs/reference/schemas/<str:name>", views.schema, name="schema"),
    path("docs/reference/<str:operation_id>", views.operation, name="operation"),
    path("docs/<slug:slug>.md", views.source, name="source"),
    path("docs/<slug:slug>", views.guide, name="guide"),
    path("docs/", RedirectView.as_view(pattern_name="docs:index")),
    path("docs/<slug:slug>/", RedirectView.as_view(pattern_name="docs:guide")),
]

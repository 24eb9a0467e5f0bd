"""The table of acts. Rows are written once and keep names as values, which outlive what they name."""

from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models.functions import Now


class AuditEntry(models.Model):
    """One act of a person or an API key on an object; the database refuses to change or delete it.

    `changes` has the values before and after by field name, `{"name": ["Acme", "Acme Inc"]}`; null: none.
    """

    at = models.DateTimeField(db_default=Now())
    actor_id = models.BigIntegerField(null=True, help_text="The person's id; null: nobody who was signed in.")
    actor_key_id = models.BigIntegerField(null=True, help_text="The id of the API key that acted, if any.")
    actor = models.CharField(max_length=150, help_text="The name of the person or API key then.")
    address = models.GenericIPAddressField(null=True, help_text="Where the request came from.")
    action = models.CharField(max_length=40, help_text="A verb, in the past.")
    object_type = models.CharField(max_length=100, help_text="The model's label, such as accounts.project.")
    object_id = models.CharField(max_length=128)
    object_name = models.CharField(max_length=300)
    organization_id = models.BigIntegerField(
        null=True, help_text="Whose object it is, if it is one organization's."
    )
    # Entries of earlier releases have none.
    project_id = models.BigIntegerField(
        null=True, help_text="The project that the object is or belongs to, if it is one project's."
    )
    changes = models.JSONField(default=dict, encoder=DjangoJSONEncoder)
    reason = models.CharField(max_length=500, blank=True)

    class Meta:
        verbose_name_plural = "audit entries"
        # Each list is read by id, newest first; "id" stands last in each index.
        indexes = [
            models.Index(fields=["actor", "id"], name="audit_by_actor"),
            models.Index(fields=["object_type", "id"], name="audit_by_type"),
            models.Index(fields=["object_id", "object_type", "id"], name="audit_by_object"),
            models.Index(fields=["organization_id", "id"], name="audit_by_organization"),
        ]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.object_name}"

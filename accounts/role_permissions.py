"""The permissions of members, for everything that asks Django for permissions."""

from typing import Any

from django.contrib.auth.backends import ModelBackend

from accounts import access, roles


class RolePermissions(ModelBackend):
    """Operators have Django's permissions; members have those of their roles and no others.

    Without an object, the answer is for some organization of the person; `access.may` answers for a row.
    Superusers are never asked about.
    """

    def get_all_permissions(self, user_obj: Any, obj: Any = None) -> set[str]:
        """Return names such as "usage.view_generation"."""
        if access.is_operator(user_obj):
            return super().get_all_permissions(user_obj, obj)
        # Django's contract: a backend without permissions for single rows answers "none" for a row.
        if not user_obj.is_active or obj is not None:
            return set()
        return set().union(*(roles.PERMISSIONS[role] for role in access.roles_of(user_obj).values()))

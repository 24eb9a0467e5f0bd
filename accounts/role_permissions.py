"""Permissions of people who belong to organizations: Django asks this backend, and so does everything that
asks Django.
"""

from typing import Any

from django.contrib.auth.backends import ModelBackend

from accounts import access, roles


class RolePermissions(ModelBackend):
    """Operators have the permissions that Django's tables give them; others those of their roles, and no
    more.

    Without an object the answer is for some of the person's organizations: `access.may` says it of a row. A
    superuser is never asked.
    """

    def get_all_permissions(self, user_obj: Any, obj: Any = None) -> set[str]:
        """Names such as "usage.view_generation"."""
        if access.is_operator(user_obj):
            return super().get_all_permissions(user_obj, obj)
        if not user_obj.is_active or obj is not None:
            return set()
        return set().union(*(roles.PERMISSIONS[role] for role in access.roles_of(user_obj).values()))

"""Secrets: named values of a tenant that its jobs get as variables and that are never shown again."""

from __future__ import annotations

import re

from sqlalchemy import Connection

from fairlead.control.identity.access import acting_for, require
from fairlead.control.records import Role, Secret, Token
from fairlead.control.service.core import Verbs
from fairlead.control.store import secrets, tenants
from fairlead.errors import InvalidSpec, NotFound, Refused
from fairlead.specs import LONGEST_SECRET, SECRET_PATTERN, SHORTEST_SECRET
from fairlead.views.jobs import SecretView

MAX_SECRETS = 1000  # per tenant
_RESERVED = "FAIRLEAD_"


class SecretVerbs(Verbs):
    """Operations on a tenant's secrets."""

    async def set_secret(self, who: Token, name: str, value: str, tenant: str | None) -> SecretView:
        """Store the value encrypted; jobs that start from now on get it."""
        require(who, Role.TENANT_ADMIN, "set secrets")
        owner = acting_for(who, tenant)
        check_secret(name, value)
        now_s = self._core.clock()

        def work(connection: Connection) -> Secret:
            _require_tenant(connection, owner)
            held = secrets.list_secrets(connection, owner)
            if len(held) >= MAX_SECRETS and name not in {each.name for each in held}:
                raise Refused(f"a tenant has at most {MAX_SECRETS} secrets", field="name", value=name,
                              fix="remove one that no job needs: fairlead secret list")  # fmt: skip
            secret = Secret(owner, name, self._core.vault.seal(owner, name, value), now_s, who.id)
            secrets.put(connection, secret)
            self._audit(connection, who, "secret.set", f"{owner}/{name}", tenant=owner)
            return secret

        return _view(await self._write(work))

    async def secrets(self, who: Token, tenant: str | None) -> list[SecretView]:
        """The names of the tenant's secrets, never their values."""
        require(who, Role.VIEWER, "list secrets")
        owner = acting_for(who, tenant)

        def work(connection: Connection) -> list[SecretView]:
            _require_tenant(connection, owner)
            return [_view(secret) for secret in secrets.list_secrets(connection, owner)]

        return await self._read(work)

    async def remove_secret(self, who: Token, name: str, tenant: str | None) -> None:
        """Delete the secret. Running jobs keep it until they end; later jobs that ask for it fail with the reason."""
        require(who, Role.TENANT_ADMIN, "remove secrets")
        owner = acting_for(who, tenant)

        def work(connection: Connection) -> None:
            _require_tenant(connection, owner)
            if not secrets.remove(connection, owner, name):
                raise NotFound("there is no such secret", field="name", value=name, fix="see fairlead secret list")
            self._audit(connection, who, "secret.remove", f"{owner}/{name}", tenant=owner)

        await self._write(work)


def check_secret(name: str, value: str) -> None:
    """Refuse values that cannot be a variable or cannot be kept out of logs. Errors never repeat the value."""
    if not re.fullmatch(SECRET_PATTERN, name):
        raise InvalidSpec("is not the name of a secret", field="name", value=name,
                          fix="use capital letters, digits and _, at most 64, like WANDB_API_KEY")  # fmt: skip
    if name.startswith(_RESERVED):
        raise InvalidSpec(f"begins with {_RESERVED}, which is reserved for the platform", field="name", value=name,
                          fix="choose another name")  # fmt: skip
    size = len(value.encode("utf-8", "surrogatepass"))
    if len(value.strip()) < SHORTEST_SECRET:
        raise InvalidSpec(f"is shorter than {SHORTEST_SECRET} characters: too short to be redacted from logs",
                          field="value", fix="use a longer value, or put it into env")  # fmt: skip
    if size > LONGEST_SECRET:
        raise InvalidSpec(f"has {size} bytes, more than the {LONGEST_SECRET} that a secret may have", field="value",
                          fix="keep what is larger in a file that is encrypted with a secret")  # fmt: skip
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidSpec("is not text that a variable can hold", field="value", fix="encode it, such as in base64")


def _require_tenant(connection: Connection, tenant: str) -> None:
    if tenants.get(connection, tenant) is None:
        raise NotFound(f"{tenant!r}: no such tenant", field="tenant", value=tenant, fix="see fairlead tenants")


def _view(secret: Secret) -> SecretView:
    return SecretView(name=secret.name, tenant=secret.tenant, changed_s=secret.changed_s, changed_by=secret.changed_by)

"""`POST /v1/realtime/client_secrets`: a short-lived key for a browser, and the session it opens."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from realtime.access.caller import caller_of
from realtime.access.client_secrets import ClientSecrets, TooManySecretsError
from realtime.conversation.conversing import Conversing
from realtime.conversation.in_force import SettingsInForce
from realtime.events import WireModel
from realtime.gateway import Gateway
from realtime.lanes.http_bodies import read_text
from realtime.lanes.http_errors import Handler, RefusedError, refusing
from realtime.lanes.openai.client_events import Session
from realtime.lanes.openai.objects import session_object
from realtime.lanes.openai.opening import opening_of
from realtime.protocol import parse_body

MAX_BODY_BYTES: Final = 65_536
"""Settings are kept as long as their secret lives: 64 MiB for the most that may be alive."""


class ExpiresAfter(WireModel):
    """How long a secret is good."""

    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Field(ge=10, le=7200)] = 600


class SecretBody(WireModel):
    """The JSON body."""

    expires_after: ExpiresAfter | None = None
    session: Session | None = None


def client_secrets_route(gateway: Gateway, conversing: Conversing, kept: ClientSecrets) -> Handler:
    """The handler of the route.

    Args:
        gateway: what sessions share.
        conversing: who can answer.
        kept: where the guard looks secrets up.
    """

    @refusing
    async def create(request: Request) -> Response:
        body = await read_text(request, MAX_BODY_BYTES, gateway.config.first_message_timeout_s)
        asked = parse_body(body or "{}", SecretBody)
        lifetime_s = (asked.expires_after or ExpiresAfter()).seconds
        session = (asked.session or Session()).model_dump(exclude_unset=True)
        # As it will be opened: what is wrong with the settings is said to whoever has chosen them.
        session_id = f"sess_{secrets.token_hex(8)}"
        opening = opening_of(None, session, conversing)
        info = SettingsInForce(session_id, gateway, conversing, opening).info()
        key_id = caller_of(request.scope).key_id
        try:
            value = kept.make(session, lifetime_s=lifetime_s, key_id=key_id)
        except TooManySecretsError as error:
            wait_s = error.retry_after_s
            raise RefusedError(
                429, "too_many_client_secrets", str(error), retry_after_s=wait_s
            ) from None
        return JSONResponse(
            {
                "value": value,
                "expires_at": round(datetime.now(UTC).timestamp()) + lifetime_s,
                # It has not begun: when it would end is not known yet.
                "session": session_object(info) | {"expires_at": 0},
            },
            headers={"Cache-Control": "no-store"},
        )

    return create

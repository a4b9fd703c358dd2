"""Webhooks for both sides: settings and secrets of the sender, `verify` for the receiver.

    from stepfast.webhooks import verify

    webhook_id = verify(request.body, request.headers, secrets=["whsec_…"])

It imports no HTTP client and no database driver: a receiver stays small. These are public names only; how a webhook is
signed and sent is in `notifications/webhook.py`.
"""

from __future__ import annotations

from stepfast.errors import SignatureError
from stepfast.notifications.settings import NotificationSettings
from stepfast.notifications.webhook import key_of, new_secret, sign, verify

__all__ = ["NotificationSettings", "SignatureError", "key_of", "new_secret", "sign", "verify"]

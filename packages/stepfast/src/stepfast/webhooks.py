"""Receive webhooks: make a secret, check the signature of what arrives; and the settings for sending them."""

from __future__ import annotations

from stepfast.notifications.settings import NotificationSettings
from stepfast.notifications.webhook import new_secret, sign, verify

__all__ = ["NotificationSettings", "new_secret", "sign", "verify"]

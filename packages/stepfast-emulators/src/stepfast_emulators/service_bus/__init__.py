"""Azure Service Bus without Azure: an emulator that the real SDKs talk to, with a clock to move and faults to order.

AMQP 1.0 on loopback, standard library only. `python -m stepfast_emulators.service_bus` runs it as a process.
"""

from __future__ import annotations

from stepfast_emulators.service_bus.emulator import Content, QueueSettings, ServiceBusEmulator
from stepfast_emulators.service_bus.faults import Moment, busy, cut, refuse, silence

__all__ = ["Content", "Moment", "QueueSettings", "ServiceBusEmulator", "busy", "cut", "refuse", "silence"]

"""`python -m stepfast_emulators.service_bus --queue work-items,lock=2m,max_deliveries=5,duplicates=10m`

Prints the connection string and serves until it is interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys

from stepfast_emulators.service_bus import ServiceBusEmulator
from stepfast_emulators.service_bus.emulator import QUEUE_OPTIONS, parse_queue


def main() -> int:
    options = [f"  {f'{name}={value}':24}{meaning}" for name, (value, meaning) in QUEUE_OPTIONS.items()]
    parser = argparse.ArgumentParser(
        prog="python -m stepfast_emulators.service_bus",
        description="Azure Service Bus on loopback.",
        epilog="\n".join(["options of a queue, such as work,lock=2m,capacity=50:", *options]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, default=0, help="0, the default, is a free one")
    parser.add_argument(
        "--queue",
        action="append",
        default=[],
        metavar="NAME[,OPTION=VALUE]",
        help="a queue to have from the start; may be given several times",
    )
    arguments = parser.parse_args()
    try:
        queues = [parse_queue(text) for text in arguments.queue]
    except ValueError as error:
        parser.error(str(error))
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    with ServiceBusEmulator(port=arguments.port) as broker:
        for name, settings in queues:
            broker.add_queue_with(name, settings)
        print(broker.connection_string, flush=True)  # noqa: T201 - what it was started for
        signal.sigwait(ends)
    return 0


if __name__ == "__main__":
    sys.exit(main())

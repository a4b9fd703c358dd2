"""Show that a card number is nowhere in the database file, and rotate the key.

python -m examples.encryption
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from stepfast import Stepfast

VARIABLE = "STEPFAST_SECRET_KEY"
OLD, NEW = "only for this example: an old key of 40+", "only for this example: the new key of 40+"
CARD = "4111-1111-1111-1111"

os.environ[VARIABLE] = OLD
folder = Path(tempfile.mkdtemp())
app = Stepfast(f"sqlite:///{folder}/work.db", mask=["card"])


@app.job(encrypted=True)
def charge(card: str) -> str:
    """Its arguments and its result are encrypted."""
    return f"charged {card}"


@app.job()
def greet(card: str) -> None:
    """Its arguments are not encrypted, but masked wherever they are shown."""
    raise PermissionError(f"no such customer: {card}")


def bytes_of_the_database() -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


def main() -> int:
    with app.worker():
        job = charge.enqueue(card=CARD)
        result = job.wait(timeout="30s").result
        print(f"the handler answered: {result}")
    found = CARD.encode() in bytes_of_the_database()
    print(f"the card is in the database: {found}")
    print(f"a report shows: {app.operator.job(job.id).payload}")

    # The new key first: it encrypts. The old key still decrypts until all rows use the new one.
    os.environ[VARIABLE] = f"{NEW},{OLD}"
    print(f"rows encrypted anew: {app.operator.rotate_encryption().renewed}")
    os.environ[VARIABLE] = NEW
    needed = [key for key in app.operator.encryption_keys() if key.documents]
    print(f"keys: {len(needed)}")
    still = app.result_of(job.id).result == result

    # Without encryption, masking rules hide it wherever it is shown.
    plain = greet.enqueue(card=CARD)
    detail = app.operator.job(plain.id)
    print(f"another report shows: {detail.payload}")
    app.close()
    return 0 if still and not found and CARD not in repr(detail) else 1


if __name__ == "__main__":
    sys.exit(main())

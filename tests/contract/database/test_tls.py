"""TLS to a real server: a URL that asks for it never ends in plain text, and the doctor says what there is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from devtools.mariadb import MariaDB
from devtools.postgresql import PostgreSQL
from devtools.server import Server
from stepfast.admin.doctor.finding import Finding, Level
from stepfast.admin.doctor.tls import check_tls
from stepfast.database.drivers import open_database
from stepfast.errors import AccessRefusedError
from tests.support.certificates import certificates_for
from tests.support.databases import memory

NAMED = "localhost"  # in the certificate; 127.0.0.1 is not


@pytest.fixture(scope="module")
def with_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A MariaDB server with a certificate, and the file of the authority that signed it."""
    made = certificates_for(NAMED)
    authority = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.write_text(made.authority)
    with Server(MariaDB(tls=(made.server, made.key)), memory()) as server:
        server.create_database("shop")
        yield server, authority


def cipher(url: str) -> str:
    """What the server says about a connection to it: the cipher, or nothing."""
    with closing(open_database(url).connect()) as connection:
        cursor = connection.raw.cursor()
        cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        return str(cursor.fetchone()[1])


def doctor_says(url: str) -> Finding:
    with closing(open_database(url)) as database:
        return check_tls(database)[0]


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize(
    "option",
    [
        "ssl_verify_identity=True",
        "ssl_verify_cert=ON",
        "ssl_mode=REQUIRED",
        "ssl-mode=VERIFY_IDENTITY",
        "sslmode=verify-full",
        "sslmode=require",
        "ssl_mode=verify_ca",
    ],
)
def test_a_server_without_tls_is_refused_where_the_url_asks_for_it(database_url: str, option: str) -> None:
    with pytest.raises(AccessRefusedError, match="SSL is required"):
        open_database(f"{database_url}?{option}").connect()


@pytest.mark.only_on("mariadb")
def test_a_server_without_tls_is_used_where_the_url_does_not_ask_for_it(database_url: str) -> None:
    for options in ("", "?ssl_mode=DISABLED", "?sslmode=prefer", "?ssl_disabled=yes", "?ssl_verify_cert=off"):
        assert not cipher(database_url + options)


@pytest.mark.only_on("mariadb")
@pytest.mark.usefixtures("database_kind")
def test_each_spelling_of_a_mode_reaches_a_server_with_tls(with_tls: tuple[Server, Path]) -> None:
    server, authority = with_tls
    url = server.url("shop").replace("127.0.0.1", NAMED)

    for options in (
        "ssl_mode=REQUIRED",
        "sslmode=require",
        "sslmode=prefer",
        f"ssl_ca={authority}",
        f"ssl_mode=VERIFY_CA&ssl_ca={authority}",
        f"sslmode=verify-full&sslrootcert={authority}",
        f"ssl_verify_identity=True&ssl_ca={authority}",
    ):
        assert cipher(f"{url}?{options}"), options
    assert not cipher(f"{url}?ssl_mode=disabled")


@pytest.mark.only_on("mariadb")
@pytest.mark.usefixtures("database_kind")
def test_a_certificate_of_another_host_or_authority_is_refused(with_tls: tuple[Server, Path]) -> None:
    """Also where no `ssl_ca` is given: the driver alone does not compare names then."""
    server, authority = with_tls
    url = server.url("shop")  # 127.0.0.1, which the certificate does not name

    assert cipher(f"{url}?ssl_mode=VERIFY_CA&ssl_ca={authority}")
    for options in (
        f"ssl_mode=VERIFY_IDENTITY&ssl_ca={authority}",
        "ssl_mode=VERIFY_IDENTITY",
        "ssl_mode=VERIFY_CA",  # the authority is unknown to this machine
        "ssl_verify_cert=1",
    ):
        with pytest.raises(AccessRefusedError, match="certificate verify failed"):
            open_database(f"{url}?{options}").connect()


@pytest.mark.only_on("mariadb")
def test_the_doctor_says_whether_mariadb_is_spoken_to_in_plain_text(
    with_tls: tuple[Server, Path], database_url: str
) -> None:
    server, authority = with_tls
    url = server.url("shop").replace("127.0.0.1", NAMED)

    assert "not encrypted; it does not leave this machine" in doctor_says(database_url).found
    assert "nobody checks whose certificate" in doctor_says(f"{url}?ssl_mode=REQUIRED").found
    checked = doctor_says(f"{url}?ssl_mode=VERIFY_IDENTITY&ssl_ca={authority}")
    assert (checked.level, checked.found) == (
        Level.OK,
        "the connection is encrypted, and the server's certificate is checked",
    )


@pytest.mark.only_on("postgresql")
def test_the_doctor_says_whether_postgresql_is_spoken_to_in_plain_text(
    database_url: str, tmp_path: Path
) -> None:
    made = certificates_for(NAMED)
    authority = tmp_path / "ca.pem"
    authority.write_text(made.authority)
    with Server(PostgreSQL(tls=(made.server, made.key)), memory()) as server:
        url = server.url("postgres").replace("127.0.0.1", NAMED)

        assert "not encrypted; it does not leave this machine" in doctor_says(database_url).found
        assert "nobody checks whose certificate" in doctor_says(f"{url}?sslmode=require").found
        checked = doctor_says(f"{url}?sslmode=verify-full&sslrootcert={authority}")
        assert "the server's certificate is checked" in checked.found
        with pytest.raises(AccessRefusedError, match="certificate"):
            doctor_says(f"{url.replace(NAMED, '127.0.0.1')}?sslmode=verify-full&sslrootcert={authority}")

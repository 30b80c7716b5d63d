"""`fewfed certs`: what it makes works with TLS, Flower and OpenSSH, and nothing private is lost or shown."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fewfed.deploy.security.certificates import Authority, Certificate, hosts
from fewfed.deploy.security.key_check import check
from fewfed.deploy.security.key_folder import KeyFolder, SiteKeys, Wanted
from fewfed.deploy.security.keys import flower_line, read_flower_key, read_signing_key
from fewfed.deploy.security.names import problem_with
from fewfed.deploy.security.roster import parsed_roster, read_roster
from fewfed.errors import ConfigError, RunError
from run_support import called

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

MADE = ("--server", "localhost,127.0.0.1", "--sites", "a,b,c")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs") / "keys"
    KeyFolder(folder).update(Wanted.parsed(["localhost", "127.0.0.1"], ["a", "b", "c"]))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    shutil.copytree(made, tmp_path / "keys")
    return tmp_path / "keys"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_what_is_made_is_for_its_owner_alone_and_each_site_has_its_own(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    folder = tmp_path / "keys"
    previous = os.umask(0)
    try:
        code, out, err = called(capsys, monkeypatch, "certs", str(folder), *MADE)
    finally:
        os.umask(previous)
    assert (code, err) == (0, "")
    assert "made keys of site 'b'" in out
    of_site = {"ca.crt", "node.key", "roster.toml", "signing.key"}
    mine = {"ca.crt", "ca.key", "coordinator.key", "roster.toml", "server.crt", "server.key"}
    assert contents(folder).keys() == mine | {f"sites/{site}/{name}" for site in "abc" for name in of_site}
    for place in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(place.stat().st_mode) == (0o700 if place.is_dir() else 0o600), place
    everything = contents(folder)
    private = [content for name, content in everything.items() if name.endswith(".key")]
    assert len(set(private)) == len(private) == 9
    assert not any("PRIVATE" in text.decode() for name, text in everything.items() if not name.endswith(".key"))
    assert "PRIVATE" not in out


def test_a_site_knows_itself_the_coordinator_and_the_others(made: Path) -> None:
    roster = read_roster(made / "roster.toml")
    for name in "abc":
        keys = SiteKeys.read(made / "sites" / name)
        assert keys.name == name
        assert keys.roster == roster
        assert roster.sites[name].signing == keys.signing.public
        signature = keys.signing.sign(b"x")
        assert roster.keys[name].signed(signature, b"x")
        assert not roster.keys[name].signed(signature, b"y")
    coordinator = KeyFolder(made).coordinator_key()
    assert roster.coordinator.signed(coordinator.sign(b"x"), b"x")
    assert "PRIVATE" not in repr(coordinator)
    assert str(coordinator.public.fingerprint) in repr(coordinator)


def test_flower_takes_the_node_keys(made: Path, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message, verify_signature

    file = made / "sites" / "a" / "node.key"
    loaded = load_ssh_private_key(file.read_bytes(), None)  # As flower-supernode does.
    assert isinstance(loaded, ec.EllipticCurvePrivateKey)
    (tmp_path / "a.pub").write_text(read_roster(made / "roster.toml").sites["a"].node)
    assert try_load_public_key(tmp_path / "a.pub") == public_key_to_bytes(loaded.public_key())
    private, public = read_flower_key(file).pair
    assert verify_signature(public, b"x", sign_message(private, b"x"))


def test_the_fingerprint_is_openssh_s(made: Path) -> None:
    member = read_roster(made / "roster.toml").sites["a"]
    kind, blob = member.signing.line.split()
    by_hand = base64.b64encode(hashlib.sha256(base64.b64decode(blob)).digest()).decode().rstrip("=")
    assert (kind, member.signing.fingerprint) == ("ssh-ed25519", f"SHA256:{by_hand}")
    if shutil.which("ssh-keygen"):
        command = ["ssh-keygen", "-lf", made / "sites" / "a" / "signing.key"]
        assert f"SHA256:{by_hand}" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def shaken(server: Path, authority: Path, host: str) -> str:
    """A TLS handshake on this machine; what the client says of it, empty if it went well."""
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(server / "server.crt", server / "server.key")
    here = ssl.create_default_context(cafile=str(authority))
    here.verify_flags |= ssl.VERIFY_X509_STRICT
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                try:
                    there.wrap_socket(connection, server_side=True).close()
                except (ssl.SSLError, OSError):
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(listening.getsockname()) as plain,
                here.wrap_socket(plain, server_hostname=host),
            ):
                return ""
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        finally:
            thread.join()


def test_tls_works_for_the_named_hosts_and_no_others(made: Path, tmp_path: Path) -> None:
    authority = made / "sites" / "a" / "ca.crt"
    assert shaken(made, authority, "localhost") == ""
    assert shaken(made, authority, "127.0.0.1") == ""
    assert "mismatch" in shaken(made, authority, "example.org")
    assert "mismatch" in shaken(made, authority, "127.0.0.2")
    KeyFolder(tmp_path / "other").update(Wanted.parsed(["localhost"], ["a"]))
    assert shaken(tmp_path / "other", authority, "localhost") != ""


def test_a_server_certificate_is_no_authority(made: Path) -> None:
    pem = (made / "server.crt").read_bytes()
    from cryptography import x509

    found = x509.load_pem_x509_certificate(pem)
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    authority = Certificate.parsed((made / "ca.crt").read_bytes(), "ca.crt")
    assert Certificate(found).is_signed_by(authority)
    assert not authority.is_signed_by(Certificate(found))
    assert not Certificate(found).is_signed_by(Authority.new().certificate)


def test_the_same_again_changes_nothing(folder: Path, capsys: Capture, monkeypatch: Patch) -> None:
    before = contents(folder)
    code, out, _ = called(capsys, monkeypatch, "certs", str(folder), *MADE)
    assert (code, "has all of this already" in out) == (0, True)
    assert contents(folder) == before


def test_a_site_more_keeps_everything_else(folder: Path, capsys: Capture, monkeypatch: Patch) -> None:
    before = contents(folder)
    code, out, _ = called(capsys, monkeypatch, "certs", str(folder), "--sites", "d")
    assert code == 0
    assert "give a, b, c the new" in out
    after = contents(folder)
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"roster.toml", *(f"sites/{site}/roster.toml" for site in "abc")}
    assert set(read_roster(folder / "sites" / "a" / "roster.toml").sites) == set("abcd")


def test_keys_are_replaced_only_on_request(folder: Path, capsys: Capture, monkeypatch: Patch) -> None:
    before = contents(folder)
    assert called(capsys, monkeypatch, "certs", str(folder), "--sites", "a")[0] == 0
    assert contents(folder) == before
    assert called(capsys, monkeypatch, "certs", str(folder), "--sites", "a", "--replace")[0] == 0
    after = contents(folder)
    assert {name for name in before if name.endswith(".key") and after[name] != before[name]} == {
        "sites/a/signing.key",
        "sites/a/node.key",
    }
    assert read_roster(folder / "roster.toml").sites["a"] != parsed_roster(before["roster.toml"], "before").sites["a"]


def test_a_server_certificate_is_renewed_on_request(folder: Path, capsys: Capture, monkeypatch: Patch) -> None:
    before = contents(folder)
    code, _, err = called(capsys, monkeypatch, "certs", str(folder), "--server", "fl.example.org")
    assert (code, "expected the same names, or --renew" in err) == (2, True)
    assert contents(folder) == before
    assert called(capsys, monkeypatch, "certs", str(folder), "--renew", "--days", "10")[0] == 0
    after = contents(folder)
    assert {name for name in before if after[name] != before[name]} == {"server.crt", "server.key"}
    assert shaken(folder, folder / "sites" / "a" / "ca.crt", "localhost") == ""
    code, out, _ = called(capsys, monkeypatch, "certs", "--check", str(folder))
    assert (code, "use --renew" in out) == (0, True)


def test_a_site_that_leaves(folder: Path, capsys: Capture, monkeypatch: Patch) -> None:
    gone = read_roster(folder / "roster.toml").sites["b"]
    assert called(capsys, monkeypatch, "certs", str(folder), "--remove", "b")[0] == 0
    assert set(read_roster(folder / "roster.toml").sites) == {"a", "c"}
    assert not (folder / "sites" / "b").exists()
    assert called(capsys, monkeypatch, "certs", str(folder), "--sites", "b")[0] == 0
    assert read_roster(folder / "roster.toml").sites["b"].signing != gone.signing
    code, _, err = called(capsys, monkeypatch, "certs", str(folder), "--remove", "x")
    assert (code, "site 'x' is not on the roster" in err) == (2, True)


def test_a_site_makes_its_own_keys(folder: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    own = tmp_path / "own"
    assert called(capsys, monkeypatch, "certs", str(own), "--own", "ward-3")[0] == 0
    public = own / "ward-3.public.toml"
    assert "PRIVATE" not in public.read_text()
    assert called(capsys, monkeypatch, "certs", str(folder), "--public", str(public))[0] == 0
    given = folder / "sites" / "ward-3"
    assert {file.name for file in given.iterdir()} == {"ca.crt", "roster.toml"}
    for file in given.iterdir():
        shutil.copy(file, own)
    assert SiteKeys.read(own).name == "ward-3"
    # Nobody takes its place afterwards, and its keys are not overwritten.
    before = contents(folder), contents(own)
    for arguments in ([str(folder), "--sites", "ward-3"], [str(own), "--own", "ward-3"]):
        assert called(capsys, monkeypatch, "certs", *arguments)[0] == 2
    other = tmp_path / "other"
    assert called(capsys, monkeypatch, "certs", str(other), "--own", "ward-3")[0] == 0
    code, _, err = called(capsys, monkeypatch, "certs", str(folder), "--public", str(other / "ward-3.public.toml"))
    assert (code, "has other keys already" in err) == (2, True)
    assert (contents(folder), contents(own)) == before


BAD_NAMES = ["../x", "a/b", "", "a b", ".", "..", ".hidden", "a.", "a..b", "coordinator", "Server", "CA", "nul.txt",
             "-x", "a\nb", "a\x00b", "a\x1b[0m", "x" * 65, "é", "a\\b", "~", "a:b", "*"]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_are_no_plain_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        Wanted.parsed(["localhost"], [name])
    with pytest.raises(ConfigError, match="cannot be used"):
        KeyFolder(tmp_path).site(name)


@pytest.mark.parametrize("name", ["a", "ward-3", "St_Mary.2", "x" * 64, "7", "a-"])
def test_plain_names_are_taken(name: str) -> None:
    assert problem_with(name) == ""


@pytest.mark.parametrize(
    "arguments", [("--sites", "../x"), ("--sites", "a,,b"), ("--sites", "a,A"), ("--sites", "a,a")]
)
def test_bad_names_write_nothing(
    arguments: tuple[str, str], tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    code, _, err = called(capsys, monkeypatch, "certs", str(tmp_path / "k"), "--server", "localhost", *arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "host", ["http://x", "x:443", "*.example.org", "", "a b", "256.1.1.1", "1.2.3", "x" * 64, "-a.org", "a..b", "a\n"]
)
def test_odd_servers_are_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="the server"):
        hosts([host])


def test_servers_by_name_and_address() -> None:
    authority = Authority.new()
    certificate, _ = authority.server(hosts(["FL.example.org", "10.0.0.5", "::1", "[::1]", "fl.example.org"]))
    assert certificate.hosts == ("fl.example.org", "10.0.0.5", "::1")


@pytest.mark.parametrize("arguments", [("--days", "0"), ("--days", "99999"), ("--replace",), ("--own", "a")])
def test_what_makes_no_sense_writes_nothing(
    arguments: tuple[str, ...], tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    code, _, err = called(capsys, monkeypatch, "certs", str(tmp_path / "k"), "--server", "localhost", *arguments)
    assert (code, err.startswith("error: "), list(tmp_path.iterdir())) == (2, True, [])


def test_a_folder_without_a_server_name_is_not_begun(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    code, _, err = called(capsys, monkeypatch, "certs", str(tmp_path / "k"), "--sites", "a")
    assert (code, "the server has no name" in err) == (2, True)
    assert not (tmp_path / "k").exists()


@pytest.mark.parametrize("missing", ["ca.key", "ca.crt", "server.key", "roster.toml", "coordinator.key"])
def test_half_a_folder_is_not_filled_up_by_guessing(missing: str, folder: Path) -> None:
    (folder / missing).unlink()
    before = contents(folder)
    with pytest.raises(RunError, match="expected both or none"):
        KeyFolder(folder).update(Wanted.parsed([], ["d"]))
    assert contents(folder) == before


@pytest.mark.parametrize("lost", ["signing.key", "node.key"])
def test_a_private_key_that_has_lost_the_other_is_not_overwritten(lost: str, folder: Path) -> None:
    (folder / "sites" / "d").mkdir()
    left = "node.key" if lost == "signing.key" else "signing.key"
    shutil.copy(folder / "sites" / "a" / left, folder / "sites" / "d" / left)
    before = contents(folder)
    with pytest.raises(RunError, match="is there already and is not overwritten"):
        KeyFolder(folder).update(Wanted.parsed([], ["d"]))
    assert contents(folder) == before


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (folder / "sites" / "d").symlink_to(outside)
    with pytest.raises(RunError, match="is a link"):
        KeyFolder(folder).update(Wanted.parsed([], ["d"]))
    assert list(outside.iterdir()) == []


def broken(folder: Path) -> list[str]:
    return [f"{finding.what}: {finding.problem}" for finding in check(folder) if finding.problem]


def test_the_check_finds_what_is_wrong(folder: Path, capsys: Capture, monkeypatch: Patch) -> None:
    assert broken(folder) == []
    assert broken(folder / "sites" / "a") == []
    (folder / "sites" / "a" / "signing.key").chmod(0o644)
    shutil.copy(folder / "sites" / "c" / "node.key", folder / "sites" / "b" / "node.key")
    authority = Authority.new()
    (folder / "ca.crt").write_bytes(authority.certificate.pem)
    found = "\n".join(broken(folder))
    assert "others may read it (mode 644)" in found
    assert "is not the one that the roster has for 'b'" in found
    assert "'ca.key' is not the key of 'ca.crt'" in found
    assert "not signed by the authority" in found
    code, out, err = called(capsys, monkeypatch, "certs", "--check", str(folder))
    assert (code, err.count("\n"), "Traceback" in err) == (2, 1, False)
    assert out.count("bad ") == 4


def test_an_expired_certificate_is_found(folder: Path, monkeypatch: Patch) -> None:
    import datetime as when

    from fewfed.deploy.security import key_check

    class Later(when.datetime):
        @classmethod
        def now(cls, tz: when.tzinfo | None = None) -> when.datetime:  # type: ignore[override]
            return when.datetime.now(tz) + when.timedelta(days=900)

    monkeypatch.setattr(key_check, "datetime", Later)
    (found,) = broken(folder)
    assert "'server.crt' expired on" in found


@pytest.mark.parametrize("name", ["ca.crt", "ca.key", "server.crt", "server.key", "coordinator.key", "roster.toml"])
@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff" * 50, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"]
)
def test_damaged_files_are_told_in_a_sentence(name: str, content: bytes, folder: Path) -> None:
    (folder / name).write_bytes(content)
    assert broken(folder)


def test_a_check_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="neither a coordinator's keys nor a site's"):
        check(tmp_path)
    with pytest.raises(RunError, match="is no folder"):
        check(tmp_path / "nowhere")


def test_keys_of_another_kind_are_refused(made: Path, tmp_path: Path) -> None:
    site = made / "sites" / "a"
    with pytest.raises(RunError, match="another kind"):
        read_signing_key(site / "node.key")
    with pytest.raises(RunError, match="another kind"):
        read_flower_key(site / "signing.key")
    with pytest.raises(RunError, match="is not there"):
        read_signing_key(tmp_path / "no.key")
    (tmp_path / "large.key").write_bytes(bytes(1 << 20))
    with pytest.raises(RunError, match="more than 65536 bytes"):
        read_signing_key(tmp_path / "large.key")


ROSTERS = {
    "no TOML": (b"\xff\xfe", "no TOML file"),
    "no coordinator": (b"[sites]", "expected the key 'coordinator'"),
    "no key": (b'coordinator = "hello"', "cannot be read"),
    "a number": (b"coordinator = 5", "no line of OpenSSH's"),
    "deep": (b"coordinator = " + b"[" * 5000, "no TOML file"),
}


@pytest.mark.parametrize("kind", ROSTERS)
def test_odd_rosters_are_told_in_a_sentence(kind: str) -> None:
    content, told = ROSTERS[kind]
    with pytest.raises(ConfigError, match=told):
        parsed_roster(content, "roster.toml")


def test_a_key_in_a_form_that_the_library_does_not_know() -> None:
    """Found by fuzzing: a point of which only half is written."""
    parts = (b"ecdsa-sha2-nistp384", b"nistp384", b"\x02" + bytes(48))
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    with pytest.raises(ConfigError, match="cannot be read"):
        flower_line(f"ecdsa-sha2-nistp384 {base64.b64encode(blob).decode()}")


def test_a_roster_that_was_changed_by_hand(made: Path) -> None:
    text = (made / "roster.toml").read_text()
    roster = parsed_roster(text.encode(), "r")
    a, b = roster.sites["a"], roster.sites["b"]
    same_key = text.replace(b.signing.line, a.signing.line).replace(b.signing.fingerprint, a.signing.fingerprint)
    for changed, told in (
        (text.replace(a.signing.line, b.signing.line), "does not fit its signing key"),
        (same_key, "'a' and 'b' have the same key"),
        (text.replace(b.node, a.node), "'a' and 'b' have the same key"),
        (text.replace('[sites."a"]', '[sites."../a"]'), "cannot be used"),
        (text.replace('[sites."a"]', '[sites."B"]'), "differ in case"),
        (text.replace("node =", "notes ="), "expected the public keys"),
        (text.replace(a.node, a.signing.line), "another kind"),
    ):
        assert changed != text
        with pytest.raises(ConfigError, match=told):
            parsed_roster(changed.encode(), "r")


def test_the_command_line_alone_does_not_need_cryptography() -> None:
    code = "import sys, fewfed, fewfed.cli.app; print(sorted({'cryptography', 'flwr', 'ray'} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_without_cryptography_the_extra_is_named(tmp_path: Path) -> None:
    code = f"import sys; sys.modules['cryptography'] = None; sys.argv = ['fewfed', 'certs', {str(tmp_path / 'k')!r}]\n"
    code += "from fewfed.cli import main; main()"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert told.returncode == 2
    assert told.stderr.startswith("error: keys and signatures need the package 'cryptography'")
    assert "fewfed[flower]" in told.stderr

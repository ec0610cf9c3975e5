"""Proofs that leave the log: made from it, and checked with nothing but the public key."""

from __future__ import annotations

import json
import random
import shutil

import pytest
from click.testing import CliRunner

from poimen_tasks.audit.check import check
from poimen_tasks.audit.keys import Signer, public_key_at
from poimen_tasks.audit.log import SealedLog, read_lines
from poimen_tasks.audit.proof import Kind, Proof, prove_growth, prove_line, prove_lines
from poimen_tasks.cli import main
from poimen_tasks.errors import AuditCorrupt, AuditUnavailable, InvalidArgument
from tests.unit.audit_logs import ORIGIN, build, entries

SIZE, OLD = 1_000, 612


@pytest.fixture(scope="module")
def sealed(tmp_path_factory):
    """A log of a thousand lines in some segments, with its checkpoint at 612 lines beside it."""
    place = tmp_path_factory.mktemp("sealed") / "audit"
    build(place, OLD, segment_bytes=40_000, step=68)
    shutil.copy(place / "checkpoint", place.parent / "older")
    with SealedLog.open(place, origin=ORIGIN, segment_bytes=40_000) as log:
        log.append(entries(OLD, SIZE))
        log.seal()
    return place


@pytest.fixture
def older(sealed):
    """The checkpoint at 612 lines."""
    return sealed.parent / "older"


@pytest.fixture
def key(sealed):
    """The public key."""
    return public_key_at(sealed / "key.pub")


@pytest.fixture
def write(tmp_path):
    """Write a file; returns its path."""

    def run(name, data):
        path = tmp_path / name
        path.write_bytes(data.data if isinstance(data, Proof) else data)
        return path

    return run


@pytest.fixture
def export(sealed, write):
    """Write some lines of the log to a file, in the order given; returns its path."""
    lines = [line for _, line in read_lines(sealed)]

    def run(name, seqs):
        return write(name, b"".join(lines[seq] + b"\n" for seq in seqs))

    return run


def whys(report):
    """What was found, in words."""
    return [problem.why for problem in report.problems]


# ------------------------------------------------------------------------------------------- one line
@pytest.mark.parametrize("seq", [0, 1, 255, 256, 611, 612, 767, 768, 999])
def test_a_line_is_proved_by_a_file_of_its_own(sealed, key, write, seq):
    """A proof of one line is a C2SP tlog-proof that carries it; the public key alone checks it (promise A6)."""
    path = write("it.tlog-proof", prove_line(sealed, seq))
    head = path.read_text().split("\n")
    assert (head[0], head[2]) == ("c2sp.org/tlog-proof@v1", f"index {seq}")
    assert path.read_bytes().endswith(b"\n\n" + (sealed / "checkpoint").read_bytes())
    report = check([path], key=key)
    assert (report.ok, report.lines, report.size) == (True, 1, SIZE)
    assert f'line {seq} reads {{"seq":{seq},' in report.notes[0]


def test_a_proof_may_lead_to_an_older_checkpoint(sealed, key, older, write):
    """Who holds a checkpoint gets proofs that lead to it; one that leads elsewhere is told (promise A6)."""
    assert check([write("it", prove_line(sealed, 5, checkpoint=older))], key=key, checkpoint=older).ok
    assert check([write("it", prove_line(sealed, 611, checkpoint=older))], key=key, checkpoint=older).ok
    report = check([write("it", prove_line(sealed, 5))], key=key, checkpoint=older)
    assert "leads to a checkpoint over 1000 lines, not to the given one over 612" in whys(report)[0]
    with pytest.raises(InvalidArgument, match=r"covers the lines 0 to 611, got 612"):
        prove_line(sealed, 612, checkpoint=older)
    with pytest.raises(InvalidArgument, match=r"covers the lines 0 to 999, got 1000"):
        prove_line(sealed, 1_000)


@pytest.mark.parametrize("kind", list(Kind))
def test_every_bit_of_a_proof_counts(sealed, older, export, write, kind):
    """A proof in which one bit was flipped is refused, whatever it is about; none makes the check fall over."""
    files, options, key = [], {}, public_key_at(sealed / "key.pub")
    if kind is Kind.LINE:
        proof = prove_line(sealed, 700)
    elif kind is Kind.LINES:
        proof, files = prove_lines(sealed, [3, 700]), [export("lines", [3, 700])]
    else:
        proof, options = prove_growth(sealed, older), {"against": [older]}
    assert check([*files, write("good", proof)], key=key, **options).ok
    chance = random.Random(3)
    for bit in chance.sample(range(len(proof.data) * 8), 120):
        wrong = bytearray(proof.data)
        wrong[bit // 8] ^= 1 << bit % 8
        path = write("wrong", bytes(wrong))
        report = check([*files, path], key=key, checkpoint=sealed / "checkpoint", **options)
        assert not report.ok, bit


def test_proofs_are_read_back(sealed, older):
    """A proof that was written is read as it was; what is none is one clear error."""
    for proof in (prove_line(sealed, 9), prove_lines(sealed, [1, 2]), prove_growth(sealed, older)):
        assert Proof.parse(proof.data, where="it") == proof
        assert json.loads(json.dumps(proof.to_dict()))["kind"] == proof.kind
    for wrong in (
        b"",
        b"hello",
        b"c2sp.org/tlog-proof@v1\nindex 1\n\n",
        b"c2sp.org/tlog-proof@v1\nextra !\nindex 1\n\n",
    ):
        with pytest.raises(AuditCorrupt, match="it: it is no proof"):
            Proof.parse(wrong, where="it")


# ------------------------------------------------------------------------------------------- exported lines
def test_all_lines_prove_themselves(sealed, key, older):
    """All lines that a checkpoint covers need no proof, and show that the log grew from an older one (promise A6)."""
    files = sorted((sealed / "segments").iterdir(), reverse=True)
    report = check(files, key=key, checkpoint=sealed / "checkpoint", against=[older])
    assert (report.ok, report.lines, report.against) == (True, SIZE, [OLD])
    report = check(files, key=key, checkpoint=older)
    assert (report.ok, report.lines) == (True, OLD)
    assert report.notes == ["388 lines behind the checkpoint are not covered by it: nothing proves them"]


def test_some_lines_need_a_proof(sealed, key, export):
    """A part of the log alone proves nothing, and that is said; one proof shows all of it at once (promise A6)."""
    chance = random.Random(2)
    for count in (1, 2, 50, 999, 1_000):
        some = chance.sample(range(SIZE), count)
        report = check([export("it", some)], key=key, checkpoint=sealed / "checkpoint")
        assert not report.ok
        proof = sealed.parent / "proof"
        proof.write_bytes(prove_lines(sealed, some).data)
        halves = [export("one", some[: count // 2]), export("two", some[count // 2 :])]
        report = check([*halves, proof], key=key, checkpoint=sealed / "checkpoint")
        assert (report.ok, report.lines) == (True, count), whys(report)


def test_changed_exports_are_found(sealed, key, export, write):
    """An exported line that was changed, left out, added, or exchanged is found (promise A6)."""
    some = [3, 4, 500, 800]
    proof, good = write("proof", prove_lines(sealed, some)), export("good", some)
    lines = good.read_bytes().splitlines(keepends=True)
    forged = lines[1].replace(b'"seq":4', b'"seq":5')
    cases = {
        "does not have its CRC": [lines[0].replace(b"line 3.0", b"line 4.0"), *lines[1:]],
        "about 4 lines, but 3 were given": lines[1:],
        "about 4 lines, but 5 were given": export("more", [*some, 900]).read_bytes().splitlines(keepends=True),
        "do not lead to the signed root": [lines[0], forged, *lines[2:]],
        "two lines 4 that differ": [*lines, lines[0].replace(b'"seq":3', b'"seq":4')],
        "it ends early": [*lines, b'{"seq":9\n'],
    }
    for why, wrong in cases.items():
        report = check([write("wrong", b"".join(wrong)), proof], key=key)
        assert why in whys(report)[0]
    assert check([good, proof], key=key).ok
    everything = export("all", range(SIZE))
    data = everything.read_bytes()
    path = write("changed", data.replace(b'"id":"1764417600005-0"', b'"id":"1764417600005-1"'))
    report = check([path], key=key, checkpoint=sealed / "checkpoint")
    assert "do not lead to the root that the checkpoint signs" in whys(report)[0]


# ------------------------------------------------------------------------------------------- growth
def test_growth_is_proved_without_lines(sealed, key, older, write):
    """A few hashes show that the log begins with what an older checkpoint signs (promise A6)."""
    proof = write("growth", prove_growth(sealed, older))
    report = check([proof], key=key, checkpoint=sealed / "checkpoint", against=[older])
    assert (report.ok, report.against) == (True, [OLD])
    assert "--against" in whys(check([proof], key=key))[0]
    line = write("line", prove_line(sealed, 1))
    report = check([line], key=key, against=[older])
    assert whys(report) == ["nothing given shows that the log grew from it; `poimen audit prove --from` makes a proof"]
    report = check([line, write("same", prove_line(sealed, 1))], key=key, against=[sealed / "checkpoint"])
    assert report.ok


def test_a_log_that_did_not_grow_cannot_be_proved_to(sealed, older, tmp_path, key, write):
    """Another history, or an older copy, gives no proof, and proofs of others do not hold (promise A6)."""
    forged = tmp_path / "forged"
    forged.mkdir()
    for name in ("key", "key.pub"):
        shutil.copy(sealed / name, forged / name)
    with SealedLog.open(forged, origin=ORIGIN) as log:
        log.append(entries(1, 800))
        log.seal()
    with pytest.raises(AuditCorrupt, match=r"the first 612 lines, which .*older signs, and the tiles do not lead"):
        prove_growth(forged, older)
    with pytest.raises(AuditCorrupt, match=r"covers 799 lines, but .* signs 1000: the log was cut or rolled back"):
        prove_growth(forged, sealed / "checkpoint")
    with pytest.raises(AuditCorrupt, match=r"it was cut"):
        prove_line(forged, 3, checkpoint=sealed / "checkpoint")
    good = prove_growth(sealed, older)
    mixed = Proof(good.kind, good.hashes, (forged / "checkpoint").read_bytes(), good.index, good.extra)
    report = check([write("it", mixed)], key=key, against=[older])
    assert "does not show that the log begins with the 612 lines" in whys(report)[0]


# ------------------------------------------------------------------------------------------- keys and files
def test_a_wrong_key(sealed, export):
    """A checkpoint that another key signed is worth nothing, also one of the same name (promise A6)."""
    other = Signer.of(ORIGIN, b"5" * 32).verifier
    report = check([export("it", range(SIZE))], key=other, checkpoint=sealed / "checkpoint")
    assert "did not sign it" in whys(report)[0]
    report = check(
        [export("it", range(SIZE))], key=Signer.of("x", b"5" * 32).verifier, checkpoint=sealed / "checkpoint"
    )
    assert "of the log 'log.example', the key is of 'x'" in whys(report)[0]


def test_files_that_cannot_be_used(sealed, key, export, write, tmp_path):
    """A file that is missing, a directory, empty, or something else is one clear error."""
    with pytest.raises(AuditUnavailable, match="No such file"):
        check([tmp_path / "none"], key=key)
    with pytest.raises(AuditUnavailable, match="Is a directory"):
        check([tmp_path], key=key)
    with pytest.raises(InvalidArgument, match="got none"):
        check([], key=key)
    with pytest.raises(InvalidArgument, match=r"give its file \(--checkpoint\)"):
        check([export("it", [0])], key=key)
    report = check([write("text", b"hello\n")], key=key, checkpoint=sealed / "checkpoint")
    assert "does not begin with a line of an audit log" in whys(report)[0]
    report = check([export("all", range(SIZE)), write("empty", b"")], key=key, checkpoint=sealed / "checkpoint")
    assert (report.ok, report.notes) == (True, [f"{tmp_path / 'empty'} is empty"])
    with pytest.raises(InvalidArgument, match="at least one line"):
        prove_lines(sealed, [])
    with pytest.raises(AuditUnavailable, match="there is no audit log"):
        prove_line(tmp_path, 0)


# ------------------------------------------------------------------------------------------- commands
@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run `poimen audit`, on the log that is named; returns exit code and output."""
    for name in ("POIMEN_APP", "POIMEN_AUDIT_DIR", "POIMEN_DATA_DIR", "POIMEN_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def invoke(*words):
        done = CliRunner().invoke(main, ["audit", *map(str, words)], prog_name="poimen")
        return done.exit_code, done.output

    return invoke


def test_verify_says_what_it_found(run, sealed, older, key, tmp_path):
    """`poimen audit verify` exits 0 and says how many lines hold, or 1 and names the first bad line (promise A6)."""
    code, text = run("verify", "--log", sealed, "--against", older, "--key", key)
    assert (code, "all 1,000 lines of log.example are as they were sealed" in text) == (0, True)
    assert "the key is the log's own" in run("verify", "--log", sealed)[1]
    code, text = run("verify", "--log", sealed, "--json", "--key", sealed / "key.pub")
    assert (code, json.loads(text)["lines"]) == (0, SIZE)
    copy = shutil.copytree(sealed, tmp_path / "copy")
    path = min((copy / "segments").iterdir())
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"line 7.0", b"line 8.0"))
    code, text = run("verify", "--log", copy)
    assert (code, f"{path} line 8 (seq 7): its event does not have its CRC" in text) == (1, True)
    code, text = run("verify", "--log", copy, "--json")
    assert (code, json.loads(text)["problems"][0]["line"]) == (1, 8)


def test_the_log_of_the_settings(run, sealed, monkeypatch):
    """Without --log, the directory is that of POIMEN_AUDIT_DIR."""
    monkeypatch.setenv("POIMEN_AUDIT_DIR", str(sealed))
    assert run("verify")[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["verify", "--log", "none"], 1, "error: none: there is no audit log; `poimen audit seal` begins one"),
        (["verify", "--log", "LOG", "--key", "none"], 2, "'none' is no public key"),
        (["verify", "--log", "LOG", "--key", "a+b+c"], 1, "expected a key like log.example+1234abcd+"),
        (["seal", "--origin", ""], 2, "it is empty"),
        (["prove", "--log", "LOG", "5000"], 1, "error: seq: the checkpoint covers the lines 0 to 999, got 5000"),
        (["prove", "--log", "LOG", "-1"], 2, ""),
        (["prove", "--log", "LOG"], 2, "what to prove?"),
        (["prove", "--log", "LOG", "1", "--from", "LOG/checkpoint"], 2, "what to prove?"),
        (["prove", "--log", "LOG", "--lines", "LOG/key.pub"], 1, "line 1: it is no line of an audit log: it does not"),
        (["check", "--key", "LOG/key.pub"], 2, "Missing argument"),
        (["check", "LOG/key.pub", "--key", "LOG/key.pub"], 1, "does not begin with a line of an audit log"),
    ],
)
def test_misuse_is_one_line(run, sealed, words, code, said):
    """What cannot be done is said on one line, without a trace."""
    done, text = run(*(word.replace("LOG", str(sealed)) for word in words))
    assert (done, said in text, "Traceback" in text) == (code, True, False)


def test_a_copy_without_its_public_key(run, sealed, tmp_path):
    """A copy of a log without `key.pub` is verified with a key that is given, and asks for one where none is."""
    copy, key = tmp_path / "copy", sealed / "key.pub"
    shutil.copytree(sealed, copy, ignore=shutil.ignore_patterns("key", "key.pub"))
    code, text = run("verify", "--log", copy)
    assert (code, "key.pub: the log's public key is not there; give it, or its file, with --key" in text) == (1, True)
    assert run("verify", "--log", copy, "--key", key)[0] == 0


def test_a_file_that_is_no_key(run, sealed, tmp_path):
    """Nothing of what a file holds is shown where it is no key: it may be anything, a password too."""
    (tmp_path / "secrets").write_text("password=hunter2\n")
    for words in (("verify", "--log", sealed), ("check", sealed / "key.pub")):
        code, said = run(*words, "--key", "secrets")
        assert (code, "secrets: expected a key like" in said, "hunter2" in said) == (1, True, False)
        code, said = run(*words, "--key", "pass+word+hunter2")
        assert (code, "expected a key like" in said, "hunter2" in said) == (1, True, False)


def test_a_log_without_lines(run, tmp_path):
    """Of a log without a sealed line nothing can be proved, which is what is said."""
    with SealedLog.open(tmp_path / "log", origin="poimen/none"):
        pass
    code, said = run("prove", "--log", "log", 0)
    assert (code, said) == (1, "error: seq: the log has no sealed line yet, says the checkpoint; got 0\n")


def test_where_a_proof_cannot_go(run, sealed):
    """A file that cannot be written is named as it was given."""
    code, said = run("prove", "--log", sealed, 17, "-o", "none/proof")
    assert (code, said) == (1, "error: none/proof: No such file or directory\n")


def test_prove_and_check(run, sealed, older, export, tmp_path):
    """`poimen audit prove` writes a proof to a file or stdout, and `poimen audit check` needs no log (promise A6)."""
    key = sealed / "key.pub"
    code, text = run("prove", "--log", sealed, 17)
    assert (code, text.split("\n")[0]) == (0, "c2sp.org/tlog-proof@v1")
    assert run("prove", "--log", sealed, 17, "--out", "one")[0] == 0
    assert (tmp_path / "one").read_text() == text
    code, said = run("check", "one", "--key", key)
    assert (code, "1 line proved to be in it" in said) == (0, True)
    some = export("some", [1, 5, 700])
    assert run("prove", "--log", sealed, "--lines", some, "--out", "set")[0] == 0
    assert run("prove", "--log", sealed, "--from", older, "--out", "growth")[0] == 0
    code, said = run("check", some, "set", "growth", "--key", key, "--against", older)
    assert (code, "3 lines proved to be in it; it grew from the older one over 612 lines" in said) == (0, True)
    code, said = run("check", some, "--key", key, "--checkpoint", older, "--json")
    assert (code, json.loads(said)["ok"]) == (1, False)
    code, said = run("prove", "--log", sealed, 17, "--json")
    assert (code, json.loads(said)["seq"]) == (0, 17)


def test_exported_lines_are_proved(run, sealed, tmp_path):
    """`poimen audit export --format lines` writes lines as they were sealed, which a proof goes with (promise A6)."""
    log = shutil.copytree(sealed, tmp_path / "log")
    assert run("rebuild-index", "--log", log)[0] == 0
    code, said = run("export", "--log", log, "--text", "line 70", "--format", "lines", "-o", "some")
    assert (code, "11 lines exported to some" in said) == (0, True)
    numbers = [json.loads(line)["seq"] for line in (tmp_path / "some").read_bytes().splitlines()]
    assert numbers == [70, *range(700, 710)]
    assert run("prove", "--log", log, "--lines", "some", "--out", "proof")[0] == 0
    code, said = run("export", "--log", log, "--task", "none", "--format", "lines", "-o", "empty", "--json")
    assert (code, json.loads(said)) == (0, {"lines": 0, "unsealed": 0, "output": "empty"})
    code, said = run("check", "some", "proof", "--key", sealed / "key.pub", "--checkpoint", sealed / "checkpoint")
    assert (code, "11 lines proved to be in it" in said) == (0, True)

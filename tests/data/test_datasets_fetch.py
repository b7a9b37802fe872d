import hashlib
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from anyparty.data.datasets import downloads
from anyparty.errors import TableError

CONTENT = bytes(range(256)) * 4000  # about 1 MB
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Publisher(BaseHTTPRequestHandler):
    """Serves CONTENT: /whole, /plain (knows no ranges), /breaks (ends after half, the first time), /gone."""

    asked: list[tuple[str, str]]

    def do_GET(self):
        asked = self.headers.get("Range") or ""
        self.asked.append((self.path, asked))
        if self.path == "/gone":
            return self.send_error(404)
        start = int(asked.removeprefix("bytes=").rstrip("-") or 0) if self.path != "/plain" else 0
        if start >= len(CONTENT):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(CONTENT)}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        breaks = self.path == "/breaks" and not start
        self.wfile.write(CONTENT[start : len(CONTENT) // 2 if breaks else len(CONTENT)])
        self.close_connection = True
        return None

    def log_message(self, *_):
        pass


@pytest.fixture
def publisher():
    handler = type("Handler", (Publisher,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        server.url = f"http://127.0.0.1:{server.server_port}"
        server.asked = handler.asked
        yield server
        server.shutdown()
        thread.join()


@contextmanager
def refused(sentence):
    with pytest.raises(TableError, match=sentence) as caught:
        yield caught


def get(publisher, page, to, **settings):
    return downloads.download(publisher.url + page, to, progress=False, timeout_s=10, **({"sha256": SHA256} | settings))


@pytest.mark.parametrize("page", ["/whole", "/plain"])
def test_download(publisher, tmp_path, page):
    to = tmp_path / "a" / "b.bin"
    assert get(publisher, page, to) == to
    assert to.read_bytes() == CONTENT
    assert not to.with_name("b.bin.part").exists()
    get(publisher, page, to)
    assert len(publisher.asked) == 1, "what is there is not fetched again"


def test_an_incomplete_download_is_refused_then_resumed(publisher, tmp_path):
    to = tmp_path / "b.bin"
    with refused(f"ended after {len(CONTENT) // 2} of {len(CONTENT)} bytes; check the connection and run again"):
        get(publisher, "/breaks", to)
    assert not to.exists()
    get(publisher, "/breaks", to)
    assert to.read_bytes() == CONTENT
    assert publisher.asked == [("/breaks", ""), ("/breaks", f"bytes={len(CONTENT) // 2}-")]


def test_a_publisher_that_knows_no_ranges_is_asked_for_all(publisher, tmp_path):
    to = tmp_path / "b.bin"
    to.with_name("b.bin.part").write_bytes(CONTENT[:1000])
    get(publisher, "/plain", to)
    assert to.read_bytes() == CONTENT


@pytest.mark.parametrize("part", [CONTENT, CONTENT + b"more"])
def test_a_part_that_is_whole_or_too_long(publisher, tmp_path, part):
    to = tmp_path / "b.bin"
    to.with_name("b.bin.part").write_bytes(part)
    get(publisher, "/whole", to)
    assert to.read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_the_file_thrown_away(publisher, tmp_path):
    to = tmp_path / "b.bin"
    with refused(f"its sha256 is {SHA256}, expected 00ff; the download was deleted.*verify=False"):
        get(publisher, "/whole", to, sha256="00ff")
    assert [file.name for file in tmp_path.iterdir()] == ["b.bin.part.lock"]
    assert get(publisher, "/whole", to, sha256="00ff", verify=False).read_bytes() == CONTENT


def test_a_resumed_file_that_is_another_is_refused(publisher, tmp_path):
    to = tmp_path / "b.bin"
    to.with_name("b.bin.part").write_bytes(b"another file")
    with refused("is not the expected file"):
        get(publisher, "/whole", to)
    assert get(publisher, "/whole", to).read_bytes() == CONTENT


def test_errors_are_sentences(publisher, tmp_path):
    with refused("cannot download .*/gone: Not Found; .* or download it by other means and save it as .*b.bin"):
        get(publisher, "/gone", tmp_path / "b.bin")
    with refused("begins with https://"):
        downloads.download("file:///etc/hosts", tmp_path / "b.bin")


def test_no_connection(tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), Publisher) as server:
        port = server.server_port
    with refused(r"cannot download http://127.0.0.1:\d+/x: .*refused.*check the connection"):
        downloads.download(f"http://127.0.0.1:{port}/x", tmp_path / "b.bin", progress=False, timeout_s=5)


def test_several_at_once_fetch_it_once(publisher, tmp_path):
    to = tmp_path / "b.bin"
    threads = [threading.Thread(target=get, args=(publisher, "/whole", to)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert to.read_bytes() == CONTENT
    assert len(publisher.asked) == 1


def test_a_bar_is_shown(publisher, tmp_path, capsys):
    downloads.download(publisher.url + "/whole", tmp_path / "b.bin", sha256=SHA256)
    assert "b.bin" in capsys.readouterr().err

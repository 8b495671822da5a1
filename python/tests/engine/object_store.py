"""What vLLM's own obj tier needs here: a store of objects, and what NIXL's OBJ plug-in links to."""

from __future__ import annotations

import contextlib
import ctypes
import http.server
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


class ObjectStore(http.server.ThreadingHTTPServer):
    """A bucket of S3 in memory, as far as the plug-in speaks it. Signatures and checksums are not looked at."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.refuses_puts = False
        self.refuses_all = False
        self.puts = 0
        self.on_get: Callable[[], None] = lambda: None
        self._may_answer = threading.Event()
        self._may_answer.set()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def config(self) -> dict[str, str]:
        """The tier's store_config."""
        return {
            "bucket": "chunks",
            "endpoint_override": f"http://127.0.0.1:{self.server_port}",
            "access_key": "some",
            "secret_key": "some",
            "region": "us-east-1",
        }

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Meanwhile no object is given out."""
        self._may_answer.clear()
        try:
            yield
        finally:
            self._may_answer.set()

    def await_leave(self) -> None:
        self.on_get()
        self._may_answer.wait()

    def __exit__(self, *args: object) -> None:
        self.shutdown()
        super().__exit__(*args)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ObjectStore

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        if self.server.refuses_all:
            self._answer(403)
            return
        found = self.server.objects.get(self.path)
        self._answer(404) if found is None else self._answer(200, length=len(found))

    def do_GET(self) -> None:
        self.server.await_leave()
        found = self.server.objects.get(self.path)
        if found is None:
            self._answer(404)
        elif part := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            begin, end = int(part[1]), min(int(part[2]) + 1, len(found))
            self._answer(206, found[begin:end], Content_Range=f"bytes {begin}-{end - 1}/{len(found)}")
        else:
            self._answer(200, found)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"]))
        body = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def do_PUT(self) -> None:
        body = self._body()
        self.server.puts += 1
        if self.server.refuses_puts:
            self._answer(403)
            return
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            body = _without_frames(body)
        self.server.objects[self.path] = body
        self._answer(200, ETag='"some"')


def _without_frames(body: bytes) -> bytes:
    """Each piece has its size before it, in hexadecimal; the last has none, and what follows it is not data."""
    data, at = b"", 0
    while True:
        line = body.index(b"\r\n", at)
        size = int(body[at:line].partition(b";")[0], 16)
        if size == 0:
            return data
        data += body[line + 2 : line + 2 + size]
        at = line + 2 + size + 2


_CUOBJCLIENT = "libcuobjclient.so.1"
# What the plug-in wants of it, for S3 over RDMA, which nobody asks for here.
_SYMBOLS = (
    "_ZN11cuObjClient11isConnectedEv",
    "_ZN11cuObjClient21cuMemObjGetDescriptorEPvm",
    "_ZN11cuObjClient21cuMemObjPutDescriptorEPv",
    "_ZN11cuObjClient6getCtxEPKv",
    "_ZN11cuObjClient8cuObjGetEPvS0_mll",
    "_ZN11cuObjClient8cuObjPutEPvS0_mll",
    "_ZN11cuObjClientC1ER10CUObjIOOps15cuObjProto_enum",
    "_ZN11cuObjClientD1Ev",
)


def plugin_libraries(directory: Path) -> Path | None:
    """Where a library lies that NIXL's wheel for CUDA 13 leaves to NVIDIA's cuObject: a stand-in that ends whoever calls
    it. None if the machine has the real one."""
    try:
        ctypes.CDLL(_CUOBJCLIENT)
        return None
    except OSError:
        pass
    source = directory / "stand_in.c"
    source.write_text("void abort(void);\n" + "".join(f"void {name}(void) {{ abort(); }}\n" for name in _SYMBOLS))
    command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{_CUOBJCLIENT}", str(source), "-o", str(directory / _CUOBJCLIENT)]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode != 0:
        pytest.fail(f"no stand-in for {_CUOBJCLIENT}: {made.stderr}")
    return directory

"""A stand-in for wandb's server, on loopback: the GraphQL questions that its public API asks about one run.

It serves a history as the real one does: the exported part as parquet files, the rest live. It counts what is asked,
and answers with faults where a test says so.
"""

from __future__ import annotations

import io
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

KEY = "0123456789abcdef" * 2 + "deadbeef"


@dataclass
class ServedRun:
    """One run of the server; `rows` have `_step`. The first `exported` of them come as parquet, the rest live."""

    rows: list[dict[str, Any]]
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    state: str = "finished"
    exported: int = 0
    heartbeat: str = "2026-01-01T01:00:00"


@dataclass
class Asked:
    """One question: the GraphQL operation (or the path of a file), and its variables."""

    operation: str
    variables: dict[str, Any]


class WandbServer:
    """The server; `with` starts and ends it.

    `fault` is given a question and how often its operation was asked before; it returns an HTTP status, or None.
    """

    def __init__(self, runs, fault=None):
        self.runs = dict(runs)
        self.fault = fault
        self.asked = []
        self.keys = set()
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                found = re.search(r"(?:query|mutation)\s+(\w+)", body["query"])
                asked = Asked(found.group(1) if found else "?", body.get("variables") or {})
                outer.keys.add(self.headers.get("Authorization", ""))
                self._answer(asked, lambda: outer.graphql(asked))

            def do_GET(self):
                asked = Asked(self.path, {})
                self._answer(asked, lambda: outer.file(self.path))

            def do_HEAD(self):
                self.do_GET()

            def _answer(self, asked, content):
                status = outer.note(asked)
                found = content() if status is None else b'{"errors": [{"message": "no"}]}'
                if status == 0:  # die: the connection is cut in the middle of an answer
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{")
                    self.close_connection = True
                    return
                first, total = 0, len(found)
                if asked_range := re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
                    first = int(asked_range.group(1))
                    found = found[first : int(asked_range.group(2)) + 1 if asked_range.group(2) else None]
                self.send_response(status or (206 if asked_range else 200))
                self.send_header(
                    "Content-Type", "application/json" if self.command == "POST" else "binary/octet-stream"
                )
                self.send_header("Content-Length", str(len(found)))
                if asked_range:
                    self.send_header("Content-Range", f"bytes {first}-{first + len(found) - 1}/{total}")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(found)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def note(self, asked):
        with self._lock:
            before = sum(one.operation == asked.operation for one in self.asked)
            self.asked.append(asked)
        return self.fault(asked, before) if self.fault else None

    def graphql(self, asked):
        return json.dumps(self._graphql(asked)).encode()

    def _graphql(self, asked):
        v = asked.variables
        if asked.operation == "Viewer":
            me = {"id": "1", "entity": "me", "username": "me", "email": "me@example.com", "flags": "{}"}
            return {"data": {"viewer": {**me, "teams": {"edges": []}}}}
        if asked.operation == "ServerFeaturesQuery":
            return {"data": {"serverInfo": {"features": []}}}
        name = f"{v.get('entity')}/{v.get('project')}/{v.get('name') or v.get('run') or v.get('runName')}"
        run = self.runs.get(name)
        return {"data": {"project": run and {"internalId": "7", "run": self._about(asked, name, run)}}}

    def _about(self, asked, name, run):
        """The answer about one run, and nothing for what samples a history."""
        v = asked.variables
        if asked.operation == "Run":
            none = dict.fromkeys(("sweepName", "group", "jobType", "description", "notes"))
            times = {"createdAt": "2026-01-01T00:00:00", "heartbeatAt": run.heartbeat}
            return {
                "id": "UnVuOg==", "projectId": "7", "name": name.split("/")[-1], "displayName": "shown", "tags": [],
                "state": run.state, "config": json.dumps(run.config), "commit": "abc123", "readOnly": False,
                "systemMetrics": "{}", "summaryMetrics": json.dumps(run.summary), "historyLineCount": len(run.rows),
                "user": {"name": "me", "username": "me"}, "historyKeys": self._keys(run), **none, **times,
            }  # fmt: skip
        if asked.operation == "RunHistoryKeys":
            return {"historyKeys": self._keys(run)}
        if asked.operation == "RunParquetHistory":
            urls = [f"{self.url}/parquet/{name}"] if run.exported else []
            return {"parquetHistory": {"parquetUrls": urls, "liveData": run.rows[run.exported :]}}
        if asked.operation == "HistoryPage":
            wanted = [r for r in run.rows if v["minStep"] <= r["_step"] < v["maxStep"]]
            # The real one samples where more rows lie in the range than `samples` asks for.
            return {"history": [json.dumps(r) for r in wanted[: v["pageSize"]]]}
        if asked.operation == "RunFiles":
            found = [f for f in run.files if not v.get("fileNames") or f in v["fileNames"]]
            edges = [{"node": self._file(name, f, run.files[f]), "cursor": ""} for f in found]
            page = {"endCursor": None, "hasNextPage": False}
            return {"fileCount": len(found), "files": {"edges": edges, "pageInfo": page}}
        raise AssertionError(f"the stand-in has no answer to {asked}")

    def _file(self, name, file, content):
        place = dict.fromkeys(("url", "directUrl"), f"{self.url}/files/{name}/{file}")
        return {
            "id": file,
            "name": file,
            "sizeBytes": str(len(content)),
            "mimetype": "",
            "updatedAt": None,
            "md5": "",
        } | place

    def _keys(self, run):
        return {"lastStep": max((r["_step"] for r in run.rows), default=-1), "sets": [], "keys": {}}

    def file(self, path):
        _, kind, rest = path.split("?")[0].split("/", 2)
        if kind == "parquet":
            run = self.runs[rest]
            rows = run.rows[: run.exported]
            names = sorted({name for row in rows for name in row})
            buffer = io.BytesIO()
            pq.write_table(pa.Table.from_pylist([{n: row.get(n) for n in names} for row in rows]), buffer)
            return buffer.getvalue()
        name, _, file = rest.rpartition("/")
        return self.runs[name].files[file]

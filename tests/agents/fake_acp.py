#!/usr/bin/python3
# mypy: ignore-errors
"""A small agent that speaks ACP: it asks a model over the Messages API and runs commands. FAKE_MODE makes it misbehave.

It keeps its conversations in AGENT_HOME, and can load, resume and fork them.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
import uuid
from pathlib import Path

MODE = os.environ.get("FAKE_MODE", "")
HOME = Path(os.environ.get("AGENT_HOME", "/tmp"))
WRITING = threading.Lock()
ANSWERS = {}
"""The client's answers to our requests, by id. Our ids are numbers from 1, as are those of some clients."""
ARRIVED = threading.Condition()


def send(**message):
    with WRITING:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def ask(method, **params):
    with ARRIVED:
        id = len(ANSWERS) + 1
        ANSWERS[id] = None
    send(id=id, method=method, params=params)
    with ARRIVED:
        ARRIVED.wait_for(lambda: ANSWERS[id] is not None)
    return ANSWERS[id]


class Session:
    def __init__(self, id, cwd):
        self.id, self.cwd = id, cwd
        self.history = json.loads(self.file.read_text()) if self.file.exists() else []
        self.cancelled, self.command = False, None

    @property
    def file(self):
        return HOME / f"{self.id}.json"

    def add(self, role, content):
        self.history.append({"role": role, "content": content})
        self.file.write_text(json.dumps(self.history))

    def update(self, update, /, **members):
        send(method="session/update", params={"sessionId": self.id, "update": {"sessionUpdate": update, **members}})

    def cancel(self):
        self.cancelled = True
        if self.command is not None:
            os.killpg(self.command.pid, signal.SIGKILL)

    def prompt(self, text):
        """Ask the model and run its commands until it says something without a command."""
        self.cancelled = False
        self.add("user", [{"type": "text", "text": text}])
        while True:
            blocks = self.ask_model()
            self.add("assistant", blocks)
            calls = [block for block in blocks if block["type"] == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": each["id"], "content": self.call(each)} for each in calls]
            if self.cancelled:
                self.add("user", [*results, {"type": "text", "text": "[Request interrupted by the user]"}])
                return "cancelled"
            if not calls:
                return "end_turn"
            self.add("user", results)

    def ask_model(self):
        said = [message for message in self.history if message["content"]]
        body = {"model": "m", "stream": True, "messages": said, "tools": [{"name": "Bash"}]}
        headers = {"content-type": "application/json", "x-api-key": "none", "x-session-id": self.id}
        url = os.environ["BASE_URL"] + "/messages"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310 (the gateway)
        blocks = []
        with urllib.request.urlopen(request) as response:  # noqa: S310
            for line in response:
                if line.startswith(b"data:"):
                    self.read_event(json.loads(line[5:]), blocks)
        for block in blocks:
            if block["type"] == "tool_use":
                block["input"] = json.loads(block.pop("json"))
        return [block for block in blocks if block["type"] != "thinking"]

    def read_event(self, event, blocks):
        if event["type"] == "content_block_start":
            blocks.append(
                {**event["content_block"], "json": ""} if "input" in event["content_block"] else event["content_block"]
            )
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "text_delta":
                blocks[-1]["text"] += delta["text"]
                self.update("agent_message_chunk", content={"type": "text", "text": delta["text"]})
            elif delta["type"] == "thinking_delta":
                self.update("agent_thought_chunk", content={"type": "text", "text": delta["thinking"]})
            elif delta["type"] == "input_json_delta":
                blocks[-1]["json"] += delta["partial_json"]

    def call(self, block):
        id, given = block["id"], block["input"]
        if block["name"] != "Bash":
            path = f"{self.cwd}/{given['path']}"
            about = {"toolCallId": id, "title": block["name"], "kind": "edit", "locations": [{"path": path}]}
        else:
            about = {"toolCallId": id, "title": given["command"], "kind": "execute", "rawInput": given}
        self.update("tool_call", **about, status="pending")
        options = [{"optionId": "yes", "kind": "allow_once"}, {"optionId": "no", "kind": "reject_once"}]
        answer = ask("session/request_permission", sessionId=self.id, toolCall=about, options=options)
        if answer["result"]["outcome"].get("optionId") != "yes":
            self.update("tool_call_update", toolCallId=id, status="failed")
            return "the user said no"
        self.update("tool_call_update", toolCallId=id, status="in_progress")
        if block["name"] != "Bash":
            Path(path).write_text(given["text"])
            self.update("tool_call_update", toolCallId=id, status="completed")
            return "written"
        self.command = subprocess.Popen(
            ["sh", "-c", given["command"]],
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        output = self.command.communicate()[0].decode("utf-8", "replace")
        code, self.command = self.command.returncode, None
        raw = {"output": output, "metadata": {"exit": code if code >= 0 else None}}
        self.update("tool_call_update", toolCallId=id, status="completed", rawOutput=raw)
        return output


SESSIONS = {}


def misbehave(session):
    if MODE == "garbage":
        with WRITING:
            sys.stdout.write('WARN not a message \x1b[31m\n{"half": \n[1,2]\n\n{"jsonrpc": "1.0", "method": "x"}\n')
            sys.stdout.flush()
            sys.stdout.buffer.write(b"\xff\xfe\n" + b"x" * 20_000_000 + b"\n")
            sys.stdout.buffer.flush()
        session.update("holograph", secret="kept")
        session.update("tool_call", toolCallId=7, title=[], rawInput="x")
        send(id="stray", result={})
        send(method="session/update", params=[])
    elif MODE == "crash":
        about = {"title": "make", "kind": "execute", "rawInput": {"command": "make"}, "status": "in_progress"}
        session.update("tool_call", toolCallId="t1", **about)
        sys.stderr.write("out of luck\n")
        sys.stderr.flush()
        os._exit(9)
    elif MODE == "asks":
        methods = ("fs/write_text_file", "fs/read_text_file", "terminal/create", "read_minds")
        codes = [ask(method, path="/etc/passwd")["error"]["code"] for method in methods]
        session.update("agent_message_chunk", content={"type": "text", "text": json.dumps(codes)})
        return "end_turn"
    elif MODE.startswith("stop:"):
        return MODE[5:]
    return None


def prompt(id, session, text):
    try:
        reason = misbehave(session) or session.prompt(text)
        send(id=id, result={"stopReason": reason})
    except Exception as error:
        if MODE.startswith("conceals"):
            session.update("agent_message_chunk", content={"type": "text", "text": "the model failed"})
            send(id=id, result={"stopReason": "end_turn"})
            return
        send(id=id, error={"code": -32603, "message": f"{type(error).__name__}: {error}"})


def serve(id, method, params):
    if method == "initialize":
        once = HOME / "hung"
        if MODE == "hang" or (MODE == "hang-once" and not once.exists()):
            once.touch()
            return None
        advertised = {"loadSession": True, "sessionCapabilities": {"fork": {}, "resume": {}}}
        if MODE in ("load-only", "refuses-load"):
            advertised = {"loadSession": True}
        elif MODE == "plain":
            advertised = {}
        version = int(MODE[8:]) if MODE.startswith("version:") else 1
        return {"protocolVersion": version, "agentCapabilities": advertised, "agentInfo": {"version": "9.8.7"}}
    if method in ("session/new", "session/fork"):
        new = Session(str(uuid.uuid4()), params["cwd"])
        if method == "session/fork":
            new.history = Session(params["sessionId"], params["cwd"]).history
            new.file.write_text(json.dumps(new.history))
            replay(new)
        SESSIONS[new.id] = new
        return {"sessionId": new.id}
    if method in ("session/load", "session/resume"):
        if MODE == "refuses-load":
            send(id=id, error={"code": -32602, "message": "no such session"})
            return None
        old = SESSIONS[params["sessionId"]] = Session(params["sessionId"], params["cwd"])
        if method == "session/load":
            replay(old)
        return {}
    if method == "session/set_mode":
        return {}
    raise ValueError(method)


def replay(session):
    for message in session.history:
        for block in message["content"]:
            kind = "user_message_chunk" if message["role"] == "user" else "agent_message_chunk"
            if block["type"] == "text":
                session.update(kind, content={"type": "text", "text": block["text"]})
            elif block["type"] == "tool_use":
                session.update("tool_call", toolCallId=block["id"], title="old", status="completed")


def main():
    for line in sys.stdin:
        message = json.loads(line)
        id, method, params = message.get("id"), message.get("method"), message.get("params")
        if method is None:
            with ARRIVED:
                ANSWERS[id] = message
                ARRIVED.notify_all()
        elif method == "session/cancel":
            SESSIONS[params["sessionId"]].cancel()
        elif method == "session/prompt":
            words = (id, SESSIONS[params["sessionId"]], params["prompt"][0]["text"])
            threading.Thread(target=prompt, args=words, daemon=True).start()
        else:
            result = serve(id, method, params)
            if result is not None:
                send(id=id, result=result)
    if MODE == "conceals-and-stays":  # as codex-acp
        threading.Event().wait()


main()

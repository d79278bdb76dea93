#!/usr/bin/python3
# mypy: ignore-errors
"""A fake app-server that misbehaves as FAKE_MODE specifies."""

import json
import os
import sys
import time
import tomllib
import urllib.request

RUN = os.urandom(4).hex()
MODE = os.environ.get("FAKE_MODE", "")
VERSION = os.environ.get("FAKE_VERSION", "0.166.0")
METHODS = {
    "ClientRequest": [
        *("initialize", "thread/start", "thread/resume", "thread/fork", "turn/start", "turn/steer", "turn/interrupt"),
    ],
    "ServerNotification": [
        *("thread/started", "turn/started", "turn/completed", "item/started", "item/completed"),
        *("item/agentMessage/delta", "thread/tokenUsage/updated", "error"),
    ],
    "ServerRequest": ["item/commandExecution/requestApproval", "item/fileChange/requestApproval"],
}


def say(**message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def model_url():
    with open(os.environ["CODEX_HOME"] + "/config.toml", "rb") as file:
        return tomllib.load(file)["model_providers"]["proofbox"]["base_url"]


def ask_model(thread, turn):
    headers = {
        "content-type": "application/json",
        "thread-id": thread,
        "x-codex-turn-metadata": json.dumps({"turn_id": turn}),
    }
    body = json.dumps({"input": [{"role": "user", "content": "[[usage input=10 output=5]] [[say x]]"}]}).encode()
    request = urllib.request.Request(model_url() + "/responses", body, headers)  # noqa: S310
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        answer.read()


def ask_and_report(thread, turn):
    ask_model(thread, turn)
    used = {"inputTokens": 10, "outputTokens": 5, "cachedInputTokens": 400, "reasoningOutputTokens": 10}
    usage = {"total": used, "last": used}
    say(method="thread/tokenUsage/updated", params={"threadId": thread, "turnId": turn, "tokenUsage": usage})


def end(thread, turn, status="completed", error=None):
    ended = {"id": turn, "status": status, "error": error, "items": []}
    say(method="turn/completed", params={"threadId": thread, "turn": ended})


def play(thread, turn):
    if MODE != "early":
        say(method="turn/started", params={"threadId": thread, "turn": {"id": turn}})
    place = {"threadId": thread, "turnId": turn}
    if MODE == "garbage":
        sys.stdout.write('WARN this is not a message \x1b[31m\n{"half": \n[1,2]\n\n')
        sys.stdout.buffer.write(b"\xff\xfe\n")
        sys.stdout.write("x" * 50_000_000 + "\n")
        say(method="brand/new", params={**place, "secret": "kept"})
        say(method="item/completed", params={**place, "item": {"type": "holograph", "id": "h1"}})
    if MODE == "flood":
        for number in range(20_000):
            say(method="item/agentMessage/delta", params={**place, "itemId": "m", "delta": str(number)})
    if MODE in ("honest", "lie"):
        ask_model(thread, turn)
        factor = 3 if MODE == "lie" else 1
        used = {"inputTokens": 10 * factor, "outputTokens": 5, "cachedInputTokens": 400, "reasoningOutputTokens": 10}
        say(method="thread/tokenUsage/updated", params={**place, "tokenUsage": {"total": used, "last": used}})
    if MODE in ("sub-agent", "direct", "spoof", "late-spoof"):
        ask_and_report(thread, turn)
    if MODE == "sub-agent":
        own, inner = f"sub-{RUN}", f"sub-turn-{RUN}"
        say(method="turn/started", params={"threadId": own, "turn": {"id": inner}})
        ask_and_report(own, inner)
        end(own, inner)
    if MODE == "direct":
        ask_model("", "")
    if MODE == "spoof":
        ask_model(thread, turn)
    if MODE == "late-spoof":
        end(thread, turn)
        ask_model(thread, turn)
        return
    if MODE == "twice":
        item = {"type": "commandExecution", "id": "c1", "command": "ls", "status": "completed", "exitCode": 0}
        for _ in range(2):
            say(method="item/completed", params={**place, "item": item})
    if MODE == "stray":
        item = {"type": "commandExecution", "id": "c1", "command": "ls", "status": "completed", "exitCode": 0}
        say(method="item/completed", params={"threadId": "thread-stray", "turnId": "turn-stray", "item": item})
    if MODE == "die":
        item = {"type": "commandExecution", "id": "c1", "command": "/bin/sh -c 'make it'", "status": "inProgress"}
        say(method="item/started", params={**place, "item": item})
        sys.stderr.write("panicked at the disco\n")
        sys.stderr.flush()
        os._exit(7)
    if MODE == "burrow":
        os.chdir(os.environ["CODEX_HOME"])
        os.mkdir("closed")
        for _ in range(1200):
            os.mkdir("d")
            os.chdir("d")
        os.chmod(os.environ["CODEX_HOME"] + "/closed", 0)
    if MODE == "hang":
        time.sleep(3600)
    if MODE == "odd":
        end(thread, turn, "wonderful")
        return
    if MODE == "ask":
        for id, method in enumerate(
            ("item/tool/requestUserInput", "item/tool/call", "no/such", "mcpServer/elicitation/request")
        ):
            say(id=id, method=method, params={**place, "itemId": "i", "tool": "t"})
            reply = json.loads(sys.stdin.readline())
            say(method="warning", params={"message": json.dumps(reply)})
    end(thread, turn)


def main():
    if sys.argv[1:] == ["--version"]:
        print(f"codex-cli {VERSION}")
        return
    if "generate-json-schema" in sys.argv:
        for kind, methods in METHODS.items():
            kept = [m for m in methods if not (os.path.exists(__file__ + ".old") and m.startswith(("turn/", "item/")))]
            document = {"oneOf": [{"properties": {"method": {"enum": [method]}}} for method in kept]}
            with open(f"{sys.argv[-1]}/{kind}.json", "w") as file:
                json.dump(document, file)
        return
    if MODE == "exit":
        sys.stderr.write("no such luck\n")
        sys.exit(3)
    refusals = 0
    turns = 0
    for line in sys.stdin:
        message = json.loads(line)
        method, id, params = message.get("method"), message.get("id"), message.get("params") or {}
        if method == "initialize":
            if MODE == "mute":
                continue
            agent = "0.1.0" if MODE == "old" else VERSION
            say(id=id, result={"userAgent": f"proofbox/{agent} (Fake)"})
        elif method in ("thread/start", "thread/resume", "thread/fork"):
            say(id=id, result={"thread": {"id": params.get("threadId", f"thread-{RUN}")}})
        elif method == "turn/start":
            if MODE in ("busy", "busy-once") and refusals < (1 if MODE == "busy-once" else 99):
                refusals += 1
                say(id=id, error={"code": -32001, "message": "Server overloaded; retry later."})
                continue
            if MODE == "die-asked" and not os.path.exists(os.environ["CODEX_HOME"] + "/died"):
                open(os.environ["CODEX_HOME"] + "/died", "w").close()
                os._exit(7)
            if MODE == "unanswered":
                continue
            turns += 1
            turn = f"turn-{RUN}-{1 if MODE == 'reused' else turns}"
            if MODE == "early":
                say(method="turn/started", params={"threadId": params["threadId"], "turn": {"id": turn}})
                say(id="handled", method="item/tool/call", params={})
                sys.stdin.readline()  # it is answered after the notification was handled
            say(id=id, result={"turn": {"id": turn}} if MODE != "shapeless" else [1])
            play(params["threadId"], turn)
        elif id is not None:
            say(id=id, error={"code": -32601, "message": "no such method"})


if __name__ == "__main__":
    main()

#!/usr/bin/python3
# mypy: ignore-errors
"""A fake Claude Code that misbehaves as FAKE_MODE specifies."""

import json
import os
import subprocess
import sys
import time

MODE = os.environ.get("FAKE_MODE", "")


def say(**message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def result(tokens=0):
    used = {"model": {"inputTokens": tokens}} if tokens else {}
    say(type="result", subtype="success", is_error=False, usage={}, modelUsage=used, result="")


def text(words, id):
    content = [{"type": "text", "text": words}]
    say(type="assistant", message={"role": "assistant", "content": content}, parent_tool_use_id=None, uuid=id)


def play(message):
    if MODE == "late":  # the end of something that it did on its own
        text("on its own", "11111111-1111-4111-8111-111111111111")
        result()
    say(type="command_lifecycle", state="started", command_uuid=message["uuid"])
    if MODE == "garbage":
        sys.stdout.write('WARN this is not a message \x1b[31m\n{"half": \n[1,2]\n\n{"no": "type"}\n')
        sys.stdout.flush()
        sys.stdout.buffer.write(b"\xff\xfe\n" + b"x" * 20_000_000 + b"\n")
        sys.stdout.buffer.flush()
        say(type="holograph", secret="kept")
        say(type="assistant", message={"content": [{"type": "tool_use", "id": 1, "name": [], "input": 7}]})
        say(type="user", message={"content": [{"type": "tool_result", "tool_use_id": "never-began"}]})
        say(type="control_request", request_id="x", request={"subtype": "read_minds"})
    if MODE == "crash":
        call = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "make"}}
        say(type="assistant", message={"content": [call]}, parent_tool_use_id=None)
        sys.stderr.write("out of luck\n")
        sys.stderr.flush()
        os._exit(9)
    text("the answer", "22222222-2222-4222-8222-222222222222")
    if MODE.startswith("count"):  # its count differs from the gateway's
        kinds = {"count, sub-agent": ["local_agent"], "count, command": ["local_bash"]}.get(MODE, [])
        say(type="system", subtype="background_tasks_changed", tasks=[{"task_type": kind} for kind in kinds])
    result(tokens=70 if MODE.startswith("count") else 0)


def main():
    if "--version" in sys.argv:
        print("2.1.325 (Claude Code)")
        return
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "control_request":
            once = os.path.join(os.environ["CLAUDE_CONFIG_DIR"], "hung")
            if MODE == "hang" or (MODE == "hang-once" and not os.path.exists(once)):
                open(once, "w").close()
                time.sleep(600)
            answer = {"subtype": "success", "request_id": message["request_id"], "response": {}}
            say(type="control_response", response=answer)
        elif message["type"] == "user":
            play(message)
    if MODE == "no-exit":
        subprocess.run(["sleep", "600"])


main()

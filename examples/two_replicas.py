"""Two replicas, one shared directory: A computes a prompt and publishes it, B loads what A computed.

    python examples/two_replicas.py [--model MODEL] [--folder DIR] [--set NAME=VALUE ...]

Starts two `kvferry replica` processes on free ports of 127.0.0.1 with a directory as their pool, sends one
prompt twice to A (the second time makes it worth publishing) and once to B, and prints how each prompt
became ready. The default model is the packaged one, which is fetched once; MODEL may be a folder saved by
transformers. Nothing but the standard library is used to talk to the replicas: any OpenAI client would do.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PUBLISH_SECONDS = 60.0
_STOP_SECONDS = 15.0
# Two requests are no load test: none is held out, none spent on exploring.
_SETTINGS = ("gate.holdout_share=0", "gate.explore_share=0")


@contextlib.contextmanager
def replica(name: str, folder: Path, model: str, settings: list[str]) -> Iterator[str]:
    """One replica process; gives its address once it serves, and ends it on the way out."""
    command = [sys.executable, "-m", "kvferry", "replica", "--model", model]
    for setting in (
        f"replica={name}", f"pool=files://{folder}/pool", f"record={folder}/run", *_SETTINGS, *settings
    ):  # fmt: skip
        command += ["--set", setting]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        # One line says where it listens; the end of the output says that it could not.
        line = process.stdout.readline() if process.stdout is not None else ""
        if not line:
            raise SystemExit(f"replica {name} did not start; its message is above")
        yield f"http://127.0.0.1:{json.loads(line)['port']}"
    finally:
        process.terminate()
        try:
            process.communicate(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def call(url: str, body: dict[str, Any] | None = None) -> Any:
    """The JSON behind a GET, or behind a POST where there is a body."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=300) as response:
        return json.load(response)


def ask(url: str, prompt: str, request_id: str) -> dict[str, Any]:
    """One greedy completion; prints how its prompt became ready."""
    answer: dict[str, Any] = call(
        f"{url}/v1/completions", {"prompt": prompt, "max_tokens": 8, "request_id": request_id}
    )
    ours, usage = answer["kvferry"], answer["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    print(
        f"{request_id:>10}  {ours['decision']['path']:<10} {cached:>5} of {usage['prompt_tokens']} prompt "
        f"tokens not computed, first token after {ours['ttft_seconds']:.3f} s"
    )
    return answer


def wait_until_published(url: str) -> int:
    """Publishing goes on after the answer: wait for its bytes; how many they are."""
    for _ in range(int(_PUBLISH_SECONDS / 0.1)):
        published: int = call(f"{url}/kvferry/settings")["state"]["published_bytes"]
        if published:
            return published
        time.sleep(0.1)
    raise SystemExit(f"A published nothing within {_PUBLISH_SECONDS:g} s; is its pool writable?")


def main() -> int:
    parser = argparse.ArgumentParser(description="Two replicas, one shared directory.")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--folder", type=Path, help="where pool and records go; a temporary one unless given")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="NAME=VALUE")
    parser.add_argument("--characters", type=int, default=4000, help="length of the prompt")
    given = parser.parse_args()
    # Real text that every machine has; the question stands behind it, as in a chat about a document.
    prompt = inspect.getsource(textwrap)[: given.characters] + "\n# In one sentence, this module"
    with contextlib.ExitStack() as stack:
        folder: Path = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        a = stack.enter_context(replica("A", folder.resolve(), given.model, given.settings))
        b = stack.enter_context(replica("B", folder.resolve(), given.model, given.settings))
        first = ask(a, prompt, "A-first")
        ask(a, prompt, "A-second")
        print(f"{'':>10}  A has published {wait_until_published(a):,} bytes")
        third = ask(b, prompt, "B-first")
        same = first["kvferry"]["token_ids"] == third["kvferry"]["token_ids"]
        print(f"{'':>10}  the answers of A and B are {'the same' if same else 'DIFFERENT'}\n", flush=True)
        command = [sys.executable, "-m", "kvferry", "why", str(folder / "run"), "B-first"]
        subprocess.run(command, check=True)
        return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())

"""`python -P -m proofbox.agents.fakemodel [--port N] [--rules FILE]`: print the base URL and serve until terminated."""

from __future__ import annotations

import argparse
from pathlib import Path

import anyio

from proofbox.agents.fakemodel import FakeModel, load_rules


def main() -> None:
    parser = argparse.ArgumentParser(prog="fakemodel", description="A scriptable model for offline trials.")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="default: any free port")
    parser.add_argument("--rules", type=Path, metavar="FILE", help="TOML with [[rule]] when, do")
    options = parser.parse_args()
    model = FakeModel(load_rules(options.rules) if options.rules else ())

    async def serve() -> None:
        async with model.listening(options.port) as url:
            print(url, flush=True)
            await anyio.sleep_forever()

    try:
        anyio.run(serve)
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()

"""Runs one implementation's programs and prints what each of them saw, as JSON.

run.py LIBRARY IMPLEMENTATION ABOUT

LIBRARY is paramiko or pssh, IMPLEMENTATION original or trunkline; ABOUT is JSON: the servers, for the programs, and under
"programs" the module and the name of the table to run.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))


def as_json(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    if isinstance(value, dict):
        return {str(key): as_json(each) for key, each in value.items()}
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def main(name: str, implementation: str, about: dict[str, Any]) -> None:
    if implementation == "trunkline":
        importlib.import_module(f"trunkline.compat.{name}").install()
    library = importlib.import_module(name)
    saw = {}
    module, table = about["programs"]
    for title, program in getattr(importlib.import_module(f"parity.{module}"), table).items():
        seen: list[Any] = []

        def see(*values: Any, seen: list[Any] = seen) -> None:
            seen.append(as_json(values))

        with tempfile.TemporaryDirectory() as directory:
            try:
                program(library, see, {**about, "directory": directory})
            except Exception as error:
                line = traceback.extract_tb(error.__traceback__)[1].line
                seen.append(["raised", type(error).__name__, str(error).replace(directory, "DIRECTORY"), line])
        saw[title] = json.loads(json.dumps(seen).replace(directory, "DIRECTORY"))
    print(json.dumps(saw), flush=True)
    # Threads of the libraries' own are not waited for.
    os._exit(0)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))

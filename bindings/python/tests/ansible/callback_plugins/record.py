"""Writes each task's result as a line of JSON, for the tests to compare."""

from __future__ import annotations

DOCUMENTATION = """
name: record
type: notification
short_description: each task's result as a line of JSON
description: Appends to the file that E(RECORD) names.
"""

import json
import os
from typing import Any

from ansible.plugins.callback import CallbackBase


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "record"

    def _write(self, outcome: str, result: Any) -> None:
        line = {
            "outcome": outcome,
            "host": result._host.get_name(),
            "task": result._task.get_name(),
            "result": {key: value for key, value in result._result.items() if not key.startswith("_ansible")},
        }
        with open(os.environ["RECORD"], "a", encoding="ascii") as file:
            file.write(json.dumps(line, default=str) + "\n")

    def v2_runner_on_ok(self, result: Any) -> None:
        self._write("ok", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._write("failed", result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._write("unreachable", result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._write("skipped", result)
